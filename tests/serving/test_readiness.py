"""When a front is ready."""

from __future__ import annotations

import asyncio

import pytest

from consumers.owner.protocol import OwnerError, PartitionStatus, ShardStatus, Standing, Statuses, Waited
from serving.locations.places import Key, Location, Replica, Version
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads import readiness as readiness_of
from serving.reads.owners import Owners
from serving.reads.readiness import Readiness
from serving.reads.spaces import RowSpace
from stream.shards.map import ShardMap
from stream.wire.keys import Layout
from tests.serving.fakes import FakeOwner, Network


class StatusOwner(FakeOwner):
    """An owner of shop/0 that has caught up with what its topic has: ``shards``."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: list[ShardStatus] = []

    async def status(self, _: str = "") -> Statuses:
        self._ask("status")
        counts = (0, 0, 0, 0)
        partition = PartitionStatus("shop", 0, 0, 0, 0, 0, True, "ready", self.shards, *counts, "", "t")
        return Statuses(0, True, "me", [partition])


def test_a_front_is_ready_only_with_something_of_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an empty topic is reached at once; without a marker nothing can be proved."""
    owner = StatusOwner()
    readiness = Readiness(Network(monkeypatch, {"a:1": owner}).owners(), {"shop": RowSpace("shop", Layout(1))})

    async def run() -> None:
        assert await readiness.missing() == ["shop/0 has nothing of a source yet"]
        owner.shards = [ShardStatus("shop/0", 1, 3, "", 0, "", 0.0)]
        assert await readiness.missing() == ["shop/0 has nothing of a source yet"]
        owner.shards = [ShardStatus("shop/0", 1, 3, "MariaDB/0-1-3", 9, "", 0.0)]
        assert await readiness.missing() == []

    asyncio.run(run())


def test_a_front_of_a_map_is_ready_only_with_something_of_each_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a split, sources of shards whose epochs nobody has named could answer no session with a proof."""
    owner = StatusOwner()
    space = RowSpace(
        "shop", Layout(1), map=ShardMap.parse({"shop/-40": "-40", "shop/40-80": "40-80", "shop/80-": "80-"})
    )
    readiness = Readiness(Network(monkeypatch, {"a:1": owner}).owners(), {"shop": space})

    def shard(name: str, watermark: str) -> ShardStatus:
        return ShardStatus(f"shop/{name}", 1, 3, watermark, 9, "", 0.0)

    async def run() -> None:
        owner.shards = [shard("-80", "MariaDB/0-1-3"), shard("80-", "MariaDB/1-2-3"), shard("40-80", "")]
        assert await readiness.missing() == ["shop/0 has nothing of shop/-40, shop/40-80 yet"]
        owner.shards = [*owner.shards[:2], shard("-40", "MariaDB/0-1-3"), shard("40-80", "MariaDB/0-1-3")]
        assert await readiness.missing() == []
        assert space.epochs.known.keys() >= {"shop/-40", "shop/40-80", "shop/80-"}

    asyncio.run(run())


class ManyOwner(StatusOwner):
    """An owner of some partitions of shop, and of one that has the same number in another keyspace."""

    owned: tuple[int, ...] = (0,)
    ready = True
    named: Standing | None = None
    """Who holds the others, as it has read."""

    async def wait(self, *asked: object) -> Waited:
        self._ask("wait")
        if asked[1] in self.owned:
            return Waited(0, True, "")
        refused = OwnerError("this process does not own it", code="not_owner")
        refused.moved = self.named
        raise refused

    async def status(self, _: str = "") -> Statuses:
        self._ask("status")
        counts = (0, 0, 0, 0)
        shards = [ShardStatus("shop/0", 3, 3, "MariaDB/0-1-3", 9, "", 0.0)]
        found = [
            PartitionStatus("shop", each, 0, 0, 4, 9, self.ready, "catching_up", shards, *counts, "", "t")
            for each in self.owned
        ]
        found += [PartitionStatus("bank", each, 0, 0, 0, 0, False, "x", [], *counts, "", "t") for each in self.owned]
        return Statuses(0, True, "me", found)


def test_each_partition_that_is_not_ready_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an owner, at an owner that has lost it, behind, or unreachable; what is ready is not asked for again."""
    owner, away = ManyOwner(), ManyOwner()
    away.failure = OwnerError("no route", code="owner_unreachable")
    network = Network(monkeypatch, {"a:1": owner, "b:1": away})
    network.announced |= {0: ["a:1"], 1: ["a:1"], 3: ["b:1"]}
    space = RowSpace("shop", Layout(4))
    readiness = Readiness(network.owners(pause_s=0.0), {"shop": space})

    async def run() -> None:
        owner.ready = False
        assert sorted(await readiness.missing()) == [
            "shop/0 is catching_up at 4 of 9",
            "shop/1 has moved",
            "shop/2 has no owner",
            "shop/3: no route",
        ]
        assert space.epochs.known == {"shop/0": 3}
        owner.ready = True
        assert sorted(await readiness.missing())[0] == "shop/1 has moved"
        owner.owned = (0, 1)
        network.announced |= {2: ["a:1"], 3: ["a:1"]}
        assert await readiness.missing() == ["shop/2 has moved", "shop/3 has moved"]
        owner.owned = (2, 3)
        asked = len(owner.asked)
        assert await readiness.missing() == []
        assert await readiness.missing() == []
        assert len(owner.asked) == asked + 1

    asyncio.run(run())


