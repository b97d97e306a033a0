"""The tables of a live server, for the binlog reader: read once, and again after DDL or an unexpected table map."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stream.sources.mariadb.charsets import Charsets, read_charsets
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBUnreachable,
    connect,
    fetch_all,
    translated,
)
from stream.sources.mariadb.schema import (
    Cascades,
    TableFilter,
    TableInfo,
    missing_table,
    read_cascades,
    read_table,
    read_tables,
)
from stream.wire.events import DescribeTable

T = TypeVar("T")


class LiveSchema:
    """Schema of the included tables, by ``db.table``.

    The schema may be later than the event being decoded. That is safe: the DDL is still to come in the log and voids
    what was published before it, and a table map that doesn't match is published as a void.
    """

    def __init__(self, settings: ConnectionSettings, include: TableFilter) -> None:
        self._settings = settings
        self.include = include
        self._connection: Connection | None = None
        self._tables: dict[str, TableInfo] = {}
        self.charsets: Charsets = Charsets({}, {})
        self.cascades = Cascades({}, {})
        self.lower_case_names = False

    def load(self) -> None:
        """Read everything from the server. Raises `MariaDBError`."""
        connection = self._connect()
        with translated(self._settings):
            self.charsets = read_charsets(connection)
            self._tables = read_tables(connection, self.charsets, self.include)
            self.cascades = read_cascades(connection)
            ((mode,),) = fetch_all(connection, "SELECT @@lower_case_table_names")
            self.lower_case_names = int(mode) != 0

    def describe_all(self) -> list[DescribeTable]:
        """A description of each included table, in the order of their names."""
        return [self._tables[name].describe() for name in sorted(self._tables)]

    def get(self, name: str) -> TableInfo | None:
        """The known schema of a table, or None."""
        return self._tables.get(name)

    def reread(self, database: str, table: str) -> TableInfo | None:
        """Read a table again; None if it doesn't exist. Raises `MariaDBError`."""
        name, prefixes = f"{database}.{table}", self.include.prefixes
        found = self._retried(lambda connection: read_table(connection, self.charsets, database, table, prefixes))
        if found is None:
            self._tables.pop(name, None)
        else:
            self._tables[name] = found
        return found

    def after_ddl(self, names: list[tuple[str, str]]) -> list[DescribeTable]:
        """Read the tables named by a DDL and the foreign keys again. Returns the new descriptions."""
        found = []
        for database, table in names:
            info = self.reread(database, table)
            found.append(info.describe() if info else missing_table(f"{database}.{table}"))
        self.cascades = self._retried(read_cascades)
        return found

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
