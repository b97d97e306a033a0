"""The overlay: values that reads fetched from the source, in bounded memory beside the folded state.

Tables that shall not be whole may have memory of their own: they are *hot* (docs/decisions/0026-hot-tables.md).

A fill is valid only while its key has the stamp that the fill was made over. An event or void of the key changes the
stamp and so invalidates the fill; the overlay need not follow events. A tombstone that is dropped gives its key the
stamp back that it had before. So a fill is also valid only from the low-water on, below which tombstones are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from consumers.owner.protocol import FillTable
from stream.wire.keys import SEPARATOR
from tokens import Position

ENTRY_BYTES: Final = 400
"""Estimated overhead of one fill: dict slot, place in a queue, tuple, the hash of a key that went."""
TEXT_BYTES: Final = 56
"""Of a text besides its characters."""
SMALL_SHARE: Final = 10
"""The small queue has one part in so many."""
USES_MAX: Final = 3
_PASSED_OVER_MAX: Final = 1_000
NO_TABLES: Final[Mapping[str, int]] = {}


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


Octets: TypeAlias = bytes
"""`Overlay` has a property ``bytes``."""


class _Kept:
    """A fill in a `_Region`, with its bytes. ``uses``: since it came to its place in the queue, up to `USES_MAX`."""

    __slots__ = ("fill", "is_main", "size", "uses")

    def __init__(self, fill: OverlayFill, size: int, is_main: bool) -> None:
        self.fill = fill
        self.size = size
        self.is_main = is_main
        self.uses = 0


class _Region:
    """Fills by key, at most ``bytes_max`` bytes; S3-FIFO says which goes (docs/decisions/0026-hot-tables.md).

    A new fill begins in a small queue and goes from its end, unless it was used meanwhile or is known to have been
    there lately. Then it comes to the main queue, from the end of which it goes once it is not used any more.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.evictions = 0
        self.fills: dict[bytes, _Kept] = {}
        self._small_bytes = 0
        self._small: deque[bytes] = deque()
        self._main: deque[bytes] = deque()
        """Keys, the oldest first. One whose fill is not there, or in the other queue, is passed over."""
        self._gone: dict[int, None] = {}
        """Hashes of keys that went from the small queue, the oldest first: as many as there are fills."""
        self._like: OverlayFill | None = None
        """The last fill that was put."""

    def put(self, key: bytes, fill: OverlayFill) -> bool:
        """Keeps ``fill`` in place of another one of its key; False if it alone exceeds ``bytes_max``."""
        if key in self.fills:
            self.drop(key)
        shared = self._shared(fill)
        size = _size(key, shared, self._like or shared)
        if size > self.bytes_max:
            return False
        self._like = shared
        known = hash(key)
        is_main = known in self._gone
        if is_main:
            del self._gone[known]
        while self.bytes + size > self.bytes_max:
            self._evict()
        self._keep(key, _Kept(shared, size, is_main))
        self.bytes += size
        if len(self._small) + len(self._main) > 2 * len(self.fills) + _PASSED_OVER_MAX:
            self._small = deque(key for key, kept in self.fills.items() if not kept.is_main)
            self._main = deque(key for key, kept in self.fills.items() if kept.is_main)
        return True

    def drop(self, key: bytes) -> None:
        """Removes a fill."""
        kept = self.fills.pop(key)
        self.bytes -= kept.size
        self._small_bytes -= 0 if kept.is_main else kept.size

    def clear(self) -> None:
        """Removes all fills."""
        self.fills.clear()
        self._gone.clear()
        self._small.clear()
        self._main.clear()
        self.bytes = self._small_bytes = 0

    def _keep(self, key: bytes, kept: _Kept) -> None:
        self.fills[key] = kept
        if kept.is_main:
            self._main.append(key)
        else:
            self._small.append(key)
            self._small_bytes += kept.size

    def _evict(self) -> None:
        """Takes one key from a queue: its fill goes, or is kept for another round."""
        is_small = bool(self._small) and (self._small_bytes * SMALL_SHARE >= self.bytes_max or not self._main)
        key = (self._small if is_small else self._main).popleft()
        kept = self.fills.get(key)
        if kept is None or kept.is_main is is_small:
            return
        if kept.uses:
            if is_small:
                self._small_bytes -= kept.size
                kept.is_main, kept.uses = True, 0
            else:
                kept.uses -= 1
            self._main.append(key)
            return
        self.drop(key)
        self.evictions += 1
        if is_small:
            self._gone[hash(key)] = None
            while len(self._gone) > len(self.fills):
                del self._gone[next(iter(self._gone))]

    def _shared(self, fill: OverlayFill) -> OverlayFill:
        """``fill`` with the texts of the one before it where they are the same, as they mostly are."""
        like = self._like or fill
        lo = like.lo if fill.lo == like.lo else fill.lo
        hi = lo if fill.hi == lo else fill.hi
        stamp = like.stamp if fill.stamp == like.stamp else fill.stamp
        low_water = like.low_water if fill.low_water == like.low_water else fill.low_water
        return fill._replace(lo=lo, hi=hi, stamp=stamp, low_water=low_water)


