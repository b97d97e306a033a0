"""Rebuild: folds a keyspace's topic anew, up to given offsets, into new store directories.

One Spark task reads one Kafka partition from beginning to end, committed transactions only, and folds it with the live
consumer's fold (`spark_jobs.partition`). Run by ``freshet rebuild`` or ``spark-submit`` (docs/operating/rebuild.md).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from consumers.fold.state import FOLD_VERSION
from consumers.store.manifest import read_manifest
from consumers.store.store import StoreView, partition_directory
from spark_jobs.beginning import check_beginnings
from spark_jobs.kafka_options import kafka_options
from spark_jobs.offsets import Range, choose_range, topic_bounds
from spark_jobs.output import (
    PartitionSummary,
    RebuildError,
    RebuildReport,
    check_target,
    find_stores,
    staged,
    write_report,
)
from spark_jobs.partition import (
    RESULT_SCHEMA,
    SPILL_ROWS,
    FoldTask,
    clear_progress,
    offsets_reached,
    run_task,
)
from stream.kafka.connection import DEFAULT_PREFIX, KafkaCluster
from stream.kafka.topics import events_topic
from tokens.errors import FreshetError

PROGRESS_INTERVAL_S: Final = 0.5

Progress = Callable[[int, int], None]
"""Called periodically with the number of offsets read so far and in total."""

READER_OPTIONS: Final = {
    "failOnDataLoss": "true",
    "includeHeaders": "false",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""Never set ``minPartitions`` or ``maxRecordsPerPartition``: they would split a partition over several tasks."""


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """What to rebuild. ``ends``: partition → next offset (None: all that is committed now).

    ``base`` is a checkpoint or an earlier rebuild of the same topic. Its stores are copied and continued.
    """

    keyspace: str
    kafka: KafkaCluster
    target: Path
    ends: Mapping[int, int] | None = None
    base: Path | None = None
    spill_rows: int = SPILL_ROWS
    begins: Mapping[int, int] | None = None
    """Partition → where a new store begins (None: at 0). A store is equal to another only if both began there."""


def prepare(request: RebuildRequest) -> tuple[Range, dict[int, Path]]:
    """The range to read and the stores to continue, checked without Spark. Raises as `rebuild` does."""
    check_target(request.target)
    bounds = topic_bounds(request.kafka, events_topic(request.kafka, request.keyspace))
    bases = {} if request.base is None else find_stores(request.base, request.keyspace)
    starts = checkpoint_offsets(bases) if bases else request.begins if any((request.begins or {}).values()) else None
    return choose_range(bounds, request.ends, starts), bases


def check_request(request: RebuildRequest) -> None:
    """Checks a request before a JVM is started. Raises as `prepare` and `check_beginnings` do."""
    chosen, bases = prepare(request)
    if not bases and not any((request.begins or {}).values()):
        check_beginnings(request.kafka, chosen)


def rebuild(session: Any, request: RebuildRequest, *, progress: Progress | None = None) -> RebuildReport:
    """Folds the topic into ``request.target``, which appears complete or not at all.

    Raises `OffsetsError`, `RebuildError`, `consumers.store.errors.StoreError`.
    """
    chosen, bases = prepare(request)
    with staged(request.target) as root:
        _copy_stores(bases, request.keyspace, root)
        task = FoldTask(request.keyspace, chosen.topic_id, str(root), chosen.low, chosen.start, request.spill_rows)
        task = replace(task, begin=dict(request.begins or {}))
        started = time.monotonic()
        with progress_reported(root, chosen, progress):
            summaries = _run(session, task, request.kafka, chosen)
        seconds = time.monotonic() - started
        report = RebuildReport(
            request.keyspace, chosen.topic, chosen.topic_id, FOLD_VERSION, chosen.end, summaries, round(seconds, 3)
        )
        clear_progress(root)
        write_report(root, report)
    return report


