"""The numbers of the format on disk, and its fixed records. Pure. The page is docs/internals/bytes.md.

A file is cut into extents of 1 MiB, an extent into 16 blocks of 64 KiB, a block into 16 granules of 4 KiB. Blocks are
fetched and present; extents have a place (a slot) and leave together; granules are verified, so that a small read stays
small.

A *unit* is an extent of one kind: ``extent * 2``, or one more for its blocks of value INDEX and above, which must
not leave with the pages beside them. A *key* is a unit of one file version (its number): ``number << 40 | unit``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

FORMAT_VERSION: Final = 1
FILES: Final = ("heads", "sums", "heat", "data")
"""Of a shard."""
BLOCK_BITS: Final = 16
EXTENT_BITS: Final = 20
BLOCK: Final = 1 << BLOCK_BITS
EXTENT: Final = 1 << EXTENT_BITS
GRANULE: Final = 4_096
BLOCKS: Final = EXTENT // BLOCK
"""Blocks of an extent."""
GRANULES: Final = BLOCK // GRANULE
"""Granules of a block."""
UNIT_BITS: Final = 40
SLOT_BYTES: Final = EXTENT + GRANULE
"""Room of one extent in the data file. The last page is for the tags of sealed cells."""
CELL_BITS: Final = 14
CELL: Final = 1 << CELL_BITS
"""What is encrypted as one: 16 KiB. A tag proves a whole cell only; smaller ones would make long reads slow."""
CELLS: Final = BLOCK // CELL
"""Cells of a block."""
TAG: Final = 16
SEALED_CELL: Final = CELL + TAG
SEALED_BLOCK: Final = CELLS * SEALED_CELL
SIZE_MAX: Final = 1 << (EXTENT_BITS + UNIT_BITS - 1)
"""Of a remote file, in bytes."""
PAGE: Final = 4_096
"""What file systems allocate at least."""

HEAD: Final = Struct("<QQIIHBxIQ16xQ")
"""number, unit, present blocks as bits, expiry (s since 1970, 0: none), key, value, stored at (s), sequence, check."""
KEYS_MAX: Final = (1 << 16) - 1
"""That a head can name."""
HEAD_READ: Final = Struct("<QQIIH")
"""What a read needs of it."""
EXPIRES_MAX: Final = (1 << 32) - 1
"""The last second that a head can name: what would expire later does so then."""
HEAD_BITS: Final = 6
HEAD_BYTES: Final = 1 << HEAD_BITS
EMPTY_HEAD: Final = bytes(HEAD_BYTES)

SUMS_BYTES: Final = 8 * BLOCKS * (1 + GRANULES)
"""Of a slot: a checksum for each block, then for each granule; or a nonce for each cell (12 bytes, padded to 16)."""
BLOCK_SUMS: Final = Struct(f"<{BLOCKS}Q")
GRANULE_SUMS_AT: Final = BLOCK_SUMS.size
NONCE: Final = 12
NONCE_ROOM: Final = 16

MASK: Final = 2**64 - 1
_FILE_STEP: Final = 0x9E3779B97F4A7C15
BLOCK_STEP: Final = 0xC2B2AE3D27D4EB4F


def file_seed(salt: int, number: int) -> int:
    """Where the seeds of a file version's checksums begin: what was stored for another one never verifies."""
    return (salt + number * _FILE_STEP) & MASK


def block_seed(seed: int, block: int) -> int:
    """The seed of a block's checksum; granule ``g`` has ``+ 1 + g``. ``seed``: of `file_seed`."""
    return (seed + block * BLOCK_STEP) & MASK


def block_length(size: int, block: int) -> int:
    """The bytes of a block: the last one of a file may be short."""
    return max(0, min(BLOCK, size - (block << BLOCK_BITS)))


def pages(length: int, *, sealed: bool) -> int:
    """The bytes that a block takes on disk, at most. Blocks with a tag begin within a page."""
    return -(-(length + (CELLS * TAG if sealed else 0)) // PAGE) * PAGE


_FULL: Final = {sealed: pages(BLOCK, sealed=sealed) for sealed in (False, True)}


def cost_on_disk(unit: int, bits: int, size: int, *, sealed: bool) -> int:
    """The bytes that the blocks ``bits`` of a unit take on disk, at most. ``size``: of the file."""
    first = (unit >> 1) * BLOCKS
    if (first + BLOCKS) << BLOCK_BITS <= size:  # all blocks are whole
        return bits.bit_count() * _FULL[sealed]
    lengths = (block_length(size, first + i) for i in range(BLOCKS) if bits >> i & 1)
    return sum(pages(length, sealed=sealed) for length in lengths)