class Overlay:
    """Fills by key, at most ``bytes_max`` bytes, and so many of each ``hot`` table. For one thread."""

    def __init__(self, bytes_max: int, hot: Mapping[str, int] = NO_TABLES) -> None:
        """``bytes_max`` 0: keeps nothing but of hot tables."""
        self._others = _Region(bytes_max)
        self._hot = {table.encode() + SEPARATOR: _Region(bytes_max) for table, bytes_max in hot.items()}
        self._regions = [self._others, *self._hot.values()]

    @property
    def bytes_max(self) -> int:
        """Of tables that are not hot."""
        return self._others.bytes_max

    @bytes_max.setter
    def bytes_max(self, bytes_max: int) -> None:
        self._others.bytes_max = bytes_max

    @property
    def bytes(self) -> int:
        """Of all fills."""
        return sum(region.bytes for region in self._regions)

    @property
    def evictions(self) -> int:
        """Fills that went because there was no room."""
        return sum(region.evictions for region in self._regions)

    def __len__(self) -> int:
        return sum(len(region.fills) for region in self._regions)

    def __contains__(self, key: object) -> bool:
        return any(key in region.fills for region in self._regions)

    def get(self, key: Octets, stamp: Octets, low_water: str) -> OverlayFill | None:
        """The fill of ``key`` if it was made over ``stamp`` and at or past ``low_water``. Any other one is dropped."""
        region = self._region(key)
        kept = region.fills.get(key)
        if kept is None:
            return None
        fill = kept.fill
        if fill.stamp != stamp:
            region.drop(key)
            return None
        if fill.low_water != low_water:
            if not low_water or not Position.parse(fill.lo).at_or_past(Position.parse(low_water)):
                region.drop(key)
                return None
            fill = kept.fill = fill._replace(low_water=low_water)
        if kept.uses < USES_MAX:
            kept.uses += 1
        return fill

    def put(self, key: Octets, fill: OverlayFill) -> bool:
        """Keeps ``fill``; False if it alone exceeds what there is room for."""
        return self._region(key).put(key, fill)

    def clear(self) -> None:
        """Removes all fills."""
        for region in self._regions:
            region.clear()

    def _region(self, key: Octets) -> _Region:
        return self._hot.get(key[: key.find(SEPARATOR) + 1], self._others) if self._hot else self._others


def _size(key: Octets, fill: OverlayFill, like: OverlayFill) -> int:
    """The bytes of a fill, without the texts that it shares with another one."""
    own = [] if fill.lo is like.lo else [fill.lo]
    own += [] if fill.hi is fill.lo else [fill.hi]
    own += [] if fill.low_water is like.low_water else [fill.low_water]
    texts = sum(TEXT_BYTES + len(text) for text in own)
    texts += 0 if fill.stamp is like.stamp else TEXT_BYTES + len(fill.stamp)
    listed = len(fill.table.write_ids) if fill.table is not None else 0
    return ENTRY_BYTES + len(key) + len(fill.image or b"") + listed + texts
