"""Where a shard's publisher resumes: read from the topic itself, never from a separate file.

It is in the last committed `SourceState` of the shard in its home partition. One window at the partition's end is read
first; larger windows before it are read only if it is not enough. (Reading backwards record by record took 17 s
instead of 0.15 s.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, read_range, start_offsets, windows_back
from stream.kafka.topics import Topic
from stream.wire.codec import CodecError, NewerWireError, Record, decode, headers, is_of_unknown_schema
from stream.wire.declarations import Declarations
from stream.wire.events import OpenTransaction, ResumePoint
from stream.wire.keys import Layout
from stream.wire.records import open_transaction
from tokens.errors import FreshetError

WINDOW_RECORDS: Final = 512
"""Size of the first window, in offsets."""
_STATE_HEADERS: Final = headers("SourceState")


class ResumeError(FreshetError):
    """The topic does not tell where to resume.

    After these `Publisher.open` starts a new epoch: ``open_map_lost`` (retention deleted the last whole map of open
    transactions); ``newer_records`` (after the last state of the shard there are records of a schema that this version
    does not have, so a newer one may have published); ``declarations_lost`` (retention deleted descriptions or bindings
    that nobody has said again, or a newer version's can't be read); ``tail_lost`` (a partition has lost its end);
    ``topic_replaced`` (the topic was deleted and made anew under a publisher). Others: ``tail_unreadable``;
    ``states_contradict`` (two publishers of the shard wrote at the same time).
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
    scan = _Scan([])
    for start, upto in windows_back(low, end, window):
        patience_s = max(deadline - monotonic(), 0.001)
        scan.prepend(_scan(kafka, topic, partition, shard, start, upto, patience_s))
        if _has_snapshot(scan.states):
            break
    states, newest_ms = scan.states, scan.newest_ms
    if not states:
        return Tail(None, "", newest_ms, low == 0 and scan.last_unknown < 0)
    layout, epoch = states[-1]["layout"], max(state["epoch"] for state in states)
    try:
        if scan.last_unknown > scan.last_state:
            raise ResumeError(
                f"{topic}/{partition} holds a record of an unknown schema after the last state of {shard}",
                hint="a newer Freshet may have published here: what it published is void, and published again",
                code="newer_records",
            )
        point = resume_point(states)
    except ResumeError as problem:
        return Tail(None, layout, newest_ms, low == 0, epoch, problem)
    return Tail(point, layout, newest_ms, low == 0, epoch)


def read_declarations(
    kafka: KafkaCluster, topic: str, partition: int, point: ResumePoint, *, timeout_s: float = 60.0
) -> Declarations:
    """What the epoch has declared up to now, from the home ``partition``.

    Raises `ResumeError` ``declarations_lost``, `TopicReadError`, `KafkaUnreachable`.
    """
    [low] = start_offsets(kafka, topic, [partition]).values()
    [end] = end_offsets(kafka, topic, [partition], committed=False).values()
    found = Declarations(point.shard, point.epoch)
    try:
        for message in read_range(kafka, topic, partition, max(low, point.declared_at), end, timeout_s=timeout_s):
            value = message.value()
            if value is not None:
                found.read(value)
        if found.unreadable is not None:
            raise found.unreadable
    except (CodecError, NewerWireError) as error:
        raise ResumeError(f"{topic}/{partition}: {error}", code="declarations_lost") from error
    is_whole = low <= max(point.declared_at, 0) or found.has_beginning
    if not is_whole:
        raise ResumeError(
            f"{topic}/{partition} begins at {low}, after the last place where {point.shard} said everything",
            hint="its source was down for longer than the topic keeps events",
            code="declarations_lost",
        )
    return found


def read_point(kafka: KafkaCluster, topic: Topic, shard: str, before: ResumePoint | None = None) -> ResumePoint | None:
    """Where a shard is, with what it has described and completed, for somebody who only looks; None if nowhere.

    ``before``: an earlier point, whose tables are taken over. Without it much of the topic may be read. Raises
    `ResumeError`, `TopicReadError`, `KafkaUnreachable`.
    """
    home = Layout(topic.partitions).home_partition(shard)
    tail = read_tail(kafka, topic.name, home, shard)
    if tail.problem is not None:
        raise tail.problem
    if tail.point is None:
        return None
    if before is not None:
        return replace(tail.point, descriptions=before.descriptions, complete=before.complete)
    said = read_declarations(kafka, topic.name, home, tail.point)
    return replace(tail.point, descriptions=said.descriptions(), complete=said.complete_tables())


@dataclass(slots=True)
class _Scan:
    """What a range of the home partition holds. Offsets are -1 where there is none."""

    states: list[Record]
    """Of the shard, oldest first."""
    newest_ms: int = 0
    """The highest record time."""
    last_state: int = -1
    last_unknown: int = -1
    """Offset of the last record of a schema that this version does not have."""

    def prepend(self, earlier: _Scan) -> None:
        """Adds the range before this one."""
        self.states = earlier.states + self.states
        self.newest_ms = max(self.newest_ms, earlier.newest_ms)
        self.last_state = max(self.last_state, earlier.last_state)
        self.last_unknown = max(self.last_unknown, earlier.last_unknown)


def _scan(kafka: KafkaCluster, topic: str, partition: int, shard: str, start: int, end: int, timeout_s: float) -> _Scan:
    """What [start, end) holds."""
    scan = _Scan([])
    for message in read_range(kafka, topic, partition, start, end, timeout_s=timeout_s):
        scan.newest_ms = max(scan.newest_ms, message.timestamp()[1])
        value = message.value()
        if value is None:
            continue
        if value[:10] in _STATE_HEADERS:
            try:
                record = decode(value)[1]
            except CodecError:
                continue  # damaged: the fold passes it over too
            if record["shard"] == shard:
                scan.states.append(record)
                scan.last_state = message.offset()
        elif is_of_unknown_schema(value):
            scan.last_unknown = message.offset()
    return scan


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

    Raises `ResumeError` if the map of open transactions cannot be built from them: ``open_map_lost``, ``tail_lost`` if
    one is missing between them, ``states_contradict``.
    """
    chain = _since_snapshot(list(states))
    if not chain:
        raise ResumeError("the topic no longer has a whole map of open transactions", code="open_map_lost")
    known: dict[int, OpenTransaction] = {}
    last = chain[0]
    for state in chain:
        if (state["epoch"], state["sequence"]) != (last["epoch"], last["sequence"] + (state is not last)):
            before, after = f"{last['epoch']}/{last['sequence']}", f"{state['epoch']}/{state['sequence']}"
            if state["epoch"] == last["epoch"] and state["sequence"] > last["sequence"]:
                raise ResumeError(f"state {after} of {state['shard']} follows {before}", code="tail_lost")
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
        cursor=last["cursor"],
        annotations=last["annotations"],
        checksum=last["checksum"],
        declared_at=last["declared_at"],
        continuity=last["continuity"],
    )
