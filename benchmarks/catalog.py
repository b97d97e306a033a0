"""The catalog cache on a metastore 4.0.1 over MariaDB: traffic, and a catalog's first publication."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bootstrap import THREADS, fill
from benchmarks.child import TIMEOUT_S, measure_within
from freshet.local.hive.server import HiveServer
from freshet.local.hive.site import MetastoreDatabase
from freshet.local.mariadb import MariaDBServer
from stream.kafka.connection import KafkaCluster


def measured(
    kafka: KafkaCluster,
    say: Callable[[str], None],
    *,
    seconds: float,
    reads: int,
    writes: int,
    fact_partitions: int,
    tables: int,
    partitions: int,
) -> dict[str, Any]:
    """Starts the servers and measures.

    ``fact_partitions``: of each fact table under load. ``tables``, ``partitions`` of each: of the first publication.
    """
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        home = Path(directory)
        with MariaDBServer(home / "mariadb", durable=False) as server:
            database = MetastoreDatabase(server.address, "hms")
            with HiveServer(home / "hive", database=database, heap="1g", quick_start=False) as hive:
                at = {"host": hive.host, "port": hive.port}
                say(f"(h) {reads} reads/s and {writes} writes/s for {seconds:.0f} s")
                rates = {"reads": reads, "writes": writes, "partitions": fact_partitions}
                found = {
                    "load": measure_within(
                        TIMEOUT_S + 3 * seconds, "catalog_load:load", kafka=kafka, **at, traffic_s=seconds, **rates
                    )
                }
                say(f"(h) making {tables} tables with {partitions} partitions each")
                fill(hive.host, hive.port, database, tables, partitions)
                say("(h) reading them directly, and publishing them")
                within_s = TIMEOUT_S + tables / 10
                for _ in range(2):  # the server's first answers are its slowest
                    found["direct"] = measure_within(within_s, "bootstrap:direct", **at, threads=THREADS)
                found["bootstrap"] = measure_within(within_s, "bootstrap:source", **at, partitions=tables * partitions)
                found["bootstrap"] |= {"tables": tables, "partitions": tables * partitions}
    return found
