"""The partitions that a process owns: their stores, overlays and waiting reads.

The fold thread adds and removes partitions while the answering thread reads, so the mapping is replaced, never changed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from consumers.fold.shards import is_succeeded
from consumers.fold.state import Head, Lineage, Void
from consumers.owner.leasing import Leases
from consumers.owner.overlay import Overlay
from consumers.owner.protocol import Verdict
from consumers.store.errors import store_error
from consumers.store.manifest import write_atomically
from consumers.store.store import Commit, PartitionStore
from stream.kafka.topics import Topic

log = structlog.get_logger(__name__)

CATCHING_UP: Final = "catching_up"
REBUILDING: Final = "rebuilding"
READY: Final = "ready"
DISK_FULL: Final = "disk_full"
DISK_FAILS: Final = "disk_fails"
NO_RESOURCES: Final = "no_resources"
DEAD_LETTERS: Final = "dead_letters"
NEWER_WIRE: Final = "newer_wire"
WRONG_LAYOUT: Final = "wrong_layout"
_AWAIT_COMMIT: Final = frozenset({DISK_FULL, DISK_FAILS, NO_RESOURCES})
_PAUSED: Final = _AWAIT_COMMIT | {DEAD_LETTERS, NEWER_WIRE, WRONG_LAYOUT}
RETRY_S: Final = 1.0
INSTANCE_NAME: Final = "instance"
"""In the data directory: the name of its process in the consumer group."""
UNKNOWN_OFFSET: Final = -1
NO_PARTITIONS: Final = "no partitions"
"""`Ownership.not_ready` of a process to which its group gives none."""
MARKS_MAX: Final = 64
"""Watermarks that a partition remembers of each shard."""
RECENT_MAX: Final = 4_096
"""Keys of reads that a partition remembers: half a MiB of them at most, if they are short."""


class Marks:
    """Watermarks that a partition has had, so that an event's ordinal tells a position that the event is not after."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, tuple[tuple[int, str], ...]]] = {}
        """Shard → its epoch, and (ordinal, watermark) in the order in which they were noted."""

    def note(self, shard: str, lineage: Lineage) -> None:
        """The watermark that an answer is judged by. Of many, every second one is forgotten, but never the first."""
        epoch, marks = self._known.get(shard, (lineage.epoch, ()))
        if epoch != lineage.epoch:
            marks = ()
        if lineage.watermark and (not marks or lineage.watermark_ordinal > marks[-1][0]):
            kept = marks if len(marks) < MARKS_MAX else marks[::2]
            self._known[shard] = lineage.epoch, (*kept, (lineage.watermark_ordinal, lineage.watermark))

    def first_past(self, shard: str, epoch: int, ordinal: int) -> str:
        """The first watermark that was noted at or past an event; "" if none was."""
        known, marks = self._known.get(shard, (epoch, ()))
        return next((at for reached, at in marks if reached >= ordinal), "") if known == epoch else ""


