"""Which bytes to ask a remote store for. Pure.

A remote read costs a round trip, whatever its length: neighbours, and blocks with a small gap between them, are asked
for together. A gap that is here already is never asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from serving.bytecache.disk.layout import BLOCK, BLOCK_BITS, EXTENT_BITS


def pieces(start: int, end: int) -> Iterable[tuple[int, int]]:
    """The range cut at the ends of extents."""
    while start < end:
        stop = min(end, ((start >> EXTENT_BITS) + 1) << EXTENT_BITS)
        yield start, stop
        start = stop


def blocks_of(start: int, end: int) -> range:
    """The blocks that a range touches; none for an empty one."""
    return range(start >> BLOCK_BITS, ((end - 1) >> BLOCK_BITS) + 1) if start < end else range(0)


def with_gaps(missing: Sequence[int], gap: int, absent: Callable[[int], bool]) -> list[int]:
    """``missing`` (ascending) and the ``absent`` blocks between two of them that are at most ``gap`` bytes apart."""
    found: list[int] = []
    for block in missing:
        between = range(found[-1] + 1, block) if found else range(0)
        if between and len(between) * BLOCK <= gap and all(absent(each) for each in between):
            found += between
        found.append(block)
    return found


def ahead_of(missing: Sequence[int], expected: int, window: int, room: int) -> range:
    """Blocks behind ``missing`` to fetch along, for a reader that goes on where its last fetch ended (``expected``).

    As many as it misses at first, then twice the last ``window``, at most ``room``: each round trip brings more.
    """
    if missing[0] != expected or missing[-1] - missing[0] + 1 != len(missing):
        return range(0)
    return range(missing[-1] + 1, missing[-1] + 1 + max(0, min(max(len(missing), 2 * window), room)))


def requests(blocks: Sequence[int], longest: int) -> list[range]:
    """Neighbouring blocks (ascending) as one remote read each, of at most ``longest`` bytes."""
    found: list[range] = []
    for block in blocks:
        if found and found[-1].stop == block and (len(found[-1]) + 1) * BLOCK <= longest:
            found[-1] = range(found[-1].start, block + 1)
        else:
            found.append(range(block, block + 1))
    return found
