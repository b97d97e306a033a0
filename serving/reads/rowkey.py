"""Parses a row key as written in a path into the canonical key of the store. Pure.

``7`` · ``7,12`` · ``M%C3%BCller%2C%20Co``: key columns in key order, comma-separated, each percent-encoded. Binary
columns are percent-encoded bytes.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from serving.errors import ReadError
from serving.sources.source import RowTable
from stream.wire.events import Column
from stream.wire.keys import KeyFormatError, integer_row_key, row_key
from stream.wire.values import UndecodableValue, request_key_value

KEY_BYTES_MAX = 4096
"""The longest key that a request may name, in bytes as sent."""
DIGITS_MAX = 20
"""The longest integer, of unsigned 64 bits."""

_INTEGER = re.compile(rf"[+-]?[0-9]{{1,{DIGITS_MAX}}}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_NUMERIC_KINDS = frozenset({"decimal", "float", "double"})


class RowKey(NamedTuple):
    """``key``: as in the store. ``values``: canonical, in key order. ``exact``: no other spelling names this row."""

    key: bytes
    values: tuple[object, ...]
    exact: bool


def too_long(segment: bytes) -> ReadError | None:
    """Why a path's last segment is no key of any table; None if it may be one of some."""
    if len(segment) <= KEY_BYTES_MAX:
        return None
    return ReadError("bad_key", f"the key is longer than {KEY_BYTES_MAX} bytes")


def parse_row_key(table: RowTable, segment: bytes) -> RowKey:
    """The key that a path's last segment names. Raises `ReadError` ``bad_key``, naming the column."""
    if segment.isdigit() and len(segment) < DIGITS_MAX and len(table.key) == 1 and table.key[0].kind == "int":
        value = int(segment)  # most keys, as it is done column by column; of so few digits all have 64 bits
        return RowKey(integer_row_key(table.name, value), (value,), table.key[0].exact)
    parts = segment.split(b",")
    if (error := too_long(segment)) is not None:
        raise error
    if not table.key:
        raise ReadError(
            "bad_key", f"{table.name} has no primary key: its rows cannot be named", hint="give the table a primary key"
        )
    if len(parts) != len(table.key):
        expected = ", ".join(column.name for column in table.key)
        raise ReadError("bad_key", f"{table.name} has the key ({expected}), but the request has {len(parts)} columns")
    return _assemble(table, [parse_column(table, column, part) for column, part in zip(table.key, parts, strict=True)])


def parse_column(table: RowTable, column: Column, part: bytes) -> tuple[object, bool]:
    """The canonical value of a percent-encoded one, and whether it has no other spelling. Raises as `parse_row_key`."""
    raw = unquote_to_bytes(part)
    if column.kind == "binary":
        return {"base64": b64encode(raw).decode()}, column.exact
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ReadError("bad_key", f"{table.name}.{column.name}: {quote(raw)} is not UTF-8") from error
    return _canonical(table, column, text)


def _canonical(table: RowTable, column: Column, text: str) -> tuple[object, bool]:
    kind = column.kind
    if kind in ("int", "bit", "year") and _INTEGER.fullmatch(text) is None:
        raise ReadError("bad_key", f"{table.name}.{column.name}: {text!r} is not an integer")
    if kind in _NUMERIC_KINDS and _NUMBER.fullmatch(text) is None:
        raise ReadError("bad_key", f"{table.name}.{column.name}: {text!r} is not a number")
    if "\0" in text and kind != "text":
        raise ReadError("bad_key", f"{table.name}.{column.name}: {text!r} is not a {kind} value")
    try:
        value, exact = request_key_value(column, text)
    except UndecodableValue as error:
        raise ReadError("bad_key", f"{table.name}.{column.name}: {error}") from error
    # A DECIMAL's canonical text has the column's scale, which readers may leave out.
    return value, exact and kind not in _NUMERIC_KINDS


def _assemble(table: RowTable, columns: Sequence[tuple[object, bool]]) -> RowKey:
    values = tuple(value for value, _ in columns)
    try:
        return RowKey(row_key(table.name, values), values, all(exact for _, exact in columns))
    except KeyFormatError as error:
        raise ReadError("bad_key", str(error)) from error
