"""(g) Catching up with one and with two workers: ``freshet consume --workers N`` on a topic that is full.

Counted from the first partition taken until each is ready where it stays: starting the processes does not count,
what a partition costs that moves between workers does.
"""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.deployed import Deployment, processor_s
from benchmarks.workload import PARTITIONS
from stream.kafka.connection import KafkaCluster

COUNTS: Final = (1, 2)


def catch_up(kafka: KafkaCluster, keyspace: str, events: int, workers: int) -> dict[str, Any]:
    """Rows per second of ``workers`` workers together, and their processor time. Runs in a child process."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        deployed = Deployment(Path(directory), kafka, (keyspace,), workers=workers)
        try:
            deployed.start_consumer(until="partition is ready", count=PARTITIONS)
            cpu = _processor_seconds(deployed)
            taken, ready = deployed.logged("partition taken"), deployed.logged("partition is ready")
        finally:
            deployed.stop()
    seconds = (max(map(_time, ready)) - min(map(_time, taken))).total_seconds()
    return {"rows_s": events / seconds, "seconds": seconds, "cpu_s": cpu, "partitions_taken": len(taken)}


def _time(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["timestamp"])


def _processor_seconds(deployed: Deployment) -> float:
    assert deployed.consumer is not None
    first = psutil.Process(deployed.consumer.pid)
    return processor_s(first, *first.children(recursive=True))
