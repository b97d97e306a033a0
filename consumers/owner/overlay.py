"""Fills: what reads brought from the source, beside the folded state. Bounded, in memory, never in a digest.

An entry answers only while the stamp of its key is the one that it was made over: any event or void of the key
silences it at once, whether or not anybody has removed it. So nothing here needs to be told of events.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

from consumers.owner.protocol import FillTable

ENTRY_BYTES: Final = 400
"""Charged for each entry beside its bytes: dict slots, tuple, texts."""


class OverlayFill(NamedTuple):
    """A value read from the source. ``image`` None: no such row. ``lo`` decides freshness, ``hi`` is taken away.

    ``stamp`` is what it was made over; ``table`` is the whole answer where the key is a catalog table's.
    """

    image: bytes | None
    lo: str
    hi: str
    timestamp: int
    stamp: Hashable
    table: FillTable | None = None


class Overlay:
    """Fills by key, at most ``bytes_max`` of them; the least recently used goes first. One thread."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max`` 0: nothing is kept."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self.evictions = 0
        self._fills: OrderedDict[bytes, OverlayFill] = OrderedDict()

    def __len__(self) -> int:
        return len(self._fills)

    def get(self, key: bytes, stamp: Hashable) -> OverlayFill | None:
        """The fill of ``key`` if it was made over ``stamp``; one that was not is dropped: it can't answer again."""
        fill = self._fills.get(key)
        if fill is None:
            return None
        if fill.stamp != stamp:
            self._drop(key)
            return None
        self._fills.move_to_end(key)
        return fill

    def put(self, key: bytes, fill: OverlayFill) -> bool:
        """Keeps ``fill``; False if it alone is above the bound."""
        if key in self._fills:
            self._drop(key)
        size = _size(key, fill)
        if size > self.bytes_max:
            return False
        self._fills[key] = fill
        self.bytes += size
        while self.bytes > self.bytes_max:
            oldest = next(iter(self._fills))
            self._drop(oldest)
            self.evictions += 1
        return True

    def _drop(self, key: bytes) -> None:
        self.bytes -= _size(key, self._fills.pop(key))

    def clear(self) -> None:
        """Forgets everything."""
        self._fills.clear()
        self.bytes = 0


def _size(key: bytes, fill: OverlayFill) -> int:
    listed = len(fill.table.write_ids) if fill.table is not None else 0
    return ENTRY_BYTES + len(key) + len(fill.image or b"") + len(fill.lo) + len(fill.hi) + listed
