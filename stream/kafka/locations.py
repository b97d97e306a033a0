"""Who owns which partition's store: announcements in ``<prefix>.locations``, keyed ``keyspace/partition/instance``.

Each names the generation of its take-over, and the highest one stands until its own instance withdraws it, in whatever
order they arrive (`supersedes`). Owners announce again periodically, so a lost announcement heals. An address is a
hint: if nothing answers there, a reader asks the source of truth and waits for the next announcement.

Generations begin anew when Kafka is set up anew, or a group that nobody was in for long. So an announcement that the
topic does not have any more keeps no lower one out: a reader that stays ends with what one that starts now would find.

*Followers* are owners in a group of their own that fold the same topic and never take the owner's place. Each group has
at most one follower of a partition, ordered as owners are. A reader that knows no roles takes a follower's announcement
for the withdrawal of an owner that it has never seen (`encode_announcement`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from stream.kafka.connection import KafkaCluster, KafkaUnreachable, client_settings, kafka_error
from stream.kafka.reader import end_offsets, open_consumer, poll_batch, start_offsets
from stream.kafka.topics import ensure_locations_topic, locations_topic
from stream.wire.canonical import UNDECODABLE
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

FLUSH_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 15.0
RETRY_S: Final = 1.0
QUIET_S: Final = 180.0
"""Who stands but has not been read for so long may not be in the topic any more. If another one is kept out for it, the
topic is read again from its beginning, at most so often."""
Role = Literal["owner", "follower"]
"""An announcement of another role was written by a newer version. It is not read."""


class LocationError(FreshetError):
    """No owner of a partition is announced; code ``owner_unknown``."""

    code = "owner_unknown"


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """An owner's address for a partition. JSON on the wire; unknown fields are ignored."""

    keyspace: str
    partition: int
    address: str
    """``host:port`` of the owner protocol."""
    instance: str
    """Names the process. A restarted process at the same address is another instance."""
    layout: str = ""
    topic_id: str = ""
    started_at: int = 0
    """Seconds since 1970."""
    positions: dict[str, str] = msgspec.field(default_factory=dict)
    """Shard → the store's position when it was announced."""
    gone: bool = False
    generation: int = 0
    """Of the take-over: grows from one owner of the partition to the next. 0: written by an older version."""
    swap: int = 0
    """How often the partition's readers were moved from one group to another. Owners of a group with a lower one leave
    them where they are."""
    group: str = ""
    """Kafka's id of the consumer group that gave the partition to the owner. Empty: not told."""
    role: Role = "owner"
    zone: str = ""
    """Where the process runs, as its settings say; readers prefer a follower of their own. Empty: not told."""
    front: str = ""
    """URL of the read API in the same process (`freshet node`): clients may ask there. Empty: it has none."""
    leaving: bool = False
    """Whether the group has taken the partition away: the owner only answers until there is another one."""

    @property
    def key(self) -> str:
        """``keyspace/partition``"""
        return f"{self.keyspace}/{self.partition}"


class _Written(Announcement, frozen=True, kw_only=True):
    """As it is in the topic."""

    epoch: int = 0
    """A follower's generation. Its ``generation`` is 0: it must not order it among the owners."""
    left: bool = False
    """Whether a follower is gone. Its ``gone`` is always true."""


_written = msgspec.json.Decoder(_Written)


def encode_announcement(announced: Announcement) -> bytes:
    """The announcement as JSON. A reader of before roles finds no owner in a follower's: it is ``gone``."""
    fields = msgspec.structs.asdict(announced)
    if announced.role == "follower":
        fields |= {"epoch": announced.generation, "left": announced.gone, "generation": 0, "gone": True}
    return msgspec.json.encode(_Written(**fields))


def decode_announcement(text: bytes) -> Announcement:
    """Reads what `encode_announcement` wrote, and what older versions did. Raises ``msgspec.DecodeError``."""
    written = _written.decode(text)
    fields = {name: getattr(written, name) for name in Announcement.__struct_fields__}
    if written.role == "follower":
        fields |= {"generation": written.epoch, "gone": written.left}
    return Announcement(**fields)


