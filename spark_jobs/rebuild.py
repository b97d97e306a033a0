"""Rebuild: folds a keyspace's topic anew, up to given offsets, into store directories.

Spark's Structured Streaming replays the topic, committed transactions only. One task reads one Kafka partition and
folds it with the live consumer's fold (`spark_jobs.partition`). Run by ``freshet rebuild`` or ``spark-submit``
(docs/operating/rebuild.md).
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from consumers.fold.state import FOLD_VERSION
from consumers.process.opening import check_layout
from consumers.store.directory import kept
from consumers.store.errors import StoreError
from consumers.store.manifest import read_manifest
from consumers.store.store import StoreView, partition_directory
from spark_jobs.beginning import check_beginnings
from spark_jobs.engine.executors import check_executors
from spark_jobs.offsets import Beginning, Range, TopicBounds, check_topic, choose_range, topic_bounds
from spark_jobs.output import (
    REPORT_NAME,
    Begun,
    PartitionSummary,
    RebuildError,
    RebuildReport,
    exclusive,
    find_stores,
    not_shared,
    read_begun,
    staged,
    sync_tree,
    write_report,
)
from spark_jobs.partition import SPILL_ROWS, FoldTask, clear_progress, offsets_reached, rebuild_error
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.streaming import (
    OFFSETS_PER_BATCH,
    Micro,
    complete_stores,
    run_tasks,
    stream_messages,
)
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic, events_topic

PROGRESS_INTERVAL_S: Final = 0.5

Progress = Callable[[int, int], None]
"""Called periodically with the number of offsets read so far and in total."""


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """What to rebuild. ``ends``: partition → next offset (None: all that is committed now).

    ``base`` is a checkpoint or an earlier rebuild of the same topic. Its stores are copied and continued. If ``target``
    is a rebuild already, it is gone on with. ``follow``: go on until KeyboardInterrupt.
    """

    keyspace: str
    kafka: KafkaCluster
    target: Path
    ends: Mapping[int, int] | None = None
    base: Path | None = None
    spill_rows: int = SPILL_ROWS
    begins: Mapping[int, int] | None = None
    """Partition → where a new store begins (None: at 0). A store is equal to another only if both began there."""
    follow: bool = False
    offsets_per_batch: int = OFFSETS_PER_BATCH
    digests: bool = True
    """False: the report has no digests and no counts of entries, for stores that are compared as a whole anyway."""

    def begun(self, topic_id: str) -> Begun:
        """What the target is begun as."""
        base = "" if self.base is None else os.path.abspath(self.base)
        begins = {partition: offset for partition, offset in (self.begins or {}).items() if offset}
        return Begun(self.keyspace, topic_id, base, begins)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run reads, the stores that it copies first, and whether it goes on with its target."""

    chosen: Range
    begun: Begun
    bases: dict[int, Path]
    goes_on: bool


def prepare(request: RebuildRequest, *, anew: bool = False) -> Prepared:
    """Checks a request without Spark. Raises as `rebuild` does. ``anew``: as if its target were not there."""
    found = None if anew else read_begun(request.target)
    bounds = topic_bounds(request.kafka, events_topic(request.kafka, request.keyspace))
    begun = request.begun(bounds.topic_id)
    bases: dict[int, Path] = {}
    starts: Mapping[int, int] | None = begun.begins or None
    behind = Beginning.CHECKPOINT
    if starts is not None:
        starts = bounds.low | dict(begun.begins)
    if found is not None:
        _check_same(request.target, found, begun)
        starts, behind = _reached(request.target, begun, bounds), Beginning.REBUILD
    elif request.base is not None:
        bases = find_stores(request.base, request.keyspace)
        starts, behind = checkpoint_offsets(bases), Beginning.BASE
    return Prepared(choose_range(bounds, request.ends, starts, behind), begun, bases, found is not None)


def _check_same(target: Path, found: Begun, wanted: Begun) -> None:
    if found == wanted:
        return
    same_topic = (found.keyspace, found.topic_id) == (wanted.keyspace, wanted.topic_id)
    raise RebuildError(
        f"{target} was begun from base {found.base or 'none'} at {found.begins or 0}: this run is of another"
        if same_topic
        else f"{target} is of {found.keyspace}, topic id {found.topic_id}, not of {wanted.keyspace}, {wanted.topic_id}",
        hint="start again in another directory (--to)",
        code="state_missing",
    )


