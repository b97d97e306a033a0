"""A shard's publisher: source transactions in, Kafka transactions out, exactly once, crash-only.

One Kafka transaction per batch holds events, markers and the shard's state, so a restart resumes exactly from what is
in the topic. Nothing is ever aborted or retried here: on any error the producer is dropped, `PublisherLost` is raised,
and the caller starts anew from `Publisher.open` (design, *Publishing*).

A batch leaves as soon as the one before it is committed and `batch_interval_s` has passed since that began: a lone
transaction leaves at once, at full rate batches fill up while the one before is on its way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Final, Self

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from stream.batch import Batch, Framer, Limits
from stream.clock import Clock, SystemClock
from stream.connection import KafkaUnreachable, client_settings, kafka_error
from stream.events import ResumePoint, SourceTransaction
from stream.keys import Layout
from stream.resume import Tail, read_tail
from stream.topics import MESSAGE_BYTES_MIN, RETENTION_MS_MIN, check_topics, events_topic
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""A dead publisher's unfinished transaction holds readers up no longer than this, even if nobody takes its place."""
REQUEST_TIMEOUT_S: Final = 30.0
BACKLOG_AGE_MS: Final = RETENTION_MS_MIN // 2
"""Records are never stamped as older than this."""

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


class LayoutMismatch(FreshetError):
    """The topic was published with another layout; code ``layout_changed``."""

    code = "layout_changed"


@dataclass(slots=True)
class PublisherStats:
    """Counters since `open`, for metrics."""

    events: int = 0
    rows: int = 0
    transactions: int = 0
    batches: int = 0
    bytes: int = 0
    last_commit_s: float = 0.0
    """How long the last Kafka transaction took, from begin to committed."""
    last_timestamp: int = 0
    """Source seconds of the last committed position."""


def record_time_ms(last_ms: int, source_s: int, now_s: float) -> int:
    """Kafka time of a batch's records: the running maximum of source time, bounded by now. Never below ``last_ms``.

    A time that is too high only makes a search by time start too early, never too late. So an old backlog is not
    stamped with its own age: the broker would drop it by retention as soon as it came.
    """
    now_ms = int(now_s * 1000)
    return max(last_ms, min(source_s * 1000, now_ms), now_ms - BACKLOG_AGE_MS)


