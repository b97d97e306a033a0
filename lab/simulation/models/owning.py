"""An owner process: the real `PartitionStore` over a RocksDB in memory, the real overlay, and crashes at each write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

from consumers.fold.state import META, OFFSET_KEY, Head, read_head
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Partition
from consumers.store.manifest import Manifest
from consumers.store.store import PartitionStore
from lab.simulation.models.topic import SimulatedTopic
from stream.wire.keys import Layout

OVERLAY_BYTES: Final = 1_600
"""Three fills: evictions happen."""
_DIRECTORY: Final = Path("simulated")
Record = tuple[int, bytes | None]


@lru_cache
def _manifest(number: int, partitions: int) -> Manifest:
    return Manifest("s", number, "topic", str(Layout(partitions)))


class OwnerCrash(Exception):
    """The owner's process is gone."""


class MemoryRocks:
    """What `PartitionStore` uses of `consumers.store.rocks.Rocks`. ``dies``: "before" or "after" the next ingest."""

    path = _DIRECTORY

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.dies = ""

    def get(self, key: bytes) -> bytes | None:
        """The durable value."""
        return self.data.get(key)

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Durable pairs in key order."""
        return iter(sorted((k, v) for k, v in self.data.items() if k >= start and (end is None or k < end)))

    def ingest(self, entries: Mapping[bytes, bytes], _: Path) -> int:
        """All of it or nothing."""
        dies, self.dies = self.dies, ""
        if dies == "before":
            raise OwnerCrash
        self.data.update(entries)
        if dies == "after":
            raise OwnerCrash
        return 0

    def copy(self) -> MemoryRocks:
        """A checkpoint."""
        made = MemoryRocks()
        made.data = dict(self.data)
        return made


class OwnedPartition:
    """What the answering code uses of `consumers.owner.partitions.Partition`."""

    def __init__(self, topic: SimulatedTopic, number: int, rocks: MemoryRocks | None = None) -> None:
        self.topic = topic
        self.number = number
        self.rocks = rocks or MemoryRocks()
        self.manifest = _manifest(number, topic.layout.partitions)
        self.start()

    def start(self) -> None:
        """The process starts: what is durable is there, memtable and overlay are gone."""
        rocks = cast("Any", self.rocks)
        head = Head()
        if self.rocks.data:
            if OFFSET_KEY not in self.rocks.data:
                raise ValueError("the store holds entries but no offset")
            head = read_head((key, value) for key, value in self.rocks.data.items() if key.startswith(META))
        self.store: Any = PartitionStore(_DIRECTORY, self.manifest, rocks, head, cast("Any", None))
        self.overlay = Overlay(OVERLAY_BYTES)

    def close(self) -> None:
        """The process is gone for good; its store no longer refers to itself."""
        self.store.state.lookup = _lookup_after_close

    @property
    def partition(self) -> Partition:
        """As the answering code wants it."""
        return cast("Partition", self)

    @property
    def offset(self) -> int:
        """Next offset to fold."""
        return int(self.store.state.head.offset)

    @property
    def behind(self) -> int:
        """Messages that are not folded yet."""
        return len(self.topic.partitions[self.number]) - self.offset

    def fold(self, count: int, between: Callable[[], None] | None = None) -> int:
        """Folds up to ``count`` messages; ``between`` runs before the last one: its predecessors are half visible."""
        start = self.offset
        messages = self.topic.partitions[self.number]
        if start == len(messages):
            return 0
        records = list(enumerate(messages[start : start + count], start))
        self.topic.read_to[self.number] = max(self.topic.read_to[self.number], start + len(records))
        self.store.fold(_InterruptedMessages(records, between) if between is not None else records)
        return len(records)

    def commit(self, how: int) -> bool:
        """A commit, one of eight ways; False: the process died (and is back)."""
        store, rocks = self.store, self.rocks
        try:
            match how % 8:
                case 0:
                    store.commit()
                case 1:
                    store.freeze()
                case 2:
                    store.write()
                case 3:
                    store.freeze()
                    raise OwnerCrash
                case 4:
                    rocks.dies = "before"
                    store.commit()
                case 5:
                    rocks.dies = "after"
                    store.commit()
                case 6 | 7:
                    store.freeze()
                    self.fold(2)
                    store.write()
                    if how % 8 == 7:
                        raise OwnerCrash
        except OwnerCrash:
            rocks.dies = ""
            self.start()
            return False
        rocks.dies = ""
        return True

    def state(self) -> dict[bytes, bytes]:
        """The whole folded state."""
        return dict(self.store.items())


def _lookup_after_close(_: bytes) -> bytes | None:
    raise OwnerCrash


class _InterruptedMessages(list[Record]):
    """Messages that let somebody else run before the last one is looked at."""

    def __init__(self, records: list[Record], between: Callable[[], None]) -> None:
        super().__init__(records)
        self._between: Callable[[], None] | None = between

    def __getitem__(self, at: Any) -> Any:
        if self._between is not None and at == len(self) - 1:
            between, self._between = self._between, None
            between()
        return super().__getitem__(at)


class RacingStore:
    """A store that folds on right before an answer's look number ``at`` at it."""

    def __init__(self, store: PartitionStore, fold: Callable[[], None], at: int = 2) -> None:
        self._store = store
        self._fold = fold
        self._at = at
        self._looks = 0

    def _look(self) -> None:
        self._looks += 1
        if self._looks == self._at:
            self._fold()

    @property
    def visible(self) -> Head:
        """The head, as it is when looked at."""
        self._look()
        return self._store.visible

    def get(self, key: bytes) -> bytes | None:
        """The entry, as it is when looked at."""
        self._look()
        return self._store.get(key)
