"""Publishes constraints and column statistics of tables: those that an event wrote, and in a sweep all of them.

Reads of them are answered by the metastore until they are here, so they come after the tables. So do partitions, which
have a sweep of their own before (`stream.sources.hive.live.partitions`): a metastore takes twice as long to give
statistics and constraints as it takes to give the partitions themselves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

import structlog

from stream.sources.hive.foreign_keys import ForeignKeys
from stream.sources.hive.live.fetching import CHUNK_TABLES, Fetcher, Sweep, TableUnanswered, of_one_table
from stream.sources.hive.live.members import Member, read_few, read_few_statistics
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.partitions import KINDS, Partitions
from stream.sources.hive.messages import FLAVOR, HiveMessageError, TableObject
from stream.sources.hive.object_events import CONSTRAINTS, PARTITION, PARTITION_STATISTICS, STATISTICS
from stream.sources.hive.objects import columns_of, image_of
from stream.sources.hive.progress import Progress
from stream.sources.hive.refusals import Refusals
from stream.sources.hive.rpc.connection import MetastoreRefused
from stream.sources.hive.rpc.thrift import field
from stream.sources.hive.structs import Struct, encode_struct
from stream.wire.events import Change, ObjectImage

log = structlog.get_logger(__name__)

CHUNK_DETAILS: Final = 16
"""Tables of a sweep of which what belongs to them is read together."""
SHAPES_MAX: Final = 100_000
"""Tables that are remembered from one sweep to the next. Those beyond are read again."""
FOREIGN_KEYS: Final = 2
"""The field of ``SQLAllTableConstraints``."""
_STRUCTS: Final = {CONSTRAINTS: "SQLAllTableConstraints", STATISTICS: "ColumnStatistics"}


class Shape(NamedTuple):
    """What is to be known of a table to ask for what belongs to it, as it was read after the event ``lo``.

    ``has_pass``: one over its partitions, which brings their statistics too, was asked for since.
    """

    table_id: int
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    lo: int
    has_pass: bool = False


@dataclass(frozen=True, slots=True)
class TableDetails:
    """What belongs to one table. ``statistics`` None: there are none. ``parents``: what its foreign keys point to.

    ``is_read``: whether these could be read at all; ``is_late``: not in time; ``is_asked``: if they were asked for.
    ``members``: all partitions, or the statistics of all; None: they are many (``has_many``), or could not be read.
    """

    shape: Shape
    constraints: Struct | None = None
    statistics: Struct | None = None
    is_read: bool = True
    is_late: bool = False
    is_asked: bool = True
    members: Sequence[Member] | None = ()
    has_many: bool = False
    parents: frozenset[str] = frozenset()

    @property
    def table_id(self) -> int:
        """Of the table."""
        return self.shape.table_id


@dataclass(frozen=True, slots=True)
class FetchedDetails:
    """Those of the tables that exist, as they were at some moment between the events ``lo`` and ``hi``.

    ``voids``: how many there had been when they were asked for. ``unread``: tables that could not be read themselves.
    """

    names: tuple[str, ...]
    lo: int
    hi: int
    found: dict[str, TableDetails]
    voids: int = 0
    unread: tuple[str, ...] = ()


class Details:
    """What is to be fetched, and its fetching. ``publish``: changes at the position that was read last.

    ``drain``: reads the log up to an event. ``tables``: the ids of all that are known, by name. ``name_of``: table id →
    its name, or "". ``rebound_at``: name → the last event that bound it to a table, or to none; ``touched_at``: that
    wrote it, made, dropped or renamed it. A first sweep publishes the few partitions of each table, or makes its many
    due; a second one all else.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        progress: Progress,
        publish: Callable[[list[Change]], None],
        drain: Callable[[int], None],
        tables: Callable[[], Mapping[str, int]],
        name_of: Callable[[int], str],
        rebound_at: Callable[[str], int],
        touched_at: Callable[[str], int],
        partitions: Partitions,
        foreign_keys: ForeignKeys,
        shard: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partitions = partitions
        self._foreign_keys = foreign_keys
        self._fetcher = fetcher
        self._progress = progress
        self._publish = publish
        self._drain = drain
        self._tables = tables
        self._name_of = name_of
        self._rebound_at = rebound_at
        self._touched_at = touched_at
        self._shard = shard
        self._due: dict[int, None] = {}
        self._taken: dict[int, None] = {}
        """Those that were fetched and are not published yet. What is published meanwhile must say that they are due."""
        self._refusals = Refusals[str](clock)
        """Tables of which the metastore could not give them."""
        self._voids = 0
        self._shapes: dict[str, Shape] = {}
        """Tables that the sweep of tables has read: the sweep of what belongs to them need not read them again."""
        self._sweep: Sweep[FetchedDetails] | None = None

    @property
    def tables(self) -> list[str]:
        """The tables to fetch because an event wrote something of them."""
        return [name for name in map(self._name_of, {**self._due, **self._taken}) if name]

    @property
    def refused(self) -> list[str]:
        """The tables of which something could not be read: it is tried again after a while."""
        return [*self._refusals]

    @property
    def is_under_way(self) -> bool:
        """Whether something is being fetched."""
        return self._sweep is not None

    def want(self, table_id: int) -> None:
        """The table's constraints or statistics were written, or are unknown."""
        self._due[table_id] = None

    def void(self) -> None:
        """Something was voided: what was read before, or is being read, counts no more."""
        self._voids += 1
        self._shapes.clear()

    def keep(self, tables: Iterable[TableObject | HiveMessageError], lo: int) -> None:
        """These tables were read between the event ``lo`` and the one that was read last, and published."""
        for table in tables:
            if isinstance(table, TableObject) and len(self._shapes) < SHAPES_MAX:
                self._shapes[table.name] = shape_of(table, lo)

    def end_sweep(self) -> None:
        """What is being fetched is no longer wanted."""
        self._shapes.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def step(self) -> bool:
        """Fetch and publish those of written tables; False if there are none."""
        self._try_again()
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

    def _try_again(self) -> None:
        """Those that could not be read are due, if it is time."""
        refused = self._refusals.due()
        known = self._tables() if refused else {}
        for name in refused:
            if name in known:
                self.want(known[name])
            else:
                self._refusals.forget(name)

    def _submit(self, names: tuple[str, ...]) -> Future[FetchedDetails]:
        voids = self._voids
        return self._fetcher.run(lambda metastore: _fetch_written(metastore, names, voids))

    def _submit_chunk(self, names: tuple[str, ...]) -> Future[FetchedDetails]:
        """Of the sweep that is under way. What was known of a table before its last write is not used."""
        voids, is_first, known = self._voids, self._progress.parted is not None, {}
        for name in names:
            shape = self._shapes.pop(name, None)
            if shape is not None and self._touched_at(name) <= shape.lo:
                known[name] = shape
        read = _fetch_partitions if is_first else _fetch_rest
        return self._fetcher.run(lambda metastore: read(metastore, names, voids, known))

    def go_on_with_sweep(self) -> bool:
        """Publish the next chunk, if it is there; False if there is nothing to do."""
        progress = self._progress
        is_first = progress.parted is not None
        done = progress.parted if is_first else progress.detailed
        if done is None or progress.sweeping or self._partitions.is_busy:
            return False
        if self._sweep is None:
            left = [name for name in sorted(self._tables()) if name > done]
            self._sweep = Sweep(left, self._submit_chunk, CHUNK_DETAILS)
        sweep = self._sweep
        try:
            fetched = sweep.next()
            if fetched is not None:
                self._take(fetched, is_first=is_first)
        except BaseException:
            self.end_sweep()  # its chunks are fetched again, after those that were published
            raise
        if self._sweep is not sweep:  # an event voided everything meanwhile
            return True
        if fetched is None and not sweep.is_over:
            return False
        what = "partitions" if is_first else "constraints and statistics"
        if fetched is not None:
            self._take_members(fetched, is_first=is_first)
            sweep.report(what, self._shard)
        else:
            self._sweep = None
            log.info(f"{what} complete", tables=sweep.total, seconds=round(sweep.seconds, 1))
        progress.note_belongings(fetched.names[-1] if fetched is not None else None)
        self._publish([])
        return True

    def _take_members(self, fetched: FetchedDetails, *, is_first: bool) -> None:
        """Publish those of the tables that nothing touched since they were read. The others' have a pass."""
        for name, details in fetched.found.items():
            shape, kinds = details.shape, _kinds_of(details.shape, is_first=is_first)
            is_as_read = self._voids == fetched.voids and self._touched_at(name) <= shape.lo
            if not kinds:
                continue
            if details.has_many and self._progress.adds_together:
                continue  # theirs are read through, and the partitions themselves have been published
            if details.members is None or not is_as_read or self._name_of(details.table_id) != name:
                self._partitions.want(details.table_id)
                is_taken = False
            else:
                is_taken = self._partitions.take_whole(shape.table_id, kinds, details.members, fetched.lo, fetched.hi)
            if is_first and self._voids == fetched.voids and len(self._shapes) < SHAPES_MAX:
                self._shapes[name] = shape._replace(has_pass=not is_taken)
        known = self._tables() if fetched.unread else {}
        for name in fetched.unread:
            if name in known:
                self._partitions.want(known[name])

    def _take(self, fetched: FetchedDetails, *, is_first: bool = False) -> None:
        """Read the log past the fetch, then publish those of each table whose name did not change hands meanwhile.

        The fold refuses what was written after it was read, and the event that says so makes it due again. The first
        sweep has read none of them.
        """
        self._drain(fetched.hi)
        if is_first:
            return
        changes: list[Change] = []
        for name, details in fetched.found.items():
            last = self._rebound_at(name) if details.shape.lo >= fetched.lo else self._touched_at(name)
            is_bound = self._name_of(details.table_id) == name and last <= details.shape.lo
            is_as_read = is_bound and details.is_asked and self._foreign_keys.touched_at(details.parents) <= fetched.lo
            if is_as_read and self._voids == fetched.voids:
                changes += self._images(details, fetched)
                (self._refusals.forget if details.is_read else self._refusals.note)(name)
            elif self._name_of(details.table_id):
                self.want(details.table_id)
        for name in fetched.unread:
            self._refusals.note(name)
        self._taken = {}
        if changes:
            self._publish(changes)

    def _images(self, details: TableDetails, fetched: FetchedDetails) -> list[Change]:
        """Constraints that may change without a word are left out. They are read through."""
        if not details.is_read:
            return []
        lo, hi, table_id = f"{FLAVOR}/{fetched.lo}", f"{FLAVOR}/{fetched.hi}", details.table_id
        found: list[Change] = [_image(STATISTICS, table_id, details.statistics, lo, hi)]
        if self._foreign_keys.writes.is_outdated(table_id, fetched.lo):
            self.want(table_id)
        elif self._foreign_keys.note(table_id, details.parents):
            self._foreign_keys.writes.published(table_id, details.constraints)
            found.append(_image(CONSTRAINTS, table_id, details.constraints, lo, hi))
        return found


