"""The consuming process's fold thread: Kafka → fold → stores, commits, dead letters, announcements.

An unexpected error closes the stores and starts over from what is committed (crash-only), since Kafka is the log.
`consumers.process.assignment` opens and closes the stores.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from consumers.fold.columns import in_slices
from consumers.fold.runs import Record
from consumers.fold.state import Void
from consumers.owner.partitions import READY, Ownership, Partition
from consumers.process.assignment import Assignment, SessionEnd, check_place
from consumers.process.committing import STEP_S, Committer, in_turn
from consumers.process.kafka_output import ConsumerOutput
from consumers.process.opening import check_layout
from consumers.process.pausing import Pauses
from consumers.process.topic_search import TopicSearch
from consumers.snapshots.restoring import Snapshots
from consumers.store.errors import RetryableStoreError, StoreError
from consumers.store.index import Index
from consumers.store.leader_epochs import UNKNOWN, keep_leader_epoch
from consumers.store.store import Commit
from stream.kafka.connection import KafkaCluster, KafkaRequestError, KafkaUnreachable, kafka_error
from stream.kafka.reader import TopicReadError, open_consumer, poll_batch
from stream.kafka.topics import TopicError

T = TypeVar("T")

log = structlog.get_logger(__name__)

BATCH_MESSAGES: Final = 8_000
BATCH_BYTES: Final = 4 << 20
"""What a poll takes at most while messages are as large as those of the last one; and what is folded between two
looks at whether a commit is due. One step takes some tens of milliseconds then."""
RETRY_S: Final = 2.0
RETRY_S_MAX: Final = 8.0
POSITIONS_EVERY_S: Final = 0.5
SESSION_TIMEOUT_MS: Final = 10_000
CLOSE_TIMEOUT_S: Final = 2.0
HOT_EVERY_S: Final = 10.0
"""How often a partition asks for a table's hot rows: one that is voided again and again costs the source no more."""


