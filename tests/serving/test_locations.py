"""Which owner answers for a partition, and how far it is, also while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from serving.client.answers import ShardPlace
from serving.errors import ReadError
from serving.locations.cache import REMEMBERED_S
from serving.locations.places import Replica
from serving.reads.locations import LocationReads
from serving.reads.owners import Owners
from serving.reads.spaces import RowSpace
from stream.wire.keys import Layout
from tests.patience import PATIENCE_S
from tests.serving.fakes import AWAY, FakeOwner, Network, at, seen
from tokens import Vector


def reads_of(owners: Owners, partitions: int) -> LocationReads:
    """What answers of locations, of the keyspace shop."""
    return LocationReads(owners, owners._locations, {"shop": RowSpace("shop", Layout(partitions))})


async def closing(locations: LocationReads, story: Coroutine[Any, Any, None]) -> None:
    """Runs a test's story, and closes the owners."""
    try:
        await story
    finally:
        await locations._owners.close()


def test_an_owner_that_is_away_is_answered_for_by_its_last_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session learns the epochs all the same."""
    owner = FakeOwner(watermarks=seen("shop/0", "0-1-5", epoch=2))
    network = Network(monkeypatch, {"a:1": owner})
    locations = reads_of(network.owners(pause_s=0.0), 2)

    async def run() -> None:
        found = await locations.read("shop", 0, Vector())
        assert (found.address, found.partition, found.keyspace) == ("a:1", 0, "shop")
        assert {shard: (place.epoch, place.position) for shard, place in found.shards.items()} == {
            "shop/0": (2, str(at("0-1-5")))
        }
        newer = await locations.read("shop", 0, seen("shop/0", "0-1-1", epoch=3))
        assert newer.shards["shop/0"].epoch == 3
        older = await locations.read("shop", 0, seen("shop/0", "0-1-9", epoch=2))
        assert older.shards["shop/0"].position == str(at("0-1-5"))
        owner.failure = AWAY
        kept = await locations.read("shop", 0, Vector())
        assert kept.token == found.token
        assert "last known" in kept.why
        network.announced[0] = []
        assert (await locations.read("shop", 0, Vector())).token == found.token
        for keyspace, partition, code in (
            ("shop", 2, "unknown_path"),
            ("x", 0, "unknown_keyspace"),
        ):
            with pytest.raises(ReadError) as caught:
                await locations.read(keyspace, partition, Vector())
            assert caught.value.code == code
        with pytest.raises(ReadError):
            await locations.read("shop", -1, Vector())

    asyncio.run(closing(locations, run()))


def test_before_anybody_has_named_an_epoch_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without an epoch would tell a session that its shard does not exist, which is final."""
    network = Network(monkeypatch, {"a:1": FakeOwner(failure=AWAY)})
    locations = reads_of(network.owners(), 1)

    async def run() -> None:
        with pytest.raises(ReadError) as caught:
            await locations.read("shop", 0, Vector())
        assert caught.value.code == "no_owner"

    asyncio.run(closing(locations, run()))


@pytest.mark.parametrize("answers", ["b:1", "f:1", ""])
def test_of_a_partition_without_an_owner_the_epochs_are_told(monkeypatch: pytest.MonkeyPatch, answers: str) -> None:
    """Another partition's owner names them, a follower, or the front has heard of them: no session waits for one."""
    at_address = {
        address: FakeOwner(watermarks=seen("shop/0", "0-1-5", epoch=2), failure=AWAY if address != answers else None)
        for address in ("a:1", "b:1", "f:1")
    }
    network = Network(monkeypatch, at_address)
    network.announced = {0: ["a:1"], 1: ["b:1"]}
    locations = reads_of(network.owners(followers=[Replica("f:1")]), 2)
    if not answers:
        locations._spaces["shop"].epochs.learn("shop/0", 2)
        locations._spaces["shop"].epochs.are_whole = True

    async def run() -> None:
        found = await locations.read("shop", 0, Vector())
        assert (found.token, found.address) == (str(Vector()), "a:1")
        assert found.shards == {"shop/0": ShardPlace(2, "")}
        assert found.why == "it does not answer; only epochs are known"

    asyncio.run(closing(locations, run()))


@pytest.mark.parametrize("sources", [(), ("shop/0", "shop/1")])
def test_some_of_the_epochs_are_no_answer(monkeypatch: pytest.MonkeyPatch, sources: tuple[str, ...]) -> None:
    """A row's answer names its own shard alone. A session that has written in another one would be told for good that
    there is no such shard."""
    network = Network(monkeypatch, {"a:1": FakeOwner(failure=AWAY)})
    locations = reads_of(network.owners(), 1)
    space = locations._spaces["shop"]
    assert isinstance(space, RowSpace)
    space.epochs.learn("shop/0", 2)
    monkeypatch.setattr(RowSpace, "all_sources", [SimpleNamespace(shard=shard) for shard in sources])

    async def run() -> None:
        with pytest.raises(ReadError) as caught:
            await locations.read("shop", 0, Vector())
        assert caught.value.code == "no_owner"

    asyncio.run(closing(locations, run()))


def test_a_newer_epoch_goes_before_the_last_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another owner has folded it since: what a session has written is of it. Callers share what is known."""
    monkeypatch.setattr("serving.reads.spaces.CONFIRM_WITHIN_S", PATIENCE_S)
    owners = {"a:1": FakeOwner(watermarks=seen("shop/0", "0-1-5")), "b:1": FakeOwner()}
    network = Network(monkeypatch, owners)
    network.announced = {0: ["a:1"], 1: ["b:1"]}
    locations = reads_of(network.owners(), 2)

    async def run() -> None:
        found = await locations.read("shop", 0, Vector())
        owners["a:1"].failure, owners["b:1"].watermarks = AWAY, str(seen("shop/0", "0-1-6", epoch=2))
        later = await locations.of(locations._spaces).read("shop", 0, Vector())
        assert later.token == found.token
        assert later.shards == {"shop/0": ShardPlace(2, "")}

    asyncio.run(closing(locations, run()))


def test_an_owner_that_nobody_remembers_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last watermark is told all the same, with an empty address."""
    now = [100.0]
    network = Network(monkeypatch, {"a:1": FakeOwner(watermarks=seen("shop/0", "0-1-5"))})
    locations = reads_of(network.owners(clock=lambda: now[0]), 1)

    async def run() -> None:
        found = await locations.read("shop", 0, Vector())
        network.announced[0] = []
        assert (await locations.read("shop", 0, Vector())).address == "a:1"
        now[0] += REMEMBERED_S
        later = await locations.read("shop", 0, Vector())
        assert (later.token, later.address) == (found.token, "")

    asyncio.run(closing(locations, run()))
