"""A fast decoder for frames of one row, which small traffic consists of.

An Avro decoder's cost is per field, and a frame of one row has twelve fields for one key and one image. This decoder
reads exactly the bytes that `stream.wire.records.RowColumns.encode` writes for one row, about four times faster
(measured: docs/internals/wire.md). For any other bytes it returns None, and `stream.wire.codec.decode` must be used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from stream.wire.codec import ROW_FRAME_HEADER

_NEXT_ARRAY: Final = b"\x00\x02"
_ONE_TRANSACTION: Final = b"\x00\x02\x02\x00\x02"
"""Ends ``ordinals``; ``transactions`` = [1]; begins ``gtids``."""
_NO_POSITIONS: Final = b"\x00\x00\x02"
"""Ends ``gtids``; ``positions`` = []; begins ``timestamps``."""
_END: Final = b"\x00\x00"
"""Ends ``timestamps``; ``origins`` = []."""
_SHIFT_MAX: Final = 56
"""Integers of more than nine bytes are left to the general decoder."""


SingleRow: TypeAlias = tuple[int, bytes, int, bytes, bytes, bytes]
"""A frame's only row: ordinal, key, operation, image, GTID (which is also the position), timestamp (see `read_long`).

A plain tuple: creating a named tuple would cost a quarter of the decoding.
"""


@lru_cache(maxsize=256)
def single_prefix(shard: str, epoch: int) -> bytes:
    """The bytes that every frame of a lineage starts with: header, shard, epoch."""
    name = shard.encode()
    return ROW_FRAME_HEADER + write_long(len(name)) + name + write_long(epoch)


def write_long(value: int) -> bytes:
    """An Avro long (zigzag, seven bits a byte, low ones first)."""
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_long(encoded: bytes) -> int | None:
    """Decode ``encoded``, exactly one Avro long; None for other bytes, or for more than nine."""
    size = len(encoded)
    if not 0 < size <= 9 or encoded[-1] > 127:
        return None
    rest = shift = 0
    for byte in encoded[:-1]:
        if byte < 128:
            return None
        rest |= (byte & 127) << shift
        shift += 7
    rest |= encoded[-1] << shift
    return rest >> 1 ^ -(rest & 1)


def read_single(value: bytes, at: int) -> SingleRow | None:
    """The row of a frame whose `single_prefix` ends at ``at``; None if the frame has any other form."""
    try:
        byte = value[at]
        ordinal, shift = byte & 127, 7
        while byte > 127:
            at += 1
            byte = value[at]
            ordinal |= (byte & 127) << shift
            shift += 7
        if ordinal & 1 or shift > _SHIFT_MAX or value[at + 1] != 2:
            return None
        at += 3
        size = value[at - 1]
        if size > 127:
            high = value[at]
            at += 1
            if high > 127:
                return None
            size = size & 127 | high << 7
        end = at + (size >> 1)
        if size & 1 or value[end : end + 2] != _NEXT_ARRAY:
            return None
        key = value[at:end]
        at = end + 3
        size = value[end + 2]
        if size > 127:
            high = value[at]
            at += 1
            if high > 127:
                return None
            size = size & 127 | high << 7
        end = at + (size >> 1)
        # images end; operations of one byte; ordinals of one element
        if size & 1 or value[end : end + 2] != _NEXT_ARRAY or value[end + 3] != 2:
            return None
        relative = value[end + 4]
        if relative & 0x81 or value[end + 5 : end + 10] != _ONE_TRANSACTION:
            return None
        size = value[end + 10]
        stop = end + 11 + (size >> 1)
        if size & 0x81 or value[stop : stop + 3] != _NO_POSITIONS or value[-2:] != _END:
            return None
    except IndexError:
        return None
    ordinal = (ordinal >> 1) + (relative >> 1)
    return ordinal, key, value[end + 2], value[at:end], value[end + 11 : stop], value[stop + 3 : -2]
