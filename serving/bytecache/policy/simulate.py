"""A policy on a trace, without data: for traces of the cache, for the yardstick, for other sizes (shadow)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from serving.bytecache.policy.pools import Pools, Value
from serving.bytecache.policy.sampling import sampled


class Touch(NamedTuple):
    """One read of one entry: its key and its cost in bytes."""

    key: int
    cost: int = 1
    value: Value = Value.NORMAL


@dataclass(slots=True)
class Outcome:
    """What a trace made of a policy: reads and bytes that were, and that were not there."""

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Hits of all reads; 0 without reads."""
        return self.hits / max(1, self.hits + self.misses)


@dataclass(slots=True)
class Simulated:
    """A cache without data."""

    pools: Pools
    outcome: Outcome = field(default_factory=Outcome)

    def touch(self, key: int, cost: int, value: Value = Value.NORMAL) -> bool:
        """One read; whether it was there. What does not fit at all is not kept."""
        if key in self.pools:
            self.pools.hit(key)
            self.outcome.hits += 1
            self.outcome.hit_bytes += cost
            return True
        self.outcome.misses += 1
        self.outcome.miss_bytes += cost
        if cost <= self.pools.capacity:
            while self.pools.cost + cost > self.pools.capacity:
                self.pools.evict()
            self.pools.insert(key, cost, value)
        return False


def simulate(policy: str, capacity: int, trace: Iterable[Touch]) -> Outcome:
    """A trace on a policy with ``capacity`` bytes."""
    cache = Simulated(Pools(policy, capacity))
    for key, cost, value in trace:
        cache.touch(key, cost, value)
    return cache.outcome


class Shadow:
    """Estimates the hit ratio at other sizes from a sample of the keys (SHARDS, Waldspurger et al., FAST 2015).

    Of a sample of one in ``every`` keys, each size is a cache ``every`` times smaller. A sample that got more or fewer
    reads than its share has too many or too few of a very hot key: the difference counts as hits.
    """

    def __init__(self, policy: str, capacity: int, sizes: Sequence[float] = (0.5, 1, 2, 4), every: int = 16) -> None:
        self._every = every
        self._reads = 0
        self._caches = {size: Simulated(Pools(policy, max(1, int(capacity * size) // every))) for size in sizes}

    def touch(self, key: int, cost: int) -> None:
        """One read of an entry, here or not."""
        self._reads += 1
        if sampled(key, 1 / self._every):
            for cache in self._caches.values():
                cache.touch(key, cost)

    def ratios(self) -> dict[float, float]:
        """Size, as a multiple of this cache's, → estimated hit ratio."""
        expected = max(1.0, self._reads / self._every)
        return {size: max(0.0, 1 - cache.outcome.misses / expected) for size, cache in self._caches.items()}
