"""The tables of a live server, for the binlog reader: read once, and again after DDL or an unexpected table map."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from typing import ClassVar, Final, TypeVar

import pymysql
import structlog

from stream.sources.mariadb.binlog.catalog import BECOMING_VISIBLE, Catalog, Xid, read_held
from stream.sources.mariadb.cascades.foreign_keys import Cascades, read_cascades, read_unlocked_cascades
from stream.sources.mariadb.charsets import Charsets, read_charsets
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBUnreachable,
    connect,
    fetch_all,
    is_mysql,
    translated,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.information_schema.locked_tables import LOCKED_S, is_locked
from stream.sources.mariadb.information_schema.tables import (
    read_table,
    read_tables,
    read_unlocked_tables,
    unknown_databases,
)
from stream.sources.mariadb.position import end_of_log
from stream.sources.mariadb.schema import TableFilter, TableInfo
from stream.wire.events import EVERY_TABLE

log = structlog.get_logger(__name__)

T = TypeVar("T")

AGAIN_S: Final = 1.0
"""Between two attempts to read what was locked."""
_PATIENCE: Final = 10
"""So many times as long as an attempt takes nothing is asked after it: many tables may be locked at once."""
_SAID_MAX: Final = 10
_HINT: Final = "SHOW FULL PROCESSLIST at the server names who locks it, as a long CREATE TABLE … SELECT"


class LiveSchema:
    """Schema of the included tables, by ``db.table``, as of the position that is being read (see `Catalog`).

    A table that somebody has locked is read later (docs/decisions/0197).
    """

    waits_for_locks: ClassVar = False
    """Whether it is waited for instead, for as long as the session waits for locks."""

    def __init__(self, settings: ConnectionSettings, include: TableFilter) -> None:
        self._settings = settings
        self.include = include
        self._connection: Connection | None = None
        self.catalog = Catalog()
        self.live: Mapping[str, TableInfo] = {}
        """The included tables as `load` found them."""
        self.charsets: Charsets = Charsets({}, {})
        self.cascades = Cascades({}, {})
        self._cascades_at: GtidPosition | None = None
        """From where on they are those of the position that is read."""
        self.unread: frozenset[str] = frozenset()
        """Tables whose foreign keys may be others than `cascades` has; with `EVERY_TABLE` any."""
        self._unread_until = self._locked_until = 0.0
        self.lower_case_names = False
        self._held_before: str | None = None

    def load(self) -> None:
        """Read everything from the server. Raises `MariaDBError`."""
        connection = self._connect()
        with translated(self._settings):
            self.charsets = read_charsets(connection)
            tables, locked = self._read_tables(connection)
            self.live = self.found(connection, tables)
            self.cascades, self.unread = self._read_cascades(connection)
            at = end_of_log(connection)
            self._cascades_at = None if self.unread else at
            self.catalog.resume(self.live, at, locked)
            self._read_later(locked | self.unread)
            if self._held_before is not None:
                self._hold_again(connection, self._held_before)
                self._held_before = None
            ((mode,),) = fetch_all(connection, "SELECT @@lower_case_table_names")
            self.lower_case_names = int(mode) != 0

    def _read_tables(self, connection: Connection) -> tuple[Mapping[str, TableInfo], frozenset[str]]:
        """The included tables, and those that are left out because they are locked."""
        found: Mapping[str, TableInfo]
        if self.waits_for_locks:
            found, locked = read_tables(connection, self.charsets, self.include), frozenset[str]()
        else:
            found, locked = read_unlocked_tables(connection, self.charsets, self.include)
        return (found, locked) if is_mysql(connection) else self._read_by_name(connection, found, locked)

    def _read_by_name(
        self, connection: Connection, listed: Mapping[str, TableInfo], locked: frozenset[str]
    ) -> tuple[Mapping[str, TableInfo], frozenset[str]]:
        """Read again, one by one, the tables that are not as they are described.

        MariaDB lists the files in a directory. For a moment at an ALTER's end there is none of the table that it
        replaces, nor a word that one is missing. By its name a table is locked then.
        """
        found = dict(listed)
        for name in self.catalog.differing(self.found(connection, listed)):
            database, _, table = name.partition(".")
            if name in listed:
                database, table = listed[name].database, listed[name].table
            if name in locked or not self.include(database, table):
                continue
            read = self._read_soon(database, table, 0)
            if read is None:
                locked |= {name}
            if read is None or read[0] is None:
                found.pop(name, None)
            else:
                found[name] = read[0]
        return found, locked

    def _read_cascades(self, connection: Connection) -> tuple[Cascades, frozenset[str]]:
        """As `_read_tables`, the foreign keys."""
        if self.waits_for_locks:
            return read_cascades(connection, self.include.databases), frozenset()
        return read_unlocked_cascades(connection, self.include.databases)

    def _read_later(self, locked: Set[str]) -> None:
        """Say which tables are locked, and leave them alone for a while."""
        self._locked_until = self._unread_until = time.monotonic() + AGAIN_S
        for name in sorted(locked)[:_SAID_MAX]:
            log.warning("a table is read later", table=name, reason="it is locked", locked=len(locked), hint=_HINT)

    def found(self, _connection: Connection, tables: Mapping[str, TableInfo]) -> Mapping[str, TableInfo]:
        """What is made of the tables that were read from the server."""
        return tables

    def hold_again(self, words: str) -> None:
        """Have the next `load` hold what an earlier source held: see `HELD` for ``words``, or what the topic says."""
        self._held_before = words

    def _hold_again(self, connection: Connection, words: str) -> None:
        catalog, known = self.catalog, read_held(words)
        said = {name for name in catalog.names if catalog.description(name).reason == BECOMING_VISIBLE}
        invisible = frozenset() if said <= known.keys() else _prepared(connection)
        for name in sorted(said | known.keys()):
            if self.include(*name.split(".", 1)):
                for xid in known.get(name, invisible):
                    catalog.hold([name], xid)

    def unknown_databases(self) -> list[str]:
        """The databases that were chosen by name and don't exist. Raises `MariaDBError`."""
        return self._retried(lambda connection: unknown_databases(connection, self.include.databases))

    def get(self, name: str) -> TableInfo | None:
        """The schema of a table as of the position, or None."""
        return self.catalog.get(name)

    def reread(self, database: str, table: str) -> None:
        """Read a table, which is not as it was thought to be: if it is locked, later. Raises `MariaDBError`."""
        name, locked = f"{database}.{table}", self.catalog.locked
        found = self._read_soon(database, table, 0 if locked else LOCKED_S)
        if found is None:
            self.catalog.doubt(name, None, None)
            if name not in locked:
                self._read_later({name})
        else:
            self.catalog.doubt(name, *found)

    def _read_soon(self, database: str, table: str, wait_s: int) -> tuple[TableInfo | None, GtidPosition] | None:
        """A table, and a position behind which it is so; None: it is locked, for longer than that."""

        def ask(connection: Connection) -> tuple[TableInfo | None, GtidPosition] | None:
            limit_s = None if self.waits_for_locks else wait_s
            try:
                info = read_table(connection, self.charsets, database, table, self.include.prefixes, wait_s=limit_s)
            except pymysql.err.OperationalError as error:
                if self.waits_for_locks or not is_locked(connection, error):
                    raise
                return None
            if info is not None:
                info = self.found(connection, {info.name: info})[info.name]
            return info, end_of_log(connection)

        return self._retried(ask)

    def _reread_locked(self) -> None:
        """Read the tables that were locked, if they are free, once that was a while ago. Raises `MariaDBError`."""
        began = time.monotonic()
        if began < self._locked_until:
            return
        for name in self.catalog.locked:
            database, _, table = name.partition(".")
            found = self._read_soon(database, table, 0)
            if found is not None:
                log.info("a table that was locked is read", table=name)
                self.catalog.learn(name, *found)
        now = time.monotonic()
        self._locked_until = now + max(AGAIN_S, _PATIENCE * (now - began))

    def after_ddl(self, names: list[tuple[str, str]]) -> None:
        """Read the tables named by a DDL, and the foreign keys. Raises `MariaDBError`."""
        for database, table in names:
            self.reread(database, table)
        self.reread_cascades({f"{database}.{table}" for database, table in names})

    def reread_cascades(self, names: Set[str] | None = None) -> None:
        """Read the foreign keys after DDL of these tables, or of any. Raises `MariaDBError`.

        If a table is locked, as MariaDB's are for as long as CREATE TABLE … SELECT takes, those of before stay, and are
        not taken for those of any position: see `unread`.
        """
        before, unread = self.cascades, self.unread
        found = self._retried(self._cascades_soon)
        if found is None:
            if not unread:
                log.warning("foreign keys are read later", reason="a table is locked", hint="SHOW FULL PROCESSLIST")
            self.unread = unread | ({EVERY_TABLE} if names is None else names)
            self._cascades_at, self._unread_until = None, time.monotonic() + AGAIN_S
            return
        self.cascades, at = found
        self.unread = frozenset()
        if names is None or unread or names & before.tables or self.cascades.keys != before.keys:
            self._cascades_at = at

    def reread_unread(self) -> None:
        """Read the foreign keys if they could not be read, once that was a while ago. Raises `MariaDBError`."""
        if self.unread and time.monotonic() >= self._unread_until:
            self.reread_cascades(self.unread)

    def _cascades_soon(self, connection: Connection) -> tuple[Cascades, GtidPosition] | None:
        """The foreign keys, and a position behind which they are those; None: a table is locked."""
        try:
            found = read_cascades(connection, self.include.databases, 0 if self.unread else LOCKED_S)
        except pymysql.err.OperationalError as error:
            if not is_locked(connection, error):
                raise
            return None
        return found, end_of_log(connection)

    def has_cascades_of(self, position: GtidPosition) -> bool:
        """Whether the foreign keys are known to be those of a position that was reached."""
        return self._cascades_at is not None and position.covers(self._cascades_at)

    def is_visible(self, xid: Xid) -> bool:
        """Whether reads see an XA transaction that is committed in the log. Raises `MariaDBError`."""
        return xid not in self._retried(_prepared)

    def forget_rolled_back(self) -> None:
        """Do not wait for transactions of MySQL that were under way and then rolled back. Raises `MariaDBError`."""
        self.catalog.forget_rolled_back(self._retried(end_of_log))

    def settle(self, position: GtidPosition) -> dict[str, bool]:
        """As `Catalog.settle`, with tables that were locked. Raises `MariaDBError`."""
        self._reread_locked()
        return self.catalog.settle(position, lambda: self._retried(_prepared))

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._settings)
        return self._connection

    def _retried(self, ask: Callable[[Connection], T]) -> T:
        """Run ``ask``; if the session is lost, open a new one and run it once more."""
        try:
            with translated(self._settings):
                return ask(self._connect())
        except MariaDBUnreachable:
            self.close()
            with translated(self._settings):
                return ask(self._connect())

    def close(self) -> None:
        """End the session. The next request opens a new one."""
        if self._connection is not None:
            self._connection._force_close()
            self._connection = None


def _prepared(connection: Connection) -> frozenset[Xid]:
    """The XA transactions that are prepared, or whose commit reads can't see yet.

    MySQL's positions of reads have an XA COMMIT only once it is visible, so none is waited for there.
    """
    if is_mysql(connection):
        return frozenset()
    with connection.cursor() as cursor:
        cursor.execute("XA RECOVER")
        rows = cursor.fetchall()
    return frozenset((int(form), bytes(data[: int(size)]), bytes(data[int(size) :])) for form, size, _, data in rows)