def shape_of(table: TableObject, lo: int) -> Shape:
    """``lo``: an event before which the table was not read."""
    columns = tuple(sys.intern(each) for each in columns_of(table.image))
    return Shape(table.table_id, table.partition_keys, columns, lo)


def _kinds_of(shape: Shape, *, is_first: bool) -> Sequence[str]:
    """What of a table's partitions a sweep publishes.

    No ALTER TABLE gives a table partition columns, so of one without them nothing is fetched.
    """
    if not shape.keys:
        return KINDS if is_first else ()
    if is_first:
        return (PARTITION,)
    return () if shape.has_pass else (PARTITION_STATISTICS,)


def _shapes(
    metastore: Metastore, names: tuple[str, ...], known: Mapping[str, Shape]
) -> tuple[int, dict[str, Shape], tuple[str, ...]]:
    """The log's end, the shapes of the tables that exist, and those that could not be read. ``known`` are not asked."""
    lo = metastore.last_event()
    stored = metastore.tables([name for name in names if name not in known])
    read = {name: shape_of(table, lo) for name, table in stored.items() if isinstance(table, TableObject)}
    return lo, {**known, **read}, tuple(name for name in stored if name not in read)


def _fetch_written(metastore: Metastore, names: tuple[str, ...], voids: int) -> FetchedDetails:
    """Constraints and statistics of the tables. Their partitions are noted elsewhere."""
    lo, shapes, unread = _shapes(metastore, names, {})
    found = _rest_of_each(metastore, shapes)
    return FetchedDetails(names, lo, metastore.last_event(), found, voids, unread)


