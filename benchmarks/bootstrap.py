"""``python -m benchmarks.bootstrap``: a Hive catalog's first publication, beside the metastore read directly.

A metastore 4.0.1 over MariaDB holds tables with partitions. The source publishes all of them, with their constraints
and statistics, into nothing: framing and Kafka are measured elsewhere. Beside it, the same partitions are only read.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil

from benchmarks.child import measure_within, quiet
from benchmarks.cloning import copy_table
from benchmarks.deployed import processor_s
from benchmarks.spin import spin
from freshet.local.hive.server import HiveServer
from freshet.local.hive.site import MetastoreDatabase
from freshet.local.mariadb import MariaDBServer
from stream.sources.hive.live.following import Following, FollowOptions
from stream.sources.hive.live.metastore import CAPABILITIES, Metastore, MetastoreSettings
from stream.sources.hive.live.source import end_of_log
from stream.sources.hive.objects import columns_of
from stream.sources.hive.rpc.connection import MetastoreConnection
from stream.sources.hive.rpc.thrift import record, text, texts
from stream.sources.hive.structs import LIST, MAP, STRING, STRUCT, ListValue, MapValue, Struct
from stream.sources.status import SourceStatus
from stream.wire.events import ResumePoint, SourceTransaction

DB: Final = "bench"
THREADS: Final = 8
TIMEOUT_S: Final = 60.0
WITHIN_S: Final = 3_600.0
"""One measurement, at most."""
_PARAMETERS: Final = {b"numRows": b"10", b"totalSize": b"1234", b"numFiles": b"1", b"rawDataSize": b"4321"}


class Sink:
    """A publisher that counts changes and discards them."""

    def __init__(self) -> None:
        self.changes = 0

    def publish(self, txn: SourceTransaction) -> None:
        """Counts."""
        self.changes += len(txn.changes)

    def stamp(self, as_of_ms: int) -> None:
        """Nobody reads the time."""

    def flush(self) -> None:
        """Nothing to do."""


class Calls:
    """Counts the calls of this process to a metastore, while it is open. A context manager."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._call = call = MetastoreConnection.call

        def counted(connection: MetastoreConnection, name: str, arguments: Struct, *, timeout_s: float = 0.0) -> Any:
            self.count += 1
            return call(connection, name, arguments, timeout_s=timeout_s)

        MetastoreConnection.call = counted  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        MetastoreConnection.call = self._call  # type: ignore[method-assign]


def settings(host: str, port: int) -> MetastoreSettings:
    """Of the one metastore."""
    return MetastoreSettings(((host, port),), timeout_s=TIMEOUT_S)


def fill(host: str, port: int, database: MetastoreDatabase, tables: int, partitions: int) -> None:
    """Make the tables, each with so many partitions."""
    with MetastoreConnection(((host, port),), timeout_s=TIMEOUT_S) as connection:
        connection.call("create_database", {1: record({1: text(DB)})})
        create_table(connection, DB, "t000000", columns=10, partitioned=True, transactional=False)
        values = [f"d{each:06}" for each in range(partitions)]
        add_partitions(connection, DB, "t000000", values, columns=10)
    with Metastore(settings(host, port)) as metastore:
        table = metastore.table(f"{DB}.t000000")
    assert table is not None
    if tables > 1:
        with database.address.connect(database=database.name) as opened:
            copy_table(opened, table.table_id, tables - 1)


def create_table(
    connection: MetastoreConnection, db: str, name: str, *, columns: int, partitioned: bool, transactional: bool
) -> None:
    """Make a table of text columns ``c0``, ``c1``, …; if it is partitioned, by ``p``."""
    keys = [{1: text("p"), 2: text("string")}] if partitioned else []
    kind = {b"transactional": b"true"} if transactional else {b"EXTERNAL": b"TRUE"}
    of: Struct = {1: text(name), 2: text(db), 7: record(_storage(columns)), 8: (LIST, ListValue(STRUCT, keys))}
    of |= {9: _map(kind), 12: text("MANAGED_TABLE" if transactional else "EXTERNAL_TABLE")}
    connection.call("create_table_req", {1: record({1: record(of), 9: texts([*CAPABILITIES])})})


def add_partitions(connection: MetastoreConnection, db: str, name: str, values: Sequence[str], columns: int) -> None:
    """Add partitions to a table with so many columns."""
    of: Struct = {2: text(db), 3: text(name), 6: record(_storage(columns)), 7: _map(_PARAMETERS)}
    added: list[Struct] = [{**of, 1: texts([value])} for value in values]
    connection.call("add_partitions", {1: (LIST, ListValue(STRUCT, added))})


def _storage(columns: int) -> Struct:
    named = [{1: text(f"c{n}"), 2: text("string"), 3: text("")} for n in range(columns)]
    orc = "org.apache.hadoop.hive.ql.io.orc.Orc"
    serde = record({1: text("s"), 2: text(f"{orc}Serde"), 3: _map({})})
    formats = {3: text(f"{orc}InputFormat"), 4: text(f"{orc}OutputFormat")}
    return {1: (LIST, ListValue(STRUCT, named)), **formats, 7: serde}


