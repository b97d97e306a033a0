"""Reads of a metastore's objects other than tables, for one reader: between two positions, with the table's list.

Partitions and statistics are asked for by their table's name and don't tell its id, nor do statistics tell by which
write they are. So the id, and the images of what statistics are of, are read before them and, if anything was logged
meanwhile, after them too.

Statistics of all partitions together a metastore may tell from a cache of its own, which no write invalidates: then
nothing proves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Final

from consumers.fold.catalog_state import TRANSACTIONAL
from consumers.owner.objects.answering import partition_keys, select_named
from serving.errors import ReadError
from serving.sources.hive_latest import latest_event
from serving.sources.hive_tables import event_of, position_of, seen_table, shows_more
from serving.sources.source import NOTHING, Folded, SourceObjects, SourceTable, WantedObjects
from stream.sources.hive.live.members import FEW_MAX
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.object_events import (
    AGGREGATE_STATISTICS,
    CATALOG,
    CONSTRAINTS,
    DATABASE,
    FUNCTION,
    PARTITION,
    PARTITION_STATISTICS,
    STATISTICS,
)
from stream.sources.hive.objects import columns_of, image_of
from stream.sources.hive.partition_names import partition_name, values_of
from stream.sources.hive.structs import Struct
from stream.wire.keys import object_name
from tokens import Position

ATTEMPTS_MAX: Final = 3
"""Reads of a table whose name is given to another table meanwhile, or whose statistics are written meanwhile."""
AGAIN_WITHIN_S: Final = 2.0
"""A list that took longer is not read again: its reader would wait too long, and a busy log ends with each read."""
PARTITIONS_MAX: Final = 500
"""Partitions of one call."""

Name = tuple[str, ...]
Named = list[tuple[Name, bytes | None]]
Images = Sequence[Sequence[bytes | None]]


def read_objects(
    metastore: Metastore, wanted: WantedObjects, own_list: str | None, known: Folded = NOTHING
) -> SourceObjects:
    """The objects that exist, as they were at some moment between two positions.

    Raises `MetastoreError`, `ThriftError`, `HiveMessageError`, `FilterError`, `ReadError` ``source_failed``.
    """
    if not wanted.table:
        lo = metastore.last_event()
        found = _of_catalog(metastore, wanted)
        return _answer(found, wanted, position_of(lo), position_of(metastore.last_event()))
    began_s = monotonic()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        lo, table = seen_table(metastore, wanted.table, own_list)
        if table.image is None:
            return SourceObjects([], [], table.position, table.hi)
        partitions = _aggregated(metastore, wanted, table.image)
        statistics_of = _statistics_of(metastore, wanted, table, table.image, partitions)
        uncached_on = _uncached_on(metastore, partitions)
        of_table = _of_table(metastore, wanted, table.image, statistics_of, partitions)
        is_proved = not partitions or metastore.opened == uncached_on
        of = {"of_keys": wanted.kind == CONSTRAINTS, "of_commits": table.takes_commits}
        hi = position_of(latest_event(metastore, wanted.table.lower(), lo, event_of(known.position), **of))
        if not table.position.at_or_past(hi):
            after = metastore.table(wanted.table)
            if after is None or after.table_id != table.table_id:
                continue
            if statistics_of != _statistics_of(metastore, wanted, table, after.image, partitions):
                if attempt < ATTEMPTS_MAX:
                    continue
                statistics_of = ()  # of a table that is written all the time: nobody knows by which write they are
            if _is_of_several_calls(of_table, wanted):
                if attempt < ATTEMPTS_MAX and monotonic() - began_s < AGAIN_WITHIN_S:
                    continue
                is_proved = False
        if shows_more(table, known):
            hi = position_of(metastore.last_event())
        shown = _answer(_there(of_table, wanted), wanted, table.position, hi)
        return shown._replace(
            table_id=table.table_id,
            table_kind=table.kind,
            write_ids=table.write_ids,
            table_image=table.image,
            statistics_of=statistics_of if is_proved else (),
            is_proved=is_proved,
        )
    raise ReadError("source_failed", f"the name {wanted.table} was given to another table each time that it was read")


def _is_of_several_calls(found: Named, wanted: WantedObjects) -> bool:
    """Whether a list may be of no moment: what was written between two calls is in a part of it."""
    is_cut = len(found) > PARTITIONS_MAX or any(image is None for _, image in found)
    return _is_list_of_partitions(wanted) and is_cut


def _there(found: Named, wanted: WantedObjects) -> Named:
    """Without what was listed and is gone by now."""
    return [each for each in found if each[1] is not None] if _is_list_of_partitions(wanted) else found


def _is_list_of_partitions(wanted: WantedObjects) -> bool:
    return wanted.kind == PARTITION and not wanted.names and not wanted.names_only


def _answer(found: Named, wanted: WantedObjects, position: Position, hi: Position) -> SourceObjects:
    images = [] if wanted.names_only and not wanted.names else [image for _, image in found]
    return SourceObjects([name for name, _ in found], images, position, hi)


# --- of no table ---


def _of_catalog(metastore: Metastore, wanted: WantedObjects) -> Named:
    """By name, in the order of ``wanted.names``; else all that pass, in the order of names."""
    if wanted.kind == DATABASE:
        return _chosen(wanted, ((db,) for db in metastore.databases()), lambda name: metastore.database(name[0]))
    if wanted.kind == FUNCTION:
        if wanted.names:
            return _chosen(wanted, (), lambda name: metastore.function(name[0], name[1]))
        known = dict(metastore.functions())
        return _chosen(wanted, known, known.get)
    if wanted.kind == CATALOG:
        return _chosen(wanted, [(metastore.catalog,)], lambda _: metastore.catalog_object())
    raise ReadError("source_failed", f"a metastore has no objects of the kind {wanted.kind}")


_STRUCTS: Final = {CATALOG: "Catalog", DATABASE: "Database", FUNCTION: "Function"}


def _chosen(wanted: WantedObjects, names: Iterable[Name], read: Callable[[Name], Struct | None]) -> Named:
    def image(name: Name) -> bytes | None:
        found = read(name)
        return image_of(found, _STRUCTS[wanted.kind]) if found is not None else None

    if wanted.names:
        return [(name, image(name)) for name in wanted.names]
    listed = _selected(wanted, names, None)
    if wanted.names_only:
        return [(name, None) for name in listed]
    read_all = [(name, image(name)) for name in listed]
    return [each for each in read_all if each[1] is not None]  # one that is gone was dropped meanwhile


def _selected(wanted: WantedObjects, names: Iterable[Name], table_image: bytes | None) -> list[Name]:
    """The names that pass, in the order in which an owner lists them. Raises `FilterError`."""
    listed = sorted(names, key=object_name)
    return [listed[at] for at in select_named(listed, wanted.prefix, wanted.filter, table_image)]


# --- of a table ---


def _of_table(
    metastore: Metastore, wanted: WantedObjects, table_image: bytes, statistics_of: Images, partitions: Sequence[str]
) -> Named:
    """The objects. ``statistics_of``, ``partitions``: as of `_statistics_of`."""
    kind, name = wanted.kind, wanted.table
    keys = [key.name for key in partition_keys(table_image)]
    if kind == PARTITION:
        return _partitions(metastore, wanted, table_image, keys)
    columns = columns_of(table_image)
    if kind == CONSTRAINTS:
        return [((), image_of(metastore.constraints(name), "SQLAllTableConstraints"))]
    if kind == STATISTICS:
        found = metastore.statistics(name, columns)
        return [((), image_of(found, "ColumnStatistics") if found is not None else None)]
    if kind == AGGREGATE_STATISTICS:
        return [((), image_of(metastore.aggregate_statistics(name, columns, partitions), "AggrStats"))]
    if kind == PARTITION_STATISTICS:
        there = [each for each, [image] in zip(wanted.names, statistics_of, strict=True) if image is not None]
        found_by = dict(metastore.partition_statistics(name, columns, [partition_name(keys, each) for each in there]))
        return [
            (each, image_of(found_by[each], "ColumnStatistics") if each in found_by else None) for each in wanted.names
        ]
    raise ReadError("source_failed", f"a metastore has no objects of the kind {kind} of a table")


def _aggregated(metastore: Metastore, wanted: WantedObjects, table_image: bytes) -> Sequence[str]:
    """The names of the partitions whose statistics are asked for together."""
    is_asked = wanted.kind == AGGREGATE_STATISTICS and partition_keys(table_image)
    return metastore.partition_names(wanted.table) if is_asked else []


def _uncached_on(metastore: Metastore, partitions: Sequence[str]) -> int:
    """The connection on which the metastore keeps no statistics of ``partitions`` together; -1: none is known.

    On the next one, once it was lost, another metastore may answer.
    """
    is_uncached = partitions and not metastore.caches_aggregates()
    return metastore.opened if is_uncached else -1  # after the question, which may have opened it


def _statistics_of(
    metastore: Metastore, wanted: WantedObjects, table: SourceTable, table_image: bytes, partitions: Sequence[str]
) -> Images:
    """Of statistics, the images of all that each of them is of; (): these are not read, or no statistics are wanted.

    ``table_image``: as it is by now. ``partitions``: those whose statistics are asked for together.
    """
    if wanted.kind == STATISTICS:
        return [[table_image]]
    keys = [key.name for key in partition_keys(table_image)]
    if wanted.kind == PARTITION_STATISTICS:
        named = _existing(metastore, wanted.table, wanted.names, keys)
        return [[named.get(each)] for each in wanted.names]
    if wanted.kind != AGGREGATE_STATISTICS:
        return ()
    if table.kind != TRANSACTIONAL:
        return [[]]
    if len(partitions) > FEW_MAX:  # whether they hold would take longer to read than a reader waits
        return ()
    return [[*_existing(metastore, wanted.table, [values_of(each) for each in partitions], keys).values()]]


def _partitions(metastore: Metastore, wanted: WantedObjects, table_image: bytes, keys: Sequence[str]) -> Named:
    if wanted.names:
        found = _existing(metastore, wanted.table, wanted.names, keys)
        return [(name, found.get(name)) for name in wanted.names]
    names = map(values_of, metastore.partition_names(wanted.table)) if keys else ()
    listed = _selected(wanted, names, table_image)
    if wanted.names_only:
        return [(name, None) for name in listed]
    found = _existing(metastore, wanted.table, listed, keys)
    return [(name, found.get(name)) for name in listed]


def _existing(metastore: Metastore, table: str, names: Sequence[Name], keys: Sequence[str]) -> dict[Name, bytes]:
    """The images of those partitions that exist. One with another number of values than keys does not."""
    asked = [partition_name(keys, each) for each in names if len(each) == len(keys) > 0]
    return {
        values: image_of(found, "Partition")
        for at in range(0, len(asked), PARTITIONS_MAX)
        for values, found in metastore.partitions_by_names(table, asked[at : at + PARTITIONS_MAX])
    }
