"""One canonical form of a value, whether it came from the binlog or from a SELECT. Pure.

A value is canonical as the bytes of its JSON: integers, YEAR and BIT exact; FLOAT and DOUBLE as the shortest text of
the double; DECIMAL, temporal, ENUM, SET and UUID values as strings in MariaDB's own text (UTC, the column's scale and
fraction kept, zero dates as ``0000-00-00``); INET values as in RFC 5952 (``::ffff:102:304``); binary as
``{"base64":"…"}``; NULL as ``null``. An image is the compact JSON object of a row in table order.
"""

from __future__ import annotations

import ipaddress
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from stream.wire.events import Column
from tokens.errors import FreshetError

if TYPE_CHECKING:
    from stream.sources.mariadb.schema import ColumnInfo, TableInfo

json_of: Callable[[object], bytes] = msgspec.json.encode
"""Canonical JSON of a canonical value: the same encoder as the keys' (`stream.wire.keys.row_key`)."""

NULL = b"null"


class UndecodableValue(FreshetError, ValueError):
    """A value that has no canonical form; the row is published as unknown. Code ``undecodable_value``."""

    code = "undecodable_value"


def binary_json(value: bytes) -> bytes:
    """``{"base64":"…"}``."""
    return b'{"base64":"' + b64encode(value) + b'"}'


def inet_text(value: bytes) -> str:
    """The text of an INET4 (4 bytes) or INET6 (16 bytes) value, RFC 5952."""
    return str(ipaddress.IPv4Address(value) if len(value) == 4 else ipaddress.IPv6Address(value))


def uuid_text(value: bytes) -> str:
    """The text of 16 bytes in natural order."""
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _int_from_select(value: bytes) -> bytes:
    return b"%d" % int(value)


def _decimal_from_select(value: bytes) -> bytes:
    negative = value[:1] == b"-"
    digits = value[negative:].lstrip(b"0")
    if digits[:1] in (b"", b"."):
        digits = b"0" + digits
    return b'"' + (b"-" if negative else b"") + digits + b'"'


def _float_from_select(value: bytes) -> bytes:
    return json_of(float(value))


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
    """The explicit select list whose text values `canonical_row` understands, in table order.

    FLOAT is read as DOUBLE, because its own text form is cut to six digits; INET as its bytes.
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

    Shape: ``values`` are those of all columns, in the order of `select_columns_sql`.
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


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def request_key_value(column: Column, text: str) -> tuple[object, bool]:
    """What a reader's text for a key column stands for: (canonical value, is it surely the canonical one?).

    ``False``: another spelling may name the same row, so its absence must not be cached. Raises `UndecodableValue`
    where the text can't be a value of this kind.
    """
    try:
        if column.kind in ("int", "bit", "year"):
            return int(text), column.exact
        if column.kind in ("float", "double"):
            return float(text), False
        if column.kind == "uuid":
            return text.lower(), _UUID.fullmatch(text.lower()) is not None
        if column.kind == "date":
            return text, _DATE.fullmatch(text) is not None
        if column.kind == "inet":
            return str(ipaddress.ip_address(text)), False
        if column.kind == "binary":
            return {"base64": b64encode(text.encode()).decode()}, column.exact
    except ValueError as error:
        raise UndecodableValue(f"{text!r} is no {column.kind} value for {column.name}") from error
    return text, column.exact
