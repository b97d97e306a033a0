"""Read rows of PostgreSQL by key or in order, each read with the positions that it lies between.

``lo``: everything that was committed up to there is in the rows (`stream.sources.postgres.writers` says how that is
known). ``hi``: the end of the log after the snapshot was made. Nothing in the rows is later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_key import Found, Key
from stream.sources.mariadb.by_range import SelectedRange
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.gtid import GtidPosition, PostgresPlace
from stream.sources.mariadb.schema import TableInfo
from stream.sources.mariadb.snapshot import (
    KEYS_MAX,
    POLL_FIRST_S,
    POLL_MAX_S,
    READ_TIMEOUT_S,
    NoSuchTable,
    SnapshotRead,
    SourceTimeout,
    keyed,
)
from stream.sources.postgres.connection import connect, fetch_all, one_snapshot, translate, translated, wait_for
from stream.sources.postgres.locks import WRITERS, held_tables
from stream.sources.postgres.selected_rows import quoted
from stream.sources.postgres.selecting import RowsInOrder, rows_by_key, rows_in_order, rows_in_range
from stream.sources.postgres.server import read_state
from stream.sources.postgres.tables import definition_of, read_table
from stream.sources.postgres.writers import Writers
from stream.sources.sessions import Sessions

if TYPE_CHECKING:
    import psycopg

    from stream.sources.postgres.connection import Connection

T = TypeVar("T")
Rows = TypeVar("Rows")

_HOLDERS: Final = "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE granted AND locktype = 'relation'"
_NOT_NOW: Final = ("55P03", "57014", "40P01")
"""SQLSTATE of a lock that is not granted in time, a statement that took too long, a deadlock."""
_GONE: Final = ("42P01", "3F000")
"""SQLSTATE of a table, or a schema, that is not there."""
ReadTable: TypeAlias = Callable[["Connection", TableInfo], tuple[Rows, frozenset[int]]]
"""Reads a table that is locked against DDL, and says which are rows that nobody had begun to change."""


class _CachedTable(NamedTuple):
    """A table's columns, and the definition that they belong to."""

    info: TableInfo
    definition: str


