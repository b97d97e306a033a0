"""One Spark task: folds the messages of one Kafka partition, in order, into a store directory.

The code needs no Spark, the tests run it without. What is folded is in a memtable: at
`FoldTask.spill_rows` entries, or `SPILL_BYTES` of messages, RocksDB ingests it with the head as one sorted file. The
directory is a store that an owner can continue.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from consumers.fold.backfills import live_items
from consumers.fold.columns import RowEntries
from consumers.fold.declared import announced_texts
from consumers.fold.messages import fold_messages
from consumers.fold.runs import Messages, Record
from consumers.fold.state import CATALOG, META, PartitionState, head_entries
from consumers.store.digest import digest_items
from consumers.store.dropping import note_to_sweep_again
from consumers.store.errors import RetryableStoreError, StoreCorruptError, StoreLockedError, store_error
from consumers.store.manifest import Manifest, check_manifest, read_manifest, write_atomically, write_manifest
from consumers.store.memtable import Memtable
from consumers.store.rocks.database import Rocks
from consumers.store.store import ROCKS_NAME, committed_head, partition_directory
from spark_jobs.output import STATE_NAME, PartitionSummary, RebuildError, history_incomplete, not_shared
from stream.wire.announced import Announced
from stream.wire.codec import PartitionReader
from stream.wire.columns import PAD, Text
from tokens.errors import FreshetError

SPILL_ROWS: Final = 1_000_000
"""Entries that a task keeps in memory before it writes a file: about 0.5 GB at 200 bytes per entry."""
SPILL_BYTES: Final = 256 << 20
"""Bytes of messages after which it does so too: the memtable keeps them and arrays for
their rows, also where their keys were changed again."""
SPILL_PREFIX: Final = ".ingest-"
"""In the store directory: a spill that is being written."""
LOCKED_S_MAX: Final = 60.0
LOCKED_RETRY_S: Final = 0.1
BEGUN_NAME: Final = "begun.json"
"""In the store directory of a partition that retention has cut, until it is complete: shard → epoch whose beginning
was folded."""
RESULT_SCHEMA: Final = "partition int, summary string, error string"


@dataclass(frozen=True, slots=True)
class FoldTask:
    """The input of each task. ``low``, ``start``: earliest retained offset and first to read, by partition.

    ``root`` is a directory that all executors and the driver share. Stores in it are continued. Spark's tasks refuse
    one that the driver has not begun.
    """

    keyspace: str
    topic_id: str
    root: str
    low: dict[int, int]
    start: dict[int, int]
    spill_rows: int = SPILL_ROWS
    begin: dict[int, int] = field(default_factory=dict)
    """Where new stores begin, by partition; 0 if not given."""
    end: dict[int, int] = field(default_factory=dict)
    """Offsets to stop before, by partition; a partition that is not named is folded as far as Spark reads it."""
    digests: bool = True
    """Whether complete stores are read for their digests."""
    reached: dict[int, int] = field(default_factory=dict)
    """Offsets that the stores have reached, by partition: one that is behind is another executor's own."""

    def open(self, partition: int) -> PartitionFold:
        """Opens or creates the partition's store; raises `consumers.store.errors.StoreError`.

        Waits for a task of a killed run, or one that Spark gave up: its process may live on for a moment.
        """
        deadline = time.monotonic() + LOCKED_S_MAX
        while True:
            try:
                return PartitionFold(self, partition)
            except StoreLockedError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(LOCKED_RETRY_S)