def supersedes(new: Announcement, known: Announcement | None) -> bool:
    """Whether ``new``, which was read after ``known``, takes its place.

    Announcements without a generation can't be ordered: of those the last one stands, and none withdraws another's.
    """
    if known is None:
        return True
    if new.generation and known.generation:
        return (new.generation, new.instance) >= (known.generation, known.instance)
    return not new.gone or new.instance == known.instance


def announce(kafka: KafkaCluster, announcements: Iterable[Announcement]) -> None:
    """Write announcements and wait until they are in the topic. Raises `KafkaUnreachable`."""
    ensure_locations_topic(kafka)
    producer = Producer(client_settings(kafka, **{"enable.idempotence": True, "linger.ms": 0}))
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:  # noqa: ARG001 - the signature is librdkafka's
        if error is not None:
            failed.append(error)

    for each in announcements:
        # A key of its own for each instance: compaction must not drop an owner for a stale announcement after it.
        key = f"{each.key}/{each.instance}"
        producer.produce(locations_topic(kafka), encode_announcement(each), key, partition=0, on_delivery=delivered)
    left = producer.flush(FLUSH_TIMEOUT_S)
    if failed:
        raise kafka_error(failed[0], kafka, f"write to {locations_topic(kafka)}")
    if left:
        raise KafkaUnreachable(
            f"{left} announcements were not written at {kafka.bootstrap} within {FLUSH_TIMEOUT_S:g} s"
        )


def withdraw(kafka: KafkaCluster, announcements: Iterable[Announcement]) -> None:
    """Mark announcements as gone, so that readers no longer try their addresses. Raises `KafkaUnreachable`."""
    announce(kafka, [msgspec.structs.replace(each, gone=True, positions={}) for each in announcements])