@dataclass(frozen=True, slots=True)
class ConsumptionSettings:
    """What to consume and when to commit."""

    kafka: KafkaCluster
    keyspaces: tuple[str, ...]
    data_dir: Path
    group: str = ""
    commit_rows: int = 50_000
    commit_interval_s: float = 1.0
    overlay_bytes: int = 64 << 20
    indexes: Mapping[str, tuple[Index, ...]] = field(default_factory=dict)
    """By keyspace: those that its stores keep."""
    hot: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By keyspace: hot tables, and the bytes that their fills may take."""
    snapshots: Snapshots = field(default_factory=Snapshots)
    checkpoints: Path | None = None
    """Where checkpoints are made; None: in ``data_dir``."""


class Consumption:
    """Consumes until stopped. `run` blocks; the other methods may be called from any thread."""

    def __init__(
        self,
        settings: ConsumptionSettings,
        ownership: Ownership,
        kafka_output: ConsumerOutput,
        on_progress: Callable[[Partition], None],
    ) -> None:
        """``on_progress`` is called in the fold thread when a partition's waiting reads should check again."""
        self.settings = settings
        self.ownership = ownership
        self.ready: Future[None] = Future()
        """Done once each keyspace has its topic and all partitions of the first assignment have caught up."""
        self.commit_seconds: list[Callable[[float], None]] = []
        self._kafka_output = kafka_output
        self._on_progress = on_progress
        self._stopping = Event()
        self._has_closed = False
        """The last session that was given anything has failed, and closed partitions: a drain has them to hand over."""
        self._committer = Committer(settings.commit_rows, settings.commit_interval_s)
        self._pauses = Pauses(kafka_output)
        self._search = TopicSearch(settings.kafka, settings.group, settings.keyspaces)
        self._assignment = Assignment(
            settings.kafka, settings.data_dir, ownership, kafka_output, on_progress, settings.snapshots
        )
        self._assignment.overlay_bytes = settings.overlay_bytes // len(settings.keyspaces)
        self._assignment.indexes, self._assignment.hot = settings.indexes, settings.hot
        ownership.awaited_keyspaces = frozenset(settings.keyspaces)
        self._consumer: Any = None
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._refresh_at = 0.0
        self._ask_at: dict[tuple[str, str], float] = {}
        """Partition and table → before when its hot rows are not asked for again."""
        self._poll_messages = BATCH_MESSAGES
        self._reported_code: str = ""
        self._retry_s = RETRY_S

    def stop(self) -> None:
        """Makes `run` end: commit, withdraw, leave the group."""
        self._stopping.set()

    def drain(self) -> None:
        """Leaves the group for good. Partitions are answered for until their next owners are announced."""
        self.ownership.is_asked_to_drain = True

    @property
    def rebuilds(self) -> int:
        """Stores set aside and rebuilt since the start."""
        return self._assignment.rebuilds

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def run(self) -> None:
        """Consumes until `stop`. Raises `FreshetError` if retrying can't help, e.g. for a newer or locked store."""
        try:
            while not self._stopping.is_set():
                try:
                    self._session()
                except SessionEnd:
                    continue
                except (
                    KafkaUnreachable,
                    KafkaRequestError,
                    TopicReadError,
                    TopicError,
                    KafkaException,
                    RetryableStoreError,
                ) as error:
                    self._report_interruption(error)
                    self._stopping.wait(self._retry_s)
                    self._retry_s = min(self._retry_s * 2, RETRY_S_MAX)
        finally:
            self._assignment.close()
            self._committer.close()
            self._kafka_output.close()

    def _report_interruption(self, error: Exception) -> None:
        """Logs an interruption once, not at each retry."""
        shown = kafka_error(error, self.settings.kafka, "consume") if isinstance(error, KafkaException) else error
        code = getattr(shown, "code", "error")
        if self._reported_code != code:
            self._reported_code = code
            log.warning(
                "consuming was interrupted, retrying", code=code, reason=str(shown), hint=getattr(shown, "hint", "")
            )

    def _session(self) -> None:
        """One membership of the group: finds the topics, consumes, leaves."""
        settings, search, owned = self.settings, self._search, self.ownership
        owned.is_drained |= owned.is_asked_to_drain and not self._has_closed  # it has nothing to hand over
        if not owned.is_drained:
            search.begin(time.monotonic())
        if owned.is_drained or not search.found:
            self._stopping.wait(RETRY_S)
            return
        more = {
            "enable.partition.eof": True,
            "group.instance.id": self.ownership.instance,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "error_cb": self._on_error,
        }
        consumer = self._consumer = self._pauses.consumer = open_consumer(settings.kafka, settings.group, more)
        try:
            self._assignment.forget_waiting()
            self._assignment.subscribe(consumer, search.found, search.missing)
            is_member, drains_again = True, False
            while not self._stopping.is_set():
                was_given = self._assignment.is_given
                self._step(consumer)
                drains_again |= owned.is_asked_to_drain and self._has_closed and not was_given
                if is_member and self._may_leave(drains_again):
                    is_member = False
                    self._assignment.leave(consumer)
                owned.is_drained = not is_member and not owned
                if search.find_more(time.monotonic()) and is_member:
                    self._assignment.subscribe(consumer, search.found, search.missing)
                if search.replaced:
                    raise SessionEnd  # the next one opens the stores with the new ids
        finally:
            closed = list(owned)
            try:
                self._assignment.release(closed)
            finally:
                self._has_closed = bool(closed) or (self._has_closed and not self._assignment.is_given)
                self._leave_group(consumer)
                self._consumer = None

    def _may_leave(self, drains_again: bool) -> bool:
        """Whether a drain may begin now.

        Nothing that is lost can be handed over, and after a session that failed nothing that it closed: what the group
        has not given to others meanwhile is first given to this process once more. ``drains_again``: it was asked to
        drain before it was told what that is.
        """
        owned = self.ownership
        if not owned.is_asked_to_drain or any(each.lost for each in owned):
            return False
        has_all = self._assignment.is_given and not owned.unopened and all(each.ready for each in owned)
        return has_all or not drains_again

    def _leave_group(self, consumer: Consumer) -> None:
        """Closes the consumer. While stopping, waits for an unreachable broker at most `CLOSE_TIMEOUT_S`."""
        if not self._stopping.is_set():
            consumer.close()
            return
        closing = Thread(target=consumer.close, name="close", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._report_interruption(KafkaException(error))

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Runs ``work`` in the fold thread, between two batches."""
        future: Future[T] = Future()
        self._calls.put((future, work))
        return future

    def _run_calls(self) -> None:
        while not self._calls.empty():
            future, work = self._calls.get_nowait()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:  # noqa: BLE001 - it belongs to who asked, not to the fold
                    future.set_exception(error)

    def _step(self, consumer: Consumer) -> None:
        try:
            messages = poll_batch(consumer, self._poll_messages, STEP_S)
        except TopicReadError as error:
            self._assignment.lose(error)
        self._run_calls()
        self._assignment.take_waiting(consumer)
        if messages:
            self._retry_s = RETRY_S
            if self._reported_code:
                log.info("consuming resumed")
                self._reported_code = ""
            self._fold_batch(messages)
        now = time.monotonic()
        self._committer.share(len(self.ownership))
        for partition in in_turn(self.ownership):
            if partition.unchecked and not partition.lost:
                check_place(consumer, partition)
            if partition.store.broken is not None:
                self._assignment.rebuild(partition, partition.store.broken)
            self._commit(partition, now)
        if now >= self._refresh_at or not messages:
            self._refresh_positions(consumer, now)

    def _fold_batch(self, messages: list[Message]) -> None:
        """Folds the messages in runs of one partition."""
        offsets, values = list(map(Message.offset, messages)), list(map(Message.value, messages))
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        end = size = 0
        for (topic, number), run in groupby(places):
            keyspace, _ = self._search.found[topic]
            partition = self.ownership.get(keyspace, number)
            of_run = slice(end, end + len(list(run)))
            for records, taken in in_slices(offsets[of_run], values[of_run], BATCH_BYTES):
                end += len(records)
                size += taken
                if partition is not None:
                    self._fold_run(partition, records, messages[end - 1])
                    if taken >= BATCH_BYTES and not partition.is_paused:  # a pause ends between two batches only
                        self._commit(partition, time.monotonic())
        self._poll_messages = min(max(1, len(messages) * BATCH_BYTES // max(1, size)), BATCH_MESSAGES)

    def _fold_run(self, partition: Partition, records: Sequence[Record], last: Message) -> None:
        store = partition.store
        if store.broken is not None or partition.is_paused or partition.unchecked:
            return
        before, voids = store.visible.lineages, store.visible.voids
        partition.dead_letters_pending = True
        try:
            rejections = store.fold(records)
        except StoreError as error:
            self._assignment.rebuild(partition, error)
            return
        partition.folded_at = time.monotonic()
        partition.events += len(records)
        partition.position = max(partition.position, records[-1][0] + 1)
        partition.leader_epoch = _leader_epoch(last)
        if store.visible.voids != voids:
            self._ask_for_hot(partition, voids)
        if not rejections:
            partition.dead_letters_pending = False
        else:
            self._pauses.bury(partition, dict(records), rejections)
        if store.newer is not None:
            partition.position, partition.leader_epoch = store.state.head.offset, UNKNOWN
            self._pauses.await_upgrade(partition, store.newer)
            self._make_ready(partition)  # it will not come further
        if store.visible.lineages != before:
            partition.note_heard(before)
            if partition.waiters:
                self._on_progress(partition)

    def _ask_for_hot(self, partition: Partition, before: Mapping[tuple[str, str], Void]) -> None:
        """Ask for the hot rows of tables that were voided just now, and are read from their beginning."""
        head = partition.store.visible
        for (table, shard), void in head.voids.items():
            scope = (partition.name, table)
            is_new = void != before.get((table, shard)) and (table, shard) in head.backfills
            if is_new and partition.ready and time.monotonic() >= self._ask_at.get(scope, 0.0):
                self._ask_at[scope] = time.monotonic() + HOT_EVERY_S
                self._kafka_output.ask_for_hot(partition, shard, table)

    def _commit(self, partition: Partition, now: float) -> None:
        if not self._pauses.is_buried(partition):
            return
        try:
            done = self._committer.advance(partition, now)
        except RetryableStoreError as error:
            self._pauses.await_commit(partition, error)
        except StoreError as error:
            self._assignment.rebuild(partition, error)
        else:
            if done is not None:
                self._record_commit(partition, done)
            elif partition.committing is None and not partition.store.is_dirty:
                self._pauses.committed(partition)  # a checkpoint may have committed the rest

    def _record_commit(self, partition: Partition, done: Commit) -> None:
        partition.commits += 1
        partition.rows_committed += done.rows
        partition.bytes_committed += done.bytes
        for observe in self.commit_seconds:
            observe(done.seconds)
        keep_leader_epoch(partition.store.directory, done.offset, partition.frozen_epoch)
        self._pauses.committed(partition)
        if partition.leaving:  # the group's offset is that of the next owner
            return
        place = TopicPartition(partition.topic.name, partition.number, done.offset)
        with contextlib.suppress(KafkaException):  # only for tools that watch the group: the store's own offset decides
            self._consumer.commit(offsets=[place], asynchronous=True)

    def _refresh_positions(self, consumer: Consumer, now: float) -> None:
        """Reads the consumer's positions and the topics' ends, and marks partitions ready that have caught up."""
        self._refresh_at = now + POSITIONS_EVERY_S
        self._assignment.end_hand_overs(consumer)
        for partition in self.ownership:
            place = TopicPartition(partition.topic.name, partition.number)
            [position] = consumer.position([place])
            if position.offset > partition.position and not (partition.is_paused or partition.unchecked):
                partition.position = position.offset
            _, end = consumer.get_watermark_offsets(place, cached=True)
            if end >= 0:
                partition.end = max(end, partition.position)
            if not partition.ready and partition.position >= partition.end_at_start >= 0:
                self._make_ready(partition)
        if not self.ready.done() and self.ownership.is_ready:
            self.ready.set_result(None)

    def _make_ready(self, partition: Partition) -> None:
        if partition.ready:
            return
        try:
            check_layout(partition.store.visible.layout, partition.topic)
        except StoreError as error:
            self._pauses.refuse(partition, error)
            return
        partition.ready = True
        if not partition.is_paused:  # else `_resume` sets it
            partition.state = READY
        self._kafka_output.announce(partition)
        log.info("partition is ready", partition=partition.name, offset=partition.store.state.head.offset)


def _leader_epoch(message: Message) -> int:
    epoch = message.leader_epoch()
    return UNKNOWN if epoch is None else epoch
