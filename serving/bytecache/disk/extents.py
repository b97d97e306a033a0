"""The one way a block is read from disk: by the owner of the directory, and by every process that is attached to it.

There is no lock. The head says what a slot holds, the checksums prove it: a slot that was given to another extent
amid a read does not verify, and its head has changed.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from io import BytesIO
from struct import unpack
from time import time
from typing import Final

import xxhash

from serving.bytecache.disk.layout import (
    BLOCK,
    BLOCK_BITS,
    BLOCK_STEP,
    BLOCK_SUMS,
    BLOCKS,
    CELL,
    CELL_BITS,
    CELLS,
    EXTENT,
    GRANULE,
    GRANULE_SUMS_AT,
    GRANULES,
    HEAD_BITS,
    HEAD_READ,
    MASK,
    NONCE_ROOM,
    SEALED_CELL,
    SLOT_BYTES,
    SUMS_BYTES,
    TAG,
    UNIT_BITS,
)
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.disk.seals import Key

_xxh3 = xxhash.xxh3_64_intdigest
_pread = os.pread
_head = HEAD_READ.unpack_from
HITS_MAX: Final = 1_024
"""Hits that wait to be told to the policy."""


class DamagedBlockError(Exception):
    """Stored bytes that do not verify. ``block``: of the file, at or before the first damaged one."""

    def __init__(self, unit: int, block: int) -> None:
        super().__init__(f"block {block}")
        self.unit, self.block = unit, block


class Extents:
    """One shard, for reading.

    ``table``: key → slot, as far as this process knows; a wrong slot is no harm. ``heads``: of all slots, in shared
    memory.
    ``keys``: index in a head → key, for what this process can open. ``settle``: called when ``hits`` is long.
    """

    __slots__ = ("_data", "_heads", "_keys", "_salt", "_settle", "_sums", "hits", "table")

    def __init__(
        self, heads: mmap.mmap, sums: int, data: int, keys: dict[int, Key], salt: int, settle: Callable[[], None]
    ) -> None:
        self.table: dict[int, int] = {}
        self.hits: deque[int] = deque()
        self._heads, self._sums, self._data = heads, sums, data
        self._keys, self._salt = keys, salt
        self._settle = settle

    def present(self, number: int, unit: int) -> int:
        """Which blocks of a unit can be read, as bits."""
        slot = self.table.get(number << UNIT_BITS | unit)
        if slot is None:
            return 0
        found, found_unit, bits, expires, _ = _head(self._heads, slot << HEAD_BITS)
        return int(bits) if found == number and found_unit == unit and not 0 < expires <= time() else 0

    def prune(self) -> None:
        """Takes out of ``table`` what has left its slot, where nobody else does: in an attached process."""
        for key in list(self.table):
            slot = self.table.get(key)
            if slot is not None and _head(self._heads, slot << HEAD_BITS)[:2] != divmod(key, 1 << UNIT_BITS):
                self.table.pop(key, None)

    def read(self, file: CachedFile, unit: int, start: int, end: int) -> bytes | None:
        """The bytes from ``start`` to ``end`` of a file, which lie in ``unit``; None if not all are here.

        Raises `DamagedBlockError`, and ``OSError`` of the disk.
        """
        found = self._found(file, unit, start, end)
        if found is None:
            return None
        slot, head = found
        if secret := head[4]:
            damaged, data = self._unsealed(slot, file, start, end, secret)
        else:
            damaged, data = self._checked(slot, file, start, end)
        return data if self._holds(damaged, slot, head) else None

    def read_into(self, file: CachedFile, unit: int, start: int, into: memoryview) -> bool:
        """As `read`, into memory of the caller, whose content is undefined unless it is True.

        Only where start and end lie on granules, or cells, or at the file's end: what is verified is what is read.
        """
        end = start + len(into)
        found = self._found(file, unit, start, end)
        if found is None:
            return False
        slot, head = found
        step = CELL if head[4] else GRANULE
        if start % step or (end % step and end != file.size):
            return False
        if head[4]:
            damaged = self._unsealed_into(slot, file, start, into, head[4])
        else:
            got = os.preadv(self._data, [into], slot * SLOT_BYTES + (start & (EXTENT - 1)))
            whole = got == len(into)
            damaged = self._verify(slot, file.seed, file.size, start, end, into) if whole else start >> BLOCK_BITS
        return self._holds(damaged, slot, head)

    def _found(self, file: CachedFile, unit: int, start: int, end: int) -> tuple[int, tuple[int, ...]] | None:
        """The slot of a unit and its head, if all the blocks of the range are there."""
        number = file.number
        slot = self.table.get(number << UNIT_BITS | unit)
        if slot is None:
            return None
        head = _head(self._heads, slot << HEAD_BITS)
        found, found_unit, bits, expires, _ = head
        if found != number or found_unit != unit or (expires and expires <= time()):
            return None
        first, last = start >> BLOCK_BITS, (end - 1) >> BLOCK_BITS
        wanted = ((2 << (last - first)) - 1) << (first & (BLOCKS - 1))
        return (slot, head) if bits & wanted == wanted else None

    def _holds(self, damaged: int, slot: int, head: tuple[int, ...]) -> bool:
        """Whether what was read is good: then it was a hit. Raises `DamagedBlockError` if it is still there."""
        if damaged < 0:
            self.hits.append(head[0] << UNIT_BITS | head[1])
            if len(self.hits) > HITS_MAX:
                self._settle()
            return True
        if _head(self._heads, slot << HEAD_BITS)[:3] != head[:3]:
            return False  # it left meanwhile
        raise DamagedBlockError(head[1], damaged)

    def _checked(self, slot: int, file: CachedFile, start: int, end: int) -> tuple[int, bytes]:
        """(-1, the bytes), or (the damaged block, nothing)."""
        low, high = start & -GRANULE, (end + GRANULE - 1) & -GRANULE
        if high > file.size:
            high = file.size
        length, inner, block = high - low, low & (EXTENT - 1), low >> BLOCK_BITS
        data = _pread(self._data, length, slot * SLOT_BYTES + inner)
        if len(data) != length:
            return block, b""
        if length <= GRANULE:  # most small reads: one granule
            seed = file.seed + block * BLOCK_STEP + 1 + (low >> 12 & (GRANULES - 1))
            place = slot * SUMS_BYTES + GRANULE_SUMS_AT + (inner >> 12 << 3)
        elif length == BLOCK and not low & (BLOCK - 1):  # one block
            seed = file.seed + block * BLOCK_STEP
            place = slot * SUMS_BYTES + (inner >> BLOCK_BITS << 3)
        else:
            damaged = self._verify(slot, file.seed, file.size, low, high, memoryview(data))
            return damaged, data if low == start and high == end else data[start - low : end - low]
        if _xxh3(data, seed & MASK) != int.from_bytes(_pread(self._sums, 8, place), "little"):
            return block, b""
        return -1, data if low == start and high == end else data[start - low : end - low]

    def _verify(self, slot: int, seed: int, size: int, low: int, high: int, data: memoryview) -> int:
        """The first damaged block from ``low`` to ``high``, which lie on granules; -1 if there is none."""
        stored = _pread(self._sums, BLOCK_SUMS.size, slot * SUMS_BYTES)
        sums = BLOCK_SUMS.unpack(stored.ljust(BLOCK_SUMS.size, b"\0"))  # the file may have been cut off
        at = low
        while at < high:
            block = at >> BLOCK_BITS
            end = (block + 1) << BLOCK_BITS
            if not at & (BLOCK - 1) and high >= min(end, size):
                part = data[at - low : end - low]
                if _xxh3(part, (seed + block * BLOCK_STEP) & MASK) != sums[block & (BLOCKS - 1)]:
                    return block
            elif not self._granules_hold(slot, seed, at, data[at - low : min(end, high) - low]):
                return block
            at = end
        return -1

    def _granules_hold(self, slot: int, seed: int, at: int, data: memoryview) -> bool:
        """Whether a part of one block verifies, granule by granule."""
        count = -(-len(data) // GRANULE)
        place = slot * SUMS_BYTES + GRANULE_SUMS_AT + ((at & (EXTENT - 1)) // GRANULE << 3)
        stored = _pread(self._sums, 8 * count, place)
        if len(stored) != 8 * count:
            return False
        first = seed + (at >> BLOCK_BITS) * BLOCK_STEP + 1 + (at >> 12 & (GRANULES - 1))
        return all(
            _xxh3(data[i * GRANULE : (i + 1) * GRANULE], (first + i) & MASK) == expected
            for i, expected in enumerate(unpack(f"<{count}Q", stored))
        )

    def _unsealed(self, slot: int, file: CachedFile, start: int, end: int, key: int) -> tuple[int, bytes]:
        """As `_checked`. A tag proves a whole cell only, so whole cells are read."""
        low, high = start & -CELL, (end + CELL - 1) & -CELL
        if high > file.size:
            high = file.size
        plain = BytesIO(bytes(high - low))  # its bytes are written in place, and taken out without a copy
        damaged = self._unsealed_into(slot, file, low, plain.getbuffer(), key)
        data = plain.getvalue()
        return damaged, data if start == low and end == high else data[start - low : end - low]

    def _unsealed_into(self, slot: int, file: CachedFile, start: int, into: memoryview, key: int) -> int:
        """The damaged block, or -1. ``start`` and the end of ``into`` lie on cells, or at the file's end."""
        secret = self._keys.get(key)
        if secret is None:
            return start >> BLOCK_BITS
        first, count = start >> CELL_BITS, (len(into) + CELL - 1) >> CELL_BITS
        inner = first & (CELLS * BLOCKS - 1)
        sealed = _pread(self._data, len(into) + count * TAG, slot * SLOT_BYTES + inner * SEALED_CELL)
        nonces = _pread(self._sums, NONCE_ROOM * count, slot * SUMS_BYTES + inner * NONCE_ROOM)
        opened = secret.open_cells(nonces, memoryview(sealed), into, self._salt, file.number, first)
        return -1 if opened == count else (first + opened) // CELLS