def _run(session: Any, task: FoldTask, kafka: KafkaCluster, chosen: Range) -> tuple[PartitionSummary, ...]:
    found: dict[int, PartitionSummary] = {}
    if chosen.messages:
        messages = (
            session.read.format("kafka")
            .options(**READER_OPTIONS)
            .options(**kafka_options(kafka))
            .option("assign", json.dumps({chosen.topic: sorted(chosen.end)}))
            .option("startingOffsets", offsets_json(chosen.topic, chosen.start))
            .option("endingOffsets", offsets_json(chosen.topic, chosen.end))
            .load()
        )
        found = run_tasks(messages, task)
    # Spark makes no task for an empty range, and a task without messages does not know its partition
    for partition in chosen.end.keys() - found.keys():
        with task.open(partition) as fold:
            found[partition] = fold.finish()
    return tuple(found[partition] for partition in sorted(found))


def run_tasks(messages: Any, task: FoldTask) -> dict[int, PartitionSummary]:
    """Runs the tasks over a data frame of the Kafka source; partition → summary.

    Raises `RebuildError`, with a failed task's code or if Spark failed.
    """
    from pyspark.errors import PySparkException

    columns = messages.select("partition", "offset", "value")
    try:
        rows = columns.mapInArrow(partial(run_task, task), RESULT_SCHEMA).collect()
    except PySparkException as error:
        raise spark_failed(error) from error
    except Exception as error:
        if type(error).__name__ != "Py4JJavaError":
            raise
        raise spark_failed(error) from error
    for row in rows:
        if row.error is not None:
            failure = json.loads(row.error)
            raise RebuildError(failure["message"], hint=failure["hint"], code=failure["code"])
    return {row.partition: PartitionSummary(**json.loads(row.summary)) for row in rows}


def spark_failed(error: Exception) -> RebuildError:
    """Spark's error in one line: the innermost cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    cause = causes[-1].removeprefix("Caused by: ") if causes else (lines or [type(error).__name__])[0]
    return RebuildError(f"Spark failed: {cause[:400]}", hint="look at Spark's log (--spark-log)")


def offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets in the JSON form that Spark's Kafka source takes."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})


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
    for partition, source in stores.items():
        shutil.copytree(source, partition_directory(root, keyspace, partition), copy_function=_link)


def _link(source: str, target: str) -> None:
    """Hard-links an SST, which never changes; copies everything else."""
    if source.endswith(".sst"):
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)  # another file system
    else:
        shutil.copy2(source, target)


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


def main(arguments: list[str] | None = None) -> int:
    """``spark-submit spark_jobs/rebuild.py``: prints the report as JSON, or an error and exit code 1."""
    from spark_jobs.offsets import parse_offsets
    from spark_jobs.session import spark_session

    parser = argparse.ArgumentParser(description="Fold a keyspace's topic anew, up to given offsets.")
    parser.add_argument("--keyspace", required=True)
    parser.add_argument("--bootstrap", required=True, help="Kafka, as host:port")
    parser.add_argument("--prefix", default=DEFAULT_PREFIX, help="kafka.prefix of the installation")
    parser.add_argument("--to", required=True, type=Path, help="a directory that all executors and the driver share")
    parser.add_argument("--to-checkpoint", type=Path, help="stop at the offsets of this checkpoint")
    parser.add_argument("--offsets", help='stop at these offsets: {"0": 17, ...}')
    parser.add_argument("--base", type=Path, help="continue this checkpoint or rebuild")
    given = parser.parse_args(arguments)
    try:
        ends = None if given.offsets is None else parse_offsets(given.offsets)
        if given.to_checkpoint is not None:
            ends = checkpoint_offsets(find_stores(given.to_checkpoint, given.keyspace))
        request = RebuildRequest(
            given.keyspace, KafkaCluster(given.bootstrap, prefix=given.prefix), given.to, ends, given.base
        )
        check_request(request)
        with spark_session(f"freshet rebuild {given.keyspace}") as session:
            report = rebuild(session, request)
    except FreshetError as error:
        print(f"error[{error.code}]: {error}\nhint: {error.hint}", file=sys.stderr)
        return 1
    print(json.dumps({"directory": str(given.to), **report.as_json()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
