"""Publishes constraints and column statistics of tables: those that an event wrote, and in a sweep all of them.

Reads of them are answered by the metastore until they are here, so they come after the tables. So do partitions: the
sweep asks for them table by table (`stream.sources.hive.live.partitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog

from stream.sources.hive.live.connection import MetastoreRefused
from stream.sources.hive.live.fetching import Fetcher
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.partitions import Partitions
from stream.sources.hive.live.sweep import CHUNK_TABLES, Sweep
from stream.sources.hive.live.thrift import field
from stream.sources.hive.messages import FLAVOR, TableObject
from stream.sources.hive.object_events import CONSTRAINTS, STATISTICS
from stream.sources.hive.objects import columns_of, image_of
from stream.sources.hive.progress import Progress
from stream.sources.hive.structs import Struct, encode_struct
from stream.wire.events import Change, ObjectImage

log = structlog.get_logger(__name__)

FOREIGN_KEYS: Final = 2
"""The field of ``SQLAllTableConstraints``."""
_STRUCTS: Final = {CONSTRAINTS: "SQLAllTableConstraints", STATISTICS: "ColumnStatistics"}


@dataclass(frozen=True, slots=True)
class TableDetails:
    """Constraints and statistics of one table. ``constraints`` None: not to be published; ``statistics``: none.

    ``is_read``: whether they could be read at all.
    """

    table_id: int
    is_partitioned: bool
    constraints: Struct | None
    statistics: Struct | None
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class FetchedDetails:
    """Those of the tables that exist, as they were at some moment between the events ``lo`` and ``hi``."""

    names: tuple[str, ...]
    lo: int
    hi: int
    found: dict[str, TableDetails]


class Details:
    """What is to be fetched, and its fetching. ``publish``: changes at the position that was read last.

    ``drain``: reads the log up to an event. ``tables``: the names of all that are known. ``name_of``: table id → its
    name, or "". ``rebound_at``: name → the last event that bound it to a table, or to none. A sweep makes
    ``partitions`` of each table due too.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        progress: Progress,
        publish: Callable[[list[Change]], None],
        drain: Callable[[int], None],
        tables: Callable[[], Iterable[str]],
        name_of: Callable[[int], str],
        rebound_at: Callable[[str], int],
        partitions: Partitions,
        shard: str,
    ) -> None:
        self._partitions = partitions
        self._fetcher = fetcher
        self._progress = progress
        self._publish = publish
        self._drain = drain
        self._tables = tables
        self._name_of = name_of
        self._rebound_at = rebound_at
        self._shard = shard
        self._due: dict[int, None] = {}
        self._taken: dict[int, None] = {}
        self._voids = 0
        """Those that were fetched and are not published yet. What is published meanwhile must say that they are due."""
        self._sweep: Sweep[FetchedDetails] | None = None

    @property
    def tables(self) -> list[str]:
        """The tables to fetch because an event wrote something of them."""
        return [name for name in map(self._name_of, {**self._due, **self._taken}) if name]

    @property
    def is_under_way(self) -> bool:
        """Whether something is being fetched."""
        return self._sweep is not None

    def want(self, table_id: int) -> None:
        """The table's constraints or statistics were written, or are unknown."""
        self._due[table_id] = None

    def void(self) -> None:
        """Something was voided: what was read before counts no more."""
        self._voids += 1

    def end_sweep(self) -> None:
        """What is being fetched is no longer wanted."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def step(self) -> bool:
        """Fetch and publish those of written tables; False if there are none."""
        asked = list(islice(self._due, CHUNK_TABLES))
        names = tuple(name for name in map(self._name_of, asked) if name)
        fetched = self._submit(names).result() if names else None
        self._taken = dict.fromkeys(asked)
        for table_id in asked:
            self._due.pop(table_id, None)
        try:
            if fetched is not None:
                self._take(fetched)
        except BaseException:
            self._due |= dict.fromkeys(asked)
            raise
        finally:
            self._taken = {}
        return bool(asked)

    def _submit(self, names: tuple[str, ...]) -> Future[FetchedDetails]:
        return self._fetcher.run(lambda metastore: _fetch(metastore, names))

    def go_on_with_sweep(self) -> bool:
        """Publish the next chunk, if it is there; False if there is nothing to do."""
        done = self._progress.detailed
        if done is None or self._progress.sweeping or self._partitions.is_busy:
            return False
        if self._sweep is None:
            left = [name for name in sorted(self._tables()) if name > done]
            self._sweep = Sweep(left, self._submit)
        sweep = self._sweep
        try:
            fetched = sweep.next()
            if fetched is not None:
                self._take(fetched)
        except BaseException:
            self.end_sweep()  # its chunks are fetched again, after those that were published
            raise
        if self._sweep is not sweep:  # an event voided everything meanwhile
            return True
        changes: list[Change] = []
        if fetched is not None:
            for details in fetched.found.values():
                changes += self._partitions.find(details.table_id, fetched.lo, is_partitioned=details.is_partitioned)
            self._progress.detailed = fetched.names[-1]
            sweep.report("constraints and statistics", self._shard)
        elif sweep.is_over:
            self._sweep = self._progress.detailed = None
            log.info("constraints and statistics complete", tables=sweep.total, seconds=round(sweep.seconds, 1))
        else:
            return False
        self._publish(changes)
        return True

    def _take(self, fetched: FetchedDetails) -> None:
        """Read the log past the fetch, then publish those of each table whose name did not change hands meanwhile.

        The fold refuses what was written after it was read, and the event that says so makes it due again.
        """
        voids = self._voids
        self._drain(fetched.hi)
        lo, hi = f"{FLAVOR}/{fetched.lo}", f"{FLAVOR}/{fetched.hi}"
        changes: list[Change] = []
        for name, details in fetched.found.items():
            is_bound = self._name_of(details.table_id) == name and self._rebound_at(name) <= fetched.lo
            if is_bound and self._voids == voids:
                changes += _images(details, lo, hi)
            elif self._name_of(details.table_id):
                self.want(details.table_id)
        self._taken = {}
        if changes:
            self._publish(changes)


def _fetch(metastore: Metastore, names: tuple[str, ...]) -> FetchedDetails:
    lo, found = metastore.last_event(), {}
    for name, table in metastore.tables(names).items():
        if isinstance(table, TableObject):
            try:
                found[name] = _details_of(metastore, table)
            except MetastoreRefused as error:  # it is gone, or the metastore is an old one: the others go on
                found[name] = TableDetails(table.table_id, bool(table.partition_keys), None, None, is_read=False)
                log.warning("constraints or statistics cannot be read", table=name, reason=str(error))
    return FetchedDetails(names, lo, metastore.last_event(), found)


def _details_of(metastore: Metastore, table: TableObject) -> TableDetails:
    """Constraints with a foreign key are left out.

    A DROP or a rename of the table that it points to changes them, and no event names the table that has it.
    """
    constraints = metastore.constraints(table.name)
    has_foreign_key = bool(field(constraints, FOREIGN_KEYS))
    statistics = metastore.statistics(table.name, columns_of(table.image))
    is_partitioned = bool(table.partition_keys)
    return TableDetails(table.table_id, is_partitioned, None if has_foreign_key else constraints, statistics)


def _images(details: TableDetails, lo: str, hi: str) -> list[Change]:
    if not details.is_read:
        return []
    found: list[Change] = [_image(STATISTICS, details.table_id, details.statistics, lo, hi)]
    if details.constraints is not None:
        found.append(_image(CONSTRAINTS, details.table_id, details.constraints, lo, hi))
    return found


def _image(kind: str, table_id: int, found: Struct | None, lo: str, hi: str) -> ObjectImage:
    if found is None:
        return ObjectImage(kind, table_id, (), "dropped", lo=lo, hi=hi)
    return ObjectImage(kind, table_id, (), "image", image_of(found, _STRUCTS[kind]), encode_struct(found), lo, hi)
