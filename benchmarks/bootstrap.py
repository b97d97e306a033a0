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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.child import measure, quiet
from benchmarks.spin import spin
from freshet.local.hive.server import HiveServer
from freshet.local.hive.site import MetastoreDatabase
from freshet.local.mariadb import MariaDBServer
from stream.sources.hive.live.connection import MetastoreConnection
from stream.sources.hive.live.following import Following, FollowOptions
from stream.sources.hive.live.metastore import CAPABILITIES, Metastore, MetastoreSettings
from stream.sources.hive.live.source import end_of_log
from stream.sources.hive.live.thrift import record, text, texts
from stream.sources.hive.structs import LIST, MAP, STRING, STRUCT, ListValue, MapValue, Struct
from stream.sources.status import SourceStatus
from stream.wire.events import ResumePoint, SourceTransaction

DB: Final = "bench"
THREADS: Final = 8
FILLERS: Final = 4
"""Connections that make the tables."""
TIMEOUT_S: Final = 60.0
_PARAMETERS: Final = {b"numRows": b"10", b"totalSize": b"1234", b"numFiles": b"1", b"rawDataSize": b"4321"}


class Sink:
    """A publisher that counts changes and discards them."""

    def __init__(self) -> None:
        self.changes = 0

    def publish(self, txn: SourceTransaction) -> None:
        """Counts."""
        self.changes += len(txn.changes)

    def flush(self) -> None:
        """Nothing to do."""


def settings(host: str, port: int) -> MetastoreSettings:
    """Of the one metastore."""
    return MetastoreSettings(((host, port),), timeout_s=TIMEOUT_S)


def fill(host: str, port: int, tables: int, partitions: int) -> None:
    """Make the tables, each with so many partitions."""
    with MetastoreConnection(((host, port),), timeout_s=TIMEOUT_S) as connection:
        connection.call("create_database", {1: record({1: text(DB)})})
    values = [f"d{each:06}" for each in range(partitions)]

    def work(worker: int) -> None:
        with MetastoreConnection(((host, port),), timeout_s=TIMEOUT_S) as connection:
            for number in range(worker, tables, FILLERS):
                create_table(connection, DB, f"t{number:06}", columns=10, partitioned=True, transactional=False)
                add_partitions(connection, DB, f"t{number:06}", values, columns=10)

    with ThreadPoolExecutor(FILLERS) as threads:
        list(threads.map(work, range(FILLERS)))


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


def direct(host: str, port: int, threads: int) -> dict[str, Any]:
    """Partitions per second that a metastore answers. Runs in a child process."""
    chosen = settings(host, port)
    with Metastore(chosen) as metastore:
        names = metastore.table_names(DB)
    counts = [0] * threads

    def read(worker: int) -> None:
        with Metastore(chosen) as metastore:
            for name in names[worker::threads]:
                counts[worker] += sum(map(len, metastore.partitions(name, 500)))

    workers = [threading.Thread(target=read, args=(worker,)) for worker in range(threads)]
    began = time.monotonic()
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return {"partitions_s": sum(counts) / (time.monotonic() - began), "partitions": sum(counts)}


def source(host: str, port: int, partitions: int) -> dict[str, Any]:
    """The source's first publication, to its end. Runs in a child process."""
    options, sink, stopping = FollowOptions(settings(host, port), "hive/0", threads=THREADS), Sink(), threading.Event()
    with Metastore(options.settings) as metastore:
        position, timestamp = end_of_log(metastore)
        resume = ResumePoint("hive/0", 1, 1, position, timestamp, position)
        began = time.monotonic()
        following = Following(options, sink, metastore, resume, SourceStatus(), metastore.transactions())
        tables_s = 0.0
        while (has_worked := following.step()) or not following.is_complete:
            if not has_worked:
                following.wait(stopping, options.poll_s)
            if following.has_swept and not tables_s:
                tables_s = time.monotonic() - began
        seconds = time.monotonic() - began
        following.close()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "partitions_s": partitions / seconds,
        "seconds": seconds,
        "tables_s": tables_s,
        "changes": sink.changes,
        "memory_mb": memory_mb,
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
            with HiveServer(home / "hive", database=database) as hive:
                print("filling", file=sys.stderr, flush=True)
                fill(hive.host, hive.port, given.tables, given.partitions)
                _measure(hive, given.tables * given.partitions, given.rounds)
    return 0


def _measure(hive: HiveServer, partitions: int, rounds: int) -> None:
    at = {"host": hive.host, "port": hive.port}
    measure("bootstrap:direct", **at, threads=THREADS)  # the server's first answers are its slowest
    for number in range(1, rounds + 1):
        print(f"round {number} of {rounds}: spin {spin():.1f}")
        for threads in (1, THREADS):
            found = measure("bootstrap:direct", **at, threads=threads)
            print(f"  read directly, {threads} threads: {found['partitions_s']:,.0f} partitions/s")
        found = measure("bootstrap:source", **at, partitions=partitions)
        print(
            f"  source: {found['partitions_s']:,.0f} partitions/s, {found['seconds']:.1f} s in all, tables after "
            f"{found['tables_s']:.1f} s, {found['changes']:,.0f} changes, {found['memory_mb']:.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
