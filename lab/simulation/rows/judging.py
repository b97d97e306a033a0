"""The checkers of the world of rows: each answer against the truth, and the whole once it is quiet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.messages import fold_message
from consumers.fold.state import Head, PartitionState, head_entries
from consumers.owner.protocol import UNKNOWN_KEY
from consumers.owner.rows import view_row
from lab.simulation.models.topic import SimulatedTopic
from lab.simulation.models.truth import CommitHistory
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
SAME_STATE: Final = "same history, same state"
EXPLAINS: Final = "explanation true"
RULES: Final = (STALE, OWN_WRITES, MONOTONIC, NOTHING_LOST, RECOVERS, SAME_STATE, EXPLAINS, "never raises")

Complain = Callable[[str, str], None]


class Judge:
    """Judges answers. ``complain(rule, what)`` takes note of a violation."""

    def __init__(self, publishers: list[Publishing], complain: Complain) -> None:
        self._publishers = publishers
        self._complain = complain
        self._mislabelled_fills: set[tuple[int, bytes, str, str]] = set()
        """Fills (partition object, key, hi, shard) that were read in another history than their epoch's."""
        self.own: dict[tuple[int, str], tuple[int, int]] = {}
        """(session, shard) → (history, commit) of its last own write."""

    def history(self, shard: int, epoch: int | None) -> CommitHistory | None:
        """The history that an epoch of a shard names."""
        publisher = self._publishers[shard]
        number = publisher.history_of_epoch.get(epoch if epoch is not None else -1)
        return publisher.source.histories[number] if number is not None else None

    def note_fill(self, offer: Offer) -> None:
        """A fill was accepted."""
        stamp = offer.request.stamp
        shard = int(stamp.shard.rpartition("/")[2])
        history = self.history(shard, stamp.epoch)
        if history is None or history.number != offer.history:
            self._mislabelled_fills.add((id(offer.owned), offer.request.key, offer.request.hi, stamp.shard))

    def check_history_lost(self, given: HistoryLost, vector: Vector, shard: str) -> None:
        """409: only if the session's component is of an epoch that is over."""
        component = vector.get(shard)
        told = Vector.parse(given.token).get(shard)
        if component is None or (told is not None and told.epoch <= component.epoch):
            self._complain(EXPLAINS, f"409 history_lost for {component} of {shard}, told to go on with {told}")

    def check_session_after_409(self, vector: Vector, before: Vector, shard: str) -> None:
        """After a 409 the session is in the new history of the one shard, and knows what it knew of the others."""
        lost, component = before.get(shard), vector.get(shard)
        if lost is not None and component is not None and component.epoch <= lost.epoch:
            self._complain(RECOVERS, f"after a 409 for {lost} of {shard} the session goes on with {component}")
        forgotten = [name for name, known in before.items() if name != shard and vector.get(name) != known]
        if forgotten:
            self._complain(MONOTONIC, f"after a 409 for {shard} the session has forgotten {', '.join(forgotten)}")

    def check_refusal(self, source_read: SourceRead) -> None:
        """The source did not prove the demand: then it was behind what the session had seen."""
        pending, snapshot = source_read.pending, source_read.snapshot
        assert snapshot is not None
        component = pending.demand.vector.get(pending.proof.shard)
        if component is None or pending.is_uncertain:
            return
        history = self.history(pending.slot // SLOTS_A_SHARD, component.epoch)
        if history is None or history.number != snapshot.history:
            return
        wanted = history.index_of.get(str(component.position))
        reached = history.index_of[source_read.lo] if source_read.lo else snapshot.commit
        if wanted is not None and wanted <= reached:
            what = f"{pending.key.key!r} was read at commit {reached}, the session had seen {wanted}: not answered"
            self._complain(RECOVERS, what)

    def check_answer(self, given: ServedAnswer) -> None:
        """An answer: is it a state that the row had at or after what the session had seen?"""
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
            what = f"{_description(given)} is of commit {start}, and is said to hold nothing after {given.hi}"
            self._complain(EXPLAINS, what)
        if demand.given and given.freshness == "fresh":
            session.saw(name, history.number, start)
            if is_uncertain:
                session.uncertain.add(name)

    def _history_of_image(self, given: ServedAnswer, histories: list[CommitHistory]) -> CommitHistory | None:
        slot = given.pending.slot
        return next((each for each in reversed(histories) if each.first_at(slot, given.image, 0) is not None), None)

    def _check_explanation(self, given: ServedAnswer, name: str) -> None:
        demand = given.pending.demand
        known = given.pending.proof.epoch is not None or given.served_from == "cache"
        wanted = "fresh" if demand.given and known else "eventual"
        if given.freshness != wanted or not given.why:
            what = f"{_description(given)} is called {given.freshness} ({given.why}), it should be {wanted}"
            self._complain(EXPLAINS, what)
        if given.served_from == "cache" and given.shard != name:
            self._complain(EXPLAINS, f"{_description(given)} is said to be of shard {given.shard!r}")
        component = demand.vector.get(name)
        if given.freshness == "fresh" and component is not None and component.epoch != given.epoch:
            what = (
                f"{_description(given)} of epoch {given.epoch} is called fresh for a session at epoch {component.epoch}"
            )
            self._complain(STALE, what)

    def _demanded(self, given: ServedAnswer, name: str, history: CommitHistory, *, skip: bool) -> dict[str, int]:
        """Rule → the commit that the answer must be at or after by it."""
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
        """When it is quiet the folded entry is the truth, or is known not to be known."""
        shard = slot // SLOTS_A_SHARD
        publisher = self._publishers[shard]
        history = publisher.source.history
        view = view_row(head, SLOTS[slot].key, value)
        true = history.state(slot, history.end)
        place = f"{SLOTS[slot].key!r} in partition {partition} of {owner}"
        if view.kind in (VALUE, ABSENT) and view.image != true:
            self._complain(NOTHING_LOST, f"{place} is folded to {_text(view.image)}, it is {_text(true)}")
        if view.kind in (VOID, UNKNOWN_KEY) and not voidable:
            started = publisher.epoch_start[max(publisher.epoch_start)]
            if history.changed_since(slot, started):
                self._complain(NOTHING_LOST, f"{place} is not known ({view.why}) though its change was published")
        if value is not None and decode_entry(value).kind not in (VALUE, ABSENT, VOID):
            self._complain(NOTHING_LOST, f"{place} holds an entry of no kind")


def refolded(topic: SimulatedTopic, partition: int) -> dict[bytes, bytes]:
    """The partition folded from its beginning, message by message, into a dict."""
    entries: dict[bytes, bytes] = {}
    state = PartitionState(Head(), entries.get)
    for offset, value in enumerate(topic.partitions[partition]):
        changes = fold_message(state, offset, value)
        entries.update(changes.entries)
        state.apply(changes)
    return entries | head_entries(state.head)


def _description(given: ServedAnswer) -> str:
    key = given.pending.key.key
    return (
        f"session {given.pending.session.number} got {_text(given.image)} for {key!r}"
        f" from the {given.served_from} ({given.freshness}: {given.why})"
    )


def _text(image: bytes | None) -> str:
    return image.decode() if image is not None else "no row"
