"""What every policy does, and the two simplest: FIFO (the baseline of the seed) and LRU.

A policy orders entries. An entry is a number (its key) with a cost in bytes. The policy never knows the capacity:
whoever keeps the entries calls `Policy.evict` until there is room. Every operation is O(1), amortised.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Policy(Protocol):
    """An order of eviction."""

    @property
    def cost(self) -> int:
        """Of all entries together, in bytes."""

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...

    def insert(self, key: int, cost: int) -> None:
        """Adds an entry that is not there."""

    def hit(self, key: int) -> bool:
        """An entry was read; False if it is not there."""

    def resize(self, key: int, cost: int) -> None:
        """An entry that is there has a new cost."""

    def remove(self, key: int) -> int:
        """Takes an entry out for another reason than room; returns its cost, 0 if it is not there."""

    def evict(self) -> tuple[int, int] | None:
        """Takes the next entry out: (key, cost). None if there is none."""


class Fifo:
    """First in, first out."""

    def __init__(self) -> None:
        self._costs: OrderedDict[int, int] = OrderedDict()
        self.cost = 0

    def __len__(self) -> int:
        return len(self._costs)

    def __contains__(self, key: object) -> bool:
        return key in self._costs

    def insert(self, key: int, cost: int) -> None:
        self._costs[key] = cost
        self.cost += cost

    def hit(self, key: int) -> bool:
        return key in self._costs

    def resize(self, key: int, cost: int) -> None:
        self.cost += cost - self._costs[key]
        self._costs[key] = cost

    def remove(self, key: int) -> int:
        cost = self._costs.pop(key, 0)
        self.cost -= cost
        return cost

    def evict(self) -> tuple[int, int] | None:
        if not self._costs:
            return None
        key, cost = self._costs.popitem(last=False)
        self.cost -= cost
        return key, cost


class Lru(Fifo):
    """The entry that was not read for the longest time leaves."""

    def hit(self, key: int) -> bool:
        if key not in self._costs:
            return False
        self._costs.move_to_end(key)
        return True
