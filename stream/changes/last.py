"""The last change of each table in front of given offsets, found by reading a topic backwards.

Whoever asks pays for it: a fold that kept them would pay at each row. How far back it looks is bounded, so a table of
which nothing is found has changed before that, and not never.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from stream.kafka.announced import announced_before
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import read_range, start_offsets, windows_back
from stream.wire.announced import Announced
from stream.wire.checks import decode_folded
from stream.wire.codec import CodecError, NewerWireError, PartitionReader, Record
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import SEPARATOR

WINDOW: Final = 256
"""Offsets that are looked at first, of each partition."""
LOOKED_MAX: Final = 20_000
"""Offsets that are looked at in all, of each partition: about a minute and a half of batches without a pause."""


class LastChange(NamedTuple):
    """``kind``: ``row`` or ``void``. ``timestamp``: source seconds since 1970. ``offset``: of its message.

    ``epoch``, ``ordinal``: its place in the shard; of rows of one transaction that of the first.
    """

    table: str
    kind: str
    shard: str
    gtid: str
    timestamp: int
    partition: int
    offset: int
    epoch: int
    ordinal: int


Read = Callable[[int, int, int], Iterable[tuple[int, bytes]]]
"""(partition, start, end) → (offset, message) of the committed records there, in order."""


def last_changes(
    kafka: KafkaCluster, topic: str, ends: Mapping[int, int], tables: Collection[str], looked_max: int = LOOKED_MAX
) -> dict[str, LastChange]:
    """Table → its last change in front of ``ends`` (partition → offset), of those of ``tables`` that have one there.

    Raises `TopicReadError`, `KafkaUnreachable`.
    """

    def read(partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for message in read_range(kafka, topic, partition, start, end):
            value, offset = message.value(), message.offset()
            if value is not None and offset is not None:
                yield offset, value

    lows = start_offsets(kafka, topic, ends)
    lowest = {partition: max(lows[partition], end - looked_max) for partition, end in ends.items()}
    texts: dict[bytes, Announced] = {}
    readers = {each: PartitionReader(texts, announced_before(kafka, topic, each, end)) for each, end in ends.items()}
    return latest(
        last_in(read, each, lowest[each], end, frozenset(tables), readers[each]) for each, end in sorted(ends.items())
    )


def latest(partitions: Iterable[Mapping[str, LastChange]]) -> dict[str, LastChange]:
    """Of several partitions' changes the one with the latest source time; of one second the later one of the shard."""
    found: dict[str, LastChange] = {}
    for each in partitions:
        for table, last in each.items():
            if table not in found or _time_of(last) > _time_of(found[table]):
                found[table] = last
    return found


def _time_of(change: LastChange) -> tuple[int, int, int]:
    return change.timestamp, change.epoch, change.ordinal


def last_in(
    read: Read, partition: int, low: int, end: int, tables: frozenset[str], reader: PartitionReader
) -> dict[str, LastChange]:
    """Of one partition. It goes back in windows that grow, until each table has a change.

    ``reader``: knows what is announced before ``end``.
    """
    found: dict[str, LastChange] = {}
    for start, upto in windows_back(low, end, WINDOW):
        if found.keys() >= tables:
            break
        later: dict[str, LastChange] = {}
        for offset, value in read(partition, start, upto):
            for each in _changes(value, partition, offset, reader):
                for table in tables if each.table == EVERY_TABLE else tables & {each.table}:
                    later[table] = each._replace(table=table)
        found = later | found  # what was found before lies behind this window
    return found


def _changes(value: bytes, partition: int, offset: int, reader: PartitionReader) -> Iterator[LastChange]:
    """What a message changes, in order, once a table and transaction."""
    try:
        name, record = decode_folded(reader, value)
    except (CodecError, NewerWireError):
        return  # a dead letter; or a record that the owner has not folded either
    if name == "RowFrame":
        yield from _of_frame(record, partition, offset)
    elif name == "TableVoid":
        gtid, timestamp = record["gtid"], record["timestamp"]
        place = partition, offset, record["epoch"], record["ordinal"]
        yield LastChange(record["table"], "void", record["shard"], gtid, timestamp, *place)


def _of_frame(frame: Record, partition: int, offset: int) -> Iterator[LastChange]:
    at = 0
    columns: Iterable[Any] = zip(frame["transactions"], frame["gtids"], frame["timestamps"], strict=True)
    for rows, gtid, timestamp in columns:
        place = partition, offset, frame["epoch"], frame["ordinal"] + frame["ordinals"][at]
        for table in dict.fromkeys(key.partition(SEPARATOR)[0] for key in frame["keys"][at : at + rows]):
            yield LastChange(table.decode(errors="replace"), "row", frame["shard"], gtid, timestamp, *place)
        at += rows
