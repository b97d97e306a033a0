"""What a consumer reads: each partition's position, and what was fetched and not yet given to the application.

librdkafka fetches in threads of its own; here a call of the application fetches what would have come by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    Message,
    TopicPartition,
)

from lab.simulation.kafka.brokers import Topic
from lab.simulation.kafka.connection import Connection
from lab.simulation.kafka.log import Kind, PartitionLog, Record

Place = tuple[str, int]
FETCH_RECORDS: Final = (1, 5, 50, 500, 500, 500)
"""A fetch brings up to so many records, by chance."""
START_S: Final = 0.005
"""Fetching of an assigned partition begins after at most this time; until then it can't be sought."""


@dataclass(eq=False)
class Reading:
    """One assigned partition."""

    place: Place
    offset: int
    """Next to fetch."""
    epoch: int
    """Leader epoch of what was fetched last; -1: unknown."""
    starts_at: float
    app_offset: int = OFFSET_INVALID
    """After the last record that the application has."""
    app_epoch: int = -1
    is_stopped: bool = False
    """After an error; until a seek or a new assignment."""
    must_validate: bool = False
    end_told_at: int = -1
    """Offset of the last end-of-partition event."""
    is_missing_told: bool = False


@dataclass(slots=True)
class Known:
    """What the client has learnt of a partition. It outlives an assignment."""

    leader_epoch: int = -1
    low: int = OFFSET_INVALID
    high: int = OFFSET_INVALID
    is_paused: bool = False
    """By the application; so it stays until `Fetcher.resume`, also where it is assigned again."""


class Fetched(NamedTuple):
    """Without a ``message``: control records only, which move the position. ``after`` -1: an event, which does not."""

    reading: Reading
    message: Message | None
    after: int
    epoch: int


