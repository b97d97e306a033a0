"""A database server as the source of truth for rows: snapshots, read in threads, only of the keyspace's tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from serving.errors import ReadError
from serving.sources.source import RowTable, SchemaChanged, SourceKey, SourceRange, SourceRow, SourceThreads
from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_key import Found, KeyNotPossible
from stream.sources.mariadb.by_range import SortTooLarge
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.schema import TableFilter, TableInfo
from stream.sources.mariadb.snapshot import (
    READ_TIMEOUT_S,
    NoSuchTable,
    SnapshotRead,
    SnapshotReader,
    SourceTimeout,
)
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from stream.sources.postgres.writers import Writers
from stream.sources.sessions import SourceBusy
from stream.wire.values import UndecodableValue
from tokens import Position

Done = TypeVar("Done")

READS_MAX = 8
WAITS_MAX = 4
"""Sessions that wait for a replica to catch up; they are separate so that waits cannot block reads."""
WAITER_S = 0.05
"""How long a wait may wait for one of them."""


class MariaDBRows:
    """A `serving.sources.source.RowSource` over one server: MariaDB, MySQL or PostgreSQL.

    Serves only tables that ``tables`` admits.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        shard: str,
        tables: TableFilter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: seconds since 1970, the front's own."""
        self.shard = shard
        self._clock = clock
        self._tables = tables
        self._reader, self._waiter = _readers(settings)
        self._reads = SourceThreads("source-read", threads=READS_MAX)
        self._waits = SourceThreads("source-wait", threads=WAITS_MAX)

    async def describe(self, table: str) -> RowTable | None:
        """See `RowSource`."""
        if table not in self._tables:
            return None
        try:
            info = await self._run([table], lambda left_s: self._reader.table(table, left_s))
            return row_table(info, self._tables.prefix_of(table, len(info.primary_key)))
        except NoSuchTable:
            return None

    async def read(self, wanted: Sequence[SourceKey]) -> list[SourceRow | ReadError | SchemaChanged]:
        """See `RowSource`."""
        places: dict[str, list[int]] = {}
        for place, (table, _) in enumerate(wanted):
            places.setdefault(table.name, []).append(place)
        keys = {
            name: [wanted[place].values for place in of_table]
            for name, of_table in places.items()
            if name in self._tables
        }
        began_ms = int(self._clock() * 1000)

        def read(left_s: float) -> dict[str, list[SourceRow | ReadError | SchemaChanged]]:
            return {
                name: _source_rows([wanted[place].table for place in places[name]], of_table, began_ms)
                for name, of_table in self._reader.read(keys, left_s).items()
            }

        rows = await self._run(keys, read) if keys else {}
        found: dict[int, SourceRow | ReadError | SchemaChanged] = {}
        for name, of_table in places.items():
            refused = ReadError("unknown_table", f"{name} does not belong to this keyspace")
            found |= zip(of_table, rows.get(name) or [refused] * len(of_table), strict=True)
        return [found[place] for place in range(len(wanted))]

    async def read_range(self, table: RowTable, wanted: KeyRange) -> SourceRange:
        """See `RowSource`."""
        name = table.name
        if name not in self._tables:
            raise ReadError("unknown_table", f"{name} does not belong to this keyspace")
        began_ms = int(self._clock() * 1000)
        read = await self._run([name], lambda left_s: self._reader.read_range(name, wanted, left_s))
        if _is_other_table(read):
            raise SchemaChanged(name)
        if isinstance(read, MariaDBError):
            raise _refusal(read)
        now = row_table(read.table)
        needed = {*wanted.order, *(column for column, _ in wanted.where)}
        if now.key != table.key or not needed <= {column.name for column in now.columns if column in table.columns}:
            raise SchemaChanged(name)
        found, lo, hi = read.rows, Position.parse(read.position), Position.parse(read.hi)
        rows = [(row.key, row.image) for row in found.rows]
        return SourceRange(rows, found.number, found.more, lo, hi, began_ms if read.is_primary else 0)

    async def wait(self, position: Position, timeout_s: float, tables: Collection[str]) -> bool:
        """See `RowSource`."""
        deadline = time.monotonic() + timeout_s

        def wait() -> bool:
            left_s = deadline - time.monotonic()  # it may have queued for a thread
            return left_s > 0 and self._waiter.wait_for_position(str(position), left_s, tables)

        try:
            return await self._waits.run(lambda: translated(wait), timeout_s=timeout_s)
        except ReadError as error:
            if error.code == "too_many_requests":
                return False
            raise

    async def _run(self, tables: Collection[str], work: Callable[[float], Done]) -> Done:
        """Run ``work`` in a thread, with the seconds that it has left."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        return await self._reads.run(
            lambda: translated(lambda: work(deadline - time.monotonic())), tables=tables, timeout_s=READ_TIMEOUT_S
        )

    async def close(self) -> None:
        """See `RowSource`."""
        for threads in (self._reads, self._waits):
            threads.close()
        for reader in (self._reader, self._waiter):
            reader.close()


def _readers(
    settings: ConnectionSettings,
) -> tuple[SnapshotReader | PostgresSnapshotReader, SnapshotReader | PostgresSnapshotReader]:
    """One that reads, and one that waits."""
    if settings.product == "PostgreSQL":
        writers = Writers()
        return (
            PostgresSnapshotReader(settings, READS_MAX, writers=writers),
            PostgresSnapshotReader(settings, WAITS_MAX, WAITER_S, writers=writers),
        )
    return SnapshotReader(settings, READS_MAX), SnapshotReader(settings, WAITS_MAX, WAITER_S)


def row_table(info: TableInfo, prefix: int = 0) -> RowTable:
    """A table's description as a `RowTable`."""
    described = info.describe()
    columns = {column.name: column for column in described.columns}
    key = tuple(columns[name] for name in described.primary_key)
    whole = tuple(index.columns for index in info.indexes if not index.problem)
    return RowTable(
        described.table, key, described.cacheable, described.reason, prefix, tuple(described.columns), whole
    )


