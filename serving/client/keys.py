"""A row's key as a path names it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from .errors import BadRequest


def format_key(values: Sequence[object]) -> str:
    """The path segment for key values: the client's direction of `parse_row_key`. Raises `BadRequest` ``bad_key``."""
    if not values:
        raise _bad_key("a row is named by at least one key column")
    return ",".join(_format_column(value) for value in values)


def _format_column(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return quote(bytes(value), safe="")
    if value is None or isinstance(value, bool):
        raise _bad_key(f"{value!r} names no row")
    return quote(str(value), safe="")


def _bad_key(message: str) -> BadRequest:
    return BadRequest(message, hint="give the key columns' values in key order: text, numbers or bytes", code="bad_key")
