"""The product's processes, wired as their commands wire them (`freshet.commands`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from consumers.process.loop import ConsumptionSettings
from consumers.process.run import OwnerSettings, serve
from lab.simulation.installation.fronts import listen
from lab.simulation.kernel.scheduler import Kernel
from serving.http.front import make_front
from serving.reads.owners import Located
from serving.reads.spaces import RowSpace
from serving.sources.mariadb import MariaDBRows
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from stream.kafka.topics import RETENTION_MS_MIN, ensure_topics
from stream.monitoring import serve_monitoring
from stream.publish.publisher import Publisher
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from stream.sources.metrics import SourceCollector
from stream.wire.keys import Layout
from tokens.errors import FreshetError

KAFKA: Final = KafkaCluster("kafka:9092")
PRIMARY: Final = ConnectionSettings("primary", 3306, user="root")
REPLICA: Final = ConnectionSettings("replica", 3306, user="root")
KEYSPACE: Final = "shop"
SHARD: Final = "shop/0"
TABLES: Final = TableFilter(("shop",))
COMMIT_INTERVAL_S: Final = 1.0
METRICS_PORT: Final = 9_100
VERSION: Final = "simulated"
GivesUp = Callable[[str, FreshetError], None]
"""Called by a process that ends with an error of one line, for its supervisor to start it again."""


def start_source(
    kernel: Kernel, name: str, partitions: int, server_id: int, gives_up: GivesUp, *, new_epoch: bool = False
) -> None:
    """``freshet source mariadb``: binlog, publisher, Kafka."""

    def new_publisher() -> Publisher:
        ensure_topics(KAFKA, KEYSPACE, partitions, replication=1, retention_ms=RETENTION_MS_MIN)
        return Publisher(KAFKA, KEYSPACE, SHARD, Layout(partitions))

    options = SourceOptions(PRIMARY, SHARD, TABLES, server_id=server_id, new_epoch=new_epoch)
    source = MariaDBSource(options, new_publisher)

    def run() -> None:
        registry = CollectorRegistry()
        registry.register(SourceCollector(KEYSPACE, SHARD, source.status))
        place = "127.0.0.1", METRICS_PORT
        serve_monitoring(place, registry, lambda: source.status.not_ready, version=VERSION)
        try:
            source.run()
        except FreshetError as error:
            gives_up(name, error)

    kernel.spawn(name, run, "source")


def start_consumer(kernel: Kernel, name: str, data_dir: Path, gives_up: GivesUp) -> None:
    """``freshet consume``: folds, commits, announces, and answers the owner protocol."""
    settings = ConsumptionSettings(KAFKA, (KEYSPACE,), data_dir, commit_interval_s=COMMIT_INTERVAL_S)

    async def run() -> None:
        try:
            await serve(settings, OwnerSettings(metrics_port=METRICS_PORT, version=VERSION))
        except FreshetError as error:
            gives_up(name, error)

    kernel.run_task(name, run)


def start_front(kernel: Kernel, name: str, partitions: int, port: int, server: ConnectionSettings) -> None:
    """``freshet serve``: finds owners, reads through, answers HTTP."""

    def start() -> None:
        reader = LocationsReader(KAFKA).start(patient=True)
        space = RowSpace(KEYSPACE, Layout(partitions), "shop", MariaDBRows(server, SHARD, TABLES))
        front = make_front([space], _locate(reader))
        kernel.run_task(name, lambda: listen(front, port))

    kernel.spawn(name, start, "serve")


def _locate(reader: LocationsReader) -> Callable[[str, int], Located | None]:
    def locate(keyspace: str, partition: int) -> Located | None:
        found = reader.owner_of(keyspace, partition)
        return Located(found.address, found.topic_id) if found is not None else None

    return locate
