"""(d) Time from the publisher's input until an event is visible at the owner, at a fixed rate.

The time counts from the moment at which an event is due. There are three processes as in production: a publisher, the
broker, and a consumer with its owner's server. An event is visible when a reader that waits at the owner for its
position is woken, which is when its partition's watermark is at or past it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.child import ROOT, TIMEOUT_S, MeasurementFailed, command, measure
from benchmarks.materialize import as_in_production, settings_for
from benchmarks.percentiles import percentiles_ms
from benchmarks.topics import is_frame, make_publisher, publish
from benchmarks.workload import KEYS, PARTITIONS, START_POSITION, START_SECONDS, number_of, transactions
from consumers.owner.partitions import Partition
from consumers.process.run import ConsumerProcess, OwnerSettings
from freshet.settings import PublisherSettings
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import events_topic

WARM_UP_S: Final = 2.0
KEYSPACE: Final = "latency"
Moves = list[tuple[float, int]]
"""(monotonic seconds, number of the watermark's transaction), in rising order."""


def latency(kafka: KafkaCluster, rate: int, seconds: float, batch_interval_ms: int | None = None) -> dict[str, Any]:
    """Percentiles of input → visible at ``rate`` single-row transactions per second, and what they cost in Kafka."""
    interval = batch_interval_ms or PublisherSettings().batch_interval_ms
    keyspace = f"{KEYSPACE}{time.time_ns()}"
    publish(kafka, keyspace, transactions(1_000))
    first = 1_002
    count = int(rate * (seconds + WARM_UP_S))
    last = first + count - 1
    topic = events_topic(kafka, keyspace)
    begins = end_offsets(kafka, topic, range(PARTITIONS))
    with observing(kafka, keyspace, last) as observer:
        sent = measure(
            "latency:publish_at_rate",
            kafka=kafka,
            keyspace=keyspace,
            rate=rate,
            count=count,
            batch_interval_ms=interval,
        )
        moves, _ = seen_by(observer)
    waits = _waits(moves, first, last, sent["began"], rate)
    kept = waits[int(rate * WARM_UP_S) :]
    ends = end_offsets(kafka, topic, range(PARTITIONS))
    frames = sum(
        is_frame(message.value() or b"")
        for partition, end in ends.items()
        for message in read_range(kafka, topic, partition, begins[partition], end)
    )
    return {
        "rate": rate,
        "batch_interval_ms": interval,
        "events": len(kept),
        "kafka_transactions_s": sent["batches"] * rate / count,
        "frames_s": frames * rate / count,
        "input_late_ms_p99": sent["late_ms_p99"],
        **percentiles_ms(kept),
    }


@contextmanager
def observing(kafka: KafkaCluster, keyspace: str, last: int) -> Iterator[subprocess.Popen[str]]:
    """`observe` in a process of its own, which is ready."""
    observer = subprocess.Popen(
        command("latency:observe", kafka=kafka, keyspace=keyspace, last=last),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert observer.stdout is not None
        observer.stdout.readline()  # ready
        yield observer
    finally:
        if observer.poll() is None:
            observer.kill()


def seen_by(observer: subprocess.Popen[str]) -> tuple[dict[int, Moves], float]:
    """Waits for the end of `observe`. Returns partition → moves, and its seconds of processor time meanwhile.

    Raises `MeasurementFailed`.
    """
    out, error = observer.communicate(timeout=TIMEOUT_S)
    if observer.returncode != 0:
        raise MeasurementFailed(error[-2000:])
    found = json.loads(out.splitlines()[-1])
    return {int(number): each for number, each in found["moves"].items()}, found["cpu_s"]


def _waits(moves: dict[int, Moves], first: int, last: int, began: float, rate: int) -> list[float]:
    """Seconds from the moment at which each event is due until its partition's watermark reaches it."""
    from stream.wire.keys import Layout

    layout = Layout(len(moves))
    numbers = {partition: [number for _, number in each] for partition, each in moves.items()}
    waits = []
    for index, transaction in enumerate(transactions(last - first + 1, KEYS, seed=2, first=first)):
        partition = layout.partition_of(transaction.changes[0].key)  # type: ignore[union-attr]
        at = bisect_left(numbers[partition], first + index)
        waits.append(moves[partition][at][0] - (began + index / rate))
    return waits


def publish_at_rate(
    kafka: KafkaCluster, keyspace: str, rate: int, count: int, batch_interval_ms: int
) -> dict[str, Any]:
    """Calls `Publisher.publish` for each event when it is due, or as soon as possible. Runs in a child process."""
    with make_publisher(kafka, keyspace, batch_interval_ms=batch_interval_ms) as publisher:
        resume = publisher.open(lambda: (START_POSITION, START_SECONDS))
        history = list(transactions(count, KEYS, seed=2, first=number_of(resume.position) + 1))
        as_in_production()
        late = []
        began = time.monotonic() + 0.1
        for index, transaction in enumerate(history):
            due = began + index / rate
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            publisher.publish(transaction)
            late.append(time.monotonic() - due)
        publisher.flush()
        return {"began": began, "batches": publisher.stats.batches, "late_ms_p99": percentiles_ms(late)["p99_ms"]}


def observe(kafka: KafkaCluster, keyspace: str, last: int) -> dict[str, Any]:
    """Consumes as in production, and records when each partition's watermark moves. Runs in a child process."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        as_in_production()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_observe(kafka, keyspace, last, Path(directory)))


async def _observe(kafka: KafkaCluster, keyspace: str, last: int, directory: Path) -> dict[str, Any]:
    process = ConsumerProcess(settings_for(kafka, keyspace, directory), OwnerSettings())
    await process.start()
    try:
        await asyncio.wrap_future(process.consumption.ready)
        print("ready", flush=True)
        cpu = time.process_time()
        owned = process.consumption.ownership.of(keyspace)
        seen = await asyncio.gather(*(_follow(partition, f"{keyspace}/0", last) for partition in owned))
        moves = {partition.number: each for partition, each in zip(owned, seen, strict=True)}
        return {"moves": moves, "cpu_s": time.process_time() - cpu}
    finally:
        await process.stop()


async def _follow(partition: Partition, shard: str, last: int) -> Moves:
    """Records each move of a partition's watermark up to ``last``, waiting as the owner's `wait` does."""
    loop = asyncio.get_running_loop()
    moves: Moves = []
    while not moves or moves[-1][1] < last:
        moved = loop.create_future()
        partition.waiters[moved] = None
        number = number_of(partition.store.visible.lineages[shard].watermark)
        if not moves or number > moves[-1][1]:
            moves.append((time.monotonic(), number))
            if number >= last:
                break
        await moved
    return moves
