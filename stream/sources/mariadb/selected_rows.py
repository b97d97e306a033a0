"""Rows as SELECT returns them, as keys and images in the same canonical form as the binlog's rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stream.wire.canonical import float_json, json_of
from stream.wire.values import NULL, UndecodableValue, binary_json, inet_text

if TYPE_CHECKING:
    from stream.sources.mariadb.schema import ColumnInfo, TableInfo


def _int_from_select(value: bytes) -> bytes:
    return b"%d" % int(value)


def _decimal_from_select(value: bytes) -> bytes:
    negative = value[:1] == b"-"
    digits = value[negative:].lstrip(b"0")
    if digits[:1] in (b"", b"."):
        digits = b"0" + digits
    return b'"' + (b"-" if negative else b"") + digits + b'"'


def _float_from_select(value: bytes) -> bytes:
    return float_json(float(value))


def _text_from_select(value: bytes) -> bytes:
    return json_of(value.decode("utf-8"))


def _plain_from_select(value: bytes) -> bytes:
    return b'"' + value + b'"'


def _bit_from_select(value: bytes) -> bytes:
    return b"%d" % int.from_bytes(value, "big")


def _inet_from_select(value: bytes) -> bytes:
    return json_of(inet_text(value))


_FROM_SELECT: dict[str, Callable[[bytes], bytes]] = {
    "int": _int_from_select,
    "year": _int_from_select,
    "decimal": _decimal_from_select,
    "float": _float_from_select,
    "double": _float_from_select,
    "text": _text_from_select,
    "json": _text_from_select,
    "enum": _text_from_select,
    "set": _text_from_select,
    "date": _plain_from_select,
    "datetime": _plain_from_select,
    "timestamp": _plain_from_select,
    "time": _plain_from_select,
    "uuid": _plain_from_select,
    "inet": _inet_from_select,
    "bit": _bit_from_select,
    "binary": binary_json,
    "opaque": binary_json,
}


def quoted(name: str) -> str:
    """An SQL identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def select_columns_sql(table: TableInfo) -> str:
    """The select list of all columns in table order, as `canonical_row` needs it.

    FLOAT is read as DOUBLE, because its own text has only six digits. INET is read as bytes.
    """
    return ", ".join(_select_expression(column) for column in table.columns)


def _select_expression(column: ColumnInfo) -> str:
    name = quoted(column.name)
    if column.kind in ("float", "double"):
        return f"CAST({name} AS DOUBLE)"
    if column.kind == "inet":
        return f"CAST({name} AS BINARY({column.length}))"
    return name


def canonical_row(table: TableInfo, values: Sequence[bytes | None]) -> bytes:
    """The image of a row as SELECT returned it (raw bytes, in the order of `select_columns_sql`).

    Raises `UndecodableValue`.
    """
    try:
        parts = [
            column.json_name + (NULL if value is None else _FROM_SELECT[column.kind](value))
            for column, value in zip(table.columns, values, strict=True)
        ]
    except (ValueError, OverflowError) as error:
        raise UndecodableValue(f"a value of {table.name} has no canonical form: {error}") from error
    return b"{" + b",".join(parts) + b"}"


def canonical_key(table: TableInfo, values: Sequence[bytes | None]) -> bytes:
    """The key (``table 0x00 JSON array``) of a row as SELECT returned it. Raises `UndecodableValue`.

    ``values``: those of all columns, in the order of `select_columns_sql`.
    """
    parts = []
    try:
        for index in table.key_indexes:
            value = values[index]
            if value is None:
                raise UndecodableValue(f"a key column of {table.name} is NULL")
            parts.append(_FROM_SELECT[table.columns[index].kind](value))
    except (ValueError, OverflowError) as error:
        raise UndecodableValue(f"a key value of {table.name} has no canonical form: {error}") from error
    return table.key_prefix + b"[" + b",".join(parts) + b"]"
