"""Thrift structs as values that lose nothing: read and written in the binary protocol, read from TJSON. Pure.

A struct is ``{field id: (type, value)}`` in the order in which it was written, so fields that this version does not
know survive. Strings are bytes. `encode_struct` of what `decode_struct` returned gives the same bytes. The binary
protocol is what engines speak to a metastore, so a stored struct can be put into an answer as it is.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from tokens.errors import FreshetError

BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST, UUID = 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16
DEPTH_MAX: Final = 64
_FIXED: Final = {BYTE: ">b", DOUBLE: ">d", I16: ">h", I32: ">i", I64: ">q"}
_SIZES: Final = {
    BOOL: 1,
    BYTE: 1,
    DOUBLE: 8,
    I16: 2,
    I32: 4,
    I64: 8,
    STRING: 4,
    STRUCT: 1,
    MAP: 6,
    SET: 5,
    LIST: 5,
    UUID: 16,
}
"""The least bytes that a value of the type takes."""
_JSON_TYPES: Final = {
    "tf": BOOL, "i8": BYTE, "dbl": DOUBLE, "i16": I16, "i32": I32, "i64": I64,
    "str": STRING, "rec": STRUCT, "map": MAP, "set": SET, "lst": LIST,
}  # fmt: skip

Struct: TypeAlias = dict[int, tuple[int, Any]]


class ListValue(NamedTuple):
    """A Thrift list or set: the type of its elements, and the elements."""

    element: int
    values: list[Any]


class MapValue(NamedTuple):
    """A Thrift map: types of keys and values, and its pairs in order."""

    key: int
    value: int
    pairs: list[tuple[Any, Any]]


class ThriftError(FreshetError, ValueError):
    """Bytes or JSON that are no Thrift message or struct, or cannot be written as one. Code ``bad_thrift``."""

    code = "bad_thrift"


def encode_struct(value: Struct) -> bytes:
    """The struct in the binary protocol. Raises `ThriftError` for a value that its type cannot hold."""
    out = bytearray()
    try:
        _write(out, STRUCT, value)
    except (struct.error, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise ThriftError(f"the struct cannot be written: {error}") from error
    return bytes(out)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind == STRING:
        out += struct.pack(">I", len(value)) + value
    elif kind == BOOL:
        out.append(1 if value else 0)
    elif kind in _FIXED:
        out += struct.pack(_FIXED[kind], value)
    elif kind == STRUCT:
        for number, (of_field, inner) in value.items():
            out += struct.pack(">bh", of_field, number)
            _write(out, of_field, inner)
        out.append(0)
    elif kind in (LIST, SET):
        out += struct.pack(">bI", value.element, len(value.values))
        for each in value.values:
            _write(out, value.element, each)
    elif kind == MAP:
        out += struct.pack(">bbI", value.key, value.value, len(value.pairs))
        for key, each in value.pairs:
            _write(out, value.key, key)
            _write(out, value.value, each)
    elif kind == UUID and len(value) == _SIZES[UUID]:
        out += value
    else:
        raise ValueError(f"unknown Thrift type {kind}")


def decode_struct(data: bytes) -> Struct:
    """The struct in ``data``, which must end with it. Raises `ThriftError`."""
    found, end = read_struct(data, 0)
    if end != len(data):
        raise ThriftError(f"the struct ends at byte {end} of {len(data)}")
    return found


def read_struct(data: bytes, at: int) -> tuple[Struct, int]:
    """The struct that begins at byte ``at``, and where it ends. Raises `ThriftError`."""
    try:
        found, end = _read(data, at, STRUCT, 0)
    except (struct.error, IndexError) as error:
        raise ThriftError(f"the struct is cut off after {len(data)} bytes") from error
    return found, end


def _read(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == STRING:
        end = at + 4 + struct.unpack_from(">I", data, at)[0]
        return bytes(data[at + 4 : _within(data, end)]), end
    if kind == BOOL:
        return data[at] != 0, at + 1
    if kind in _FIXED:
        return struct.unpack_from(_FIXED[kind], data, at)[0], at + _SIZES[kind]
    if kind == UUID:
        return bytes(data[at : _within(data, at + 16)]), at + 16
    if depth > DEPTH_MAX:
        raise ThriftError(f"a struct is nested more than {DEPTH_MAX} deep")
    if kind == STRUCT:
        return _read_fields(data, at, depth)
    if kind in (LIST, SET):
        element, count = struct.unpack_from(">bI", data, at)
        at = _fits(data, at + 5, count, _SIZES.get(element, 1))
        values = []
        for _ in range(count):
            each, at = _read(data, at, element, depth + 1)
            values.append(each)
        return ListValue(element, values), at
    if kind == MAP:
        return _read_map(data, at, depth)
    raise ThriftError(f"unknown Thrift type {kind} at byte {at}")


def _read_fields(data: bytes, at: int, depth: int) -> tuple[Struct, int]:
    found: Struct = {}
    while data[at]:
        kind, number = struct.unpack_from(">bh", data, at)
        if number in found:
            raise ThriftError(f"field {number} is there twice")
        value, at = _read(data, at + 3, kind, depth + 1)
        found[number] = (kind, value)
    return found, at + 1


def _read_map(data: bytes, at: int, depth: int) -> tuple[MapValue, int]:
    of_key, of_value, count = struct.unpack_from(">bbI", data, at)
    at = _fits(data, at + 6, count, _SIZES.get(of_key, 1) + _SIZES.get(of_value, 1))
    pairs = []
    for _ in range(count):
        key, at = _read(data, at, of_key, depth + 1)
        value, at = _read(data, at, of_value, depth + 1)
        pairs.append((key, value))
    return MapValue(of_key, of_value, pairs), at


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise ThriftError(f"the struct is cut off after {len(data)} bytes")
    return end


def _fits(data: bytes, at: int, count: int, size: int) -> int:
    _within(data, at + count * size)
    return at


def struct_of_json(fields: Mapping[str, Any]) -> Struct:
    """The struct that ``TJSONProtocol`` wrote as ``{"<field id>": {"<type>": value}}``. Raises `ThriftError`.

    A binary field is base64 there and does not say so: it stays that text here.
    """
    try:
        return _struct_of_json(fields, 0)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ThriftError(f"not a Thrift struct in JSON: {type(error).__name__} {error}") from error


def _struct_of_json(fields: Mapping[str, Any], depth: int) -> Struct:
    found: Struct = {}
    for number, typed in fields.items():
        [(kind, inner)] = typed.items()
        found[int(number)] = (_JSON_TYPES[kind], _of_json(_JSON_TYPES[kind], inner, depth))
    return found


def _of_json(kind: int, inner: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} deep")
    if kind == STRING:
        text: str = inner
        return text.encode()
    if kind == STRUCT:
        return _struct_of_json(inner, depth + 1)
    if kind in (LIST, SET):
        element, _, *values = inner
        of_element = _JSON_TYPES[element]
        return ListValue(of_element, [_of_json(of_element, each, depth + 1) for each in values])
    if kind == MAP:
        key, element, _, entries = inner
        of_key, of_value = _JSON_TYPES[key], _JSON_TYPES[element]
        if entries and of_key in (STRUCT, LIST, SET, MAP):
            raise ValueError("TJSON has no form for a map with such keys")
        pairs = [(_of_json(of_key, each, depth + 1), _of_json(of_value, entries[each], depth + 1)) for each in entries]
        return MapValue(of_key, of_value, pairs)
    if kind == DOUBLE:
        return float(inner)
    return bool(int(inner)) if kind == BOOL else int(inner)


def text_of(raw: bytes) -> str | None:
    """A string field as text; None if it is no UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def plain_string(raw: bytes) -> Any:
    """A string as JSON has it: text, or base64 of bytes that are none."""
    text = text_of(raw)
    return text if text is not None else {"base64": base64.b64encode(raw).decode()}


def plain_number(value: Any) -> Any:
    """A number as JSON has it: a double that JSON has no number for is text."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
