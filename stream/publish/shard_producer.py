"""One shard's transactional producers, or that of a change log: each batch becomes one Kafka transaction.

A transaction with events is never aborted: on any error the producers are dropped with an open transaction, as in a
crash (docs/concepts/publishing.md, docs/decisions/0005-crash-only-publisher.md).

A shard has two producers that take turns (docs/decisions/0193-two-producers-of-a-shard-take-turns.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from time import sleep
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from stream.kafka.connection import KafkaCluster, KafkaDenied, KafkaUnreachable, client_settings, kafka_error
from stream.kafka.topics import MESSAGE_BYTES_MIN, may_write
from stream.publish.clock import Clock
from tokens.errors import FreshetError

TRANSACTION_TIMEOUT_S: Final = 10
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
    again after a pause), ``topic_replaced`` (the topic was deleted and made anew), ``kafka_denied`` (it may not write),
    ``clock_refused`` (the broker takes the record times for the future).
    """

    code = "publisher_lost"


class ShardProducer:
    """Commits batches, one after the other. Not thread-safe."""

    def __init__(
        self,
        kafka: KafkaCluster,
        topic: str,
        shard: str,
        transactional_ids: Sequence[str],
        clock: Clock,
        stopping: threading.Event,
        *,
        transaction_timeout_s: int = TRANSACTION_TIMEOUT_S,
    ) -> None:
        """``transactional_ids``: those that take turns; whoever publishes the shard has the same ones in this order.

        ``stopping``: once it is set, no wait for a broker lasts longer than `STOP_TIMEOUT_S`.

        ``transaction_timeout_s``: for producers with larger batches than a shard's.
        """
        self.transactional_ids = tuple(transactional_ids)
        self._kafka = kafka
        self._topic = topic
        self._shard = shard
        self._clock = clock
        self._stopping = stopping
        self._transaction_timeout_s = transaction_timeout_s
        self._producers: list[Producer] = []
        """The next one's turn is first."""

    def open(self) -> None:
        """Connect, and fence any earlier producers of the shard. Raises `KafkaUnreachable`, `KafkaRequestError`."""
        self._producers = [self._connected(transactional_id) for transactional_id in self.transactional_ids]

    def _connected(self, transactional_id: str) -> Producer:
        settings = client_settings(
            self._kafka,
            **{
                "transactional.id": transactional_id,
                "transaction.timeout.ms": self._transaction_timeout_s * 1000,
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
            raise kafka_error(error, self._kafka, f"init transactions of {transactional_id}") from error
        return producer

    def end_hanging(self, partitions: Sequence[int]) -> None:
        """Let an aborted transaction end whatever earlier producers of the shard have left open in ``partitions``.

        A leader that was elected uncleanly may lack nothing but a transaction's end. The coordinator takes it for
        ended, so neither time nor a successor ends it there. The next end of the same producer id does (KIP-664).
        Raises `PublisherLost`.
        """
        for _ in self.transactional_ids:
            producer = self._next()
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
        producer = self._next()
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
            patience_s = max(REQUEST_TIMEOUT_S, self._transaction_timeout_s)
            self._retry_until_done(producer.commit_transaction, patience_s)
        except (KafkaException, BufferError) as error:
            cause = _cause(producer, error)
            del producer  # else the error's traceback would keep librdkafka's threads and sockets alive
            raise self._loss(cause) from cause
        return offsets[-1]

    def drop(self) -> None:
        """Drop the producers. The broker aborts an open transaction after its timeout."""
        self._producers = []

    def _next(self) -> Producer:
        if not self._producers:
            raise PublisherLost(f"publisher of {self._shard} is not open")
        producer, *others = self._producers
        self._producers = [*others, producer]
        return producer

    def _retry_until_done(self, request: Callable[[float], None], patience_s: float = REQUEST_TIMEOUT_S) -> None:
        """Call ``request`` with a timeout in seconds until it succeeds. Raises `KafkaException`."""
        end = self._clock.monotonic() + patience_s
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
                hint=f"only one process may publish a shard (transactional id {self.transactional_ids[0]})",
                code="fenced",
            )
        if isinstance(cause, KafkaError) and cause.code() == KafkaError.INVALID_TIMESTAMP:
            return PublisherLost(
                f"a broker of {self._topic} refuses the time of {self._shard}'s records: by this machine's clock it is "
                f"{datetime.fromtimestamp(self._clock.now(), UTC):%Y-%m-%d %H:%M} UTC",
                hint="set the clock right, here or at the broker: nothing is published until then",
                code="clock_refused",
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
