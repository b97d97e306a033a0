"""Where a shard's publisher resumes: read from the topic itself, never from a separate file.

It is in the last committed `SourceState` of the shard in its home partition. One window at the partition's end is read
first; larger windows before it are read only if it is not enough. (Reading backwards record by record took 17 s
instead of 0.15 s.)
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

WINDOW_RECORDS: Final = 512
"""Size of the first window, in offsets."""
_STATE_HEADERS: Final = headers("SourceState")


class ResumeError(FreshetError):
    """The topic does not tell where to resume.

    Codes: ``tail_unreadable``; ``open_map_lost`` (retention deleted the last whole map of open transactions;
    `Publisher.open` starts a new epoch); ``states_contradict`` (two publishers of the shard wrote at the same time).
    """

    code = "tail_unreadable"


@dataclass(frozen=True, slots=True)
class Tail:
    """What the end of a shard's home partition contains."""

    point: ResumePoint | None
    """None if there is no state of the shard, or no usable one (see `problem`)."""
    layout: str
    """The layout of the last state; empty if there is no state."""
    record_time_ms: int
    """The highest Kafka time of the records seen; 0 if there are none."""
    is_untruncated: bool
    """The partition still starts at offset 0, so a missing state means that there never was one."""
    epoch: int = 0
    """The highest epoch of the states that were read."""
    problem: ResumeError | None = None
    """Why the states that were found are not usable."""


def read_tail(
    kafka: KafkaCluster,
    topic: str,
    partition: int,
    shard: str,
    *,
    timeout_s: float = 60.0,
    window: int = WINDOW_RECORDS,
) -> Tail:
    """The last state of ``shard`` in its home ``partition``.

    Call it after `init_transactions`: then no transaction of this shard is open. Another shard's unfinished transaction
    may still hide this shard's last state from readers of committed records. So this reads up to the log's end, and
    waits up to ``timeout_s`` seconds until that transaction has ended. Raises `TopicReadError`, `KafkaUnreachable`.
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
    """The states of the shard in [start, end), oldest first, and the highest record time there (ms)."""
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
    """The states from the last one with a full map of open transactions on; empty without one."""
    for index in range(len(states) - 1, -1, -1):
        if _is_snapshot(states[index]):
            return states[index:]
    return []


def _is_snapshot(state: Record) -> bool:
    """Whether the state has the full map of open transactions, not only the changes since the state before."""
    return bool(state["whole"])


def resume_point(states: Iterable[Record]) -> ResumePoint:
    """Where a publisher resumes after these `SourceState` records, oldest first. Pure.

    Raises `ResumeError` if the map of open transactions cannot be built from them.
    """
    chain = _since_snapshot(list(states))
    if not chain:
        raise ResumeError("the topic no longer has a whole map of open transactions", code="open_map_lost")
    known: dict[int, OpenTransaction] = {}
    last = chain[0]
    for state in chain:
        if (state["epoch"], state["sequence"]) != (last["epoch"], last["sequence"] + (state is not last)):
            before, after = f"{last['epoch']}/{last['sequence']}", f"{state['epoch']}/{state['sequence']}"
            raise ResumeError(
                f"state {after} (epoch/sequence) of {state['shard']} follows {before}",
                hint="two publishers of this shard may run with different transactional ids: stop one, then start the "
                "other once with --new-epoch",
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
