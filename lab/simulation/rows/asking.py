"""Fronts and sessions: the steps of a read by the real rules of `serving`, and the session's new vector."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from consumers.owner import evidence
from consumers.owner import rows as owner_rows
from consumers.owner.partitions import Partition
from consumers.owner.protocol import Fill, Get, OwnerRow
from lab.simulation.models.owning import OwnedPartition
from lab.simulation.models.truth import Image
from lab.simulation.rows.source import SLOTS, RowSnapshot
from serving.client import HistoryLost, Session
from serving.client.wire import HttpRequest
from serving.errors import ReadError
from serving.reads.demands import ReadDemand
from serving.reads.proof import Proof, history_lost_error, token_after
from serving.reads.rowkey import RowKey
from serving.reads.rows import may_answer, may_offer
from serving.reads.spaces import Epochs
from serving.sources.source import SourceRow
from tokens import Position, Vector


class Seen(NamedTuple):
    """What a session has really seen of a shard: everything up to a commit of a history."""

    history: int
    commit: int


NOTHING_SEEN: Final = Vector()


def _send(located: Callable[[], str], request: HttpRequest) -> tuple[int, bytes]:
    """The front's answer with the end of the log, which is the only request that a session makes by itself."""
    del request
    return 200, json.dumps({"token": located()}).encode()


class SimulatedSession:
    """A reader: the real client session, and what it has really seen."""

    def __init__(self, number: int, located: Callable[[], str], vector: Vector = NOTHING_SEEN) -> None:
        self.number = number
        self.client = Session(partial(_send, located), vector)
        self.seen: dict[str, Seen] = {}
        self.shards_written: set[str] = set()
        """Shards that it wrote to. The epoch of a write is the one that the front names, which may be wrong."""
        self.uncertain: set[str] = set()
        """Shards of which it saw something when the change of history could not be known. They are not judged."""

    def saw(self, shard: str, history: int, index: int) -> None:
        """Records that it saw, or wrote, commit ``index``."""
        before = self.seen.get(shard)
        if before is None or (history, index) > before:
            self.seen[shard] = Seen(history, index)


class PendingRead(NamedTuple):
    """A read whose owner has answered, but not with an answer that may be served."""

    session: SimulatedSession
    slot: int
    key: RowKey
    demand: ReadDemand
    owned: OwnedPartition
    row: OwnerRow
    proof: Proof
    seen: Seen | None
    """What the session had seen at the look-up."""
    is_uncertain: bool


class SourceRead:
    """A read of the source that is under way. ``snapshot``: None until it is taken.

    If the source's snapshots have no position, ``lo`` is noted before the snapshot, ``hi`` after it. Else both are "".
    """

    __slots__ = ("hi", "lo", "noted", "pending", "snapshot")

    def __init__(self, pending: PendingRead, noted: str = "") -> None:
        self.pending = pending
        self.noted = noted
        """The source position when the read began."""
        self.snapshot: RowSnapshot | None = None
        self.lo = self.hi = ""


class ServedAnswer(NamedTuple):
    """An answer as the session gets it."""

    pending: PendingRead
    image: Image
    served_from: str
    freshness: str
    why: str
    shard: str
    epoch: int | None
    hi: str
    history: int
    """The history of the source's snapshot; -1 if the answer is from the cache."""


class Offer(NamedTuple):
    """A fill that is under way to the owner, and the history in which it was read."""

    owned: OwnedPartition
    request: Fill
    history: int