def _reached(target: Path, begun: Begun, bounds: TopicBounds) -> dict[int, int]:
    """Partition → offset at which the rebuild in ``target`` goes on."""
    reached: dict[int, int] = {}
    for partition, low in bounds.low.items():
        directory = partition_directory(target, begun.keyspace, partition)
        offset = 0
        try:
            if read_manifest(directory) is not None:  # it is written when RocksDB is there
                with StoreView(directory) as view:
                    offset = view.head.offset
        except StoreError as error:
            raise RebuildError(
                f"the store in {directory} can't be read: {error}",
                hint="remove it, to have it folded from the beginning, or start again in another directory (--to)",
                code="state_missing",
            ) from error
        reached[partition] = offset or begun.begins.get(partition, low)
    return reached


def check_request(request: RebuildRequest) -> None:
    """Checks a request before a JVM is started. Raises as `prepare` and `check_beginnings` do."""
    prepared = prepare(request)
    if not prepared.goes_on and not prepared.bases and not prepared.begun.begins:
        check_beginnings(request.kafka, prepared.chosen)


def run_rebuild(request: RebuildRequest, spark: SparkSettings, progress: Progress | None = None) -> RebuildReport:
    """A rebuild in a Spark session of its own; checked before a JVM is started. Raises as `rebuild`."""
    check_request(request)
    with spark_session(f"freshet rebuild {request.keyspace}", spark) as session:
        return rebuild(session, request, progress=progress)


def rebuild(session: Any, request: RebuildRequest, *, progress: Progress | None = None) -> RebuildReport:
    """Folds the topic into ``request.target``; ``rebuild.json`` is there iff this ended well.

    Raises `OffsetsError`, `RebuildError`, `ExecutorError`, `consumers.store.errors.StoreError`.
    """
    root = Path(os.path.abspath(request.target))
    with exclusive(root):
        prepared = prepare(request)
        check_executors(session)
        chosen, begun = prepared.chosen, prepared.begun
        if not prepared.goes_on:
            with staged(root, begun) as staging, kept(prepared.bases.values()):
                _copy_stores(prepared.bases, request.keyspace, staging)
        (root / REPORT_NAME).unlink(missing_ok=True)
        clear_progress(root)
        ends = {} if request.follow else chosen.end
        task = FoldTask(
            request.keyspace,
            chosen.topic_id,
            str(root),
            chosen.low,
            chosen.start,
            request.spill_rows,
            dict(begun.begins),
            ends,
            request.digests,
        )
        started = time.monotonic()
        with progress_reported(root, chosen, None if request.follow else progress):
            folded = _fold(session, request, task, chosen, progress)
            completed = complete_stores(session, replace(task, reached=_offsets(task, folded)))
            _check_stores(root, request.keyspace, chosen, _offsets(task, completed))
        seconds = round(time.monotonic() - started, 3)
        summaries = tuple(_add(folded.get(each), completed[each]) for each in sorted(completed))
        reached = {each.partition: each.offset for each in summaries} if request.follow else chosen.end
        report = RebuildReport(
            request.keyspace, chosen.topic, chosen.topic_id, FOLD_VERSION, reached, summaries, seconds
        )
        clear_progress(root)
        sync_tree(root)
        write_report(root, report)
    return report


def _fold(
    session: Any, request: RebuildRequest, task: FoldTask, chosen: Range, progress: Progress | None
) -> dict[int, PartitionSummary]:
    """Folds micro-batch after micro-batch; partition → total of its tasks."""
    folded: dict[int, PartitionSummary] = {}

    def fold(messages: Any, _: int) -> None:
        for partition, summary in run_tasks(messages, replace(task, reached=_offsets(task, folded))).items():
            folded[partition] = _add(folded.get(partition), summary)
        check_topic(request.kafka, chosen)
        if request.follow and progress is not None:
            done = sum(each.messages for each in folded.values())
            progress(done, done)

    if chosen.messages or request.follow:
        messages = stream_messages(session, request.kafka, chosen, request.offsets_per_batch)
        Micro(request.kafka, chosen, Path(task.root), fold, follow=request.follow).run(messages)
    return folded


