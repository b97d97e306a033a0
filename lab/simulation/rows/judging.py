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
from lab.simulation.rows.asking import Given, Offer, Reading
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
        self._foreign: set[tuple[int, bytes, str, str]] = set()
        """Fills (partition object, key, hi, shard) that were read in another history than their epoch's."""
        self.own: dict[tuple[int, str], tuple[int, int]] = {}
        """(session, shard) → (history, commit) of its last own write."""

    def history(self, shard: int, epoch: int | None) -> CommitHistory | None:
        """The history that an epoch of a shard names."""
        publisher = self._publishers[shard]
        number = publisher.history_of_epoch.get(epoch if epoch is not None else -1)
        return publisher.source.histories[number] if number is not None else None

    def filled(self, offer: Offer) -> None:
        """A fill was accepted."""
        stamp = offer.request.stamp
        shard = int(stamp.shard.rpartition("/")[2])
        history = self.history(shard, stamp.epoch)
        if history is None or history.number != offer.history:
            self._foreign.add((id(offer.owned), offer.request.key, offer.request.hi, stamp.shard))

    def lost(self, given: HistoryLost, vector: Vector, shard: str) -> None:
        """409: only if the session's component is of an epoch that is over."""
        component = vector.get(shard)
        told = Vector.parse(given.token).get(shard)
        if component is None or (told is not None and told.epoch <= component.epoch):
            self._complain(EXPLAINS, f"409 history_lost for {component} of {shard}, told to go on with {told}")

    def goes_on(self, vector: Vector, before: Vector, shard: str) -> None:
        """After a 409 the session is in the new history of the one shard, and knows what it knew of the others."""
        lost, component = before.get(shard), vector.get(shard)
        if lost is not None and component is not None and component.epoch <= lost.epoch:
            self._complain(RECOVERS, f"after a 409 for {lost} of {shard} the session goes on with {component}")
        forgotten = [name for name, known in before.items() if name != shard and vector.get(name) != known]
        if forgotten:
            self._complain(MONOTONIC, f"after a 409 for {shard} the session has forgotten {', '.join(forgotten)}")

    def refused(self, reading: Reading) -> None:
        """The source did not prove the demand: then it was behind what the session had seen."""
        question, snapshot = reading.question, reading.snapshot
        assert snapshot is not None
        component = question.demand.vector.get(question.proof.shard)
        if component is None or question.blurred:
            return
        history = self.history(question.slot // SLOTS_A_SHARD, component.epoch)
        if history is None or history.number != snapshot.history:
            return
        wanted = history.index_of.get(str(component.position))
        reached = history.index_of[reading.lo] if reading.lo else snapshot.commit
        if wanted is not None and wanted <= reached:
            what = f"{question.key.key!r} was read at commit {reached}, the session had seen {wanted}: not answered"
            self._complain(RECOVERS, what)

    def given(self, given: Given) -> None:
        """An answer: is it a state that the row had at or after what the session had seen?"""
        question = given.question
        shard = question.slot // SLOTS_A_SHARD
        name = f"s/{shard}"
        session, demand = question.session, question.demand
        self._explained(given, name)
        histories = self._publishers[shard].source.histories
        labelled = self.history(shard, given.epoch)
        if given.history >= 0:
            history: CommitHistory | None = histories[given.history]
            blurred = labelled is not None and labelled is not history
        else:
            history = labelled
            blurred = (id(question.owned), question.key.key, given.hi, given.shard) in self._foreign
            if blurred:
                history = self._elsewhere(given, histories)
        if history is None:
            self._complain(EXPLAINS, f"answered for epoch {given.epoch} of {name}, which never began")
            return
        demanded = self._demanded(given, name, history, skip=blurred or question.blurred)
        start = history.first_at(question.slot, given.image, max(demanded.values(), default=0))
        if start is None:
            self._stale(given, history, demanded)
            return
        hi = history.index_of.get(given.hi)
        if hi is not None and start > hi:
            what = f"{_named(given)} is of commit {start}, and is said to hold nothing after {given.hi}"
            self._complain(EXPLAINS, what)
        if demand.given and given.freshness == "fresh":
            session.saw(name, history.number, start)
            if blurred:
                session.blurred.add(name)

    def _elsewhere(self, given: Given, histories: list[CommitHistory]) -> CommitHistory | None:
        slot = given.question.slot
        return next((each for each in reversed(histories) if each.first_at(slot, given.image, 0) is not None), None)

    def _explained(self, given: Given, name: str) -> None:
        demand = given.question.demand
        known = given.question.proof.epoch is not None or given.served_from == "cache"
        wanted = "fresh" if demand.given and known else "eventual"
        if given.freshness != wanted or not given.why:
            what = f"{_named(given)} is called {given.freshness} ({given.why}), it should be {wanted}"
            self._complain(EXPLAINS, what)
        if given.served_from == "cache" and given.shard != name:
            self._complain(EXPLAINS, f"{_named(given)} is said to be of shard {given.shard!r}")
        component = demand.vector.get(name)
        if given.freshness == "fresh" and component is not None and component.epoch != given.epoch:
            what = f"{_named(given)} of epoch {given.epoch} is called fresh for a session at epoch {component.epoch}"
            self._complain(STALE, what)

    def _demanded(self, given: Given, name: str, history: CommitHistory, *, skip: bool) -> dict[str, int]:
        """Rule → the commit that the answer must be at or after by it."""
        question = given.question
        if skip or not question.demand.given or given.freshness != "fresh":
            return {}
        demanded: dict[str, int] = {}
        component = question.demand.vector.get(name)
        if component is not None and self.history(int(name[2:]), component.epoch) is history:
            demanded[STALE] = history.index_of.get(str(component.position), 0)
        seen = question.seen
        if seen is not None and seen.history == history.number:
            own = self.own.get((question.session.number, name))
            mine = own is not None and own == tuple(seen)
            demanded[OWN_WRITES if mine else MONOTONIC] = seen.commit
        elif seen is not None and seen.history > history.number and given.served_from == "cache":
            demanded[MONOTONIC] = history.end + 1
        return demanded

    def _stale(self, given: Given, history: CommitHistory, demanded: dict[str, int]) -> None:
        slot = given.question.slot
        rule = STALE
        for name, index in demanded.items():
            if history.first_at(slot, given.image, index) is None:
                rule = name
        versions = ", ".join(f"{at}: {_text(image)}" for at, image in history.versions.get(slot, []))
        wanted = ", ".join(f"{index} ({name})" for name, index in demanded.items()) or "any"
        self._complain(
            rule, f"{_named(given)}; wanted a state at or after commit {wanted}; the row's versions are {versions}"
        )

    def folded(self, owner: str, partition: int, slot: int, head: Head, value: bytes | None, *, voidable: bool) -> None:
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


def _named(given: Given) -> str:
    key = given.question.key.key
    return (
        f"session {given.question.session.number} got {_text(given.image)} for {key!r}"
        f" from the {given.served_from} ({given.freshness}: {given.why})"
    )


def _text(image: bytes | None) -> str:
    return image.decode() if image is not None else "no row"
