"""The overlay: values that reads fetched from the source, in bounded memory beside the folded state.

A fill is valid only while its key has the stamp that the fill was made over. An event or void of the key changes the
stamp and so invalidates the fill; the overlay need not follow events. A tombstone that is dropped gives its key the
stamp back that it had before. So a fill is also valid only from the low-water on, below which tombstones are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from consumers.owner.protocol import FillTable
from tokens import Position

ENTRY_BYTES: Final = 400
"""Estimated overhead of one fill: dict slots, tuple, strings."""


class OverlayFill(NamedTuple):
    """A value read from the source; ``image`` None: no such row. ``lo`` and ``hi`` are as in `Evidence`.

    ``stamp`` identifies the folded state that it was made over; ``low_water``: the highest that it is known to have
    reached. ``table`` is the whole answer for a catalog table.
    """

    image: bytes | None
    lo: str
    hi: str
    timestamp: int
    stamp: bytes
    low_water: str
    table: FillTable | None = None


class Overlay:
    """Fills by key, at most ``bytes_max`` bytes; evicts the least recently used. For one thread."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max`` 0: keeps nothing."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self.evictions = 0
        self._fills: OrderedDict[bytes, OverlayFill] = OrderedDict()

    def __len__(self) -> int:
        return len(self._fills)

    def get(self, key: bytes, stamp: bytes, low_water: str) -> OverlayFill | None:
        """The fill of ``key`` if it was made over ``stamp`` and at or past ``low_water``. Any other one is dropped."""
        fill = self._fills.get(key)
        if fill is None:
            return None
        if fill.stamp != stamp:
            self._drop(key)
            return None
        if fill.low_water != low_water:
            if not low_water or not Position.parse(fill.lo).at_or_past(Position.parse(low_water)):
                self._drop(key)
                return None
            fill = self._fills[key] = fill._replace(low_water=low_water)
        self._fills.move_to_end(key)
        return fill

    def put(self, key: bytes, fill: OverlayFill) -> bool:
        """Keeps ``fill``; False if it alone exceeds ``bytes_max``."""
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
        """Removes all fills."""
        self._fills.clear()
        self.bytes = 0


def _size(key: bytes, fill: OverlayFill) -> int:
    listed = len(fill.table.write_ids) if fill.table is not None else 0
    return ENTRY_BYTES + len(key) + len(fill.image or b"") + len(fill.lo) + len(fill.hi) + len(fill.stamp) + listed
