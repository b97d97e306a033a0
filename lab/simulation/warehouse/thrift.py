"""Thrift as a metastore speaks it, as naive as possible. Nothing of Freshet is used.

What is written is typed: a struct is ``{field id: (type, value)}``, a list ``(element type, values)``, a map of texts a
dictionary, one of something else ``(type, dictionary)``. What is read is plain: ``{field id: value}``.
"""

from __future__ import annotations

import struct
from typing import Any, Final

TYPES: Final = {"tf": 2, "i32": 8, "i16": 6, "i64": 10, "str": 11, "rec": 12, "map": 13, "lst": 15}
_FIXED: Final = {2: ">?", 6: ">h", 8: ">i", 10: ">q"}
CALL, REPLY, EXCEPTION = 1, 2, 3
_VERSION: Final = 0x80010000
Typed = tuple[str, Any]
Struct = dict[int, Typed]


def packed(kind: str, value: Any) -> bytes:
    """A value in the binary protocol."""
    number = TYPES[kind]
    if number in _FIXED:
        return struct.pack(_FIXED[number], value)
    if kind == "str":
        raw = value if isinstance(value, bytes) else value.encode()
        return struct.pack(">i", len(raw)) + raw
    if kind == "rec":
        fields = (struct.pack(">bh", TYPES[of], at) + packed(of, inner) for at, (of, inner) in value.items())
        return b"".join(fields) + b"\0"
    if kind == "map":
        of, found = value if isinstance(value, tuple) else ("str", value)
        pairs = b"".join(packed("str", key) + packed(of, each) for key, each in found.items())
        return struct.pack(">bbi", TYPES["str"], TYPES[of], len(found)) + pairs
    element, values = value
    return struct.pack(">bi", TYPES[element], len(values)) + b"".join(packed(element, each) for each in values)


def in_json(value: Struct) -> dict[str, Any]:
    """A struct as ``TJSONProtocol`` writes it."""
    return {str(at): {kind: _json_value(kind, inner)} for at, (kind, inner) in value.items()}


def _json_value(kind: str, value: Any) -> Any:
    if kind == "rec":
        return in_json(value)
    if kind == "map":
        return ["str", "str", len(value), value]
    if kind == "lst":
        element, values = value
        return [element, len(values), *(_json_value(element, each) for each in values)]
    return int(value) if kind == "tf" else value


def message(name: str, kind: int, sequence: int, body: Struct) -> bytes:
    """A whole message."""
    raw = name.encode()
    return struct.pack(f">Ii{len(raw)}si", _VERSION | kind, len(raw), raw, sequence) + packed("rec", body)


def read_call(data: bytes) -> tuple[str, int, dict[int, Any]]:
    """(name, sequence, arguments) of a call."""
    version, size = struct.unpack_from(">Ii", data, 0)
    assert version == _VERSION | CALL, "no call"
    name = data[8 : 8 + size].decode()
    [sequence] = struct.unpack_from(">i", data, 8 + size)
    arguments, end = _read(data, 12 + size, TYPES["rec"])
    assert end == len(data), "more than one call"
    return name, sequence, arguments


def _read(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in _FIXED:
        return struct.unpack_from(_FIXED[kind], data, at)[0], at + struct.calcsize(_FIXED[kind])
    if kind == TYPES["str"]:
        end = at + 4 + struct.unpack_from(">i", data, at)[0]
        return data[at + 4 : end].decode(), end
    if kind == TYPES["rec"]:
        found: dict[int, Any] = {}
        while data[at]:
            of, number = struct.unpack_from(">bh", data, at)
            found[number], at = _read(data, at + 3, of)
        return found, at + 1
    assert kind == TYPES["lst"], f"type {kind}"
    element, count = struct.unpack_from(">bi", data, at)
    at += 5
    values = []
    for _ in range(count):
        each, at = _read(data, at, element)
        values.append(each)
    return values, at
