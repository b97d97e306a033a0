"""Which owner answers for a partition, and how far it is, also while it is away."""

from __future__ import annotations

import asyncio

import pytest

from serving.errors import ReadError
from serving.locations.cache import REMEMBERED_S
from serving.reads.locations import LocationReads
from serving.reads.owners import Owners
from serving.reads.spaces import RowSpace
from stream.wire.keys import Layout
from tests.serving.fakes import AWAY, FakeOwner, Network, at, seen
from tokens import Vector


def reads_of(owners: Owners, partitions: int) -> LocationReads:
    """What answers of locations, of the keyspace shop."""
    return LocationReads(owners, owners._locations, {"shop": RowSpace("shop", Layout(partitions))})


def test_an_owner_that_is_away_is_answered_for_by_its_last_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session learns the epochs all the same; before the first answer nobody can tell it."""
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
            ("shop", 1, "no_owner"),
            ("shop", 2, "unknown_path"),
            ("x", 0, "unknown_keyspace"),
        ):
            with pytest.raises(ReadError) as caught:
                await locations.read(keyspace, partition, Vector())
            assert caught.value.code == code
        with pytest.raises(ReadError):
            await locations.read("shop", -1, Vector())

    asyncio.run(run())


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

    asyncio.run(run())