def _offsets(task: FoldTask, done: Mapping[int, PartitionSummary]) -> dict[int, int]:
    """Partition → offset that its store has reached for certain. One that begins with the topic may be a new one."""
    held = {each: start for each, start in task.start.items() if start > task.low[each]}
    return held | {each: summary.offset for each, summary in done.items()}


def _check_stores(root: Path, keyspace: str, chosen: Range, offsets: Mapping[int, int]) -> None:
    """Refuses stores that are not those which the tasks have completed, or whose layout is of another topic.

    An owner would look for their keys in other partitions; the live consumer refuses these too.
    """
    topic = Topic(chosen.topic, chosen.topic_id, len(chosen.end))
    for partition in chosen.end:
        directory = partition_directory(root, keyspace, partition)
        manifest = read_manifest(directory)
        if manifest is None or manifest.offset != offsets.get(partition):
            raise not_shared(f"{directory} is not the store that a task completed at {offsets.get(partition)}")
        check_layout(manifest.layout, topic)


def _add(before: PartitionSummary | None, now: PartitionSummary) -> PartitionSummary:
    """The total of two tasks of a partition, one after the other."""
    if before is None:
        return now
    return PartitionSummary(
        partition=now.partition,
        start=before.start,
        offset=now.offset,
        messages=before.messages + now.messages,
        rows=before.rows + now.rows,
        dead_letters=before.dead_letters + now.dead_letters,
        entries=now.entries,
        digest=now.digest,
        seconds=round(before.seconds + now.seconds, 3),
    )


def checkpoint_offsets(stores: Mapping[int, Path]) -> dict[int, int]:
    """Partition → next offset of checkpoints or rebuilds; raises `RebuildError` ``not_a_checkpoint``."""
    offsets: dict[int, int] = {}
    for partition, directory in stores.items():
        manifest = read_manifest(directory)
        if manifest is None or manifest.offset < 0:
            raise RebuildError(
                f"{directory} is a live store without a fixed offset",
                hint="give an owner's checkpoint, or a directory that `freshet rebuild --to` wrote",
                code="not_a_checkpoint",
            )
        offsets[partition] = manifest.offset
    return offsets


def checkpoint_begins(stores: Mapping[int, Path]) -> dict[int, int]:
    """Partition → the offset at which the state of a checkpoint began. Raises `StoreError`."""
    begins: dict[int, int] = {}
    for partition, directory in stores.items():
        with StoreView(directory) as view:
            begins[partition] = view.head.begin
    return begins


def _copy_stores(stores: Mapping[int, Path], keyspace: str, root: Path) -> None:
    """Copies stores below ``root``. Raises `RebuildError`, with the code of a store that can't be written."""
    for partition, source in stores.items():
        try:
            shutil.copytree(source, partition_directory(root, keyspace, partition), copy_function=_link)
        except OSError as error:
            raise rebuild_error(error, str(root)) from error


def _link(source: str, target: str) -> None:
    """Hard-links an SST, which never changes; copies everything else.

    Raises `RebuildError`: of ``OSError`` the copying of a directory keeps only the text, and goes on to the next file.
    """
    try:
        if source.endswith(".sst"):
            with suppress(OSError):  # another file system
                os.link(source, target)
                return
        shutil.copy2(source, target)
    except OSError as error:
        raise rebuild_error(error, target) from error


@contextmanager
def progress_reported(root: Path, chosen: Range, progress: Progress | None) -> Iterator[None]:
    """Reports the progress of the tasks every `PROGRESS_INTERVAL_S` until the block ends."""
    if progress is None:
        yield
        return
    done = threading.Event()

    best = dict(chosen.start)

    def report() -> None:
        for partition, offset in offsets_reached(root).items():
            best[partition] = max(best[partition], min(offset, chosen.end[partition]))
        progress(sum(best.values()) - sum(chosen.start.values()), chosen.messages)

    def watch() -> None:
        while not done.wait(PROGRESS_INTERVAL_S):
            report()

    thread = threading.Thread(target=watch, name="rebuild-progress", daemon=True)
    thread.start()
    try:
        yield
        done.set()
        thread.join()
        progress(chosen.messages, chosen.messages)
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    from spark_jobs.submitted import main

    main("rebuild")
