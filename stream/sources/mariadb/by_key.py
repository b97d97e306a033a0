"""Read rows by primary key within a session's open snapshot: one statement for many keys of a table.

Each key gets the answer that a statement of its own would give. So the condition is an OR of single comparisons and not
``IN``: all items of an ``IN`` list are compared in a common type, so one unusual text changes how the others match (a
letter that a latin1 column cannot hold makes ``'abc'`` find ``'ABC'``). A row answers the request that spells the key
exactly as the row does. A request without such a row may still have matched one (``'abc '`` finds ``'Abc'``). Only the
server knows which, so a second statement has a separate SELECT for each of those keys.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import pymysql
from pymysql.cursors import SSCursor

from stream.interpreter import at_work_on
from stream.sources.mariadb.connection import (
    LOST_CONNECTION,
    Connection,
    ConnectionSettings,
    MariaDBError,
    is_mysql,
    translate,
)
from stream.sources.mariadb.schema import TableInfo
from stream.sources.mariadb.selected_rows import canonical_key, canonical_row, quoted, select_columns_sql
from stream.wire.keys import KeyFormatError, row_key
from stream.wire.values import UndecodableValue

STATEMENT_KEYS_MAX: Final = 100
"""Keys in one statement. Each row is compared with each key, and above 200 ranges the server estimates badly."""

_ONE_SPELLING: Final = frozenset({"int", "bit", "binary"})
"""Kinds in which, for an exact column, only the row's own canonical value finds the row."""

SCHEMA_CHANGED: Final = frozenset({1054, 1146, 1412})
"""Error numbers: no such column, no such table, table altered since the snapshot."""

IMPOSSIBLE: Final = frozenset({1267, 1270, 1271, 1525, 3854})
"""Error numbers: a text has a character that the column's character set lacks, or to MySQL is no date."""

TIMED_OUT: Final = frozenset({1205, 1969, 3024})
"""Error numbers: a lock was not granted in time, a statement took longer than ``max_statement_time``."""

Key: TypeAlias = Sequence[object]
"""Canonical values of the key columns, in key order."""


class KeyNotPossible(MariaDBError):
    """No row of the table can have the key. Code ``bad_key``."""

    code = "bad_key"


@dataclass(frozen=True, slots=True)
class SelectedRow:
    """A row as it is stored. ``key``: the row's own canonical key, whose spelling may differ from the requested one."""

    key: bytes
    image: bytes


Found: TypeAlias = SelectedRow | MariaDBError | UndecodableValue | None
"""The result for a key: a row, None for no row, or an error that concerns this key only."""


def rows_by_key(
    session: Connection, settings: ConnectionSettings, info: TableInfo, keys: Sequence[Key], deadline: float
) -> list[Found]:
    """The results for ``keys``, in their order. ``info`` must have a primary key. ``deadline``: `time.monotonic`.

    Raises those PyMySQL errors that concern all keys: a lost connection, a changed schema, a timeout.
    """
    reader = _TableReader(session, settings, info, deadline)
    found: list[Found] = []
    for at in range(0, len(keys), STATEMENT_KEYS_MAX):
        found += reader.read_many(keys[at : at + STATEMENT_KEYS_MAX])
    return found


