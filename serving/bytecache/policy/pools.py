"""The value of data: entries in pools, each with a policy of its own and a bound.

A caller, or the reads themselves (`serving.bytecache.reading.footers`), say what a range is worth. Whoever needs room
takes it from a pool beyond its bound, else from the least valuable pool that has entries. So a scan of ten times the
cache's size leaves the footers alone, and pinned data can't take the whole cache.

A scope (a tenant, a table) with a quota is a pool of its own. Its quota is its bound, and room that it may keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from serving.bytecache.policy.lirs import Lirs
from serving.bytecache.policy.queues import Fifo, Lru, Policy
from serving.bytecache.policy.s3fifo import S3Fifo

POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {"s3fifo": S3Fifo, "lirs": Lirs, "lru": Lru, "fifo": Fifo}


class Value(IntEnum):
    """What data is worth. ``INDEX``: footers, indexes of pages: small, and needed by every reader of a file."""

    SCAN = 0
    NORMAL = 1
    INDEX = 2
    PINNED = 3


BOUNDS: Final[Mapping[Value, float]] = {Value.SCAN: 0.5, Value.NORMAL: 1.0, Value.INDEX: 0.25, Value.PINNED: 0.5}
"""The share of the capacity that the entries of a value may take."""


@dataclass(slots=True)
class _Pool:
    policy: Policy
    bound: float
    """Share of the capacity, or bytes above 1."""

    def over(self, capacity: int) -> bool:
        return self.policy.cost > (self.bound if self.bound > 1 else self.bound * capacity)


class Pools:
    """Every entry of one cache, in the pool of its value or scope."""

    def __init__(self, policy: str, capacity: int, scopes: Mapping[str, int] | None = None) -> None:
        """``scopes``: quota in bytes of each. Raises ``KeyError`` for an unknown ``policy``."""
        make = POLICIES[policy]
        self.capacity = capacity
        self._values = {value: _Pool(make(), BOUNDS[value]) for value in Value}
        self._scopes = {name: _Pool(make(), max(2, quota)) for name, quota in (scopes or {}).items()}
        rising = [self._values[value] for value in Value]
        self._victims = [*rising[:2], *self._scopes.values(), *rising[2:]]
        self._by_frequency = [pool.policy for pool in (rising[1], *self._scopes.values(), *rising[2:], rising[0])]

    @property
    def cost(self) -> int:
        """Of all entries, in bytes."""
        return sum(pool.policy.cost for pool in self._victims)

    def costs(self) -> dict[str, int]:
        """Bytes by pool: the values, and ``scope:NAME``."""
        found = {value.name.lower(): pool.policy.cost for value, pool in self._values.items()}
        return found | {f"scope:{name}": pool.policy.cost for name, pool in self._scopes.items()}

    def __len__(self) -> int:
        return sum(len(pool.policy) for pool in self._victims)

    def __contains__(self, key: object) -> bool:
        return any(key in pool.policy for pool in self._victims)

    def insert(self, key: int, cost: int, value: Value = Value.NORMAL, scope: str = "") -> None:
        """Adds an entry that is not there."""
        self._pool(value, scope).policy.insert(key, cost)

    def fill(self, entries: Iterable[tuple[int, int, int, str]]) -> None:
        """As `insert` for each (key, cost, value, scope), the oldest first: there are many at a start."""
        by_value = [self._values[value].policy.insert for value in Value]
        by_scope = {name: pool.policy.insert for name, pool in self._scopes.items()}
        for key, cost, value, scope in entries:
            (by_scope.get(scope) or by_value[value])(key, cost)

    def hit(self, key: int) -> None:
        """An entry was read."""
        for policy in self._by_frequency:
            if policy.hit(key):
                return

    def resize(self, key: int, cost: int) -> None:
        """An entry has a new cost."""
        next(pool.policy for pool in self._victims if key in pool.policy).resize(key, cost)

    def remove(self, key: int) -> int:
        """Takes an entry out for another reason than room; returns its cost."""
        return next((pool.policy.remove(key) for pool in self._victims if key in pool.policy), 0)

    def evict(self) -> tuple[int, int] | None:
        """Takes the next entry out: (key, cost)."""
        chosen = next((pool for pool in self._victims if pool.over(self.capacity)), None)
        chosen = chosen or next((pool for pool in self._victims if len(pool.policy)), None)
        return chosen.policy.evict() if chosen is not None else None

    def evict_surplus(self, value: Value, scope: str) -> tuple[int, int] | None:
        """As `evict`, from the pool that an entry of ``value`` and ``scope`` went into, if that is beyond its bound."""
        pool = self._pool(value, scope)
        return pool.policy.evict() if pool.over(self.capacity) else None

    def _pool(self, value: Value, scope: str) -> _Pool:
        return self._scopes.get(scope) or self._values[value]
