"""The digest of a folded state: equal states have equal digests, in any process. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import xxhash

_LENGTHS = struct.Struct(">II")


def digest_items(items: Iterable[tuple[bytes, bytes]]) -> tuple[str, int]:
    """XXH3-128 (hex) over (key, value) pairs in key order, each prefixed with its lengths, and the number of pairs."""
    digest = xxhash.xxh3_128()
    pack = _LENGTHS.pack
    update = digest.update
    count = 0
    buffer: list[bytes] = []
    for key, value in items:
        buffer += (pack(len(key), len(value)), key, value)
        count += 1
        if len(buffer) >= 3000:
            update(b"".join(buffer))
            buffer.clear()
    update(b"".join(buffer))
    return digest.hexdigest(), count
