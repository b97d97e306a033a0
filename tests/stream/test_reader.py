"""Reading a topic: committed records only, without waiting for a full batch, and without offset resets."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stream.kafka.connection import KafkaCluster, KafkaRequestError, KafkaUnreachable, client_settings
from stream.kafka.reader import (
    TopicReadError,
    _read_until,
    end_offsets,
    is_notice,
    offsets_for_timestamp,
    open_consumer,
    poll_batch,
    read_range,
    start_offsets,
    windows_back,
)
from stream.kafka.topics import ensure_topics
from tests.patience import PATIENCE_S
from tests.stream.committed import await_decided


@pytest.fixture
def topic(kafka: KafkaCluster, keyspace_name: str) -> str:
    """An empty topic of two partitions."""
    return ensure_topics(kafka, keyspace_name, 2).name


def _producer(kafka: KafkaCluster, name: str) -> Producer:
    producer = Producer(client_settings(kafka, **{"transactional.id": name, "transaction.timeout.ms": 60_000}))
    producer.init_transactions(60)
    return producer


def _commit(kafka: KafkaCluster, producer: Producer, topic: str, values: list[bytes], timestamp: int = 0) -> None:
    """Returns when the partition knows of it."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0, timestamp=timestamp)
    producer.commit_transaction(60)
    await_decided(kafka, topic, [0])


def _collect(consumer: Consumer, count: int, timeout_s: float = PATIENCE_S) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count and time.monotonic() < deadline:
        messages += poll_batch(consumer)
    return messages


def test_a_range_is_read_once_and_ends_also_on_control_records(kafka: KafkaCluster, topic: str) -> None:
    """A range has each committed record once, and ends although its last offset is a commit record."""
    producer = _producer(kafka, topic)
    for number in range(3):
        _commit(kafka, producer, topic, [b"%d-%d" % (number, n) for n in range(3)])
    end = end_offsets(kafka, topic, [0, 1])
    assert end == {0: 12, 1: 0}
    assert start_offsets(kafka, topic, [0, 1]) == {0: 0, 1: 0}
    assert len(list(read_range(kafka, topic, 0, 0, 12))) == 9
    assert [m.value() for m in read_range(kafka, topic, 0, 2, 6)] == [b"0-2", b"1-0", b"1-1"]
    assert list(read_range(kafka, topic, 0, 3, 3)) == []


def test_what_is_not_committed_is_not_read(kafka: KafkaCluster, topic: str) -> None:
    """An unfinished transaction is invisible, and reading beyond it times out with an error."""
    producer = _producer(kafka, topic)
    _commit(kafka, producer, topic, [b"seen"])
    producer.begin_transaction()
    producer.produce(topic, b"unfinished", partition=0)
    producer.flush()
    assert end_offsets(kafka, topic, [0]) == {0: 2}
    assert end_offsets(kafka, topic, [0], committed=False) == {0: 3}
    with pytest.raises(TopicReadError) as stuck:
        list(read_range(kafka, topic, 0, 0, 3, timeout_s=0.5))
    assert stuck.value.code == "read_timeout"
    _producer(kafka, topic)
    assert [message.value() for message in read_range(kafka, topic, 0, 0, 4)] == [b"seen"]


@pytest.mark.parametrize("start", [500, 10_000])
def test_an_offset_that_is_not_there_is_an_error(kafka: KafkaCluster, topic: str, start: int) -> None:
    """Reading from an offset that does not exist is an error, never a reset to another offset."""
    with pytest.raises(TopicReadError) as gone:
        list(read_range(kafka, topic, 0, start, start + 10, timeout_s=PATIENCE_S))
    assert gone.value.code == "offset_out_of_range"


def test_a_batch_is_what_is_there_now(kafka: KafkaCluster, topic: str) -> None:
    """A single message is returned at once, although more were requested."""
    producer = _producer(kafka, topic)
    consumer = open_consumer(kafka)
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    try:
        _commit(kafka, producer, topic, [b"first"])
        assert [message.value() for message in _collect(consumer, 1)] == [b"first"]
        waits = []
        for _ in range(10):
            _commit(kafka, producer, topic, [b"next"])
            began = time.monotonic()
            assert len(_collect(consumer, 1)) == 1
            waits.append(time.monotonic() - began)
        assert min(waits) < 0.1  # waiting for more would show in each; other work on the machine does not
        _commit(kafka, producer, topic, [b"x"] * 5000)
        assert len(_collect(consumer, 5000)) == 5000
        assert poll_batch(consumer, timeout_s=0) == []
    finally:
        consumer.close()


