"""Reads of rows by key at the source of truth, each with the position of its own snapshot.

A snapshot's position is BINLOG_GTID_POS of the binlog file and offset that InnoDB recorded with the snapshot itself:
nothing in the rows is later, and everything up to it is in the rows. `@@gtid_binlog_pos` would be ahead of the row.
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

from stream.sources.mariadb.by_key import SCHEMA_CHANGED, Found, Key, code_of, is_lost, rows_by_key
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
"""A table's columns are read again after this; an unknown column makes them be read at once."""
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
    """What one snapshot holds of a table. ``rows``: one per key asked for, in that order (see `by_key.Found`).

    ``position`` (``MariaDB/…``) is lo of each value, and ``hi`` too but for tables of an engine without snapshots,
    whose rows may be later; ``timestamp`` is the server's seconds.
    """

    rows: tuple[Found, ...]
    position: str
    hi: str
    timestamp: int
    table: TableInfo


class _Known(NamedTuple):
    """A table's columns, when they were read (monotonic seconds), and the definition that they are of."""

    read_at: float
    info: TableInfo
    definition: str


class SnapshotReader:
    """A bounded pool of sessions that read rows in consistent snapshots. Thread-safe.

    ``sessions_max`` bounds concurrent reads; a read that gets no session within ``wait_s`` raises `SourceBusy`.
    A session that turns out dead is replaced once a read, so that a restarted server costs no failed answer.
    """

    def __init__(self, settings: ConnectionSettings, sessions_max: int = 8, wait_s: float = 5.0) -> None:
        self._settings = settings
        self._wait_s = wait_s
        self._free = threading.BoundedSemaphore(sessions_max)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._tables: dict[str, _Known] = {}
        self._charsets: Charsets | None = None
        self._closed = False

    def read(self, wanted: Mapping[str, Sequence[Key]]) -> dict[str, SnapshotRead | MariaDBError]:
        """Rows by table (``db.table``) and canonical key values in key order, all from one snapshot.

        A table that can't be read is its error: `NoSuchTable`, ``no_primary_key``, or altered again and again. Raises
        what concerns all of them: `SourceBusy`, `MariaDBUnreachable`, `MariaDBError` (``too_many_keys``).
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
        """Waits until the server has replicated or written all of ``position``; False after ``timeout_s``.

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
        """Ends all idle sessions; those in use end when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session._force_close()

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _with_session(self, work: Callable[[Connection], T]) -> T:
        with self._slot():
            session, fresh = self._take()
            try:
                return self._worked(session, work)
            except MariaDBUnreachable:
                if fresh:
                    raise
            self._drop_idle()
            return self._worked(connect(self._settings), work)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if self._closed:
            raise SourceBusy("the reader of the source is closed")
        if not self._free.acquire(timeout=self._wait_s):
            raise SourceBusy(
                f"all sessions to {self._settings.name} were busy for {self._wait_s:g} s", hint="try again later"
            )
        try:
            yield
        finally:
            self._free.release()

    def _take(self) -> tuple[Connection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return connect(self._settings), True

    def _worked(self, session: Connection, work: Callable[[Connection], T]) -> T:
        """Runs ``work`` and keeps the session only if it is surely still in order."""
        good = False
        try:
            with translated(self._settings):
                found = work(session)
                session.rollback()
            good = True
            return found
        finally:
            with self._lock:
                keep = good and not self._closed
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
        moved: set[str] = set()
        found: dict[str, SnapshotRead | MariaDBError] = {}
        for _ in (1, 2):
            known: dict[str, _Known] = {}
            for name in wanted:
                try:
                    known[name] = self._table(session, name, fresh=name in moved)
                except NoSuchTable as error:
                    found[name] = error
                except pymysql.err.MySQLError as error:
                    if is_lost(error):
                        raise
                    found[name] = translate(error, self._settings)
            read = self._read_snapshot(session, {name: (each, wanted[name]) for name, each in known.items()})
            moved = known.keys() - read.keys()
            if not moved:
                return found | read
        altered: dict[str, SnapshotRead | MariaDBError] = {
            name: MariaDBError(f"{name} is altered again and again while it is read") for name in moved
        }
        return found | read | altered

    def _read_snapshot(
        self, session: Connection, wanted: Mapping[str, tuple[_Known, Sequence[Key]]]
    ) -> dict[str, SnapshotRead | MariaDBError]:
        """What one snapshot holds; a table whose columns are not the known ones is left out."""
        at = begin_snapshot(session)
        rows: dict[str, list[Found]] = {}
        failed: dict[str, SnapshotRead | MariaDBError] = {}
        for name, (known, keys) in wanted.items():
            if not known.info.primary_key:
                failed[name] = MariaDBError(f"{name} has no primary key to read by", code="no_primary_key")
                continue
            try:
                rows[name] = rows_by_key(session, self._settings, known.info, keys)
                # The SELECT holds the table's definition until the rollback: what is shown now is what was read.
                if _definition(session, known.info.database, known.info.table) != known.definition:
                    del rows[name]
            except pymysql.err.MySQLError as error:
                if is_lost(error):
                    raise
                rows.pop(name, None)
                if code_of(error) not in SCHEMA_CHANGED:
                    failed[name] = translate(error, self._settings)
        session.rollback()
        plain = [name for name in rows if wanted[name][0].info.engine.lower() != "innodb"]
        later = _position(session).position if plain else ""
        return failed | {
            name: SnapshotRead(
                tuple(found), at.position, later if name in plain else at.position, at.timestamp, wanted[name][0].info
            )
            for name, found in rows.items()
        }

    def _table(self, session: Connection, name: str, fresh: bool = False) -> _Known:
        known = self._tables.get(name)
        if known is not None and not fresh and time.monotonic() - known.read_at < SCHEMA_AGE_MAX_S:
            return known
        if self._charsets is None:
            self._charsets = read_charsets(session)
        database, _, table = name.partition(".")
        # Before the columns: if the table is altered in between, the next read finds another definition, and rereads.
        definition = _definition(session, database, table)
        info = read_table(session, self._charsets, database, table)
        if info is None:
            self._tables.pop(name, None)
            raise NoSuchTable(f"{self._settings.name} has no table {name}", hint="check database and table name")
        known = self._tables[name] = _Known(time.monotonic(), info, definition)
        return known


def _definition(session: Connection, database: str, table: str) -> str:
    """The table's own words for what it is, without the counter in them; "" if there is no such table."""
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
