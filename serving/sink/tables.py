"""The tables of a copy, and the canonical values of rows as its database takes them.

A table that is there is used as it is; one that is missing is made, with types that lose nothing. Besides the source's
columns it has two: ``freshet_token``, the event that the row was last changed by (NULL: it was read), and
``freshet_copy``, the number of the reading of the table that the row was last seen in, or after.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from math import isfinite
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from serving.client import StreamColumn
from serving.client.answers import DescribedColumn, DescriptionAnswer
from serving.sink.errors import SinkError

TOKEN: Final = "freshet_token"
COPY: Final = "freshet_copy"
_KEY_LENGTH: Final = 255
"""Characters of a text in a key where the database needs a bound, unless the source's own is longer."""
_KEY_LENGTHS: Final = {"decimal": 68, "date": 10, "time": 17, "datetime": 26, "timestamp": 26, "uuid": 36, "inet": 45}
"""Kind → characters of its longest text."""
_KEY_BYTES: Final = 3072
"""Of all columns of a key together, in MariaDB and MySQL. A character has four, a number at most `_NUMBER_BYTES`."""
_NUMBER_BYTES: Final = 9
_NOPAD_SINCE: Final = (8, 0, 17)
"""MySQL has a collation since then in which texts that differ in blanks at their end are two keys."""
_LENGTH: Final = re.compile(r"(?:var)?(?:char(?:acter)?(?: varying)?|binary)\((\d+)\)")
"""As MariaDB and MySQL write it, and PostgreSQL: ``character varying(300)``."""

_SECOND_DIGITS: Final = 6
_LONG: Final = Context(prec=200)
"""Of more digits than any decimal of a source has."""

_TEXT: Final = sa.Text().with_variant(mysql.LONGTEXT(collation="utf8mb4_bin"), "mysql", "mariadb")
_BYTES: Final = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_INTEGER: Final = (
    sa.BigInteger().with_variant(sa.Numeric(20, 0), "postgresql").with_variant(sa.Numeric(20, 0), "mysql", "mariadb")
)
_DECIMAL: Final = sa.Text().with_variant(sa.Numeric(), "postgresql")
"""Other databases would need digits that the stream does not tell, or have floats below their decimals."""


@dataclass(frozen=True, slots=True)
class CopyTable:
    """``name``: ``db.table`` at the source. ``key``: its primary key's columns. ``kinds``: column → kind."""

    name: str
    table: sa.Table
    key: tuple[str, ...]
    kinds: Mapping[str, str]
    takes_nul: bool = True
    """Whether texts may have a NUL: PostgreSQL's may not."""

    def key_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """A key of the stream as the database has it. Raises `SinkError` ``sink_value``."""
        return tuple(self._value(name, value) for name, value in zip(self.key, values, strict=True))

    def has_key(self, key: Sequence[Any], row: Mapping[str, Any] | None) -> bool:
        """Whether the stream may tell the copy's rows by such a key: the source's may have been another one then."""
        return len(key) == len(self.key) and (row is None or row.keys() >= set(self.key))

    def values_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the stream as the database takes it. Raises `SinkError` ``sink_value``."""
        return {name: self._value(name, row[name]) for name in self.kinds if name in row}

    def _value(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            return b64decode(value["base64"])
        kind = self.table.c[name].type
        convert = _converter(kind)
        wanted = "a text column"
        try:
            given = value if convert is None else convert(value)
            if not self.takes_nul and isinstance(given, str) and "\0" in given:
                wanted = "a column of bytes"
                raise ValueError("a text has no NUL here")
            return given
        except (TypeError, ValueError, ArithmeticError):
            raise SinkError(
                f"{self.name}.{name} has a value that the copy's column, {kind}, does not take: {_shown(value)}",
                hint=f"make {self.table.name}.{name} {wanted}, and start again",
                code="sink_value",
            ) from None


def _shown(value: Any) -> str:
    """What may be told of a value: rows don't go into logs."""
    return f"a text of {len(value)} characters" if isinstance(value, str) else f"of type {type(value).__name__}"


def _converter(kind: sa.types.TypeEngine[Any]) -> Callable[[Any], Any] | None:
    match kind:
        case sa.Date():
            return dt.date.fromisoformat
        case sa.DateTime() | sa.Time():
            return partial(_moment, kind=kind)
        case sa.JSON():
            return _document
        case sa.Integer():
            return _whole if getattr(kind, "unsigned", False) else _bounded
        case mysql.FLOAT() | sa.REAL() if not isinstance(kind, mysql.REAL):
            return _single
        case sa.Float():
            return _floating
        case sa.Numeric():
            return partial(_exact, digits=kind.scale)
        case sa.String():
            return str
        case sa.LargeBinary():
            return lambda value: value.encode() if isinstance(value, str) else value
        case _:
            return None


