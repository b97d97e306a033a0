"""An owner process: the real `PartitionStore` over an in-memory RocksDB, the real overlay, and crashes at writes."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

import numpy as np

from consumers.fold import columns
from consumers.fold.backfills import live_items
from consumers.fold.messages import fold_message, fold_messages
from consumers.fold.runs import Messages
from consumers.fold.state import META, OFFSET_KEY, Head, PartitionState, head_entries, is_head_key, read_head
from consumers.owner.leasing import Leases
from consumers.owner.meaning import Meaning
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import RECENT_MAX, Marks, Partition
from consumers.owner.ranges.ground import Ground
from consumers.store import dropping, indexing
from consumers.store.index import INDEX, Index
from consumers.store.manifest import Manifest
from consumers.store.memtable import Memtable
from consumers.store.store import PartitionStore
from lab.simulation.memo import decoded
from lab.simulation.models.topic import SimulatedTopic, name_of
from stream.wire.codec import HEADER_SIZE, CodecError, current_schema, headers
from stream.wire.columns import join_text
from stream.wire.keys import SEPARATOR, Layout

OVERLAY_BYTES: Final = 1_600
"""Space for about three fills, so that evictions happen."""
HOT: Final = {"s.b": OVERLAY_BYTES}
"""A table whose fills have space of their own: the child table of the rows world."""
_MARKER: Final = current_schema("Marker").header
_TOPOLOGY: Final = current_schema("Topology").header
_DIRECTORY: Final = Path("simulated")
Record = tuple[int, bytes | None]
BY_COLUMN_BYTES: Final = 1
"""Runs of this many bytes are folded by column too, so each: histories are short."""
SWEPT_TOGETHER: Final = 2
"""Rows in RocksDB in which one commit looks for tombstones: histories are short."""
_BETWEEN_RUNS: Final = headers("Marker") | headers("SourceState")
"""Records that stand between the frames of a run."""


@lru_cache
def _manifest(number: int, partitions: int) -> Manifest:
    return Manifest("s", number, "topic", str(Layout(partitions)))


class OwnerCrash(Exception):
    """The owner's process has crashed."""


class MemoryRocks:
    """The part of `consumers.store.rocks.database.Rocks` that `PartitionStore` uses.

    ``dies``: "before" or "after" if the process crashes at the next ingest; else "".
    """

    path = _DIRECTORY

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.dies = ""

    def get(self, key: bytes) -> bytes | None:
        """The durable value of a key."""
        return self.data.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The durable values of several keys."""
        return list(map(self.data.get, keys))

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Durable (key, value) pairs from ``start`` up to ``end`` (exclusive), in key order."""
        pairs = ((k, v) for k, v in self.data.items() if k >= start and (end is None or k < end))
        return iter(sorted(pair for pair in pairs if not pair[0].startswith(INDEX)))

    def scan_index(self, start: bytes, limit: int) -> list[bytes]:
        """The first durable keys of entries of indexes that begin with ``start``."""
        return sorted(key for key in self.data if key.startswith(start))[:limit]

    def keys_below(self, begins: Iterable[bytes], start: bytes = b"") -> Iterator[bytes]:
        """The durable keys from ``start`` on that begin with one of ``begins``."""
        keys = sorted(self.data)
        return (key for begin in begins for key in keys if key >= start and key.startswith(begin))

    def ensure_open(self) -> None:
        """It is never closed."""

    def ingest(
        self, entries: Mapping[bytes, bytes], _: Path, of_indexes: Mapping[bytes, bytes | None], gone: Set[bytes]
    ) -> int:
        """Writes all entries or none. Raises `OwnerCrash` if a crash is due."""
        dies, self.dies = self.dies, ""
        if dies == "before":
            raise OwnerCrash
        if isinstance(entries, Memtable):
            if entries.gone:
                self.data = {key: value for key, value in self.data.items() if not entries.hides(key)}
            entries = entries.built()
        self.data.update(entries)
        for key in [key for key, entry in entries.items() if not entry and not is_head_key(key)]:
            del self.data[key]
        self.data.update({key: value for key, value in of_indexes.items() if value is not None})
        for key in gone | {key for key, value in of_indexes.items() if value is None}:
            self.data.pop(key, None)
        if dies == "after":
            raise OwnerCrash
        return 0

    def copy(self) -> MemoryRocks:
        """A copy of the durable data, as a checkpoint."""
        made = MemoryRocks()
        made.data = dict(self.data)
        return made


