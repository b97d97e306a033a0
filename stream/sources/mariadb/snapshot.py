"""Read rows by key from the source of truth, each read with the positions that it lies between.

``lo`` is the position up to which the server had committed before the read began. ``hi`` is the end of the binlog after
it. The rows contain everything up to ``lo`` and nothing later than ``hi``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import pymysql
from pymysql.constants import ER

from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_key import (
    SCHEMA_CHANGED,
    TIMED_OUT,
    Found,
    Key,
    code_of,
    is_connection_lost,
    rows_by_key,
    timed,
)
from stream.sources.mariadb.by_range import SelectedRange, rows_in_range
from stream.sources.mariadb.charsets import Charsets, read_charsets
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    connect,
    fetch_all,
    is_mysql,
    translate,
    translated,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.information_schema.tables import read_table
from stream.sources.mariadb.position import (
    PLACES_MAX,
    ServerPosition,
    bounds_since,
    committed_place,
    current_position,
)
from stream.sources.mariadb.schema import TableInfo
from stream.sources.mariadb.selected_rows import quoted
from stream.sources.sessions import ANSWER_MARGIN_S, Sessions

T = TypeVar("T")
Rows = TypeVar("Rows")

SCHEMA_AGE_MAX_S = 5.0
"""A table's columns are read again after this time, and at once after an error about a column."""
KEYS_MAX = 1000
READ_TIMEOUT_S = 5.0
AT_ONCE_S = 0.02
"""MySQL has no lock without waiting."""
POLL_FIRST_S = 0.002
POLL_MAX_S = 0.05
_COUNTER = re.compile(r" AUTO_INCREMENT=[0-9]+")


class NoSuchTable(MariaDBError):
    """The source has no such table. Code ``no_such_table``."""

    code = "no_such_table"


class SourceTimeout(MariaDBError):
    """A table could not be read in time. Code ``source_timeout``."""

    code = "source_timeout"


@dataclass(frozen=True, slots=True)
class SnapshotRead(Generic[Rows]):
    """The rows of a table in one snapshot. ``rows``: one result for each requested key, in order, or those of a range.

    ``position`` (``MariaDB/…``) is lo of each value. ``hi`` is equal to it, or later if the server was written to.
    ``timestamp``: the server's seconds since 1970. ``is_primary``: the server takes writes.
    """

    rows: Rows
    position: str
    hi: str
    timestamp: int
    table: TableInfo
    is_primary: bool = False
    kept: str = ""
    """lo for a cache, if it is an earlier one: beyond it the server may lose what it has logged, in a crash."""
    untouched: frozenset[int] = frozenset()
    """Places of rows that nobody had begun to change. A primary's hold all that was committed up to ``end``."""
    end: str = ""
    end_kept: str = ""
    """As ``kept``, of ``end``."""

    def proof_of(self, place: int) -> tuple[str, str, bool]:
        """Of a row, by its place: lo, `kept`, and whether it holds all that was committed before the read."""
        if place in self.untouched:
            return self.end, self.end_kept, True
        return self.position, self.kept, self.is_primary


ReadTable: TypeAlias = Callable[[Connection, TableInfo, float], Rows]
"""Reads a table that is locked against DDL, until a deadline (`time.monotonic`). May raise PyMySQL's errors."""


class _CachedTable(NamedTuple):
    """A table's columns, when they were read (monotonic seconds), and the definition that they belong to."""

    read_at: float
    info: TableInfo
    definition: str


