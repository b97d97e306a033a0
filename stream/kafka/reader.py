"""Reading a topic: committed records only, in batches, without waiting for a full batch.

Measured (benchmarks/README.md): ``fetch.queue.backoff.ms`` determines the throughput; waiting for a number of messages
would determine the latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from stream.kafka.connection import (
    REQUEST_TIMEOUT_S,
    KafkaCluster,
    Settings,
    call_kafka,
    client_settings,
    kafka_error,
    what_lacks,
)
from tokens.errors import FreshetError

PREFETCH_KB: Final = 64 * 1024
FETCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""More than a topic's limit: a message above that limit must still be read, to become a dead letter."""

_RECOVERABLE_CODES: Final = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""Errors after which librdkafka continues by itself. Until then a reader gets no new messages."""

_LOST_CODES: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)
"""The broker can't continue at the reader's offset.

With ``auto.offset.reset=error`` librdkafka stops fetching that partition and reports ``_AUTO_OFFSET_RESET``, both for
an offset out of range and for a truncated log; only the text tells them apart (its src/rdkafka_offset.c,
``rd_kafka_offset_reset``). It notices a truncated log where the position has a leader epoch (KIP-320): after a change
of leader, and at the start if the place was assigned with one. With any other policy it would go on elsewhere.
"""


class TopicReadError(FreshetError):
    """A topic cannot be read any further.

    Codes: ``offset_out_of_range`` (the next record is gone, or another one has taken its offset: rebuild; the offset is
    never reset), ``read_failed``, ``read_timeout`` (no progress before the deadline), ``kafka_denied`` (no right),
    ``member_replaced`` (another process has joined the group by this one's member id).
    """

    code = "read_failed"
    place: tuple[str, int] | None = None
    """Topic and partition, if only one is affected."""


def reader_settings(kafka: KafkaCluster, group: str = "", more: Mapping[str, Any] | None = None) -> Settings:
    """Settings of a read_committed consumer that never commits or resets an offset by itself."""
    return {
        **client_settings(kafka),
        "group.id": kafka.group_id(group),
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.queue.backoff.ms": 2,
        "fetch.wait.max.ms": 10,
        "fetch.min.bytes": 1,
        "fetch.error.backoff.ms": 100,
        "max.partition.fetch.bytes": 4 * 1024 * 1024,
        "fetch.max.bytes": FETCH_BYTES_MAX,
        "receive.message.max.bytes": FETCH_BYTES_MAX + 1024,
        "queued.min.messages": 100_000,
        "queued.max.messages.kbytes": PREFETCH_KB,
        "partition.assignment.strategy": "cooperative-sticky",
        **(more or {}),
    }


def open_consumer(kafka: KafkaCluster, group: str = "", more: Mapping[str, Any] | None = None) -> Consumer:
    """A consumer with `reader_settings`. Without a ``group`` use only `assign`. ``more``: librdkafka settings."""
    return Consumer(reader_settings(kafka, group, more))


def poll_batch(consumer: Consumer, messages_max: int = 10_000, timeout_s: float = 0.1) -> list[Message]:
    """The messages that have arrived: wait up to ``timeout_s`` for the first one, then take the rest without waiting.

    Raises `TopicReadError` for an error from which the client does not recover by itself.
    """
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    messages = [first, *consumer.consume(messages_max - 1, 0)] if messages_max > 1 else [first]
    if any(map(Message.error, messages)):
        return [message for message in messages if not is_notice(message)]
    return messages


def is_notice(message: Message) -> bool:
    """Whether ``message`` is a recoverable error instead of data. Raises `TopicReadError` for any other error."""
    error = message.error()
    if error is None:
        return False
    if error.code() in _RECOVERABLE_CODES and not error.fatal():
        return True
    topic, partition = message.topic(), message.partition()
    place = f"{topic}/{partition}"
    text = error.str() if topic is None else f"{place}: {error.str()}"
    if lacking := what_lacks(error):
        raise TopicReadError(text, hint=lacking, code="kafka_denied")
    if error.code() == KafkaError._FATAL and "group.instance.id" in text:  # the code of its reason is not told
        hint = "another process has a copy of this one's data directory; this one goes on by another name"
        raise TopicReadError(text, hint=hint, code="member_replaced")
    if error.code() not in _LOST_CODES:
        raise TopicReadError(text, code="read_failed")
    lost = TopicReadError(
        f"{place} at {message.offset()}: the topic does not have this offset any more, or not yet ({error.str()})",
        hint="rebuild the store from a checkpoint or from the topic's start",
        code="offset_out_of_range",
    )
    if topic is not None and partition is not None:
        lost.place = topic, partition
    raise lost


def end_offsets(
    kafka: KafkaCluster,
    topic: str,
    partitions: Iterable[int],
    *,
    committed: bool = True,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> dict[int, int]:
    """Partition → the offset after the last readable record.

    ``committed``: the last stable offset, which a read_committed reader can reach now. Otherwise the log's end, which
    an unfinished Kafka transaction may hide from such readers. Raises `KafkaUnreachable`, `KafkaRequestError`.
    """
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    return _list_offsets(kafka, topic, partitions, OffsetSpec.latest(), level, timeout_s)


def start_offsets(
    kafka: KafkaCluster, topic: str, partitions: Iterable[int], *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[int, int]:
    """Partition → the first offset that retention has kept. Raises `KafkaUnreachable`, `KafkaRequestError`."""
    level = IsolationLevel.READ_UNCOMMITTED
    return _list_offsets(kafka, topic, partitions, OffsetSpec.earliest(), level, timeout_s)


def offsets_for_timestamp(
    kafka: KafkaCluster,
    topic: str,
    partitions: Iterable[int],
    timestamp: int,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> dict[int, int]:
    """Partition → the offset from which every event with source time ``timestamp`` (seconds) or later can be read.

    Record times are the running maximum of source time, so the broker's time index finds the offset. It is the end of a
    partition without such events. It may be earlier than needed, because Kafka's commit records have the broker's time,
    and too late only by what the source's clock is ahead of its publisher's: skip older events.
    """
    wanted = list(partitions)
    spec, level = OffsetSpec.for_timestamp(timestamp * 1000), IsolationLevel.READ_UNCOMMITTED
    found = _list_offsets(kafka, topic, wanted, spec, level, timeout_s)
    ends = end_offsets(kafka, topic, wanted, timeout_s=timeout_s)
    return {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}


def _list_offsets(
    kafka: KafkaCluster, topic: str, partitions: Iterable[int], spec: Any, level: Any, timeout_s: float
) -> dict[int, int]:
    request = {TopicPartition(topic, partition): spec for partition in partitions}
    if not request:
        return {}
    with AdminClient(client_settings(kafka)) as admin:

        def ask() -> dict[int, int]:
            futures = admin.list_offsets(request, isolation_level=level, request_timeout=timeout_s)
            return {place.partition: future.result().offset for place, future in futures.items()}

        return call_kafka(kafka, f"list offsets of {topic}", ask, patience_s=timeout_s)


def read_range(
    kafka: KafkaCluster,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    timeout_s: float = 30.0,
    messages_max: int = 10_000,
) -> Iterator[Message]:
    """Yield the committed records of ``partition`` with ``start`` <= offset < ``end``; errors as of `read_ranges`."""
    return read_ranges(kafka, topic, {partition: (start, end)}, timeout_s=timeout_s, messages_max=messages_max)


def read_ranges(
    kafka: KafkaCluster,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    timeout_s: float = 30.0,
    messages_max: int = 10_000,
) -> Iterator[Message]:
    """Yield the committed records of several partitions, from the start of each range up to its end.

    Those of one partition come in order. Raises `TopicReadError`: ``read_timeout`` without progress for ``timeout_s``
    (an unfinished transaction before an end, or no broker), ``offset_out_of_range`` if a start is gone.
    """
    left = {partition: place for partition, place in ranges.items() if place[0] < place[1]}
    if not left:
        return
    consumer = open_consumer(kafka, more={"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, (start, _) in left.items()])
        ends = {partition: end for partition, (_, end) in left.items()}
        yield from _read_until(kafka, consumer, topic, ends, timeout_s, messages_max)
    except KafkaException as error:
        raise kafka_error(error, kafka, f"read {topic}/{','.join(map(str, left))}") from error
    finally:
        consumer.close()


def windows_back(low: int, end: int, first: int) -> Iterator[tuple[int, int]]:
    """Ranges of offsets from ``end`` back to ``low``, without a gap: the last ``first`` offsets, then ever larger ones.

    For whoever looks for the last of something, which is most often near the end: reading backwards one by one is slow.
    """
    while low < end:
        start = max(low, end - first)
        yield start, end
        first, end = first * 4, start


def _read_until(
    kafka: KafkaCluster, consumer: Consumer, topic: str, ends: dict[int, int], timeout_s: float, messages_max: int
) -> Iterator[Message]:
    """Records up to each end, which may be a control record: the consumer's position passes it, no message does."""
    deadline = monotonic() + timeout_s
    reached = -1
    while True:
        for message in poll_batch(consumer, messages_max, 0.05):
            if message.offset() < ends.get(message.partition() or 0, 0):
                yield message
        places = consumer.position([TopicPartition(topic, partition) for partition in ends])
        done = [place.partition for place in places if place.offset >= ends[place.partition]]
        for partition in done:
            del ends[partition]
        if not ends:
            return
        if done:
            consumer.pause([TopicPartition(topic, partition) for partition in done])
        position = sum(max(place.offset, 0) for place in places)
        if done or position > reached:
            reached, deadline = -1 if done else position, monotonic() + timeout_s
        elif monotonic() > deadline:
            place = next(place for place in places if place.partition in ends)
            raise _no_progress(kafka, place, ends[place.partition], timeout_s)


def _no_progress(kafka: KafkaCluster, place: TopicPartition, end: int, timeout_s: float) -> TopicReadError:
    tool = f"kafka-transactions.sh --bootstrap-server {kafka.bootstrap}"
    where = f"--topic {place.topic} --partition {place.partition}"
    return TopicReadError(
        f"{place.topic}/{place.partition}: no progress from {place.offset} to {end} for {timeout_s:g} s",
        hint="its broker is away, or a Kafka transaction is unfinished there that nobody will end: "
        f"`{tool} describe-producers {where}` shows it, `{tool} abort {where} --start-offset {place.offset}` ends it",
        code="read_timeout",
    )
