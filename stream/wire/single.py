"""Fast decoders for frames of one row and for markers, which small traffic consists of.

An Avro decoder's cost is per field, and a frame of one row has many fields for one key and one image. `read_single`
reads exactly the bytes that `stream.wire.frames.write` writes for one row, about four times faster
(measured: docs/internals/wire.md). For any other bytes it returns None, and `stream.wire.codec.decode` must be used.
`find_singles` finds the fields of many such frames at once, with numpy, for `stream.wire.columns`.

A marker that stands between two others of its shard differs from them in few fields. `read_marker` reads those that do.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream.wire.codec import READER_VERSION, ROW_FRAME_HEADER, current_schema
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
_STARTS_GTID: Final = int.from_bytes(_ONE_TRANSACTION, "little")
_IS_GTID_SIZE: Final = 0x7E
"""The bits of the byte after `_ONE_TRANSACTION`; twice the size. Longer GTIDs are left to the general decoder."""

Numbers: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
_MORE: Final = np.uint64(0x8080808080808080)
"""The bit of each byte that says that the integer goes on."""
_SEVENS: Final = tuple(
    (np.uint64(low), np.uint64(shift), np.uint64(high))
    for low, shift, high in (
        (0x007F007F007F007F, 1, 0x3F803F803F803F80),
        (0x00003FFF00003FFF, 2, 0x0FFFC0000FFFC000),
        (0x000000000FFFFFFF, 4, 0x00FFFFFFF0000000),
    )
)
"""Steps that put groups of seven bits beside each other: two, then four, then all eight."""
_LONG: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
"""An integer of at most nine bytes."""
_HASH: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f]|[\x80-\xff]{9}\x01)"
"""An integer of 64 bits."""
_POSITION: Final = rb"([\x80-\xff]?[\x00-\x7f])([\x20-\x7e]+)"
"""Size and text; a text that is longer is left to the general decoder."""


SingleRow: TypeAlias = tuple[int, bytes, int, bytes, bytes, bytes]
"""A frame's only row: ordinal, key, operation, image, GTID (which is also the position), timestamp (see `read_long`).

A plain tuple: creating a named tuple would cost a quarter of the decoding.
"""


@lru_cache(maxsize=256)
def single_prefix(shard: str, epoch: int) -> bytes:
    """The bytes that every frame of a lineage starts with: header, shard, epoch."""
    return ROW_FRAME_HEADER + _text(shard) + write_long(epoch)


class Mark(NamedTuple):
    """What a marker says that others of its form do not. ``continuity``, ``previous``: as they are on the wire."""

    ordinal: int
    position: str
    continuity: bytes
    previous: bytes


@lru_cache(maxsize=64)
def marker_form(shard: str, epoch: int, low_water: str, layout: str) -> re.Pattern[bytes]:
    """The markers of a lineage with this low-water and layout, for `read_marker`."""
    begin, texts = current_schema("Marker").header + _text(shard) + write_long(epoch), _text(low_water) + _text(layout)
    versions = b"".join(map(write_long, range(1, READER_VERSION + 1)))
    whole, version = rb"[\x00\x01]", b"[%s]" % re.escape(versions)
    parts = (re.escape(begin), _LONG, _POSITION, _LONG, re.escape(texts), whole, _HASH, _HASH, version, _LONG)
    return re.compile(b"".join(parts), re.DOTALL)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return write_long(len(encoded)) + encoded


def read_marker(form: re.Pattern[bytes], value: bytes) -> Mark | None:
    """The marker, if it is of ``form`` and its numbers are in their ranges; its position may be none."""
    found = form.fullmatch(value)
    if found is None:
        return None
    ordinal, size, position, _, continuity, previous, as_of_ms = found.groups()
    is_negative = (ordinal[0] | continuity[0] | previous[0] | as_of_ms[0]) & 1
    number = read_long(ordinal)
    if is_negative or number is None or read_long(size) != len(position):
        return None
    return Mark(number, position.decode("ascii"), continuity, previous)


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


class SingleRows(NamedTuple):
    """Where the fields of many frames of one row each are."""

    ordinals: Numbers
    operations: NDArray[np.uint8]
    key_starts: Numbers
    key_sizes: Numbers
    image_sizes: Numbers
    """The image begins where the key ends."""
    gtid_starts: Numbers
    gtid_sizes: Numbers
    timestamps: Numbers


def find_singles(words: Words, starts: Numbers, ends: Numbers) -> SingleRows | None:
    """The rows of frames whose `single_prefix` ends at ``starts``, by the same rules as `read_single`.

    None if any frame has another form. ``words``: the eight bytes from each place on, of a text that goes on for some
    bytes after the last frame. What is read beyond the end of a frame is never taken: it would end elsewhere then.
    """
    last = len(words) - 1
    raw, sizes = _longs(words[starts])
    at = np.minimum(starts + sizes, last)
    head = words[at].view(np.int64)
    if ((head & 0xFF) != _ONE_OPERATION).any() or (raw & 1).any():
        return None
    ordinals, operations, width = (raw >> 1) + 1, (head >> 8 & 0xFF).astype(np.uint8), head >> 16 & 0xFF
    is_wide = width == _WIDE
    lengths, bits = head >> 24, np.where(is_wide, 16, 8)
    most = (1 << bits) - 1
    key_sizes, image_sizes = lengths & most, lengths >> bits & most
    at = np.minimum(at + np.where(is_wide, 7, 5), last)
    raw, sizes = _longs(words[at])
    good = (is_wide | (width == _NARROW)) & (raw == key_sizes + image_sizes << 1)
    key_starts = at + sizes
    at = np.minimum(key_starts + key_sizes + image_sizes, last)
    tail = words[at].view(np.int64)
    gtid_sizes = tail >> 32 & 0xFF
    good &= (tail & 0xFFFFFFFF == _STARTS_GTID) & (gtid_sizes & ~_IS_GTID_SIZE == 0)
    gtid_starts, gtid_sizes = at + 5, gtid_sizes >> 1
    at = np.minimum(gtid_starts + gtid_sizes, last - len(_NO_POSITIONS))
    good &= words[at] << np.uint64(64 - 8 * len(_NO_POSITIONS)) == 0
    at += len(_NO_POSITIONS)
    raw, sizes = _longs(words[at])
    at = np.minimum(at + sizes, last)
    good &= (raw >= 0) & (words[at] & np.uint64(0xFFFF) == 0) & (at + len(_END) == ends)
    if not good.all():
        return None
    timestamps = raw >> 1 ^ -(raw & 1)
    return SingleRows(ordinals, operations, key_starts, key_sizes, image_sizes, gtid_starts, gtid_sizes, timestamps)


def _longs(words: Words) -> tuple[Numbers, Numbers]:
    """The unsigned integer that each word begins with, and its size in bytes; -1 if it is longer than the word."""
    stops = ~words & _MORE
    below = (stops & -stops) - np.uint64(1)  # the bits before the first byte that ends an integer
    groups = words & below & ~_MORE
    for low, shift, high in _SEVENS:
        groups = groups & low | groups >> shift & high
    found = groups.view(np.int64)
    if not stops.all():
        found[stops == 0] = -1
    return found, (np.bitwise_count(below) >> 3).astype(np.int64) + 1
