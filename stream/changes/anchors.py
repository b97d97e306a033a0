"""The markers behind which a change stream can go on, of each partition. Pure.

A checkpoint's offset lies right behind a marker, and names it (`stream.changes.checkpoint`). Nothing that was told lies
between that marker and the first message that is still held but events of shards whose places say so, and messages that
nobody can read: those are told again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from stream.changes.checkpoint import Checkpoint, anchor_of


class _Anchor(NamedTuple):
    offset: int
    digest: int


class Anchors:
    """Markers by partition, as many as messages wait, at most. One without a digest ends no partition."""

    def __init__(self, begin: Checkpoint) -> None:
        digests = begin.anchors or (0,) * len(begin.offsets)
        self._found = [deque([_Anchor(at - 1, each)]) for at, each in zip(begin.offsets, digests, strict=True)]
        self._is_followed = [False] * len(begin.offsets)

    def add(self, partition: int, offset: int, marker: bytes) -> None:
        """A marker was read. It takes the place of the last one if nothing is between them that may be needed again."""
        found = self._found[partition]
        if not self._is_followed[partition]:
            found.pop()
        self._is_followed[partition] = False
        found.append(_Anchor(offset, anchor_of(marker)))

    def follow(self, partition: int) -> None:
        """Something was read that may be needed again: an event, or a marker that other partitions have not reached."""
        self._is_followed[partition] = True

    def before(self, held: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The offsets behind the last markers before ``held`` (partition → an offset, which never falls); digests."""
        for found, at in zip(self._found, held, strict=True):
            while len(found) > 1 and found[1].offset < at:
                found.popleft()
        return tuple(found[0].offset + 1 for found in self._found), tuple(found[0].digest for found in self._found)
