"""Random histories of resharding with crashes: a change stream of the topic tells each row once, in its key's order."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict

import pytest

from stream.changes.assembling import Assembler
from stream.changes.checkpoint import Checkpoint
from stream.changes.items import RowEvent, Transaction
from stream.changes.start import Start
from stream.publish.publisher import Publisher, PublisherLost
from stream.publish.topology import DeclaredTopology, TopologyError
from stream.shards.map import ShardMap
from stream.wire.batch import BatchLimits
from stream.wire.events import VALUE, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.stream.memory_log import KEYSPACE, MemoryLog
from tokens import Position

OLD, HIGH, LOW, MIDDLE, WIDE = (f"{KEYSPACE}/{text}" for text in ("-80", "80-", "-40", "40-80", "40-"))
MAPS = [
    ShardMap.parse({OLD: "-80", HIGH: "80-"}),
    ShardMap.parse({LOW: "-40", MIDDLE: "40-80", HIGH: "80-"}),
    ShardMap.parse({LOW: "-40", WIDE: "40-"}),
]
SUCCEEDS = {LOW: (OLD,), MIDDLE: (OLD,), WIDE: (MIDDLE, HIGH)}
PRIMARIES = {OLD: (), HIGH: (), LOW: (OLD,), MIDDLE: (OLD,), WIDE: (MIDDLE, HIGH)}
"""Shard → those whose servers its own replicates."""
DOMAINS = {shard: number for number, shard in enumerate(PRIMARIES, 1)}
HISTORIES = 5
"""More of them find no more today: 100 passed when this was written."""
KEYS = [row_key("db.t", [number]) for number in range(24)]


class World:
    """Servers as lists of transactions, their sources, and one topic."""

    def __init__(self, log: MemoryLog, seed: int) -> None:
        self.log, self.rng = log, random.Random(seed)
        self.logs: dict[str, list[SourceTransaction]] = {shard: [] for shard in PRIMARIES}
        """Shard → what its server has of its own."""
        self.written: dict[bytes, list[bytes]] = defaultdict(list)
        self.step = 0
        """Which of the maps is in the settings."""
        self.kills = 0

    def server(self, shard: str) -> list[SourceTransaction]:
        """All that a server has: what it has replicated, then its own."""
        replicated = [each for primary in PRIMARIES[shard] for each in self.server(primary)]
        return replicated + self.logs[shard]

    def write(self, shard: str, found: ShardMap) -> None:
        """A transaction of the application, in the server of the keys' shard."""
        number, domain = len(self.logs[shard]) + 1, DOMAINS[shard]
        own = [key for key in KEYS if found.shard_of(Layout(2).keyspace_id(key, 0)) == shard]
        keys = self.rng.sample(own, min(len(own), self.rng.choice([1, 2, len(own)])))
        rows = []
        for key in sorted(keys):
            image = b'{"at":"%d-%d","pad":"%s"}' % (domain, number, b"x" * self.rng.choice([1, 400]))
            self.written[key].append(image)
            rows.append(RowChange(key, VALUE, image))
        gtid = f"MariaDB/{domain}-{domain}-{number}"
        self.logs[shard].append(SourceTransaction(gtid, "", 100 + number, rows))

    def publisher(self, shard: str) -> Publisher:
        """A source's publisher, by the settings of now."""
        over = tuple({old for named in SUCCEEDS.values() for old in named} - set(MAPS[self.step].shards))
        topology = DeclaredTopology((), SUCCEEDS.get(shard, ()), MAPS[self.step], over)
        return self.log.publisher(shard, topology=topology, limits=BatchLimits(batch_bytes=1_000))

    def run(self, shard: str, count: int | None = None) -> None:
        """The source of a shard, until it has published ``count`` transactions, or all; or until it is killed."""
        self.log.commits_left = self.rng.choice([1_000, 1_000, self.rng.randrange(12)])
        try:
            with self.publisher(shard) as out:
                at = Position.parse(out.open(lambda: ("MariaDB/", 1), lambda _: None).position)
                for each in self.server(shard):
                    if count == 0:
                        break
                    if not at.contains(Position.parse(each.gtid)):
                        at = at.append(each.gtid)
                        out.publish(SourceTransaction(each.gtid, str(at), each.timestamp, each.changes))
                        count = count - 1 if count is not None else None
        except PublisherLost:
            self.kills += 1
        self.log.commits_left = 1_000_000

    def told(self) -> dict[bytes, list[bytes]]:
        """Key → its images, as a change stream tells them; partitions are read in random turns."""
        assembler = Assembler(Start(Checkpoint(KEYSPACE, self.log.topic_id, (0, 0), {})))
        left = [[each for each in kept if each is not None] for kept in self.log.partitions]
        found: dict[bytes, list[bytes]] = defaultdict(list)
        while any(left):
            partition = self.rng.choice([number for number, kept in enumerate(left) if kept])
            message = left[partition].pop(0)
            assembler.feed(partition, message.offset(), message.value())
            for item in assembler.take():
                if isinstance(item, Transaction):
                    for event in item.events:
                        if isinstance(event, RowEvent):
                            found[event.key].append(event.image)
        assert assembler.held_bytes == 0, "nothing waits for what never comes"
        return found


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_each_row_is_told_once_whatever_is_killed(log: MemoryLog, seed: int) -> None:
    """Two shards become three, and two again; sources are killed at any commit, start late, or start again by mistake.

    The application moves after the sources, so an ancestor's last transactions come from its successors.
    """
    world = World(log, seed)
    rng = world.rng
    for step, found in enumerate(MAPS):
        before = MAPS[max(step - 1, 0)]
        for _ in range(rng.randrange(2, 5)):
            for shard in before.shards:
                world.write(shard, before)
                world.run(shard, rng.choice([0, 1, None])) if step == 0 else None
        world.step = step
        for _ in range(3):
            for shard in rng.sample(found.shards, len(found.shards)):
                world.run(shard, rng.choice([0, 1, 2, None]))
        for shard in set(before.shards) - set(found.shards):
            _is_refused(world, shard)
        for shard in found.shards:
            world.write(shard, found)
    for _ in range(3):
        for shard in MAPS[-1].shards:
            world.run(shard)
    log.commits_left = 1_000_000
    world.rng = random.Random(0)
    for shard in MAPS[-1].shards:
        with world.publisher(shard) as out:
            at = Position.parse(out.open(lambda: ("", 1), lambda _: None).position)
            for each in world.server(shard):
                if not at.contains(Position.parse(each.gtid)):
                    at = at.append(each.gtid)
                    out.publish(SourceTransaction(each.gtid, str(at), each.timestamp, each.changes))
    assert world.told() == world.written


def _is_refused(world: World, shard: str) -> None:
    """A source that is started again by mistake publishes nothing, once a successor has begun."""
    ended = any(kept is not None and b"handed_over" in kept.content for kept in world.log.partitions[_home(shard)])
    if ended:
        sizes = [len(kept) for kept in world.log.partitions]
        with contextlib.suppress(TopologyError):
            world.publisher(shard).open(lambda: ("", 1))
        assert [len(kept) for kept in world.log.partitions] == sizes


def _home(shard: str) -> int:
    return Layout(2).home_partition(shard)
