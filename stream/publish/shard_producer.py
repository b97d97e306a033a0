"""One shard's transactional producer, or that of a change log: each batch becomes one Kafka transaction.

A transaction with events is never aborted: on any error the producer is dropped with its open transaction, as in a
crash (docs/concepts/publishing.md, docs/decisions/0005-crash-only-publisher.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import sleep
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from stream.kafka.connection import KafkaCluster, KafkaDenied, KafkaUnreachable, client_settings, kafka_error
from stream.kafka.topics import MESSAGE_BYTES_MIN, may_write
from stream.publish.clock import Clock
from tokens.errors import FreshetError

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Age at which the broker aborts a dead publisher's transaction. Without a successor, readers wait until then.

The broker looks for such transactions every 10 s (``transaction.abort.timed.out.transaction.cleanup.interval.ms``). So
they may wait for about twice as long.
"""
REQUEST_TIMEOUT_S: Final = 30.0
SLICE_TIMEOUT_S: Final = 0.25
"""Timeout of one call to librdkafka. Long requests are repeated calls, so that a request to stop is noticed."""
RETRY_INTERVAL_S: Final = 0.01
STOP_TIMEOUT_S: Final = 2.0
"""How long a publisher that is asked to stop still waits for a broker."""

_FENCED_CODES: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
_NO_REASONS: Final = frozenset({KafkaError._FATAL, KafkaError._STATE})


class PublisherLost(FreshetError):
    """The publisher has failed, and its uncommitted batches are not in the topic. Start again with `Publisher.open`.

    Codes: ``publisher_lost`` (broker, network, or a transaction that cannot be framed), ``fenced`` (another publisher
    of the shard has taken over, or the broker has timed out this one's transaction. Kafka doesn't tell which: start
    again after a pause), ``topic_replaced`` (the topic was deleted and made anew), ``kafka_denied`` (it may not write).
    """

    code = "publisher_lost"


