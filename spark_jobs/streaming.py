"""The Structured Streaming query of a rebuild: it gives each micro-batch to the tasks that fold it.

The partitions' stores carry the state from one micro-batch to the next, and commit their offsets with their entries.
So they decide where a run begins, not Spark: each run is a new query from the stores' offsets, with a checkpoint of its
own that nobody needs afterwards. A micro-batch or task that Spark repeats finds its messages folded, and skips them.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from spark_jobs.engine.executors import unfit
from spark_jobs.engine.kafka_options import kafka_options
from spark_jobs.offsets import Range, check_topic, offsets_json
from spark_jobs.output import PartitionSummary, RebuildError
from spark_jobs.partition import RESULT_SCHEMA, FoldTask, complete_task, run_task
from spark_jobs.session import connector_missing, signals_deferred
from stream.kafka.connection import KafkaCluster
from tokens.errors import FreshetError

OFFSETS_PER_BATCH: Final = 10_000_000
"""Of one micro-batch. What is folded becomes durable earlier, whenever a task spills."""
FOLLOW_INTERVAL: Final = "1 second"
"""How often a query that follows the topic looks for new messages."""
POLL_S: Final = 0.2
CHECKPOINT_PREFIX: Final = ".spark-"

READER_OPTIONS: Final = {
    "failOnDataLoss": "true",
    "includeHeaders": "false",
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""``fetch.max.wait.ms``: Spark reads what is there. A fetch that waits at the topic's end would hold up the
consumer's next request, by half a second a task.

Never set ``minPartitions`` or ``maxRecordsPerPartition``: they would split a partition over several tasks.
"""


def stream_messages(session: Any, kafka: KafkaCluster, chosen: Range, offsets_per_batch: int) -> Any:
    """The topic's committed messages from ``chosen.start`` on, as a streaming data frame of the Kafka source.

    Raises `SparkUnavailable` ``spark_unfit`` if this Spark has no such source.
    """
    from pyspark.errors import AnalysisException

    reader = (
        session.readStream.format("kafka")
        .options(**READER_OPTIONS)
        .options(**kafka_options(kafka))
        .option("assign", json.dumps({chosen.topic: sorted(chosen.end)}))
        .option("startingOffsets", offsets_json(chosen.topic, chosen.start))
        .option("maxOffsetsPerTrigger", offsets_per_batch)
    )
    try:
        return reader.load()
    except AnalysisException as error:
        if "Failed to find data source" not in str(error):
            raise
        raise connector_missing() from error


class Micro:
    """Runs a streaming query whose micro-batches a function handles, up to the ends of a range.

    ``handle`` gets the data frame of a micro-batch and its number; it ignores what is at or beyond ``chosen.end``.
    ``follow``: without an end, until KeyboardInterrupt, which ends the query between two micro-batches.
    """

    def __init__(
        self,
        kafka: KafkaCluster,
        chosen: Range,
        root: Path,
        handle: Callable[[Any, int], None],
        *,
        follow: bool = False,
    ) -> None:
        self._kafka = kafka
        self._chosen = chosen
        self._follow = follow
        self._root = root
        self._handle = handle
        self._query: Any = None
        self._failures: list[FreshetError] = []
        self._stopping = False
        self._handling = threading.Lock()

    def run(self, messages: Any) -> None:
        """Runs the query over ``messages``.

        Raises the `FreshetError` of a micro-batch. If Spark failed: as `spark_jobs.offsets.check_topic` where the topic
        is the cause, else `RebuildError`, also if it was stopped before its end.
        """
        with spark_errors():  # where the JVM has died, neither the query nor its progress answers
            self._run(messages)

    def _run(self, messages: Any) -> None:
        from pyspark.errors import PySparkException

        remove_checkpoints(self._root)
        checkpoint = self._root / f"{CHECKPOINT_PREFIX}{secrets.token_hex(4)}"
        trigger = {"processingTime": FOLLOW_INTERVAL} if self._follow else {"availableNow": True}
        writer = messages.writeStream.foreachBatch(self._handled)
        try:
            self._query = writer.option("checkpointLocation", address(checkpoint)).trigger(**trigger).start()
            with signals_deferred() as met:
                while not ((ended := self._query.awaitTermination(POLL_S)) or met or self._is_at_end()):
                    pass
            if not (ended or self._follow or self._is_at_end()):  # what handles the signal has raised nothing
                raise RebuildError("it was stopped before its end", hint="run it again to go on")
        except PySparkException as error:
            failure = self._failures[0] if self._failures else spark_failed(error)
            if failure.code == RebuildError.code:
                check_topic(self._kafka, self._chosen, self.reached())  # Spark's words for it say little
            raise failure from error
        except KeyboardInterrupt as struck:
            if not self._follow or struck.__context__ is not None:  # the query has failed, too
                raise
        finally:
            self._stop()
        remove_checkpoints(self._root)

    def _handled(self, messages: Any, number: int) -> None:
        with self._handling:
            if self._stopping or self._is_at_end():
                return  # the ends are reached, though the topic goes on
            try:
                self._handle(messages, number)
            except FreshetError as failure:
                self._failures.append(failure)  # Spark turns it into a traceback
                raise

    def _stop(self) -> None:
        self._stopping = True
        if self._query is not None:
            if self._follow:
                with self._handling:
                    pass  # what the micro-batch folds is kept
            self._query.stop()

    def _is_at_end(self) -> bool:
        """Whether the micro-batches so far reached the end of each partition. Control records count in Spark too."""
        if self._follow:
            return False
        reached = self.reached()
        return all(reached[partition] >= end for partition, end in self._chosen.end.items())

    def reached(self) -> dict[int, int]:
        """Partition → the end of the last micro-batch that was handled."""
        progress = None if self._query is None else self._query.lastProgress
        ends = {} if progress is None else json.loads(progress.sources[0].endOffset or "{}")
        given = ends.get(self._chosen.topic, {})
        return {partition: given.get(str(partition), start) for partition, start in self._chosen.start.items()}