def _moment(value: str, kind: sa.DateTime | sa.Time) -> Any:
    """Raises ``ValueError`` if its second has more digits than the column keeps: a database would cut them.

    And ``TypeError`` for what is no text: another kind than the column's.
    """
    if not isinstance(value, str):
        raise TypeError("no moment")
    if isinstance(kind, mysql.DATETIME | mysql.TIMESTAMP | mysql.TIME):
        digits = kind.fsp or 0
    else:
        precision = getattr(kind, "precision", None)  # of PostgreSQL's own types
        digits = _SECOND_DIGITS if precision is None else precision
    if len(value.partition(".")[2].rstrip("0")) > digits:
        raise ValueError(f"more than {digits} digits of a second")
    if isinstance(kind, sa.Time):
        return value
    found = dt.datetime.fromisoformat(value)
    # The stream tells a moment in UTC, and a database would take one without a zone as its own local time.
    return found.replace(tzinfo=dt.UTC) if kind.timezone else found


def _document(value: str) -> Any:
    """Raises ``ValueError`` for a number of which a float has not all digits."""
    found = json.loads(value, parse_float=_floating)
    return sa.JSON.NULL if found is None else found


def _whole(value: Any) -> int:
    """Raises ``ValueError`` if there is something behind the point: a database would round it, and say nothing."""
    return value if isinstance(value, int) else int(_exact(value, digits=0))


def _bounded(value: Any) -> int:
    """An integer that a signed one of 64 bits can hold. Raises ``ValueError``: SQLite has no larger ones."""
    if not -(2**63) <= (whole := _whole(value)) < 2**63:
        raise ValueError(f"{value} is too large")
    return whole


def _floating(value: Any) -> float:
    """Raises ``ValueError`` for a decimal, or a large integer, of which a float has not all digits."""
    number = float(value)
    if isfinite(number) and not isinstance(value, float) and Decimal(str(number)) != Decimal(str(value)):
        raise ValueError("more digits than a float has")
    return number


def _single(value: Any) -> float:
    """As `_floating`, of a float of 32 bits."""
    if isfinite(float(value)) and Decimal(str(np.float32(value))) != Decimal(str(value)):
        raise ValueError("more digits than a float of 32 bits has")
    return _floating(value)


def _exact(value: Any, digits: int | None) -> Decimal:
    """``digits``: so many behind the point does a column keep; None: all. Raises ``ValueError`` if there are more."""
    number = Decimal(str(value))
    if digits is not None and number != number.quantize(Decimal(1).scaleb(-digits), context=_LONG):
        raise ValueError(f"more than {digits} digits behind the point")
    return number


def check_described(described: DescriptionAnswer, wanted: str) -> None:
    """Raises `SinkError` ``sink_refused`` for a table that the stream tells nothing of, or that is not the wanted one.

    Nobody but who runs the sink says which tables of the copy it makes, writes and drops; the front does not.
    """
    if described.table != wanted:
        raise SinkError(
            f"the front describes {described.table!r} in place of {wanted}", hint="give its name as the source has it"
        )
    if own := [column.name for column in described.columns if column.name.lower() in (TOKEN, COPY)]:
        raise SinkError(
            f"{described.table} has a column {own[0]} at the source, which the sink keeps for itself in a copy",
            hint="leave the table out, or give the column another name at the source",
        )
    if not described.cacheable or not described.primary_key:
        raise SinkError(
            f"the rows of {described.table} are not in the stream: {described.reason or 'it has no primary key'}",
            hint="leave the table out, or give it what it lacks at the source",
        )


def kinds_of(columns: Iterable[DescribedColumn | StreamColumn]) -> dict[str, str]:
    """Column → kind."""
    return {column.name: column.kind for column in columns}


def exists(engine: sa.Engine, described: DescriptionAnswer) -> bool:
    """Whether a table has a copy."""
    return bool(sa.inspect(engine).has_table(_name_of(described)))


def fits(engine: sa.Engine, described: DescriptionAnswer) -> bool:
    """Whether a table has a copy with all its columns and the same primary key."""
    if not exists(engine, described):
        return False
    found, name = sa.inspect(engine), _name_of(described)
    has = {column["name"] for column in found.get_columns(name)}
    key = found.get_pk_constraint(name)["constrained_columns"]
    return {column.name for column in described.columns} <= has and set(key) == set(described.primary_key)


def drop_table(engine: sa.Engine, described: DescriptionAnswer) -> None:
    """Drops the copy of a table, if there is one."""
    sa.Table(_name_of(described), sa.MetaData()).drop(engine, checkfirst=True)


def last_reading(engine: sa.Engine, table: CopyTable) -> int:
    """The highest number of a reading that a row of the copy has, from a sink that is forgotten; 0: none has one."""
    with engine.connect() as connection:
        return int(connection.scalar(sa.select(sa.func.max(table.table.c[COPY]))) or 0)


def _name_of(described: DescriptionAnswer) -> str:
    return described.table.partition(".")[2]


