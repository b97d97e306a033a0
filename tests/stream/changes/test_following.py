"""The partitions of a topic are read beside each other: none runs far ahead, and none waits for ever."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stream.changes.following import CHECK_EVERY_S, Follower
from stream.changes.items import Unreadable
from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from stream.kafka.reader import TopicReadError
from stream.kafka.topics import Topic
from stream.wire.codec import PartitionReader
from stream.wire.events import VALUE, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.stream.changes.topics import Log, framer_of, transactions
from tests.upgrades import next_version


class Message:
    """As the client gives it."""

    def __init__(self, partition: int, offset: int, value: bytes) -> None:
        self._place, self._value = (partition, offset), value

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def value(self) -> bytes:
        return self._value


class Consumer:
    """Gives out what a test has put into ``next``, and remembers which partitions pause."""

    def __init__(self) -> None:
        self.next: list[Message] = []
        self.paused: set[int] = set()
        self.other = ""
        """The id of another topic that has taken the name."""

    def assign(self, places: Iterable[TopicPartition]) -> None:
        assert [each.offset for each in places]

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self.paused |= {each.partition for each in places}

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self.paused -= {each.partition for each in places}

    def other_id(self) -> str:
        return self.other

    def close(self) -> None:
        self.next = []


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """The client of each reader that is opened; it may hold some rows."""
    found = Consumer()
    monkeypatch.setattr("stream.changes.following.PAUSE_BYTES", 2_000)
    monkeypatch.setattr("stream.changes.following.open_consumer", lambda *_, **__: found)
    monkeypatch.setattr("stream.changes.following.TopicWatch", lambda *_: found)
    monkeypatch.setattr("stream.changes.following.announced_before", lambda *_: iter(()))
    monkeypatch.setattr("stream.changes.following.poll_batch", lambda *_: found.next)
    return found


def following(log: Log) -> Follower:
    """A reader of a topic from its beginning."""
    partitions = log.layout.partitions
    return Follower(KafkaCluster("127.0.0.1:1"), Topic("t", "topic-id", partitions), log.beginning())


def read(consumer: Consumer, follower: Follower, log: Log, partition: int, upto: int | None = None) -> None:
    """Has it read all of one partition, or the messages before ``upto``."""
    consumer.next = [Message(partition, *each) for each in enumerate(log.partitions[partition][:upto])]
    follower.poll()


def rows(number: int, count: int) -> SourceTransaction:
    gtid = f"MariaDB/0-1-{number}"
    changes = [RowChange(row_key("shop.t", [key]), VALUE, b"{}") for key in range(count)]
    return SourceTransaction(gtid, gtid, 1_700_000_000, [*changes])


def log_of(partitions: int, count: int) -> Log:
    """A topic with transactions of some rows each."""
    log = Log(Layout(partitions))
    framer = framer_of("shop/0", log.layout)
    for number in range(1, count + 1):
        log.publish(framer, rows(number, 6))
    return log


def test_a_partition_that_is_ahead_waits_for_the_others_and_then_goes_on(consumer: Consumer) -> None:
    """What it holds meanwhile is bounded; once the others have come to it, it is read on. So it is each time."""
    log = Log(Layout(2))
    framer = framer_of("shop/0", log.layout)
    with following(log) as follower:
        for number in range(1, 58):
            log.publish(framer, rows(number, 6))
            if number % 19 == 0:
                read(consumer, follower, log, 0)
                assert consumer.paused == {0}
                read(consumer, follower, log, 1)
                assert consumer.paused == set()


def test_a_partition_that_others_have_overtaken_is_read_on(consumer: Consumer) -> None:
    """While a third one holds all back: it would else stay paused, and soon be what everybody waits for."""
    log = log_of(3, 39)
    with following(log) as follower:
        read(consumer, follower, log, 0, len(log.partitions[0]) // 2)
        assert consumer.paused == {0}
        read(consumer, follower, log, 1)
        assert consumer.paused == {1}


def test_a_large_transaction_that_no_partition_has_whole_pauses_none(consumer: Consumer) -> None:
    """Its end is in what follows: if all paused, nothing would ever be given out again."""
    log = Log(Layout(1))
    framer, large = framer_of("shop/0", log.layout), rows(1, 200)
    framer.add(large, 0, framer.room(large, 0))
    log.publish(framer)
    with following(log) as follower:
        read(consumer, follower, log, 0)
        assert follower._assembler.held > 2_000
        assert consumer.paused == set()


def test_nothing_of_another_topic_under_the_name_is_told(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client goes on there by itself, where the offsets are of something else."""
    now, log = 100.0, Log(Layout(1))
    monkeypatch.setattr("stream.changes.following.monotonic", lambda: now)
    log.publish(framer_of("shop/0", log.layout), rows(1, 2))
    with following(log) as follower:
        consumer.other, now = "other-id", now + CHECK_EVERY_S
        with pytest.raises(TopicReadError) as ended:
            read(consumer, follower, log, 0)
        assert (ended.value.code, follower.offsets) == ("checkpoint_lost", (0,))


def test_a_reader_that_kafka_leaves_alone_says_so(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of all that need Kafka: whoever reads the stream is told to come back later."""

    def away(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    with following(Log(Layout(1))) as follower:
        monkeypatch.setattr("stream.changes.following.poll_batch", away)
        with pytest.raises(KafkaUnreachable):
            follower.poll()
    assert consumer.next == []


def test_what_was_announced_before_the_beginning_is_known_there(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer publisher says its schemas now and then: until then all would be told as unreadable."""
    log, announced = Log(Layout(1)), PartitionReader()
    log.publish(framer_of("shop/0", log.layout), rows(1, 2))
    log.partitions[0] = next_version.topic(log.partitions[0], "shop/0")
    for value in next_version.announcements("shop/0"):
        announced.decode(value)
    monkeypatch.setattr("stream.changes.following.announced_before", lambda *_: iter([announced.texts]))
    with following(log) as follower:
        consumer.next = [Message(0, *each) for each in enumerate(log.partitions[0])]
        told = follower.poll()
    assert [each.gtid for each in transactions(told)] == ["MariaDB/0-1-1"]
    assert not [each for each in told if isinstance(each, Unreadable)]
