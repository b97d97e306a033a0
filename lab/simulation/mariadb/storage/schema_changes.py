"""CREATE, ALTER, RENAME, TRUNCATE and DROP, applied to the databases. They take effect at one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from pymysql.constants import ER

from lab.simulation.mariadb.sql.definitions import (
    Alteration,
    AlterTable,
    ChangeDatabase,
    CreateTable,
    DropTables,
    RenameTables,
    SchemaChange,
    TruncateTable,
)
from lab.simulation.mariadb.sql.syntax import Literal, Name
from lab.simulation.mariadb.storage.columns import Column, Stored, column_of
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.storage.tables import Databases, Row, Table, table_of


def resolved(name: Name, database: str) -> Name:
    """``name`` with its database. Raises `ServerError` 1046."""
    if not name[0] and not database:
        raise ServerError(ER.NO_DB_ERROR, "No database selected", "3D000")
    return name if name[0] else (database, name[1])


def names_of(change: SchemaChange, database: str, databases: Databases) -> list[Name]:
    """The tables that a change must have for itself."""
    match change:
        case CreateTable(table=table) | TruncateTable(table):
            return [resolved(table, database)]
        case AlterTable(table, changes):
            moved = [each.new_table for each in changes if each.kind == "RENAME"]
            return [resolved(each, database) for each in (table, *moved)]
        case RenameTables(pairs):
            return [resolved(each, database) for pair in pairs for each in pair]
        case DropTables(tables):
            return [resolved(each, database) for each in tables]
        case ChangeDatabase(name):
            return [(name, table) for table in databases.tables.get(name, {})]


def apply(change: SchemaChange, database: str, databases: Databases, commit: int) -> bool:
    """Make the change at ``commit``. Returns whether there was anything to do; it is logged in any case.

    Raises `ServerError`, and changes nothing then.
    """
    match change:
        case CreateTable():
            return _create(change, resolved(change.table, database), databases, commit)
        case AlterTable():
            _alter(change, resolved(change.table, database), database, databases, commit)
        case RenameTables(pairs):
            _rename([(resolved(old, database), resolved(new, database)) for old, new in pairs], databases)
        case TruncateTable(table):
            old = _existing(resolved(table, database), databases)
            databases.put(_emptied(old, commit))
        case DropTables(tables, if_exists):
            _drop([resolved(each, database) for each in tables], databases, if_exists=if_exists)
        case ChangeDatabase(name, creates, careful):
            _change_database(name, databases, creates=creates, careful=careful)
    return True


def _existing(name: Name, databases: Databases) -> Table:
    table = databases.find(name)
    if table is None:
        raise no_such_table(name)
    return table


def no_such_table(name: Name) -> ServerError:
    """Error 1146."""
    return ServerError(ER.NO_SUCH_TABLE, f"Table '{name[0]}.{name[1]}' doesn't exist", "42S02")


def _create(change: CreateTable, name: Name, databases: Databases, commit: int) -> bool:
    if name[0] not in databases.tables:
        raise ServerError(ER.BAD_DB_ERROR, f"Unknown database '{name[0]}'", "42000")
    if databases.find(name) is not None:
        if change.if_not_exists:
            return False
        raise ServerError(ER.TABLE_EXISTS_ERROR, f"Table '{name[1]}' already exists", "42S01")
    table = table_of(change, name, commit)
    table.foreign_keys = tuple(replace(key, parent=resolved(key.parent, name[0])) for key in change.foreign_keys)
    databases.put(table)
    return True


def _emptied(old: Table, commit: int) -> Table:
    return replace(old, since=commit, id=0, versions={}, row_ids=count(1))


def _alter(change: AlterTable, name: Name, database: str, databases: Databases, commit: int) -> None:
    table = _existing(name, databases)
    keys = [each.key for each in change.changes if each.kind == "KEY"]
    if keys:  # a key that is dropped and one that is added are one change: rows are counted by the last one alone
        table = _rekeyed(table, keys[-1], commit)
        databases.put(table)
    for each in change.changes:
        if each.kind == "KEY":
            continue
        if each.kind == "RENAME":
            _rename([(table.name, resolved(each.new_table, database))], databases)
        else:
            table = _altered(table, each, commit)
            databases.put(table)


def _altered(old: Table, change: Alteration, commit: int) -> Table:
    """A copy of the table with other columns. MODIFY writes every row anew, which then begin with ``commit``."""
    columns = list(old.columns)
    at = old.index(change.name)
    if change.kind == "ADD" and at >= 0:
        raise ServerError(ER.DUP_FIELDNAME, f"Duplicate column name '{change.name}'", "42S21")
    if change.kind == "DROP" and at < 0:
        raise ServerError(
            ER.CANT_DROP_FIELD_OR_KEY, f"Can't DROP COLUMN `{change.name}`; check that it exists", "42000"
        )
    if change.kind == "MODIFY" and at < 0:
        raise ServerError(ER.BAD_FIELD_ERROR, f"Unknown column '{change.name}' in '{old.name[1]}'", "42S22")
    if at >= 0:
        del columns[at]
    made: Column | None = None
    if change.column is not None:
        made = column_of(change.column, old.charset)
        columns.insert(0 if change.first else at if at >= 0 else len(columns), made)
    is_copied = change.kind == "MODIFY"
    since = commit if is_copied else old.since
    table = replace(old, columns=tuple(columns), since=since, id=0, versions={})
    for key, versions in old.versions.items():
        for at, row in [(commit, versions[-1][1])] if is_copied else versions:
            table.put(key, at, None if row is None else _moved(old, row, table.columns, made))
    return table


def _rekeyed(old: Table, key: tuple[str, ...], commit: int) -> Table:
    """A copy of the table with another primary key, or with none. It has the rows of now, from ``commit`` on."""
    missing = next((name for name in key if old.index(name) < 0), None)
    if missing is not None:
        raise ServerError(ER.KEY_COLUMN_DOES_NOT_EXITS, f"Key column '{missing}' doesn't exist in table", "42000")
    columns = tuple(
        replace(each, definition=replace(each.definition, nullable=False)) if each.name in key else each
        for each in old.columns
    )
    table = replace(
        old, columns=columns, primary_key=key, since=commit, id=0, versions={}, row_ids=count(1), descending=frozenset()
    )
    for row in [versions[-1][1] for versions in old.versions.values()]:
        if row is not None:
            at = table.key_of(row)
            if at in table.versions:
                shown = "-".join(str(row[place]) for place in table.key_indexes)
                raise ServerError(ER.DUP_ENTRY, f"Duplicate entry '{shown}' for key 'PRIMARY'", "23000")
            table.put(at, commit, row)
    return table


def _moved(old: Table, row: Row, columns: Sequence[Column], made: Column | None) -> Row:
    values: list[Stored] = []
    for column in columns:
        at = old.index(column.name)
        value = row[at] if at >= 0 else None
        if column is made:
            default = column.definition.default
            if at < 0 and isinstance(default, Literal):
                value = default.value
            value = None if value is None else column.store(value, strict=False)
        values.append(value)
    return tuple(values)


def _rename(pairs: Sequence[tuple[Name, Name]], databases: Databases) -> None:
    before = {name: dict(tables) for name, tables in databases.tables.items()}
    try:
        for old, new in pairs:
            table = _existing(old, databases)
            if databases.find(new) is not None:
                raise ServerError(ER.TABLE_EXISTS_ERROR, f"Table '{new[1]}' already exists", "42S01")
            if new[0] not in databases.tables:
                raise ServerError(ER.BAD_DB_ERROR, f"Unknown database '{new[0]}'", "42000")
            del databases.tables[old[0]][old[1]]
            table.name = new
            databases.put(table)
    except ServerError:
        databases.tables = before
        for database, tables in before.items():
            for name, table in tables.items():
                table.name = (database, name)
        raise
    moved = dict(pairs)
    for table in databases:
        table.foreign_keys = tuple(replace(key, parent=moved.get(key.parent, key.parent)) for key in table.foreign_keys)


def _drop(names: Sequence[Name], databases: Databases, *, if_exists: bool) -> None:
    missing = [name for name in names if databases.find(name) is None]
    if missing and not if_exists:
        raise ServerError(ER.BAD_TABLE_ERROR, f"Unknown table '{missing[0][0]}.{missing[0][1]}'", "42S02")
    for name in names:
        databases.tables.get(name[0], {}).pop(name[1], None)


def _change_database(name: str, databases: Databases, *, creates: bool, careful: bool) -> None:
    exists = name in databases.tables
    if creates:
        if exists and not careful:
            raise ServerError(ER.DB_CREATE_EXISTS, f"Can't create database '{name}'; database exists")
        databases.tables.setdefault(name, {})
        return
    if not exists and not careful:
        raise ServerError(ER.DB_DROP_EXISTS, f"Can't drop database '{name}'; database doesn't exist")
    databases.tables.pop(name, None)