class LocationsReader:
    """Keeps all announcements: `start` reads the topic to its end, then a thread follows it."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self._known: dict[str, Announcement] = {}
        """The announcement that stands, by place; kept when it is withdrawn, so that no older one takes its place."""
        self._followers: dict[str, dict[str, Announcement]] = {}
        """Of followers, by place and group. Also kept when withdrawn."""
        self.change = 0
        """How many announcements were taken in. May be read at any time."""
        self._since: dict[tuple[str, str], float] = {}
        """(place, group of a follower or "") → when who stands there was first read, by the monotonic clock."""
        self._changes: dict[tuple[str, int], int] = {}
        """(keyspace, partition) → the ``change`` that was its last, in the order of these."""
        self._reached = 0
        """The offset up to which the topic was read."""
        self._passes = self._whole = 0
        """How many times the topic was begun at its beginning; and the last of these that came to its end."""
        self._position = self._end = 0
        """Of the present pass: where it is, and the topic's end when it began."""
        self._read_in: dict[tuple[str, str], tuple[int, float]] = {}
        """(place, group of a follower or "") → the pass in which who stands there was read last, and when."""
        self._refused: dict[tuple[str, str], Announcement] = {}
        """In this pass, by the same: the highest that was kept out."""
        self._doubted = False
        """Whether one was kept out for who has been quiet."""
        self._anew: dict[tuple[str, int], int] = {}
        """(keyspace, partition) → the change with which its generations began anew."""
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, timeout_s: float = START_TIMEOUT_S, *, patient: bool = False) -> Self:
        """Read all announcements made so far, then follow the topic. Raises `KafkaUnreachable`.

        ``patient``: raise nothing. Start without announcements, and read them as soon as Kafka answers.
        """
        consumer: Consumer | None = None
        try:
            consumer = self._open_at_end(timeout_s)
        except (FreshetError, KafkaException) as error:
            if not patient:
                raise
            shown = kafka_error(error, self.kafka, "read locations") if isinstance(error, KafkaException) else error
            log.warning("locations can't be read yet", code=shown.code, reason=str(shown), hint=shown.hint)
        self._thread = threading.Thread(target=self._follow, args=(consumer,), name="locations", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop following."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def owner_of(self, keyspace: str, partition: int) -> Announcement | None:
        """The announced owner of the partition, or None."""
        found = self.standing(keyspace, partition)
        return None if found is None or found.gone else found

    def standing(self, keyspace: str, partition: int) -> Announcement | None:
        """The announcement of the partition that stands; it may be ``gone``."""
        return self._known.get(f"{keyspace}/{partition}")

    def followers(self, keyspace: str, partition: int) -> list[Announcement]:
        """The announced followers of the partition, at most one of each group, without one that is its owner now."""
        owner = self.owner_of(keyspace, partition)
        with self._changed:
            found = list(self._followers.get(f"{keyspace}/{partition}", {}).values())
        return [each for each in found if not each.gone and (owner is None or each.instance != owner.instance)]

    def following(self, keyspace: str, partition: int, group: str) -> Announcement | None:
        """The announcement of the group's follower that stands; it may be ``gone``."""
        return self._followers.get(f"{keyspace}/{partition}", {}).get(group)

    def known_since(self, announced: Announcement) -> float:
        """When this process first read that ``announced``, which stands, took its place; seconds, monotonic."""
        return self._since.get((announced.key, _slot(announced)), 0.0)

    def changed_after(self, change: int) -> tuple[int, list[tuple[str, int, int]]]:
        """The present `change`, and what was announced after another one: (keyspace, partition, its last change)."""
        with self._changed:
            found = []
            for (keyspace, partition), at in reversed(self._changes.items()):
                if at <= change:
                    break
                found.append((keyspace, partition, at))
            return self.change, found[::-1]

    def change_of(self, keyspace: str, partition: int) -> int:
        """The last change of a partition; 0: nobody has announced it."""
        return self._changes.get((keyspace, partition), 0)

    def anew_of(self, keyspace: str, partition: int) -> int:
        """The change with which the generations of a partition began anew; 0: they never have."""
        return self._anew.get((keyspace, partition), 0)

    def catch_up(self, timeout_s: float) -> None:
        """Waits until all is read that is in the topic now. Blocks. Raises `KafkaUnreachable`."""
        deadline = monotonic() + timeout_s
        topic = locations_topic(self.kafka)
        [start] = start_offsets(self.kafka, topic, [0]).values()
        [end] = end_offsets(self.kafka, topic, [0]).values()
        with self._changed:
            while start < end and self._reached < end:
                if self._stopping.is_set() or not self._changed.wait(max(deadline - monotonic(), 0)):
                    raise KafkaUnreachable(f"{topic} was not read to its end at {self.kafka.bootstrap} in time")

    def owners(self, keyspace: str) -> Mapping[int, Announcement]:
        """Partition → announced owner."""
        with self._changed:
            return {
                each.partition: each for each in self._known.values() if each.keyspace == keyspace and not each.gone
            }

    def wait_for(self, keyspace: str, partition: int, timeout_s: float, *, other_than: str = "") -> Announcement:
        """The owner of the partition, after waiting for up to ``timeout_s`` seconds.

        ``other_than``: the instance that is not accepted. Raises `LocationError`.
        """
        deadline = monotonic() + timeout_s
        with self._changed:
            while True:
                found = self.owner_of(keyspace, partition)
                if found is not None and found.instance != other_than:
                    return found
                if not self._changed.wait(max(deadline - monotonic(), 0)):
                    raise LocationError(
                        f"no owner of {keyspace}/{partition} is announced",
                        hint=f"check that `freshet consume {keyspace}` is running",
                    )

    def _open_at_end(self, timeout_s: float) -> Consumer:
        """A consumer at the topic's end; everything before it has been read."""
        ensure_locations_topic(self.kafka)
        [end] = end_offsets(self.kafka, locations_topic(self.kafka), [0]).values()
        consumer = self._open(end)
        try:
            self._read_to(consumer, end, monotonic() + timeout_s)
        except BaseException:
            consumer.close()
            raise
        self._conclude()
        return consumer

    def _open(self, end: int) -> Consumer:
        """A consumer at the topic's beginning: another pass. ``end``: the topic's."""
        [start] = start_offsets(self.kafka, locations_topic(self.kafka), [0]).values()
        with self._changed:
            self._passes += 1
            self._position, self._end = start, end
            self._refused, self._doubted = {}, False
            if self._reached > end:  # another topic has taken the name
                self._reached = 0
        consumer = open_consumer(self.kafka, more={"queued.max.messages.kbytes": 4096, "fetch.wait.max.ms": 500})
        consumer.assign([TopicPartition(locations_topic(self.kafka), 0, start)])
        return consumer

    def _read_to(self, consumer: Consumer, end: int, deadline: float) -> None:
        place = [TopicPartition(locations_topic(self.kafka), 0)]
        [start] = start_offsets(self.kafka, locations_topic(self.kafka), [0]).values()
        while start < end and consumer.position(place)[0].offset < end:
            self._learn(poll_batch(consumer, 1000, 0.05))
            if monotonic() > deadline:
                raise KafkaUnreachable(
                    f"{locations_topic(self.kafka)} could not be read to its end at {self.kafka.bootstrap}"
                )

    def _follow(self, reading: Consumer | None) -> None:
        """Read until `close`. While Kafka is unreachable, the known announcements stay usable."""
        has_warned = reading is None  # `start` has
        again_at = 0.0
        while not self._stopping.is_set():
            try:
                if reading is None:
                    ensure_locations_topic(self.kafka)
                    [end] = end_offsets(self.kafka, locations_topic(self.kafka), [0]).values()
                    reading, has_warned = self._open(end), False
                self._learn(poll_batch(reading, 1000, 0.2))
                if self._whole < self._passes:
                    if self._position >= self._end:
                        self._conclude()
                elif self._doubted and monotonic() >= again_at:
                    again_at = monotonic() + QUIET_S
                    reading.close()
                    reading = None
            except Exception as error:  # noqa: BLE001 - without this thread no owner would be found any more
                if not has_warned:
                    hint = getattr(error, "hint", "")
                    log.warning("cannot read locations, retrying", error=str(error), hint=hint)
                    has_warned = True
                if reading is not None:
                    reading.close()
                    reading = None
                self._stopping.wait(RETRY_S)
        if reading is not None:
            reading.close()

    def _learn(self, messages: Iterable[Message]) -> None:
        """Holds the lock for one announcement at a time, and only to take it in: reads of a front wait for it."""
        for message in messages:
            announced = _announced(message)
            with self._changed:
                if announced is not None:
                    self._apply(announced)
                self._position = (message.offset() or 0) + 1
                self._reached = max(self._reached, self._position)
        with self._changed:
            self._changed.notify_all()

    def _apply(self, announced: Announcement) -> None:
        place = announced.keyspace, announced.partition
        self.change += 1
        self._changes.pop(place, None)
        self._changes[place] = self.change
        of_place = self._followers.setdefault(announced.key, {})
        if announced.role == "follower":
            if self._takes(announced, of_place.get(announced.group)):
                of_place[announced.group] = announced
            return
        if announced.gone:  # a follower that became the owner: it withdraws what it said last only
            for group, each in of_place.items():
                if each.instance == announced.instance:
                    of_place[group] = msgspec.structs.replace(each, gone=True)
        known = self._known.get(announced.key)
        if self._takes(announced, known):
            self._known[announced.key] = announced
            if not supersedes(announced, known):
                self._anew[place] = self.change

    def _takes(self, announced: Announcement, known: Announcement | None) -> bool:
        """Whether ``announced`` takes the place of ``known``: it supersedes it, or the topic has that no more."""
        slot = announced.key, _slot(announced)
        read_in, read_at = self._read_in.get(slot, (self._passes, 0.0))
        if not supersedes(announced, known) and read_in >= self._whole:
            if supersedes(announced, self._refused.get(slot)):
                self._refused[slot] = announced
            self._doubted = self._doubted or monotonic() - read_at >= QUIET_S
            return False
        self._note(announced, known)
        self._read_in[slot] = self._passes, monotonic()
        return True

    def _conclude(self) -> None:
        """A pass has come to the topic's end. Who was not in it keeps nobody out any more."""
        with self._changed:
            self._whole = self._passes
            for each in [*self._refused.values()]:
                self._apply(each)
            self._refused, self._doubted = {}, False
            self._changed.notify_all()

    def _note(self, announced: Announcement, known: Announcement | None) -> None:
        if known is None or (known.instance, known.generation) != (announced.instance, announced.generation):
            self._since[announced.key, _slot(announced)] = monotonic()


def _announced(message: Message) -> Announcement | None:
    """What a message announces; None: nothing that can be read."""
    value, key = message.value(), (message.key() or b"").decode(errors="replace")
    if value is None:
        return None
    try:
        return decode_announcement(value)
    except UNDECODABLE as error:
        log.warning("invalid announcement", key=key, offset=message.offset(), error=str(error))
        return None


def _slot(announced: Announcement) -> str:
    return announced.group if announced.role == "follower" else ""
