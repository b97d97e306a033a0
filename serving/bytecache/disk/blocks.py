"""Blocks as they are written: bytes, then checksums or nonces, neighbours in one write."""

from __future__ import annotations

from collections.abc import Mapping

from serving.bytecache.disk.layout import (
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
from serving.bytecache.disk.space import write_all, write_together


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


def _runs(parts: Mapping[int, memoryview]) -> list[list[int]]:
    """Neighbouring blocks together; only the last one of a run may be short."""
    runs: list[list[int]] = []
    for block in parts:
        if runs and runs[-1][-1] == block - 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs
