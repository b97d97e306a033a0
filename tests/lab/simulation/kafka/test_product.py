"""The product's own publishers and readers run over the simulated Kafka, and keep their promises there."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import pytest

from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.twins import twins
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.substitution import installed
from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from stream.kafka.dead_letters import DeadLetter, DeadLetterPublisher, dismiss, read_letters, retry
from stream.kafka.locations import Announcement, LocationsReader, announce, withdraw
from stream.kafka.reader import TopicReadError, end_offsets, offsets_for_timestamp, read_range, start_offsets
from stream.kafka.topics import TopicError, check_topics, describe_topic, ensure_topics
from stream.publish.publisher import Publisher, PublisherLost
from stream.publish.resume import read_tail
from stream.wire.codec import decode
from stream.wire.keys import Layout
from tests.stream.committed import records
from tests.stream.publishing import assert_exactly_once, number_of, publisher, transaction

T = TypeVar("T")
KAFKA = KafkaCluster("simulated:9092")
KEYSPACE = "ks"
TOPIC = f"freshet.{KEYSPACE}.events"
PARTITIONS = 3
every_seed = pytest.mark.parametrize("seed", range(6))


class World:
    """The kernel, a cluster, and the product on them."""

    def __init__(self, seed: int) -> None:
        self.kernel = Kernel(Random(seed))
        self.cluster = Cluster(self.kernel, self.kernel.rng)

    def run(self, process: str, work: Callable[[], T], within_s: float = 300.0) -> T:
        """What ``work`` returns, done in a process of its own."""
        found: list[T] = []
        self.kernel.spawn(process, lambda: found.append(work()))
        assert self.kernel.run_until(lambda: bool(found or self.kernel.errors), within_s), self.kernel.waits()
        assert self.kernel.errors == []
        return found[0]


def simulated(seed: int, history: Callable[[World], None]) -> None:
    """Runs a history on a seed."""
    world = World(seed)
    with installed(world.kernel, twins(world.cluster)):
        history(world)


def _start() -> tuple[str, int]:
    return "MariaDB/0-1-0", 1_700_000_000


def _publish(last: int) -> Callable[[], str]:
    """A source: publishes up to transaction ``last``, and begins again when its publisher is lost."""

    def work() -> str:
        while True:
            try:
                with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                    for number in range(number_of(out.open(_start).position) + 1, last + 1):
                        out.publish(transaction(number))
                    out.flush()
                return "done"
            except (PublisherLost, KafkaUnreachable):
                continue

    return work


def _assert_exactly_once(last: int) -> None:
    assert_exactly_once(KAFKA, KEYSPACE, PARTITIONS, last)


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
        world.run("reader", lambda: _assert_exactly_once(LAST))

    simulated(seed, history)


@every_seed
def test_the_later_of_two_publishers_wins(seed: int) -> None:
    """The earlier one is fenced, and nothing of it is published any more."""

    def history(world: World) -> None:
        def work() -> str:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            stale, fresh = publisher(KAFKA, KEYSPACE, PARTITIONS), publisher(KAFKA, KEYSPACE, PARTITIONS)
            stale.open(_start)
            stale.publish(transaction(1))
            stale.flush()
            assert fresh.open(_start).position == "MariaDB/0-1-1"
            stale.publish(transaction(2))
            with pytest.raises(PublisherLost) as lost:
                stale.flush()
            with fresh:
                fresh.publish(transaction(2))
            _assert_exactly_once(2)
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
                epoch = out.open(_start).epoch
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
                resume = out.open(_start)
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
                out.open(_start)
                out.publish(transaction(1))
            shard = f"{KEYSPACE}/0"
            home = Layout(PARTITIONS).home_partition(shard)
            world.cluster.leave_open(TOPIC, home, b"junk")
            with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                assert out.open(_start).position == "MariaDB/0-1-1"
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
                out.open(_start)
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
                        return out.open(_start).epoch
                except PublisherLost:
                    continue
            raise AssertionError("never opened")

        world.run("source", publish)
        world.kernel.spawn("broker", forget)
        assert world.run("source", open_again) >= 1

    simulated(seed, history)


@every_seed
def test_brokers_that_are_back_have_no_leaders_at_first(seed: int) -> None:
    """Whoever asks for offsets then asks again, instead of failing."""

    def history(world: World) -> None:
        def work() -> None:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            world.cluster.down = True
            world.kernel.park(1.0)
            world.cluster.down = False
            assert end_offsets(KAFKA, TOPIC, [0]) == {0: 0}

        world.run("reader", work)

    simulated(seed, history)


@every_seed
def test_topics_are_made_found_and_refused(seed: int) -> None:
    """With the product's settings, from several processes at once."""

    def history(world: World) -> None:
        made: list[Any] = []
        for name in ("one", "two"):
            world.kernel.spawn(name, lambda: made.append(ensure_topics(KAFKA, KEYSPACE, PARTITIONS)))
        assert world.kernel.run_until(lambda: len(made) == 2, 60)
        assert made[0] == made[1]

        def work() -> None:
            assert check_topics(KAFKA, KEYSPACE, PARTITIONS) == made[0]
            with pytest.raises(TopicError) as missing:
                describe_topic(KAFKA, "freshet.other.events")
            assert missing.value.code == "topic_missing"
            world.cluster.topics[made[0].name].config["retention.ms"] = "1000"
            with pytest.raises(TopicError) as short:
                check_topics(KAFKA, KEYSPACE)
            assert short.value.code == "retention_too_short"
            world.cluster.down = True
            with pytest.raises(KafkaUnreachable):
                check_topics(KAFKA, KEYSPACE)

        world.run("admin", work)

    simulated(seed, history)