def _map(values: dict[bytes, bytes]) -> tuple[int, MapValue]:
    return MAP, MapValue(STRING, STRING, list(values.items()))


def direct(host: str, port: int, threads: int, everything: bool = False, tables: int | None = None) -> dict[str, Any]:
    """Partitions per second that a metastore answers. Runs in a child process.

    ``everything``: also the tables, their constraints and statistics, and those of the partitions. ``tables``: of so
    many; None: of all.
    """
    chosen = settings(host, port)
    with Metastore(chosen) as metastore:
        names = metastore.table_names(DB)[:tables]
    counts = [0] * threads

    def read(worker: int) -> None:
        with Metastore(chosen) as metastore:
            for name in names[worker::threads]:
                listed = metastore.partition_names(name)
                for at in range(0, len(listed), 500):
                    counts[worker] += len(metastore.partitions_by_names(name, listed[at : at + 500]))
                if everything:
                    read_rest(metastore, name, listed)

    workers = [threading.Thread(target=read, args=(worker,)) for worker in range(threads)]
    with Calls() as calls:
        began, own_s = time.monotonic(), time.process_time()
        for each in workers:
            each.start()
        for each in workers:
            each.join()
        seconds = time.monotonic() - began
    done, own_s = sum(counts), time.process_time() - own_s
    return {"partitions_s": done / seconds, "partitions": done, "calls": calls.count, "own_s": own_s}


def read_rest(metastore: Metastore, name: str, partitions: Sequence[str]) -> None:
    """The table, and what belongs to it besides its partitions."""
    table = metastore.table(name)
    assert table is not None
    columns = columns_of(table.image)
    metastore.constraints(name)
    metastore.statistics(name, columns)
    for at in range(0, len(partitions), 500):
        metastore.partition_statistics(name, columns, partitions[at : at + 500])


def source(host: str, port: int, partitions: int) -> dict[str, Any]:
    """The source's first publication, to its end. Runs in a child process."""
    options, sink, stopping = FollowOptions(settings(host, port), "hive/0", threads=THREADS), Sink(), threading.Event()
    with Calls() as calls, Metastore(options.settings) as metastore:
        position, timestamp = end_of_log(metastore)
        resume = ResumePoint("hive/0", 1, 1, position, timestamp, position)
        began, own_s = time.monotonic(), time.process_time()
        following = Following(options, sink, metastore, resume, SourceStatus(), metastore.transactions())
        tables_s = parts_s = 0.0
        while (has_worked := following.step()) or not following.is_complete:
            if not has_worked:
                following.wait(stopping, options.poll_s)
            if following.has_swept and not tables_s:
                tables_s = time.monotonic() - began
            if following.has_partitions and not parts_s:
                parts_s = time.monotonic() - began
        seconds = time.monotonic() - began
        following.close()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "partitions_s": partitions / parts_s,
        "complete_s": partitions / seconds,
        "seconds": seconds,
        "parts_s": parts_s,
        "tables_s": tables_s,
        "changes": sink.changes,
        "memory_mb": memory_mb,
        "calls": calls.count,
        "own_s": time.process_time() - own_s,
    }


def main() -> int:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bootstrap", description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=100, help="of each table")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        home = Path(directory)
        with MariaDBServer(home / "mariadb", durable=False) as server:
            database = MetastoreDatabase(server.address, "hms")
            with HiveServer(home / "hive", database=database, heap="768m", quick_start=False) as hive:
                print("filling", file=sys.stderr, flush=True)
                fill(hive.host, hive.port, database, given.tables, given.partitions)
                _measure(hive, server.pid, given.tables, given.partitions, given.rounds)
    return 0


def _measure(hive: HiveServer, database_pid: int, tables: int, partitions: int, rounds: int) -> None:
    at, servers = {"host": hive.host, "port": hive.port}, [psutil.Process(pid) for pid in (hive.pid, database_pid)]

    def measured(what: str, function: str, **more: int) -> dict[str, Any]:
        before = processor_s(*servers)
        found = measure_within(WITHIN_S, function, **at, **more)
        servers_ms = 1000 * (processor_s(*servers) - before) / tables
        print(
            f"  {what}: {found['partitions_s']:,.0f} partitions/s; a table {found['calls'] / tables:.2f} calls, "
            f"processor {servers_ms:.1f} ms of the servers, {1000 * found['own_s'] / tables:.1f} ms of the process",
            flush=True,
        )
        return found

    for number in range(rounds + 1):  # the server's first answers are its slowest
        print(f"round {number} of {rounds}: spin {spin():.1f}")
        for threads in (1, THREADS):
            measured(f"read directly, {threads} threads", "bootstrap:direct", threads=threads)
        what = f"the same and all else that is published, {THREADS} threads"
        measured(what, "bootstrap:direct", threads=THREADS, everything=True)
        found = measured("source", "bootstrap:source", partitions=tables * partitions)
        print(
            f"  tables after {found['tables_s']:.1f} s, partitions after {found['parts_s']:.1f} s, all else after "
            f"{found['seconds']:.1f} s ({found['complete_s']:,.0f} partitions/s), {found['changes']:,.0f} changes, "
            f"{found['memory_mb']:.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
