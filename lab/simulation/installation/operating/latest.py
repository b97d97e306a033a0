"""When each table has changed last, as its topic tells: read from the beginning, without the product's code."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lab.simulation.kafka.log import PartitionLog
from lab.simulation.naive.messages import Unreadable, read_message

EVERY: Final = "*"


class Change(NamedTuple):
    """A change of a table. ``at``: time of the source, epoch, and ordinal of its transaction."""

    at: tuple[int, int, int]
    kind: str
    shard: str
    partition: int
    offset: int


def latest(events: Sequence[PartitionLog], ends: Mapping[int, int], tables: Collection[str]) -> dict[str, Change]:
    """Table → its last change in front of ``ends``, of those that have one."""
    found: dict[str, Change] = {}
    for partition, end in sorted(ends.items()):
        of_partition: dict[str, Change] = {}
        for table, change in _changes(events[partition], partition, end):
            of_partition |= dict.fromkeys(tables if table == EVERY else {table} & {*tables}, change)
        for table, change in of_partition.items():
            found[table] = max(found.get(table, change), change, key=lambda each: each.at)
    return found


def _changes(log: PartitionLog, partition: int, end: int) -> Iterator[tuple[str, Change]]:
    for record in log.committed(log.start, end):
        try:
            name, told = read_message(record.value, {})
        except Unreadable:
            continue
        if name == "TableVoid":
            at = told["timestamp"], told["epoch"], told["ordinal"]
            yield told["table"], Change(at, "void", told["shard"], partition, record.offset)
        elif name == "RowFrame":
            begun: dict[int, int] = {}
            for key, _, _, ordinal, transaction in told["rows"]:
                first = begun.setdefault(transaction, ordinal)
                at = told["timestamps"][transaction], told["epoch"], first
                yield key.partition(b"\0")[0].decode(), Change(at, "row", told["shard"], partition, record.offset)
