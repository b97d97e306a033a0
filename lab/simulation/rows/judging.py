"""The checkers of the world of rows: each answer is compared with the truth, and so is the final state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.state import Head
from consumers.owner.protocol import UNKNOWN_KEY
from consumers.owner.rows import read_stamp, view_row
from lab.simulation.models.truth import CommitHistory
from lab.simulation.naive.judging import BY_THE_RULES, SAME_STATE
from lab.simulation.rows.asking import Offer, ServedAnswer, SourceRead
from lab.simulation.rows.publishing import Publishing
from lab.simulation.rows.source import SLOTS, SLOTS_A_SHARD
from serving.client import HistoryLost
from tokens import Vector

STALE: Final = "no stale answer"
OWN_WRITES: Final = "read your writes"
MONOTONIC: Final = "monotonic reads"
NOTHING_LOST: Final = "nothing lost, nothing twice"
RECOVERS: Final = "recovers by itself"
EXPLAINS: Final = "explanation true"
RULES: Final = (
    STALE, OWN_WRITES, MONOTONIC, NOTHING_LOST, RECOVERS, SAME_STATE, BY_THE_RULES, EXPLAINS, "never raises",
)  # fmt: skip

Complain = Callable[[str, str], None]


class Judge:
    """Checks answers. ``complain(rule, what)`` records a violation."""

    def __init__(self, publishers: list[Publishing], complain: Complain) -> None:
        self._publishers = publishers
        self._complain = complain
        self._mislabelled_fills: set[tuple[int, bytes, str, str]] = set()
        """Fills (id of the partition, key, hi, shard) that were read in another history than that of their epoch."""
        self.own: dict[tuple[int, str], tuple[int, int]] = {}
        """(session, shard) → (history, commit) of its last own write."""

    def history(self, shard: int, epoch: int | None) -> CommitHistory | None:
        """The history of an epoch of a shard; None if the epoch never began."""
        publisher = self._publishers[shard]
        number = publisher.history_of_epoch.get(epoch if epoch is not None else -1)
        return publisher.source.histories[number] if number is not None else None

    def note_fill(self, offer: Offer) -> None:
        """Notes an accepted fill if it was read in another history than that of its epoch."""
        stamp = read_stamp(offer.request.stamp)
        shard = int(stamp.shard.rpartition("/")[2])
        history = self.history(shard, stamp.epoch)
        if history is None or history.number != offer.history:
            self._mislabelled_fills.add((id(offer.owned), offer.request.key, offer.request.hi, stamp.shard))

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
        forgotten = [name for name, known in before.items() if name != shard and vector.get(name) != known]
        if forgotten:
            self._complain(MONOTONIC, f"after a 409 for {shard} the session has forgotten {', '.join(forgotten)}")

    def check_refusal(self, source_read: SourceRead) -> None:
        """Checks that an unproved answer of the source was really behind what the session had seen."""
        pending, snapshot = source_read.pending, source_read.snapshot
        assert snapshot is not None
        component = pending.demand.vector.get(pending.proof.shard)
        known = {pending.proof.shard, *pending.proof.kin.topology}
        uncertain = pending.is_uncertain or pending.proof.shard in pending.session.uncertain
        if component is None or uncertain or not known.issuperset(pending.demand.vector):
            return
        history = self.history(pending.slot // SLOTS_A_SHARD, component.epoch)
        if history is None or history.number != snapshot.history:
            return
        wanted = history.index_of.get(str(component.position))
        reached = history.index_of[source_read.lo] if source_read.lo else snapshot.commit
        if wanted is not None and wanted <= reached:
            what = f"{pending.key.key!r} was read at commit {reached} and refused, but the session had seen {wanted}"
            self._complain(RECOVERS, what)

    def check_answer(self, given: ServedAnswer) -> None:
        """Checks that the row had the answered image at or after the demand."""
        pending = given.pending
        shard = pending.slot // SLOTS_A_SHARD
        name = f"s/{shard}"
        session, demand = pending.session, pending.demand
        self._check_explanation(given, name)
        histories = self._publishers[shard].source.histories
        labelled = self.history(shard, given.epoch)
        if given.history >= 0:
            history: CommitHistory | None = histories[given.history]
            is_uncertain = labelled is not None and labelled is not history
        else:
            history = labelled
            is_uncertain = (id(pending.owned), pending.key.key, given.hi, given.shard) in self._mislabelled_fills
            if is_uncertain:
                history = self._history_of_image(given, histories)
        if history is None:
            self._complain(EXPLAINS, f"answered for epoch {given.epoch} of {name}, which never began")
            return
        demanded = self._demanded(given, name, history, skip=is_uncertain or pending.is_uncertain)
        start = history.first_at(pending.slot, given.image, max(demanded.values(), default=0))
        if start is None:
            self._complain_stale(given, history, demanded)
            return
        hi = history.index_of.get(given.hi)
        if hi is not None and start > hi:
            what = f"{_description(given)} is from commit {start}, but its hi is {given.hi}"
            self._complain(EXPLAINS, what)
        if demand.given and _is_in_token(given):
            session.saw(name, history.number, start)
            if is_uncertain:
                session.uncertain.add(name)

    def _history_of_image(self, given: ServedAnswer, histories: list[CommitHistory]) -> CommitHistory | None:
        slot = given.pending.slot
        return next((each for each in reversed(histories) if each.first_at(slot, given.image, 0) is not None), None)

    def _check_explanation(self, given: ServedAnswer, name: str) -> None:
        demand = given.pending.demand
        wanted = "fresh" if demand.vector and _is_in_token(given) else "eventual"
        if given.freshness != wanted or not given.why:
            what = f"{_description(given)} is called {given.freshness} ({given.why}), expected {wanted}"
            self._complain(EXPLAINS, what)
        if given.served_from == "cache" and given.shard != name:
            self._complain(EXPLAINS, f"{_description(given)} names the wrong shard {given.shard!r}")
        component = demand.vector.get(name)
        if given.freshness == "fresh" and component is not None and component.epoch != given.epoch:
            what = (
                f"{_description(given)} of epoch {given.epoch} is called fresh for a session at epoch {component.epoch}"
            )
            self._complain(STALE, what)

    def _demanded(self, given: ServedAnswer, name: str, history: CommitHistory, *, skip: bool) -> dict[str, int]:
        """Rule → the commit at or after which the answer must be. ``skip``: no rule applies."""
        pending = given.pending
        if skip or not pending.demand.given or given.freshness != "fresh":
            return {}
        demanded: dict[str, int] = {}
        component = pending.demand.vector.get(name)
        if component is not None and self.history(int(name[2:]), component.epoch) is history:
            demanded[STALE] = history.index_of.get(str(component.position), 0)
        seen = pending.seen
        if seen is not None and seen.history == history.number:
            own = self.own.get((pending.session.number, name))
            mine = own is not None and own == tuple(seen)
            demanded[OWN_WRITES if mine else MONOTONIC] = seen.commit
        elif seen is not None and seen.history > history.number and given.served_from == "cache":
            demanded[MONOTONIC] = history.end + 1
        return demanded

    def _complain_stale(self, given: ServedAnswer, history: CommitHistory, demanded: dict[str, int]) -> None:
        slot = given.pending.slot
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
        """Checks that a folded entry is the true row at the end, or unknown where it may be (``voidable``)."""
        shard = slot // SLOTS_A_SHARD
        publisher = self._publishers[shard]
        history = publisher.source.history
        view = view_row(head, SLOTS[slot].key, value)
        true = history.state(slot, history.end)
        place = f"{SLOTS[slot].key!r} in partition {partition} of {owner}"
        if view.kind in (VALUE, ABSENT) and view.image != true:
            self._complain(NOTHING_LOST, f"{place} is folded to {_text(view.image)}, expected {_text(true)}")
        if view.kind in (VOID, UNKNOWN_KEY) and not voidable:
            started = publisher.epoch_start[max(publisher.epoch_start)]
            if history.changed_since(slot, started):
                self._complain(NOTHING_LOST, f"{place} is unknown ({view.why}) although its change was published")
        if value is not None and decode_entry(value).kind not in (VALUE, ABSENT, VOID):
            self._complain(NOTHING_LOST, f"{place} holds an entry of an invalid kind")


def _is_in_token(given: ServedAnswer) -> bool:
    """Whether the epoch of the answer is known, so that the session's new token has its place."""
    return given.pending.proof.epoch is not None or given.served_from == "cache"


def _description(given: ServedAnswer) -> str:
    key = given.pending.key.key
    return (
        f"session {given.pending.session.number} got {_text(given.image)} for {key!r}"
        f" from the {given.served_from} ({given.freshness}: {given.why})"
    )


def _text(image: bytes | None) -> str:
    return image.decode() if image is not None else "no row"
