"""What `freshet swap` writes for which partitions, and whom it says to have had them before."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import pytest

from consumers.owner.protocol import PartitionStatus
from freshet.commands.swap import ERA_BITS, SwapError, move_readers
from freshet.settings import Settings
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement
from stream.kafka.topics import Topic


def said(partition: int, address: str, generation: int = 1, swap: int = 0) -> Announcement:
    """What an owner, or a swap, has announced."""
    return Announcement(
        keyspace="shop", partition=partition, address=address, instance=address, generation=generation, swap=swap
    )


def held(partition: int, **more: Any) -> PartitionStatus:
    """What a consumer says of a partition with which it has caught up."""
    status = PartitionStatus("shop", partition, 5, 5, 5, 5, True, "live", [], 0, 0, 0, 0, "layout", "t1")
    return msgspec.structs.replace(status, **more)


class Topics:
    """The topic of the announcements, and the consumers by their addresses."""

    def __init__(self) -> None:
        self.standing = {0: said(0, "blue:1", 7), 1: said(1, "teal:1", 3 << ERA_BITS | 9, swap=3)}
        self.consumers = {"green:1": [held(0), held(1)], "lime:1": [held(1)]}
        self.written: list[Announcement] = []
        self.is_heard = True
        self.again: set[int] = set()
        """Partitions whose new owner has already announced itself again."""

    def announce(self, _: KafkaCluster, announced: list[Announcement]) -> None:
        self.written += announced
        if self.is_heard:
            self.standing |= {each.partition: each for each in announced}
        for each in announced:
            if each.partition in self.again:
                self.standing[each.partition] = msgspec.structs.replace(each, generation=each.generation + 1)

    def reader(self, _: KafkaCluster) -> Any:
        """A reader of what stands."""
        topics = self

        class Reader:
            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None: ...

            def owners(self, _: str) -> dict[int, Announcement]:
                return dict(topics.standing)

            def owner_of(self, _: str, partition: int) -> Announcement | None:
                return topics.standing.get(partition)

            standing = owner_of

        return Reader()

    def connection(self, _: Settings, address: str) -> Any:
        """A connection to a consumer."""
        consumers = self.consumers

        class Connection:
            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None: ...

            def status(self, keyspace: str) -> Any:
                assert keyspace == "shop"
                return SimpleNamespace(instance=address, partitions=consumers[address])

        return Connection()


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """A keyspace of two partitions with an owner each, and two consumers of another group."""
    found = Topics()
    monkeypatch.setattr("stream.kafka.locations.LocationsReader", found.reader)
    monkeypatch.setattr("stream.kafka.locations.announce", found.announce)
    monkeypatch.setattr("stream.kafka.topics.describe_topic", lambda *_: Topic("t", "t1", 2))
    monkeypatch.setattr("freshet.commands.swap.owner_connection", found.connection)
    return found


def test_what_is_written_is_above_all_that_stands(topics: Topics) -> None:
    """Above every generation of the group before, and of one swap more: else owners would take their readers back."""
    assert move_readers(Settings(), "shop", ["green:1"]) == (2, ["blue:1", "teal:1"])
    assert [(each.partition, each.generation >> ERA_BITS, each.swap) for each in topics.written] == [
        (0, 1, 1),
        (1, 4, 4),
    ]
    assert all(each.generation & (1 << ERA_BITS) - 1 == 1 for each in topics.written)
    assert {(each.address, each.topic_id, each.layout) for each in topics.written} == {("green:1", "t1", "layout")}


@pytest.mark.parametrize(("partition", "before"), [(0, ["blue:1"]), (1, ["teal:1"])])
def test_of_one_partition_its_own_readers_move(partition: int, before: list[str], topics: Topics) -> None:
    """And the way back that is told leads to who had it: with another address nothing would move."""
    assert move_readers(Settings(), "shop", ["green:1"], partition) == (1, before)
    assert [each.partition for each in topics.written] == [partition]


def test_a_partition_that_nobody_had_is_taken_too(topics: Topics) -> None:
    """There is nowhere to go back to."""
    topics.standing.clear()
    assert move_readers(Settings(), "shop", ["green:1"], 0) == (1, [])
    [written] = topics.written
    assert (written.generation, written.swap) == (1 << ERA_BITS | 1, 1)


def behind(topics: Topics) -> None:
    topics.consumers["green:1"][1] = held(1, ready=False, position=3)


def of_another_topic(topics: Topics) -> None:
    topics.consumers["green:1"][0] = held(0, topic_id="t0")


def without_one(topics: Topics) -> None:
    del topics.consumers["green:1"][0]


def twice(topics: Topics) -> None:
    topics.consumers["green:1"].append(held(1))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (behind, "has not caught up: it is at 3 of 5"),
        (of_another_topic, "is of topic id t0, not t1"),
        (without_one, r"do not own the partitions \[0\]"),
        (twice, "own the same partitions"),
    ],
)
def test_nothing_is_moved_unless_all_can_be(change: Callable[[Topics], None], problem: str, topics: Topics) -> None:
    """Half of a swap would leave readers with two groups."""
    change(topics)
    with pytest.raises(SwapError, match=problem):
        move_readers(Settings(), "shop", ["green:1"])
    assert topics.written == []


def test_owners_that_have_announced_themselves_again_are_heard_too(topics: Topics) -> None:
    """What the swap wrote is not what stands by then."""
    topics.again = {0}
    assert move_readers(Settings(), "shop", ["green:1"])[0] == 2


@pytest.mark.parametrize("again", [set(), {0}, {1}])
def test_an_announcement_that_is_not_seen_is_an_error(
    again: set[int], topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be lost; whoever stopped the consumers of before would have nobody to read from.

    That the new owner of one partition has announced itself again says nothing of the others.
    """
    topics.is_heard, topics.again = False, again
    monkeypatch.setattr("freshet.commands.swap.MOVED_TIMEOUT_S", -1.0)
    with pytest.raises(SwapError, match="are not seen"):
        move_readers(Settings(), "shop", ["green:1"])