class PartitionFold:
    """The fold of one partition into its store. Not thread-safe; a context manager that closes the store."""

    def __init__(self, task: FoldTask, partition: int) -> None:
        self._task = task
        self._partition = partition
        self._started = time.monotonic()
        self.directory = partition_directory(Path(task.root), task.keyspace, partition)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._manifest = Manifest(task.keyspace, partition, task.topic_id, "")
        found = read_manifest(self.directory)
        if found is not None:
            check_manifest(found, self._manifest, self.directory)
            self._manifest = replace(self._manifest, format_version=found.format_version)
        self._rocks = Rocks(self.directory / ROCKS_NAME)
        for left in self.directory.glob(f"{SPILL_PREFIX}*"):  # by a task that was killed: RocksDB has it, or never will
            left.unlink()
        head = committed_head(self._rocks)
        if not head.offset:
            head.offset = head.begin = task.begin.get(partition, 0)
        reached = task.reached.get(partition, 0)
        if head.offset < reached:
            self._rocks.close()
            raise not_shared(f"{self.directory} is at offset {head.offset} on {platform.node()}, not at {reached}")
        # without an offset it is a live store; finish() makes it a checkpoint
        write_manifest(self.directory, replace(self._manifest, layout=head.layout))
        self._entries = Memtable()
        self._folded_bytes = 0
        self.state = PartitionState(head, self._lookup)
        self._begun = self._noted_epochs() if head.offset else None  # of what was noted and not folded nothing counts
        self._reader = PartitionReader(earlier=self._folded_texts())
        self._has_beginning = self._begun is None and (task.low[partition] == 0 or head.offset > 0)
        self._files = 0
        self._messages = self._rows = self._dead = 0

    def __enter__(self) -> PartitionFold:
        return self

    def __exit__(self, *_: object) -> None:
        self._rocks.close()

    def _lookup(self, key: bytes) -> bytes | None:
        found = self._entries.get(key)
        return (self._rocks.get(key) if found is None else found) or None

    def fold(self, offsets: Any, values: Any) -> None:
        """Folds messages that follow all earlier ones; skips those that an earlier run has folded.

        ``offsets``, ``values``: arrays of Arrow. Raises `RebuildError` ``offsets_not_rising`` if they are out of order.
        """
        numbers = offsets.to_numpy()
        if (numbers[1:] <= numbers[:-1]).any():
            raise RebuildError(
                f"partition {self._partition}: Spark gave offsets out of order",
                code="offsets_not_rising",
                hint="unset minPartitions",
            )
        end = self._task.end.get(self._partition)
        count = len(numbers) if end is None else int(np.searchsorted(numbers, end))
        self._fold(records_of(offsets[:count], values[:count]), values[:count].nbytes)

    def _fold(self, records: Sequence[Record], size: int) -> None:
        state = self.state
        skip = state.head.offset
        if not self._has_beginning:
            self._note_epochs(records)
        if self._messages and records and records[0][0] < skip:
            raise RebuildError(
                f"partition {self._partition}: offset {records[0][0]} came after {skip - 1}", code="offsets_not_rising"
            )
        for changes in fold_messages(state, records):
            changed, messages = changes.entries, changes.messages
            state.apply(changes)
            if changed or changes.gone:
                rows = self._entries.put(changed, changes.gone)
                if messages > 1 and not isinstance(changed, RowEntries):  # several messages have one row each
                    rows = max(rows, messages)
                self._rows += rows
                if len(self._entries) >= self._task.spill_rows:
                    self.commit()
            if changes.rejections:
                self._dead += len(changes.rejections)
            self._messages += messages
        self._folded_bytes += size
        if self._folded_bytes + self._entries.array_bytes >= SPILL_BYTES:
            self.commit()

    def _noted_epochs(self) -> dict[str, int] | None:
        """What earlier runs noted in `BEGUN_NAME`; None if there is no such file."""
        path = self.directory / BEGUN_NAME
        return json.loads(path.read_bytes()) if path.exists() else None

    def _note_epochs(self, records: Sequence[Record]) -> None:
        if self._begun is None:
            self._begun = {}
        for _, value in records:
            name = self._reader.name_of(value or b"")
            if name not in ("EpochStart", "SchemaText"):
                continue
            try:
                _, event = self._reader.decode(value or b"")
            except FreshetError:
                continue  # the fold rejects it
            if name == "EpochStart":
                self._begun[event["shard"]] = event["epoch"]

    def _folded_texts(self) -> Iterator[dict[bytes, Announced]]:
        """What earlier runs have folded of announcements."""
        yield announced_texts(dict(self._rocks.scan(META, CATALOG)))

    def commit(self) -> None:
        """Makes what is folded so far durable in one step, head and offset included.

        Writes nothing if nothing was folded, like the live store: there is no head with offset 0.
        """
        if not self._messages and not self.state.head.begin:
            return
        if not self._has_beginning:  # first: else a run that is killed after the ingest would take the store for whole
            write_atomically(self.directory / BEGUN_NAME, json.dumps(self._begun or {}).encode())
        self._files += 1
        self._entries.put(head_entries(self.state.head))
        scratch = self.directory / f"{SPILL_PREFIX}{os.getpid()}-{self._files}.sst"
        self._rocks.ingest(self._entries, scratch, note_to_sweep_again(self._rocks))
        self._entries, self._folded_bytes = Memtable(), 0

    def finish(self, *, complete: bool = True) -> PartitionSummary:
        """Commits and returns the summary; ``complete``: with the digest if wanted, and the offset in the manifest.

        Raises `RebuildError` ``history_incomplete`` if the topic no longer holds the beginning of a shard's epoch.
        """
        head = self.state.head
        self.commit()
        digest, entries = "", 0
        task = self._task
        if complete:
            self._check_beginning()
            if task.digests:
                digest, items = digest_items(live_items(head, self._rocks.scan()))
                entries = max(0, items - len(head_entries(head)))  # nothing folded: no head either
            write_manifest(self.directory, replace(self._manifest, layout=head.layout, offset=head.offset))
            (self.directory / BEGUN_NAME).unlink(missing_ok=True)
        return PartitionSummary(
            partition=self._partition,
            start=task.start[self._partition],
            offset=head.offset,
            messages=self._messages,
            rows=self._rows,
            dead_letters=self._dead,
            entries=entries,
            digest=digest,
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _check_beginning(self) -> None:
        if self._has_beginning:
            return
        lineages = self.state.head.lineages
        begun = self._begun or {}
        lost = [shard for shard, lineage in lineages.items() if begun.get(shard) != lineage.epoch]
        if lost or not lineages:
            gone = f"the beginning of {', '.join(sorted(lost))}" if lost else "everything"
            low = self._task.low[self._partition]
            raise history_incomplete(self._partition, low, gone)


def run_task(task: FoldTask, batches: Iterator[Any]) -> Iterator[Any]:
    """For ``mapInArrow``: folds batches of (partition, offset, value), yields one row of `RESULT_SCHEMA`."""
    yield from _answered(task, lambda: _fold_all(task, batches))


def complete_task(task: FoldTask, batches: Iterator[Any]) -> Iterator[Any]:
    """For ``mapInArrow``: completes the stores of the partitions in batches of numbers; rows as `run_task`."""
    for batch in batches:
        for partition in batch.column(0).to_pylist():
            yield from _answered(task, partial(_complete, task, partition))


def _complete(task: FoldTask, partition: int) -> PartitionSummary:
    with task.open(partition) as fold:
        return fold.finish()


def _answered(task: FoldTask, work: Callable[[], PartitionSummary | None]) -> Iterator[Any]:
    """What ``work`` returns, as a batch of one row of `RESULT_SCHEMA`; nothing for None.

    A `FreshetError` is returned in that row, because an exception would reach the driver as a traceback.
    """
    import pyarrow as pa

    partition, text, error = -1, None, None
    try:
        if not (Path(task.root) / STATE_NAME).exists():
            raise not_shared(f"{platform.node()} has no {task.root}/{STATE_NAME}")
        summary = work()
        if summary is None:
            return
        partition, text = summary.partition, json.dumps(asdict(summary))
    except (FreshetError, OSError) as failure:
        error = error_json(failure, task.root)
    columns = [pa.array([partition], pa.int32()), pa.array([text], pa.string()), pa.array([error], pa.string())]
    yield pa.RecordBatch.from_arrays(columns, names=["partition", "summary", "error"])


def error_json(failure: FreshetError | OSError, place: str) -> str:
    """An error as the driver gets it from a task that writes at ``place``."""
    found = rebuild_error(failure, place)
    return json.dumps({"code": found.code, "message": str(found), "hint": found.hint})


def rebuild_error(failure: FreshetError | OSError, place: str) -> RebuildError:
    """An error of a job that writes at ``place``, whose space and rights are a user's."""
    if isinstance(failure, OSError):
        found = store_error(failure, place)
        failure = RebuildError(str(found)) if isinstance(found, StoreCorruptError) else found
    hint = failure.hint
    if isinstance(failure, RetryableStoreError):  # its hint is a consumer's, which tries again by itself
        hint = "free space there, or give another directory (--to; for verify TMPDIR); run it again to go on"
    return RebuildError(str(failure), hint=hint, code=failure.code)


def _fold_all(task: FoldTask, batches: Iterator[Any]) -> PartitionSummary | None:
    fold: PartitionFold | None = None
    partition = -1
    try:
        for batch in batches:
            partitions = batch.column(0).unique().to_pylist()
            if partition < 0:
                [partition] = partitions[:1]
                fold = task.open(partition)
                progress = Path(task.root) / f"{PROGRESS_PREFIX}{partition}"
            if fold is None or partitions != [partition]:
                raise RebuildError(f"one Spark task was given the partitions {partitions}", code="offsets_not_rising")
            offsets, values = batch.column(1), batch.column(2)
            fold.fold(offsets, values)
            progress.write_text(str(offsets[-1].as_py() + 1))
        return None if fold is None else fold.finish(complete=False)
    finally:
        if fold is not None:
            fold.__exit__()


def records_of(offsets: Any, values: Any) -> Sequence[Record]:
    """Offsets and values of messages, from arrays of Arrow; in one text, as they are there, if all have values."""
    import pyarrow as pa

    if not len(values) or values.null_count or values.type != pa.binary():
        return list(zip(offsets.to_pylist(), values.to_pylist(), strict=True))
    _, places, data = values.buffers()
    edges = np.frombuffer(places, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    text = b"".join((memoryview(data or b"")[edges[0] : edges[-1]], PAD))
    edges -= edges[0]
    return Messages(offsets.to_numpy(), Text(text, edges[:-1], edges[1:]))


PROGRESS_PREFIX: Final = ".progress-"


def clear_progress(root: Path) -> None:
    """Removes the progress files of the tasks."""
    for path in root.glob(f"{PROGRESS_PREFIX}*"):
        path.unlink(missing_ok=True)


def offsets_reached(root: Path) -> dict[int, int]:
    """Partition → next offset, from the progress files of the running tasks."""
    reached: dict[int, int] = {}
    for path in root.glob(f"{PROGRESS_PREFIX}*"):
        try:
            reached[int(path.name.removeprefix(PROGRESS_PREFIX))] = int(path.read_text())
        except (OSError, ValueError):
            continue  # it is being written
    return reached