class ShardProducer:
    """Commits batches. Not thread-safe."""

    def __init__(
        self,
        kafka: KafkaCluster,
        topic: str,
        shard: str,
        transactional_id: str,
        clock: Clock,
        stopping: threading.Event,
    ) -> None:
        """``stopping``: once it is set, no wait for a broker lasts longer than `STOP_TIMEOUT_S`."""
        self.transactional_id = transactional_id
        self._kafka = kafka
        self._topic = topic
        self._shard = shard
        self._clock = clock
        self._stopping = stopping
        self._producer: Producer | None = None

    def open(self) -> None:
        """Connect, and fence any earlier producer of the shard. Raises `KafkaUnreachable`, `KafkaRequestError`."""
        settings = client_settings(
            self._kafka,
            **{
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": "lz4",
                "linger.ms": 2,
                "message.max.bytes": MESSAGE_BYTES_MIN,
                "batch.size": 1024 * 1024,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 256 * 1024,
                "retry.backoff.ms": 20,
            },
        )
        producer = Producer(settings)
        try:
            self._retry_until_done(producer.init_transactions)
        except KafkaException as error:
            raise kafka_error(error, self._kafka, f"init transactions of {self.transactional_id}") from error
        self._producer = producer

    def end_hanging(self, partitions: Sequence[int]) -> None:
        """Let an aborted transaction end whatever an earlier producer of the shard has left open in ``partitions``.

        A leader that was elected uncleanly may lack nothing but a transaction's end. The coordinator takes it for
        ended, so neither time nor a successor ends it there. The next end of the same producer id does (KIP-664).
        Raises `PublisherLost`.
        """
        producer = self._opened()
        try:
            producer.begin_transaction()
            for partition in partitions:
                producer.produce(self._topic, b"", partition=partition)
            self._retry_until_done(partial(_deliver, producer))
            self._retry_until_done(producer.abort_transaction)
        except (KafkaException, BufferError) as error:
            cause = _cause(producer, error)
            del producer
            raise self._loss(cause) from cause

    def commit(
        self, records: Sequence[tuple[int, bytes]], time_ms: int, headers: Mapping[str, bytes] | None = None
    ) -> int:
        """Commit (partition, value) records, all with ``time_ms``, as one Kafka transaction.

        ``headers``: of the last one. Returns its offset, in its partition. Raises `PublisherLost`.
        """
        producer = self._opened()
        try:
            producer.begin_transaction()
            for partition, value in records[:-1]:
                producer.produce(self._topic, value, partition=partition, timestamp=time_ms)
            partition, value = records[-1]
            offsets: list[int] = []
            producer.produce(
                self._topic,
                value,
                partition=partition,
                timestamp=time_ms,
                on_delivery=lambda _, message: offsets.append(message.offset()),
                headers=dict(headers) if headers else None,
            )
            self._retry_until_done(producer.commit_transaction)
        except (KafkaException, BufferError) as error:
            cause = _cause(producer, error)
            del producer  # else the error's traceback would keep librdkafka's threads and sockets alive
            raise self._loss(cause) from cause
        return offsets[-1]

    def drop(self) -> None:
        """Drop the producer. The broker aborts an open transaction after its timeout."""
        self._producer = None

    def _opened(self) -> Producer:
        if self._producer is None:
            raise PublisherLost(f"publisher of {self._shard} is not open")
        return self._producer

    def _retry_until_done(self, request: Callable[[float], None]) -> None:
        """Call ``request`` with a timeout in seconds until it succeeds. Raises `KafkaException`."""
        end = self._clock.monotonic() + REQUEST_TIMEOUT_S
        stopping = False
        while True:
            try:
                request(SLICE_TIMEOUT_S)
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if cause.code() != KafkaError._TIMED_OUT and not cause.retriable():
                    raise
                now = self._clock.monotonic()
                if not stopping and self._stopping.is_set():
                    stopping, end = True, min(end, now + STOP_TIMEOUT_S)
                if now >= end:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, cause.str())) from error.with_traceback(None)
                sleep(RETRY_INTERVAL_S)
            else:
                return

    def _loss(self, error: KafkaException | BufferError) -> PublisherLost:
        cause = error.args[0] if isinstance(error, KafkaException) else None
        if isinstance(cause, KafkaError) and cause.code() in _FENCED_CODES:
            return PublisherLost(
                f"another publisher of {self._shard} has taken over, or the broker timed out the transaction",
                hint=f"only one process may publish a shard (transactional id {self.transactional_id})",
                code="fenced",
            )
        if isinstance(error, KafkaException):
            mine = kafka_error(self._refusal(error), self._kafka, f"publish {self._shard} to {self._topic}")
            hint = "the source retries by itself" if isinstance(mine, KafkaUnreachable) else mine.hint
            return PublisherLost(str(mine), hint=hint, code="kafka_denied" if isinstance(mine, KafkaDenied) else None)
        return PublisherLost(f"publisher of {self._shard}: the producer's queue is full")

    def _refusal(self, error: KafkaException) -> KafkaException:
        """``error``, or that a right is lacking: librdkafka may tell nobody, and refuse later calls for its state."""
        is_late = error.args[0].code() == KafkaError._STATE and bool(self._kafka.extra)
        if is_late and not may_write(self._kafka, self._topic):
            return KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        return error


def _deliver(producer: Producer, timeout_s: float) -> None:
    """Raises `KafkaException` if something is not delivered in time."""
    if producer.flush(timeout_s):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _cause(producer: Producer, error: KafkaException | BufferError) -> KafkaException | BufferError:
    """What has ended ``producer``, without a traceback.

    A broker's answer may come while records are handed over, such as that a successor has fenced the producer. Then
    librdkafka refuses the next record without a reason. It tells the reason to whoever begins another transaction.
    """
    error.with_traceback(None)
    if isinstance(error, KafkaException) and error.args[0].code() in _NO_REASONS:
        try:
            producer.begin_transaction()
        except KafkaException as reason:
            if reason.args[0].code() not in _NO_REASONS:
                return reason.with_traceback(None)
    return error
