"""What people ask of a running source: records in ``<prefix>.<keyspace>.requests``, read by the source of their shard.

A source that is down finds them when it starts. It keeps in its own state how far it has read, so each counts once
(docs/decisions/0024-requests-in-a-topic.md). Owners ask there, too: for the rows of a void table that are read most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Final

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from stream.kafka.connection import KafkaCluster, KafkaUnreachable, client_settings, kafka_error
from stream.kafka.reader import TopicReadError, open_consumer, poll_batch
from stream.kafka.topics import TopicRight, ensure_requests_topic, requests_topic
from stream.wire.canonical import UNDECODABLE
from stream.wire.keys import SEPARATOR

log = structlog.get_logger(__name__)

FLUSH_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 5.0
SEND_TIMEOUT_MS: Final = 10_000
CLOSE_TIMEOUT_S: Final = 1.0
_LIGHT: Final = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 500, "queued.max.messages.kbytes": 1_024}
"""A topic that was made anew is read from its beginning. Nobody waits for a request."""


class HotKeys(msgspec.Struct, frozen=True):
    """Publish these rows of a void table before its others. JSON; unknown fields are ignored.

    ``hot``: ``db.table``. ``keys``: the JSON arrays of primary keys, the one that is read most first.
    """

    hot: str
    keys: list[str]


_hot_keys = msgspec.json.Decoder(HotKeys)


def read_hot_keys(value: bytes) -> HotKeys | None:
    """A request of an owner; None if it is another one."""
    try:
        return _hot_keys.decode(value)
    except UNDECODABLE:
        return None


class HotKeysSender:
    """Asks sources for hot rows, without waiting and without raising: whoever reads such a row brings it, too."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self._kafka = kafka
        self._producer: Producer | None = None
        self._reported = ""

    def send(self, keyspace: str, shard: str, table: str, row_keys: Iterable[bytes]) -> None:
        """Ask the source of ``shard`` for rows of a table."""
        request = HotKeys(table, list(_primary_keys(row_keys)))
        if not request.keys:
            return
        if self._producer is None:
            more = {"message.timeout.ms": SEND_TIMEOUT_MS, "linger.ms": 0}
            self._producer = Producer(client_settings(self._kafka, **more))
        try:
            topic = requests_topic(self._kafka, keyspace)
            value = msgspec.json.encode(request)
            self._producer.produce(topic, value, shard, partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
        except (KafkaException, BufferError) as error:
            self._report(str(error))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            shown = kafka_error(error, self._kafka, f"write to {message.topic()}")
            self._report(str(shown), shown.hint)

    def _report(self, reason: str, hint: str = "") -> None:
        if reason != self._reported:
            self._reported = reason
            log.info("hot rows can't be asked for", reason=reason, hint=hint)

    def close(self) -> None:
        """Send what can be sent at once."""
        if self._producer is not None:
            self._producer.flush(CLOSE_TIMEOUT_S)


def _primary_keys(row_keys: Iterable[bytes]) -> Iterator[str]:
    """Of those that can be of a row: whoever reads may ask for any bytes."""
    for key in row_keys:
        with suppress(UnicodeDecodeError):
            yield key.partition(SEPARATOR)[2].decode()


def send_request(kafka: KafkaCluster, keyspace: str, shard: str, value: bytes) -> int:
    """Write a request to a shard's source and return its offset.

    Raises `KafkaUnreachable`, `KafkaRequestError`, `TopicError`.
    """
    ensure_requests_topic(kafka, keyspace)
    producer = Producer(client_settings(kafka, **{"enable.idempotence": True, "linger.ms": 0}))
    written: list[int] = []
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            written.append(message.offset() or 0)

    topic = requests_topic(kafka, keyspace)
    producer.produce(topic, value, shard, partition=0, on_delivery=delivered)
    producer.flush(FLUSH_TIMEOUT_S)
    if failed:
        raise kafka_error(failed[0], kafka, f"write to {topic}")
    if not written:
        raise KafkaUnreachable(f"the request was not written at {kafka.bootstrap} within {FLUSH_TIMEOUT_S:g} s")
    return written[0]


class RequestsReader:
    """Reads the requests of a shard, without waiting and without raising. Not thread-safe."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, shard: str) -> None:
        self._kafka = kafka
        self._topic = requests_topic(kafka, keyspace)
        self._shard = shard.encode()
        self._consumer: Consumer | None = None
        self._open_at = 0.0
        self._right: TopicRight | None = None

    def new(self, offset: int) -> list[tuple[int, bytes]]:
        """The requests that have arrived, each with the offset after it. ``offset``: where the first call begins."""
        if self._consumer is None:
            if monotonic() < self._open_at:
                return []
            self._open_at = monotonic() + RETRY_S
            if self._right is None and self._kafka.extra:  # else it is nobody whose rights could be fewer
                self._right = TopicRight(self._kafka, self._topic)
            self._consumer = open_consumer(self._kafka, more=_LIGHT)
            self._consumer.assign([TopicPartition(self._topic, 0, offset)])
        if self._right is not None and (denied := self._right.denied()) is not None:
            log.warning("requests can't be read", code=denied.code, reason=str(denied), hint=denied.hint)
        try:
            messages = poll_batch(self._consumer, timeout_s=0)
        except (TopicReadError, KafkaException) as error:  # such as no topic yet
            log.debug("requests can't be read", reason=str(error), hint=getattr(error, "hint", ""))
            self._leave()
            return []
        own = [message for message in messages if message.key() == self._shard]
        return [((message.offset() or 0) + 1, message.value() or b"") for message in own]

    def close(self) -> None:
        """Leave Kafka's clients."""
        self._leave()
        if self._right is not None:
            self._right.close()

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
