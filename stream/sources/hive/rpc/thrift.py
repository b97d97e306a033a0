"""Messages of Thrift's binary protocol, as they arrive on a socket: values as in `stream.sources.hive.structs`. Pure.

There are no generated classes: a struct keeps every field that the server sent
(docs/decisions/0021-thrift-without-bindings.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from stream.sources.hive.structs import (
    BOOL,
    BYTE,
    DEPTH_MAX,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    UUID,
    ListValue,
    MapValue,
    Struct,
    ThriftError,
    encode_struct,
)

BYTES_MAX: Final = 512 * 1024 * 1024
"""A larger message is refused."""
CALL, REPLY, EXCEPTION = 1, 2, 3
_VERSION: Final = 0x80010000
_FIXED: Final = {
    BYTE: struct.Struct(">b"),
    DOUBLE: struct.Struct(">d"),
    I16: struct.Struct(">h"),
    I32: struct.Struct(">i"),
    I64: struct.Struct(">q"),
}
_TYPES: Final = frozenset({*_FIXED, BOOL, STRING, STRUCT, MAP, SET, LIST, UUID})


class Reader:
    """Decodes messages from bytes that arrive in pieces. ``more``: the next bytes; raises if there are none."""

    def __init__(self, more: Callable[[], bytes]) -> None:
        self._more = more
        self._data = b""
        self._at = 0
        self._size = 0

    def message(self) -> tuple[str, int, int, Struct]:
        """(name, type, sequence, struct) of the next message. Raises `ThriftError`."""
        self._size = 0
        version = self._fixed(I32) & 0xFFFFFFFF
        if version & 0xFFFF0000 != _VERSION:
            raise ThriftError(
                "the answer is no Thrift message", hint="is this a metastore's port, without TLS or SASL?"
            )
        name, sequence = self._bytes().decode("utf-8", "replace"), self._fixed(I32)
        return name, version & 0xFF, sequence, self._struct(0)

    def _take(self, count: int) -> int:
        """Where the next ``count`` bytes begin in ``_data``, which holds them all."""
        at = self._at
        if at + count > len(self._data):
            self._receive(count)
            at = 0
        self._at = at + count
        return at

    def _receive(self, count: int) -> None:
        pieces = [self._data[self._at :]]
        held = len(pieces[0])
        while held < count:
            piece = self._more()
            self._size += len(piece)
            if self._size > BYTES_MAX:
                raise ThriftError(f"the answer is larger than {BYTES_MAX} bytes")
            pieces.append(piece)
            held += len(piece)
        self._data = b"".join(pieces)
        self._at = 0

    def _fixed(self, kind: int) -> Any:
        packing = _FIXED[kind]
        at = self._take(packing.size)
        return packing.unpack_from(self._data, at)[0]

    def _bytes(self) -> bytes:
        size = self._count()
        at = self._take(size)
        return self._data[at : at + size]

    def _count(self) -> int:
        count: int = self._fixed(I32)
        if not 0 <= count <= BYTES_MAX:
            raise ThriftError(f"a length of {count}")
        return count

    def _value(self, kind: int, depth: int) -> Any:
        if kind == STRING:
            return self._bytes()
        if kind in _FIXED:
            return self._fixed(kind)
        if kind == BOOL:
            return self._fixed(BYTE) != 0
        if kind == UUID:
            at = self._take(16)
            return self._data[at : at + 16]
        if depth > DEPTH_MAX:
            raise ThriftError(f"nested deeper than {DEPTH_MAX}")
        if kind == STRUCT:
            return self._struct(depth)
        if kind == MAP:
            return self._map(depth)
        element, count = self._fixed(BYTE), self._count()
        if count and element not in _TYPES:
            raise ThriftError(f"unknown type {element}")
        return ListValue(element, [self._value(element, depth + 1) for _ in range(count)])

    def _map(self, depth: int) -> MapValue:
        key, value, count = self._fixed(BYTE), self._fixed(BYTE), self._count()
        if count and not {key, value} <= _TYPES:
            raise ThriftError(f"unknown types {key} and {value}")
        return MapValue(
            key, value, [(self._value(key, depth + 1), self._value(value, depth + 1)) for _ in range(count)]
        )

    def _struct(self, depth: int) -> Struct:
        found: Struct = {}
        while kind := self._fixed(BYTE):
            if kind not in _TYPES:
                raise ThriftError(f"unknown type {kind}")
            number = self._fixed(I16)
            found[number] = (kind, self._value(kind, depth + 1))
        return found


def message(name: str, sequence: int, arguments: Struct) -> bytes:
    """The bytes of a call. Raises `ThriftError`."""
    raw = name.encode()
    head = struct.pack(f">II{len(raw)}si", _VERSION | CALL, len(raw), raw, sequence)
    return head + encode_struct(arguments)


def text(value: str) -> tuple[int, bytes]:
    """A ``string`` field."""
    return STRING, value.encode("utf-8", "surrogateescape")


def long(value: int) -> tuple[int, int]:
    """An ``i64`` field."""
    return I64, value


def integer(value: int) -> tuple[int, int]:
    """An ``i32`` field."""
    return I32, value


def record(value: Struct) -> tuple[int, Struct]:
    """A struct field."""
    return STRUCT, value


def texts(values: Iterable[str]) -> tuple[int, ListValue]:
    """A ``list<string>`` field."""
    return LIST, ListValue(STRING, [text(value)[1] for value in values])


def field(found: Mapping[int, tuple[int, Any]], number: int, default: Any = None) -> Any:
    """The value of field ``number``; ``default`` if it is absent. Strings are text, lists are lists."""
    typed = found.get(number)
    return default if typed is None else _plain(*typed)


def _plain(kind: int, value: Any) -> Any:
    if kind == STRING:
        return value.decode("utf-8", "surrogateescape")
    if kind in (LIST, SET):
        return [_plain(value.element, each) for each in value.values]
    if kind == MAP:
        return {_plain(value.key, key): _plain(value.value, each) for key, each in value.pairs}
    return value