class PostgresSnapshotReader:
    """As `stream.sources.mariadb.snapshot.SnapshotReader`. Thread-safe.

    ``writers``: what is known of the tables' writers, which several readers may share.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        sessions_max: int = 8,
        wait_s: float = 5.0,
        timeout_s: float = READ_TIMEOUT_S,
        writers: Writers | None = None,
    ) -> None:
        self._settings = settings
        self._sessions = Sessions(
            settings.name,
            self._connect,
            lambda session: session.close(),
            self._during,
            MariaDBUnreachable,
            sessions_max,
            wait_s,
            timeout_s,
        )
        self._tables: dict[str, _CachedTable] = {}
        self._writers = Writers() if writers is None else writers

    def read(
        self, wanted: Mapping[str, Sequence[Key]], timeout_s: float | None = None
    ) -> dict[str, SnapshotRead[tuple[Found, ...]] | MariaDBError]:
        """Read rows by table (``schema.table``) and canonical key values, all from one snapshot.

        Returns and raises as `SnapshotReader.read`. The present end of the log is lo also where somebody writes into
        the table, of rows that nobody had begun to change: who changes a row marks it first.
        """
        count = sum(map(len, wanted.values()))
        if count > KEYS_MAX:
            raise MariaDBError(f"{count} keys in one read", hint=f"at most {KEYS_MAX}", code="too_many_keys")

        def of(keys: Sequence[Key]) -> ReadTable[tuple[Found, ...]]:
            return lambda session, info: rows_by_key(session, info, keys)

        work = {name: of(keys) for name, keys in wanted.items()}
        return self._sessions.run(timeout_s, lambda session, deadline: self._read(session, work, deadline))

    def read_range(
        self, name: str, wanted: KeyRange, timeout_s: float | None = None
    ) -> SnapshotRead[SelectedRange] | MariaDBError:
        """Read a range of the table ``schema.table``. Returns and raises as `read` does for one table."""

        def read(session: Connection, info: TableInfo) -> tuple[SelectedRange, frozenset[int]]:
            return rows_in_range(session, info, wanted), frozenset()

        return self._sessions.run(timeout_s, lambda session, deadline: self._read(session, {name: read}, deadline))[
            name
        ]

    def read_in_order(
        self, name: str, after: Sequence[object] | None, limit: int, bytes_max: int, timeout_s: float
    ) -> SnapshotRead[RowsInOrder] | MariaDBError:
        """Read the rows after a key, as `rows_in_order` has them. Returns and raises as `read` does for one table."""

        def read(session: Connection, info: TableInfo) -> tuple[RowsInOrder, frozenset[int]]:
            return rows_in_order(session, info, after, limit, bytes_max), frozenset()

        return self._sessions.run(timeout_s, lambda session, deadline: self._read(session, {name: read}, deadline))[
            name
        ]

    def held(self, name: str, since_s: float) -> str:
        """Which transaction, prepared so long ago, writes into a table, in words; "" if none. Raises `MariaDBError`."""
        return self._sessions.run(None, lambda session, _: held_tables(session, [name], since_s)).get(name, "")

    def table(self, name: str, timeout_s: float | None = None) -> TableInfo:
        """A table's columns as the source has them now. Raises as `read` does."""

        def read(session: Connection, _: float) -> TableInfo:
            with one_snapshot(session):
                return self._table(session, name)

        return self._sessions.run(timeout_s, read)

    def wait_for_position(self, position: str, timeout_s: float, tables: Collection[str] | None = None) -> bool:
        """Wait until what earlier reads could not prove can be: whoever wrote into their tables then has ended.

        ``tables``: those that are to be read again; None: any that were read lately.
        """
        wanted, awaited = GtidPosition.parse(position), self._writers.awaited(tables)

        def wait(session: Connection, deadline: float) -> bool:
            pause = POLL_FIRST_S
            while True:
                state = read_state(session)
                left = awaited & {holder for (holder,) in fetch_all(session, _HOLDERS)} if awaited else awaited
                if state.end.covers(wanted) and not left:
                    return True
                if time.monotonic() + pause > deadline:
                    return False
                time.sleep(pause)
                pause = min(pause * 2, POLL_MAX_S)

        return self._sessions.run(timeout_s, wait)

    def close(self) -> None:
        """End all idle sessions. A session in use ends when its read is done."""
        self._sessions.close()

    def _connect(self) -> Connection:
        session = connect(self._settings)
        session.prepare_threshold = None  # a statement that is kept fails after an ALTER TABLE
        with translated(self._settings):
            session.execute("SET row_security = off")  # else a row that is hidden would pass for none
        return session

    @contextmanager
    def _during(self, session: Connection, left_s: float) -> Iterator[None]:
        wait_for(session, left_s)
        with translated(self._settings):
            yield

    # -- reads -------------------------------------------------------------------------------------------------------

    def _read(
        self, session: Connection, wanted: Mapping[str, ReadTable[Rows]], deadline: float
    ) -> dict[str, SnapshotRead[Rows] | MariaDBError]:
        """Read all tables in one snapshot.

        Each is locked against DDL from before the snapshot is made, so that its name belongs to one table all the time.
        LOCK makes no snapshot; the first SELECT does.
        """
        number = self._writers.begin()
        state = read_state(session)
        writers: dict[str, set[str]] = {name: set() for name in wanted}
        unmarked = set()
        for name, writer, marks_no_row in fetch_all(session, WRITERS, ([*wanted],)):
            writers[name].add(writer)
            unmarked |= {name} if marks_no_row else set()
        bounds = {name: self._writers.bound(number, name, state.end, of, state.flushed) for name, of in writers.items()}
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        _limit(session, "lock_timeout", (deadline - time.monotonic()) / (len(wanted) + 1))  # leaves time for the others
        failed: dict[str, MariaDBError] = {}
        for name in sorted(wanted):
            with self._failures(session, failed, name):
                session.execute(f"LOCK TABLE ONLY {_quoted(name)} IN ACCESS SHARE MODE".encode())
        _limit(session, "statement_timeout", deadline - time.monotonic())
        read: dict[str, tuple[TableInfo, tuple[Rows, frozenset[int]]]] = {}
        for name in [each for each in wanted if each not in failed]:
            with self._failures(session, failed, name):
                info = self._table(session, name)
                read[name] = info, wanted[name](session, keyed(info))
        hi = str(read_state(session).end)
        session.execute("ROLLBACK")

        def kept(lo: PostgresPlace) -> str:
            return str(PostgresPlace(lo.timeline, min(lo.lsn, state.flushed)))

        end, end_kept = str(state.end), kept(state.end)
        found: dict[str, SnapshotRead[Rows] | MariaDBError] = {**failed}
        for name, (info, (rows, untouched)) in read.items():
            lo = bounds[name]
            is_present = lo.lsn == state.end.lsn
            sure = frozenset() if name in unmarked else untouched
            found[name] = SnapshotRead(
                rows, str(lo), hi, state.now_ms // 1000, info, is_present, kept(lo), sure, end, end_kept
            )
        return found

    def _table(self, session: Connection, name: str) -> TableInfo:
        """A table's columns, which are read again if its definition is another one. Raises `NoSuchTable`."""
        schema, _, table = name.partition(".")
        definition = definition_of(session, schema, table)
        known = self._tables.get(name)
        if known is None or known.definition != definition:
            info = read_table(session, schema, table) if definition else None
            if info is None:
                self._tables.pop(name, None)
                raise _no_table(name)
            known = self._tables[name] = _CachedTable(info, definition)
        return known.info

    @contextmanager
    def _failures(self, session: Connection, failed: dict[str, MariaDBError], name: str) -> Iterator[None]:
        """Keep an error that concerns the table ``name`` alone as its result, and go on with the transaction."""
        import psycopg

        session.execute("SAVEPOINT one")
        try:
            yield
        except psycopg.Error as error:
            state = error.sqlstate or ""
            if session.broken or not state:
                raise
            failed[name] = self._failure(name, state, error)
        except MariaDBError as error:
            failed[name] = error
        if name in failed:
            session.execute("ROLLBACK TO SAVEPOINT one")

    def _failure(self, name: str, state: str, error: psycopg.Error) -> MariaDBError:
        if state in _GONE:
            return _no_table(name)
        if state in _NOT_NOW:
            return SourceTimeout(
                f"{name} could not be read in time: it is locked, or the server is overloaded",
                hint="SELECT pid, query FROM pg_stat_activity at the server names the session that holds a lock",
            )
        return translate(error, self._settings)


def _limit(session: Connection, setting: str, seconds: float) -> None:
    """Bound the transaction's statements, or their waiting for locks."""
    session.execute(f"SET LOCAL {setting} = {max(round(seconds * 1000), 1)}".encode())


def _quoted(name: str) -> str:
    schema, _, table = name.partition(".")
    return f"{quoted(schema)}.{quoted(table)}".replace("%%", "%")  # no arguments: no % is doubled


def _no_table(name: str) -> NoSuchTable:
    return NoSuchTable(f"the database has no table {name}", hint="check schema and table name")
