"""The bytes of one row entry in the store.

Layout (big-endian)::

    kind u8 | ordinal u64 | timestamp i64 | tag length u32 | tag | image

``tag`` is UTF-8 ``shard 0x00 epoch 0x00 position``, followed by ``0x00 origin`` if known. It is built once for all rows
of a transaction. The image is opaque bytes until it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from stream.wire.events import ABSENT, VALUE, VOID

HEAD = struct.Struct(">BQ")
TRANSACTION = struct.Struct(">qI")
PREFIX = struct.Struct(">BQqI")
"""`HEAD` and `TRANSACTION` in one."""
_HEAD_SIZE = HEAD.size
_FIXED = HEAD.size + TRANSACTION.size

__all__ = [
    "ABSENT",
    "HEAD",
    "PREFIX",
    "TRANSACTION",
    "VALUE",
    "VOID",
    "Entry",
    "decode_entry",
    "encode_transaction_tag",
]


class Entry(NamedTuple):
    """A row entry: the state of one key, and the event that it comes from."""

    kind: int
    ordinal: int
    timestamp: int
    shard: str
    epoch: int
    position: str
    origin: str
    image: bytes


def encode_transaction_tag(shard: str, epoch: int, position: str, timestamp: int, origin: str = "") -> bytes:
    """The part of an entry that all rows of a transaction share."""
    text = f"{shard}\0{epoch}\0{position}\0{origin}" if origin else f"{shard}\0{epoch}\0{position}"
    tag = text.encode()
    return TRANSACTION.pack(timestamp, len(tag)) + tag


def encode_transaction_tags(shard: str, epoch: int, positions: Sequence[str], timestamps: Sequence[int]) -> list[bytes]:
    """`encode_transaction_tag` for several transactions of one lineage, without origins."""
    place = f"{shard}\0{epoch}\0"
    tags = [(place + position).encode() for position in positions]
    return [TRANSACTION.pack(timestamp, len(tag)) + tag for timestamp, tag in zip(timestamps, tags, strict=True)]


def decode_entry(value: bytes) -> Entry:
    """The entry in ``value``; raises ``ValueError`` or ``struct.error`` if it is not an entry."""
    kind, ordinal = HEAD.unpack_from(value)
    timestamp, size = TRANSACTION.unpack_from(value, _HEAD_SIZE)
    end = _FIXED + size
    if end > len(value):
        raise ValueError(f"the tag ends at byte {end} of an entry of {len(value)} bytes")
    shard, epoch, position, *origin = value[_FIXED:end].decode().split("\0")
    return Entry(kind, ordinal, timestamp, shard, int(epoch), position, origin[0] if origin else "", value[end:])


def kind_and_image(value: bytes) -> tuple[int, bytes]:
    """The kind of the entry in ``value``, and its image."""
    return value[0], value[_FIXED + PREFIX.unpack_from(value)[3] :]