def _fetch_partitions(
    metastore: Metastore, names: tuple[str, ...], voids: int, known: Mapping[str, Shape]
) -> FetchedDetails:
    """The few partitions of each table."""
    lo, shapes, unread = _shapes(metastore, names, known)
    found = {
        name: TableDetails(shape, members=read_few(metastore, name, shape.keys) if shape.keys else ())
        for name, shape in shapes.items()
    }
    return FetchedDetails(names, lo, metastore.last_event(), found, voids, unread)


def _fetch_rest(metastore: Metastore, names: tuple[str, ...], voids: int, known: Mapping[str, Shape]) -> FetchedDetails:
    """Constraints and statistics of the tables, and the statistics of their few partitions."""
    lo, shapes, unread = _shapes(metastore, names, known)
    found = _rest_of_each(metastore, shapes)
    for name, rest in found.items():
        if PARTITION_STATISTICS in _kinds_of(rest.shape, is_first=False):
            members, has_many = read_few_statistics(metastore, name, rest.shape.columns)
            found[name] = replace(rest, members=members, has_many=has_many)
    return FetchedDetails(names, lo, metastore.last_event(), found, voids, unread)


def _rest_of_each(metastore: Metastore, shapes: Mapping[str, Shape]) -> dict[str, TableDetails]:
    """Constraints and statistics of the tables. The log may wait for them, so behind a late one nothing is asked."""
    found: dict[str, TableDetails] = {}
    for name, shape in shapes.items():
        is_late = any(each.is_late for each in found.values())
        found[name] = TableDetails(shape, is_asked=False) if is_late else _rest_of(metastore, name, shape)
    return found


def _rest_of(metastore: Metastore, name: str, shape: Shape) -> TableDetails:
    try:
        with of_one_table(metastore, name):
            constraints = metastore.constraints(name)
            statistics = metastore.statistics(name, shape.columns)
    except MetastoreRefused as error:  # it is gone, or the metastore is an old one: the others go on
        log.warning("constraints or statistics cannot be read", table=name, reason=str(error))
        return TableDetails(shape, is_read=False, is_late=isinstance(error, TableUnanswered))
    keys = field(constraints, FOREIGN_KEYS) or []
    parents = frozenset(f"{field(each, 1, '')}.{field(each, 2, '')}".lower() for each in keys)
    return TableDetails(shape, constraints, statistics, parents=parents - {name})


def _image(kind: str, table_id: int, found: Struct | None, lo: str, hi: str) -> ObjectImage:
    if found is None:
        return ObjectImage(kind, table_id, (), "dropped", lo=lo, hi=hi)
    return ObjectImage(kind, table_id, (), "image", image_of(found, _STRUCTS[kind]), encode_struct(found), lo, hi)
