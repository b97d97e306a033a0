"""The last items of a keyspace's change stream, for all readers that have caught up. Thread-safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Final, NamedTuple

from stream.changes.checkpoint import NOWHERE, Checkpoint, Place
from stream.changes.items import Item, Transaction, Unreadable, Watermark
from tokens.errors import FreshetError

BYTES_MAX: Final = 64 * 1024 * 1024
ITEMS_MAX: Final = 50_000
_ITEM_BYTES: Final = 500


class Read(NamedTuple):
    """What a reader finds. ``number``: of the item that it reads next. None instead of this: it was too slow.

    ``watermark``: how far everything is, once the reader has come to the end: a later one takes the place of one
    that was read already.
    """

    items: list[Item]
    number: int
    watermark: Watermark | None


class Joined(NamedTuple):
    """Where a reader goes on. ``number``: of the item that it reads next.

    ``passed``: shard → its last transaction here, of shards that are over, or that were silent ever since the reader
    began: all of it was told, or lies before the beginning.
    """

    number: int
    passed: dict[str, Place]


class Ring:
    """Items by number, counted up. The oldest are dropped when they take too much; nobody waits for anybody."""

    def __init__(self, checkpoint: Checkpoint, begun: tuple[int, ...], bytes_max: int = BYTES_MAX) -> None:
        """``checkpoint``: where the first item follows. ``begun``: offsets behind all that its places stand for."""
        self._lock = Lock()
        self._items: deque[Item] = deque()
        self._first = 0
        self._bytes = 0
        self._bytes_max = bytes_max
        self._floor: dict[str, Place] = dict(checkpoint.places)
        """Shard → what lies before the first item."""
        self._last: dict[str, Place] = {}
        """Shard → its last transaction that was added, of shards that go on."""
        self._ended: dict[str, Place] = {}
        """The same of shards that are over."""
        self._heard: dict[str, tuple[int, ...]] = dict.fromkeys(checkpoint.places, begun)
        """Shard → the offsets behind all that is or was here of it, of shards that go on."""
        self._passed: dict[int, int] = {}
        """Partition → the offset that a reader must have come to, behind what no place of a shard says: what nobody
        can read, and shards that are over."""
        self._watermark = Watermark({}, checkpoint, checkpoint.offsets)
        self.lost: FreshetError | None = None
        """Why nobody can go on where it ends: the log is another one there."""

    def append(self, items: Sequence[Item]) -> None:
        """Adds what follows. Of watermarks that nothing is between, the last one is enough."""
        with self._lock:
            for item in items:
                if isinstance(item, Watermark):
                    self._watermark = item
                    self._forget_ended(item.checkpoint)
                    for shard in item.checkpoint.places.keys() - self._heard.keys():
                        self._heard[shard] = item.read
                    if self._items and isinstance(self._items[-1], Watermark):
                        self._items[-1] = item
                        continue
                elif isinstance(item, Transaction):
                    self._last[item.shard] = item.place
                    self._heard.pop(item.shard, None)  # the next watermark says how far it goes
                self._items.append(item)
                self._bytes += _size_of(item)
            while self._items and (self._bytes > self._bytes_max or len(self._items) > ITEMS_MAX):
                self._drop()

    def _forget_ended(self, checkpoint: Checkpoint) -> None:
        """A checkpoint without a shard lies behind all of it: a reader that begins later never hears of that shard."""
        for shard in (self._floor.keys() | self._last.keys()) - checkpoint.places.keys():
            self._floor.pop(shard, None)
            self._heard.pop(shard, None)
            if shard in self._last:
                self._ended[shard] = self._last.pop(shard)
            for partition, offset in enumerate(checkpoint.offsets):
                self._pass(partition, offset)

    def _pass(self, partition: int, offset: int) -> None:
        self._passed[partition] = max(offset, self._passed.get(partition, 0))

    def _drop(self) -> None:
        item = self._items.popleft()
        self._first += 1
        self._bytes -= _size_of(item)
        places = {item.shard: item.place} if isinstance(item, Transaction) else item.checkpoint.places
        if isinstance(item, Unreadable):
            self._pass(item.partition, item.offset + 1)
        for shard, place in places.items():
            self._floor[shard] = max(place, self._floor.get(shard, NOWHERE))

    def join(self, places: Mapping[str, Place], begun: Sequence[int], offsets: Sequence[int]) -> Joined | None:
        """Where a reader that has come to ``places`` can go on; None if it lacks what was dropped.

        ``begun``, ``offsets``: partition → the offset that it read first, and that it reads next. A reader that has not
        heard of a shard waits until it is past all that is here of it: if it still has not, that lies before its
        beginning. And until the ring has come to the beginning: before, that shard may go on here, which is over there.
        """
        with self._lock:
            behind = any(places.get(shard, place) < place for shard, place in self._floor.items())
            behind |= any(at < first for at, first in zip(self._watermark.read, begun, strict=True))
            behind |= any(offsets[partition] < offset for partition, offset in self._passed.items())
            passed = dict(self._ended)
            for shard in (self._floor.keys() | self._last.keys()) - places.keys():
                heard = self._heard.get(shard)
                behind |= heard is None or any(at < end for at, end in zip(offsets, heard, strict=True))
                passed[shard] = max(self._floor.get(shard, NOWHERE), self._last.get(shard, NOWHERE))
            return None if behind else Joined(self._first, passed)

    def end(self) -> tuple[int, Watermark]:
        """The number after the last item, and how far everything is."""
        with self._lock:
            return self._first + len(self._items), self._watermark

    def read(self, number: int, count_max: int, bytes_max: int = BYTES_MAX) -> Read | None:
        """Up to ``count_max`` items from ``number`` on, until they have ``bytes_max``. None if that one was dropped."""
        with self._lock:
            if number < self._first:
                return None
            start = number - self._first
            found: list[Item] = []
            for item in islice(self._items, start, start + count_max):
                found.append(item)
                bytes_max -= _size_of(item)
                if bytes_max <= 0:
                    break
            end = start + len(found)
            return Read(found, number + len(found), self._watermark if end == len(self._items) else None)


def _size_of(item: Item) -> int:
    return _ITEM_BYTES + (2 * item.size if isinstance(item, Transaction) else 0)  # once more for its encoding
