"""Opens and closes stores as the consumer group assigns and revokes partitions.

A store continues at *its own* offset, not at the group's. Everything runs in the fold thread; librdkafka calls back
from its poll.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from consumers.owner.partitions import REBUILDING, Ownership, Partition
from consumers.process.kafka_output import ConsumerOutput
from consumers.process.opening import open_partition, set_aside
from consumers.process.restoring import BackgroundRestores, Given, StillRestoring, Waiting
from consumers.snapshots.restoring import Snapshots
from consumers.store.errors import RebuildNeededError, RetryableStoreError, StoreCorruptError, StoreError
from consumers.store.index import Index
from consumers.store.leader_epochs import keep_leader_epoch
from stream.kafka.connection import REQUEST_TIMEOUT_S, KafkaCluster, KafkaRequestError, kafka_error
from stream.kafka.reader import TopicReadError
from stream.kafka.topics import Topic
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

_METADATA_MAGIC: Final = b"CGMDv2:"


def group_generation(consumer: Consumer) -> int:
    """The generation of the group that the consumer has joined; 0 if librdkafka does not tell.

    confluent_kafka gives the group's metadata only as librdkafka writes it: a magic text, the generation, names.
    """
    written = bytes(consumer.consumer_group_metadata() or b"")
    if not written.startswith(_METADATA_MAGIC):
        return 0
    (generation,) = struct.unpack_from("=i", written, len(_METADATA_MAGIC))
    return max(int(generation), 0)


def check_place(consumer: Consumer, partition: Partition) -> None:
    """Has librdkafka check the partition's leader epoch, as soon as it fetches the partition.

    It checks an assigned place only if the leader becomes known later (its issue 5158), but always after a seek.
    """
    try:
        consumer.seek(place_of(partition))
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError._STATE, KafkaError._IN_PROGRESS):
            raise
    else:
        partition.unchecked = False


def place_of(partition: Partition) -> TopicPartition:
    """Where to read on for the store, with the leader epoch by which Kafka can check that its log still leads there."""
    offset = partition.store.state.head.offset
    return TopicPartition(partition.topic.name, partition.number, offset, leader_epoch=partition.leader_epoch)


def _unassign(consumer: Consumer, places: list[TopicPartition]) -> None:
    """Reads ``places`` no more, and has none of them paused: for librdkafka a pause outlives the assignment.

    To end it after the next one would be too late: that could lose the offset (librdkafka's issue 2190).
    """
    consumer.resume(places)
    consumer.incremental_unassign(places)


BURY_S: Final = 2.0
"""How long a partition that is given up waits for its dead letters."""
ASK_S: Final = 1.0
"""How long Kafka is asked for what it has failed to answer before; meanwhile nothing is folded."""


class SessionEnd(Exception):
    """Ends the group session, so that the next one reopens the stores."""


class Assignment:
    """Keeps the partitions that the group has assigned as open stores in ``ownership``."""

    def __init__(
        self,
        kafka: KafkaCluster,
        data_dir: Path,
        ownership: Ownership,
        kafka_output: ConsumerOutput,
        on_progress: Callable[[Partition], None],
        snapshots: Snapshots,
    ) -> None:
        """``on_progress``: as in `consumers.process.loop.Consumption`."""
        self.rebuilds = 0
        self.overlay_bytes = 0
        """Shared by all overlays of one keyspace."""
        self.indexes: Mapping[str, Sequence[Index]] = {}
        """By keyspace: those that its stores keep."""
        self.is_given = False
        """Whether the group has said since this membership began what it has, even if that is nothing."""
        self.hot: Mapping[str, Mapping[str, int]] = {}
        """By keyspace: hot tables, and the bytes that all overlays together may have of them."""
        self._restores = BackgroundRestores(snapshots)
        self._waiting = Waiting()
        self._has_left = False
        self._kafka = kafka
        self._data_dir = data_dir
        self._ownership = ownership
        self._kafka_output = kafka_output
        self._on_progress = on_progress
        self._topics: Mapping[str, tuple[str, Topic]] = {}
        self._lost: dict[Given, RebuildNeededError] = {}
        """Partitions whose store Kafka could not continue."""

    def subscribe(self, consumer: Consumer, topics: Mapping[str, tuple[str, Topic]], missing: tuple[str, ...]) -> None:
        """Subscribes to ``topics`` (name → keyspace, topic), replacing the subscription before.

        ``missing``: keyspaces that have no topic yet. Partitions that stay assigned are not interrupted.
        """
        self._topics = dict(topics)

        def on_assign(consumer: Consumer, places: list[TopicPartition]) -> None:
            self._on_assign(consumer, places)
            self.is_given = True
            self._ownership.awaited_keyspaces = frozenset(missing)

        consumer.subscribe(
            list(self._topics),
            on_assign=self._guard(on_assign),
            on_revoke=self._guard(self._on_revoke),
            on_lost=self._guard(self._on_lost),
        )

    def _guard(self, callback: Callable[[Consumer, list[TopicPartition]], None]) -> Callable[..., None]:
        """``callback``, with any KafkaException converted to a `FreshetError`.

        If a KafkaException leaves a callback, poll() raises the bare KafkaError. That is not an exception, so not even
        ``except BaseException`` catches it.
        """

        def guarded(consumer: Consumer, places: list[TopicPartition]) -> None:
            try:
                callback(consumer, places)
            except KafkaException as error:
                raise kafka_error(error, self._kafka, "take partitions over") from error

        return guarded

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        given = [(place.topic, place.partition) for place in places]
        open_still = {place: kept for place in given if (kept := self._going_on(place)) is not None}
        starts = [start for kept in open_still.values() if (start := self._take_back(consumer, kept)) is not None]
        starts += self._take_all(consumer, [place for place in given if place not in open_still])
        consumer.incremental_assign(starts)
        self.release([each for each in self._ownership if each.lost])

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Hands partitions over: those that readers are told to ask for here go on until another owner is announced."""
        owned = self._owned(places)
        for partition in owned:
            can_go_on = partition.ready and not partition.is_paused and not partition.lost
            partition.leaving = can_go_on and not self._kafka_output.is_succeeded(partition)
        self.release([each for each in owned if not each.leaving])
        staying = {(each.topic.name, each.number) for each in owned if each.leaving}
        _unassign(consumer, [each for each in self._read(places) if (each.topic, each.partition) not in staying])

    def end_hand_overs(self, consumer: Consumer) -> None:
        """Releases the partitions that the group took away, and for which another owner is announced now."""
        done = [each for each in self._ownership if each.leaving and self._kafka_output.is_succeeded(each)]
        if done:
            self.release(done)
            _unassign(consumer, [TopicPartition(each.topic.name, each.number) for each in done])

    def _on_lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """The group membership expired, usually because no broker answers. Reads go on: each proves its freshness."""
        for partition in self._owned(places):
            partition.lost = True
        _unassign(consumer, self._read(places))

    def _read(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Those that are read. The others wait for their stores no longer: whoever is given them does."""
        known = set(self._waiting)
        waiting = [place for place in places if (place.topic, place.partition) in known]
        for place in waiting:
            self._waiting.end((place.topic, place.partition))
        self._note_waiting()
        return [place for place in places if place not in waiting]

    def _note_waiting(self) -> None:
        topics = self._topics
        self._ownership.unopened = frozenset((topics[name][0], number) for name, number in self._waiting)

    def forget_waiting(self) -> None:
        """Another membership of the group begins: it is told anew which partitions it has."""
        self.is_given, self._has_left, self._waiting = False, False, Waiting()
        self._note_waiting()

    def leave(self, consumer: Consumer) -> None:
        """Leaves the group for good: what it gives from now on is not taken, and is revoked."""
        self._has_left = True
        consumer.unsubscribe()  # unlike `close` this makes a static member leave at once

    def take_waiting(self, consumer: Consumer) -> None:
        """Takes over the partitions whose stores have been made meanwhile, could not be made, or are tried again."""
        due = self._waiting.due() if not self._has_left else []
        due = [each for each in due if not self._restores.is_running((self._topics[each[0]][0], each[1]))]
        leaders: Mapping[Given, int] = {}
        if due and self._waiting.has_failed:
            leaders = self._leaders(consumer, due)
            due = [each for each in due if each in leaders]
        starts = self._take_all(consumer, due, leaders) if due else []
        if starts:
            consumer.incremental_assign(starts)

    def _leaders(self, consumer: Any, places: list[Given]) -> dict[Given, int]:
        """The ids of the leaders that there are in all topics that wait; none if Kafka does not answer.

        Those of ``places`` that have none have failed: to ask for their offsets would take as long as one waits for it.
        """
        found: dict[Given, int] = {}
        for name in dict.fromkeys(name for name, _ in self._waiting):
            try:
                partitions = consumer.list_topics(name, timeout=ASK_S).topics[name].partitions
            except KafkaException as error:
                self._fail(places[-1], error)  # that one has failed before, if any: it is told once
                self._waiting.put_off(places[-1], list(self._waiting))
                return {}
            found |= {(name, number): each.leader for number, each in partitions.items() if each.leader >= 0}
        hint = "look which of Kafka's brokers are gone"
        for name, number in [each for each in places if each not in found]:
            self._fail((name, number), KafkaRequestError(f"{name}/{number} has no leader", hint=hint))
        return found

    def _fail(self, place: Given, error: KafkaException | FreshetError) -> None:
        known = kafka_error(error, self._kafka, "take a partition over") if isinstance(error, KafkaException) else error
        self._waiting.fail(place, f"{self._topics[place[0]][0]}/{place[1]}", known)

    def _take_all(
        self, consumer: Consumer, places: list[Given], leaders: Mapping[Given, int] | None = None
    ) -> list[TopicPartition]:
        """Takes over those that can be; returns where to read. The others wait, all as soon as Kafka fails.

        If ``leaders`` are known, only those of the one that has failed are put off: the next step goes on with others.
        """
        starts = []
        for place in places:
            if self._has_left:
                self._waiting.keep(place, None)
                continue
            try:
                starts.append(self._take_over(consumer, *place))
            except RetryableStoreError as error:
                self._fail(place, error)
            except KafkaException as error:
                self._fail(place, error)
                behind = [*self._waiting, *places[places.index(place) :]]
                if leaders:
                    behind = [each for each in behind if leaders.get(each) == leaders[place]]
                self._waiting.put_off(place, behind)
                break
        self._note_waiting()
        return [start for start in starts if start is not None]

    def _owned(self, places: list[TopicPartition]) -> list[Partition]:
        names = {(place.topic, place.partition) for place in places}
        return [each for each in self._ownership if (each.topic.name, each.number) in names]

    def _going_on(self, place: Given) -> Partition | None:
        """A partition whose store is open, and that can go on: it was lost, or it is leaving and read."""
        keyspace, topic = self._topics[place[0]]
        kept = self._ownership.get(keyspace, place[1])
        if kept is None or kept.topic != topic or not (kept.leaving or (kept.lost and not kept.is_paused)):
            return None
        return kept

    def _take_over(self, consumer: Any, topic_name: str, number: int) -> TopicPartition | None:
        """Opens the store of a partition; returns the place to read from. None while the store is being made."""
        keyspace, topic = self._topics[topic_name]
        kept = self._ownership.get(keyspace, number)
        if kept is not None:
            self.release([kept])
            if kept.leaving:
                _unassign(consumer, [TopicPartition(topic_name, number)])
        timeout_s = ASK_S if self._waiting.is_slowed((topic_name, number)) else REQUEST_TIMEOUT_S
        bounds = consumer.get_watermark_offsets(TopicPartition(topic_name, number), timeout=timeout_s)
        share = self.overlay_bytes // topic.partitions
        hot = {table: most // topic.partitions for table, most in self.hot.get(keyspace, {}).items()}
        place = topic_name, number
        indexes, why, lost = self.indexes.get(keyspace, ()), self._waiting.why(place), None
        try:
            if self._restores.is_running((keyspace, number)):  # for an assignment before this one
                raise StillRestoring
            lost = self._lost.pop(place, None)
            partition = open_partition(
                self._data_dir, keyspace, number, topic, bounds, share, lost, indexes, hot, self._restores, why
            )
        except StillRestoring as waiting:
            self._waiting.keep(place, waiting.why or why)
            return None
        except RetryableStoreError:
            if lost is not None:
                self._lost[place] = lost
            raise
        self._restores.forget((keyspace, number))
        self._waiting.end(place)
        partition.generation = group_generation(consumer)
        if partition.state == REBUILDING:
            self.rebuilds += 1
        self._ownership.add(partition)
        log.info("partition taken", partition=partition.name, offset=partition.position, end=partition.end_at_start)
        return place_of(partition)

    def _take_back(self, consumer: Any, kept: Partition) -> TopicPartition | None:
        """Goes on with a partition that was lost, or that was leaving and is read. The place to read from, or None."""
        was_read, kept.leaving, kept.lost = kept.leaving, False, False
        kept.generation, kept.taken_at = group_generation(consumer), time.monotonic()
        if kept.ready:  # another process may have announced the partition in between
            self._kafka_output.announce(kept)
        if was_read:
            return None
        kept.unchecked = kept.leader_epoch >= 0
        kept.position = kept.store.state.head.offset
        return place_of(kept)

    def release(self, partitions: list[Partition]) -> None:
        """Withdraws, commits and closes partitions. If a commit fails, the tail is folded again later.

        So it is where dead letters are still not in their topic after `BURY_S`.
        """
        burials = [each.burying for each in partitions if each.burying is not None]
        wait(burials, BURY_S)
        for partition in partitions:
            burying = partition.burying
            if burying is not None and burying.done() and burying.exception() is None:
                partition.dead_letters_pending = False
            self._withdraw(partition)
            try:
                partition.store.close(commit=not partition.dead_letters_pending)
            except StoreError as error:
                log.warning(
                    "store closed without a commit of its tail",
                    partition=partition.name,
                    code=error.code,
                    reason=str(error),
                )
            else:
                offset = partition.store.committed_offset
                if offset == partition.store.state.head.offset:
                    keep_leader_epoch(partition.store.directory, offset, partition.leader_epoch)
                log.info("partition released", partition=partition.name, offset=offset)

    def close(self) -> None:
        """Ends what makes stores in the background."""
        self._restores.close()

    def lose(self, error: TopicReadError) -> NoReturn:
        """Notes that Kafka can't continue a partition's store, and raises `SessionEnd`: the next session rebuilds it.

        If ``error`` is not about one partition, it is raised again. A member that was replaced joins by another name.
        """
        if error.code == "member_replaced":
            self._ownership.rename()
        if error.code != "offset_out_of_range" or error.place is None:
            raise error
        self._lost[error.place] = RebuildNeededError(str(error), hint=error.hint, code="log_truncated")
        raise SessionEnd from error

    def rebuild(self, partition: Partition, error: StoreError) -> None:
        """Sets a damaged store aside and raises `SessionEnd`; the next session builds a new one from the topic.

        If ``error`` does not call for a rebuild, it is raised again.
        """
        if not isinstance(error, StoreCorruptError | RebuildNeededError):
            raise error
        self._withdraw(partition)
        try:
            partition.store.close(commit=False)
        except StoreError as failed:  # it is closed nevertheless
            log.warning("store closed with an error", partition=partition.name, code=failed.code, reason=str(failed))
        set_aside(self._data_dir, partition.keyspace, partition.number, error)
        self.rebuilds += 1
        raise SessionEnd

    def _withdraw(self, partition: Partition) -> None:
        """Removes the partition from the owned ones, and waits for its commit if one is running."""
        self._ownership.remove(partition)
        if partition.ready:
            self._kafka_output.withdraw(partition)
        self._on_progress(partition)
        if partition.committing is not None:
            partition.committing.exception()
