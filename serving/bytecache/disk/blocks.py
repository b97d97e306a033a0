"""Blocks in a shard's files: how they are written, and how those go that a killed process left behind.

Bytes are written before checksums or nonces, neighbours at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from serving.bytecache.disk.layout import (
    BLOCK,
    BLOCK_BITS,
    BLOCKS,
    CELLS,
    GRANULE_SUMS_AT,
    GRANULES,
    NONCE_ROOM,
    SEALED_BLOCK,
    SLOT_BYTES,
    SUMS_BYTES,
)
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.disk.seals import Key, checksums, seal_block
from serving.bytecache.disk.space import punch_hole, write_all, write_together


def write_blocks(
    data: int, sums: int, slot: int, file: CachedFile, salt: int, key: Key | None, parts: Mapping[int, memoryview]
) -> None:
    """Into the files ``data`` and ``sums`` of a shard. ``parts``: block → bytes, ascending. Raises ``OSError``."""
    place, sums_place = slot * SLOT_BYTES, slot * SUMS_BYTES
    for run in _runs(parts):
        inner = run[0] % BLOCKS
        if key is not None:
            sealed = [seal_block(key, parts[b], salt, file.number, b) for b in run]
            write_all(data, b"".join(cells for _, cells in sealed), place + inner * SEALED_BLOCK)
            nonces = b"".join(each for each, _ in sealed)
            write_all(sums, nonces, sums_place + inner * CELLS * NONCE_ROOM)
            continue
        write_together(data, [parts[block] for block in run], place + (inner << BLOCK_BITS))
        checked = [checksums(parts[block], file.seed, block) for block in run]
        write_all(sums, b"".join(each for each, _ in checked), sums_place + 8 * inner)
        granules = b"".join(each for _, each in checked)
        write_all(sums, granules, sums_place + GRANULE_SUMS_AT + 8 * GRANULES * inner)


def clear_unused(data: int, free: Sequence[int], high: int) -> None:
    """Extents that have no head: a process was killed as it stored or removed them. They would count for nobody."""
    for first, end in unused_runs(free, high):
        at = first * SLOT_BYTES
        while end is None or at < end * SLOT_BYTES:
            try:
                slot = os.lseek(data, at, os.SEEK_DATA) // SLOT_BYTES
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return  # nothing but a hole from here on
            if end is None or slot < end:
                punch_hole(data, slot * SLOT_BYTES, SLOT_BYTES)
            at = (slot + 1) * SLOT_BYTES


def clear_missing(data: int, extents: Iterable[tuple[int, int, bool]], cost: int) -> None:
    """Blocks that extents with a head lack: a process was killed as it let one grow.

    ``extents``: (slot, present blocks as bits, whether they are sealed), maybe millions: they are looked at only until
    the file takes no more than ``cost``, the bytes that its entries take at most.
    """
    for slot, bits, sealed in extents:
        if os.fstat(data).st_blocks * 512 <= cost:
            return
        length = SEALED_BLOCK if sealed else BLOCK
        for first, end in missing_runs(bits):
            punch_hole(data, slot * SLOT_BYTES + first * length, (end - first) * length)


def unused_runs(free: Sequence[int], high: int) -> Iterator[tuple[int, int | None]]:
    """(first, end) of neighbouring free slots; the last one, from ``high`` on, has no end."""
    first = None
    for i, slot in enumerate(free):
        first = slot if first is None else first
        if i + 1 == len(free) or free[i + 1] != slot + 1:
            yield first, slot + 1
            first = None
    yield high, None


def missing_runs(bits: int) -> Iterator[tuple[int, int]]:
    """(first, end) of neighbouring blocks that an extent lacks."""
    for is_here, run in groupby(range(BLOCKS), lambda block: bits >> block & 1):
        if not is_here:
            first, *others = run
            yield first, first + len(others) + 1


def _runs(parts: Mapping[int, memoryview]) -> list[list[int]]:
    """Neighbouring blocks together; only the last one of a run may be short."""
    runs: list[list[int]] = []
    for block in parts:
        if runs and runs[-1][-1] == block - 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs
