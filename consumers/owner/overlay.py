"""The overlay: values that reads fetched from the source, in bounded memory beside the folded state.

Tables that shall not be whole may have memory of their own: they are *hot* (docs/decisions/0026-hot-tables.md).

A fill is valid only while its key has the stamp that the fill was made over. An event or void of the key changes the
stamp and so invalidates the fill; the overlay need not follow events. A tombstone that is dropped gives its key the
stamp back that it had before. So a fill is also valid only from the low-water on, below which tombstones are dropped.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec
import xxhash

from consumers.owner.protocol import FillTable
from stream.wire.keys import SEPARATOR
from tokens import Position

ENTRY_BYTES: Final = 250
"""What a fill takes besides key, image and positions, measured at worst: objects, place in a queue, a remembered key,
and 55 to 115 of a dict that others leave all the time."""
TEXT_BYTES: Final = 56
"""Of a text or a tuple besides what is in it."""
TABLE_BYTES: Final = 300
"""What the answer for a catalog table takes besides its image and its list."""
SMALL_SHARE: Final = 10
"""The small queue has one part in so many."""
USES_MAX: Final = 3
_PASSED_OVER_MAX: Final = 1_000
_SHARED_MAX: Final = 256
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


Over: TypeAlias = tuple[bytes, str]
"""Stamp and low-water of a fill: many fills share one."""


class _Value(msgspec.Struct, array_like=True, gc=False):
    """What is packed of a fill. ``hi`` "": it is ``lo``."""

    image: bytes | None
    lo: str
    hi: str
    timestamp: int


_buffer = bytearray()
_pack_into = msgspec.msgpack.Encoder().encode_into
_unpack = msgspec.msgpack.Decoder(_Value).decode


class _Kept(msgspec.Struct, gc=False):
    """A fill in a `_Region`: ``packed`` is its `_Value`. ``uses``: since it came to its place in the queue.

    ``pays``: ``over`` came with it, so its bytes count here.
    """

    packed: bytes
    over: Over
    is_main: bool
    pays: bool
    uses: int = 0

    def fill(self) -> OverlayFill:
        """The fill."""
        value = _unpack(self.packed)
        return OverlayFill(value.image, value.lo, value.hi or value.lo, value.timestamp, *self.over)

    def size(self, key: bytes) -> int:
        """Its bytes under ``key``."""
        size = ENTRY_BYTES + len(key) + len(self.packed)
        return size + 2 * TEXT_BYTES + len(self.over[0]) + len(self.over[1]) if self.pays else size


class _KeptTable(_Kept, kw_only=True, gc=False):
    """The fill of a catalog table: its image is not packed."""

    table: FillTable

    def fill(self) -> OverlayFill:
        return _Kept.fill(self)._replace(table=self.table, image=self.table.image)

    def size(self, key: bytes) -> int:
        return _Kept.size(self, key) + TABLE_BYTES + len(self.table.write_ids) + len(self.table.image)


class _Gone:
    """Which keys went lately, as far as there is room: about as many as were kept at most. Four to eight bytes each.

    A key that goes takes the place of an older one. Another key may be taken for it, once in many thousands.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all."""
        self._marks = array("I", bytes(4 * 64))

    def add(self, key: bytes, kept: int) -> None:
        """Remembers ``key``. ``kept``: so many others are kept now."""
        while len(self._marks) < kept:
            marks = array("I", bytes(8 * len(self._marks)))
            for mark in self._marks:
                if mark:
                    marks[mark & len(marks) - 1] = mark
            self._marks = marks
        mark = _mark(key)
        self._marks[mark & len(self._marks) - 1] = mark

    def pop(self, key: bytes) -> bool:
        """Whether ``key`` is remembered, which it is no more."""
        mark = _mark(key)
        at = mark & len(self._marks) - 1
        found = self._marks[at] == mark
        if found:
            self._marks[at] = 0
        return found


def _mark(key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key) >> 32 or 1


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
        self._gone = _Gone()
        """Keys that went from the small queue."""
        self._overs: dict[Over, Over] = {}
        """Those that were seen last."""

    def put(self, key: bytes, fill: OverlayFill) -> bool:
        """Keeps ``fill`` in place of another one of its key; False if it alone exceeds ``bytes_max``."""
        if key in self.fills:
            self.drop(key)
        kept = self._kept(fill)
        size = kept.size(key)
        if size > self.bytes_max:
            return False
        kept.is_main = self._gone.pop(key)
        while self.bytes + size > self.bytes_max:
            self._evict()
        self._keep(key, kept, size)
        if len(self._small) + len(self._main) > 2 * len(self.fills) + _PASSED_OVER_MAX:
            self._small = deque(key for key, kept in self.fills.items() if not kept.is_main)
            self._main = deque(key for key, kept in self.fills.items() if kept.is_main)
        return True

    def drop(self, key: bytes) -> None:
        """Removes a fill."""
        kept = self.fills.pop(key)
        size = kept.size(key)
        self.bytes -= size
        self._small_bytes -= 0 if kept.is_main else size

    def clear(self) -> None:
        """Removes all fills."""
        self.fills.clear()
        self._gone.clear()
        self._small.clear()
        self._main.clear()
        self.bytes = self._small_bytes = 0

    def _kept(self, fill: OverlayFill) -> _Kept:
        own = fill.stamp, fill.low_water
        over = self._shared(own)
        image = fill.image if fill.table is None else None
        _pack_into(_Value(image, fill.lo, fill.hi if fill.hi != fill.lo else "", fill.timestamp), _buffer)
        packed = bytes(_buffer)  # what the encoder makes itself takes a third more than it holds
        if fill.table is None:
            return _Kept(packed, over, is_main=False, pays=over is own)
        return _KeptTable(packed, over, is_main=False, pays=over is own, table=fill.table)

    def _shared(self, over: Over) -> Over:
        """``over`` as other fills have it, or itself."""
        if over not in self._overs and len(self._overs) >= _SHARED_MAX:
            self._overs.clear()
        return self._overs.setdefault(over, over)

    def reached(self, key: bytes, kept: _Kept, low_water: str) -> None:
        """The fill ``kept`` is known to have reached ``low_water``."""
        before, own = kept.size(key), (kept.over[0], low_water)
        kept.over = self._shared(own)
        kept.pays = kept.over is own
        more = kept.size(key) - before
        self.bytes += more
        self._small_bytes += 0 if kept.is_main else more

    def _keep(self, key: bytes, kept: _Kept, size: int) -> None:
        self.fills[key] = kept
        self.bytes += size
        if kept.is_main:
            self._main.append(key)
        else:
            self._small.append(key)
            self._small_bytes += size

    def _evict(self) -> None:
        """Takes one key from a queue: its fill goes, or is kept for another round."""
        is_small = bool(self._small) and (self._small_bytes * SMALL_SHARE >= self.bytes_max or not self._main)
        key = (self._small if is_small else self._main).popleft()
        kept = self.fills.get(key)
        if kept is None or kept.is_main is is_small:
            return
        if kept.uses:
            if is_small:
                self._small_bytes -= kept.size(key)
                kept.is_main, kept.uses = True, 0
            else:
                kept.uses -= 1
            self._main.append(key)
            return
        self.drop(key)
        self.evictions += 1
        if is_small:
            self._gone.add(key, len(self.fills))


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
        if kept.over[0] != stamp:
            region.drop(key)
            return None
        fill = kept.fill()
        if kept.over[1] != low_water:
            if not low_water or not Position.parse(fill.lo).at_or_past(Position.parse(low_water)):
                region.drop(key)
                return None
            region.reached(key, kept, low_water)
            fill = fill._replace(low_water=low_water)
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
