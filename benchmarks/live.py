"""(l) The live pipeline at full rate: MariaDB's binlog → source and publisher → Kafka → consumer → visible.

The binlog is there before, so that the server does not take a core from those who are measured. `freshet source` and
the consumer run as processes, as in production. The rate counts from the first transactions that a reader at the owner
can see until the last one is visible in all partitions, so that nobody's start counts.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.deployed import Deployment
from benchmarks.latency import observing, seen_by
from benchmarks.source import DATABASE, Logged, let_start_at, logged
from benchmarks.workload import number_of
from freshet.local.mariadb import MariaDBServer
from stream.kafka.connection import KafkaCluster


def live(kafka: KafkaCluster, transactions: int, rounds: int, warm_up: int) -> dict[str, Any]:
    """Single-row transactions per second from the binlog to visible, in ``rounds``. Runs in a child process.

    ``warm_up``: rounds before, in which the broker compiles its own code, beside those who are measured.
    """
    with logged(transactions) as log:
        return {"rounds": [_round(log, kafka) for _ in range(warm_up + rounds)][warm_up:]}


def _round(log: Logged, kafka: KafkaCluster) -> dict[str, Any]:
    server, start, described, end = log
    keyspace = f"live{time.time_ns()}"
    let_start_at(kafka, keyspace, start, described)
    with (
        tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory,
        observing(kafka, keyspace, number_of(end)) as observer,
    ):
        deployed = Deployment(Path(directory), kafka, (keyspace,), more=_source_settings(server, keyspace))
        try:
            deployed.start_source("mariadb", keyspace)
            seen, consumer_s = seen_by(observer)
            source_s = deployed.processor_seconds()["source"]
        finally:
            deployed.stop()
    began, number = min(next(move for move in moves if move[1] > number_of(start)) for moves in seen.values())
    seconds = max(moves[-1][0] for moves in seen.values()) - began
    count = number_of(end) - number_of(start)
    return {
        "transactions_s": (number_of(end) - number) / seconds,
        "source_cpu_us": 1e6 * source_s / count,
        "consumer_cpu_us": 1e6 * consumer_s / count,
    }


def _source_settings(server: MariaDBServer, keyspace: str) -> str:
    address = server.address
    return (
        f'[keyspaces.{keyspace}.source]\nkind = "mariadb"\nhost = "{address.host}"\nport = {address.port}\n'
        f'user = "{address.user}"\npassword = "{address.password}"\ndatabases = ["{DATABASE}"]\n'
    )
