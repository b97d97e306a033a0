"""MySQL's binary JSON as the text that SELECT returns for it. Pure.

The format is in the server's sql-common/json_binary.h, the text is made in sql-common/json_dom.cc. Both are exact: the
image of a row is the same from the binlog and from SELECT.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from typing import Final

from pymysql.constants import FIELD_TYPE

from stream.sources.mariadb.binlog.decimals import decimal_reader
from stream.wire.values import UndecodableValue

DEPTH_MAX: Final = 100
"""The server's own limit of nesting."""
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = 0, 1, 2, 3, 4
_DOUBLE, _TEXT, _OPAQUE = 0x0B, 0x0C, 0x0F
_INTEGERS: Final = {
    5: struct.Struct("<h"),
    6: struct.Struct("<H"),
    7: struct.Struct("<i"),
    8: struct.Struct("<I"),
    9: struct.Struct("<q"),
    10: struct.Struct("<Q"),
}
_FLOAT: Final = struct.Struct("<d")
_LITERALS: Final = {0: "null", 1: "true", 2: "false"}
_ESCAPES: Final = str.maketrans(
    {chr(code): f"\\u{code:04x}" for code in range(32)}
    | {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)
_BASE64_LINE: Final = 76
_FIXED_DIGITS: Final = 15
"""A double of more digits before the point has an exponent, if no digit is behind it; one of as many zeros too."""


def json_text(data: bytes) -> str:
    """The text of a JSON value. Raises `UndecodableValue`."""
    try:
        return _Document(data).value(data[0], 1, 0)
    except (IndexError, struct.error, ValueError, KeyError, OverflowError) as error:
        raise UndecodableValue(f"a JSON value cannot be decoded: {error!r}") from error


class _Document:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def value(self, kind: int, at: int, depth: int) -> str:
        """The text of the value of ``kind`` at ``at``."""
        if kind <= _LARGE_ARRAY:
            if depth > DEPTH_MAX:
                raise ValueError(f"it is nested deeper than {DEPTH_MAX}")
            return self._container(kind, at, depth)
        if kind == _LITERAL:
            return _LITERALS[self._data[at]]
        if kind in _INTEGERS:
            return str(_INTEGERS[kind].unpack_from(self._data, at)[0])
        if kind == _DOUBLE:
            return double_text(_FLOAT.unpack_from(self._data, at)[0])
        if kind == _TEXT:
            return _quoted(self._bytes(at).decode())
        if kind == _OPAQUE:
            return _opaque(self._data[at], self._bytes(at + 1))
        raise ValueError(f"type {kind}")

    def _container(self, kind: int, at: int, depth: int) -> str:
        width = 4 if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else 2
        count, size = self._number(at, width), self._number(at + width, width)
        if at + size > len(self._data):
            raise IndexError("it is cut off")
        entries = at + 2 * width
        if kind in (_SMALL_ARRAY, _LARGE_ARRAY):
            return "[" + ", ".join(self._entries(at, entries, count, width, depth)) + "]"
        keys = []
        for place in range(entries, entries + count * (width + 2), width + 2):
            start = at + self._number(place, width)
            keys.append(_quoted(self._slice(start, self._number(place + width, 2)).decode()))
        values = self._entries(at, entries + count * (width + 2), count, width, depth)
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"

    def _entries(self, start: int, at: int, count: int, width: int, depth: int) -> list[str]:
        """Values: small ones are in the entry itself, others at an offset from the container's start."""
        found = []
        for place in range(at, at + count * (1 + width), 1 + width):
            kind = self._data[place]
            inlined = kind in (_LITERAL, 5, 6) or (width == 4 and kind in (7, 8))
            found.append(self.value(kind, place + 1 if inlined else start + self._number(place + 1, width), depth + 1))
        return found

    def _number(self, at: int, width: int) -> int:
        return int.from_bytes(self._slice(at, width), "little")

    def _slice(self, at: int, size: int) -> bytes:
        if at + size > len(self._data):
            raise IndexError("it is cut off")
        return self._data[at : at + size]

    def _bytes(self, at: int) -> bytes:
        """Bytes behind their length, of which each byte has seven bits and says whether there is another one."""
        size = 0
        for shift in range(0, 35, 7):
            byte = self._data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return self._slice(at, size)
        raise ValueError("a length of more than five bytes")


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _opaque(kind: int, data: bytes) -> str:
    """A value of a column type that JSON doesn't have."""
    if kind == FIELD_TYPE.NEWDECIMAL:
        return decimal_reader(data[0], data[1])(data, 2)[0]
    if kind in (FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP, FIELD_TYPE.TIME):
        return f'"{_moment(kind, int.from_bytes(data[:8], "little", signed=True))}"'
    encoded = b64encode(data).decode()
    lines = [encoded[at : at + _BASE64_LINE] for at in range(0, len(encoded), _BASE64_LINE)]
    return _quoted(f"base64:type{kind}:" + "\n".join(lines))


def _moment(kind: int, packed: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    micros, whole = packed & 0xFFFFFF, packed >> 24
    clock = f"{whole >> 6 & 63:02d}:{whole & 63:02d}.{micros:06d}"
    if kind == FIELD_TYPE.TIME:
        return f"{sign}{whole >> 12 & 0x3FF:02d}:{clock}"
    year, month = divmod(whole >> 22, 13)
    day = f"{year:04d}-{month:02d}-{whole >> 17 & 31:02d}"
    return day if kind == FIELD_TYPE.DATE else f"{day} {whole >> 12 & 31:02d}:{clock}"


def double_text(number: float) -> str:
    """A double as ``my_gcvt`` writes it (strings/dtoa.cc), with ``.0`` if it would look like an integer."""
    mantissa, _, exponent = f"{abs(number)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if struct.pack("<d", number)[7] & 0x80 else ""
    if not digits:
        return f"{sign}0.0"
    if point > -_FIXED_DIGITS and (point <= _FIXED_DIGITS or len(digits) > point):
        return sign + _fixed(digits, point)
    rest = f".{digits[1:]}" if digits[1:] else ""
    return f"{sign}{digits[0]}{rest}e{point - 1}"


def _fixed(digits: str, point: int) -> str:
    if point <= 0:
        return "0." + "0" * -point + digits
    return digits[:point].ljust(point, "0") + "." + (digits[point:] or "0")