def open_table(engine: sa.Engine, metadata: sa.MetaData, described: DescriptionAnswer) -> CopyTable:
    """The copy of a table, made if it is missing. Raises `SinkError` ``sink_schema_changed`` if columns are missing."""
    name = _name_of(described)
    kinds = kinds_of(described.columns)
    if not exists(engine, described):
        of_key = key_types([each for each in described.columns if each.name in described.primary_key], engine)
        columns = [
            sa.Column(column.name, of_key.get(column.name) or _type_of(column.kind), autoincrement=False)
            for column in described.columns
        ]
        own = sa.Column(TOKEN, _TEXT), sa.Column(COPY, sa.BigInteger())
        sa.Table(name, sa.MetaData(), *columns, *own, sa.PrimaryKeyConstraint(*described.primary_key)).create(engine)
    if name not in metadata.tables:
        sa.Table(name, metadata, autoload_with=engine)
    table = metadata.tables[name]
    for column in table.columns:
        if isinstance(column.type, sa.JSON):
            column.type.none_as_null = True
    check_columns(table, described.table, [*kinds, TOKEN, COPY])
    if {column.name for column in table.primary_key} != set(described.primary_key):
        raise SinkError(
            f"{name} has another primary key than {described.table}, which has ({', '.join(described.primary_key)})",
            hint="give the copy the same primary key, or drop it: it is made anew",
            code="sink_schema_changed",
        )
    takes_nul = engine.dialect.name != "postgresql"
    return CopyTable(described.table, table, tuple(described.primary_key), kinds, takes_nul)


def check_columns(table: sa.Table, source: str, names: Sequence[str]) -> None:
    """Raises `SinkError` ``sink_schema_changed`` if the copy lacks a column."""
    if missing := [each for each in names if each not in table.c]:
        raise SinkError(
            f"the copy {table.name} of {source} has no column {', '.join(missing)}",
            hint="add what is missing and start again: it goes on where it was. Or drop the copy: it is made anew",
            code="sink_schema_changed",
        )


def _type_of(kind: str) -> sa.types.TypeEngine[Any]:
    """The type of a new column: of the kinds in `schemas/TableSchema.avsc`. One of a later version is a text."""
    match kind:
        case "int" | "year" | "bit":
            return _INTEGER
        case "decimal":
            return _DECIMAL
        case "float" | "double":
            return sa.Double()
        case "binary" | "opaque":
            return _BYTES
        case _:
            return _TEXT


def key_types(key: Sequence[DescribedColumn], engine: sa.Engine) -> dict[str, sa.types.TypeEngine[Any]]:
    """Column → type of a new primary key: MariaDB and MySQL have none of a text without a bound.

    Nor are two texts one key there that differ in blanks at their end: the source may have both.
    """
    bounds = _key_bounds(key)
    return {column.name: _key_type(column, bounds.get(column.name, 0), _collation(engine)) for column in key}


def _key_bounds(key: Sequence[DescribedColumn]) -> dict[str, int]:
    """Column → characters, or bytes: as many as at the source. Where the key has no room, the longest have less."""
    wanted: dict[str, tuple[int, int]] = {}
    for column in key:
        found = _LENGTH.match(column.sql_type.lower())
        length = _KEY_LENGTHS.get(column.kind) or max(_KEY_LENGTH, int(found[1]) if found else 0)
        kind = _type_of(column.kind)
        if isinstance(kind, sa.LargeBinary | sa.Text):
            width = 1 if isinstance(kind, sa.LargeBinary) else 4
            wanted[column.name] = length * width, width
    bounds: dict[str, int] = {}
    left = _KEY_BYTES - _NUMBER_BYTES * (len(key) - len(wanted))
    for at, (name, (size, width)) in enumerate(sorted(wanted.items(), key=lambda each: each[1])):
        bounds[name] = min(size, left // (len(wanted) - at)) // width
        left -= bounds[name] * width
    return bounds


def _collation(engine: sa.Engine) -> str:
    if getattr(engine.dialect, "is_mariadb", False):  # a URL of MySQL's may lead to one
        return "utf8mb4_nopad_bin"
    version = getattr(engine.dialect, "server_version_info", None) or _NOPAD_SINCE
    return "utf8mb4_0900_bin" if version >= _NOPAD_SINCE else "utf8mb4_bin"


def _key_type(column: DescribedColumn, length: int, collation: str) -> sa.types.TypeEngine[Any]:
    kind = _type_of(column.kind)
    if isinstance(kind, sa.LargeBinary):
        return sa.LargeBinary().with_variant(mysql.VARBINARY(length), "mysql", "mariadb")
    if isinstance(kind, sa.Text):
        text = sa.Text().with_variant(mysql.VARCHAR(length, collation=collation), "mysql", "mariadb")
        return text.with_variant(sa.Numeric(), "postgresql") if column.kind == "decimal" else text
    return kind
