"""The announcements of a topic as locations: who owns what, who follows, and what is told of those that are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.locations import directory as directories
from serving.locations.directory import TopicDirectory
from serving.locations.places import Key, Kind, Location, Origin, Replica, Version
from serving.locations.queues import Batch
from serving.locations.refreshing import Locations
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement, LocationsReader
from tests.serving.locations.places import KEY, at


def said(name: str, generation: int = 1, *, partition: int = 0, **more: Any) -> Announcement:
    """What an instance announces; a follower in a group of its own."""
    fields: dict[str, Any] = {"address": f"{name}:1", "instance": name, "topic_id": "t", "group": name, **more}
    return Announcement(keyspace="shop", partition=partition, generation=generation, **fields)


def follows(name: str, *, partition: int = 0, **more: Any) -> Announcement:
    """What a follower announces."""
    return said(name, partition=partition, role="follower", **more)


def told(*announced: Announcement) -> TopicDirectory:
    """A directory that has read these."""
    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    for each in announced:
        reader._apply(each)
    return TopicDirectory(reader)


def batch(*keys: Key) -> Batch:
    """Keys of one kind, to be read."""
    return Batch(*keys[0].group, keys, frozenset(), 0.0, 0.0)


def read(directory: TopicDirectory, *keys: Key) -> dict[Key, Location]:
    """What it finds of keys."""
    return dict(asyncio.run(directory.read(batch(*keys))))


def test_an_announced_owner_and_its_followers_are_a_location() -> None:
    """With all by which a later word is known: the generation, how often readers were moved, and the change."""
    directory = told(follows("b", zone="w"), said("a", 5, swap=2))
    location = Location(KEY, Version(5, 2, "a"), at("a"), (at("b", zone="w"),), place=2)
    assert directory.changed(0) == (2, [location])
    assert directory.changed(2) == (2, [])


def test_a_front_that_stays_finds_the_owners_of_generations_that_begin_anew() -> None:
    """They are of the same topic, with lower numbers: told once, for what comes later is ordered as ever."""
    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    reader._apply(said("a", 41))
    locations = Locations(TopicDirectory(reader))
    assert locations.leader(KEY) == at("a")
    reader._passes = 1
    reader._conclude()
    reader._apply(said("b", 2))
    assert locations.leader(KEY) == at("b")
    hint = Location(KEY, Version(3, 0, "c"), at("c"))
    assert locations.cache.install(hint, Origin.HINT, 0.0, locations.clock())
    reader._apply(said("b", 2))
    assert locations.leader(KEY) == at("c")


def test_an_owner_that_has_withdrawn_is_told_as_gone() -> None:
    """Who reads goes on to a follower, and its address is tried only where nobody else is known."""
    directory = told(said("a", 5), follows("b"), said("a", 5, gone=True))
    [location] = directory.changed(0)[1]
    assert (location.gone, location.leader, location.followers) == (True, at("a"), (at("b"),))


def test_followers_answer_where_no_owner_was_ever_announced() -> None:
    """A partition of which nobody is left at all is no location."""
    directory = told(follows("b"), follows("c", partition=1), follows("c", partition=1, gone=True))
    assert directory.changed(0)[1] == [Location(KEY, Version(), None, (at("b"),), place=1)]


def test_a_read_is_of_what_the_topic_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was announced a moment ago is read before it is answered; a partition that nobody announced is left out."""
    directory = told(said("a", 1))

    def catch_up(reader: LocationsReader, _: float) -> None:
        reader._apply(said("b", 2))

    monkeypatch.setattr(LocationsReader, "catch_up", catch_up)
    assert read(directory, KEY, Key("shop", 7)) == {KEY: Location(KEY, Version(2, 0, "b"), at("b"), place=2)}


def test_a_keyspace_is_known_to_all_that_hold_any_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, its followers too: they are asked where the owners are away."""
    monkeypatch.setattr(LocationsReader, "catch_up", lambda *_: None)
    owners = [said("b", partition=1), said("a"), said("b", partition=2), said("d", partition=3, gone=True)]
    keyspace, other = Key("shop", 0, Kind.KEYSPACE), Key("bank", 0, Kind.KEYSPACE)
    found = read(told(*owners, follows("c"), follows("a", partition=1)), keyspace, other)
    assert found == {keyspace: Location(keyspace, Version(), at("a"), (at("c"), at("b")), place=6)}


@pytest.mark.parametrize(
    ("kind", "topic"),
    [
        (Kind.LOCATIONS, "freshet.locations"),
        (Kind.EVENTS, "freshet.shop.events"),
        (Kind.DEAD_LETTERS, "freshet.shop.dlq"),
    ],
)
def test_a_topic_is_led_by_a_broker(kind: Kind, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a partition without a leader nothing is told."""
    asked: list[list[str]] = []

    def leaders(_: KafkaCluster, names: list[str], *, timeout_s: float) -> dict[tuple[str, int], str]:
        assert timeout_s > 0
        asked.append(names)
        return {(topic, 1): "k:9092"}

    monkeypatch.setattr(directories, "topic_leaders", leaders)
    keyspace = "" if kind is Kind.LOCATIONS else "shop"
    key = Key(keyspace, 1, kind)
    assert read(told(), Key(keyspace, 0, kind), key) == {key: Location(key, Version(), Replica("k:9092"))}
    assert asked == [[topic]]


def test_the_read_api_of_whoever_holds_a_partition_is_known() -> None:
    """Clients ask there: the owner's and the followers', and none of an instance that holds it no more."""
    directory = told(
        said("a", front="http://a"), follows("b", front="http://b"), said("c", partition=1, front="http://c")
    )
    fronts = [directory.front_of(KEY, instance) for instance in "abc"]
    assert fronts == ["http://a", "http://b", ""]
