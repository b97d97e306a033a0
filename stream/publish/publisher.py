"""A shard's publisher: source transactions in, Kafka transactions out, exactly once, crash-only.

One Kafka transaction per batch holds events, markers and the shard's state, so a restart resumes exactly from the
topic. A transaction is never aborted or retried: on any error the producer is dropped, `PublisherLost` is raised, and
the caller starts again with `Publisher.open` (docs/concepts/publishing.md).

A batch is sent once the batch before it is committed and `batch_interval_s` has passed since that one was started. So
a single transaction is sent at once, and at full rate a batch fills while the one before is being committed.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Final, Self

import structlog

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import TopicReadError, end_offsets
from stream.kafka.topics import (
    MESSAGE_BYTES_MIN,
    RETENTION_MS_MIN,
    TIMESTAMP_AFTER_MS,
    Topic,
    TopicWatch,
    check_topics,
    events_topic,
)
from stream.publish.clock import Clock, SystemClock
from stream.publish.handover import (
    HANDED_OVER,
    HISTORIES,
    TOLD,
    Ancestor,
    as_told,
    begins_at,
    check_named,
    descriptions_of,
    histories_of,
    read_ancestor,
    successor,
    take_over,
    told_before,
    unknown_ancestor,
)
from stream.publish.opening import HEALED_BY_A_NEW_EPOCH, TOPIC_ID, LayoutMismatch, Opening, read_opening
from stream.publish.shard_producer import PublisherLost, ShardProducer
from stream.publish.topology import DeclaredTopology
from stream.wire.batch import Batch, BatchLimits, Framer
from stream.wire.events import ResumePoint, SingleRows, SourceTransaction
from stream.wire.keys import Layout
from tokens import Position

__all__ = ["LayoutMismatch", "Publisher", "PublisherLost", "PublisherStats", "record_time_ms"]

log = structlog.get_logger(__name__)

BACKLOG_AGE_MS: Final = RETENTION_MS_MIN // 2
"""Record times are never older than this."""


TOPIC_CHECK_INTERVAL_S: Final = 1.0
"""How often Kafka is asked whether the topic is still the same."""
SMALL_BYTES: Final = 1024 * 1024
"""A batch that has as much gets no more rows of a backfill: the changes behind them would wait for all of it."""
REPEAT_BYTES: Final = 256 * 1024 * 1024
"""Everything is also said again after this much was published since the last time, so that a restart need not read
more."""


@dataclass(slots=True)
class PublisherStats:
    """Counters since `open`, for metrics."""

    events: int = 0
    rows: int = 0
    transactions: int = 0
    batches: int = 0
    bytes: int = 0
    left_out: int = 0
    """Rows that were not published, because their keys are another shard's by the keyspace's map."""


def record_time_ms(last_ms: int, source_s: int, now_s: float) -> int:
    """Kafka time of a batch's records: the running maximum of source time, bounded by now. Not below ``last_ms``.

    Record times may be later than source times: a search by time then starts too early. It starts too late by as much
    as the server's clock is ahead of this one: who searches looks further back. An old backlog gets times of at most
    `BACKLOG_AGE_MS` ago; otherwise retention would delete it at once.

    A topic may accept any time, and have one of a clock that was far ahead. That one is not taken over: Kafka would
    delete nothing until then, or refuse what has it. If the source's time is as far, this clock is behind.
    """
    now_ms = int(now_s * 1000)
    if last_ms > max(now_ms, source_s * 1000) + TIMESTAMP_AFTER_MS:
        last_ms = now_ms
    return max(last_ms, min(source_s * 1000, now_ms), now_ms - BACKLOG_AGE_MS)


class Publisher:
    """Publishes one shard. Call `publish`, `advance` and `flush` from one thread; the publisher's own thread commits.

    Memory is bounded: if a batch is full while the one before is being committed, `publish` waits.
    """

    def __init__(
        self,
        kafka: KafkaCluster,
        keyspace: str,
        shard: str,
        layout: Layout,
        *,
        batch_interval_s: float = 0.025,
        idle_marker_s: float = 1.0,
        transactional_ids: Sequence[str] = (),
        limits: BatchLimits | None = None,
        clock: Clock | None = None,
        stopping: threading.Event | None = None,
        new_epoch: bool = False,
        topology: DeclaredTopology | None = None,
        declare_every_s: float = 600.0,
        invalidated: Collection[str] = (),
    ) -> None:
        """``stopping``: once it is set, no wait for Kafka lasts longer than a few seconds.

        ``new_epoch``: if the shard's states contradict each other, start a new epoch instead of raising `ResumeError`.
        ``topology``: the other shards of the topic. ``declare_every_s``: how often all declarations are said again.
        ``invalidated``: tables whose rows are published without images.
        """
        self.kafka = kafka
        self.shard = shard
        self.layout = layout
        self.topic = events_topic(kafka, keyspace)
        self.keyspace = keyspace
        self.stats = PublisherStats()
        self._interval_s = batch_interval_s
        self._idle_s = idle_marker_s
        self._limits = limits or BatchLimits()
        self._limits.check(MESSAGE_BYTES_MIN)
        self._new_epoch = new_epoch
        self._topology = topology or DeclaredTopology()
        self._declare_every_s = declare_every_s
        self._invalidated = frozenset(invalidated)
        self._declare_at_s, self._declare_at_bytes = 0.0, 0
        """When everything is said again: by the monotonic clock, or by what was published."""
        self._state_offset = -1
        """Offset of the last state record that was committed."""
        self._clock = clock or SystemClock()
        self._stopping = stopping or threading.Event()
        self._producer = ShardProducer(
            kafka,
            self.topic,
            shard,
            transactional_ids or [kafka.transactional_id(keyspace, f"{shard}{turn}") for turn in ("", "#2")],
            self._clock,
            self._stopping,
        )
        self._topic_id = ""
        self._watch: TopicWatch | None = None
        self._told: Position | None = None
        """Up to where ancestors have told before what is published now; None: nothing of it."""
        self._check_topic_at_s = 0.0
        self._changed = threading.Condition()
        self._framer: Framer | None = None
        self._thread: threading.Thread | None = None
        self._lost: PublisherLost | None = None
        self._record_time_ms = 0
        self._batch_number = 1
        """Number of the batch that is being filled. Batches up to `_committed` are committed."""
        self._committed = 0
        self._commit_requested = False
        self._closing = False

    # --- start and end ---

    def open(
        self, start_if_new: Callable[[], tuple[str, int]], can_begin: Callable[[str], None] | None = None
    ) -> ResumePoint:
        """Take over the shard and return where its source must continue.

        Any earlier publisher of the shard is fenced first, then the topic is read. If the shard was never published, or
        retention or a broker has lost what is needed to resume, a new epoch starts at ``start_if_new()``, a pair
        (position, source seconds), and voids everything before. The first batch of a resumed epoch holds no event: who
        must not read what follows learns it there.

        ``can_begin``: raises if the source can't go on after a position. With it a shard that is new, and succeeds
        others of the topic, begins where they end, and ends them (`stream.publish.handover`).

        Raises `TopicError`, `LayoutMismatch`, `KafkaUnreachable`,
        `ResumeError`, `TopologyError`, `PublisherLost`.
        """
        topic = check_topics(self.kafka, self.keyspace, self.layout.partitions)
        self._producer.open()
        self._end_hanging()
        try:
            found = read_opening(self.kafka, topic, self.layout, self.shard, self._topology, self._clock.now())
        except TopicReadError as error:  # retention, or an election, has taken what was about to be read
            if error.code in ("read_failed", "kafka_denied"):  # another try would only fence a rival that works
                raise
            raise PublisherLost(str(error), hint=error.hint) from error
        if found.problem is not None and found.problem.code not in HEALED_BY_A_NEW_EPOCH and not self._new_epoch:
            raise found.problem
        self.layout, self._record_time_ms = found.layout, found.record_time_ms
        start, topology, told = start_if_new, found.topology, ""
        ended: list[Ancestor] = []
        if found.point is None and found.problem is None and can_begin is not None and self._topology.takes_over:
            ended = take_over(self.kafka, topic, self._topology.ancestors, self._end, can_begin)
            start, topology = lambda: begins_at(ended), successor(topology, ended)
            told = told_before(ended)
        check_named(self.kafka, topic, self.shard, found.over, topology, found.declared)
        nonce = secrets.randbits(62)
        framer = Framer(
            self.shard,
            self.layout,
            found.point,
            self._limits,
            declared=found.declared,
            nonce=nonce,
            invalidated=self._invalidated,
        )
        framer.announce(topology)
        self._framer = framer
        self._bind(framer, topic, {TOLD: told, HISTORIES: histories_of(self.shard, ended)})
        if found.point is None:
            self._start_first_epoch(framer, found, *start())
        self._commit(framer.take())
        resume = framer.resume
        if found.declared is not None:
            said = found.declared
            resume = replace(
                resume, descriptions=said.descriptions(), complete=said.complete_tables(), names=said.bindings()
            )
        if topology.ancestors and self._topology.takes_over and can_begin is not None and not resume.table_choice:
            ended = ended or [read_ancestor(self.kafka, topic, name) for name in self._topology.ancestors]
            resume = replace(resume, descriptions=descriptions_of(ended))  # what follows was written to such tables
        log.info(
            "publisher open", shard=self.shard, epoch=resume.epoch, ordinal=resume.ordinal, position=resume.position
        )
        self._thread = threading.Thread(target=self._run, name=f"publisher {self.shard}", daemon=True)
        self._thread.start()
        return resume

    def _end(self, shard: str) -> None:
        """End another shard of the topic for good. Whoever publishes it is fenced. Raises as `open`."""
        last = Publisher(
            self.kafka,
            self.keyspace,
            shard,
            self.layout,
            clock=self._clock,
            stopping=self._stopping,
            topology=DeclaredTopology(ends_for=self.shard),
        )

        def nothing() -> tuple[str, int]:
            raise unknown_ancestor(shard, self.topic)

        with last:
            point = last.open(nothing)
        log.info("shard ended", shard=shard, successor=self.shard, position=point.position)

    def _end_hanging(self) -> None:
        """End what an earlier publisher of the shard may have left open, if something hides a partition's end."""
        partitions = range(self.layout.partitions)
        ends = end_offsets(self.kafka, self.topic, partitions, committed=False)
        stable = end_offsets(self.kafka, self.topic, partitions)
        hidden = [partition for partition in partitions if stable[partition] < ends[partition]]
        if hidden:
            self._producer.end_hanging(hidden)

    def _bind(self, framer: Framer, topic: Topic, inherited: Mapping[str, str]) -> None:
        """Let the shard's state say for which topic it is written, and begin to watch that topic.

        ``inherited``: the words with which a successor begins.
        """
        self._topic_id = topic.topic_id
        words = {TOPIC_ID: topic.topic_id, HANDED_OVER: self._topology.ends_for, **inherited}
        framer.annotate({name: text for name, text in words.items() if text})
        held = framer.resume.annotations.get(TOLD, "")
        self._told = Position.parse(held) if held else None
        self._watch = TopicWatch(self.kafka, topic)

    def _start_first_epoch(self, framer: Framer, found: Opening, position: str, timestamp: int) -> None:
        """Start an epoch for a shard without a usable state: it is new, or its state is lost."""
        reason, epoch = "first_start", self._next_epoch(found.epoch)
        if found.problem is not None:
            reason = found.problem.code
            log.error("epoch ends", shard=self.shard, code=reason, reason=str(found.problem), next_epoch=epoch)
        framer.start_epoch(position, timestamp, reason, epoch)

    def _next_epoch(self, last: int) -> int:
        """The number of the epoch after ``last``: the clock's seconds, so that it is above those that are forgotten.

        See docs/decisions/0018-epochs-by-the-clock.md.
        """
        return max(last + 1, int(self._clock.now()))

    def close(self) -> None:
        """Commit everything buffered, then stop. Raises `PublisherLost` if it could not be committed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._drop()
        if self._lost is not None:
            raise self._lost

    def abandon(self) -> None:
        """Stop without committing, as a crash would. The broker aborts an open transaction after its timeout."""
        self._mark_lost(PublisherLost(f"publisher of {self.shard} was abandoned"), is_intended=True)
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
        """Buffer the source's next transaction, or a run of them. Waits for a commit if the buffer is full.

        After a restart the first transaction may be partly published; that part is skipped. Raises `PublisherLost`.
        """
        if type(txn) is not SingleRows:
            self._publish(txn)
        elif not self._publish_run(txn):
            for each in txn.each():
                self._publish(each)

    def _publish_run(self, run: SingleRows) -> bool:
        """Buffer a run, if that is all there is to do for it."""
        with self._changed:
            framer = self._open_framer()
            idle = framer.is_empty
            if self._told is not None or not framer.takes(run):
                return False
            self._apply(framer, partial(framer.add_run, run))
            if idle or framer.size >= self._limits.batch_bytes:
                self._changed.notify_all()
            return True

    def _publish(self, txn: SourceTransaction) -> None:
        with self._changed:
            framer = self._open_framer()
            idle = framer.is_empty
            if self._told is not None:
                txn = as_told(txn, self._told)
            start = self._already_out(framer, txn)
            while True:
                end = framer.room(txn, start)
                if end < 0:
                    self._commit_now_and_wait()
                    continue
                self._apply(framer, partial(framer.add, txn, start, end))
                if end == len(txn.changes):
                    break
                start = end
            if self._told is not None and Position.parse(txn.position).contains(self._told):
                self._told = None
                framer.annotate({TOLD: ""})
            if idle or framer.size >= self._limits.batch_bytes:
                self._changed.notify_all()

    def has_room(self, wait_s: float = 0.0) -> bool:
        """Whether the batch that is filled now is small, so that what joins it is soon committed. Waits so long for it.

        Raises `PublisherLost`.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._open_framer().size < SMALL_BYTES, wait_s)

    def advance(self, position: str, timestamp: int) -> None:
        """Move to ``position``: the source had no changes since the last one. Raises `PublisherLost`."""
        with self._changed:
            framer = self._open_framer()
            self._apply(framer, partial(framer.advance, position, timestamp))
            self._changed.notify_all()

    def stamp(self, as_of_ms: int) -> None:
        """The source's own clock: whatever it committed before is published, or was given to `publish` or `advance`.

        The next markers carry it, and each one until the next stamp. Raises `PublisherLost`.
        """
        with self._changed:
            self._open_framer().stamp(as_of_ms)

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Keep a few words with the shard's state, in place of those of these names; "" forgets a name.

        `open` returns them after a restart.

        Raises `BatchError`, `PublisherLost`.
        """
        with self._changed:
            self._open_framer().annotate(annotations)

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:
        """Void everything and continue from ``position``: the source's history was replaced. Raises `PublisherLost`."""
        with self._changed:
            framer = self._open_framer()
            while not framer.is_empty:
                self._commit_now_and_wait()
            epoch = self._next_epoch(framer.resume.epoch)
            self._apply(framer, partial(framer.start_epoch, position, timestamp, reason, epoch))
            resume = framer.resume
        self.flush()
        return resume

    def flush(self) -> None:
        """Wait until everything buffered so far is committed. Raises `PublisherLost`."""
        with self._changed:
            framer = self._open_framer()
            wanted = self._batch_number if not framer.is_empty else self._batch_number - 1
            while self._committed < wanted:
                self._commit_now_and_wait()

    def _already_out(self, framer: Framer, txn: SourceTransaction) -> int:
        out = framer.resume.partial_events if framer.partial_gtid == txn.gtid else 0
        return min(out, len(txn.changes))

    def _open_framer(self) -> Framer:
        if self._lost is not None:
            raise self._lost
        if self._framer is None or self._closing:
            raise PublisherLost(f"publisher of {self.shard} is not open")
        return self._framer

    def _commit_now_and_wait(self) -> None:
        """Ask the committing thread to send the batch now, and wait until it reports progress."""
        self._commit_requested = True
        self._changed.notify_all()
        self._changed.wait()
        if self._lost is not None:
            raise self._lost

    def _apply(self, framer: Framer, step: Callable[[], None]) -> None:
        """Run ``step``. If it fails halfway the framer is unusable, so the publisher is lost."""
        try:
            step()
        except Exception as error:
            lost = PublisherLost(f"{self.shard} after {framer.resume.position}: {error}")
            self._mark_lost(lost)
            raise lost from error

    # --- the committing thread ---

    def _run(self) -> None:
        try:
            began = self._clock.monotonic()
            while (began := self._commit_next(began)) >= 0:
                pass
        except PublisherLost as lost:
            self._mark_lost(lost)
        except Exception as error:
            log.exception("publisher failed", shard=self.shard)
            self._mark_lost(PublisherLost(f"publisher of {self.shard} failed: {error}"))

    def _commit_next(self, began: float) -> float:
        """Wait for the next batch, commit it, and return when its commit began; -1 if there is nothing more to do.

        ``began``: when the commit of the batch before it began (monotonic seconds).
        """
        with self._changed:
            framer = self._wait_until_due(began)
            if framer is None:
                return -1.0
            began = self._clock.monotonic()
            self._check_topic(began)
            self._commit_requested = False
            self._repeat_if_due(framer, began)
            is_repeating = framer.is_repeating
            number, batch = self._batch_number, framer.take()
            self._batch_number += 1
            self._changed.notify_all()
        self._commit(batch)
        if is_repeating:  # its own bytes don't count: many declarations would be said again for ever
            self._declare_at_bytes = self.stats.bytes + REPEAT_BYTES
        with self._changed:
            self._committed = number
            self._changed.notify_all()
        return began

    def _check_topic(self, now: float) -> None:
        """Raise `PublisherLost` ``topic_replaced`` if the topic was deleted and made anew: its history is gone."""
        if self._watch is None or now < self._check_topic_at_s:
            return
        self._check_topic_at_s = now + TOPIC_CHECK_INTERVAL_S
        other = self._watch.other_id()
        if other:
            raise PublisherLost(
                f"{self.topic} was deleted and made anew: its id was {self._topic_id}, and is {other}",
                hint="the source starts a new epoch there",
                code="topic_replaced",
            )

    def _repeat_if_due(self, framer: Framer, now: float) -> None:
        """Begin to say everything again. The first time is right after `open`: what was lost comes back soon."""
        if framer.is_repeating or (now < self._declare_at_s and self.stats.bytes < self._declare_at_bytes):
            return
        framer.begin_repeat(self._state_offset)
        self._declare_at_s = now + self._declare_every_s
        self._declare_at_bytes = self.stats.bytes + REPEAT_BYTES

    def _wait_until_due(self, began: float) -> Framer | None:
        """Wait until a batch is due and return the framer; None if there is nothing more to do."""
        while True:
            framer = self._framer
            if self._lost is not None or framer is None:
                return None
            if self._closing and framer.is_empty:
                return None
            waits_s = self._interval_s if not framer.is_empty or framer.is_repeating else self._idle_s
            left_s = began + waits_s - self._clock.monotonic()
            full = framer.size >= self._limits.batch_bytes
            if left_s <= 0 or (not framer.is_empty and (self._closing or self._commit_requested or full)):
                return framer
            self._changed.wait(left_s)

    def _commit(self, batch: Batch) -> None:
        """Commit ``batch`` as one Kafka transaction. Raises `PublisherLost`."""
        self._record_time_ms = record_time_ms(self._record_time_ms, batch.timestamp_max, self._clock.now())
        self._state_offset = self._producer.commit(batch.records, self._record_time_ms)
        self._add_to_stats(batch)

    def _add_to_stats(self, batch: Batch) -> None:
        stats = self.stats
        stats.events += batch.events
        stats.rows += batch.rows
        stats.transactions += batch.transactions
        stats.batches += 1
        stats.bytes += batch.bytes
        if batch.left_out and not stats.left_out:
            log.warning(
                "rows of another shard",
                shard=self.shard,
                code="rows_of_another_shard",
                rows=batch.left_out,
                hint="they are not published, and no read finds them: keys go to shards by the hash in the settings",
            )
        stats.left_out += batch.left_out

    def _mark_lost(self, lost: PublisherLost, *, is_intended: bool = False) -> None:
        """Drop the producer with its open transaction, and wake all waiting threads."""
        with self._changed:
            if self._lost is None:
                self._lost = lost
                if not is_intended:
                    log.warning("publisher lost", shard=self.shard, code=lost.code, error=str(lost))
            self._drop()
            self._changed.notify_all()

    def _drop(self) -> None:
        """Leave Kafka's clients, with their threads and sockets."""
        self._producer.drop()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
