"""The product's readers and administration run over the simulated Kafka, and keep their promises there."""

from __future__ import annotations

from typing import Any

import pytest

from stream.kafka.connection import KafkaUnreachable
from stream.kafka.dead_letters import DeadLetter, DeadLetterPublisher, dismiss, read_letters, retry
from stream.kafka.locations import Announcement, LocationsReader, announce, withdraw
from stream.kafka.reader import TopicReadError, end_offsets, offsets_for_timestamp, read_range, start_offsets
from stream.kafka.topics import TopicError, check_topics, describe_topic, ensure_topics
from stream.wire.codec import decode
from tests.lab.simulation.kafka.product import (
    KAFKA,
    KEYSPACE,
    PARTITIONS,
    TOPIC,
    World,
    every_seed,
    simulated,
    start,
)
from tests.stream.publishing import publisher, transaction


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
def test_who_makes_topics_waits_for_the_broker_that_learns_of_them_last(seed: int) -> None:
    """Each question may go to another broker; on a busy cluster some learn of a new topic later than others."""

    def history(world: World) -> None:
        world.cluster.behind_s = 0.5

        def work() -> None:
            made = ensure_topics(KAFKA, KEYSPACE, PARTITIONS)
            assert check_topics(KAFKA, KEYSPACE, PARTITIONS) == made

        world.run("source", work)

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
                out.open(start)
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
