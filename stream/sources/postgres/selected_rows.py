"""Rows as PostgreSQL's SELECT returns them, as keys and images in the same canonical form as a connector's. Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from stream.sources.debezium.values import fraction
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.wire.canonical import float_json, json_of
from stream.wire.values import NULL, UndecodableValue, binary_json

ToCanonical: TypeAlias = Callable[[bytes], bytes]
"""From the text of a value, as the server writes it in the session of `stream.sources.postgres.connection`."""

_NUMBER: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?")
_MOMENT: Final = re.compile(
    rb"((?:[0-9]{4}-[0-9]{2}-[0-9]{2} )?[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,6}))?(?:\+00)?"
)
_DATE: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PRECISION: Final = re.compile(r"\(([0-6])\)")
_DIGITS_MAX: Final = 6


def quoted(name: str) -> str:
    """An SQL identifier in quotes; ``%`` is doubled, since the driver looks for arguments in statements."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def table_sql(info: TableInfo) -> str:
    """The table's name, for a FROM: without what inherits from it."""
    return f"ONLY {quoted(info.database)}.{quoted(info.table)}"


def select_columns_sql(info: TableInfo) -> str:
    """The select list of all columns in table order, as `canonical_row` needs it."""
    return ", ".join(_select_expression(column) for column in info.columns)


def _select_expression(column: ColumnInfo) -> str:
    name = quoted(column.name)
    return f"{name}::float8" if column.kind == "float" else name  # a connector widens it, too


def argument(value: Any) -> str:
    """A canonical key value as the text of an argument whose type the server infers from its column."""
    if isinstance(value, dict):
        return "\\x" + b64decode(value["base64"]).hex()
    return str(value)


def _int(value: bytes) -> bytes:
    return b"%d" % int(value)


def _bool(value: bytes) -> bytes:
    return b"1" if value == b"t" else b"0"


def _float(value: bytes) -> bytes:
    found = float_json(float(value))
    if found == NULL:
        raise ValueError("it is no finite number")
    return found


def _decimal(value: bytes) -> bytes:
    if _NUMBER.fullmatch(value) is None:
        raise ValueError("it is no finite number")
    return b'"' + value + b'"'


def _text(value: bytes) -> bytes:
    return json_of(value.decode("utf-8"))


def _binary(value: bytes) -> bytes:
    return binary_json(bytes.fromhex(value[2:].decode()))


def _date(value: bytes) -> bytes:
    if _DATE.fullmatch(value) is None:
        raise ValueError("it is not within the years 1 to 9999")
    return b'"' + value + b'"'


def _moment(column: ColumnInfo) -> ToCanonical:
    precision = _PRECISION.search(column.sql_type)
    digits = int(precision[1]) if precision is not None else _DIGITS_MAX

    def read(value: bytes) -> bytes:
        found = _MOMENT.fullmatch(value)
        if found is None:
            raise ValueError("it is not within the years 1 to 9999")
        micros = int((found[2] or b"").ljust(_DIGITS_MAX, b"0"))
        return b'"' + found[1] + fraction(micros, digits).encode() + b'"'

    return read


_PLAIN: Final[dict[str, ToCanonical]] = {
    "int": _int,
    "bit": _bool,
    "float": _float,
    "double": _float,
    "decimal": _decimal,
    "text": _text,
    "json": _text,
    "enum": _text,
    "uuid": _text,
    "binary": _binary,
    "date": _date,
    "opaque": _text,
}
_MOMENTS: Final = frozenset({"datetime", "timestamp", "time"})


class RowForm:
    """How rows of a table are written. Its methods raise `UndecodableValue`."""

    def __init__(self, info: TableInfo) -> None:
        self._info = info
        self._columns = [_moment(each) if each.kind in _MOMENTS else _PLAIN[each.kind] for each in info.columns]

    def key(self, values: Sequence[bytes | None]) -> bytes:
        """The key of a row. ``values``: of all columns, in the order of `select_columns_sql`."""
        parts = [self._value(at, values[at]) for at in self._info.key_indexes]
        return self._info.key_prefix + b"[" + b",".join(parts) + b"]"

    def image(self, values: Sequence[bytes | None]) -> bytes:
        """The image of a row."""
        parts = [column.json_name + self._value(at, values[at]) for at, column in enumerate(self._info.columns)]
        return b"{" + b",".join(parts) + b"}"

    def _value(self, at: int, value: bytes | None) -> bytes:
        if value is None:
            return NULL
        column = self._info.columns[at]
        try:
            return self._columns[at](value)
        except (ValueError, OverflowError) as error:
            raise UndecodableValue(
                f"a value of column {column.name} of {self._info.name} has no canonical form: {error}"
            ) from error