class Fetcher:
    """The partitions that one consumer reads."""

    def __init__(self, connection: Connection, *, committed: bool, tells_ends: bool) -> None:
        self.readings: dict[Place, Reading] = {}
        self.known: dict[Place, Known] = {}
        self.on_missing: Callable[[str], None] = lambda _: None
        """Called once with the name of a topic that is gone. Whoever only reads it hears nothing."""
        self._connection = connection
        self._cluster = connection.cluster
        self._waits = connection.cluster.waits
        self._committed = committed
        self._tells_ends = tells_ends
        self._queue: deque[Fetched] = deque()
        self._next_at = 0.0

    # --- what the application wants ---

    def add(self, wanted: TopicPartition) -> None:
        """Begins to read a partition at its offset and leader epoch."""
        place = wanted.topic, wanted.partition
        epoch = -1 if wanted.leader_epoch is None else wanted.leader_epoch
        starts_at = self._cluster.now + self._cluster.rng.uniform(0, START_S)
        reading = self.readings[place] = Reading(place, wanted.offset, epoch, starts_at)
        reading.must_validate = self.known.setdefault(place, Known()).leader_epoch < 0

    def remove(self, place: Place) -> None:
        """Ends the reading of a partition; what is queued of it is dropped."""
        reading = self.readings.pop(place)
        self._drop(reading)

    def seek(self, reading: Reading, offset: int, epoch: int) -> None:
        """Goes on elsewhere."""
        self._drop(reading)
        reading.offset, reading.epoch, reading.must_validate = offset, epoch, offset > 0
        reading.app_offset, reading.app_epoch = OFFSET_INVALID, -1
        reading.end_told_at = -1

    def pause(self, place: Place) -> None:
        """Stops; what is queued is fetched again after `resume`."""
        self._set_paused(place, is_paused=True)

    def resume(self, place: Place) -> None:
        """Goes on after what the application has."""
        self._set_paused(place, is_paused=False)

    def _set_paused(self, place: Place, *, is_paused: bool) -> None:
        known = self.known.get(place)
        if known is not None and known.is_paused is not is_paused:
            known.is_paused = is_paused
            if place in self.readings:
                self._rewind(self.readings[place])

    def _rewind(self, reading: Reading) -> None:
        first = next((each for each in self._queue if each.reading is reading), None)
        self._drop(reading)
        if reading.app_offset != OFFSET_INVALID:
            reading.offset, reading.epoch = reading.app_offset, reading.app_epoch
        elif first is not None and first.message is not None and first.after >= 0:
            reading.offset = first.after - 1

    def _drop(self, reading: Reading) -> None:
        self._queue = deque(each for each in self._queue if each.reading is not reading)

    # --- what comes ---

    def take(self, count: int) -> list[Message]:
        """Up to ``count`` messages and events that have come."""
        self._fetch()
        taken: list[Message] = []
        while self._queue and len(taken) < count:
            reading, message, after, epoch = self._queue.popleft()
            if after >= 0:
                reading.app_offset, reading.app_epoch = after, epoch
            if message is not None:
                taken.append(message)
        return taken

    @property
    def next_at(self) -> float:
        """When something can come, at the earliest."""
        starts = [each.starts_at for each in self.readings.values() if each.starts_at > self._cluster.now]
        return min([*starts, self._next_at])

    def has_something(self) -> bool:
        """Whether `take` would return something, or fetch."""
        if self._queue:
            return True
        return self._can_fetch() and any(map(self._is_due, self._active()))

    def _can_fetch(self) -> bool:
        return self._waits.now >= self._next_at and self._cluster.led and self._connection.reaches()

    def _active(self) -> list[Reading]:
        now = self._waits.now
        return [
            reading
            for reading in self.readings.values()
            if not self.known[reading.place].is_paused and not reading.is_stopped and reading.starts_at <= now
        ]

    def _log(self, place: Place) -> tuple[Topic, PartitionLog] | None:
        topic = self._cluster.topics.get(place[0])
        if topic is None or topic.known_at > self._cluster.now or place[1] >= len(topic.logs):
            return None
        return topic, topic.logs[place[1]]

    def _is_due(self, reading: Reading) -> bool:
        found = self._log(reading.place)
        if found is None:
            return not reading.is_missing_told
        log, known = found[1], self.known[reading.place]
        end = self._end(log)
        return (
            reading.offset < end
            or not log.start <= reading.offset <= log.end
            or log.leader_epoch > known.leader_epoch
            or reading.must_validate
            or (self._tells_ends and reading.end_told_at != reading.offset)
            or known.high != log.end
        )

    def _end(self, log: PartitionLog) -> int:
        return log.stable if self._committed else log.end

    def _fetch(self) -> None:
        """A round of fetches, if the last one is over and the brokers can be reached."""
        if not self._can_fetch():
            return
        due = [reading for reading in self._active() if self._is_due(reading)]
        if not due:
            return
        self._next_at = self._cluster.now + self._cluster.latency_s()
        self._cluster.rng.shuffle(due)
        for reading in due:
            found = self._log(reading.place)
            if found is None:
                reading.is_missing_told = True
                self.on_missing(reading.place[0])
            elif self._is_valid(reading, found[1]):
                self._read(reading, *found)

    def _is_valid(self, reading: Reading, log: PartitionLog) -> bool:
        """Compares the leader epochs, and the offset with the log's ends; if they don't fit, reading stops."""
        if reading.offset in (OFFSET_BEGINNING, OFFSET_END):
            reading.offset = log.start if reading.offset == OFFSET_BEGINNING else self._end(log)
        known = self.known[reading.place]
        reading.is_missing_told = False
        changed = log.leader_epoch > known.leader_epoch
        known.leader_epoch = max(log.leader_epoch, known.leader_epoch)
        if reading.epoch >= 0 and (changed or reading.must_validate):
            epoch, end = log.end_of_epoch(reading.epoch)
            if end < reading.offset:
                at = f"offset {reading.offset} (leader epoch {reading.epoch})"
                self._stop(
                    reading,
                    f"Partition log truncation detected at {at}: broker end offset is {end} "
                    f"(offset leader epoch {epoch}). Reset to INVALID.: Local: Log truncation detected",
                    OFFSET_INVALID,
                )
                return False
        reading.must_validate = False
        if not log.start <= reading.offset <= log.end:
            reason = "fetch failed due to requested offset not available on the broker: Broker: Offset out of range"
            self._stop(reading, reason, reading.offset)
            return False
        return True

    def _read(self, reading: Reading, topic: Topic, log: PartitionLog) -> None:
        end, known = self._end(log), self.known[reading.place]
        known.low, known.high = log.start, log.end
        by_broker = topic.setting("message.timestamp.type") == "LogAppendTime"
        time_type = TIMESTAMP_LOG_APPEND_TIME if by_broker else TIMESTAMP_CREATE_TIME
        for record in log.read(reading.offset, end, self._cluster.rng.choice(FETCH_RECORDS)):
            reading.offset, reading.epoch = record.offset + 1, record.leader_epoch
            is_shown = record.kind is Kind.DATA and not (self._committed and record.was_aborted)
            if is_shown or record.kind is not Kind.DATA:
                message = _message(reading.place, record, time_type) if is_shown else None
                self._queue.append(Fetched(reading, message, reading.offset, reading.epoch))
        if self._tells_ends and reading.offset == end and reading.end_told_at != end:
            reading.end_told_at = end
            self._tell(reading, KafkaError._PARTITION_EOF, "Broker: No more messages", end)

    def _stop(self, reading: Reading, reason: str, offset: int) -> None:
        reading.is_stopped = True
        self._tell(reading, KafkaError._AUTO_OFFSET_RESET, f"{reason} (broker 1)", offset)

    def _tell(self, reading: Reading, code: int, reason: str, offset: int) -> None:
        topic, partition = reading.place
        event = Message(topic=topic, partition=partition, offset=offset, error=KafkaError(code, reason))
        self._queue.append(Fetched(reading, event, -1, -1))


def _message(place: Place, record: Record, time_type: int) -> Message:
    return Message(
        topic=place[0],
        partition=place[1],
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers) or None,
        timestamp=(time_type, record.timestamp_ms),
        leader_epoch=record.leader_epoch,
    )