@dataclass
class Partition:
    """One owned partition. Fields are written by the fold thread; ``overlay``, ``recent``, ``leases``, ``marks``,
    ``waiters``, ``meanings``, ``grounds``, ``voids_digest`` and ``verdict`` by the answering one."""

    keyspace: str
    number: int
    topic: Topic
    store: PartitionStore
    overlay: Overlay
    end_at_start: int = UNKNOWN_OFFSET
    """Where the topic ended when the partition was taken over; at this offset it is ready."""
    position: int = 0
    """Next offset to read. It passes control records; the store's offset does not."""
    end: int = UNKNOWN_OFFSET
    ready: bool = False
    state: str = CATCHING_UP
    committing: Future[Commit | None] | None = None
    committed_at: float = field(default_factory=time.monotonic)
    commit_not_before: float = 0.0
    commit_retry_s: float = RETRY_S
    folded_at: float = field(default_factory=time.monotonic)
    """When a message was last folded (monotonic clock). A live source publishes at least each second."""
    heard: dict[str, float] = field(default_factory=dict)
    """Shard → when anything of it was last folded (monotonic clock), since the partition was taken."""
    events: int = 0
    rows_committed: int = 0
    bytes_committed: int = 0
    commits: int = 0
    dead_letters: int = 0
    dead_letters_pending: bool = False
    """A dead letter is not in its topic yet, so the store must not commit past it."""
    burying: Future[None] | None = None
    """Done when the pending dead letters are in their topic."""
    leader_epoch: int = -1
    """Of the last folded message; -1: unknown."""
    unchecked: bool = False
    """Kafka has not been asked yet whether its log still leads to this store; nothing is folded before."""
    frozen_epoch: int = -1
    """The same where the running commit ends."""
    checkpointed: int = -1
    """The offset of the last checkpoint that was made of this open store; -1: none."""
    lost: bool = False
    """The group membership expired (no broker answered). The partition answers until it is assigned again."""
    leaving: bool = False
    """The group has given the partition to another member. It is folded and answers until that one has announced it."""
    generation: int = 0
    """The group's generation when it assigned the partition; 0: unknown."""
    taken_at: float = field(default_factory=time.monotonic)
    recent: deque[bytes] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))
    """The row keys that were asked for last."""
    leases: Leases = field(default_factory=Leases)
    marks: Marks = field(default_factory=Marks)
    waiters: dict[asyncio.Future[None], None] = field(default_factory=dict)
    """The waiting reads in the order of their questions, so that a run repeats itself."""
    meanings: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(table, shard) → what its keys mean, for `consumers.owner.meaning`, while the head is ``meanings_of``."""
    meanings_of: Head | None = None
    grounds: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(table, shard) → what `consumers.owner.ranges.ground` has worked out of the head ``grounds_of``."""
    grounds_of: Head | None = None
    voids_digest: tuple[Mapping[tuple[str, str], Void], bytes] | None = None
    """The voids of a head, and a digest of them, for `consumers.owner.tables`."""
    verdict: Verdict | None = None
    """What the last audit has told."""

    @property
    def name(self) -> str:
        """``keyspace/partition``."""
        return f"{self.keyspace}/{self.number}"

    @property
    def is_paused(self) -> bool:
        """Whether nothing is folded for now. Reads go on: each proves its freshness."""
        return self.state in _PAUSED

    @property
    def awaits_commit(self) -> bool:
        """Whether nothing is folded until a commit has succeeded."""
        return self.state in _AWAIT_COMMIT

    @property
    def silent_seconds(self) -> float:
        """How long nothing has been folded."""
        return time.monotonic() - self.folded_at

    def note_heard(self, before: Mapping[str, Lineage]) -> None:
        """Notes which shards have said something since ``before``; a marker is something. Fold thread only."""
        for shard, lineage in self.store.visible.lineages.items():
            if lineage != before.get(shard):
                self.heard[shard] = self.folded_at

    def shard_silent_seconds(self, shard: str, lineage: Lineage) -> float:
        """How long nothing of a shard has been folded; -1 if it is over, and says nothing for good."""
        if is_succeeded(self.store.visible, shard, lineage.epoch):
            return -1.0
        return time.monotonic() - self.heard.get(shard, self.taken_at)

    def wake(self) -> None:
        """Wakes all waiting reads. Answering thread only."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def lag_seconds(self, now: float, shard: str, lineage: Lineage) -> float:
        """Source time by which readers of a shard are behind ``now``; 0 if all is read or it is over, -1 if unknown.

        Markers of a shard that is idle keep the time of its last transaction, and say as of when that is all.
        """
        if 0 <= self.end <= self.position or is_succeeded(self.store.visible, shard, lineage.epoch):
            return 0.0
        reached = max(lineage.watermark_timestamp, lineage.as_of_ms / 1_000)
        return max(0.0, now - reached) if reached else -1.0


class Ownership:
    """The partitions that this process owns, by (keyspace, partition)."""

    def __init__(self, data_dir: Path) -> None:
        """Raises `StoreError` if ``data_dir`` can't be written to."""
        self._data_dir = data_dir
        self.instance = instance_id(data_dir)
        self.awaited_keyspaces: frozenset[str] = frozenset()
        """Configured keyspaces for which no topic or no assignment has been seen yet."""
        self.unopened: frozenset[tuple[str, int]] = frozenset()
        """Partitions that are assigned to this process, whose stores are being made or can't be opened for now."""
        self.is_asked_to_drain = False
        """The process is to give its partitions away for good."""
        self.is_drained = False
        """It has, and gets none any more."""
        self._partitions: dict[tuple[str, int], Partition] = {}

    def rename(self) -> None:
        """Takes another name: another process has this one, so its data directory is a copy of this one, or this of it.

        Two members of a group by one name evict each other for good. Raises `StoreError`.
        """
        before, self.instance = self.instance, _new_instance(self._data_dir / INSTANCE_NAME)
        log.warning("another process has this one's name, going on by another one", before=before, now=self.instance)

    def add(self, partition: Partition) -> None:
        """Fold thread only."""
        self._partitions = self._partitions | {(partition.keyspace, partition.number): partition}

    def remove(self, partition: Partition) -> None:
        """Fold thread only."""
        place = (partition.keyspace, partition.number)
        self._partitions = {key: value for key, value in self._partitions.items() if key != place}

    def get(self, keyspace: str, number: int) -> Partition | None:
        """The partition, if it is owned here."""
        return self._partitions.get((keyspace, number))

    def of(self, keyspace: str) -> list[Partition]:
        """Owned partitions of ``keyspace`` ("": of all), sorted."""
        return [each for key, each in sorted(self._partitions.items()) if not keyspace or key[0] == keyspace]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def is_draining(self) -> bool:
        """Whether the process is giving its partitions away. If it has none now, it may still get some for that."""
        return self.is_asked_to_drain and not self.is_drained

    @property
    def is_ready(self) -> bool:
        """Whether there are partitions, each has caught up since its take-over, and nothing is awaited or unopened."""
        return not self.not_ready

    @property
    def not_ready(self) -> str:
        """Why it is not ready; empty if it is. Without names: probes need no token."""
        if self.awaited_keyspaces:
            return f"keyspaces without a topic or an assignment yet: {len(self.awaited_keyspaces)}"
        if self.unopened:
            return f"partitions whose stores are not open yet: {len(self.unopened)}"
        owned = self._partitions.values()
        if behind := sum(not each.ready for each in owned):
            return f"partitions that have not caught up: {behind}"
        return "" if owned else NO_PARTITIONS


def instance_id(data_dir: Path) -> str:
    """The static member id of this data directory, kept across restarts so that the group returns its partitions.

    Raises `StoreError`.
    """
    path = data_dir / INSTANCE_NAME
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return _new_instance(path)
    except OSError as error:
        raise store_error(error, str(path)) from error


def _new_instance(path: Path) -> str:
    name = uuid.uuid4().hex
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, name.encode())
    except OSError as error:
        raise store_error(error, str(path)) from error
    return name
