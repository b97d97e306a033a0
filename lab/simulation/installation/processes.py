"""The product's processes, wired as their commands wire them (`freshet.commands`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from consumers.process.loop import ConsumptionSettings
from consumers.process.run import OwnerSettings, serve
from lab.simulation.kernel.scheduler import Kernel
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import RETENTION_MS_MIN, ensure_topics
from stream.publish.publisher import Publisher
from stream.wire.keys import Layout

KAFKA: Final = KafkaCluster("kafka:9092")
KEYSPACE: Final = "shop"
SHARD: Final = "shop/0"
COMMIT_INTERVAL_S: Final = 1.0


def new_publisher(partitions: int) -> Callable[[], Publisher]:
    """What `freshet.commands.source.publishers` returns."""

    def make() -> Publisher:
        ensure_topics(KAFKA, KEYSPACE, partitions, replication=1, retention_ms=RETENTION_MS_MIN)
        return Publisher(KAFKA, KEYSPACE, SHARD, Layout(partitions))

    return make


def start_consumer(kernel: Kernel, name: str, data_dir: Path) -> None:
    """``freshet consume``: folds, commits, announces, and answers the owner protocol."""
    settings = ConsumptionSettings(KAFKA, (KEYSPACE,), data_dir, commit_interval_s=COMMIT_INTERVAL_S)
    kernel.run_task(name, lambda: serve(settings, OwnerSettings()))
