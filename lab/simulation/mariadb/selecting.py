"""SELECT: from tables, from information_schema, and from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from pymysql.constants import ER, FIELD_TYPE

from lab.simulation.mariadb.answers import Answer, ResultColumn, kind_of, wire
from lab.simulation.mariadb.information_schema import FIXED, InfoRow, rows_of
from lab.simulation.mariadb.sql.parsing import Select, Selected, conditions, parsed
from lab.simulation.mariadb.sql.syntax import Call, ColumnName, Expression, Literal, Name
from lab.simulation.mariadb.storage.columns import Column
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.storage.expressions import (
    FUNCTIONS,
    Scope,
    Surroundings,
    check_texts,
    row_scope,
    unknown_column,
)
from lab.simulation.mariadb.storage.schema_changes import resolved
from lab.simulation.mariadb.storage.tables import Databases, Row, Table
from lab.simulation.mariadb.transacting import Transacting
from lab.simulation.mariadb.transactions import Steps
from lab.simulation.mariadb.variables import SessionVariables
from lab.simulation.mariadb.writing import LATEST, bound_key

if TYPE_CHECKING:
    from lab.simulation.mariadb.server import SimulatedServer

_COMPARISONS: Final = frozenset({"and", "or", "=", "<>", "!=", "<", ">", "<=", ">=", "in", "if"})
Found = tuple[tuple[ResultColumn, ...], list[tuple[bytes | None, ...]]]
"""Columns and rows of one SELECT."""


class Selecting:
    """The reads of a session. ``database``: the one of names without any."""

    def __init__(
        self, server: SimulatedServer, variables: SessionVariables, transacting: Transacting, database: str
    ) -> None:
        self._server = server
        self._variables = variables
        self._transacting = transacting
        self._database = database

    def select(self, selects: Sequence[Select]) -> Steps[Answer]:
        """The rows of all ``selects``. All tables are locked before the snapshot is made."""
        tables: list[Table | None] = []
        for select in selects:
            name = resolved(select.table, self._database) if select.table else None
            is_stored = name is not None and name[0].lower() != "information_schema"
            tables.append((yield from self._transacting.open(cast("Name", name))) if is_stored else None)
        columns: tuple[ResultColumn, ...] = ()
        rows: list[tuple[bytes | None, ...]] = []
        for select, table in zip(selects, tables, strict=True):
            if table is not None:
                made, found = yield from self._select_rows(select, table)
            else:
                made, found = yield from self._select_told(select)
            columns = columns or made
            rows += found
        return Answer(len(rows), columns, rows)

    def _select_rows(self, select: Select, table: Table) -> Steps[Found]:
        check_texts(table, select.where)
        if select.counts:
            number = len((yield from self._rows(select, table)))
            return (ResultColumn("COUNT(*)", FIELD_TYPE.LONGLONG, is_text=False),), [(b"%d" % number,)]
        chosen = select.columns or tuple(Selected(ColumnName(c.name), c.name) for c in table.columns)
        columns = [_column_of(each.expression, table) for each in chosen]
        for each in chosen:
            if isinstance(each.expression, ColumnName) and table.index(each.expression.name) < 0:
                raise unknown_column(each.expression.name, "SELECT")
        found: list[tuple[bytes | None, ...]] = []
        for row in (yield from self._rows(select, table)):
            scope = row_scope(self._variables, table, row)
            values = (scope.value(each.expression) for each in chosen)
            found.append(
                tuple(
                    wire(value) if column is None else column.select(value, self._variables.zone)
                    for value, column in zip(values, columns, strict=True)
                )
            )
        made = tuple(
            ResultColumn(each.label, FIELD_TYPE.VAR_STRING, is_text=True)
            if column is None
            else ResultColumn(column.name, column.result_type, is_text=bool(column.charset))
            for each, column in zip(chosen, columns, strict=True)
        )
        return made, found

    def _rows(self, select: Select, table: Table) -> Steps[list[Row]]:
        if select.some is not None:
            return _ordered(select, table, (yield from self._rows(select.some, table)))
        if any(condition == Literal(0) for condition in conditions(select.where)):
            return []
        transaction = self._transacting.begun()
        if not select.locks:
            if transaction.snapshot is None or self._variables.variable("", "tx_isolation") == "READ-COMMITTED":
                transaction.snapshot = self._server.committed
            if table.since > transaction.snapshot:
                raise ServerError(ER.TABLE_DEF_CHANGED, "Table definition has changed, please retry transaction")
        snapshot = LATEST if select.locks else transaction.snapshot or 0
        bound = bound_key(table, select.where)
        found = []
        for key in [bound] if bound is not None else transaction.keys(table):
            row = transaction.row(table, key, snapshot)
            if select.locks and (bound is not None or row is not None):
                yield from self._server.locks.take_row(
                    transaction, table, key, self._transacting.until("innodb_lock_wait_timeout")
                )
                row = transaction.row(table, key, snapshot)
            if row is not None and row_scope(self._variables, table, row).is_true(select.where):
                found.append(row)
        return _ordered(select, table, found)

    def _select_told(self, select: Select) -> Steps[Found]:
        """A SELECT from information_schema or from no table."""
        rows: list[InfoRow] = [{}]
        if select.table is not None:
            rows = _chosen(select, self._server.databases, self._variables)
            named = {(str(row["table_schema"]), str(row["table_name"])) for row in rows if "table_schema" in row}
            for name in sorted(named) if _opens_tables(select) else ():
                yield from self._transacting.glance(name)
            rows = _chosen(select, self._server.databases, self._variables)
        return _shown(select, rows, self._variables)


def _opens_tables(select: Select) -> bool:
    """Whether the tables are opened that a SELECT from information_schema tells of: for their names they are not."""
    names = (ColumnName("TABLE_SCHEMA"), ColumnName("TABLE_NAME"))
    return any(each.expression not in names for each in select.columns)


def _ordered(select: Select, table: Table, rows: list[Row]) -> list[Row]:
    """The rows as ORDER BY and LIMIT have them."""
    for name in reversed(select.order):
        at = table.index(name)
        rows.sort(
            key=lambda row, at=at: cast("int", table.columns[at].equal(row[at])),  # type: ignore[misc]
            reverse=name in select.descending,
        )
    return rows[: select.limit] if select.limit else rows


def _chosen(select: Select, databases: Databases, session: Surroundings) -> list[InfoRow]:
    assert select.table is not None
    rows = [row for row in rows_of(select.table[1], databases) if Scope(session, row, None).is_true(select.where)]
    rows.sort(key=lambda row: tuple(cast("str", row[name.lower()]) for name in select.order))
    return rows


def _shown(select: Select, rows: Sequence[InfoRow], session: Surroundings) -> Found:
    values = [[Scope(session, row, None).value(each.expression) for each in select.columns] for row in rows]
    made = tuple(
        ResultColumn(each.label, *kind_of([row[at] for row in values])) for at, each in enumerate(select.columns)
    )
    return made, [tuple(map(wire, row)) for row in values]


@lru_cache(maxsize=1024)
def fixed_answer(sql: str) -> Answer | None:
    """What a SELECT answers at any server and time; None if its answer depends on them."""
    select = parsed(sql)
    if not isinstance(select, Select) or not _is_fixed(select):
        return None
    nobody = cast("Surroundings", None)
    rows: list[InfoRow] = [{}] if select.table is None else _chosen(select, Databases(), nobody)
    columns, found = _shown(select, rows, nobody)
    return Answer(len(found), columns, found)


def _is_fixed(select: Select) -> bool:
    if select.table is not None:
        database, name = select.table
        if database.lower() != "information_schema" or name.upper() not in FIXED:
            return False
    return all(map(_is_function, [each.expression for each in select.columns] + [select.where or Literal(1)]))


def _is_function(expression: Expression) -> bool:
    """Whether the value is a function of the row."""
    if isinstance(expression, Call):
        known = expression.name in FUNCTIONS or expression.name in _COMPARISONS
        return known and all(map(_is_function, expression.arguments))
    return isinstance(expression, Literal | ColumnName)


def _column_of(expression: Expression, table: Table) -> Column | None:
    """The column that an element of a select list is; None if it is anything else."""
    at = table.index(expression.name) if isinstance(expression, ColumnName) else -1
    return table.columns[at] if at >= 0 else None
