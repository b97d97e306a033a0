"""One shard's transactional producer: batches in, each as one Kafka transaction, or not at all.

Nothing is ever aborted: on any error the producer is dropped with what is open in it, as a crash would
(docs/concepts/publishing.md, docs/decisions/0005-crash-only-publisher.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import sleep
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from stream.kafka.connection import KafkaCluster, KafkaUnreachable, client_settings, kafka_error
from stream.kafka.topics import MESSAGE_BYTES_MIN
from stream.publish.clock import Clock
from tokens.errors import FreshetError

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""A dead publisher's unfinished transaction holds readers up no longer than this, even if nobody takes its place."""
REQUEST_TIMEOUT_S: Final = 30.0
SLICE_S: Final = 0.25
"""librdkafka is asked in slices of that length, and goes on where it was: a request to stop is met in between."""
REPEAT_S: Final = 0.01
STOP_S: Final = 2.0
"""Who was asked to stop waits no longer for a broker."""

_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)


class PublisherLost(FreshetError):
    """The publisher is dead; what it had not committed is not in the topic. Start anew from `Publisher.open`.

    Codes: ``publisher_lost`` (broker, network, or a transaction that cannot be framed), ``fenced`` (another publisher
    of the shard has taken over, or the broker was away so long that it gave this one's transaction up; Kafka doesn't
    tell which, so start again, but not at once).
    """

    code = "publisher_lost"


class ShardProducer:
    """Commits batches. One thread at a time."""

    def __init__(
        self,
        kafka: KafkaCluster,
        topic: str,
        shard: str,
        transactional_id: str,
        clock: Clock,
        stopping: threading.Event,
    ) -> None:
        """``stopping``: once it is set, no wait for a broker lasts longer than `STOP_S`."""
        self.transactional_id = transactional_id
        self._kafka = kafka
        self._topic = topic
        self._shard = shard
        self._clock = clock
        self._stopping = stopping
        self._producer: Producer | None = None

    def open(self) -> None:
        """Fences any earlier producer of the shard. Raises `KafkaUnreachable`, `KafkaRequestError`."""
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
            self._patiently(producer.init_transactions)
        except KafkaException as error:
            raise kafka_error(error, self._kafka, f"init transactions of {self.transactional_id}") from error
        self._producer = producer

    def commit(self, records: Iterable[tuple[int, bytes]], time_ms: int) -> None:
        """One Kafka transaction of (partition, value) with that record time; raises `PublisherLost`, never aborts."""
        producer = self._producer
        if producer is None:
            raise PublisherLost(f"publisher of {self._shard} is not open")
        try:
            producer.begin_transaction()
            for partition, value in records:
                producer.produce(self._topic, value, partition=partition, timestamp=time_ms)
            self._patiently(producer.commit_transaction)
        except (KafkaException, BufferError) as error:
            del producer  # whoever keeps the error, by its traceback, must not keep librdkafka's threads and sockets
            raise self._loss(error) from error.with_traceback(None)

    def drop(self) -> None:
        """Lets go of the producer; what is open in it is left to the broker."""
        self._producer = None

    def _patiently(self, request: Callable[[float], None]) -> None:
        """``request`` (time-out in seconds) until it is done. Raises `KafkaException`."""
        end = self._clock.monotonic() + REQUEST_TIMEOUT_S
        stopping = False
        while True:
            try:
                request(SLICE_S)
            except KafkaException as error:
                met: KafkaError = error.args[0]
                if met.code() != KafkaError._TIMED_OUT and not met.retriable():
                    raise
                now = self._clock.monotonic()
                if not stopping and self._stopping.is_set():
                    stopping, end = True, min(end, now + STOP_S)
                if now >= end:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, met.str())) from error.with_traceback(None)
                sleep(REPEAT_S)
            else:
                return

    def _loss(self, error: KafkaException | BufferError) -> PublisherLost:
        cause = error.args[0] if isinstance(error, KafkaException) else None
        if isinstance(cause, KafkaError) and cause.code() in _FENCED:
            return PublisherLost(
                f"another publisher of {self._shard} has taken over, or the broker gave its transaction up",
                hint=f"only one process may publish a shard (transactional id {self.transactional_id})",
                code="fenced",
            )
        if isinstance(error, KafkaException):
            mine = kafka_error(error, self._kafka, f"publish {self._shard}")
            hint = "it is started again by itself" if isinstance(mine, KafkaUnreachable) else mine.hint
            return PublisherLost(str(mine), hint=hint)
        return PublisherLost(f"publisher of {self._shard}: the producer's queue is full")
