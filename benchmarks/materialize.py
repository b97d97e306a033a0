"""(a) Materialize: the consumer's own loop from a topic's first record until everything is durable; and raw consume.

Each runs alone in a process, on the same topic, with the consumer's librdkafka settings. Both are timed from the
assignment of the partitions: the first fetch counts, but connecting and joining the group do not.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import TopicPartition

from benchmarks.workload import TABLE
from consumers.owner.partitions import Ownership, Partition
from consumers.process.committing import STEP_S
from consumers.process.kafka_output import Rejected
from consumers.process.loop import BATCH_MESSAGES, Consumption, ConsumptionSettings
from consumers.store.index import Index, values_of
from freshet.settings import ConsumerSettings
from stream.interpreter import prepare_to_answer
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, open_consumer, poll_batch
from stream.kafka.topics import describe_topic, events_topic

WATCH_S = 0.002
"""Between two looks at whether all is folded; so often an index is asked, too."""


class CountingOutput:
    """A consumer's output without Kafka: it counts dead letters and announcements."""

    def __init__(self) -> None:
        self.ready = 0
        self.dead = 0

    def bury(self, _: Partition, rejected: Sequence[Rejected]) -> Future[None]:
        """Counts dead letters."""
        self.dead += len(rejected)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def announce(self, *_: Any, **__: Any) -> None:
        """Counts a partition that has caught up."""
        self.ready += 1

    def withdraw(self, *_: Any, **__: Any) -> None:
        """Nothing to do."""

    def is_succeeded(self, *_: Any, **__: Any) -> bool:
        """Nobody is told of its partitions."""
        return True

    def ask_for_hot(self, *_: Any, **__: Any) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def as_in_production() -> None:
    """Applies the interpreter settings of a consuming process (`consumers.process.run.run_consumer`)."""
    prepare_to_answer()


def settings_for(
    kafka: KafkaCluster, keyspace: str, data_dir: Path, indexes: tuple[Index, ...] = ()
) -> ConsumptionSettings:
    """The defaults of `freshet consume`, with a separate consumer group."""
    defaults = ConsumerSettings()
    return ConsumptionSettings(
        kafka=kafka,
        keyspaces=(keyspace,),
        data_dir=data_dir,
        group=f"bench-{keyspace}-{time.time_ns()}",
        commit_rows=defaults.commit_rows,
        commit_interval_s=defaults.commit_interval_ms / 1000,
        overlay_bytes=defaults.overlay_bytes,
        indexes={keyspace: indexes},
    )


def materialize(
    kafka: KafkaCluster, keyspace: str, events: int, indexed: str = "", *, asked: bool = False
) -> dict[str, Any]:
    """Rows per second from the assignment until everything is folded and durable. Runs in a child process.

    ``indexed``: a column that has an index; "": none has. ``asked``: somebody looks for a row by it all the time.
    """
    index = Index(TABLE, (indexed,))
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        settings = settings_for(kafka, keyspace, Path(directory), (index,) if indexed else ())
        ownership, kafka_output = Ownership(settings.data_dir), CountingOutput()
        consumption = Consumption(settings, ownership, kafka_output, lambda _: None)
        commits: list[float] = []
        consumption.commit_seconds.append(commits.append)
        as_in_production()
        folding = threading.Thread(target=consumption.run, name="fold")
        folding.start()
        partitions = describe_topic(kafka, events_topic(kafka, keyspace)).partitions
        _until(folding, lambda: len(ownership) == partitions)
        began, cpu = time.perf_counter(), time.process_time()
        owned = list(ownership)
        turns = cycle(owned)

        def is_folded() -> bool:
            if asked:
                each = next(turns)
                each.store.having(index, values_of([each.position]), 1)
            return kafka_output.ready == partitions

        _until(folding, is_folded)
        folded = time.perf_counter()
        consumption.stop()
        _until(folding, lambda: not any(each.store.is_dirty for each in owned))
        durable, cpu = time.perf_counter(), time.process_time() - cpu
        folding.join()
        if kafka_output.dead or min(each.position for each in owned) <= 0:
            raise AssertionError(f"{kafka_output.dead} dead letters")
        return {
            "rows_s": events / (durable - began),
            "seconds": durable - began,
            "folded_s": folded - began,
            "cpu_s": cpu,
            "commits": len(commits),
            "commit_ms_max": 1000 * max(commits, default=0),
            "messages": sum(each.events for each in owned),
            "rss_mb": psutil.Process().memory_info().rss / 1e6,
        }


def _until(folding: threading.Thread, condition: Any) -> None:
    while not condition():
        if not folding.is_alive():
            if condition():
                return
            raise AssertionError("the folding thread ended early")
        time.sleep(WATCH_S)


def raw_consume(kafka: KafkaCluster, keyspace: str, events: int) -> dict[str, Any]:
    """Rows per second of consuming the same records and reading each value's size. Runs in a child process."""
    topic = events_topic(kafka, keyspace)
    partitions = range(describe_topic(kafka, topic).partitions)
    ends = end_offsets(kafka, topic, list(partitions))
    consumer = open_consumer(kafka, f"bench-raw-{time.time_ns()}", {"enable.partition.eof": True})
    as_in_production()
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    messages = size = 0
    while True:
        batch = poll_batch(consumer, BATCH_MESSAGES, STEP_S)
        for message in batch:
            size += len(message.value())
        messages += len(batch)
        if len(batch) < BATCH_MESSAGES and _reached(consumer, topic, ends):
            break
    seconds = time.perf_counter() - began
    consumer.close()
    return {"rows_s": events / seconds, "messages_s": messages / seconds, "messages": messages, "bytes": size}


def _reached(consumer: Any, topic: str, ends: dict[int, int]) -> bool:
    places = consumer.position([TopicPartition(topic, partition) for partition in ends])
    return all(place.offset >= ends[place.partition] for place in places)
