"""A row's key as a segment of a path."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from .errors import BadRequest


def format_key(values: Sequence[object]) -> str:
    """The path segment for key values; the front's `parse_row_key` reads it. Raises `BadRequest` ``bad_key``."""
    if not values:
        raise _bad_key("the key has no columns")
    segment = ",".join(_format_column(value) for value in values)
    # Of a path such a segment would be removed, and with two dots the one before it, by whoever sends or routes it.
    return segment.replace(".", "%2E") if segment in (".", "..") else segment


def format_value(value: object) -> str:
    """A column's value as a parameter of a query. Raises `BadRequest` ``bad_key``."""
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            raise _bad_key(f"{value!r} is not UTF-8, so it can't be in a query") from error
    if value is None or isinstance(value, bool):
        raise _bad_key(f"{value!r} cannot be a key value")
    return str(value)


def _format_column(value: object) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return quote(bytes(value), safe="")
    if value is None or isinstance(value, bool):
        raise _bad_key(f"{value!r} cannot be a key value")
    return quote(str(value), safe="")


def _bad_key(message: str) -> BadRequest:
    return BadRequest(message, hint="give the key columns' values in key order: text, numbers or bytes", code="bad_key")
