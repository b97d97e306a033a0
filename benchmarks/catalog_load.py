"""A TPC-DS-like catalog on a real metastore, read through the cache and written at the same time, at fixed rates.

A *query* is a transaction of the client: it begins over three facts and three dimensions, with one call past the cache,
and makes `QUERY_READS` reads with the lists that it got. Each answer is judged by the query's own list: what a valid
write id has written must be in it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.bootstrap import add_partitions, create_table, settings
from benchmarks.child import MeasurementFailed
from benchmarks.deployed import Deployment
from benchmarks.percentiles import percentiles_ms
from serving.client import AsyncCatalogTransaction, AsyncClient
from stream.kafka.connection import KafkaCluster
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.rpc.thrift import text
from stream.sources.hive.structs import I16
from tests.servers.hive_catalog import HiveCatalog

KEYSPACE: Final = "tpcds"
DB: Final = "tpcds"
_SALES: Final = [f"{channel}_{kind}" for channel in ("store", "catalog", "web") for kind in ("sales", "returns")]
FACTS: Final = (*_SALES, "inventory")
DIMENSIONS: Final = (
    *("store", "call_center", "catalog_page", "web_site", "web_page", "warehouse", "customer", "customer_address"),
    *("customer_demographics", "date_dim", "household_demographics", "item", "income_band", "promotion", "reason"),
    *("ship_mode", "time_dim"),
)
EACH: Final = 3
"""Facts, and dimensions, of a query."""
QUERY_READS: Final = 18
"""Of each table itself, its constraints, and partitions of a fact or statistics of a dimension."""
QUERIES_MAX: Final = 64
"""Queries at once. One that is due waits for room, and its wait counts."""
KINDS: Final = ("table", "partitions", "statistics", "constraints")
DIRECT_RATE: Final = 8
"""Reads a second that go to the metastore itself: two of each kind."""
PROBED: Final = 5
"""Of so many writes one is looked at: when does the cache answer with it?"""
LAST: Final = "p >= 'd9'"
"""The partitions that are read: those that were added, at most as many as were written."""
TIMEOUT_S: Final = 60.0
COLUMNS: Final = 20


class Judge:
    """What was written, by table and write id. The writer tells it before each COMMIT."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, int]] = defaultdict(dict)
        self._added: dict[str, dict[int, str]] = defaultdict(dict)
        self.wrong: list[str] = []

    def writes(self, table: str, write_id: int, version: int, partition: str) -> None:
        """The transaction with this id sets the version, or adds a partition."""
        if partition:
            self._added[table][write_id] = partition
        else:
            self._versions[table][write_id] = version

    def table(self, table: str, listed: Any, value: Any) -> None:
        """An answer to a reader with this list."""
        known = list(self._versions[table].items())
        expected = max((version for write_id, version in known if listed.is_valid(write_id)), default=0)
        found = int(value["parameters"].get("v", "0")) if value is not None else -1
        if found < expected:
            self.wrong.append(f"{table} has version {found}, {listed} shows {expected}")

    def partitions(self, table: str, listed: Any, names: Sequence[Sequence[str]]) -> None:
        """As `table`."""
        known = list(self._added[table].items())
        missing = {name for write_id, name in known if listed.is_valid(write_id)} - {name for name, *_ in names}
        if missing:
            self.wrong.append(f"{table} lacks partitions {sorted(missing)}, {listed} shows them")