class OwnedPartition:
    """The part of `consumers.owner.partitions.Partition` that answers use."""

    def __init__(
        self,
        topic: SimulatedTopic,
        number: int,
        rocks: MemoryRocks | None = None,
        begin: int = 0,
        *,
        by_column: bool = False,
        indexes: Sequence[Index] = (),
    ) -> None:
        """``begin``: the first offset that an empty store folds. ``by_column``: it folds by column what it can."""
        self.indexes = indexes
        self.topic = topic
        self.by_column = by_column
        self.begin = begin
        self.has_seen_what_was_lost = False
        """Whether it has folded messages that the topic has lost since."""
        self.keyspace = topic.keyspace
        self.number = number
        self.waiters: dict[asyncio.Future[None], None] = {}
        self.letters: Counter[tuple[int, str]] = Counter()
        """(offset, code) of the dead letters from offset ``first`` on, where this process began."""
        self.recent: deque[bytes] = deque(maxlen=RECENT_MAX)
        self.meanings_of: Head | None = None
        self.meanings: dict[tuple[str, str], Meaning | None] = {}
        self.grounds_of: Head | None = None
        self.voids_digest: Any = None
        self.grounds: dict[tuple[str, str], tuple[str, Ground | None]] = {}
        self.rocks = rocks or MemoryRocks()
        self.manifest = _manifest(number, topic.layout.partitions)
        self.start()
        self.first = self.offset

    def start(self) -> None:
        """Starts the process with the durable data, an empty memtable and an empty overlay."""
        rocks = cast("Any", self.rocks)
        head = Head()
        if self.rocks.data:
            if OFFSET_KEY not in self.rocks.data:
                raise ValueError("the store holds entries but no offset")
            head = read_head((key, value) for key, value in self.rocks.data.items() if key.startswith(META))
        self.store: Any = PartitionStore(_DIRECTORY, self.manifest, rocks, head, cast("Any", None), self.indexes)
        if self.begin and not self.rocks.data:
            self.store.begin_at(self.begin)
        self.overlay = Overlay(OVERLAY_BYTES, HOT)
        self.leases = Leases()
        self.marks = Marks()
        self._end_at_start = len(self.topic.partitions[self.number])

    @property
    def ready(self) -> bool:
        """Whether it has folded what the topic had when the process started."""
        return self.offset >= self._end_at_start

    def forget(self) -> None:
        """The store is set aside: a new one begins at the topic's beginning."""
        self.rocks.data.clear()
        self.has_seen_what_was_lost, self.begin = False, 0
        self.start()
        self.first = 0
        self.letters.clear()

    def lose_letters(self, end: int) -> None:
        """Kafka lost the messages from offset ``end`` on: the letters of them stay, but no log has their cause."""
        self.letters = Counter({letter: count for letter, count in self.letters.items() if letter[0] < end})

    @property
    def last_read(self) -> str:
        """The name of the last record that was folded; "" if there is none or it is damaged."""
        read = self.topic.partitions[self.number][: self.offset]
        try:
            return name_of(read[-1] or b"") if read else ""
        except CodecError:
            return ""

    @property
    def has_marker(self) -> bool:
        """Whether it has folded a marker."""
        return any(value is not None and value.startswith(_MARKER) for value in self._folded)

    def has_heard(self, shard: str) -> bool:
        """Whether it has folded what ``shard`` says of the shards beside it: one that begins later has not."""
        said = (value for value in self._folded if value is not None and value.startswith(_TOPOLOGY))
        return any(decoded(value)[1]["shard"] == shard for value in said)

    @property
    def _folded(self) -> list[bytes | None]:
        return self.topic.partitions[self.number][self.begin : self.offset]

    def close(self) -> None:
        """Ends the process for good and breaks its store's reference cycle."""
        self.store.state.lookup = _lookup_after_close

    @property
    def partition(self) -> Partition:
        """This object with the type that the owner's code expects."""
        return cast("Partition", self)

    @property
    def offset(self) -> int:
        """The next offset to fold."""
        return int(self.store.state.head.offset)

    @property
    def behind(self) -> int:
        """How many messages are not folded yet."""
        return len(self.topic.partitions[self.number]) - self.offset

    def fold(self, count: int, between: Callable[[], None] | None = None) -> int:
        """Folds up to ``count`` messages and returns how many.

        ``between`` runs before the last one, while the changes of the others are partly visible.
        """
        start = self.offset
        messages = self.topic.partitions[self.number]
        if start >= len(messages):
            return 0
        records = list(enumerate(messages[start : start + count], start))
        self.topic.read_to[self.number] = max(self.topic.read_to[self.number], start + len(records))
        with _folding_by_column() if self.by_column else nullcontext():
            found = self.store.fold(self._as_polled(records, between))
        self.letters |= Counter((offset, letter.code) for offset, letter in found)
        if self.waiters:
            self.wake()
        return len(records)

    def _as_polled(self, records: list[Record], between: Callable[[], None] | None) -> Sequence[Record]:
        """``records`` as the fold is given them. By column: in one text, if all have values."""
        values = [value for _, value in records if value is not None]
        if self.by_column and not between and len(values) == len(records):
            return Messages(np.array([offset for offset, _ in records]), join_text(values), values)
        return _Messages(records, between) if between or self.by_column else records

    def wake(self) -> None:
        """Wakes all waiting reads."""
        Partition.wake(self.partition)

    def commit(self, how: int) -> bool:
        """Commits in one of eight ways. Returns False if the process crashed; it has then been restarted."""
        together = patch.multiple(indexing, OUTDATED_TOGETHER=SWEPT_TOGETHER)
        with patch.object(dropping, "SWEPT_TOGETHER", SWEPT_TOGETHER), together:
            self._note_outdated()
            return self._commit(how)

    def _note_outdated(self) -> None:
        """As after look-ups by all values that met many rows which have them no more."""
        entries = {key.rpartition(SEPARATOR)[0] for key in self.rocks.data if key.startswith(INDEX) and key != INDEX}
        for index in self.indexes:
            begin = index.entries_of(b"")[:-1]
            for each in sorted(entries):
                if each.startswith(begin):
                    self.store.indexing.note_outdated(index, each[len(begin) :])

    def _commit(self, how: int) -> bool:
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
        """The whole folded state, as the store gives it."""
        return dict(self.store.items())

    def entries(self) -> dict[bytes, bytes]:
        """The whole folded state, in any order."""
        store: PartitionStore = self.store
        if store._frozen.gone or store._active.gone:
            return self.state()
        held = dict(self.rocks.scan()) | store._frozen.built() | store._active.built()
        return _state(_kept(held), store.state.head)

    def refolded(self) -> dict[bytes, bytes]:
        """What the state must be: the whole log folded from where it began, message by message, into a dict."""
        return _one_by_one(enumerate(self.topic.partitions[self.number][self.begin :], self.begin), self.begin)

    def refolded_by_column(self) -> dict[bytes, bytes]:
        """The state up to here, folded again in one step for each run of frames that can be folded by column."""
        return _by_column(list(enumerate(self._folded, self.begin)), self.begin)

    def crowded(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """States of the log without its markers, so that runs have nothing but frames: by column, and one by one."""
        folded = enumerate(self._folded, self.begin)
        records = [each for each in folded if each[1] is None or each[1][:HEADER_SIZE] not in _BETWEEN_RUNS]
        return _by_column(records, self.begin), _one_by_one(records, self.begin)


def _one_by_one(records: Iterable[Record], begin: int) -> dict[bytes, bytes]:
    entries: dict[bytes, bytes] = {}
    state = PartitionState(Head(offset=begin, begin=begin), entries.get)
    for offset, value in records:
        changes = fold_message(state, offset, value)
        changes.put_into(entries)
        state.apply(changes)
    return _state(entries, state.head)


def _by_column(records: Sequence[Record], begin: int) -> dict[bytes, bytes]:
    entries = Memtable()
    state = PartitionState(Head(offset=begin, begin=begin), lambda key: entries.get(key) or None)
    with _folding_by_column():
        for changes in fold_messages(state, records):
            entries.put(changes.entries, changes.gone)
            state.apply(changes)
    return _state(_kept(entries.built()), state.head)


def _kept(entries: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Without those that are gone, and without the head."""
    return {key: entry for key, entry in entries.items() if entry}


def _state(entries: dict[bytes, bytes], head: Head) -> dict[bytes, bytes]:
    return dict(live_items(head, (entries | head_entries(head)).items()))


def _folding_by_column() -> Any:
    return patch.object(columns, "RUN_BYTES_MIN", BY_COLUMN_BYTES)


def _lookup_after_close(_: bytes) -> bytes | None:
    raise OwnerCrash


class _Messages(list[Record]):
    """Messages that call ``between`` before the last one is read. Their fold is not memoized."""

    def __init__(self, records: list[Record], between: Callable[[], None] | None) -> None:
        super().__init__(records)
        self._between = between

    def __getitem__(self, at: Any) -> Any:
        if self._between is not None and at == len(self) - 1:
            between, self._between = self._between, None
            between()
        return super().__getitem__(at)


class RacingStore:
    """A store that folds on right before access number ``at`` to it."""

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
        """The visible head at the time of the access."""
        self._look()
        return self._store.visible

    def get(self, key: bytes) -> bytes | None:
        """The entry at the time of the access."""
        self._look()
        return self._store.get(key)

    def between(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The pairs at the time of the access."""
        self._look()
        return self._store.between(start, end, limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