def remove_checkpoints(root: Path) -> None:
    """Removes what the queries of this and of killed runs left in ``root``."""
    for leftover in root.glob(f"{CHECKPOINT_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def run_tasks(messages: Any, task: FoldTask) -> dict[int, PartitionSummary]:
    """Runs the fold's tasks over a data frame of the Kafka source; partition → summary. Raises as `answers`."""
    return _summaries(answers(messages, partial(run_task, task)))


def answers(messages: Any, task: Callable[[Iterator[Any]], Iterator[Any]]) -> dict[int, str]:
    """Runs a task for each partition of a data frame of the Kafka source; partition → what it answered, as JSON.

    Raises `RebuildError`, with a failed task's code or if Spark failed; `spark_jobs.engine.executors.ExecutorError`.
    """
    return _answers(messages.select("partition", "offset", "value"), task)


def _answers(rows: Any, task: Callable[[Iterator[Any]], Iterator[Any]]) -> dict[int, str]:
    with spark_errors():
        found = rows.mapInArrow(task, RESULT_SCHEMA).collect()
    return {row.partition: answer_of(row.summary, row.error) for row in found}


def _summaries(found: Mapping[int, str]) -> dict[int, PartitionSummary]:
    return {partition: PartitionSummary(**json.loads(answer)) for partition, answer in found.items()}


def complete_stores(session: Any, task: FoldTask) -> dict[int, PartitionSummary]:
    """Completes the stores, side by side; partition → summary with digest. Raises as `run_tasks`.

    By ``mapInArrow`` too: Spark has other Python workers for its RDDs, which would be started for this alone. Without
    digests there is next to nothing to do, and the driver does it.
    """
    count = len(task.low)
    if not task.digests:
        import pyarrow as pa

        given = pa.RecordBatch.from_arrays([pa.array(range(count))], names=["id"])
        found = [row for answer in complete_task(task, iter([given])) for row in answer.to_pylist()]
        return _summaries({row["partition"]: answer_of(row["summary"], row["error"]) for row in found})
    return _summaries(_answers(session.range(0, count, numPartitions=count), partial(complete_task, task)))


def answer_of(answer: str | None, error: str | None) -> str:
    """What a task answered. Raises `RebuildError` with its error."""
    if error is not None:
        failure = json.loads(error)
        raise RebuildError(failure["message"], hint=failure["hint"], code=failure["code"])
    return answer or ""


def address(path: Path) -> str:
    """A local path as Spark takes it, which decodes nothing in it."""
    return f"file://{path}"


@contextmanager
def spark_errors() -> Iterator[None]:
    """Has what Spark raises within the block raised as `spark_failed` tells it; other errors pass."""
    from pyspark.errors import PySparkException

    try:
        yield
    except Exception as error:
        # py4j's own, such as those of Java code that PySpark does not know; and what a JVM that has died answers to it
        if isinstance(error, PySparkException | ConnectionError) or any(
            each.__module__ == "py4j.protocol" for each in type(error).__mro__
        ):
            raise spark_failed(error) from error
        raise


def spark_failed(error: Exception) -> FreshetError:
    """Spark's error in one line: what an executor lacks, else the innermost cause."""
    lacking = unfit(error)
    if lacking is not None:
        return lacking
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    cause = causes[-1].removeprefix("Caused by: ") if causes else (lines or [type(error).__name__])[0]
    if isinstance(error, ConnectionError):
        cause = f"its JVM has ended ({cause})"
    return RebuildError(f"Spark failed: {cause[:400]}", hint="look at Spark's log (--spark-log); run it again to go on")
