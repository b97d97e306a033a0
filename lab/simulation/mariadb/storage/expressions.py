"""Evaluates expressions: of a row, and of what a session and its server know."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Protocol

from pymysql.constants import ER

from lab.simulation.mariadb.sql.syntax import Call, ColumnName, Expression, Literal, UnknownStatement, Variable
from lab.simulation.mariadb.storage.collations import decoded, encoded
from lab.simulation.mariadb.storage.columns import Column, Stored
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.storage.tables import Row, Table


class Surroundings(Protocol):
    """What an expression may ask its session."""

    def variable(self, scope: str, name: str) -> Stored:
        """The value of a variable."""

    def local_time(self) -> datetime:
        """The server's time in the session's time zone."""

    def unix_time(self) -> Decimal:
        """Seconds since 1970."""

    def position_at(self, file: str, offset: int) -> str | None:
        """``BINLOG_GTID_POS``."""


class Scope:
    """A row that an expression is evaluated for; ``table`` is None for rows of information_schema."""

    def __init__(
        self,
        session: Surroundings,
        row: Mapping[str, Stored],
        table: Table | None,
        new: Mapping[str, Stored] | None = None,
    ) -> None:
        self._session = session
        self._row = row
        self._table = table
        self._new = new or {}

    def is_true(self, condition: Expression | None) -> bool:
        """Whether a condition holds, as WHERE takes it."""
        return condition is None or bool(self.value(condition))

    def value(self, expression: Expression) -> Any:
        """The value. Raises `ServerError`, `UnknownStatement`."""
        match expression:
            case Literal(value):
                return value
            case ColumnName(name):
                return self._column_value(name)
            case Variable(scope, name):
                return self._session.variable(scope, name)
            case Call("and" | "or" as name, arguments):
                return self._logical(name, arguments)
            case Call("=" | "<>" | "!=" | "<" | ">" | "<=" | ">=" as operator, (left, right)):
                return self._compared(operator, left, right)
            case Call("in", (left, *items)):
                return self._is_in(left, items)
            case Call("if", (condition, yes, no)):
                return self.value(yes if self.value(condition) else no)
            case Call("values", (Literal(str(name)),)):
                return self._new[name.lower()]
            case Call("now" | "sysdate", _):
                return self._session.local_time()
            case Call("unix_timestamp", _):
                return self._unix_time(expression.arguments)
            case Call("binlog_gtid_pos", (file, offset)):
                return self._session.position_at(str(self.value(file)), int(self.value(offset)))
            case Call("default", ()):
                raise UnknownStatement("DEFAULT as a value")
            case Call(name, arguments) if name in FUNCTIONS:
                return FUNCTIONS[name](*map(self.value, arguments))
        raise UnknownStatement(f"an expression: {expression}")

    def _column_value(self, name: str) -> Stored:
        if name.lower() not in self._row:
            if self._table is None and self._row:
                raise UnknownStatement(f"a column of information_schema: {name}")
            raise unknown_column(name, "SELECT")
        return self._row[name.lower()]

    def _logical(self, name: str, parts: tuple[Expression, ...]) -> int:
        values = (bool(self.value(part)) for part in parts)
        return int(all(values) if name == "and" else any(values))

    def _is_in(self, left: Expression, items: list[Expression]) -> int | None:
        if self._table is None:  # no collation: equal texts are the same text
            found = self.value(left)
            if found is None:
                return None
            texts = [item.value for item in items if isinstance(item, Literal) and isinstance(item.value, str)]
            if isinstance(found, str) and len(texts) == len(items):
                return int(found in texts)
        return int(any(self._compared("=", left, item) for item in items))

    def _unix_time(self, arguments: tuple[Expression, ...]) -> Decimal | int:
        seconds = self._session.unix_time()
        match arguments:
            case ():
                return int(seconds)
            case (Call("now" | "sysdate", digits),):
                step = Decimal(1).scaleb(-int(self.value(digits[0])) if digits else 0)
                return seconds // step * step
        raise UnknownStatement("UNIX_TIMESTAMP of another time than NOW")

    def _compared(self, operator: str, left: Expression, right: Expression) -> int | None:
        column = self._column(left) or self._column(right)
        one, other = self.value(left), self.value(right)
        if one is None or other is None:
            return None
        if column is not None:
            one, other = _comparable(column, one), _comparable(column, other)
        elif isinstance(one, str) != isinstance(other, str):
            raise UnknownStatement(f"a comparison of {one!r} with {other!r}")
        return int(_OPERATORS[operator](one, other))

    def _column(self, expression: Expression) -> Column | None:
        if self._table is None or not isinstance(expression, ColumnName):
            return None
        at = self._table.index(expression.name)
        return self._table.columns[at] if at >= 0 else None


def row_scope(session: Surroundings, table: Table, row: Row, new: Mapping[str, Stored] | None = None) -> Scope:
    """The scope of a table's row."""
    names = (column.name.lower() for column in table.columns)
    return Scope(session, dict(zip(names, row, strict=True)), table, new)


