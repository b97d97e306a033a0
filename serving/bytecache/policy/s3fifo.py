"""S3-FIFO: three queues, no movement at a hit (Yang et al., SOSP 2023).

A new entry waits in a small queue, a tenth of the whole. Whoever is read there goes on into the main queue; the others
leave soon, so that one long scan passes through the small queue only. The keys of those that left are remembered
for a while (ghosts): who comes back goes into the main queue at once. In the main queue an entry that was read since
its last turn gets another one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SMALL_SHARE: Final = 0.1
"""Of the cost, in the small queue."""
READS_MAX: Final = 3
"""More reads than that are not counted: two bits of an entry."""
READS_TO_STAY: Final = 2
"""Reads in the small queue that bring an entry into the main one."""


_READS_BITS: Final = 2


class _Queue(OrderedDict[int, int]):
    """Key → entry, and the cost of all. An entry is its cost, shifted by `_READS_BITS`, and its reads below."""

    cost = 0

    def add(self, key: int, entry: int) -> None:
        self[key] = entry
        self.cost += entry >> _READS_BITS

    def take_first(self) -> tuple[int, int]:
        key, entry = self.popitem(last=False)
        self.cost -= entry >> _READS_BITS
        return key, entry


class S3Fifo:
    """The default policy. `hit` only counts; everything else happens when room is needed."""

    def __init__(self) -> None:
        self._small = _Queue()
        self._main = _Queue()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    @property
    def cost(self) -> int:
        """Of all entries, in bytes."""
        return self._small.cost + self._main.cost

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __contains__(self, key: object) -> bool:
        return key in self._small or key in self._main

    def insert(self, key: int, cost: int) -> None:
        if key in self._ghosts:
            del self._ghosts[key]
            self._main.add(key, cost << _READS_BITS)
        else:
            self._small.add(key, cost << _READS_BITS)

    def hit(self, key: int) -> bool:
        queue = self._main
        entry = queue.get(key)
        if entry is None:
            queue = self._small
            entry = queue.get(key)
        if entry is None:
            return False
        if entry & READS_MAX < READS_MAX:
            queue[key] = entry + 1
        return True

    def resize(self, key: int, cost: int) -> None:
        queue = self._main if key in self._main else self._small
        entry = queue[key]
        queue.cost += cost - (entry >> _READS_BITS)
        queue[key] = cost << _READS_BITS | entry & READS_MAX

    def remove(self, key: int) -> int:
        for queue in (self._main, self._small):
            entry = queue.pop(key, None)
            if entry is not None:
                queue.cost -= entry >> _READS_BITS
                return entry >> _READS_BITS
        return 0

    def evict(self) -> tuple[int, int] | None:
        while self._small or self._main:
            if self._small and (not self._main or self._small.cost >= SMALL_SHARE * self.cost):
                key, entry = self._small.take_first()
                if entry & READS_MAX >= READS_TO_STAY:
                    self._main.add(key, entry & ~READS_MAX)
                    continue
                self._remember(key)
            else:
                key, entry = self._main.take_first()
                if entry & READS_MAX:
                    self._main.add(key, entry - 1)
                    continue
            return key, entry >> _READS_BITS
        return None

    def _remember(self, key: int) -> None:
        self._ghosts[key] = None
        while len(self._ghosts) > len(self):
            self._ghosts.popitem(last=False)
