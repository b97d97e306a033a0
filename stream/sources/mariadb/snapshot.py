"""Read rows by key from the source of truth, each read with the position of its snapshot.

A snapshot's position is BINLOG_GTID_POS of the binlog file and offset that InnoDB recorded with the snapshot. The rows
contain everything up to it and nothing later. `@@gtid_binlog_pos` may be ahead of the rows.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import pymysql

from stream.sources.mariadb.by_key import SCHEMA_CHANGED, Found, Key, code_of, is_connection_lost, rows_by_key
from stream.sources.mariadb.charsets import Charsets, read_charsets
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    connect,
    fetch_all,
    translate,
    translated,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.position import ServerPosition, begin_snapshot
from stream.sources.mariadb.schema import TableInfo, read_table
from stream.sources.mariadb.selected_rows import quoted

T = TypeVar("T")

SCHEMA_AGE_MAX_S = 5.0
"""A table's columns are read again after this time, and at once after an error about a column."""
KEYS_MAX = 1000
_COUNTER = re.compile(r" AUTO_INCREMENT=[0-9]+")


class NoSuchTable(MariaDBError):
    """The source has no such table. Code ``no_such_table``."""

    code = "no_such_table"


class SourceBusy(MariaDBError):
    """All sessions to the source are in use. Code ``source_busy``."""

    code = "source_busy"


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """The rows of a table in one snapshot. ``rows``: one result for each requested key, in order (see `by_key.Found`).

    ``position`` (``MariaDB/…``) is lo of each value. ``hi`` is equal to it, or later for an engine without snapshots.
    ``timestamp``: the server's seconds since 1970.
    """

    rows: tuple[Found, ...]
    position: str
    hi: str
    timestamp: int
    table: TableInfo


class _CachedTable(NamedTuple):
    """A table's columns, when they were read (monotonic seconds), and the definition that they belong to."""

    read_at: float
    info: TableInfo
    definition: str