def test_a_front_that_starts_while_kafka_is_away_follows_partitions_that_have_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its file of locations is old, nobody reads through a front that is not ready, and only the old owner knows."""
    old, new = ManyOwner(), ManyOwner()
    old.owned, new.owned = (0,), (1, 2)
    Network(monkeypatch, {"a:1": old, "b:1": new})
    locations = Locations()
    kept = Replica("a:1", "t", "", "old")
    locations.restore([Location(Key("shop", each), Version(1, 0, "old"), kept) for each in range(3)])
    readiness = Readiness(Owners(locations, FrontMetrics()), {"shop": RowSpace("shop", Layout(3))})

    async def run() -> None:
        both = ["shop/1 has moved", "shop/2 has moved"]
        assert await readiness.missing() == both
        assert new.asked == []
        old.named = Standing("b:1", "new", "t", "", 2, 0)
        assert await readiness.missing() == both
        old.asked = []
        assert await readiness.missing() == []
        assert old.asked == []

    asyncio.run(run())


def test_a_front_names_a_few_partitions_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe's answer stays short; as many as may be named are all named."""
    monkeypatch.setattr(readiness_of, "NAMED_MAX", 2)
    for partitions, shown in ((2, 2), (3, 3), (9, 3)):
        network = Network(monkeypatch, {})
        network.announced = {}
        readiness = Readiness(network.owners(), {"shop": RowSpace("shop", Layout(partitions))})
        found = asyncio.run(readiness.missing())
        assert len(found) == shown
        assert found[:2] == ["shop/0 has no owner", "shop/1 has no owner"]
        assert found[2:] == ([f"and {partitions - 2} more partitions"] if partitions > 2 else [])


def test_a_partition_that_has_nothing_yet_and_reads_on_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told how far it is, not that there is no source."""
    owner = StatusOwner()

    async def status(_: str = "") -> Statuses:
        counts = (0, 0, 0, 0)
        partition = PartitionStatus("shop", 0, 0, 0, 4, 9, False, "rebuilding", [], *counts, "", "t")
        return Statuses(0, True, "me", [partition])

    owner.status = status  # type: ignore[method-assign]
    readiness = Readiness(Network(monkeypatch, {"a:1": owner}).owners(), {"shop": RowSpace("shop", Layout(1))})
    assert asyncio.run(readiness.missing()) == ["shop/0 is rebuilding at 4 of 9"]
