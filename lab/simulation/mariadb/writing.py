"""INSERT, REPLACE, UPDATE and DELETE: the rows that they leave, what foreign keys do, and what they log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from pymysql.constants import ER

from lab.simulation.mariadb.log import events
from lab.simulation.mariadb.sql.definitions import ForeignKey
from lab.simulation.mariadb.sql.parsing import Delete, Insert, Update, conditions
from lab.simulation.mariadb.sql.syntax import Call, ColumnName, Expression, Literal, Value
from lab.simulation.mariadb.storage.columns import Column, Stored
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.storage.expressions import Scope, Surroundings, check_texts, row_scope, unknown_column
from lab.simulation.mariadb.storage.tables import Key, Row, Table
from lab.simulation.mariadb.transactions import Locks, Steps, Transaction

if TYPE_CHECKING:
    from lab.simulation.mariadb.storage.tables import Databases

LATEST: Final = 1 << 62
"""A commit after all others: writes see the present rows."""


class Writing:
    """One statement that writes one table. ``until``: how long it may wait for rows. ``zone``: the session's."""

    def __init__(
        self,
        databases: Databases,
        locks: Locks,
        transaction: Transaction,
        session: Surroundings,
        until: float,
        zone: timedelta,
        *,
        strict: bool,
    ) -> None:
        self._databases = databases
        self._locks = locks
        self._transaction = transaction
        self._session = session
        self._until = until
        self._zone = zone
        self._strict = strict
        self._changes: list[tuple[Row | None, Row | None]] = []

    # -- statements ----------------------------------------------------------------------------------------------------

    def insert(self, table: Table, statement: Insert) -> Steps[int]:
        """Returns the number of affected rows, as MariaDB counts them."""
        affected = 0
        names = statement.columns or tuple(column.name for column in table.columns)
        for values in statement.rows:
            if len(values) != len(names):
                raise ServerError(
                    ER.WRONG_VALUE_COUNT_ON_ROW, "Column count doesn't match value count at row 1", "21S01"
                )
            row = self._new_row(table, dict(zip(names, values, strict=True)))
            key = table.key_of(row)
            yield from self._take(table, key)
            old = self._transaction.row(table, key, LATEST)
            if old is None:
                yield from self._change(table, None, row)
                affected += 1
            elif statement.replaces:
                affected += yield from self._replace(table, old, row)
            elif statement.updates:
                new = row_scope(self._session, table, row)
                shown = {column.name.lower(): new.value(ColumnName(column.name)) for column in table.columns}
                affected += 2 * (yield from self._update_row(table, old, statement.updates, shown))
            else:
                shown_key = "-".join(_text(row[at]) for at in table.key_indexes)
                raise ServerError(ER.DUP_ENTRY, f"Duplicate entry '{shown_key}' for key 'PRIMARY'", "23000")
        return affected

    def _replace(self, table: Table, old: Row, row: Row) -> Steps[int]:
        if self._databases.children(table.name):
            yield from self._change(table, old, None)
            yield from self._change(table, None, row)
            return 2
        if old == row:
            return 1
        yield from self._change(table, old, row)
        return 2

    def update(self, table: Table, statement: Update) -> Steps[int]:
        """Returns the number of rows that changed."""
        affected = 0
        for row in (yield from self._matching(table, statement.where)):
            affected += yield from self._update_row(table, row, statement.changes, {})
        return affected

    def delete(self, table: Table, statement: Delete) -> Steps[int]:
        """Returns the number of rows that are deleted."""
        rows = yield from self._matching(table, statement.where)
        for row in rows:
            yield from self._change(table, row, None)
        return len(rows)

    def log(self, table: Table, timestamp: int, server: int, *, deletes: bool, updates: bool) -> None:
        """Add the statement's events to the transaction: the tables that it may change, then its rows."""
        if not self._changes:
            return
        named = [table]
        self._add_children(named, table, deletes=deletes, updates=updates)
        log = self._transaction.log
        log += [events.table_map(timestamp, server, each) for each in named]
        runs: list[list[tuple[Row | None, Row | None]]] = []
        for change in self._changes:
            if runs and _kind(runs[-1][0]) == _kind(change):
                runs[-1].append(change)
            else:
                runs.append([change])
        log += [events.rows(timestamp, server, table, run, ends=run is runs[-1]) for run in runs]

    def _add_children(self, named: list[Table], parent: Table, *, deletes: bool, updates: bool) -> None:
        for child, key in self._databases.children(parent.name):
            changes = (deletes and _changes_child(key.on_delete)) or (updates and _changes_child(key.on_update))
            if changes and child not in named:
                named.append(child)
                self._add_children(named, child, deletes=deletes, updates=updates)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _matching(self, table: Table, where: Expression | None) -> Steps[list[Row]]:
        """The present rows that a condition chooses, locked."""
        check_texts(table, where)
        found = []
        bound = bound_key(table, where)
        for key in [bound] if bound is not None else self._transaction.keys(table):
            row = self._transaction.row(table, key, LATEST)
            if bound is None and (row is None or not row_scope(self._session, table, row).is_true(where)):
                continue
            yield from self._take(table, key)
            row = self._transaction.row(table, key, LATEST)
            if row is not None and row_scope(self._session, table, row).is_true(where):
                found.append(row)
        return found

    def _take(self, table: Table, key: Key) -> Steps[None]:
        yield from self._locks.take_row(self._transaction, table, key, self._until)

    def _key_now(self, table: Table, row: Row) -> Key:
        """The key that a row is kept under."""
        if table.primary_key:
            return table.key_of(row)
        return next(key for key in self._transaction.keys(table) if self._transaction.row(table, key, LATEST) == row)

    def _new_row(self, table: Table, values: Mapping[str, Expression]) -> Row:
        given: dict[int, Value] = {}
        scope = Scope(self._session, {}, table)
        for name, expression in values.items():
            at = table.index(name)
            if at < 0:
                raise unknown_column(name, "INSERT INTO")
            if expression != Call("default", ()):
                given[at] = scope.value(expression)
        row: list[Stored] = []
        for at, column in enumerate(table.columns):
            default = column.definition.default
            if at in given:
                row.append(self._store(column, given[at]))
            elif default is not None:
                row.append(self._store(column, scope.value(default)))
            elif column.definition.generated is not None or column.definition.nullable:
                row.append(None)
            elif not self._strict:
                row.append(self._store(column, column.zero))
            else:
                raise ServerError(ER.NO_DEFAULT_FOR_FIELD, f"Field '{column.name}' doesn't have a default value")
        return self._completed(table, row)

    def _store(self, column: Column, value: Value) -> Stored:
        found = column.store(value, strict=self._strict)
        return found - self._zone if column.kind == "timestamp" and isinstance(found, datetime) else found

    def _completed(self, table: Table, row: Sequence[Stored]) -> Row:
        """The row with its generated columns."""
        found = list(row)
        for at, column in enumerate(table.columns):
            if column.definition.generated is not None:
                value = row_scope(self._session, table, tuple(found)).value(column.definition.generated)
                found[at] = column.store(value, strict=self._strict)
        return tuple(found)

    def _update_row(
        self, table: Table, old: Row, changes: Sequence[tuple[str, Expression]], new: Mapping[str, Stored]
    ) -> Steps[int]:
        """Returns 1 if the row changed, else 0."""
        values = list(old)
        for name, expression in changes:
            at = table.index(name)
            if at < 0:
                raise unknown_column(name, "SET")
            values[at] = self._store(
                table.columns[at], row_scope(self._session, table, tuple(values), new).value(expression)
            )
        row = self._completed(table, values)
        if row == old:
            return 0
        key = table.key_of(row) if table.primary_key else ()
        if table.primary_key and key != table.key_of(old):
            yield from self._take(table, key)
            if self._transaction.row(table, key, LATEST) is not None:
                shown_key = "-".join(_text(row[at]) for at in table.key_indexes)
                raise ServerError(ER.DUP_ENTRY, f"Duplicate entry '{shown_key}' for key 'PRIMARY'", "23000")
        yield from self._change(table, old, row)
        return 1

    def _change(self, table: Table, old: Row | None, new: Row | None) -> Steps[None]:
        """One logged change, and what foreign keys make of it."""
        if new is not None:
            for key in table.foreign_keys:
                yield from self._check_parent(table, key, new)
        self._changes.append((old, new))
        self._put(table, old, new)
        if old is not None:
            yield from self._cascade(table, old, new)

    def _put(self, table: Table, old: Row | None, new: Row | None) -> None:
        writes = self._transaction.writes
        at = self._key_now(table, old) if old is not None else None
        if at is not None:
            writes[table, at] = None
        if new is not None:
            writes[table, at if at is not None and not table.primary_key else table.key_of(new)] = new

    # -- foreign keys --------------------------------------------------------------------------------------------------

    def _check_parent(self, table: Table, key: ForeignKey, row: Row) -> Steps[None]:
        values = [row[table.index(name)] for name in key.columns]
        parent = self._databases.find(key.parent)
        if None in values or parent is None:
            return
        wanted = tuple(
            parent.columns[parent.index(n)].equal(v) for n, v in zip(key.parent_columns, values, strict=True)
        )
        yield from self._take(parent, wanted)
        if self._transaction.row(parent, wanted, LATEST) is None:
            raise ServerError(
                ER.NO_REFERENCED_ROW_2,
                "Cannot add or update a child row: a foreign key constraint fails"
                f" (`{table.name[0]}`.`{table.name[1]}`, {table.constraint(key)})",
                "23000",
            )

    def _cascade(self, parent: Table, old: Row, new: Row | None) -> Steps[None]:
        for child, key in self._databases.children(parent.name):
            before = [old[parent.index(name)] for name in key.parent_columns]
            after = None if new is None else [new[parent.index(name)] for name in key.parent_columns]
            if before != after:
                yield from self._change_children(child, key, before, after)

    def _change_children(
        self, child: Table, key: ForeignKey, before: list[Stored], after: list[Stored] | None
    ) -> Steps[None]:
        wanted = [
            (ColumnName(name), Literal(cast("Value", value))) for name, value in zip(key.columns, before, strict=True)
        ]
        where = Call("and", tuple(Call("=", pair) for pair in wanted))
        rule = key.on_delete if after is None else key.on_update
        for row in (yield from self._matching(child, where)):
            if rule in ("RESTRICT", "NO ACTION"):
                raise ServerError(
                    ER.ROW_IS_REFERENCED_2,
                    "Cannot delete or update a parent row: a foreign key constraint fails"
                    f" (`{child.name[0]}`.`{child.name[1]}`, {child.constraint(key)})",
                    "23000",
                )
            changed = None
            if rule == "SET NULL" or after is not None:
                values = list(row)
                for at, name in enumerate(key.columns):
                    values[child.index(name)] = None if rule == "SET NULL" or after is None else after[at]
                changed = self._completed(child, values)
            self._put(child, row, changed)
            yield from self._cascade(child, row, changed)


def _changes_child(rule: str) -> bool:
    return rule not in ("RESTRICT", "NO ACTION")


def _kind(change: tuple[Row | None, Row | None]) -> tuple[bool, bool]:
    return change[0] is None, change[1] is None


def _text(value: Stored) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def bound_key(table: Table, where: Expression | None) -> Key | None:
    """The only key that rows can have for which ``where`` holds; None if it does not say so by itself."""
    bound: dict[str, object] = {}
    for condition in conditions(where):
        match condition:
            case Call("=", (ColumnName(name), Literal(value))):
                at = table.index(name)
                if at >= 0 and isinstance(value, _PLAIN.get(table.columns[at].kind, ())):
                    bound[name.lower()] = table.columns[at].equal(value)
    names = [name.lower() for name in table.primary_key]
    return tuple(bound[name] for name in names) if names and all(name in bound for name in names) else None


_PLAIN: Final[dict[str, type]] = dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int) | {"varchar": str}
"""Kinds whose literals are what is stored."""
