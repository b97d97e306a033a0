"""Where a shard's publisher goes on: read from the topic itself, never from a side file.

The last committed `SourceState` of the shard in its home partition says it. The tail is read in one pass, backwards in
doubling windows only if it holds too little: reading backwards record by record took 17 s where this takes 0.15 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, read_range, start_offsets
from stream.wire.codec import Record, decode, headers
from stream.wire.events import OpenTransaction, ResumePoint
from stream.wire.records import open_transaction
from tokens.errors import FreshetError

WINDOW: Final = 512
"""Records of the home partition that are looked at first."""
_STATE_HEADERS: Final = headers("SourceState")


class ResumeError(FreshetError):
    """The topic does not tell where to go on.

    Codes: ``tail_unreadable``; ``open_map_lost`` (which transactions are open is out of retention; `Publisher.open`
    starts a new epoch); ``states_contradict`` (two publishers of the shard wrote side by side).
    """

    code = "tail_unreadable"


@dataclass(frozen=True, slots=True)
class Tail:
    """What the end of a shard's home partition says."""

    point: ResumePoint | None
    """None: no state of the shard is there, or none to go on from (`problem`)."""
    layout: str
    """The layout that the shard was published with; empty if there is no state."""
    record_time_ms: int
    """Kafka time of the last record seen; record times never run backwards. 0: none."""
    pristine: bool
    """Nothing was ever dropped from the partition's start: a missing state means that there never was one."""
    epoch: int = 0
    """The highest one of the states that were looked at."""
    problem: ResumeError | None = None
    """Why nothing can be gone on from though there are states."""


def read_tail(
    kafka: KafkaCluster, topic: str, partition: int, shard: str, *, timeout_s: float = 60.0, window: int = WINDOW
) -> Tail:
    """The last state of ``shard`` in its home ``partition``.

    Call it after `init_transactions`: then nothing of the shard is in flight. Another shard's unfinished transaction
    may still hide our last state from readers of committed records; so this reads up to the log's very end, and waits,
    up to ``timeout_s`` seconds, until the broker has decided that transaction. Raises `ReadError`, `KafkaUnreachable`.
    """
    deadline = monotonic() + timeout_s
    end = end_offsets(kafka, topic, [partition], committed=False)[partition]
    low = start_offsets(kafka, topic, [partition])[partition]
    states: list[Record] = []
    record_time_ms = 0
    start, upto = max(low, end - window), end
    while start < upto:
        patience_s = max(deadline - monotonic(), 0.001)
        found, newest = _states(kafka, topic, partition, shard, start, upto, patience_s)
        states = found + states
        record_time_ms = max(record_time_ms, newest)
        if _has_snapshot(states):
            break
        window *= 4
        start, upto = max(low, start - window), start
    if not states:
        return Tail(None, "", record_time_ms, low == 0)
    layout, epoch = states[-1]["layout"], max(state["epoch"] for state in states)
    try:
        point = resume_point(states)
    except ResumeError as problem:
        return Tail(None, layout, record_time_ms, low == 0, epoch, problem)
    return Tail(point, layout, record_time_ms, low == 0, epoch)


def _states(
    kafka: KafkaCluster, topic: str, partition: int, shard: str, start: int, end: int, timeout_s: float
) -> tuple[list[Record], int]:
    """States of the shard in [start, end), oldest first, and the newest record time there."""
    states: list[Record] = []
    newest = 0
    for message in read_range(kafka, topic, partition, start, end, timeout_s=timeout_s):
        newest = max(newest, message.timestamp()[1])
        value = message.value()
        if value is not None and value[:10] in _STATE_HEADERS:
            record = decode(value)[1]
            if record["shard"] == shard:
                states.append(record)
    return states, newest


def _has_snapshot(states: list[Record]) -> bool:
    return any(_since_snapshot(states))


def _since_snapshot(states: list[Record]) -> list[Record]:
    """The states from the last snapshot on, the one with the full map of open transactions; empty without one."""
    for index in range(len(states) - 1, -1, -1):
        if _is_snapshot(states[index]):
            return states[index:]
    return []


def _is_snapshot(state: Record) -> bool:
    """Whether it has the full map of open transactions, and not only what changed since the state before."""
    return bool(state["whole"])


def resume_point(states: Iterable[Record]) -> ResumePoint:
    """Where a publisher goes on after these `SourceState` records, oldest first. Pure.

    Raises `ResumeError` if the open-transaction map cannot be put together from them.
    """
    chain = _since_snapshot(list(states))
    if not chain:
        raise ResumeError("no whole map of open transactions is left in the topic", code="open_map_lost")
    known: dict[int, OpenTransaction] = {}
    last = chain[0]
    for state in chain:
        if (state["epoch"], state["sequence"]) != (last["epoch"], last["sequence"] + (state is not last)):
            before, after = f"{last['epoch']}/{last['sequence']}", f"{state['epoch']}/{state['sequence']}"
            raise ResumeError(
                f"state {after} of {state['shard']} follows {before}",
                hint="two publishers of one shard, with different transactional ids? stop one, start the other once "
                "with --new-epoch",
                code="states_contradict",
            )
        known = {} if _is_snapshot(state) else known
        known.update((fields["txn"], open_transaction(fields)) for fields in state["opened"])
        for txn in state["closed"]:
            known.pop(txn, None)
        last = state
    return ResumePoint(
        shard=last["shard"],
        epoch=last["epoch"],
        ordinal=last["ordinal"],
        position=last["position"],
        timestamp=last["timestamp"],
        low_water=last["low_water"],
        partial_gtid=last["partial_gtid"],
        partial_events=last["partial_events"],
        sequence=last["sequence"],
        open_transactions=known,
        table_choice=last["table_choice"],
    )