def _source_rows(
    tables: Sequence[RowTable], read: SnapshotRead[tuple[Found, ...]] | MariaDBError, began_ms: int
) -> list[SourceRow | ReadError | SchemaChanged]:
    """What was read of one table. ``tables``: for each row, the table as its request described it.

    A primary's rows hold all that was committed before the read began. Nobody can tell how far behind a replica is.
    """
    if _is_other_table(read):
        return [SchemaChanged(table.name) for table in tables]
    if isinstance(read, MariaDBError):
        return [_refusal(read) for _ in tables]
    key, hi = row_table(read.table).key, Position.parse(read.hi)
    found: list[SourceRow | ReadError | SchemaChanged] = []
    for place, (table, row) in enumerate(zip(tables, read.rows, strict=True)):
        position, keeps, is_present = read.proof_of(place)
        lo, kept, as_of_ms = Position.parse(position), Position.parse(keeps) if keeps else None, began_ms * is_present
        if table.key != key:
            found.append(SchemaChanged(table.name))
        elif row is None:
            found.append(SourceRow(None, b"", lo, hi, read.timestamp, as_of_ms, kept))
        elif isinstance(row, MariaDBError | UndecodableValue):
            found.append(_refusal(row))
        else:
            found.append(SourceRow(row.image, row.key, lo, hi, read.timestamp, as_of_ms, kept))
    return found


def _is_other_table(read: object) -> bool:
    """Whether there is no table of this name and with a primary key any more."""
    return isinstance(read, NoSuchTable) or (isinstance(read, MariaDBError) and read.code == "no_primary_key")


def translated(work: Callable[[], Done]) -> Done:
    """Runs ``work`` and turns MariaDB's errors into `ReadError`. `NoSuchTable` passes through: the schema changed."""
    try:
        return work()
    except NoSuchTable:
        raise
    except (MariaDBError, UndecodableValue, SourceBusy) as error:
        raise _refusal(error) from error


def _refusal(error: MariaDBError | UndecodableValue | SourceBusy) -> ReadError:
    if isinstance(error, SourceBusy):
        return ReadError("too_many_requests", str(error))
    if isinstance(error, MariaDBUnreachable | SourceTimeout):
        return ReadError("source_unreachable", str(error), hint=error.hint)
    if isinstance(error, SortTooLarge):
        return ReadError("sort_too_large", str(error))
    if isinstance(error, KeyNotPossible):
        return ReadError("bad_key", str(error), hint="no row has this key: the column cannot store it")
    return ReadError("source_failed", str(error), hint=error.hint)
