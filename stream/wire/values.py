"""Canonical values: the same form of a value from a source's log, a query, or a reader's request. Pure.

The canonical form of a value is its JSON (`stream.wire.canonical`): integers, YEAR and BIT exact; FLOAT and DOUBLE as
RFC 8785 writes the double; DECIMAL, temporal, ENUM, SET and UUID values as strings in MariaDB's own text (UTC, the
column's scale and fraction kept, zero dates as ``0000-00-00``); INET values as in RFC 5952 (``::ffff:102:304``); binary
as ``{"base64":"…"}``; NULL as ``null``. An image is the compact JSON object of a row in table order.
"""

from __future__ import annotations

import ipaddress
import re
from base64 import b64encode

from stream.wire.events import Column
from tokens.errors import FreshetError

NULL = b"null"


class UndecodableValue(FreshetError, ValueError):
    """A value that has no canonical form; the row is published as unknown. Code ``undecodable_value``."""

    code = "undecodable_value"


def binary_json(value: bytes) -> bytes:
    """``{"base64":"…"}``."""
    return b'{"base64":"' + b64encode(value) + b'"}'


def inet_text(value: bytes) -> str:
    """The text of an INET4 (4 bytes) or INET6 (16 bytes) value, RFC 5952."""
    return _address_text(ipaddress.IPv4Address(value) if len(value) == 4 else ipaddress.IPv6Address(value))


def _address_text(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Python's own text of a mapped IPv4 address is another one since 3.13: a key must not depend on who writes it."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if mapped is None:
        return str(address)
    high, low = divmod(int(mapped), 1 << 16)
    return f"::ffff:{high:x}:{low:x}"


def uuid_text(value: bytes) -> str:
    """The text of a UUID of 16 bytes in natural order."""
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def request_key_value(column: Column, text: str) -> tuple[object, bool]:
    """Parse a reader's text for a key column: (canonical value, whether it is certainly the only spelling).

    ``False``: another spelling may find the same row, so its absence must not be cached. Raises `UndecodableValue` if
    the text is not a value of this kind.
    """
    try:
        if column.kind in ("int", "bit"):
            return int(text), column.exact
        if column.kind == "year":  # below 100, MariaDB finds 2024 by 24
            return int(text), column.exact and int(text) >= 100
        if column.kind in ("float", "double"):
            return float(text), False
        if column.kind == "uuid":
            return text.lower(), _UUID.fullmatch(text.lower()) is not None
        if column.kind == "date":
            return text, _DATE.fullmatch(text) is not None
        if column.kind == "inet":
            return _address_text(ipaddress.ip_address(text)), False
        if column.kind == "binary":
            return {"base64": b64encode(text.encode()).decode()}, column.exact
    except ValueError as error:
        raise UndecodableValue(f"{text!r} is not a valid {column.kind} value for {column.name}") from error
    return text, column.exact