@every_seed
def test_a_range_is_read_to_its_end(seed: int) -> None:
    """Over control records, aborted transactions and a lost beginning; a time finds its place."""

    def history(world: World) -> None:
        def work() -> None:
            topic = ensure_topics(KAFKA, KEYSPACE, PARTITIONS).name
            with publisher(KAFKA, KEYSPACE, PARTITIONS) as out:
                out.open(_start)
                for number in range(1, 30):
                    out.publish(transaction(number))
                    out.flush()
            world.cluster.leave_open(topic, 0, b"junk")
            with pytest.raises(TopicReadError) as stuck:
                list(read_range(KAFKA, topic, 0, 0, end_offsets(KAFKA, topic, [0], committed=False)[0], timeout_s=1))
            assert stuck.value.code == "read_timeout"
            end = end_offsets(KAFKA, topic, [0], committed=False)[0] + 1
            found = list(read_range(KAFKA, topic, 0, 0, end))
            assert all(message.value() != b"junk" for message in found)
            assert decode(found[-1].value())[0] in ("Marker", "SourceState")
            world.cluster.lose_beginning(topic, 0, 10)
            assert start_offsets(KAFKA, topic, [0, 1]) == {0: 10, 1: 0}
            with pytest.raises(TopicReadError) as gone:
                list(read_range(KAFKA, topic, 0, 5, 20))
            assert (gone.value.code, gone.value.place) == ("offset_out_of_range", (topic, 0))
            assert offsets_for_timestamp(KAFKA, topic, [0], 1_700_000_000) == {0: 10}
            assert offsets_for_timestamp(KAFKA, topic, [0], int(world.kernel.time) + 60) == end_offsets(
                KAFKA, topic, [0]
            )

        world.run("reader", work)

    simulated(seed, history)


@every_seed
def test_announcements_reach_their_readers(seed: int) -> None:
    """Those before, those after, those after an outage, and what compaction has left."""

    def history(world: World) -> None:
        one = Announcement(keyspace=KEYSPACE, partition=0, address="a:1", instance="one", generation=1)
        two = Announcement(keyspace=KEYSPACE, partition=0, address="b:1", instance="two", generation=2)

        def work() -> None:
            announce(KAFKA, [one])
            with LocationsReader(KAFKA).start() as reader:
                assert reader.owner_of(KEYSPACE, 0) == one
                announce(KAFKA, [two])
                assert reader.wait_for(KEYSPACE, 0, 30, other_than="one") == two
                world.cluster.down = True
                with pytest.raises(KafkaUnreachable):
                    announce(KAFKA, [one])
                assert reader.owner_of(KEYSPACE, 0) == two
                world.cluster.down = False
                withdraw(KAFKA, [two])
                world.kernel.wait(lambda: reader.owner_of(KEYSPACE, 0) is None, 30)
                assert reader.owners(KEYSPACE) == {}
            announce(KAFKA, [two])
            world.cluster.compact("freshet.locations")
            with LocationsReader(KAFKA).start() as reader:
                assert reader.owner_of(KEYSPACE, 0) == two

        world.run("front", work)

    simulated(seed, history)


@every_seed
def test_dead_letters_are_kept_found_and_resolved(seed: int) -> None:
    """Once each, also if the acknowledgement of one is lost."""

    def history(world: World) -> None:
        def work() -> None:
            topic = ensure_topics(KAFKA, KEYSPACE, PARTITIONS).name
            letters = [DeadLetter(topic, 0, offset, "bad", "why", b"x%d" % offset) for offset in range(3)]
            out = DeadLetterPublisher(KAFKA, KEYSPACE)
            world.cluster.answers_to_lose["consumer"] = 1
            for letter in letters:
                assert out.send(letter)
                assert not out.send(letter)
            out.flush()
            assert [letter.id for letter in read_letters(KAFKA, KEYSPACE)] == [letter.id for letter in letters]
            assert all(result.problem for result in retry(KAFKA, KEYSPACE))
            assert len(dismiss(KAFKA, KEYSPACE)) == 3
            assert read_letters(KAFKA, KEYSPACE) == []
            world.cluster.down = True
            out.send(DeadLetter(topic, 0, 9, "bad", "why"))
            with pytest.raises(KafkaUnreachable):
                out.flush(1)

        world.run("consumer", work)

    simulated(seed, history)


@every_seed
def test_a_publisher_that_is_closed_has_published_everything(seed: int) -> None:
    """Also what it was given right before."""

    def history(world: World) -> None:
        def work() -> None:
            ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            out = Publisher(KAFKA, KEYSPACE, f"{KEYSPACE}/0", Layout(PARTITIONS))
            out.open(_start)
            for number in range(1, 6):
                out.publish(transaction(number))
            out.close()
            _assert_exactly_once(5)

        world.run("source", work)

    simulated(seed, history)
