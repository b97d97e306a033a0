"""``python -m benchmarks.altered``: one ALTER TABLE, and one new partition, of a table with very many partitions.

A metastore 4.0.1 over MariaDB holds the table; source, consumer and front run as processes. An ALTER TABLE voids all
partitions, since a cascade leaves no event, so the source reads all of them again. Meanwhile the front asks the
metastore for what a reader wants of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.bootstrap import add_partitions, create_table
from benchmarks.child import quiet
from benchmarks.deployed import Deployment, processor_s
from benchmarks.spin import spin
from freshet.local.hive.server import HiveServer
from freshet.local.hive.site import MetastoreDatabase
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBServer
from serving.client import FreshetClient
from serving.client.answers import Objects, Table
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, read_ranges
from stream.kafka.topics import events_topic
from tests.servers.hive_catalog import HiveCatalog

KEYSPACE: Final = "wide"
DB: Final = "wide"
TABLE: Final = "t"
COLUMNS: Final = 20
PARTITIONS: Final = 4
BATCH: Final = 500
WITHIN_S: Final = 1_800.0
POLL_S: Final = 0.01


class Wide:
    """The table's readers, and what is measured of them. ``kafka``: where its topic is."""

    def __init__(self, client: FreshetClient, catalog: HiveCatalog, kafka: KafkaCluster) -> None:
        self._session, self._catalog, self._kafka = client.session(), catalog, kafka
        self._table_id = catalog.table_id(TABLE)
        self._read: dict[int, int] = {}

    def published(self) -> tuple[int, int]:
        """Records of the topic, and their bytes, since this was asked last."""
        topic = events_topic(self._kafka, KEYSPACE)
        ends = end_offsets(self._kafka, topic, range(PARTITIONS))
        ranges = {each: (self._read.get(each, 0), end) for each, end in ends.items()}
        self._read = ends
        sizes = [len(message.value() or b"") for message in read_ranges(self._kafka, topic, ranges)]
        return len(sizes), sum(sizes)

    def table(self) -> Table:
        """Reads the table itself."""
        listed = self._catalog.valid_write_ids(TABLE)
        return self._session.get_table(DB, TABLE, listed, self._table_id, catalog=KEYSPACE, max_wait_ms=0)

    def partitions(self) -> Objects:
        """Reads a few partitions by a filter."""
        listed = self._catalog.valid_write_ids(TABLE)
        wanted: dict[str, Any] = {"catalog": KEYSPACE, "max_wait_ms": 0, "filter": "p >= 'd099990'"}
        return self._session.get_partitions(DB, TABLE, listed, self._table_id, **wanted)

    def until_cached(self, read: Callable[[], Table | Objects]) -> tuple[float, float, int]:
        """Seconds until the cache answers; the longest answer from the metastore until then; how many there were."""
        began, longest_s, count = time.monotonic(), 0.0, 0
        while True:
            asked = time.monotonic()
            found = read()
            ended = time.monotonic()
            if found.served_from == "cache":
                return ended - began, longest_s, count
            longest_s, count = max(longest_s, ended - asked), count + 1
            if ended - began > WITHIN_S:
                raise AssertionError(f"not from the cache: {found.why}")
            time.sleep(POLL_S)


def main() -> int:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.altered", description=__doc__)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        home = Path(directory)
        with MariaDBServer(home / "mariadb", durable=False) as server, KafkaServer(home / "kafka") as kafka:
            database = MetastoreDatabase(server.address, "hms")
            with HiveServer(home / "hive", database=database, heap="1g", quick_start=False) as hive:
                servers = [psutil.Process(pid) for pid in (hive.pid, server.pid)]
                _run(home, hive, kafka.cluster, servers, given.partitions, given.rounds)
    return 0


def _run(
    home: Path, hive: HiveServer, kafka: KafkaCluster, servers: list[psutil.Process], partitions: int, rounds: int
) -> None:
    source = f'kind = "hive"\nuris = ["thrift://{hive.host}:{hive.port}"]\ncatalog = "hive"\npoll_interval_ms = 20\n'
    settings = (
        f'[keyspaces.{KEYSPACE}]\nkind = "catalog"\npartitions = {PARTITIONS}\n[keyspaces.{KEYSPACE}.source]\n{source}'
    )
    with HiveCatalog((hive.host, hive.port), DB) as catalog:
        create_table(catalog.calls, DB, TABLE, columns=COLUMNS, partitioned=True, transactional=True)
        began = time.monotonic()
        for first in range(0, partitions, BATCH):
            values = [f"d{each:06}" for each in range(first, min(first + BATCH, partitions))]
            add_partitions(catalog.calls, DB, TABLE, values, COLUMNS)
        print(f"{partitions:,} partitions made in {time.monotonic() - began:.0f} s; spin {spin():.1f}", flush=True)
        deployment = Deployment(home, kafka, (), more=settings)
        try:
            deployment.start_source("hive", KEYSPACE)
            deployment.start_consumer()
            deployment.start_front()
            with FreshetClient(deployment.url) as client:
                wide = Wide(client, catalog, kafka)
                first_s, _, _ = wide.until_cached(wide.partitions)
                print(f"  first publication: {first_s:.1f} s, {_memory(deployment)}", flush=True)
                for number in range(rounds):
                    _measure(wide, deployment, servers, "ALTER TABLE", lambda n=number: _alter(catalog, n))  # type: ignore[misc]
                    _measure(wide, deployment, servers, "one new partition", lambda n=number: _add(catalog, n))  # type: ignore[misc]
        finally:
            deployment.stop()


def _alter(catalog: HiveCatalog, number: int) -> None:
    txn = catalog.open()
    catalog.alter(TABLE, catalog.allocate(TABLE, txn), v=str(number))
    catalog.commit(txn)


def _add(catalog: HiveCatalog, number: int) -> None:
    txn = catalog.open()
    catalog.allocate(TABLE, txn)
    catalog.add_partitions(TABLE, f"e{number:06}")
    catalog.commit(txn)


def _memory(deployment: Deployment) -> str:
    running = {"source": deployment.source, "consumer": deployment.consumer, "front": deployment.front}
    shown = {name: psutil.Process(each.pid).memory_info().rss / 1e6 for name, each in running.items() if each}
    return "MB: " + ", ".join(f"{name} {each:.0f}" for name, each in shown.items())


def _measure(
    wide: Wide, deployment: Deployment, servers: list[psutil.Process], what: str, change: Callable[[], None]
) -> None:
    """From the end of the COMMIT on."""
    wide.published()
    before, servers_s = deployment.processor_seconds(), processor_s(*servers)
    change()
    table_s, _, _ = wide.until_cached(wide.table)
    parts_s, longest_s, asked = wide.until_cached(wide.partitions)
    used = {name: each - before[name] for name, each in deployment.processor_seconds().items()}
    records, size = wide.published()
    print(
        f"  {what}: the table from the cache after {1000 * table_s:.0f} ms, its partitions after "
        f"{table_s + parts_s:.2f} s ({asked} reads of the metastore until then, the longest {longest_s:.2f} s); topic "
        f"{records:,} records, {size / 1e6:.2f} MB; processor s: metastore and MariaDB "
        f"{processor_s(*servers) - servers_s:.1f}, "
        + ", ".join(f"{name} {each:.1f}" for name, each in used.items())
        + f"; {_memory(deployment)}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
