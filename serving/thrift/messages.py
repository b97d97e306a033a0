"""Messages of Thrift's binary protocol as they pass through: where each begins and ends, and replies. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from stream.sources.hive.rpc.thrift import BYTES_MAX, EXCEPTION, REPLY
from stream.sources.hive.structs import (
    BOOL,
    BYTE,
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
    ThriftError,
    encode_struct,
)

NAME_BYTES_MAX: Final = 256
DEPTH_MAX: Final = 64
_VERSION: Final = 0x80010000
_SIZES: Final = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8, UUID: 16}
_HEADS: Final = {STRING: 4, LIST: 5, SET: 5, MAP: 6}
"""Bytes before the values of a type: the types of these, and how many."""
_FIELD: Final = -1
"""In place of a type: the next field of a struct, or its end."""
_INTERNAL_ERROR: Final = 6
"""Of Thrift's ``TApplicationException``."""


class Head(NamedTuple):
    """The beginning of a message. ``size``: its bytes."""

    name: str
    kind: int
    sequence: int
    size: int


def head_of(data: bytes) -> Head | None:
    """The beginning of the message in ``data``; None: more of it is to come. Raises `ThriftError` if it is none."""
    if data[:2] != b"\x80\x01"[: len(data)]:
        raise ThriftError("no message of the binary protocol")
    if len(data) < 8:
        return None
    kind, size = data[3], int.from_bytes(data[4:8], "big")
    if size > NAME_BYTES_MAX:
        raise ThriftError(f"the name of a call has {size} bytes")
    if len(data) < 12 + size:
        return None
    [sequence] = struct.unpack_from(">i", data, 8 + size)
    return Head(data[8 : 8 + size].decode("utf-8", "replace"), kind, sequence, 12 + size)


class Scanner:
    """Finds the end of a struct in bytes that arrive in pieces. Looks at each of them once, and keeps none."""

    def __init__(self) -> None:
        self._waiting: list[int | list[int]] = [STRUCT]
        """What is still to come, the next one last: types, or the two types and the number of a container's values."""
        self._skipped = 0
        """Bytes of a value that are still to come."""
        self._cut = b""
        """The bytes of a length or a field that has not arrived as a whole."""
        self._size = 0

    def feed(self, data: bytes) -> int | None:
        """How many bytes of ``data`` belong to the struct; None: all, and more is to come. Raises `ThriftError`."""
        self._size += len(data)
        if self._size > BYTES_MAX:
            raise ThriftError(f"a message is larger than {BYTES_MAX} bytes")
        before, data = len(self._cut), self._cut + data
        self._cut = b""
        at = 0
        while True:
            if self._skipped:
                step = min(self._skipped, len(data) - at)
                self._skipped -= step
                at += step
                if self._skipped:
                    return None
            if not self._waiting:
                return at - before
            taken = self._step(data, at)
            if taken is None:
                self._cut = data[at:]
                return None
            at += taken

    def _step(self, data: bytes, at: int) -> int | None:
        """Reads what comes next; how many bytes that took, or None if they are not all there."""
        waiting = self._waiting
        kind = waiting[-1]
        if isinstance(kind, list):
            return self._next_of(kind)
        if kind == STRUCT:
            self._begin(_FIELD)
            return 0
        if kind == _FIELD:
            return self._field(data, at)
        if (size := _SIZES.get(kind)) is not None:
            return self._taken(size)
        head = _HEADS.get(kind)
        if head is None:
            raise ThriftError(f"a message has the unknown type {kind}")
        if len(data) < at + head:
            return None
        count = int.from_bytes(data[at + head - 4 : at + head], "big")
        if count > BYTES_MAX:
            raise ThriftError(f"a message has a length of {count}")
        if kind == STRING:
            return self._taken(head + count)
        types = data[at], data[at + head - 5]
        if all(each in _SIZES for each in types):
            of_one = _SIZES[types[0]] + (_SIZES[types[1]] if kind == MAP else 0)
            return self._taken(head + count * of_one)
        self._begin([*types, 2 * count] if kind == MAP else [types[0], types[0], count])
        return head

    def _begin(self, inside: int | list[int]) -> None:
        """What comes next is nested: ``inside`` is what it holds."""
        if len(self._waiting) > DEPTH_MAX:
            raise ThriftError(f"a message is nested more than {DEPTH_MAX} deep")
        self._waiting[-1] = inside

    def _field(self, data: bytes, at: int) -> int | None:
        if len(data) == at:
            return None
        if not data[at]:
            self._waiting.pop()
            return 1
        if len(data) < at + 3:
            return None
        self._waiting.append(data[at])
        return 3

    def _next_of(self, container: list[int]) -> int:
        """The next value of a list, set or map: keys of a map have even numbers of values left."""
        if not container[2]:
            self._waiting.pop()
            return 0
        self._waiting.append(container[container[2] % 2])
        container[2] -= 1
        return 0

    def _taken(self, size: int) -> int:
        self._waiting.pop()
        self._skipped = size
        return 0


def reply(name: str, sequence: int, result: bytes) -> bytes:
    """A message: ``result`` is the struct of what the call returns."""
    return _head(name, REPLY, sequence) + result


def failure(name: str, sequence: int, why: str) -> bytes:
    """The message that the call could not be made: a ``TApplicationException``."""
    return _head(name, EXCEPTION, sequence) + encode_struct({1: (STRING, why.encode()), 2: (I32, _INTERNAL_ERROR)})


def _head(name: str, kind: int, sequence: int) -> bytes:
    raw = name.encode()
    return struct.pack(f">II{len(raw)}si", _VERSION | kind, len(raw), raw, sequence)


def field_bytes(number: int, kind: int, value: bytes) -> bytes:
    """A field, of which ``value`` is written already."""
    return struct.pack(">bh", kind, number) + value


def list_bytes(element: int, values: Iterable[bytes]) -> bytes:
    """A list of values that are written already."""
    written = [*values]
    return struct.pack(">bI", element, len(written)) + b"".join(written)


STOP: Final = b"\x00"
"""The end of a struct."""
