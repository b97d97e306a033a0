"""The store of one partition: a memtable over RocksDB. One writer, many readers.

What is folded is visible, what is committed is durable. A commit freezes the memtable with the head of that moment,
writes both as one sorted file and ingests it in one atomic step. After a crash the tail since the last commit is folded
again, to the same state. On disk: docs/internals/store.md.

Threads: one thread folds (`fold`, `apply`); another may `write` the frozen memtable meanwhile. Readers take `visible`
first and call `get` after it, without a lock. Entries are put before the head that covers them is published, so no
value is older than the watermark it is judged by.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final

from consumers.fold.backfills import live_items
from consumers.fold.messages import fold_messages
from consumers.fold.runs import bytes_of
from consumers.fold.state import (
    Changes,
    Head,
    PartitionState,
    Rejection,
    head_entries,
    lasting_entries,
    moving_entries,
)
from consumers.store.digest import digest_items
from consumers.store.directory import (
    SCRATCH_NAME,
    lock_directory,
    move_aside,
    partition_directory,
    prepare_directory,
)
from consumers.store.dropping import Dropping
from consumers.store.errors import StoreCorruptError, StoreError, store_error
from consumers.store.index import Index
from consumers.store.indexing import Indexing
from consumers.store.manifest import (
    INDEXED_VERSION,
    Manifest,
    check_manifest,
    sync_directory,
    write_manifest,
)
from consumers.store.memtable import Memtable
from consumers.store.rocks.database import Rocks, disk_bytes
from consumers.store.view import ROCKS_NAME, StoreView, committed_head, merge_items
from stream.wire.codec import NewerWireError

__all__ = [
    "ROCKS_NAME",
    "Commit",
    "PartitionStore",
    "StoreView",
    "committed_head",
    "lock_directory",
    "merge_items",
    "move_aside",
    "partition_directory",
]

_EMPTY: Final = Memtable()


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit did. ``rows`` counts entries, not events."""

    offset: int
    rows: int
    bytes: int
    seconds: float


