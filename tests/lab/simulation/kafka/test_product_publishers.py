"""The product's own publishers run over the simulated Kafka, and keep their promises there."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from stream.kafka.connection import KafkaUnreachable
from stream.kafka.topics import ensure_topics
from stream.publish.publisher import Publisher, PublisherLost
from stream.publish.resume import read_tail
from stream.wire.keys import Layout
from tests.lab.simulation.kafka.product import (
    KAFKA,
    KEYSPACE,
    PARTITIONS,
    TOPIC,
    World,
    assert_published_once,
    every_seed,
    simulated,
    start,
)
from tests.stream.committed import records
from tests.stream.publishing import number_of, publisher, transaction


def _publish(last: int) -> Callable[[], str]:
    """A source: publishes up to transaction ``last``, and begins again when its publisher is lost."""

    def work() -> str:
        while True:
            try:
                with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                    for number in range(number_of(out.open(start).position) + 1, last + 1):
                        out.publish(transaction(number))
                    out.flush()
                return "done"
            except (PublisherLost, KafkaUnreachable):
                continue

    return work


def _disturb(world: World, rng: Random) -> None:
    """Something goes wrong for a while."""
    cluster, kernel = world.cluster, world.kernel
    match rng.randrange(6):
        case 0:
            kernel.kill("source")
            cluster.forget("source")
            kernel.spawn("source", lambda: done.append(_publish(LAST)()))
        case 1:
            cluster.cut.add("source")
        case 2:
            cluster.down = True
        case 3:
            cluster.coordinator_away = True
        case 4:
            cluster.answers_to_lose["source"] = 1 + rng.randrange(3)
        case 5:
            cluster.slow_s = rng.choice((0.05, 1.0))
    kernel.run_until(lambda: False, rng.choice((0.01, 0.1, 1.0, 12.0)))
    cluster.cut.discard("source")
    cluster.down = cluster.coordinator_away = False
    cluster.slow_s = 0.0


LAST = 120


done: list[str] = []


@pytest.mark.parametrize("seed", range(10))
def test_a_publisher_publishes_everything_once_whatever_happens(seed: int) -> None:
    """Killed, cut off, without broker or coordinator, with lost answers: each change is there once, in order."""

    def history(world: World) -> None:
        rng = Random(seed)
        done.clear()
        world.run("admin", lambda: ensure_topics(KAFKA, KEYSPACE, PARTITIONS))
        world.kernel.spawn("source", lambda: done.append(_publish(LAST)()))
        for _ in range(12):
            world.kernel.run_until(lambda: bool(done), rng.uniform(0, 0.05))
            _disturb(world, rng)
        assert world.kernel.run_until(lambda: bool(done), 300), world.kernel.waits()
        world.run("reader", lambda: assert_published_once(LAST))

    simulated(seed, history)


@every_seed
def test_the_later_of_two_publishers_wins(seed: int) -> None:
    """The earlier one is fenced, and nothing of it is published any more."""

    def history(world: World) -> None:
        def work() -> str:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            stale, fresh = publisher(KAFKA, KEYSPACE, PARTITIONS), publisher(KAFKA, KEYSPACE, PARTITIONS)
            stale.open(start)
            stale.publish(transaction(1))
            stale.flush()
            assert fresh.open(start).position == "MariaDB/0-1-1"
            stale.publish(transaction(2))
            with pytest.raises(PublisherLost) as lost:
                stale.flush()
            with fresh:
                fresh.publish(transaction(2))
            assert_published_once(2)
            return lost.value.code

        assert world.run("source", work) == "fenced"

    simulated(seed, history)


@every_seed
def test_a_partition_that_lost_its_end_begins_a_new_epoch(seed: int) -> None:
    """The ends of the partitions contradict each other, and the publisher that opens sees it."""

    def history(world: World) -> None:
        def publish(first: int, last: int) -> int:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                epoch = out.open(start).epoch
                for number in range(first, last):
                    out.publish(transaction(number))
            return epoch

        first = world.run("source", lambda: publish(1, 5))
        lost = Random(seed).randrange(PARTITIONS)
        world.kernel.run_until(lambda: False, 1)
        world.cluster.elect_uncleanly(TOPIC, lost, 2, tears=False)
        assert world.run("source", lambda: publish(5, 8)) > first
        reasons = {
            fields["reason"]
            for found in world.run("reader", lambda: records(KAFKA, KEYSPACE, PARTITIONS)).values()
            for name, fields in found
            if name == "EpochStart"
        }
        assert "tail_lost" in reasons

    simulated(seed, history)


@every_seed
def test_a_commit_that_a_partition_has_lost_stops_no_publisher(seed: int) -> None:
    """A new leader lacks nothing but the end of a transaction: no reader gets past it until the next publisher ends it.

    What hung is aborted there and committed elsewhere, so a new epoch voids it. A second restart finds nothing.
    """

    def history(world: World) -> None:
        def publish(last: int) -> int:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                resume = out.open(start)
                for number in range(number_of(resume.position) + 1, last):
                    out.publish(transaction(number))
            return resume.epoch

        first = world.run("source", lambda: publish(5))
        world.kernel.run_until(lambda: False, 1)
        world.cluster.elect_uncleanly(TOPIC, Random(seed).randrange(PARTITIONS), 1)
        second = world.run("source", lambda: publish(8), within_s=10)
        assert second > first
        assert world.run("source", lambda: publish(9), within_s=10) == second
        found = world.run("reader", lambda: records(KAFKA, KEYSPACE, PARTITIONS))
        assert {
            f["reason"] for each in found.values() for n, f in each if n == "EpochStart" and f["epoch"] > first
        } == {"tail_lost"}

    simulated(seed, history)


@every_seed
def test_a_topic_that_is_made_anew_under_a_source_begins_a_new_epoch(seed: int) -> None:
    """Within seconds, whatever it has published there by then; nothing of the old epoch is taken for its beginning."""

    def history(world: World) -> None:
        def replace() -> None:
            world.kernel.park(0.2 + seed / 20)
            world.cluster.replace(TOPIC)

        def work() -> list[int]:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            epochs: list[int] = []
            number = 0
            while number < 40:
                try:
                    with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                        at = f"MariaDB/0-1-{number}"
                        epochs.append(out.open(lambda at=at: (at, 1)).epoch)  # type: ignore[misc]
                        while number < 40:
                            number += 1
                            out.publish(transaction(number))
                            out.flush()
                            world.kernel.park(0.1)
                except PublisherLost:
                    continue
            return epochs

        world.kernel.spawn("admin", replace)
        epochs = world.run("source", work)
        assert epochs == sorted(set(epochs))
        assert len(epochs) == 2
        for found in world.run("reader", lambda: records(KAFKA, KEYSPACE, PARTITIONS)).values():
            names = [(name, fields["epoch"]) for name, fields in found if name in ("EpochStart", "Marker")]
            begun = names.index(("EpochStart", epochs[1]))
            assert {epoch for _, epoch in names[begun:]} == {epochs[1]}

    simulated(seed, history)


@every_seed
def test_an_unfinished_transaction_hides_a_state_for_a_while_only(seed: int) -> None:
    """A publisher that opens reads up to the log's end, and waits for the other shard's transaction."""

    def history(world: World) -> None:
        def work() -> None:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                out.open(start)
                out.publish(transaction(1))
            shard = f"{KEYSPACE}/0"
            home = Layout(PARTITIONS).home_partition(shard)
            world.cluster.leave_open(TOPIC, home, b"junk")
            with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                assert out.open(start).position == "MariaDB/0-1-1"
            tail = read_tail(KAFKA, TOPIC, home, shard)
            assert tail.point is not None
            assert tail.point.position == "MariaDB/0-1-1"

        world.run("source", work)

    simulated(seed, history)


@every_seed
def test_a_publisher_that_opens_while_retention_deletes_begins_again(seed: int) -> None:
    """What it was about to read is gone: it is lost, as after any error of Kafka, and not the source with it."""

    def history(world: World) -> None:
        def publish() -> None:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                out.open(start)
                for number in range(1, 40):
                    out.publish(transaction(number))
                    out.flush()

        def forget() -> None:
            for before in range(100):
                for partition in range(PARTITIONS):
                    world.cluster.lose_beginning(TOPIC, partition, before)
                world.kernel.park(0.01)

        def open_again() -> int:
            for _ in range(100):
                try:
                    with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                        return out.open(start).epoch
                except PublisherLost:
                    continue
            raise AssertionError("never opened")

        world.run("source", publish)
        world.kernel.spawn("broker", forget)
        assert world.run("source", open_again) >= 1

    simulated(seed, history)


@every_seed
def test_a_publisher_that_is_closed_has_published_everything(seed: int) -> None:
    """Also what it was given right before."""

    def history(world: World) -> None:
        def work() -> None:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            out = Publisher(KAFKA, KEYSPACE, f"{KEYSPACE}/0", Layout(PARTITIONS))
            out.open(start)
            for number in range(1, 6):
                out.publish(transaction(number))
            out.close()
            assert_published_once(5)

        world.run("source", work)

    simulated(seed, history)
