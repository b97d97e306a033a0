"""The last change of each table in front of given offsets, found by reading a topic backwards.

Whoever asks pays for it: a fold that kept them would pay at each row. How far back it looks is bounded, so a table of
which nothing is found has changed before that, and not never.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import read_range, start_offsets, windows_back
from stream.wire.codec import CodecError, NewerWireError, Record, decode
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import SEPARATOR

WINDOW: Final = 256
"""Offsets that are looked at first, of each partition."""
LOOKED_MAX: Final = 20_000
"""Offsets that are looked at in all, of each partition: about a minute and a half of batches without a pause."""


class LastChange(NamedTuple):
    """``kind``: ``row`` or ``void``. ``timestamp``: source seconds since 1970. ``offset``: of its message."""

    table: str
    kind: str
    shard: str
    gtid: str
    timestamp: int
    partition: int
    offset: int


Read = Callable[[int, int, int], Iterable[tuple[int, bytes]]]
"""(partition, start, end) → (offset, message) of the committed records there, in order."""


def last_changes(
    kafka: KafkaCluster, topic: str, ends: Mapping[int, int], tables: Collection[str], looked_max: int = LOOKED_MAX
) -> dict[str, LastChange]:
    """Table → its last change in front of ``ends`` (partition → offset), of those of ``tables`` that have one there.

    Of several partitions the change with the latest source time counts. Raises `TopicReadError`, `KafkaUnreachable`.
    """

    def read(partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for message in read_range(kafka, topic, partition, start, end):
            value, offset = message.value(), message.offset()
            if value is not None and offset is not None:
                yield offset, value

    lows = start_offsets(kafka, topic, ends)
    found: dict[str, LastChange] = {}
    for partition, end in sorted(ends.items()):
        low = max(lows[partition], end - looked_max)
        for table, last in last_in(read, partition, low, end, frozenset(tables)).items():
            if table not in found or last.timestamp > found[table].timestamp:
                found[table] = last
    return found


def last_in(read: Read, partition: int, low: int, end: int, tables: frozenset[str]) -> dict[str, LastChange]:
    """Of one partition. It goes back in windows that grow, until each table has a change."""
    found: dict[str, LastChange] = {}
    for start, upto in windows_back(low, end, WINDOW):
        if found.keys() >= tables:
            break
        later: dict[str, LastChange] = {}
        for offset, value in read(partition, start, upto):
            for each in _changes(value, partition, offset):
                for table in tables if each.table == EVERY_TABLE else tables & {each.table}:
                    later[table] = each._replace(table=table)
        found = later | found  # what was found before lies behind this window
    return found


def _changes(value: bytes, partition: int, offset: int) -> Iterator[LastChange]:
    """What a message changes, in order, once a table and transaction."""
    try:
        name, record = decode(value)
    except (CodecError, NewerWireError):
        return  # a dead letter; or a record that the owner has not folded either
    if name == "RowFrame":
        yield from _of_frame(record, partition, offset)
    elif name == "TableVoid":
        gtid, timestamp = record["gtid"], record["timestamp"]
        yield LastChange(record["table"], "void", record["shard"], gtid, timestamp, partition, offset)


def _of_frame(frame: Record, partition: int, offset: int) -> Iterator[LastChange]:
    at = 0
    columns: Iterable[Any] = zip(frame["transactions"], frame["gtids"], frame["timestamps"], strict=True)
    for rows, gtid, timestamp in columns:
        for table in dict.fromkeys(key.partition(SEPARATOR)[0] for key in frame["keys"][at : at + rows]):
            yield LastChange(table.decode(errors="replace"), "row", frame["shard"], gtid, timestamp, partition, offset)
        at += rows