class _TableReader:
    """Reads rows of one table."""

    def __init__(self, session: Connection, settings: ConnectionSettings, info: TableInfo, deadline: float) -> None:
        self._session = session
        self._settings = settings
        self._deadline = deadline
        self._info = info
        # PyMySQL formats statements with %, so a % in a name must be doubled.
        columns = select_columns_sql(info).replace("%", "%%")
        table = f"{quoted(info.database)}.{quoted(info.table)}".replace("%", "%%")
        self._select = f"SELECT {columns} FROM {table}"
        self._numbered_select = f"SELECT %d, {columns} FROM {table}".replace("%%", "%%%%")
        self._key_condition = (
            f"({' AND '.join(quoted(name).replace('%', '%%') + ' = %s' for name in info.primary_key)})"
        )
        kinds = [info.columns[index] for index in info.key_indexes]
        self._has_one_spelling = all(column.exact and column.kind in _ONE_SPELLING for column in kinds)

    def read_many(self, keys: Sequence[Key]) -> list[Found]:
        """Read with one statement, plus a second one for keys that may be spelt differently from their rows."""
        if len(keys) == 1:
            return [self.read_one(keys[0])]
        condition = " OR ".join([self._key_condition] * len(keys))
        try:
            selected = self._run(f"{self._select} WHERE {condition}", keys)
        except pymysql.err.MySQLError as error:
            return self._read_one_by_one(keys, error)
        rows: dict[bytes, Sequence[bytes | None]] = {}
        found: list[Found] = []
        left: list[int] = []
        for values in at_work_on(selected):
            with suppress(UndecodableValue):
                rows[canonical_key(self._info, values)] = values
        for place, key in at_work_on(enumerate(keys)):
            values_of_key = rows.get(self._requested_key(key))
            if values_of_key is None:
                left.append(place)
            found.append(self._row(values_of_key) if values_of_key is not None else None)
        if left and selected and not self._has_one_spelling:
            for place, each in zip(left, self._read_separately([keys[place] for place in left]), strict=True):
                found[place] = each
        return found

    def _read_separately(self, keys: Sequence[Key]) -> list[Found]:
        """Read with one statement that has a separate SELECT for each key."""
        if len(keys) == 1:
            return [self.read_one(keys[0])]
        parts = [f"({self._numbered_select % place} WHERE {self._key_condition})" for place in range(len(keys))]
        try:
            selected = self._run(" UNION ALL ".join(parts), keys)
        except pymysql.err.MySQLError as error:
            return self._read_one_by_one(keys, error)
        found: list[Found] = [None] * len(keys)
        for number, *values in selected:
            found[int(number or 0)] = self._row(values)
        return found

    def _read_one_by_one(self, keys: Sequence[Key], error: pymysql.err.MySQLError) -> list[Found]:
        """Read each key with its own statement, after an ``error`` that may concern only one of them."""
        if _concerns_all_keys(error):
            raise error
        return [self.read_one(key) for key in keys]

    def read_one(self, key: Key) -> Found:
        """Read one key. Returns the row or the error."""
        try:
            selected = self._run(f"{self._select} WHERE {self._key_condition}", [key])
        except pymysql.err.MySQLError as error:
            if _concerns_all_keys(error):
                raise
            if code_of(error) in IMPOSSIBLE:
                return KeyNotPossible(
                    f"{self._info.name} can have no key {list(key)}: no column of its type or character set holds it"
                )
            return translate(error, self._settings)
        return self._row(selected[0]) if selected else None

    def _run(self, sql: str, keys: Sequence[Key]) -> Sequence[Sequence[bytes | None]]:
        arguments = [sql_value(value) for key in keys for value in key]
        with self._session.cursor(SSCursor) as cursor:
            cursor.execute(timed(self._session, sql, self._deadline), arguments)
            fetched = cast("Iterator[Sequence[bytes | None]]", cursor.fetchall_unbuffered())
            return list(at_work_on(fetched) if len(keys) > 1 else fetched)

    def _requested_key(self, key: Key) -> bytes:
        try:
            return row_key(self._info.name, key)
        except KeyFormatError:
            return b""

    def _row(self, values: Sequence[bytes | None]) -> SelectedRow | UndecodableValue:
        try:
            return SelectedRow(canonical_key(self._info, values), canonical_row(self._info, values))
        except UndecodableValue as error:
            return error


def timed(session: Connection, sql: str, deadline: float) -> str:
    """``sql`` with the time until ``deadline`` as its limit. The limit covers waiting for a lock on the table too."""
    if is_mysql(session):
        limit_ms = max(round((deadline - time.monotonic()) * 1000), 1)
        return sql.replace("SELECT", f"SELECT /*+ MAX_EXECUTION_TIME({limit_ms}) */", 1)
    return f"SET STATEMENT max_statement_time={max(deadline - time.monotonic(), 0.001):.3f} FOR {sql}"


def _concerns_all_keys(error: pymysql.err.MySQLError) -> bool:
    return is_connection_lost(error) or code_of(error) in SCHEMA_CHANGED | TIMED_OUT


def code_of(error: pymysql.err.MySQLError) -> object:
    """The server's or client's error number; 0 if there is none."""
    return error.args[0] if error.args else 0


def is_connection_lost(error: pymysql.err.MySQLError) -> bool:
    """Whether the connection is lost."""
    return code_of(error) in LOST_CONNECTION or isinstance(error, pymysql.err.InterfaceError)


def sql_value(value: Any) -> object:
    """A canonical key value as an argument of a statement."""
    if isinstance(value, dict):
        return b64decode(value["base64"])
    return value
