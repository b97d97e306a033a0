"""Reads the partitions of a table with their statistics: some by their values, chunks of all, or all at once if few.

With them come the statistics of all partitions together, if those are few.

Partitions are asked for by their table's name and don't tell its id: who publishes them sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from stream.sources.hive.live.fetching import of_one_table
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.messages import FLAVOR
from stream.sources.hive.object_events import AGGREGATE_STATISTICS, PARTITION, PARTITION_STATISTICS
from stream.sources.hive.objects import columns_of, image_of
from stream.sources.hive.partition_names import partition_name
from stream.sources.hive.rpc.connection import (
    MetastoreDenied,
    MetastoreError,
    MetastoreRefused,
    MetastoreTimeout,
    MetastoreUnreachable,
)
from stream.sources.hive.structs import Struct, encode_struct
from stream.wire.events import ObjectImage

log = structlog.get_logger(__name__)

FEW_MAX: Final = 100
"""Partitions of a table that are read with one call, and published together. With more of them, a pass reads them.

Of more partitions the metastore alone tells the statistics together: each write of one would have it read them all.
"""
TOGETHER_TIMEOUT_S: Final = 8.0
"""How long the metastore may take to tell the statistics of all partitions together. The log waits meanwhile."""
_STRUCTS: Final = {
    PARTITION: "Partition",
    PARTITION_STATISTICS: "ColumnStatistics",
    AGGREGATE_STATISTICS: "AggrStats",
}

Values = tuple[str, ...]


class Member(NamedTuple):
    """A partition or its statistics, None if there is none, as it is published. ``values`` (): of all together."""

    kind: str
    values: Values
    image: bytes | None
    struct: bytes | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Members as they were at some moment between the events ``lo`` and ``hi``. ``names``: which were asked for.

    ``is_told``: whether the metastore told the statistics of all together; None: it was not asked.
    """

    members: list[Member]
    lo: int
    hi: int
    names: list[str]
    is_told: bool | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The names of all partitions and of the columns, and what is known of all together, at an event up to ``hi``.

    ``is_told``: as of a `Chunk`.
    """

    names: list[str]
    columns: list[str]
    together: list[Member]
    hi: int
    is_told: bool | None = None


def list_names(metastore: Metastore, name: str, *, with_together: bool) -> Listing:
    """Of a table; of none there is nothing. ``with_together``: the statistics of all are asked for."""
    with of_one_table(metastore, name):
        table = metastore.table(name)
        names = metastore.partition_names(name) if table is not None else []
    if table is None:
        return Listing([], [], [], metastore.last_event())
    columns = columns_of(table.image)
    if not with_together:
        return Listing(names, columns, [], metastore.last_event())
    together = _together(metastore, name, columns, names)
    return Listing(names, columns, together or [], metastore.last_event(), together is not None)


def read_chunk(metastore: Metastore, name: str, columns: Sequence[str], names: list[str]) -> Chunk:
    """Those of the partitions ``names`` that exist, and the statistics of those that have some."""
    lo = metastore.last_event()
    with of_one_table(metastore, name):
        stored = metastore.partitions_by_names(name, names)
        statistics = metastore.partition_statistics(name, columns, names)
    members = [_member(PARTITION, *found) for found in stored]
    members += [_member(PARTITION_STATISTICS, *found) for found in statistics]
    return Chunk(members, lo, metastore.last_event(), names)


def read_named(metastore: Metastore, name: str, asked: Sequence[Values], *, with_together: bool) -> Chunk:
    """Partitions by their values, with their statistics; one that is not there was dropped. See `list_names`."""
    with of_one_table(metastore, name):
        table = metastore.table(name)
        keys, columns = (table.partition_keys, columns_of(table.image)) if table is not None else ((), [])
        names = [partition_name(keys, each) for each in asked if keys and len(each) == len(keys)]
        stored = dict(metastore.partitions_by_names(name, names))
        statistics = dict(metastore.partition_statistics(name, columns, names))
        listed = metastore.partition_names(name, FEW_MAX + 1) if keys and with_together else []
    members = [_member(PARTITION, each, stored.get(each)) for each in asked]
    members += [_member(PARTITION_STATISTICS, each, statistics.get(each)) for each in asked]
    if not with_together:
        return Chunk(members, 0, metastore.last_event(), names)
    together = _together(metastore, name, columns, listed)
    return Chunk([*members, *(together or ())], 0, metastore.last_event(), names, together is not None)


def read_few(metastore: Metastore, name: str, keys: Sequence[str]) -> tuple[Member, ...] | None:
    """All partitions of a table; None if they are many, or the metastore gives not so many."""
    try:
        with of_one_table(metastore, name):
            stored = metastore.first_partitions(name, FEW_MAX + 1)
    except MetastoreRefused:  # it limits what a call may ask for, or cannot read one of them: a pass finds out
        return None
    if len(stored) > FEW_MAX or not all(len(values) == len(keys) for values, _ in stored):
        return None
    return tuple(_member(PARTITION, *found) for found in stored)


def read_few_statistics(
    metastore: Metastore, name: str, columns: Sequence[str]
) -> tuple[tuple[Member, ...] | None, bool]:
    """The statistics of all partitions of a table that have some, None as for `read_few`; and whether they are many."""
    try:
        with of_one_table(metastore, name):
            names = metastore.partition_names(name, FEW_MAX + 1)
            if len(names) > FEW_MAX:
                return None, True
            found = metastore.partition_statistics(name, columns, names)
        # the metastore answers the same for partitions without statistics as for none
        together = _together(metastore, name, columns, names if found else [])
    except MetastoreRefused:
        return None, False
    if together is None:  # a pass asks once more, and remembers what it was refused
        return None, False
    return (*(_member(PARTITION_STATISTICS, *each) for each in found), *together), False


def _together(
    metastore: Metastore, name: str, columns: Sequence[str], partitions: Sequence[str]
) -> list[Member] | None:
    """The statistics of all ``partitions`` together; None if the metastore cannot tell, which is read through.

    Nothing if they are many, or if it would answer from a cache of its own, which no write invalidates. What else was
    read of the table counts all the same: one table's statistics must not keep others, or its own partitions, waiting.
    """
    if len(partitions) > FEW_MAX:
        return []
    try:
        if columns and partitions and metastore.caches_aggregates():
            return []
        opened = metastore.opened
        found = metastore.aggregate_statistics(name, columns, partitions, TOGETHER_TIMEOUT_S)
        if metastore.opened != opened:
            log.warning("another metastore may have told the statistics of all partitions together", table=name)
            return None
    except MetastoreError as error:
        if isinstance(error, (MetastoreUnreachable, MetastoreDenied)) and not isinstance(error, MetastoreTimeout):
            raise
        log.warning("statistics of all partitions together cannot be read", table=name, reason=str(error))
        return None
    return [_member(AGGREGATE_STATISTICS, (), found)]


def _member(kind: str, values: Values, found: Struct | None) -> Member:
    if found is None:
        return Member(kind, values, None, None)
    return Member(kind, values, image_of(found, _STRUCTS[kind]), encode_struct(found))


def changes_of(table_id: int, members: Sequence[Member], lo: int, hi: int) -> list[ObjectImage]:
    """Those that are there first: too many drops before them would make them wait for another image."""
    found = [_change(table_id, each, lo, hi) for each in members]
    return [*sorted(found, key=lambda each: each.change == "dropped")]


def _change(table_id: int, of: Member, lo: int, hi: int) -> ObjectImage:
    change = "image" if of.image is not None else "dropped"
    at = f"{FLAVOR}/{lo}", f"{FLAVOR}/{hi}"
    return ObjectImage(of.kind, table_id, of.values, change, of.image, of.struct, *at)