def test_end_of_partition_notices_are_not_messages(kafka: KafkaCluster, topic: str) -> None:
    """End-of-partition notices are filtered out of a batch."""
    producer = _producer(kafka, topic)
    _commit(kafka, producer, topic, [b"only"])
    consumer = open_consumer(kafka, more={"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    try:
        assert [message.value() for message in _collect(consumer, 1)] == [b"only"]
        assert _collect(consumer, 1, timeout_s=1.0) == []
    finally:
        consumer.close()


def test_a_timestamp_never_finds_a_place_too_late(kafka: KafkaCluster, topic: str) -> None:
    """A reader that starts at a source time sees every event from then on; without such events it starts at the end.

    Kafka's commit records carry the broker's time, so for old source times the place may be earlier than needed.
    """
    producer = _producer(kafka, topic)
    now = int(time.time())
    times = {}
    for age in (300, 200, 100, 0):
        _commit(kafka, producer, topic, [b"%d" % age], (now - age) * 1000)
        times[end_offsets(kafka, topic, [0])[0] - 2] = now - age
    for wanted in (now - 400, now - 200, now - 150, now):
        found = offsets_for_timestamp(kafka, topic, [0, 1], wanted)
        assert found[0] <= min(offset for offset, seconds in times.items() if seconds >= wanted)
        assert found[1] == 0
    assert offsets_for_timestamp(kafka, topic, [0], now + 60) == {0: 8}


def test_a_twenty_megabyte_message_comes_in(kafka: KafkaCluster, topic: str) -> None:
    """A message above all limits can still be read, so that it becomes a dead letter and blocks nothing."""
    large = NewTopic(f"{topic}.large", 1, 1, config={"max.message.bytes": str(32 << 20)})
    with AdminClient(client_settings(kafka)) as admin:
        admin.create_topics([large])[large.topic].result(PATIENCE_S)
    producer = Producer(client_settings(kafka, **{"message.max.bytes": 30 << 20}))
    for value in (b"before", b"x" * (20 << 20), b"after"):
        producer.produce(large.topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    sizes = [len(message.value()) for message in read_range(kafka, large.topic, 0, 0, 3, timeout_s=PATIENCE_S)]
    assert sizes == [6, 20 << 20, 5]


def test_an_absent_broker_is_one_clear_error() -> None:
    """Requesting offsets without a broker fails within seconds."""
    with pytest.raises(KafkaUnreachable):
        end_offsets(KafkaCluster("127.0.0.1:1"), "t", [0], timeout_s=1.0)


def test_windows_back_leave_no_gap_and_grow() -> None:
    """Whoever looks for the last of something finds it, wherever it lies."""
    assert list(windows_back(3, 100, 10)) == [(90, 100), (50, 90), (3, 50)]
    assert list(windows_back(0, 4, 10)) == [(0, 4)]
    assert list(windows_back(7, 7, 10)) == []


def test_a_partition_without_anything_so_late_is_read_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka names no offset for it. What comes later is wanted."""
    monkeypatch.setattr("stream.kafka.reader._list_offsets", lambda *_: {0: -1, 1: 3})
    monkeypatch.setattr("stream.kafka.reader.end_offsets", lambda *_, **__: {0: 7, 1: 9})
    assert offsets_for_timestamp(KafkaCluster("127.0.0.1:1"), "t", [0, 1], 100) == {0: 7, 1: 3}


class OneAfterTheOther:
    """A consumer of two partitions: the first is read at once, and the second goes on by a record at a time."""

    def __init__(self) -> None:
        self.read = 0

    def poll(self, _: float) -> None:
        """A record of a transaction that was aborted, which nobody is given."""
        self.read += 1

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """How far each is read."""
        return [TopicPartition("t", each.partition, self.read if each.partition else 1_000) for each in places]

    def pause(self, _: list[TopicPartition]) -> None:
        """Nothing is fetched any more."""


def test_a_partition_that_goes_on_behind_a_longer_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the others were that are read to their ends: it is not stuck."""
    clock = count()
    monkeypatch.setattr("stream.kafka.reader.monotonic", lambda: float(next(clock)))
    consumer: Any = OneAfterTheOther()
    assert not list(_read_until(KafkaCluster("127.0.0.1:1"), consumer, "t", {0: 1_000, 1: 50}, 5.0, 100))
    assert consumer.read == 50


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, None),
        (KafkaError(KafkaError._TRANSPORT, "away"), None),
        (KafkaError(KafkaError._TRANSPORT, "away", fatal=True), "read_failed"),
        (KafkaError(KafkaError._FATAL, "fenced by other consumer with same group.instance.id"), "member_replaced"),
        (KafkaError(KafkaError._FATAL, "another"), "read_failed"),
        (KafkaError(KafkaError._AUTO_OFFSET_RESET, "gone"), "offset_out_of_range"),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no"), "kafka_denied"),
        (KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "what"), "read_failed"),
    ],
)
def test_only_an_error_that_passes_is_waited_for(error: KafkaError | None, code: str | None) -> None:
    """After a fatal one the client gives nothing more, for ever. A lost place is told, so that it is made anew."""
    message: Any = SimpleNamespace(error=lambda: error, topic=lambda: "t", partition=lambda: 3, offset=lambda: 9)
    if code is None:
        assert is_notice(message) is (error is not None)
        return
    with pytest.raises(TopicReadError) as ended:
        is_notice(message)
    assert (ended.value.code, ended.value.place) == (code, ("t", 3) if code == "offset_out_of_range" else None)


@pytest.mark.parametrize("ends", ["left", "lost", "refused"])
def test_a_range_leaves_no_client_behind_however_its_reading_ends(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has found what it looked for reads no further; and a place that is lost is looked for again and again."""
    closed: list[str] = []
    errors: dict[str, Exception] = {
        "lost": TopicReadError("it is gone", code="offset_out_of_range"),
        "refused": KafkaException(KafkaError(KafkaError._INVALID_ARG)),
    }

    def poll(*_: object) -> list[Any]:
        if ends in errors:
            raise errors[ends]
        return [SimpleNamespace(offset=lambda: 0, partition=lambda: 0)]

    consumer = SimpleNamespace(assign=lambda _: None, close=lambda: closed.append(ends))
    monkeypatch.setattr("stream.kafka.reader.open_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr("stream.kafka.reader.poll_batch", poll)
    reading: Any = read_range(KafkaCluster("127.0.0.1:1"), "t", 0, 0, 9)
    if ends == "left":
        assert next(reading).offset() == 0
        reading.close()
    else:
        with pytest.raises(TopicReadError if ends == "lost" else KafkaRequestError):
            next(reading)
    assert closed == [ends]
