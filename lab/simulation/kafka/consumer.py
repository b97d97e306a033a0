"""The look-alike of confluent_kafka's Consumer: assigned partitions, or those that its group gives it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, KafkaError, Message, TopicPartition
from confluent_kafka.admin import ClusterMetadata, OffsetSpec

from lab.simulation.kafka.admin import metadata, offset_of
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.connection import DOWN_AFTER_S, Connection, Settings, Unreachable, failure, seconds
from lab.simulation.kafka.fetching import Fetcher
from lab.simulation.kafka.groups import Change, Event, Member
from lab.simulation.kafka.log import Refused

Rebalanced = Callable[[Any, list[TopicPartition]], object]
FOREVER_S: Final = 1e9
QUERY_TIMEOUT_S: Final = 60.0
SESSION_TIMEOUT_MS: Final = 45_000
POLL_INTERVAL_MS: Final = 300_000
REFRESH_MS: Final = 300_000


class SimulatedConsumer:
    """As `confluent_kafka.Consumer`, as far as Freshet and its tests use it."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._connection = Connection(cluster)
        self._cluster = cluster
        self._committed = settings.get("isolation.level", "read_committed") == "read_committed"
        tells_ends = bool(settings.get("enable.partition.eof"))
        self._fetcher = Fetcher(self._connection, committed=self._committed, tells_ends=tells_ends)
        self._fetcher.on_missing = self._missed
        self._error_cb: Callable[[KafkaError], object] | None = settings.get("error_cb")
        self._group = cluster.group(settings["group.id"])
        self._member = Member(
            self._connection.process,
            settings.get("group.instance.id", ""),
            seconds(settings, "session.timeout.ms", SESSION_TIMEOUT_MS),
        )
        self._topics: dict[str, int] = {}
        """Those of the subscription that the metadata have → number of partitions."""
        self._missing: set[str] = set()
        """Those that the application was told of."""
        self._refresh_s = seconds(settings, "topic.metadata.refresh.interval.ms", REFRESH_MS)
        self._refresh_at = FOREVER_S
        self._poll_interval_s = seconds(settings, "max.poll.interval.ms", POLL_INTERVAL_MS)
        self._polled_at = cluster.now
        self._callbacks: dict[Event, Rebalanced | None] = {}
        self._has_assigned = False
        """The callback that runs has called one of the methods that assign."""
        self._unreached_since: float | None = None
        self._is_down_told = False
        self._events: list[Message] = []
        self._is_closed = False

    # --- partitions ---

    def subscribe(
        self,
        topics: list[str],
        on_assign: Rebalanced | None = None,
        on_revoke: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
    ) -> None:
        """Joins the group. The callbacks are called from `poll`, `consume` and `close`."""
        self._require_open()
        self._callbacks = {Event.ASSIGN: on_assign, Event.REVOKE: on_revoke, Event.LOST: on_lost or on_revoke}
        self._group.subscribe(self._member, frozenset(topics))
        self._topics, self._missing = self._found(), set()
        self._refresh_at = self._cluster.now

    def unsubscribe(self) -> None:
        """Gives its partitions up, with a callback in the next poll, and leaves the group, also as a static member."""
        self._require_open()
        self._topics, self._missing, self._refresh_at = {}, set(), FOREVER_S
        self._group.unsubscribe(self._member)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Reads these and no others."""
        self._require_open()
        self._has_assigned = True
        for place in list(self._fetcher.readings):
            self._fetcher.remove(place)
        for each in partitions:
            self._fetcher.add(each)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Reads these too."""
        self._require_open()
        self._has_assigned = True
        for each in partitions:
            if (each.topic, each.partition) in self._fetcher.readings:
                reason = f"{each.topic} [{each.partition}] can't be added to the assignment: already assigned"
                raise failure(KafkaError._CONFLICT, reason)
            self._fetcher.add(each)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Reads these no longer."""
        self._require_open()
        self._has_assigned = True
        for each in partitions:
            if (each.topic, each.partition) not in self._fetcher.readings:
                reason = f"{each.topic} [{each.partition}] can't be removed from the assignment: not assigned"
                raise failure(KafkaError._INVALID_ARG, reason)
            self._fetcher.remove((each.topic, each.partition))

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Fetches nothing of these until `resume`, not even if they are assigned anew."""
        self._require_open()
        for each in partitions:
            self._fetcher.pause((each.topic, each.partition))

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Goes on where the application is."""
        self._require_open()
        for each in partitions:
            self._fetcher.resume((each.topic, each.partition))

    def seek(self, partition: TopicPartition) -> None:
        """Goes on at the offset, whose leader epoch is checked. ``_STATE`` if fetching has not begun yet."""
        self._require_open()
        reading = self._fetcher.readings.get((partition.topic, partition.partition))
        if reading is None and (partition.topic, partition.partition) not in self._fetcher.known:
            raise failure(
                KafkaError._UNKNOWN_PARTITION, f"Failed to seek: {KafkaError(KafkaError._UNKNOWN_PARTITION).str()}"
            )
        if reading is None or reading.is_stopped or self._cluster.now < reading.starts_at:
            raise failure(KafkaError._STATE, f"Failed to seek to offset {partition.offset}: Local: Erroneous state")
        epoch = -1 if partition.leader_epoch is None else partition.leader_epoch
        self._fetcher.seek(reading, partition.offset, epoch)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """After the last record that the application has of each; -1001 before the first one."""
        self._require_open()
        found = []
        for each in partitions:
            reading = self._fetcher.readings.get((each.topic, each.partition))
            offset = OFFSET_INVALID if reading is None else reading.app_offset
            found.append(TopicPartition(each.topic, each.partition, offset))
        return found

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = QUERY_TIMEOUT_S, cached: bool = False
    ) -> tuple[int, int]:
        """(first offset, end). ``cached``: as of the last fetch, the end without regard to open transactions."""
        self._require_open()
        place = partition.topic, partition.partition
        if cached:
            known = self._fetcher.known.get(place)
            return (OFFSET_INVALID, OFFSET_INVALID) if known is None else (known.low, known.high)

        def ask() -> tuple[int, int]:
            log = self._cluster.log(*place)
            low, _ = offset_of(log, OffsetSpec.earliest()._value, committed=False)
            return low, offset_of(log, OffsetSpec.latest()._value, committed=self._committed)[0]

        words = "Failed to get watermark offsets: "
        try:
            return self._connection.ask(ask, self._cluster.now + timeout)
        except Unreachable:
            raise failure(KafkaError._ALL_BROKERS_DOWN, f"{words}Local: All broker connections are down") from None
        except Refused as refused:
            is_unknown = refused.code == KafkaError.UNKNOWN_TOPIC_OR_PART
            code = KafkaError._UNKNOWN_PARTITION if is_unknown else refused.code
            raise failure(code, words + KafkaError(code).str()) from None

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """All topics, or one, which then is there with its error if it is missing."""
        self._require_open()
        return metadata(self._connection, topic, timeout)

    def commit(self, offsets: list[TopicPartition], asynchronous: bool = True) -> list[TopicPartition] | None:
        """Keeps offsets at the coordinator, if it can be reached; nobody hears of a failure."""
        self._require_open()
        if self._connection.reaches(coordinator=True) and self._member.generation >= 0:
            self._group.committed |= {(each.topic, each.partition): each.offset for each in offsets}
        return None if asynchronous else offsets

    def consumer_group_metadata(self) -> bytes | None:
        """As librdkafka writes it: a magic text, the generation, names."""
        generation = struct.pack("=i", self._member.generation)
        names = (self._group.name, self._member.id, self._member.instance)
        return b"CGMDv2:" + generation + b"".join(name.encode() + b"\0" for name in names)

    # --- messages ---

    def poll(self, timeout: float = -1) -> Message | None:
        """The next message or event; callbacks run in here."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Messages and events: so many, or what has come by then."""
        self._require_open()
        deadline = self._cluster.now + (timeout if timeout >= 0 else FOREVER_S)
        self._check_interval()
        taken: list[Message] = []
        while len(taken) < num_messages:
            self._cluster.advance()
            self._serve()
            taken += self._take_events(num_messages - len(taken))
            taken += self._fetcher.take(num_messages - len(taken))
            if len(taken) == num_messages or self._cluster.now >= deadline:
                break
            self._wait(deadline)
        self._polled_at = self._cluster.now
        return taken

    def _wait(self, deadline: float) -> None:
        """Waits until there is something to do."""
        now = self._cluster.now
        until = min([deadline, *(at for at in (self._fetcher.next_at, self._down_at(), self._refresh_at) if at > now)])
        self._cluster.wait(lambda: self._fetcher.has_something() or bool(self._member.changes), until)

    def _take_events(self, count: int) -> list[Message]:
        taken, self._events = self._events[:count], self._events[count:]
        return taken

    def _check_interval(self) -> None:
        """An application that polls too seldom loses its membership."""
        if self._member.generation >= 0 and self._cluster.now - self._polled_at > self._poll_interval_s:
            self._tell(KafkaError(KafkaError._MAX_POLL_EXCEEDED, "Application maximum poll interval exceeded"))
            self._group.lose(self._member)
        self._polled_at = self._cluster.now

    # --- what happens meanwhile ---

    def _serve(self) -> None:
        """Calls the application back for what has happened."""
        self._tell_outage()
        self._refresh()
        member = self._member
        if member.problem is not None:
            reason = f"Fatal error: {member.problem.str()}"
            self._tell(KafkaError(KafkaError._FATAL, reason, fatal=True))
            member.problem = None
        while member.changes:
            self._call_back(member.changes.pop(0))

    def _call_back(self, change: Change) -> None:
        """A callback that fails, or does not assign, has it done for it."""
        places = [TopicPartition(*place) for place in sorted(change.places)]
        callback = self._callbacks.get(change.event)
        self._has_assigned = False
        try:
            if callback is not None:
                callback(self, places)
        finally:
            if not self._has_assigned:
                self._follow(change)
            self._group.taken_in(self._member, change)

    def _follow(self, change: Change) -> None:
        for place in sorted(change.places):
            if change.event is Event.ASSIGN:
                self._fetcher.add(TopicPartition(*place, self._group.committed.get(place, OFFSET_INVALID)))
            elif place in self._fetcher.readings:
                self._fetcher.remove(place)

    def _found(self) -> dict[str, int]:
        topics, now = self._cluster.topics, self._cluster.now
        there = (topics[name] for name in sorted(self._member.topics & topics.keys()))
        return {topic.name: len(topic.logs) for topic in there if topic.known_at <= now}

    def _missed(self, name: str) -> None:
        if name in self._member.topics:
            self._refresh_at = self._cluster.now

    def _refresh(self) -> None:
        """New metadata. If they have other topics, the group shares those; what is missing is told once."""
        if self._cluster.now < self._refresh_at or not self._connection.reaches():
            return
        self._refresh_at = self._cluster.now + self._refresh_s
        found, member = self._found(), self._member
        for name in sorted(member.topics - found.keys() - self._missing):
            words = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART).str()
            reason = f"Subscribed topic not available: {name}: {words}"
            self._events.append(
                Message(topic=name, partition=0, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, reason))
            )
        self._missing = set(member.topics - found.keys())
        if found != self._topics:
            self._topics = found
            gone = {place for place in member.owned if place[1] >= found.get(place[0], 0)}
            self._group.drop(member, frozenset(gone))

    def _down_at(self) -> float:
        """When the application must be told that no broker can be reached."""
        if self._unreached_since is None or self._is_down_told:
            return FOREVER_S
        return self._unreached_since + DOWN_AFTER_S

    def _tell_outage(self) -> None:
        if self._connection.reaches():
            self._unreached_since, self._is_down_told = None, False
            return
        if self._unreached_since is None:
            self._unreached_since = self._cluster.now
        if self._cluster.now >= self._down_at():
            self._is_down_told = True
            if self._error_cb is not None:
                self._error_cb(KafkaError(KafkaError._TRANSPORT, "simulated:9092/1: Disconnected"))
                self._error_cb(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))

    def _tell(self, error: KafkaError) -> None:
        self._events.append(Message(error=error))

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("Consumer closed")

    def close(self) -> None:
        """Gives its partitions up, with callbacks, and leaves the group."""
        if self._is_closed:
            return
        owned, self._member.changes = frozenset(self._member.owned), []
        try:
            if owned:
                self._call_back(Change(Event.REVOKE, owned))
        finally:
            self._member.owned = frozenset()
            self._group.close(self._member)
            for place in list(self._fetcher.readings):
                self._fetcher.remove(place)
            self._is_closed = True
