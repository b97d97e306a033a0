"""``python -m benchmarks.engines``: calls of Hive's client at the Thrift front, beside the same calls at the metastore.

A metastore 4.0.1 over MariaDB holds an external and a transactional table; source, consumer and front run as
processes. One connection to each makes the same calls in turn, and gets the same bytes. Each round begins with a change
of the table, which somebody else makes: until the cache has it, the front passes calls on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.bootstrap import add_partitions, create_table
from benchmarks.child import quiet
from benchmarks.deployed import Deployment
from benchmarks.percentiles import percentiles_ms
from benchmarks.spin import spin
from freshet.local.hive.server import HiveServer
from freshet.local.hive.site import MetastoreDatabase
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBServer
from freshet.local.process import free_ports
from stream.kafka.connection import KafkaCluster
from stream.sources.hive.live.metastore import client_capabilities
from stream.sources.hive.rpc.thrift import long, record, text, texts
from stream.sources.hive.structs import I16, Struct
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.thrift.engines import PROCESSOR, Engine

KEYSPACE: Final = "engines"
DB: Final = "engines"
EXTERNAL: Final = "e"
TRANSACTIONAL: Final = "t"
COLUMNS: Final = 20
NAMED: Final = 10
"""Partitions that are asked for by name."""
WARM: Final = 300
"""Calls of each kind before any counts: the metastore compiles its code for so long."""


def main() -> int:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("--partitions", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=20, help="of each kind, in each round")
    given = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        home = Path(directory)
        with MariaDBServer(home / "mariadb", durable=False) as server, KafkaServer(home / "kafka") as kafka:
            database = MetastoreDatabase(server.address, "hms")
            with HiveServer(home / "hive", database=database, heap="1g", quick_start=False) as hive:
                _run(home, hive, kafka.cluster, given.partitions, given.rounds, given.calls)
    return 0


def _run(home: Path, hive: HiveServer, kafka: KafkaCluster, partitions: int, rounds: int, calls: int) -> None:
    address, [port] = (hive.host, hive.port), free_ports(1)
    settings = (
        f'[keyspaces.{KEYSPACE}]\nkind = "catalog"\n[keyspaces.{KEYSPACE}.source]\nkind = "hive"\ncatalog = "hive"\n'
        f'uris = ["thrift://{hive.host}:{hive.port}"]\npoll_interval_ms = 20\n'
        f"[serve.thrift.{KEYSPACE}]\nport = {port}\n"
    )
    with HiveCatalog(address, DB) as catalog:
        for table in (EXTERNAL, TRANSACTIONAL):
            is_acid = table == TRANSACTIONAL
            create_table(catalog.calls, DB, table, columns=COLUMNS, partitioned=True, transactional=is_acid)
            add_partitions(catalog.calls, DB, table, [f"d{each:06}" for each in range(partitions)], COLUMNS)
        deployment = Deployment(home, kafka, (), more=settings)
        try:
            deployment.start_source("hive", KEYSPACE)
            deployment.start_consumer()
            deployment.start_front()
            with Engine(address) as metastore, Engine(("127.0.0.1", port)) as front:
                for table in (EXTERNAL, TRANSACTIONAL):
                    _measure(catalog, table, {"metastore": metastore, "front": front}, rounds, calls)
        finally:
            deployment.stop()


def _requests(catalog: HiveCatalog, table: str) -> dict[str, Struct]:
    """Four calls as Hive's client makes them; of a transactional table with its list and its id."""
    listed, table_id = "", 0
    if table == TRANSACTIONAL:
        listed, table_id = catalog.valid_write_ids(table), catalog.table_id(table)

    def request(found: Struct, *, write_ids: int, number: int) -> Struct:
        return {1: record(found | ({write_ids: text(listed), number: long(table_id)} if listed else {}))}

    of: Struct = {1: text(DB), 2: text(table)}
    later: Struct = {1: text("hive"), 2: text(DB), 3: text(table), 4: (I16, -1)}
    capable: Struct = {3: client_capabilities(), 4: text("hive"), 8: texts(PROCESSOR)}
    names = texts([f"p=d{each:06}" for each in range(NAMED)])
    return {
        "get_table_req": request({**of, **capable}, write_ids=6, number=11),
        "fetch_partition_names_req": request(later, write_ids=5, number=6),
        "get_partitions_req": request(later, write_ids=5, number=6),
        "get_partitions_by_names_req": request({**of, 3: names, 5: texts(PROCESSOR)}, write_ids=8, number=10),
    }


def _change(catalog: HiveCatalog, table: str, number: int) -> None:
    if table == EXTERNAL:
        catalog.alter(table, v=str(number))
        return
    txn = catalog.open()
    catalog.alter(table, catalog.allocate(table, txn), v=str(number))
    catalog.commit(txn)


def _measure(catalog: HiveCatalog, table: str, places: dict[str, Engine], rounds: int, calls: int) -> None:
    took: dict[tuple[str, str], list[float]] = {}
    first: dict[tuple[str, str], list[float]] = {}
    for number in range(-1, rounds):
        _change(catalog, table, number)
        requests, is_warm = _requests(catalog, table), number >= 0
        for call, asked in requests.items():
            for turn in range(calls if is_warm else WARM):
                replies = []
                for place, engine in places.items():
                    began = time.perf_counter()
                    replies.append(engine.call(call, asked, 1))
                    if is_warm:
                        (took if turn else first).setdefault((place, call), []).append(time.perf_counter() - began)
                if replies[0] != replies[1]:
                    raise AssertionError(f"{call}: the front answers otherwise than the metastore")
    kind = "external, no list" if table == EXTERNAL else "transactional, with list and id"
    print(f"{kind}; spin {spin():.1f}", flush=True)
    for call in requests:
        shown = {place: percentiles_ms(took[place, call]) for place in places}
        line = ", ".join(
            f"{place} p50 {each['p50_ms']:.2f} p99 {each['p99_ms']:.2f} ms, "
            f"the first after the change {1000 * median(first[place, call]):.2f} ms"
            for place, each in shown.items()
        )
        ratio = shown["front"]["p50_ms"] / shown["metastore"]["p50_ms"]
        print(f"  {call}: {line}; ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
