"""``python -m benchmarks.backfill``: a large table that was there before becomes whole, while others are written to.

A MariaDB has a table of so many rows. Source, consumer and front run as processes, as in production. Beside them
another table is written to at a fixed rate, and its newest row is read again and again at the position of its write:
what the backfill costs others is the time until the cache answers it. The same chunks are first only read and decoded.

Threats to validity: server, broker, source, consumer, front and writer share the machine's cores; the server does not
sync at each commit; the rows lie in its memory as far as its buffer pool of 1 GiB holds them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psutil
from freshet_client import FreshetClient

from benchmarks import finding
from benchmarks.child import measure, quiet
from benchmarks.deployed import Deployment, threads_processor_s
from benchmarks.percentiles import percentiles_ms
from benchmarks.spin import spin
from benchmarks.workload import PARTITIONS
from consumers.owner.client import OwnerConnection
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBServer
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets
from stream.kafka.topics import events_topic
from stream.sources.mariadb.backfill.chunks import ChunkReader
from stream.sources.mariadb.backfill.plan import After
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.schema import TableFilter

KEYSPACE: Final = "shop"
SHARD: Final = f"{KEYSPACE}/0"
TABLE: Final = f"{KEYSPACE}.orders"
OTHER: Final = f"{KEYSPACE}.carts"
OTHER_ROWS: Final = 1_000
COLUMNS: Final = """(id INT PRIMARY KEY, customer INT NOT NULL, owner VARCHAR(40) NOT NULL,
    balance DECIMAL(12,2) NOT NULL, note VARCHAR(200) NOT NULL) ENGINE=InnoDB"""
FILL: Final = """INSERT INTO {table} SELECT seq, seq MOD 1000, CONCAT('owner no. ', seq), seq / 7,
    RPAD('The quick brown fox jumps over the lazy dog ', 110, 'and on ') FROM seq_{first}_to_{last}"""
FILL_ROWS: Final = 250_000
LOOK_EVERY_S: Final = 0.25
WAIT_MS: Final = 10_000


def fill(server: MariaDBServer, rows: int) -> None:
    """Makes the tables."""
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {KEYSPACE}")
        cursor.execute(f"USE {KEYSPACE}")
        for table, count in ((TABLE, rows), (OTHER, OTHER_ROWS)):
            cursor.execute(f"CREATE TABLE {table} {COLUMNS}")
            for first in range(1, count + 1, FILL_ROWS):
                cursor.execute(FILL.format(table=table, first=first, last=min(first + FILL_ROWS - 1, count)))
        cursor.execute(f"CREATE TABLE {finding.TABLE} {finding.COLUMNS}")
        cursor.execute(finding.FILL)


def read_alone(host: str, port: int, user: str, password: str, rows: int, readers: int = 1) -> dict[str, Any]:
    """How many rows a second are only read and decoded, of the first ones. Runs in a child process.

    ``readers``: threads, each with a part of them and a session of its own.
    """
    settings = ConnectionSettings(host, port, user, password)
    schema = LiveSchema(settings, TableFilter((KEYSPACE,)))
    schema.load()
    schema.close()
    described = next(info.describe() for info in schema.live.values() if info.name == TABLE)
    part = rows // readers

    def read(number: int) -> int:
        reader, done = ChunkReader(settings), 0
        after = After([number * part]) if number else None
        while done < part and (chunk := reader.read(described, after)).last is not None:
            done, after = done + len(chunk.rows), chunk.last
        reader.close()
        return done

    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(readers) as pool:
        done = sum(pool.map(read, range(readers)))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"rows_s": done / seconds, "cpu_us": 1e6 * cpu / done}


class Writer(threading.Thread):
    """Writes single-row transactions at a fixed rate. It keeps the time of those that did not come in time, too."""

    def __init__(self, server: MariaDBServer, rate: int) -> None:
        super().__init__(daemon=True)
        self.written = 0
        self.stopping = threading.Event()
        self._server, self._rate = server, rate

    def run(self) -> None:
        """Until `stopping`."""
        began = time.monotonic()
        with self._server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            while not self.stopping.is_set():
                due = int((time.monotonic() - began) * self._rate)
                if self.written >= due:
                    self.stopping.wait(0.002)
                    continue
                row = self.written % (OTHER_ROWS - 1) + 1
                cursor.execute(f"UPDATE {OTHER} SET customer = customer + 1 WHERE id = {row}")
                self.written += 1


def visible(server: MariaDBServer, url: str, until: threading.Event) -> Iterator[float]:
    """Seconds from the commit of a row until the cache answers it at that position, again and again."""
    with FreshetClient(url) as client, server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        while not until.wait(LOOK_EVERY_S):
            session = client.session()
            cursor.execute(f"UPDATE {OTHER} SET customer = customer + 1 WHERE id = {OTHER_ROWS}")
            committed = time.monotonic()
            cursor.execute("SELECT @@last_gtid")
            session.observe(SHARD, f"MariaDB/{cursor.fetchone()[0]}")
            row = session.get_row(KEYSPACE, OTHER, OTHER_ROWS, max_wait_ms=WAIT_MS)
            if row.served_from == "cache":
                yield time.monotonic() - committed
            else:
                print(f"  not from the cache after {WAIT_MS} ms: {row.why}", flush=True)


def source_settings(server: MariaDBServer) -> str:
    """The lines of the settings file that name the source."""
    address = server.address
    return (
        f"{finding.SETTINGS}[keyspaces.{KEYSPACE}.source]\n"
        f'kind = "mariadb"\nhost = "{address.host}"\nport = {address.port}\n'
        f'user = "{address.user}"\npassword = "{address.password}"\ndatabases = ["{KEYSPACE}"]\nbackfill = ["*"]\n'
    )


class Memory(threading.Thread):
    """The most resident memory of some processes, in MB, looked at each half second."""

    def __init__(self, processes: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self.most = dict.fromkeys(processes, 0.0)
        self.stopping = threading.Event()
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}

    def run(self) -> None:
        """Until `stopping`."""
        while not self.stopping.wait(0.5):
            for name, process in self._processes.items():
                self.most[name] = max(self.most[name], process.memory_info().rss / 1e6)


def backfill(server: MariaDBServer, kafka: KafkaCluster, directory: Path, rows: int, writes: int) -> dict[str, Any]:
    """From the source's first chunk until each owner knows the table to be whole."""
    deployed = Deployment(directory, kafka, (KEYSPACE,), more=source_settings(server))
    writer, done = Writer(server, writes), threading.Event()
    waits: list[float] = []
    with ExitStack() as stack:
        stack.callback(deployed.stop)
        source = deployed.start_source("mariadb", KEYSPACE)
        deployed.start_consumer()
        deployed.start_front()
        assert deployed.consumer is not None
        memory = Memory({"source": source.pid, "consumer": deployed.consumer.pid})
        memory.start()
        began = time.monotonic()
        writer.start()
        stack.callback(writer.stopping.set)
        observer = threading.Thread(target=lambda: waits.extend(visible(server, deployed.url, done)), daemon=True)
        observer.start()
        _await_complete(deployed, rows)
        seconds = time.monotonic() - began
        done.set()
        observer.join()
        writer.stopping.set()
        writer.join()
        cpu = {f"{name}_cpu_us": 1e6 * each / rows for name, each in deployed.processor_seconds().items()}
        threads = {
            f"{name}_threads_us": {each: round(1e6 * used / rows, 2) for each, used in threads_processor_s(pid).items()}
            for name, pid in {"source": source.pid, "owner": deployed.consumer.pid}.items()
        }
        memory.stopping.set()
        memory.join()
        asked = finding.found(deployed)
        source.stop()
        deployed.await_offsets(lambda offset, committed, _: offset == committed)
        deployed.stop_consumer()
        restart_s = deployed.start_consumer()
        store_mb = sum(file.stat().st_size for file in (directory / "stores").rglob("*.sst")) / 1e6
        return {
            "rows": rows,
            "rows_s": rows / seconds,
            "seconds": seconds,
            "writes_s": writer.written / seconds,
            **{f"{name}_mb": most for name, most in memory.most.items()},
            **cpu,
            **threads,
            "store_mb": store_mb,
            "restart_s": restart_s,
            "restarted_mb": deployed.rss_mb(),
            "visible": percentiles_ms(sorted(waits)) if waits else {},
            "found": asked,
        }