class Load:
    """The traffic: ``reads`` and ``writes`` a second. All times are in seconds."""

    def __init__(self, url: str, host: str, port: int, reads: int, writes: int) -> None:
        self._url, self._address = url, (host, port)
        self._reads, self._writes = reads, writes
        self.judge = Judge()
        self.times: dict[str, list[float]] = defaultdict(list)
        self.from_cache = self.reads = self.writes = 0
        self._number = 0
        """Of the last write. They go on from one run to the next."""
        self._to_probe: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self._stopping = threading.Event()
        self._room = asyncio.Semaphore(QUERIES_MAX)

    async def warm_up(self) -> None:
        """Until the cache answers for every table. Raises `MeasurementFailed`."""
        async with AsyncClient(self._url) as client:
            for table in (*FACTS, *DIMENSIONS):
                for read in self._calls(await self._begin(client, [table]), table).values():
                    deadline = time.monotonic() + TIMEOUT_S
                    while (await read()).served_from != "cache":
                        if time.monotonic() > deadline:
                            raise MeasurementFailed(f"{table} did not come into the cache")
                        await asyncio.sleep(0.05)

    async def run(self, seconds: float) -> float:
        """Queries, writes, probes and direct reads, side by side; how long it lasted. Figures of an earlier run go."""
        self.times.clear()
        self.from_cache = self.reads = self.writes = 0
        self._stopping.clear()
        loop = asyncio.get_running_loop()
        beside = [loop.run_in_executor(None, self._write, loop), loop.run_in_executor(None, self._ask_directly)]
        async with AsyncClient(self._url) as client:
            probing = asyncio.create_task(self._probe(client))
            began, queries = time.monotonic(), []
            for number in range(int(seconds * self._reads / QUERY_READS)):
                due = began + number * QUERY_READS / self._reads
                await asyncio.sleep(max(due - time.monotonic(), 0))
                queries.append(asyncio.create_task(self._query(client, due, number)))
            await asyncio.gather(*queries)
            self._stopping.set()
            await asyncio.gather(*beside)
            self._to_probe.put_nowait(("", 0.0))
            await probing
            return time.monotonic() - began

    def _begin(self, client: AsyncClient, tables: list[str]) -> Any:
        return client.session().begin([f"{DB}.{each}" for each in tables], catalog=KEYSPACE)

    def _calls(self, begun: AsyncCatalogTransaction, table: str) -> dict[str, Callable[[], Any]]:
        calls: dict[str, Callable[[], Any]] = {"table": lambda: begun.get_table(DB, table)}
        if table in FACTS:
            calls["partitions"] = lambda: begun.get_partitions(DB, table, filter=LAST)
        else:
            calls["statistics"] = lambda: begun.get_statistics(DB, table)
        return calls | {"constraints": lambda: begun.get_constraints(DB, table)}

    async def _query(self, client: AsyncClient, due: float, number: int) -> None:
        async with self._room:
            await self._run_query(client, due, number)

    async def _run_query(self, client: AsyncClient, due: float, number: int) -> None:
        chosen = random.Random(number)
        tables = [*chosen.sample(FACTS, EACH), *chosen.sample(DIMENSIONS, EACH)]
        begun = await self._begin(client, tables)
        self.times["lists"].append(time.monotonic() - due)
        for table in tables:
            for kind, call in self._calls(begun, table).items():
                asked = time.monotonic()
                found = await call()
                self.times[kind].append(time.monotonic() - asked)
                self.reads += 1
                self.from_cache += found.served_from == "cache"
                listed = (await begun.listed(DB, table)).write_ids
                if kind == "table":
                    self.judge.table(table, listed, found.value)
                elif kind == "partitions":
                    self.judge.partitions(table, listed, found.names)

    async def _probe(self, client: AsyncClient) -> None:
        """From the end of a COMMIT to the first answer from the cache to a reader whose list has it."""
        while True:
            table, committed = await self._to_probe.get()
            if not table:
                return
            begun = await self._begin(client, [table])
            while (await begun.get_table(DB, table, max_wait_ms=0)).served_from != "cache":
                if time.monotonic() - committed > TIMEOUT_S:
                    raise MeasurementFailed(f"{table} did not come into the cache again")
                await asyncio.sleep(0.005)
            self.times["commit_to_cache"].append(time.monotonic() - committed)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        """Transactions of one write: a fact's partition, or a parameter. In a thread."""
        chosen, began = random.Random(1), time.monotonic()
        with HiveCatalog(self._address, DB) as catalog:
            for due in itertools.count(began, 1 / self._writes):
                if self._stopping.wait(max(due - time.monotonic(), 0)):
                    return
                number = self._number = self._number + 1
                table = chosen.choice((*FACTS, *DIMENSIONS))
                partition = f"d9{number:06}" if table in FACTS and chosen.random() < 0.5 else ""
                txn = catalog.open()
                write_id = catalog.allocate(table, txn)
                if partition:
                    catalog.add_partitions(table, partition)
                else:
                    catalog.alter(table, write_id, v=str(number))
                self.judge.writes(table, write_id, number, partition)
                catalog.commit(txn)
                self.writes += 1
                if number % PROBED == 0:
                    loop.call_soon_threadsafe(self._to_probe.put_nowait, (table, time.monotonic()))

    def _ask_directly(self) -> None:
        """The same reads of the metastore itself. In a thread."""
        chosen, began = random.Random(2), time.monotonic()
        with HiveCatalog(self._address, DB) as catalog:
            metastore = Metastore(settings(*self._address))
            for number in itertools.count(1):
                if self._stopping.wait(max(began + number / DIRECT_RATE - time.monotonic(), 0)):
                    metastore.close()
                    return
                fact, dimension = chosen.choice(FACTS), chosen.choice(DIMENSIONS)
                kind = KINDS[number % len(KINDS)]
                asked = time.monotonic()
                if kind == "table":
                    metastore.table(f"{DB}.{fact}")
                elif kind == "partitions":
                    place = {1: text(DB), 2: text(fact)}
                    catalog.calls.call("get_partitions_by_filter", {**place, 3: text(LAST), 4: (I16, -1)})
                elif kind == "constraints":
                    metastore.constraints(f"{DB}.{dimension}")
                else:
                    metastore.statistics(f"{DB}.{dimension}", [f"c{each}" for each in range(COLUMNS)])
                self.times[f"{kind}_directly"].append(time.monotonic() - asked)


