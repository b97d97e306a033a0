"""The digest of a folded state: equal states have equal digests, in any process. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import xxhash

_LENGTHS = struct.Struct(">II")


class Digest:
    """XXH3-128 over (key, value) pairs in key order, each prefixed with its lengths, and the number of pairs."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = xxhash.xxh3_128()

    def add(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Adds pairs, which follow all earlier ones."""
        pack, update = _LENGTHS.pack, self._digest.update
        buffer: list[bytes] = []
        count = 0
        for key, value in items:
            buffer += (pack(len(key), len(value)), key, value)
            count += 1
            if len(buffer) >= 3000:
                update(b"".join(buffer))
                buffer.clear()
        update(b"".join(buffer))
        self.count += count

    def copy(self) -> Digest:
        """A digest that goes on from here by itself."""
        other = Digest()
        other.count, other._digest = self.count, self._digest.copy()
        return other

    def hex(self) -> str:
        """The digest of the pairs so far, in hex."""
        return str(self._digest.hexdigest())


def digest_items(items: Iterable[tuple[bytes, bytes]]) -> tuple[str, int]:
    """The `Digest` of pairs in key order, in hex, and their number."""
    digest = Digest()
    digest.add(items)
    return digest.hex(), digest.count