class Publisher:
    """Publishes one shard. `publish`, `advance`, `flush` may be called from one thread; a thread of its own commits.

    Memory is bounded: a batch that fills up while the one before is being committed makes `publish` wait.
    """

    def __init__(
        self,
        bootstrap: str,
        keyspace: str,
        shard: str,
        layout: Layout,
        *,
        batch_interval_s: float = 0.025,
        batch_bytes: int = 4 * 1024 * 1024,
        idle_marker_s: float = 1.0,
        transactional_id: str | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.shard = shard
        self.layout = layout
        self.topic = events_topic(keyspace)
        self.keyspace = keyspace
        self.stats = PublisherStats()
        self.transactional_id = transactional_id or f"freshet.{keyspace}.{shard}"
        self._interval_s = batch_interval_s
        self._idle_s = idle_marker_s
        self._limits = replace(limits or Limits(), batch_bytes=batch_bytes)
        self._limits.check(MESSAGE_BYTES_MIN)
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._framer: Framer | None = None
        self._producer: Producer | None = None
        self._thread: threading.Thread | None = None
        self._lost: PublisherLost | None = None
        self._record_time_ms = 0
        self._collecting = 1
        """Number of the batch that is being filled; batches below `_committed` + 1 are out."""
        self._committed = 0
        self._pressing = False
        self._closing = False

    # --- start and end ---

    def open(self, start_if_new: Callable[[], tuple[str, int]]) -> ResumePoint:
        """Take the shard over and say where its source must go on.

        Fences any earlier publisher of the shard first, then reads the topic. If the shard was never published, an
        epoch starts at ``start_if_new()`` = (position, source seconds). Raises `TopicError`, `LayoutMismatch`,
        `KafkaUnreachable`, `ResumeError`, `PublisherLost`.
        """
        check_topics(self.bootstrap, self.keyspace, self.layout.partitions)
        self._producer = self._connect()
        tail = read_tail(self.bootstrap, self.topic, self.layout.home_partition(self.shard), self.shard)
        if tail.layout and tail.layout != str(self.layout):
            raise LayoutMismatch(
                f"{self.topic} was published with layout {tail.layout}, not {self.layout}",
                hint="a topic keeps its layout: set the old one, or publish into a new keyspace",
            )
        self._record_time_ms = tail.record_time_ms
        self._framer = Framer(self.shard, self.layout, tail.point, self._limits)
        if tail.point is None:
            self._start_first_epoch(self._framer, tail, *start_if_new())
        resume = self._framer.resume
        log.info(
            "publisher open", shard=self.shard, epoch=resume.epoch, ordinal=resume.ordinal, position=resume.position
        )
        self._thread = threading.Thread(target=self._run, name=f"publisher {self.shard}", daemon=True)
        self._thread.start()
        return resume

    def _connect(self) -> Producer:
        settings = client_settings(
            self.bootstrap,
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
            producer.init_transactions(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise kafka_error(error, self.bootstrap, f"init transactions of {self.transactional_id}") from error
        return producer

    def _start_first_epoch(self, framer: Framer, tail: Tail, position: str, timestamp: int) -> None:
        """A shard without a state: new, or forgotten by retention; its epoch must be above any earlier one."""
        epoch = 1 if tail.pristine else int(self._clock.now())
        framer.start_epoch(position, timestamp, "first_start", epoch)
        self._commit(framer.take())

    def close(self) -> None:
        """Commit what is buffered and end. Raises `PublisherLost` if that was not possible."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._producer = None
        if self._lost is not None:
            raise self._lost

    def abandon(self) -> None:
        """End without committing, as a crash would; what is open is left to the broker."""
        self._lose(PublisherLost(f"publisher of {self.shard} was abandoned"))
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # --- what the source calls ---

    def publish(self, txn: SourceTransaction) -> None:
        """Take the source's next transaction; returns when it is buffered, which may wait for the broker.

        After a restart the first one may be partly out: its published part is skipped. Raises `PublisherLost`.
        """
        with self._changed:
            framer = self._alive()
            idle = framer.empty
            start = self._already_out(framer, txn)
            while True:
                end = framer.room(txn, start)
                if end < 0:
                    self._press()
                    continue
                self._guarded(framer, partial(framer.add, txn, start, end))
                if end == len(txn.changes):
                    break
                start = end
            if idle or framer.size >= self._limits.batch_bytes:
                self._changed.notify_all()

    def advance(self, position: str, timestamp: int) -> None:
        """The source is at ``position`` without a change since the last one. Raises `PublisherLost`."""
        with self._changed:
            framer = self._alive()
            self._guarded(framer, partial(framer.advance, position, timestamp))
            self._changed.notify_all()

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:
        """The source's history was replaced: void everything and go on from ``position``. Raises `PublisherLost`."""
        with self._changed:
            framer = self._alive()
            while not framer.empty:
                self._press()
            self._guarded(framer, partial(framer.start_epoch, position, timestamp, reason))
            resume = framer.resume
        self.flush()
        return resume

    def flush(self) -> None:
        """Return when everything taken so far is committed. Raises `PublisherLost`."""
        with self._changed:
            framer = self._alive()
            wanted = self._collecting if not framer.empty else self._collecting - 1
            while self._committed < wanted:
                self._press()

    def _already_out(self, framer: Framer, txn: SourceTransaction) -> int:
        out = framer.resume.partial_events if framer.split_gtid == txn.gtid else 0
        return min(out, len(txn.changes))

    def _alive(self) -> Framer:
        if self._lost is not None:
            raise self._lost
        if self._framer is None or self._closing:
            raise PublisherLost(f"publisher of {self.shard} is not open")
        return self._framer

    def _press(self) -> None:
        """Ask for the batch to leave now, and wait until something has happened."""
        self._pressing = True
        self._changed.notify_all()
        self._changed.wait()
        if self._lost is not None:
            raise self._lost

    def _guarded(self, framer: Framer, step: Callable[[], None]) -> None:
        """A step that fails halfway leaves the framer unusable: then the publisher is lost."""
        try:
            step()
        except Exception as error:
            lost = PublisherLost(f"{self.shard} after {framer.resume.position}: {error}")
            self._lose(lost)
            raise lost from error

    # --- the committing thread ---

    def _run(self) -> None:
        try:
            began = self._clock.monotonic()
            while (began := self._commit_next(began)) >= 0:
                pass
        except PublisherLost as lost:
            self._lose(lost)
        except Exception as error:
            log.exception("publisher failed", shard=self.shard)
            self._lose(PublisherLost(f"publisher of {self.shard} failed: {error}"))

    def _commit_next(self, began: float) -> float:
        """Wait for the next batch, commit it, return when that began; negative when there is nothing more to do.

        ``began``: when the batch before it did.
        """
        with self._changed:
            framer = self._wait_until_due(began)
            if framer is None:
                return -1.0
            began = self._clock.monotonic()
            self._pressing = False
            number, batch = self._collecting, framer.take()
            self._collecting += 1
            self._changed.notify_all()
        self._commit(batch)
        with self._changed:
            self._committed = number
            self._changed.notify_all()
        return began

    def _wait_until_due(self, began: float) -> Framer | None:
        """The framer once a batch has to leave; None when there is nothing more to do."""
        while True:
            framer = self._framer
            if self._lost is not None or framer is None:
                return None
            if self._closing and framer.empty:
                return None
            waits_s = self._interval_s if not framer.empty else self._idle_s
            left_s = began + waits_s - self._clock.monotonic()
            full = framer.size >= self._limits.batch_bytes
            if left_s <= 0 or (not framer.empty and (self._closing or self._pressing or full)):
                return framer
            self._changed.wait(left_s)

    def _commit(self, batch: Batch) -> None:
        """One Kafka transaction; raises `PublisherLost`, never aborts."""
        producer = self._producer
        if producer is None:
            raise PublisherLost(f"publisher of {self.shard} is not open")
        began = self._clock.monotonic()
        self._record_time_ms = record_time_ms(self._record_time_ms, batch.timestamp_max, self._clock.now())
        try:
            producer.begin_transaction()
            for partition, value in batch.records:
                producer.produce(self.topic, value, partition=partition, timestamp=self._record_time_ms)
            producer.commit_transaction(REQUEST_TIMEOUT_S)
        except (KafkaException, BufferError) as error:
            raise self._loss(error) from error
        self._count(batch, self._clock.monotonic() - began)

    def _count(self, batch: Batch, took_s: float) -> None:
        stats = self.stats
        stats.events += batch.events
        stats.rows += batch.rows
        stats.transactions += batch.transactions
        stats.batches += 1
        stats.bytes += batch.bytes
        stats.last_commit_s = took_s
        stats.last_timestamp = batch.resume.timestamp

    def _loss(self, error: KafkaException | BufferError) -> PublisherLost:
        cause = error.args[0] if isinstance(error, KafkaException) else None
        if isinstance(cause, KafkaError) and cause.code() in _FENCED:
            return PublisherLost(
                f"another publisher of {self.shard} has taken over, or the broker gave its transaction up",
                hint=f"only one process may publish a shard (transactional id {self.transactional_id})",
                code="fenced",
            )
        if isinstance(error, KafkaException):
            mine = kafka_error(error, self.bootstrap, f"publish {self.shard}")
            hint = "it is started again by itself" if isinstance(mine, KafkaUnreachable) else mine.hint
            return PublisherLost(str(mine), hint=hint)
        return PublisherLost(f"publisher of {self.shard}: the producer's queue is full")

    def _lose(self, lost: PublisherLost) -> None:
        """Drop the producer, with what is open in it, and wake everybody up."""
        with self._changed:
            if self._lost is None:
                self._lost = lost
                log.warning("publisher lost", shard=self.shard, code=lost.code, error=str(lost))
            self._producer = None
            self._changed.notify_all()