def unknown_column(name: str, where: str) -> ServerError:
    """Error 1054."""
    return ServerError(ER.BAD_FIELD_ERROR, f"Unknown column '{name}' in '{where}'", "42S22")


def check_texts(table: Table, where: Expression | None) -> None:
    """Refuse a comparison with a text that the column's character set can't hold. Raises `ServerError` 1267."""
    if not isinstance(where, Call):
        return
    match where:
        case Call("=", (ColumnName(name), Literal(str(value)))):
            column = table.columns[table.index(name)]
            try:
                encoded(value, column.charset)
            except UnicodeEncodeError:
                raise ServerError(
                    ER.CANT_AGGREGATE_2COLLATIONS,
                    f"Illegal mix of collations ({column.collation},IMPLICIT) and (utf8mb4_general_ci,COERCIBLE) for"
                    " operation '='",
                ) from None
    for each in where.arguments:
        check_texts(table, each)


def _comparable(column: Column, value: Any) -> Any:
    """``value`` as it is compared with the column's values."""
    if column.charset:
        if not isinstance(value, str):
            raise UnknownStatement(f"a comparison of the text {column.name} with {value!r}")
        return column.equal(value)
    if isinstance(value, date):
        return value
    if column.kind in ("datetime", "timestamp"):
        return datetime.fromisoformat(value)
    if column.kind == "date":
        return date.fromisoformat(value)
    if column.kind in ("varbinary", "blob"):
        return value if isinstance(value, bytes) else str(value).encode()
    if isinstance(value, str):
        if not re.fullmatch(r"-?\d+(\.\d+)?", value):
            raise UnknownStatement(f"a comparison of the number {column.name} with {value!r}")
        return Decimal(value)
    return value


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": lambda one, other: bool(one == other),
    "<>": lambda one, other: bool(one != other),
    "!=": lambda one, other: bool(one != other),
    "<": lambda one, other: bool(one < other),
    ">": lambda one, other: bool(one > other),
    "<=": lambda one, other: bool(one <= other),
    ">=": lambda one, other: bool(one >= other),
}


def _null_if_any(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: None if None in arguments else function(*arguments)


def like(value: str, pattern: str) -> bool:
    """LIKE, without regard to case."""
    parts = re.findall(r"\\.|%|_|[^\\%_]+", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    text = "".join(wild.get(part) or re.escape(part.removeprefix("\\")) for part in parts)
    return re.fullmatch(text, value, re.IGNORECASE | re.DOTALL) is not None


def _hex(value: Any) -> str:
    return (value if isinstance(value, bytes) else str(value).encode()).hex().upper()


def _cast(value: Any, kind: str) -> Any:
    if kind == "DOUBLE":
        return float(value)
    if kind in ("SIGNED", "UNSIGNED"):
        return int(value)
    raise UnknownStatement(f"CAST AS {kind}")


def _concat_ws(separator: str, *parts: Any) -> str:
    return separator.join(str(part) for part in parts if part is not None)


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "+": _null_if_any(lambda one, other: one + other),
    "-": _null_if_any(lambda one, other: one - other),
    "*": _null_if_any(lambda one, other: one * other),
    "negative": _null_if_any(lambda value: -value),
    "not": _null_if_any(lambda value: int(not value)),
    "isnull": lambda value: int(value is None),
    "like": _null_if_any(lambda value, pattern: int(like(str(value), pattern))),
    "floor": _null_if_any(math.floor),
    "hex": _null_if_any(_hex),
    "concat_ws": _concat_ws,
    "concat": _null_if_any(lambda *parts: "".join(map(str, parts))),
    "upper": _null_if_any(lambda value: str(value).upper()),
    "lower": _null_if_any(lambda value: str(value).lower()),
    "introduced": lambda charset, value: decoded(value, charset),
    "convert": lambda value, _charset: value,
    "cast": _null_if_any(_cast),
}
