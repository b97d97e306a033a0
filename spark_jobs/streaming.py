"""The rebuild as Structured Streaming: continues where the last run ended, up to what is committed now, and stops.

The partitions' stores carry the state from one micro-batch to the next; each commits its offset with its entries. So a
micro-batch that Spark repeats, after a kill between our commit and Spark's, changes nothing. ``DIR/rebuild.json``
exists iff the last run was completed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumers.fold.state import FOLD_VERSION
from consumers.store.errors import StoreError
from consumers.store.manifest import write_atomically
from consumers.store.store import StoreView, partition_directory
from spark_jobs.kafka_options import kafka_options
from spark_jobs.offsets import Range, TopicBounds, topic_bounds
from spark_jobs.output import REPORT_NAME, PartitionSummary, RebuildError, RebuildReport, exclusive, write_report
from spark_jobs.partition import SPILL_ROWS, FoldTask, clear_progress
from spark_jobs.rebuild import READER_OPTIONS, Progress, offsets_json, progress_reported, run_tasks, spark_failed
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import events_topic
from tokens.errors import FreshetError

CHECKPOINT_NAME: Final = "spark-checkpoint"
STATE_NAME: Final = "streaming.json"
OFFSETS_PER_BATCH: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class StreamingRequest:
    """What to rebuild. The first run creates ``target``, later ones continue it."""

    keyspace: str
    kafka: KafkaCluster
    target: Path
    offsets_per_batch: int = OFFSETS_PER_BATCH
    spill_rows: int = SPILL_ROWS


def rebuild_streaming(session: Any, request: StreamingRequest, *, progress: Progress | None = None) -> RebuildReport:
    """Folds what is new in the topic into ``request.target``.

    Raises `OffsetsError`, `consumers.store.errors.StoreError`, `RebuildError` (``state_missing``: a store is missing,
    or behind Spark's checkpoint).
    """
    topic = events_topic(request.kafka, request.keyspace)
    bounds = topic_bounds(request.kafka, topic)
    root = Path(os.path.abspath(request.target))
    with exclusive(root):
        started_from = _resume(root, request.keyspace, bounds)
        (root / REPORT_NAME).unlink(missing_ok=True)
        clear_progress(root)
        task = FoldTask(
            request.keyspace, bounds.topic_id, str(root), bounds.low, started_from, request.spill_rows, complete=False
        )
        started = time.monotonic()
        with progress_reported(root, Range(topic, bounds.topic_id, bounds.low, started_from, bounds.end), progress):
            folded = _follow(session, request, task)
        summaries = _complete(task, folded)
        ends = {summary.partition: summary.offset for summary in summaries}
        seconds = round(time.monotonic() - started, 3)
        report = RebuildReport(request.keyspace, topic, bounds.topic_id, FOLD_VERSION, ends, summaries, seconds)
        clear_progress(root)
        write_report(root, report)
    return report


def _follow(session: Any, request: StreamingRequest, task: FoldTask) -> dict[int, PartitionSummary]:
    """Runs the query to its end; partition → total of its micro-batches."""
    from pyspark.errors import PySparkException

    folded: dict[int, PartitionSummary] = {}
    failures: list[FreshetError] = []

    def fold_batch(messages: Any, _: int) -> None:
        try:
            for partition, summary in run_tasks(messages, task).items():
                folded[partition] = _add_summaries(folded.get(partition), summary)
            _save_offsets(Path(task.root), task, {partition: summary.offset for partition, summary in folded.items()})
        except FreshetError as failure:
            failures.append(failure)  # Spark turns it into a traceback
            raise

    topic = events_topic(request.kafka, request.keyspace)
    query = (
        session.readStream.format("kafka")
        .options(**READER_OPTIONS)
        .options(**kafka_options(request.kafka))
        .option("assign", json.dumps({topic: sorted(task.low)}))
        .option("startingOffsets", offsets_json(topic, task.low))
        .option("maxOffsetsPerTrigger", request.offsets_per_batch)
        .load()
        .writeStream.foreachBatch(fold_batch)
        .option("checkpointLocation", str(Path(task.root) / CHECKPOINT_NAME))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except PySparkException as error:
        raise (failures[0] if failures else spark_failed(error)) from error
    finally:
        query.stop()
    return folded


def _add_summaries(before: PartitionSummary | None, now: PartitionSummary) -> PartitionSummary:
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


def _complete(task: FoldTask, folded: Mapping[int, PartitionSummary]) -> tuple[PartitionSummary, ...]:
    """Writes each store's final manifest and digest; a partition without messages gets an empty store."""
    summaries: list[PartitionSummary] = []
    for partition in sorted(task.low):
        with task.open(partition) as fold:
            summaries.append(_add_summaries(folded.get(partition), fold.finish(complete=True)))
    return tuple(summaries)


def _resume(root: Path, keyspace: str, bounds: TopicBounds) -> dict[int, int]:
    """Partition → offset to start from; raises `RebuildError` if the directory can't be continued."""
    path = root / STATE_NAME
    if not path.exists():
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise RebuildError(
                f"{root} exists and is not a streaming rebuild",
                hint="give another directory with --to",
                code="target_exists",
            )
        root.mkdir(exist_ok=True)
        _write_state(root, keyspace, bounds.topic_id, {})
        return dict(bounds.low)
    try:
        state = json.loads(path.read_bytes())
        same = (state["keyspace"], state["topic_id"]) == (keyspace, bounds.topic_id)
        noted = {int(partition): int(offset) for partition, offset in state["offsets"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RebuildError(
            f"{path} is damaged", hint="start again in another directory (--to)", code="state_missing"
        ) from error
    if not same:
        raise RebuildError(
            f"{root} is of {state['keyspace']}, topic id {state['topic_id']}; the topic's id is now {bounds.topic_id}",
            hint="the topic was created anew: start again in another directory (--to)",
            code="state_missing",
        )
    return dict(bounds.low) | {each: _stored_offset(root, keyspace, each, offset) for each, offset in noted.items()}


def _stored_offset(root: Path, keyspace: str, partition: int, offset: int) -> int:
    """The store's offset. Raises `RebuildError` if it is below ``offset``, recorded after the last micro-batch."""
    directory = partition_directory(root, keyspace, partition)
    hint = "Spark's checkpoint would skip what is missing: start again in another directory (--to)"
    try:
        with StoreView(directory) as view:
            found = view.head.offset
    except StoreError as error:
        raise RebuildError(
            f"the store in {directory} can't be read: {error}", hint=hint, code="state_missing"
        ) from error
    if found < offset:
        raise RebuildError(
            f"the store in {directory} ends at offset {found}, but {offset} had been folded",
            hint=hint,
            code="state_missing",
        )
    return found


def _save_offsets(root: Path, task: FoldTask, offsets: dict[int, int]) -> None:
    noted = json.loads((root / STATE_NAME).read_bytes())["offsets"]
    _write_state(root, task.keyspace, task.topic_id, noted | {str(each): at for each, at in offsets.items()})


def _write_state(root: Path, keyspace: str, topic_id: str, offsets: Mapping[Any, int]) -> None:
    fields = {"keyspace": keyspace, "topic_id": topic_id, "offsets": {str(each): at for each, at in offsets.items()}}
    write_atomically(root / STATE_NAME, (json.dumps(fields, indent=1) + "\n").encode())
