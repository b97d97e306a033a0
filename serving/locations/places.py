"""What the location cache holds: who answers for an entity, which of two sayings is the newer one, and when it is old.

Pure. An entity is a partition of a keyspace, or what the system needs: a topic's leader, the instances of a keyspace.
Its location has one leader (the owner in the main group) and followers (owners in other groups). Each saying has a
version: the epoch is the generation of the assignment, the term counts moves within it (`swap`), and the instance
breaks ties, as in `stream.kafka.locations.supersedes`. Times are seconds of a monotonic clock, passed in.

Rules: the seed of OceanBase's location cache; docs/internals/locations.md has the requirements L1 to L25.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple
from zlib import crc32

FOREVER: Final = float("inf")
"""As ``expire_renew_time``: whatever is cached is too old."""
NEVER: Final = float("-inf")
EXPIRES_S: Final = 600.0
"""An entry that nobody has confirmed for so long is refreshed when it is used."""
JITTER: Final = 0.1
"""Share by which that differs between keys, so that those that came together don't go together."""


class Kind(StrEnum):
    """What an entity is. All but partitions are the system's: they are few, and kept apart."""

    LOCATIONS = "locations"
    """The topic of announcements; its leader is a broker. Keyspace ""."""
    EVENTS = "events"
    """A partition of a keyspace's events topic: what an instance needs to start."""
    DEAD_LETTERS = "dead_letters"
    KEYSPACE = "keyspace"
    """All instances that hold any partition of a keyspace: they know its metadata. Partition 0."""
    PARTITION = "partition"

    __hash__ = str.__hash__
    """An enum's own runs in Python, for each look at a key."""


class Priority(IntEnum):
    """The queues of refreshes. A lower number goes first."""

    LOCATIONS = 1
    START = 2
    SYSTEM = 3
    FAILING = 4
    """Partitions whose leader refused, or does not answer."""
    KEYSPACE = 5
    PARTITION = 6

    __hash__ = int.__hash__


_PRIORITIES: Final = {
    Kind.LOCATIONS: Priority.LOCATIONS,
    Kind.EVENTS: Priority.START,
    Kind.DEAD_LETTERS: Priority.SYSTEM,
    Kind.KEYSPACE: Priority.KEYSPACE,
    Kind.PARTITION: Priority.PARTITION,
}


class Key(NamedTuple):
    """An entity."""

    keyspace: str
    partition: int
    kind: Kind = Kind.PARTITION

    @property
    def is_system(self) -> bool:
        """Whether it is one of the few that the system itself needs."""
        return self.kind is not Kind.PARTITION

    @property
    def priority(self) -> Priority:
        """Of its refresh, while nothing fails."""
        return _PRIORITIES[self.kind]

    @property
    def group(self) -> tuple[str, Kind]:
        """Refreshes of one group share a batch."""
        return self.keyspace, self.kind

    @property
    def is_valid(self) -> bool:
        """Whether such an entity can exist."""
        return self.partition >= 0 and (bool(self.keyspace) != (self.kind is Kind.LOCATIONS))


class Replica(NamedTuple):
    """An instance that answers for an entity. ``address``: host:port of its owner protocol, or of a broker.

    ``topic_id``: of the topic that it follows; "" if that is unknown. ``instance``: a process that was started anew
    with another data directory is another one.
    """

    address: str
    topic_id: str = ""
    zone: str = ""
    instance: str = ""


class Version(NamedTuple):
    """Orders what is said of one entity. Epoch 0: said by a version that numbered nothing."""

    epoch: int = 0
    term: int = 0
    instance: str = ""


class Origin(StrEnum):
    """Who said it."""

    TOPIC = "topic"
    PUSH = "push"
    PEERS = "peers"
    HINT = "hint"
    SNAPSHOT = "snapshot"
    FIXED = "fixed"


class Location(NamedTuple):
    """Who answers for an entity. ``gone``: the leader has withdrawn; it may come back at its address.

    ``place``: of the change in the directory that said so; 0 of what others said. ``anew``: the directory has no more
    what it told last, and the numbers have begun anew.
    """

    key: Key
    version: Version
    leader: Replica | None
    followers: tuple[Replica, ...] = ()
    gone: bool = False
    place: int = 0
    anew: bool = False

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The leader, if there is one, and the followers."""
        return (self.leader, *self.followers) if self.leader is not None else self.followers

    @property
    def is_held(self) -> bool:
        """Whether any instance holds it, as far as this says."""
        return bool(self.followers) or (self.leader is not None and not self.gone)

    @property
    def topic_id(self) -> str:
        """Of the topic that its instances follow; "" if nobody says."""
        return next((each.topic_id for each in self.replicas if each.topic_id), "")


@dataclass(slots=True)
class Entry:
    """What is kept of one entity. ``renewed_at``: it was right then, or later."""

    location: Location
    origin: Origin
    renewed_at: float
    topic_at: float
    """When the topic last said so."""
    doubted_at: float = FOREVER
    """Since when its leader is known to have withdrawn, refused or failed."""
    told_at: float = NEVER
    """When a failing leader last had it refreshed."""


class Found(NamedTuple):
    """A location as it is known. ``is_stale``: it is old or in doubt, and is being refreshed."""

    location: Location
    is_stale: bool
    origin: Origin = Origin.FIXED
    renewed_at: float = NEVER


def expires_at(entry: Entry) -> float:
    """When an entry is old: after `EXPIRES_S`, some keys up to a tenth sooner, others later."""
    if entry.origin is Origin.FIXED:
        return FOREVER
    spread = crc32(repr(entry.location.key[:2]).encode()) % 2_001 / 1_000 - 1
    return entry.renewed_at + EXPIRES_S * (1 + JITTER * spread)


def supersedes(new: Location, origin: Origin, known: Location) -> bool:
    """Whether ``new`` may take the place of ``known``: it never goes back, whoever says it and in whatever order.

    Another topic is another history: its numbers begin anew, and only the directory knows which one is the later.
    """
    by_directory = origin in (Origin.TOPIC, Origin.PUSH)
    if new.anew:
        return by_directory
    if new.topic_id and known.topic_id and new.topic_id != known.topic_id:
        return by_directory and new.place > known.place
    if new.version.epoch and known.version.epoch:
        return new.version > known.version or (new.version == known.version and new.place >= known.place)
    return by_directory and new.place >= known.place
