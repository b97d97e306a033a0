"""One front of a fleet, by virtual time: it reads partitions, meets owners that are gone, and refreshes what it knows.

The cache is the product's (`serving.locations.cache`); the topic of announcements, the instances and the clock are
values here. Fronts know nothing of each other, so what a fleet costs is what one costs, as often as there are fronts.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import Final

from serving.locations.cache import LocationCache, Report
from serving.locations.errors import LocationError
from serving.locations.places import Key, Location, Origin, Replica, Version
from serving.locations.queues import Batch

KEYSPACES: Final = 100
"""The partitions are of so many keyspaces: a batch is of one."""
ANSWER_S: Final = 0.02
"""How long a batch takes."""
NOTICED_S: Final = 10.0
"""After which a group gives away what a dead member had: its session timeout."""
STEP_S: Final = 0.05


@dataclass(slots=True)
class Fleet:
    """Who owns what. ``owner[n]``: the instance of partition n; ``epoch[n]``: how often it has moved."""

    instances: int
    partitions: int
    rng: random.Random
    owner: list[int] = field(default_factory=list)
    epoch: list[int] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.owner = [number % self.instances for number in range(self.partitions)]
        self.epoch = [1] * self.partitions

    def key(self, number: int) -> Key:
        """Partition ``number`` of the fleet, within its keyspace."""
        return Key(f"ks{number % KEYSPACES}", number // KEYSPACES)

    def number(self, key: Key) -> int:
        """The inverse of `key`."""
        return key.partition * KEYSPACES + int(key.keyspace[2:])

    def location(self, number: int) -> Location:
        """As the topic tells it."""
        owner, epoch = self.owner[number], self.epoch[number]
        return Location(self.key(number), Version(epoch, 0, f"i{owner}"), replica(owner), place=epoch)

    def lose(self, share: float) -> list[int]:
        """Kills a share of the instances; the partitions that they had."""
        self.dead = set(self.rng.sample(range(self.instances), int(self.instances * share)))
        return [number for number, owner in enumerate(self.owner) if owner in self.dead]

    def give_away(self, lost: list[int]) -> None:
        """The groups have noticed it: others own the partitions now."""
        alive = [each for each in range(self.instances) if each not in self.dead]
        for number in lost:
            self.owner[number] = self.rng.choice(alive)
            self.epoch[number] += 1


_replicas: dict[int, Replica] = {}


def replica(number: int) -> Replica:
    """An instance."""
    found = _replicas.get(number)
    if found is None:
        found = _replicas[number] = Replica(f"10.0.{number >> 8}.{number & 255}:7410", "t", "", f"i{number}")
    return found


class Front:
    """A front that reads ``rate`` partitions a second, ``hot`` of them nine times in ten."""

    def __init__(self, fleet: Fleet, rate: int, hot: int, *, watch: bool) -> None:
        """``watch``: whether it follows the topic. Without it knows only what it asks for."""
        self.cache = LocationCache()
        self.fleet, self.watch = fleet, watch
        self.now = 0.0
        self.batches = self.reads = self.astray = self.cold = 0
        """Reads that were told no living owner are astray, if the front knew of the partition, else cold."""
        self.most_a_second = 0
        self._rate, self._hot = rate, hot
        self._under_way: list[tuple[float, int, Batch]] = []
        self._began: list[float] = []

    def learn_all(self) -> None:
        """The topic, read from its beginning."""
        for number in range(self.fleet.partitions):
            self.cache.install(self.fleet.location(number), Origin.PUSH, self.now, self.now)

    def told(self, numbers: list[int]) -> None:
        """The topic tells changes to who follows it."""
        if self.watch:
            for number in numbers:
                self.cache.install(self.fleet.location(number), Origin.PUSH, self.now, self.now)

    def run(self, seconds: float) -> tuple[float, float]:
        """Reads for so long; the shares of reads that were led astray, and that were of unknown partitions."""
        end, reads, astray, cold = self.now + seconds, self.reads, self.astray, self.cold
        rng, fleet = self.fleet.rng, self.fleet
        while self.now < end:
            for _ in range(int(self._rate * STEP_S)):
                span = self._hot if rng.random() < 0.9 else fleet.partitions
                self._read(rng.randrange(span) * 7919 % fleet.partitions)
            self._refresh()
            self.now += STEP_S
        count = max(self.reads - reads, 1)
        return (self.astray - astray) / count, (self.cold - cold) / count

    def _read(self, number: int) -> None:
        key, self.reads = self.fleet.key(number), self.reads + 1
        try:
            leader = self.cache.nonblock_get_leader(key, self.now)
        except LocationError:
            if self.cache.entry(key) is None:
                self.cold += 1
            else:
                self.astray += 1
            return
        owner = self.fleet.owner[number]
        if leader == replica(owner) and owner not in self.fleet.dead:
            return
        self.astray += 1
        entry = self.cache.entry(key)
        version = entry.location.version if entry is not None else Version()
        if int(leader.instance[1:]) in self.fleet.dead:
            self.cache.report(key, leader, version, Report.UNREACHABLE, self.now)
        else:
            self.cache.report(key, leader, version, Report.MOVED, self.now, [self.fleet.location(number)])

    def _refresh(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.now:
            _, _, batch = heapq.heappop(self._under_way)
            found = {key: (self.fleet.location(self.fleet.number(key)), Origin.TOPIC) for key in batch.keys}
            self.cache.finish(batch, found, self.now)
        while (begun := self.cache.next_batch(self.now)) is not None:
            self.batches += 1
            heapq.heappush(self._under_way, (self.now + ANSWER_S, self.batches, begun))
            self._began = [*(each for each in self._began if self.now - each < 1.0), self.now]
            self.most_a_second = max(self.most_a_second, len(self._began))

    def wrong(self) -> int:
        """Entries that name another owner than there is."""
        fleet = self.fleet
        return sum(
            entry.location.leader != replica(fleet.owner[fleet.number(entry.location.key)])
            for entry in self.cache.entries()
        )
