"""The checkers of the world of rows: each answer is compared with the truth, and so is the final state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.state import Head
from consumers.owner.protocol import UNKNOWN_KEY, Fill
from consumers.owner.rows import read_stamp, view_row
from lab.simulation.models.truth import CommitHistory
from lab.simulation.naive.judging import BY_THE_RULES, SAME_STATE
from lab.simulation.rows.asking import Read, ServedAnswer
from lab.simulation.rows.publishing import Publishing
from lab.simulation.rows.source import SLOT_OF, SLOTS, SLOTS_A_SHARD
from serving.client import HistoryLost
from tokens import Position, Vector
from tokens.vector import Component

STALE: Final = "no stale answer"
OWN_WRITES: Final = "read your writes"
MONOTONIC: Final = "monotonic reads"
NOTHING_LOST: Final = "nothing lost, nothing twice"
RECOVERS: Final = "recovers by itself"
NEVER_RAISES: Final = "never raises"
RENAMED: Final = "-renamed"
"""How the name of a shard ends that nobody knows any more."""
EXPLAINS: Final = "explanation true"
RULES: Final = (
    STALE, OWN_WRITES, MONOTONIC, NOTHING_LOST, RECOVERS, SAME_STATE, BY_THE_RULES, EXPLAINS, NEVER_RAISES,
)  # fmt: skip

Complain = Callable[[str, str], None]


class Judge:
    """Checks answers. ``complain(rule, what)`` records a violation."""

    def __init__(self, publishers: list[Publishing], complain: Complain) -> None:
        self._publishers = publishers
        self._complain = complain
        self._mislabelled_fills: set[tuple[bytes, str, str]] = set()
        """Fills (key, hi, shard) that were read in another history than that of their epoch."""
        self.own: dict[tuple[int, str], tuple[int, int]] = {}
        """(session, shard) → (history, commit) of its last own write."""

    def history(self, shard: int, epoch: int | None) -> CommitHistory | None:
        """The history of an epoch of a shard; None if the epoch never began."""
        publisher = self._publishers[shard]
        number = publisher.history_of_epoch.get(epoch if epoch is not None else -1)
        return publisher.source.histories[number] if number is not None else None

    def history_read(self, shard: int, number: int) -> CommitHistory | None:
        """The history of this ``number``; None for -1."""
        return self._publishers[shard].source.histories[number] if number >= 0 else None

    def last_history(self, shard: int) -> CommitHistory:
        """The history that a shard's source is in now."""
        return self._publishers[shard].source.history

    def complain(self, rule: str, what: str) -> None:
        """Records a violation."""
        self._complain(rule, what)

    def note_fill(self, fill: Fill, number: int) -> None:
        """Notes an accepted fill if it was read in another history, the one with this ``number``, than its epoch's."""
        stamp = read_stamp(fill.stamp)
        shard = int(stamp.shard.rpartition("/")[2])
        history = self.history(shard, stamp.epoch)
        if history is None or history.number != number:
            self._mislabelled_fills.add((fill.key, fill.hi, stamp.shard))

    def check_history_lost(self, given: HistoryLost, vector: Vector, shard: str) -> None:
        """Checks that a 409 is given only if the session's component is of an ended epoch."""
        component = vector.get(shard)
        told = Vector.parse(given.token).get(shard)
        if component is None or (told is not None and told.epoch <= component.epoch):
            self._complain(EXPLAINS, f"409 history_lost for {component} of {shard}, but the new token has {told}")

    def check_session_after_409(self, vector: Vector, before: Vector, shard: str) -> None:
        """Checks that after a 409 the session is in the shard's new history and keeps all other components."""
        lost, component = before.get(shard), vector.get(shard)
        if lost is not None and component is not None and component.epoch <= lost.epoch:
            self._complain(RECOVERS, f"after a 409 for {lost} of {shard} the session continues with {component}")
        self.check_kept(vector, before, [shard])

    def check_kept(self, vector: Vector, before: Vector, lost: list[str]) -> None:
        """Checks that after a 409 for the shards ``lost`` the session keeps all other components."""
        forgotten = [
            name
            for name, (epoch, position) in before.items()
            if name not in lost and not _holds(vector.get(name), epoch, position)
        ]
        if forgotten:
            what = f"after a 409 for {', '.join(lost)} the session has forgotten {', '.join(forgotten)}"
            self._complain(MONOTONIC, what)

    def check_refusal(self, read: Read) -> None:
        """Checks that an unproved answer of the source was really behind what the session had seen."""
        if len(read.source) != 1:
            return
        [(key, (proof, found))] = read.source.items()
        component, snapshot = read.demand.get(proof.shard), found.snapshot
        known = {proof.shard, *proof.kin.topology}
        uncertain = proof.shard in read.uncertain | read.session.uncertain
        if component is None or uncertain or not known.issuperset(read.demand):
            return
        history = self.history(SLOT_OF[key] // SLOTS_A_SHARD, component.epoch)
        if history is None or history.number != snapshot.history:
            return
        wanted = history.index_of.get(str(component.position))
        reached = history.index_of[str(found.position)]
        if wanted is not None and wanted <= reached:
            what = f"{key!r} was read at commit {reached} and refused, but the session had seen {wanted}"
            self._complain(RECOVERS, what)

    def check_answer(self, given: ServedAnswer) -> None:
        """Checks that the row had the answered image at or after the demand."""
        read, slot = given.read, given.slot
        shard = slot // SLOTS_A_SHARD
        name = f"s/{shard}"
        self._check_explanation(given, name)
        histories = self._publishers[shard].source.histories
        labelled = self.history(shard, given.epoch)
        if given.history >= 0:
            history: CommitHistory | None = histories[given.history]
            is_uncertain = labelled is not None and labelled is not history
            if labelled is not None and labelled.number > given.history:
                what = f"{_description(given)} was read before epoch {given.epoch} began, and is called one of it"
                self._complain(STALE, what)
        else:
            history = labelled
            is_uncertain = (given.key, given.hi, given.shard) in self._mislabelled_fills
            if is_uncertain:
                history = self._history_of_image(given, histories)
        if history is None:
            self._complain(EXPLAINS, f"answered for epoch {given.epoch} of {name}, which never began")
            return
        demanded = self._demanded(given, name, history, skip=is_uncertain or name in read.uncertain)
        start = history.first_at(slot, given.image, max(demanded.values(), default=0))
        if start is None:
            self._complain_stale(given, history, demanded)
            return
        hi = history.index_of.get(given.hi)
        if hi is not None and start > hi:
            what = f"{_description(given)} is from commit {start}, but its hi is {given.hi}"
            self._complain(EXPLAINS, what)
        if read.given and name in given.token:
            read.session.saw(name, history.number, start)
            if is_uncertain:
                read.session.uncertain.add(name)

    def _history_of_image(self, given: ServedAnswer, histories: list[CommitHistory]) -> CommitHistory | None:
        fitting = (each for each in reversed(histories) if each.first_at(given.slot, given.image, 0) is not None)
        return next(fitting, None)

    def _check_explanation(self, given: ServedAnswer, name: str) -> None:
        demand = given.read.demand
        wanted = "fresh" if demand and name in given.token else "eventual"
        if given.freshness != wanted or not given.why:
            what = f"{_description(given)} is called {given.freshness} ({given.why}), expected {wanted}"
            self._complain(EXPLAINS, what)
        if given.served_from == "cache" and given.shard != name:
            self._complain(EXPLAINS, f"{_description(given)} names the wrong shard {given.shard!r}")
        component = demand.get(name)
        if given.freshness == "fresh" and component is not None and component.epoch != given.epoch:
            what = (
                f"{_description(given)} of epoch {given.epoch} is called fresh for a session at epoch {component.epoch}"
            )
            self._complain(STALE, what)

    def _demanded(self, given: ServedAnswer, name: str, history: CommitHistory, *, skip: bool) -> dict[str, int]:
        """Rule → the commit at or after which the answer must be. ``skip``: no rule applies."""
        read = given.read
        if skip or not read.given or given.freshness != "fresh":
            return {}
        demanded: dict[str, int] = {}
        component = read.demand.get(name)
        if component is not None and self.history(int(name[2:]), component.epoch) is history:
            demanded[STALE] = history.index_of.get(str(component.position), 0)
        seen = read.seen.get(name)
        if seen is not None and seen.history == history.number:
            own = self.own.get((read.session.number, name))
            mine = own is not None and own == tuple(seen)
            demanded[OWN_WRITES if mine else MONOTONIC] = seen.commit
        elif seen is not None and seen.history > history.number and given.served_from == "cache":
            demanded[MONOTONIC] = history.end + 1
        return demanded

    def _complain_stale(self, given: ServedAnswer, history: CommitHistory, demanded: dict[str, int]) -> None:
        slot = given.slot
        rule = STALE
        for name, index in demanded.items():
            if history.first_at(slot, given.image, index) is None:
                rule = name
        versions = ", ".join(f"{at}: {_text(image)}" for at, image in history.versions.get(slot, []))
        wanted = ", ".join(f"{index} ({name})" for name, index in demanded.items()) or "any"
        self._complain(
            rule,
            f"{_description(given)}; wanted a state at or after commit {wanted}; the row's versions are {versions}",
        )

    def check_folded(
        self, owner: str, partition: int, slot: int, head: Head, value: bytes | None, *, voidable: bool
    ) -> None:
        """Checks that a folded entry is the true row at the end, or unknown where it may be (``voidable``).

        That a row is deleted may be unknown where its table was whole before, and no more (decision 0025).
        """
        shard = slot // SLOTS_A_SHARD
        publisher = self._publishers[shard]
        history = publisher.source.history
        view = view_row(head, SLOTS[slot].key, value)
        true = history.state(slot, history.end)
        place = f"{SLOTS[slot].key!r} in partition {partition} of {owner}"
        if view.kind in (VALUE, ABSENT) and view.image != true:
            self._complain(NOTHING_LOST, f"{place} is folded to {_text(view.image)}, expected {_text(true)}")
        is_dropped = true is None and (SLOTS[slot].table, publisher.source.name) in head.dropped
        if view.kind in (VOID, UNKNOWN_KEY) and not voidable and not is_dropped:
            started = publisher.epoch_start[max(publisher.epoch_start)]
            if history.changed_since(slot, started):
                self._complain(NOTHING_LOST, f"{place} is unknown ({view.why}) although its change was published")
        if value is not None and decode_entry(value).kind not in (VALUE, ABSENT, VOID):
            self._complain(NOTHING_LOST, f"{place} holds an entry of an invalid kind")


def _holds(component: Component | None, epoch: int, position: Position) -> bool:
    return component is not None and (
        component.epoch > epoch or (component.epoch == epoch and component.position.contains(position))
    )


def _description(given: ServedAnswer) -> str:
    return (
        f"session {given.read.session.number} got {_text(given.image)} for {given.key!r}"
        f" from the {given.served_from} ({given.freshness}: {given.why})"
    )


def _text(image: bytes | None) -> str:
    return image.decode() if image is not None else "no row"
