"""What a statement answers: columns and rows, as the protocol sends them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from pymysql.constants import FIELD_TYPE

from lab.simulation.mariadb.sql.syntax import UnknownStatement
from lab.simulation.mariadb.storage.columns import Stored


class ResultColumn(NamedTuple):
    """A column of a result: its name, its type's number, and whether it is text."""

    name: str
    type: int
    is_text: bool


class Answer(NamedTuple):
    """What a statement answers. ``columns`` is None if it answers no rows."""

    affected: int = 0
    columns: tuple[ResultColumn, ...] | None = None
    rows: Sequence[Sequence[bytes | None]] = ()


def table_of(names: Sequence[str], rows: Sequence[Sequence[Stored]]) -> Answer:
    """The answer with these columns, of the types that their values have."""
    columns = tuple(ResultColumn(name, *kind_of([row[at] for row in rows])) for at, name in enumerate(names))
    return Answer(len(rows), columns, [tuple(map(wire, row)) for row in rows])


def kind_of(values: Sequence[Stored]) -> tuple[int, bool]:
    """The type's number of such values, and whether it is text."""
    first = next((value for value in values if value is not None), "")
    if isinstance(first, bytes):
        return FIELD_TYPE.VAR_STRING, False
    numbers = {int: FIELD_TYPE.LONGLONG, float: FIELD_TYPE.DOUBLE, Decimal: FIELD_TYPE.NEWDECIMAL}
    return numbers.get(type(first), FIELD_TYPE.VAR_STRING), isinstance(first, str)


def wire(value: Stored) -> bytes | None:
    """A value of a result that is no column of a table."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, date):
        raise UnknownStatement("a date that is computed")
    return repr(value).removesuffix(".0").encode() if isinstance(value, float) else str(value).encode()