class SnapshotReader:
    """A bounded pool of sessions that read rows in consistent snapshots. Thread-safe.

    ``sessions_max`` bounds concurrent reads. A read that gets no session within ``wait_s`` seconds raises `SourceBusy`.
    A read that meets a dead session is retried once with a new one, so a restart of the server fails no read.
    """

    def __init__(self, settings: ConnectionSettings, sessions_max: int = 8, wait_s: float = 5.0) -> None:
        self._settings = settings
        self._wait_s = wait_s
        self._permits = threading.BoundedSemaphore(sessions_max)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._tables: dict[str, _CachedTable] = {}
        self._charsets: Charsets | None = None
        self._closed = False

    def read(self, wanted: Mapping[str, Sequence[Key]]) -> dict[str, SnapshotRead | MariaDBError]:
        """Read rows by table (``db.table``) and canonical key values in key order, all from one snapshot.

        A table that can't be read has its error as result: `NoSuchTable`, ``no_primary_key``, or altered repeatedly.
        Raises errors that concern all tables: `SourceBusy`, `MariaDBUnreachable`, `MariaDBError` (``too_many_keys``).
        """
        count = sum(map(len, wanted.values()))
        if count > KEYS_MAX:
            raise MariaDBError(f"{count} keys in one read", hint=f"at most {KEYS_MAX}", code="too_many_keys")
        return self._with_session(lambda session: self._read(session, wanted))

    def table(self, name: str) -> TableInfo:
        """A table's columns as the source has them now. Raises as `read` does."""
        return self._with_session(lambda session: self._table(session, name, fresh=True)).info

    def position(self) -> ServerPosition:
        """The position of a snapshot taken now."""
        return self._with_session(_position)

    def wait_for_position(self, position: str, timeout_s: float) -> bool:
        """Wait until the server has everything up to ``position``; False if it has not after ``timeout_s`` seconds.

        For reads from a replica: a snapshot taken afterwards proves a demand for ``position``.
        """
        bare = position.removeprefix("MariaDB/")

        def wait(session: Connection) -> bool:
            if _contains(_position(session).position, position):
                return True
            ((code,),) = fetch_all(session, "SELECT MASTER_GTID_WAIT(%s, %s)", (bare, timeout_s))
            return bool(int(code) == 0)

        return self._with_session(wait)

    def close(self) -> None:
        """End all idle sessions. A session in use ends when its read is done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session._force_close()

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _with_session(self, work: Callable[[Connection], T]) -> T:
        with self._slot():
            session, fresh = self._take_session()
            try:
                return self._run_in_session(session, work)
            except MariaDBUnreachable:
                if fresh:
                    raise
            self._drop_idle()
            return self._run_in_session(connect(self._settings), work)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if self._closed:
            raise SourceBusy("the reader of the source is closed")
        if not self._permits.acquire(timeout=self._wait_s):
            raise SourceBusy(
                f"all sessions to {self._settings.name} were busy for {self._wait_s:g} s", hint="try again later"
            )
        try:
            yield
        finally:
            self._permits.release()

    def _take_session(self) -> tuple[Connection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return connect(self._settings), True

    def _run_in_session(self, session: Connection, work: Callable[[Connection], T]) -> T:
        """Run ``work``. Keep the session in the pool only if no error occurred."""
        is_healthy = False
        try:
            with translated(self._settings):
                found = work(session)
                session.rollback()
            is_healthy = True
            return found
        finally:
            with self._lock:
                keep = is_healthy and not self._closed
                if keep:
                    self._idle.append(session)
            if not keep:
                session._force_close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session._force_close()

    # -- reads -------------------------------------------------------------------------------------------------------

    def _read(self, session: Connection, wanted: Mapping[str, Sequence[Key]]) -> dict[str, SnapshotRead | MariaDBError]:
        altered_tables: set[str] = set()
        found: dict[str, SnapshotRead | MariaDBError] = {}
        for _ in (1, 2):
            known: dict[str, _CachedTable] = {}
            for name in wanted:
                try:
                    known[name] = self._table(session, name, fresh=name in altered_tables)
                except NoSuchTable as error:
                    found[name] = error
                except pymysql.err.MySQLError as error:
                    if is_connection_lost(error):
                        raise
                    found[name] = translate(error, self._settings)
            read = self._read_snapshot(session, {name: (each, wanted[name]) for name, each in known.items()})
            altered_tables = known.keys() - read.keys()
            if not altered_tables:
                return found | read
        altered: dict[str, SnapshotRead | MariaDBError] = {
            name: MariaDBError(f"{name} was altered repeatedly while it was read") for name in altered_tables
        }
        return found | read | altered

    def _read_snapshot(
        self, session: Connection, wanted: Mapping[str, tuple[_CachedTable, Sequence[Key]]]
    ) -> dict[str, SnapshotRead | MariaDBError]:
        """Read all tables from one snapshot. A table that was altered since its columns were read is left out."""
        at = begin_snapshot(session)
        rows: dict[str, list[Found]] = {}
        failed: dict[str, SnapshotRead | MariaDBError] = {}
        for name, (known, keys) in wanted.items():
            if not known.info.primary_key:
                failed[name] = MariaDBError(f"{name} has no primary key to read by", code="no_primary_key")
                continue
            try:
                rows[name] = rows_by_key(session, self._settings, known.info, keys)
                # The SELECT locks the table's definition until the rollback, so this is the definition that was read.
                if _definition(session, known.info.database, known.info.table) != known.definition:
                    del rows[name]
            except pymysql.err.MySQLError as error:
                if is_connection_lost(error):
                    raise
                rows.pop(name, None)
                if code_of(error) not in SCHEMA_CHANGED:
                    failed[name] = translate(error, self._settings)
        session.rollback()
        without_snapshots = [name for name in rows if wanted[name][0].info.engine.lower() != "innodb"]
        later = _position(session).position if without_snapshots else ""
        return failed | {
            name: SnapshotRead(
                tuple(found),
                at.position,
                later if name in without_snapshots else at.position,
                at.timestamp,
                wanted[name][0].info,
            )
            for name, found in rows.items()
        }

    def _table(self, session: Connection, name: str, fresh: bool = False) -> _CachedTable:
        known = self._tables.get(name)
        if known is not None and not fresh and time.monotonic() - known.read_at < SCHEMA_AGE_MAX_S:
            return known
        if self._charsets is None:
            self._charsets = read_charsets(session)
        database, _, table = name.partition(".")
        # Read before the columns: if the table is altered in between, the next read notices another definition.
        definition = _definition(session, database, table)
        info = read_table(session, self._charsets, database, table)
        if info is None:
            self._tables.pop(name, None)
            raise NoSuchTable(f"{self._settings.name} has no table {name}", hint="check database and table name")
        known = self._tables[name] = _CachedTable(time.monotonic(), info, definition)
        return known


def _definition(session: Connection, database: str, table: str) -> str:
    """The table's SHOW CREATE TABLE text without AUTO_INCREMENT; "" if there is no such table."""
    try:
        [[_, text, *_]] = fetch_all(session, f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
    except pymysql.err.ProgrammingError as error:
        if error.args and error.args[0] in SCHEMA_CHANGED:
            return ""
        raise
    return _COUNTER.sub("", str(text))


def _position(session: Connection) -> ServerPosition:
    try:
        return begin_snapshot(session)
    finally:
        session.rollback()


def _contains(reached: str, wanted: str) -> bool:
    mine = GtidPosition.parse(reached).domains
    return all(
        domain in mine and mine[domain][1] >= sequence
        for domain, (_, sequence) in GtidPosition.parse(wanted).domains.items()
    )