def _await_complete(deployed: Deployment, rows: int) -> None:
    """Until every partition has all rows and has said so. A line each ten seconds."""
    shown = time.monotonic()
    with OwnerConnection(deployed.owner) as owner:
        while True:
            partitions = owner.status().partitions
            if partitions and all(each.tables.get(table) for each in partitions for table in (TABLE, finding.TABLE)):
                return
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                held = sum(each.entries for each in partitions)
                print(f"  {held:,} entries of {rows:,} rows", file=sys.stderr, flush=True)
            time.sleep(0.05)


def measured(
    kafka: KafkaCluster, rows: int, writes: int, readers: Sequence[int] = (1,), folder: str | None = None
) -> dict[str, Any]:
    """`read_alone` by so many ``readers`` and `backfill`, of a MariaDB of their own. ``folder``: where it has its data.

    Runs in a child process.
    """
    options = {"innodb-buffer-pool-size": "1G", "max-binlog-size": "1G"}
    with (
        tempfile.TemporaryDirectory(prefix="freshet-bench-", dir=folder) as directory,
        MariaDBServer(Path(directory) / "mariadb", durable=False, options=options) as server,
    ):
        print("filling", file=sys.stderr, flush=True)
        fill(server, rows)
        at = {name: getattr(server.address, name) for name in ("host", "port", "user", "password")}
        alone = [measure("backfill:read_alone", **at, rows=min(rows, 300_000), readers=each) for each in readers]
        deployed = Path(directory) / "deployed"
        deployed.mkdir()
        found = backfill(server, kafka, deployed, rows, writes)
    found["messages"] = sum(end_offsets(kafka, events_topic(kafka, KEYSPACE), range(PARTITIONS)).values())
    return {"alone": [{"readers": number, **each} for number, each in zip(readers, alone, strict=True)], **found}


def main() -> int:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backfill", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--writes", type=int, default=2_000, help="transactions a second on another table")
    parser.add_argument("--directory", type=Path, help="where the data lies meanwhile (default: a temporary folder)")
    given = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-", dir=given.directory) as folder:
        home = Path(folder) / "kafka"
        with KafkaServer(home, quick_start=False) as kafka:
            spins = [spin()]
            found = measured(kafka.cluster, given.rows, given.writes, (1, 2, 1, 2), folder)
            topic = events_topic(kafka.cluster, KEYSPACE)
            logs = [file for file in home.rglob("*.log") if file.parent.name.startswith(topic)]
            found["topic_mb"] = sum(file.stat().st_size for file in logs) / 1e6
            print(json.dumps(found | {"spins": [*spins, spin()]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