def ask(
    session: SimulatedSession,
    slot: int,
    *,
    alias: bool,
    owned: OwnedPartition,
    epochs: Epochs,
    shard: str,
    given: bool,
    store: Any = None,
    is_misdirected: bool = False,
) -> ServedAnswer | PendingRead | HistoryLost:
    """The owner's answer if it may be served, else a read to continue at the source, or lost history.

    Raises `OwnerError` ``wrong_partition`` if it ``is_misdirected``.
    """
    found = SLOTS[slot]
    exact = not found.alias
    key = RowKey(found.alias if alias and found.alias else found.key, found.values, exact)
    token = session.client.token if given else ""
    demand = ReadDemand(Vector.parse(token) if given else Vector(), given, 0)
    partition = owned.partition
    if store is not None:
        partition = cast("Partition", SimpleNamespace(store=store, overlay=owned.overlay, number=owned.number))
    demanded = evidence.demand_of(token if given else "")
    if is_misdirected:
        [row] = owner_rows.answer_rows(partition, Get(0, "s", owned.number, [key.key]), demanded)
    else:
        row = owner_rows.answer_row(partition, key.key, demanded)
    epochs.learn(row.shard, row.epoch)
    if not row.served:
        epochs.learn_kin(row.shard, row.epoch, row.kin)
    if shard not in epochs.known:  # as `serving.reads.spaces.epoch_of`
        for name, component in evidence.watermarks(owned.partition).items():
            epochs.learn(name, component.epoch)
    proof = Proof(demand, shard, epochs.known.get(shard), epochs.kin_of(shard, demand.vector))
    pending = PendingRead(
        session, slot, key, demand, owned, row, proof, session.seen.get(shard), shard in session.uncertain
    )
    if row.code == "history_lost":
        return _lost(history_lost_error(demand.vector, row.shard, row.epoch, row.watermark, row.why))
    if may_answer(row, key):
        if given:
            session.client.adopt(token_after(token, row.shard, row.epoch, row.hi))
        return ServedAnswer(pending, row.image, "cache", row.freshness, row.why, row.shard, row.epoch, row.hi, -1)
    return pending


def _lost(error: ReadError) -> HistoryLost:
    lost = HistoryLost(str(error), code=error.code)
    lost.token = error.token or ""
    return lost


def source_row(source_read: SourceRead) -> SourceRow:
    """The source's snapshot as the front sees it."""
    pending, snapshot = source_read.pending, source_read.snapshot
    assert snapshot is not None
    key = SLOTS[pending.slot].key if snapshot.image is not None else b""
    at = position_of(snapshot)
    lo = Position.parse(source_read.lo) if source_read.lo else at
    hi = Position.parse(source_read.hi) if source_read.hi else at
    return SourceRow(snapshot.image, key, lo, hi, snapshot.timestamp)


def position_of(snapshot: RowSnapshot) -> Position:
    """The position that a read of the source reports."""
    return Position.parse(snapshot.position)


def answer(source_read: SourceRead) -> ServedAnswer | HistoryLost | None:
    """The source's answer if it proves the demand, else None; or lost history."""
    pending, snapshot = source_read.pending, source_read.snapshot
    assert snapshot is not None
    session, proof = pending.session, pending.proof
    found = source_row(source_read)
    hi = str(found.hi)
    decision = proof.judge(found.position)
    if decision.history_lost:
        return _lost(proof.refusal(decision, found.position))
    if not decision.may_be_served:
        return None
    if pending.demand.given:
        session.client.adopt(proof.token_after(hi))
    return ServedAnswer(
        pending,
        snapshot.image,
        "source",
        decision.freshness,
        decision.why,
        proof.shard,
        proof.epoch,
        hi,
        snapshot.history,
    )


def offer(source_read: SourceRead) -> Offer | None:
    """The fill that the front offers to the owner; None if it may not offer one."""
    pending, snapshot = source_read.pending, source_read.snapshot
    assert snapshot is not None
    found = source_row(source_read)
    if not may_offer(pending.row, pending.proof.shard, pending.key, found):
        return None
    number = pending.owned.number
    fill = Fill(
        0,
        "s",
        number,
        pending.key.key,
        found.image,
        str(found.position),
        str(found.hi),
        found.timestamp,
        pending.row.stamp,
    )
    return Offer(pending.owned, fill, snapshot.history)