class SnapshotReader:
    """Reads rows in consistent snapshots, in a pool of sessions (`stream.sources.sessions`). Thread-safe."""

    def __init__(
        self,
        settings: ConnectionSettings,
        sessions_max: int = 8,
        wait_s: float = 5.0,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._sessions = Sessions(
            settings.name,
            lambda: connect(settings),
            Connection._force_close,
            self._during,
            MariaDBUnreachable,
            sessions_max,
            wait_s,
            timeout_s,
        )
        self._tables: dict[str, _CachedTable] = {}
        self._charsets: Charsets | None = None

    def read(
        self, wanted: Mapping[str, Sequence[Key]], timeout_s: float | None = None
    ) -> dict[str, SnapshotRead[tuple[Found, ...]] | MariaDBError]:
        """Read rows by table (``db.table``) and canonical key values in key order, all from one snapshot.

        A table that can't be read has its error as result: `NoSuchTable`, `SourceTimeout`, ``no_primary_key``.
        Raises errors that concern all tables: `SourceBusy`, `MariaDBUnreachable`, `MariaDBError` (``too_many_keys``).
        """
        count = sum(map(len, wanted.values()))
        if count > KEYS_MAX:
            raise MariaDBError(f"{count} keys in one read", hint=f"at most {KEYS_MAX}", code="too_many_keys")
        work = {name: partial(self._by_key, keys) for name, keys in wanted.items()}
        return self._sessions.run(timeout_s, lambda session, deadline: self._read(session, work, deadline))

    def read_range(
        self, name: str, wanted: KeyRange, timeout_s: float | None = None
    ) -> SnapshotRead[SelectedRange] | MariaDBError:
        """Read a range of the table ``db.table``. Returns and raises as `read` does for one table."""

        def read(session: Connection, info: TableInfo, deadline: float) -> SelectedRange:
            return rows_in_range(session, keyed(info), wanted, deadline)

        return self._sessions.run(timeout_s, lambda session, deadline: self._read(session, {name: read}, deadline))[
            name
        ]

    def table(self, name: str, timeout_s: float | None = None) -> TableInfo:
        """A table's columns as the source has them now. Raises as `read` does."""
        failed: dict[str, MariaDBError] = {}

        def describe(session: Connection, deadline: float) -> TableInfo | None:
            with self._failures(failed, name):
                return self._table(session, name, deadline, fresh=True).info
            return None

        info = self._sessions.run(timeout_s, describe)
        if info is None:
            raise failed[name]
        return info

    def position(self) -> ServerPosition:
        """What the server has committed now."""
        return self._sessions.run(None, lambda session, _: current_position(session))

    def wait_for_position(
        self,
        position: str,
        timeout_s: float,
        tables: Collection[str] | None = None,  # noqa: ARG002  (the log is one)
    ) -> bool:
        """Wait until the server has committed everything up to ``position``; False if it has not in time.

        A read that begins afterwards proves a demand for ``position``. A replica may lag; a primary too, by the time
        between writing a transaction to the binlog, where a source sees it already, and committing it.
        """

        def wait(session: Connection, deadline: float) -> bool:
            pause = POLL_FIRST_S
            while not _contains(current_position(session).position, position):
                if time.monotonic() + pause > deadline:
                    return False
                time.sleep(pause)
                pause = min(pause * 2, POLL_MAX_S)
            return True

        return self._sessions.run(timeout_s, wait)

    def close(self) -> None:
        """End all idle sessions. A session in use ends when its read is done."""
        self._sessions.close()

    @contextmanager
    def _during(self, session: Connection, left_s: float) -> Iterator[None]:
        session._read_timeout = left_s + ANSWER_MARGIN_S  # for a server that is silent; one that answers ends by itself
        with translated(self._settings):
            yield

    # -- reads -------------------------------------------------------------------------------------------------------

    def _read(
        self, session: Connection, wanted: Mapping[str, ReadTable[Rows]], deadline: float
    ) -> dict[str, SnapshotRead[Rows] | MariaDBError]:
        """Read all tables in one snapshot.

        Each table is locked against DDL from before the snapshot is made until the rollback. After a snapshot that is
        older than the lock, the name may belong to another table, whose rows it sees only in part or in an old state.
        So the engine makes the snapshot in the first SELECT of a row, when the tables are locked. Nobody can tell the
        exact position of such a snapshot: it lies between one that is asked for before and one that is asked for after.
        """
        for _ in range(PLACES_MAX):
            failed: dict[str, MariaDBError] = {}
            known: dict[str, _CachedTable] = {}
            share_s = (deadline - time.monotonic()) / max(len(wanted), 1)  # a locked table leaves time for the others
            for name in wanted:
                with self._failures(failed, name):
                    known[name] = self._table(session, name, time.monotonic() + share_s)
            place = committed_place(session)
            session.query("START TRANSACTION READ ONLY")
            if len(known) > 1:
                self._lock_tables(session, known, failed, deadline)
            rows: dict[str, tuple[TableInfo, Rows]] = {}
            for name in [each for each in known if each not in failed]:
                with self._failures(failed, name):
                    rows[name] = self._rows(session, known[name], wanted[name], deadline)
            bounds = bounds_since(session, place)
            session.rollback()
            if bounds is not None:
                read = {
                    name: SnapshotRead(got, bounds.lo, bounds.hi, bounds.timestamp, info, bounds.is_primary)
                    for name, (info, got) in rows.items()
                }
                return {**failed, **read}
        raise MariaDBUnreachable("the server's binlogs were rotated or purged repeatedly during a read")

    def _rows(
        self, session: Connection, known: _CachedTable, read: ReadTable[Rows], deadline: float
    ) -> tuple[TableInfo, Rows]:
        """What ``read`` returns, and the table's columns as they were read. Raises PyMySQL's errors, `MariaDBError`."""
        try:
            found = read(session, known.info, deadline)
            if definition_of(session, known.info.database, known.info.table) == known.definition:
                return known.info, found
        except pymysql.err.MySQLError as error:
            if code_of(error) not in SCHEMA_CHANGED:
                raise
        # The table was altered since its columns were read. Under the lock it stays as it is.
        fetch_all(session, timed(session, lock_sql(known.info.name), deadline))
        info = self._table(session, known.info.name, deadline, fresh=True).info
        return info, read(session, info, deadline)

    def _by_key(self, keys: Sequence[Key], session: Connection, info: TableInfo, deadline: float) -> tuple[Found, ...]:
        return tuple(rows_by_key(session, self._settings, keyed(info), keys, deadline))

    def _lock_tables(
        self,
        session: Connection,
        names: Iterable[str],
        failed: dict[str, MariaDBError],
        deadline: float,
    ) -> None:
        """Lock tables against DDL until the rollback. No snapshot is made.

        One statement locks all: the server resolves deadlocks with DDL by itself then. If it takes half of the time,
        the tables that can be locked at once are read, and the others fail.
        """
        middle = (time.monotonic() + deadline) / 2
        try:
            fetch_all(session, timed(session, " UNION ALL ".join(map(lock_sql, names)), middle))
        except pymysql.err.MySQLError as error:
            if is_connection_lost(error):
                raise
            for name in names:
                with self._failures(failed, name):
                    fetch_all(session, _at_once(session, name))

    @contextmanager
    def _failures(self, failed: dict[str, MariaDBError], name: str) -> Iterator[None]:
        """Keep an error that concerns the table ``name`` alone as its result."""
        try:
            yield
        except MariaDBError as error:
            failed[name] = error
        except pymysql.err.MySQLError as error:
            if is_connection_lost(error):
                raise
            if code_of(error) == ER.NO_SUCH_TABLE:
                self._tables.pop(name, None)
                failed[name] = self._no_table(name)
            elif code_of(error) in TIMED_OUT:
                failed[name] = SourceTimeout(
                    f"{name} could not be read in time: it is locked, or the server is overloaded",
                    hint="SHOW FULL PROCESSLIST at the server names the session that holds a lock",
                )
            else:
                failed[name] = translate(error, self._settings)

    def _no_table(self, name: str) -> NoSuchTable:
        return NoSuchTable(f"{self._settings.name} has no table {name}", hint="check database and table name")

    def _table(self, session: Connection, name: str, deadline: float, fresh: bool = False) -> _CachedTable:
        known = self._tables.get(name)
        if known is not None and not fresh and time.monotonic() - known.read_at < SCHEMA_AGE_MAX_S:
            return known
        database, _, table = name.partition(".")
        # MySQL limits the time of a SELECT only. There the session's limit for locks is what ends the others.
        limited = not is_mysql(session)
        if limited:
            session.query(f"SET max_statement_time={max(deadline - time.monotonic(), 0.001):.3f}")
        try:
            if self._charsets is None:
                self._charsets = read_charsets(session)
            # Read before the columns: if the table is altered in between, the next read notices another definition.
            definition = definition_of(session, database, table)
            info = read_table(session, self._charsets, database, table)
            if info is not None:
                # Refused if the user may not read all columns: information_schema hides those, and images lack them.
                fetch_all(session, f"SELECT * FROM {quoted(database)}.{quoted(table)} WHERE FALSE")
        finally:
            if limited:
                session.query("SET max_statement_time=0")
        if info is None:
            self._tables.pop(name, None)
            raise self._no_table(name)
        known = self._tables[name] = _CachedTable(time.monotonic(), info, definition)
        return known


def keyed(info: TableInfo) -> TableInfo:
    """A table that can be read by key. Raises `MariaDBError` ``no_primary_key``."""
    if not info.primary_key:
        raise MariaDBError(f"{info.name} has no primary key to read by", code="no_primary_key")
    return info


def lock_sql(name: str) -> str:
    """A SELECT that locks a table against DDL until its transaction ends, and reads nothing."""
    database, _, table = name.partition(".")
    return f"SELECT 1 FROM {quoted(database)}.{quoted(table)} WHERE FALSE"


def _at_once(session: Connection, name: str) -> str:
    """As `lock_sql`, but an error if the lock can't be had now."""
    if is_mysql(session):
        return timed(session, lock_sql(name), time.monotonic() + AT_ONCE_S)
    return f"SET STATEMENT lock_wait_timeout=0 FOR {lock_sql(name)}"


def definition_of(session: Connection, database: str, table: str) -> str:
    """The table's SHOW CREATE TABLE text without AUTO_INCREMENT; "" if there is no such table."""
    try:
        [[_, text, *_]] = fetch_all(session, f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
    except pymysql.err.ProgrammingError as error:
        if error.args and error.args[0] in SCHEMA_CHANGED:
            return ""
        raise
    return _COUNTER.sub("", str(text))


def _contains(reached: str, wanted: str) -> bool:
    return GtidPosition.parse(reached).reaches(GtidPosition.parse(wanted))