class PartitionStore:
    """Folded state of one partition. Methods raise `consumers.store.errors.StoreError`."""

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        rocks: Rocks,
        head: Head,
        lock: int,
        indexes: Sequence[Index] = (),
    ) -> None:
        """Use `open`."""
        self.directory = directory
        self.manifest = manifest
        self.keyspace = manifest.keyspace
        self.partition = manifest.partition
        self.state = PartitionState(head, self.get, self.begins)
        self.visible = head.copy()
        """The head for readers. It is replaced, never changed."""
        self.committed_offset = head.offset
        self.broken: StoreError | None = None
        """Set once damage was found; nothing of this store may be served then."""
        self.newer: NewerWireError | None = None
        """Why the last `fold` stopped before its end: the next record needs a newer Freshet."""
        self._rocks = rocks
        self.indexing = Indexing(indexes, rocks, head)
        self.dropping = Dropping(rocks)
        self._active = Memtable(self.indexing.hints())
        self._frozen = _EMPTY
        self._frozen_head = self.visible
        self._durable_head: Head | None = None
        """Of the last commit. None before the first one, which writes the whole head, so that a store that others have
        written needs no look."""
        self._frozen_offset = head.offset
        self._folding = Lock()
        self._committing = Lock()
        self._folded_bytes = 0
        self._lock: int | None = lock

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        keyspace: str,
        partition: int,
        topic_id: str,
        layout: str = "",
        indexes: Sequence[Index] = (),
    ) -> PartitionStore:
        """Opens or creates the store of a partition. ``indexes``: those that it keeps beside the folded state.

        Raises `StoreLockedError`, `StoreNewerError`, `StoreCorruptError`, or `RebuildNeededError` if the store has
        another topic, layout or fold version. It never replaces a store; see `move_aside`.
        """
        directory = partition_directory(data_dir, keyspace, partition)
        wanted = Manifest(keyspace, partition, topic_id, layout)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = lock_directory(directory)
        except OSError as error:
            raise store_error(error, str(directory)) from error
        try:
            manifest = prepare_directory(directory, wanted)
            rocks = Rocks(directory / ROCKS_NAME)
            try:
                head = committed_head(rocks)
                if layout and head.layout and head.layout != layout:
                    check_manifest(replace(manifest, layout=head.layout), wanted, directory)
                if indexes and manifest.format_version < INDEXED_VERSION:
                    manifest = replace(manifest, format_version=INDEXED_VERSION)
                    write_manifest(directory, manifest)
                return cls(directory, manifest, rocks, head, lock, indexes)
            except BaseException:
                rocks.close()
                raise
        except OSError as error:
            os.close(lock)
            raise store_error(error, str(directory)) from error
        except BaseException:
            os.close(lock)
            raise

    def get(self, key: bytes) -> bytes | None:
        """The folded bytes of ``key``, from the memtable, else the frozen one, else RocksDB."""
        value = self._active.get(key)
        if value is None:
            value = self._frozen.get(key)
            if value is None:
                try:
                    return self._rocks.get(key)
                except StoreError as error:
                    self._record_damage(error)
                    raise
        return value or None

    def between(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The pairs with ``start`` ≤ key < ``end`` in key order, the first ``limit``. For the thread that answers.

        What is folded meanwhile may be in or not; each value is as new as `visible` was before the call.
        """
        active, frozen = self._active, self._frozen  # the oldest last: what is written meanwhile moves that way
        newer = dict.fromkeys((key for key in frozen.between(start, end) if not active.hides(key)), frozen)
        newer |= dict.fromkeys(active.between(start, end), active)
        try:
            committed = _without(self._rocks.scan(start, end), frozen, active)
            return list(islice(merge_items(committed, _Newest(newer)), limit))
        except StoreError as error:
            self._record_damage(error)
            raise

    def begins(self, keys: list[bytes]) -> list[bytes | None]:
        """How the entry of each row key begins, at least up to its shard, with one question to RocksDB."""
        active, frozen = self._active, self._frozen  # the oldest last: what is written meanwhile moves that way
        found = active.begins(keys)
        missing = [place for place, begin in enumerate(found) if begin is None]
        if missing and frozen:
            for place, begin in zip(missing, frozen.begins([keys[place] for place in missing]), strict=True):
                found[place] = begin
            missing = [place for place in missing if found[place] is None]
        if missing:
            try:
                entries = self._rocks.get_many([keys[place] for place in missing])
            except StoreError as error:
                self._record_damage(error)
                raise
            for place, entry in zip(missing, entries, strict=True):
                found[place] = entry
        return found

    def having(self, index: Index, values: bytes, limit: int) -> list[bytes] | None:
        """Keys of rows that have these values, or had them: each that has them in what `visible` said before the call.

        At most ``limit`` or some more. None if the index is not kept, or not complete. For the thread that answers.
        """
        active, frozen = self._active, self._frozen  # the oldest last: what is written meanwhile moves that way
        extraction = self.indexing.built(index)
        if extraction is None:
            return None
        begin = extraction.begin_of(values)
        found: list[bytes] = []
        try:
            for hints in (active.hints, frozen.hints):
                if hints is not None:
                    found += hints.primary_keys(begin, extraction.unknown)
            found += self.indexing.durable_keys(extraction, begin, limit)
        except StoreError as error:
            self._record_damage(error)
            raise
        table = extraction.table
        return [table + key for key in (dict.fromkeys(found) if len(found) > 1 else found)]

    def begin_at(self, offset: int) -> None:
        """Lets an empty store begin at ``offset`` instead of 0: nothing before it is known.

        Raises `StoreError` if something was folded already.
        """
        with self._folding:
            head = self.state.head
            if not self.is_empty or self._active or self._frozen:
                raise StoreError(
                    f"{self.directory} has folded up to {head.offset} and cannot begin at {offset}",
                    hint="give it an empty directory",
                )
            head.offset = head.begin = offset
            self.committed_offset = self._frozen_offset = offset
            self.visible = head.copy()

    def fold(self, records: Sequence[tuple[int, bytes | None]]) -> list[tuple[int, Rejection]]:
        """Folds (offset, value) records and publishes the result; returns the rejections with their offsets.

        Records below the head's offset were folded before and are skipped. A record that needs a newer Freshet stops
        the fold before it: see `newer`.
        """
        rejections: list[tuple[int, Rejection]] = []
        state = self.state
        with self._folding:
            put = self._active.put
            self.newer = None
            try:
                for changes in fold_messages(state, records):
                    put(changes.entries, changes.gone)
                    state.apply(changes)
                    if changes.rejections:
                        rejections += [(changes.offset - 1, letter) for letter in changes.rejections]
            except NewerWireError as error:
                self.newer = error
            finally:
                self._folded_bytes += bytes_of(records)
                self.indexing.settle()
                self.visible = state.head.copy()
        return rejections

    def apply(self, changes: Changes) -> None:
        """Makes changes visible: entries first, then the head."""
        with self._folding:
            self._active.put(changes.entries, changes.gone)
            self.state.apply(changes)
            self.indexing.settle()
            self.visible = self.state.head.copy()

    @property
    def is_folding(self) -> bool:
        """Whether entries may be visible that `visible` does not cover yet."""
        return self._folding.locked()

    @property
    def pending_rows(self) -> int:
        """Entries folded and not yet durable."""
        return len(self._active) + len(self._frozen)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the messages folded since the last freeze, and of arrays for their rows: about its memory."""
        return self._folded_bytes + self._active.array_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever folded."""
        head = self.state.head
        return head.offset == head.begin and not head.lineages

    @property
    def is_dirty(self) -> bool:
        """Whether something folded is not durable yet."""
        return self.state.head.offset != self.committed_offset

    def commit(self) -> Commit | None:
        """Makes what is folded now durable (`freeze` and `write`); None if it already is.

        An error leaves the store as it was; the next commit tries again.
        """
        with self._committing:
            done = self._write_frozen() if self._frozen else None
            return self._write_frozen() if self.freeze() else done

    def freeze(self) -> bool:
        """Freezes the memtable for `write`. False if nothing is new, or the last one has not been written yet."""
        with self._folding:
            head = self.state.head
            if self._frozen or head.offset == self.committed_offset:
                return False
            active = self._active
            active.put(head_entries(head, self._durable_head))
            self._frozen_offset = head.offset
            self._frozen_head = head.copy()
            self._frozen = active
            self._active = Memtable(self.indexing.hints())
            self._folded_bytes = 0
            return True

    def write(self) -> Commit | None:
        """Makes the frozen memtable durable; None if there is none. Another thread may fold meanwhile."""
        with self._committing:
            return self._write_frozen() if self._frozen else None

    def _write_frozen(self) -> Commit:
        started = time.perf_counter()
        frozen = self._frozen
        scratch = self.directory / SCRATCH_NAME
        try:
            self._rocks.ensure_open()  # what follows reads
            gone = self.dropping.to_drop(self._frozen_head, self._frozen)
            beside = self.indexing.to_write(self._frozen.hints, self._frozen, self._frozen_offset)
            beside |= self.dropping.note()
            size = self._rocks.ingest(frozen, scratch, beside, gone)
        except StoreError as error:
            self._record_damage(error)
            raise
        self.indexing.written()
        self.dropping.written()
        self._frozen = _EMPTY
        self._durable_head = self._frozen_head
        self.committed_offset = self._frozen_offset
        self._save_layout(self.visible.layout)
        return Commit(self._frozen_offset, len(frozen), size, time.perf_counter() - started)

    def _save_layout(self, layout: str) -> None:
        if layout and self.manifest.layout != layout:
            try:
                manifest = replace(self.manifest, layout=layout)
                write_manifest(self.directory, manifest)
            except OSError:
                return  # the head has it too, and the next commit tries again
            self.manifest = manifest

    def _record_damage(self, error: StoreError) -> None:
        if isinstance(error, StoreCorruptError) and self.broken is None:
            self.broken = error

    def checkpoint(self, path: Path) -> Manifest:
        """Commits, and copies exactly that state to ``path``, which must not exist. Returns the copy's manifest.

        The copy is made of hard links if the file system is the same. It appears whole or not at all.
        """
        building = path.with_name(path.name + ".new")
        try:
            with self._committing:
                if self._frozen:
                    self._write_frozen()
                if self.is_empty and self.state.head.begin:
                    self.committed_offset = 0  # where it begins is told nowhere else, and a copy without it is damaged
                if self.freeze():
                    self._write_frozen()
                if building.exists():  # left by a failed or killed checkpoint
                    shutil.rmtree(building)
                building.mkdir(parents=True)
                self._rocks.checkpoint(building / ROCKS_NAME)
                manifest = replace(self.manifest, offset=self.committed_offset)
            write_manifest(building, manifest)
            os.replace(building, path)
            sync_directory(path.parent)
        except OSError as error:
            shutil.rmtree(building, ignore_errors=True)
            raise store_error(error, str(path)) from error
        except StoreError:
            shutil.rmtree(building, ignore_errors=True)
            raise
        return manifest

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """The whole folded state in key order as of the call, head included, without tombstones that may be dropped."""
        with self._committing:
            with self._folding:
                head, frozen, active = self.state.head.copy(), self._frozen, self._active
                newer = {key: entry for key, entry in frozen.built().items() if not active.hides(key)}
                newer |= active.built() | head_entries(head)
                committed = _without(self._rocks.scan(), frozen, active)
            return live_items(head, merge_items(committed, newer))

    def digest(self) -> tuple[str, int]:
        """Digest and number of `items` (`consumers.store.digest.digest_items`)."""
        return digest_items(self.items())

    def estimated_entries(self) -> int:
        """The estimated number of entries without the head's; recently rewritten keys may count twice."""
        head = self.visible
        return max(0, self._rocks.estimated_keys(moving_entries(head), lasting_entries(head)) + self.pending_rows)

    def disk_bytes(self) -> int:
        """Bytes on disk."""
        return disk_bytes(self.directory)

    def close(self, *, commit: bool = True) -> None:
        """Commits (unless ``commit`` is false or the store is broken) and closes. Safe to repeat."""
        if self._lock is None:
            return
        try:
            if commit and self.broken is None:
                self.commit()
        finally:
            with self._committing:
                try:
                    self._rocks.close()
                finally:
                    if self._lock is not None:
                        os.close(self._lock)
                        self._lock = None


class _Newest(Mapping[bytes, bytes]):
    """Key → its entry in the memtable that has the newest one. An entry is made when it is asked for: few are."""

    def __init__(self, held: dict[bytes, Memtable]) -> None:
        self._held = held

    def __getitem__(self, key: bytes) -> bytes:
        return self._held[key][key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _without(
    committed: Iterator[tuple[bytes, bytes]], frozen: Memtable, active: Memtable
) -> Iterator[tuple[bytes, bytes]]:
    """Committed pairs without those that are gone as of the call."""
    if not (frozen.gone or active.gone):
        return committed
    newest = Memtable()
    newest.gone = frozen.gone | active.gone
    return (pair for pair in committed if not newest.hides(pair[0]))