def fill(host: str, port: int, partitions: int) -> None:
    """Make the tables: facts with so many partitions, dimensions without."""
    with HiveCatalog((host, port), DB) as catalog:
        for table in (*FACTS, *DIMENSIONS):
            keyed = table in FACTS
            create_table(catalog.calls, DB, table, columns=COLUMNS, partitioned=keyed, transactional=True)
            if keyed:
                add_partitions(catalog.calls, DB, table, [f"d{each:06}" for each in range(partitions)], COLUMNS)


def load(
    kafka: KafkaCluster, host: str, port: int, traffic_s: float, reads: int, writes: int, partitions: int
) -> dict[str, Any]:
    """Source, consumer and front as processes, and the traffic. Runs in a child process."""
    fill(host, port, partitions)
    catalog = (
        f'[keyspaces.{KEYSPACE}]\nkind = "catalog"\npartitions = 4\n[keyspaces.{KEYSPACE}.source]\nkind = "hive"\n'
    )
    catalog += f'uris = ["thrift://{host}:{port}"]\ncatalog = "hive"\npoll_interval_ms = 20\n'
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        deployment = Deployment(Path(directory), kafka, (), more=catalog)
        try:
            deployment.start_source("hive", KEYSPACE)
            deployment.start_consumer()
            deployment.start_front()
            traffic = Load(deployment.url, host, port, reads, writes)
            lasted, used = asyncio.run(_measured(traffic, deployment, traffic_s))
        finally:
            deployment.stop()
    return {
        "seconds": lasted,
        "reads": traffic.reads,
        "reads_s": traffic.reads / lasted,
        "writes": traffic.writes,
        "hit_ratio": traffic.from_cache / traffic.reads,
        "wrong": len(traffic.judge.wrong),
        "first_wrong": traffic.judge.wrong[:3],
        "processor_share": {name: each / lasted for name, each in used.items()},
        "times": {kind: {"count": len(found), **percentiles_ms(found)} for kind, found in traffic.times.items()},
    }


async def _measured(traffic: Load, deployment: Deployment, seconds: float) -> tuple[float, dict[str, float]]:
    """How long the traffic lasted, and the processor time of each process. A first tenth more does not count."""
    await traffic.warm_up()
    await traffic.run(seconds / 10)
    before = deployment.processor_seconds()
    lasted = await traffic.run(seconds)
    return lasted, {name: each - before[name] for name, each in deployment.processor_seconds().items()}
