"""(d) The MariaDB source's own rate: reads an existing binlog to its end, without and with publishing to Kafka."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.materialize import as_in_production
from benchmarks.topics import make_publisher
from benchmarks.workload import PARTITIONS
from freshet.local.mariadb import MariaDBServer
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import ensure_topics
from stream.sources.mariadb.binlog.progress import Progress, fingerprint
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import MariaDBSource, PublisherLike, SourceOptions
from stream.wire.events import DescribeTable, ResumePoint, SourceTransaction

DATABASE: Final = "bench"
TABLES: Final = TableFilter((DATABASE,))
TABLE_DDL: Final = """CREATE TABLE accounts (id INT PRIMARY KEY, version BIGINT NOT NULL, owner VARCHAR(40) NOT NULL,
    balance DECIMAL(12,2) NOT NULL, note VARCHAR(200) NOT NULL) ENGINE=InnoDB"""
NOTE: Final = "RPAD('The quick brown fox jumps over the lazy dog ', 90, 'and on ')"
SINGLE_ROWS: Final = f"""CREATE PROCEDURE single_rows(IN wanted INT) BEGIN
    DECLARE n INT DEFAULT 0;
    WHILE n < wanted DO
        INSERT INTO accounts VALUES (n, n, CONCAT('owner no. ', n), n / 7, {NOTE});
        SET n = n + 1;
    END WHILE; END"""
BIG_ROWS: Final = f"""INSERT INTO accounts SELECT 1000000 + %s + seq, seq, CONCAT('owner no. ', seq), seq / 7, {NOTE}
    FROM seq_1_to_{{rows}}"""
BIG_TRANSACTION: Final = 10_000
TIMEOUT_S: Final = 180.0


class Sink:
    """A publisher that discards transactions, to measure the source without framing and Kafka."""

    def __init__(self, start: str, described: list[DescribeTable]) -> None:
        self._start = start
        self._described = {each.table: each for each in described}

    def open(
        self, start_if_new: Callable[[], tuple[str, int]], _: Callable[[str], None] | None = None, /
    ) -> ResumePoint:
        """Resumes at the position given to `__init__`."""
        start_if_new()
        return ResumePoint(
            "bench/0",
            1,
            1,
            self._start,
            0,
            self._start,
            table_choice=fingerprint(TABLES),
            descriptions=self._described,
        )

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """No word is kept."""

    def has_room(self, _: float = 0.0, /) -> bool:
        """Always."""
        return True

    def publish(self, txn: SourceTransaction) -> None:
        """Iterates over the changes, as framing would."""
        for _ in txn.changes:
            pass

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:  # noqa: ARG002
        """Must not be called: a benchmark's server loses no history."""
        raise AssertionError(reason)

    def flush(self) -> None:
        """Nothing to do."""

    def stamp(self, as_of_ms: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def abandon(self) -> None:
        """Nothing to do."""


def source(kafka: KafkaCluster, transactions: int, rows: int, rounds: int) -> dict[str, Any]:
    """Single-row transactions per second, and rows per second in transactions of 10,000. Runs in a child process."""
    with logged(transactions) as (server, start, described, middle):
        with server.connect(database=DATABASE, autocommit=True) as connection, connection.cursor() as cursor:
            for at in range(0, rows, BIG_TRANSACTION):
                cursor.execute(BIG_ROWS.format(rows=BIG_TRANSACTION), (at,))
            end = _position(cursor)
        as_in_production()
        alone, published = [], []
        for _ in range(rounds):
            alone.append(_follow(server, lambda: Sink(start, described), [middle, end]))
            published.append(_into_kafka(server, kafka, start, described, [middle, end]))
    found = {}
    for suffix, times in (("", alone), ("_to_kafka", published)):
        found[f"single_row_transactions_s{suffix}"] = median(transactions / single for single, _ in times)
        found[f"rows_in_big_transactions_s{suffix}"] = median(rows / big for _, big in times)
    return found | {"transactions": transactions, "rows": rows, "big_transaction_rows": BIG_TRANSACTION}


class Logged(NamedTuple):
    """A server, and from where to where its binlog has single-row transactions into a table that is ``described``."""

    server: MariaDBServer
    start: str
    described: list[DescribeTable]
    end: str


@contextmanager
def logged(transactions: int) -> Iterator[Logged]:
    """Starts a server, and writes ``transactions`` into its binlog."""
    with (
        tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory,
        # without a sync at each commit the binlog is the same and is written faster
        MariaDBServer(Path(directory), durable=False) as server,
    ):
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
            cursor.execute(f"USE {DATABASE}")
            cursor.execute(TABLE_DDL)
            cursor.execute(SINGLE_ROWS)
            start = _position(cursor)
            described = _described(server)
            cursor.execute("CALL single_rows(%s)", (transactions,))
            end = _position(cursor)
        yield Logged(server, start, described, end)


def _described(server: MariaDBServer) -> list[DescribeTable]:
    schema = LiveSchema(_settings(server), TABLES)
    schema.load()
    schema.close()
    return [info.describe() for info in schema.live.values()]


def _settings(server: MariaDBServer) -> ConnectionSettings:
    address = server.address
    return ConnectionSettings(address.host, address.port, address.user, address.password)


def _into_kafka(
    server: MariaDBServer, kafka: KafkaCluster, start: str, described: list[DescribeTable], stops: list[str]
) -> list[float]:
    keyspace = f"mariadb{time.time_ns()}"
    let_start_at(kafka, keyspace, start, described)
    return _follow(server, lambda: make_publisher(kafka, keyspace), stops)


def let_start_at(kafka: KafkaCluster, keyspace: str, start: str, described: list[DescribeTable]) -> None:
    """Makes a keyspace's topic, and records there where its source starts."""
    ensure_topics(kafka, keyspace, PARTITIONS)
    with make_publisher(kafka, keyspace) as publisher:
        progress = Progress(publisher.open(lambda: (start, int(time.time()))))
        publisher.publish(progress.description(TABLES, described, fingerprint(TABLES)))


def _position(cursor: Any) -> str:
    cursor.execute("SELECT @@gtid_binlog_pos")
    return f"MariaDB/{cursor.fetchone()[0]}"


def _follow(server: MariaDBServer, make: Callable[[], PublisherLike], stops: list[str]) -> list[float]:
    """Seconds that the source takes to reach each stop from the one before, the first from its first transaction."""
    options = SourceOptions(_settings(server), "bench/0", TABLES)
    times: list[float] = []
    done = threading.Event()

    def noting() -> PublisherLike:
        inner = make()
        publish = inner.publish
        wanted = iter(stops)
        upcoming = next(wanted)

        def note(txn: SourceTransaction) -> None:
            nonlocal upcoming
            if not times:
                times.append(time.perf_counter())
            publish(txn)
            if txn.position == upcoming:
                inner.flush()
                times.append(time.perf_counter())
                upcoming = next(wanted, "")
                if not upcoming:
                    done.set()

        inner.publish = note  # type: ignore[method-assign]
        return inner

    following = MariaDBSource(options, noting)
    thread = threading.Thread(target=following.run)
    thread.start()
    try:
        if not done.wait(TIMEOUT_S):
            raise AssertionError("the source did not reach the end of the binlog")
    finally:
        following.stop()
        thread.join()
    return [later - earlier for earlier, later in pairwise(times)]
