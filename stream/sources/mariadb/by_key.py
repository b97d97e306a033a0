"""Rows by primary key within a snapshot that a session is in: one statement for many keys of a table.

Each key is answered as a statement of its own would answer it. So the condition is an OR of what those statements would
ask, and not ``IN``: a list is compared by what fits all of its items, so that one odd text changes how the others match
(a letter that a latin1 column cannot hold makes ``'abc'`` find ``'ABC'``). A row belongs to the request that spells the
key as the row does. Who is left may have found one of those rows too (``'abc '`` finds ``'Abc'``), and only the server
knows which: a second statement asks for each of them apart.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pymysql

from stream.sources.mariadb.connection import (
    LOST_CONNECTION,
    Connection,
    ConnectionSettings,
    MariaDBError,
    translate,
)
from stream.sources.mariadb.schema import TableInfo
from stream.sources.mariadb.selected_rows import canonical_key, canonical_row, quoted, select_columns_sql
from stream.wire.keys import KeyFormatError, row_key
from stream.wire.values import UndecodableValue

STATEMENT_KEYS_MAX: Final = 100
"""Keys in one statement: each row is held against each key, and beyond 200 ranges the server estimates worse."""

_ONE_SPELLING: Final = frozenset({"int", "bit", "binary"})
"""Kinds of which a canonical value that is not the row's own never finds it, if the column is exact."""

SCHEMA_CHANGED: Final = frozenset({1054, 1146, 1412})
"""No such column, no such table, altered since the snapshot."""

Key: TypeAlias = Sequence[object]
"""Canonical values of the key columns, in key order."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row as it is stored: ``key`` is the row's own canonical key, which may be spelt otherwise than asked for."""

    key: bytes
    image: bytes


Found: TypeAlias = SourceRow | MariaDBError | UndecodableValue | None
"""What a key found: a row, nothing, or why that cannot be said of this key."""


def rows_by_key(session: Connection, settings: ConnectionSettings, info: TableInfo, keys: Sequence[Key]) -> list[Found]:
    """What each of ``keys`` finds, in their order. ``info`` has a primary key.

    Raises PyMySQL's errors that concern all of them: a lost connection, a changed schema.
    """
    reading = _Reading(session, settings, info)
    found: list[Found] = []
    for at in range(0, len(keys), STATEMENT_KEYS_MAX):
        found += reading.together(keys[at : at + STATEMENT_KEYS_MAX])
    return found


class _Reading:
    """Statements over one table."""

    def __init__(self, session: Connection, settings: ConnectionSettings, info: TableInfo) -> None:
        self._session = session
        self._settings = settings
        self._info = info
        # PyMySQL puts the values in with %, which names may hold too.
        columns = select_columns_sql(info).replace("%", "%%")
        table = f"{quoted(info.database)}.{quoted(info.table)}".replace("%", "%%")
        self._select = f"SELECT {columns} FROM {table}"
        self._numbered = f"SELECT %d, {columns} FROM {table}".replace("%%", "%%%%")
        self._is_key = f"({' AND '.join(quoted(name).replace('%', '%%') + ' = %s' for name in info.primary_key)})"
        kinds = [info.columns[index] for index in info.key_indexes]
        self._one_spelling = all(column.exact and column.kind in _ONE_SPELLING for column in kinds)

    def together(self, keys: Sequence[Key]) -> list[Found]:
        """What each finds: one statement, and one more if somebody may spell a key otherwise than its row does."""
        if len(keys) == 1:
            return [self.alone(keys[0])]
        condition = " OR ".join([self._is_key] * len(keys))
        try:
            selected = self._run(f"{self._select} WHERE {condition}", keys)
        except pymysql.err.MySQLError as error:
            return self._one_by_one(keys, error)
        rows: dict[bytes, Sequence[bytes | None]] = {}
        for values in selected:
            with suppress(UndecodableValue):
                rows[canonical_key(self._info, values)] = values
        found: list[Found] = []
        left: list[int] = []
        for place, key in enumerate(keys):
            values_of_key = rows.get(self._name(key))
            if values_of_key is None:
                left.append(place)
            found.append(self._row(values_of_key) if values_of_key is not None else None)
        if left and selected and not self._one_spelling:
            for place, each in zip(left, self._apart([keys[place] for place in left]), strict=True):
                found[place] = each
        return found

    def _apart(self, keys: Sequence[Key]) -> list[Found]:
        """A SELECT for each key, in one statement."""
        if len(keys) == 1:
            return [self.alone(keys[0])]
        parts = [f"({self._numbered % place} WHERE {self._is_key})" for place in range(len(keys))]
        try:
            selected = self._run(" UNION ALL ".join(parts), keys)
        except pymysql.err.MySQLError as error:
            return self._one_by_one(keys, error)
        found: list[Found] = [None] * len(keys)
        for number, *values in selected:
            found[int(number or 0)] = self._row(values)
        return found

    def _one_by_one(self, keys: Sequence[Key], error: pymysql.err.MySQLError) -> list[Found]:
        """After an ``error`` that may be about one of them."""
        if is_lost(error) or code_of(error) in SCHEMA_CHANGED:
            raise error
        return [self.alone(key) for key in keys]

    def alone(self, key: Key) -> Found:
        """What a statement of its own finds, or its error."""
        try:
            selected = self._run(f"{self._select} WHERE {self._is_key}", [key])
        except pymysql.err.MySQLError as error:
            if is_lost(error) or code_of(error) in SCHEMA_CHANGED:
                raise
            return translate(error, self._settings)
        return self._row(selected[0]) if selected else None

    def _run(self, sql: str, keys: Sequence[Key]) -> Sequence[Sequence[bytes | None]]:
        arguments = [_sql_value(value) for key in keys for value in key]
        with self._session.cursor() as cursor:
            cursor.execute(sql, arguments)
            selected: Sequence[Sequence[bytes | None]] = cursor.fetchall()
            return selected

    def _name(self, key: Key) -> bytes:
        try:
            return row_key(self._info.name, key)
        except KeyFormatError:
            return b""

    def _row(self, values: Sequence[bytes | None]) -> SourceRow | UndecodableValue:
        try:
            return SourceRow(canonical_key(self._info, values), canonical_row(self._info, values))
        except UndecodableValue as error:
            return error


def code_of(error: pymysql.err.MySQLError) -> object:
    """The server's or client's number for an error, 0 if it has none."""
    return error.args[0] if error.args else 0


def is_lost(error: pymysql.err.MySQLError) -> bool:
    """Whether the connection is gone, and with it whatever it was asked."""
    return code_of(error) in LOST_CONNECTION or isinstance(error, pymysql.err.InterfaceError)


def _sql_value(value: Any) -> object:
    """A canonical key value as a statement's argument."""
    if isinstance(value, dict):
        return b64decode(value["base64"])
    return value
