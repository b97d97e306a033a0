"""A fast decoder for frames of one row, which small traffic consists of.

An Avro decoder's cost is per field, and a frame of one row has many fields for one key and one image. This decoder
reads exactly the bytes that `stream.wire.frames.write` writes for one row, about four times faster
(measured: docs/internals/wire.md). For any other bytes it returns None, and `stream.wire.codec.decode` must be used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from stream.wire.codec import ROW_FRAME_HEADER
from stream.wire.frames import write_long

_ONE_OPERATION: Final = 2
_NARROW: Final = 4
"""Size of the block of lengths if both are below 256,"""
_WIDE: Final = 8
"""and if both are below 65,536. Longer rows are left to the general decoder."""
_ONE_TRANSACTION: Final = b"\x00\x02\x00\x02"
"""``ordinals`` = []; ``transactions`` = 1; ``sizes`` = []; begins ``gtids``."""
_NO_POSITIONS: Final = b"\x00\x00\x00\x00\x00"
"""Ends ``gtids``; no prefix, base and numbers; ``positions`` = []; begins ``timestamp``."""
_END: Final = b"\x00\x00"
"""``timestamps`` = []; ``origins`` = []."""
_SHIFT_MAX: Final = 56
"""Integers of more than nine bytes are left to the general decoder."""
_ROWS_SHIFT_MAX: Final = 21


SingleRow: TypeAlias = tuple[int, bytes, int, bytes, bytes, bytes]
"""A frame's only row: ordinal, key, operation, image, GTID (which is also the position), timestamp (see `read_long`).

A plain tuple: creating a named tuple would cost a quarter of the decoding.
"""


@lru_cache(maxsize=256)
def single_prefix(shard: str, epoch: int) -> bytes:
    """The bytes that every frame of a lineage starts with: header, shard, epoch."""
    name = shard.encode()
    return ROW_FRAME_HEADER + write_long(len(name)) + name + write_long(epoch)


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
        if ordinal & 1 or shift > _SHIFT_MAX or value[at + 1] != _ONE_OPERATION:
            return None
        operation, width = value[at + 2], value[at + 3]
        if width == _NARROW:
            key_size, size = value[at + 4], value[at + 5]
            at += 6
        elif width == _WIDE:
            key_size, size = value[at + 4] | value[at + 5] << 8, value[at + 6] | value[at + 7] << 8
            at += 8
        else:
            return None
        size += key_size
        rows, shift = value[at], 7
        at += 1
        while rows >> shift and shift <= _ROWS_SHIFT_MAX:
            rows = rows & (1 << shift) - 1 | value[at] << shift
            at += 1
            shift += 7
        key_end, end = at + key_size, at + size
        if not key_size or rows != size << 1 or value[end : end + 4] != _ONE_TRANSACTION:
            return None
        size = value[end + 4]
        stop = end + 5 + (size >> 1)
        if size & 0x81 or value[stop : stop + 5] != _NO_POSITIONS or value[-2:] != _END:
            return None
    except IndexError:
        return None
    return (
        (ordinal >> 1) + 1,
        value[at:key_end],
        operation,
        value[key_end:end],
        value[end + 5 : stop],
        value[stop + 5 : -2],
    )
