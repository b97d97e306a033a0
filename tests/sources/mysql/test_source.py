"""A running source, from a live MySQL into a live Kafka, through crashes, outages and lost history."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from freshet.local.mysql import MySQLServer
from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.backfill import chunks
from stream.wire.events import RowChange
from tests.patience import PATIENCE_S
from tests.sources.mariadb.backfilling import Backfilled
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_source import PARTITIONS, ROOT, Running, images, of_kind, published, until
from tests.stream.committed import markers, records, rows

KILLS = 4


def command(kafka: KafkaCluster, keyspace: str, source: Source) -> list[str]:
    """The command line that runs the source as a separate process."""
    at = source.settings
    words = "-m freshet.cli source mysql --keyspace {} --host {} --port {} --user {} --database {} --bootstrap {}"
    named = words.format(keyspace, at.host, at.port, at.user, source.database, kafka.bootstrap)
    return [sys.executable, *named.split(), "--partitions", str(PARTITIONS), "--server-id", "77124"]


def test_killed_at_any_instant_it_publishes_every_change_once(
    kafka: KafkaCluster, keyspace_name: str, source: Source, mysql: MariaDBAddress
) -> None:
    """After kill -9 under load, inside large, tagged and compressed transactions, the topic has every change once."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, j JSON)", "SET SESSION cte_max_recursion_depth = 10000")
    source.begin()
    environment = os.environ | {
        "FRESHET_MARIADB_PASSWORD": mysql.password,
        "FRESHET_PUBLISHER__BATCH_BYTES": "16384",
        "FRESHET_LOG__FORMAT": "json",
        "FRESHET_PUBLISHER__BATCH_INTERVAL_MS": "5",
    }

    def write(number: int) -> None:
        size = 2000 if number % 4 == 0 else 3
        source.run(
            f"SET gtid_next = 'AUTOMATIC{random.choice(['', ':a', ':b'])}'",
            f"SET SESSION binlog_transaction_compression = {number % 2}",
            "REPLACE INTO t WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s"
            f" WHERE n < {size}) SELECT n, {number}, JSON_OBJECT('n', n) FROM s",
            f"DELETE FROM t WHERE id = {number}",
            "SET gtid_next = 'AUTOMATIC'",
        )

    for number in range(KILLS + 1):
        process = subprocess.Popen(
            command(kafka, keyspace_name, source), env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        line = ""
        while '"ready"' not in line:
            line = process.stderr.readline()
            assert line, f"exit code {process.wait()}"
        for _ in range(3):
            write(number * 3)
            write(number * 3 + 1)
        if number < KILLS:
            time.sleep(0.03 * number)  # the instant of the kill is what is varied
            process.kill()
        else:
            until(lambda: published(kafka, keyspace_name) == source.position(), "everything")
            process.send_signal(signal.SIGTERM)
        process.stderr.read()
        code = process.wait(timeout=PATIENCE_S)
    assert code == 0
    expected = [
        (change.key, change.image, transaction.gtid)
        for transaction in source.transactions()
        for change in transaction.changes
        if isinstance(change, RowChange)
    ]
    found = rows(records(kafka, keyspace_name, PARTITIONS))
    assert [(key, image, gtid) for _, key, image, gtid in found] == expected
    assert [ordinal for ordinal, *_ in found] == list(range(found[0][0], found[0][0] + len(found)))
    assert images(kafka, keyspace_name) == source.selected("t")
    assert {marker["position"].partition("/")[0] for marker in markers(records(kafka, keyspace_name, PARTITIONS))} == {
        "MySQL56"
    }


def test_it_waits_for_an_unreachable_server_and_continues(
    kafka: KafkaCluster,
    keyspace_name: str,
    new_mysql: Callable[..., MySQLServer],
    source_of: Callable[[Any, str], Source],
) -> None:
    """After kill -9 and restart of MySQL nothing is lost and no new epoch starts; a history that is gone starts one."""
    server = new_mysql()
    source = source_of(server.address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with Running(kafka, keyspace_name, source) as running:
        source.run("INSERT INTO t VALUES (2)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "a row")
        running.ready.clear()
        server.kill()
        until(lambda: running.source.status.outage == "MySQL is unreachable", "the outage")
        server.restart()
        again = source_of(server.address, "d")
        again.run("INSERT INTO t VALUES (3)")
        until(lambda: published(kafka, keyspace_name) == again.position(), "rows after the restart")
        assert set(images(kafka, keyspace_name)) == {b"d.t\0[2]", b"d.t\0[3]"}
        assert len(of_kind(kafka, keyspace_name, "EpochStart")) == 1
        again.run("RESET BINARY LOGS AND GTIDS", "INSERT INTO t VALUES (4)")
        until(lambda: len(of_kind(kafka, keyspace_name, "EpochStart")) == 2, "a new epoch")
        again.run("INSERT INTO t VALUES (5)")
        until(lambda: len(of_kind(kafka, keyspace_name, "TableSchema")) == 2, "the table in the new history")
        again.run("INSERT INTO t VALUES (6)")
        until(lambda: b"d.t\0[6]" in images(kafka, keyspace_name), "rows of the new history")
    assert [found["reason"] for found in of_kind(kafka, keyspace_name, "EpochStart")] == ["first_start", "history_lost"]


def test_a_keyspace_that_moves_from_mariadb_to_mysql_starts_a_new_epoch(
    kafka: KafkaCluster, keyspace_name: str, source: Source, mariadb: MariaDBAddress, database: str
) -> None:
    """Positions of the two kinds can't be compared: nothing that was published before counts any more."""
    from tests.sources.mariadb.conftest import settings_of

    before = Source(settings_of(mariadb), database)
    before.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with Running(kafka, keyspace_name, before):
        before.run("INSERT INTO t VALUES (1)")
        until(lambda: published(kafka, keyspace_name) == before.position(), "rows of MariaDB")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with Running(kafka, keyspace_name, source):
        source.run("INSERT INTO t VALUES (2)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "rows of MySQL")
    with Running(kafka, keyspace_name, before):
        until(lambda: published(kafka, keyspace_name) == before.position(), "MariaDB again")
    before.close()
    assert [found["reason"] for found in of_kind(kafka, keyspace_name, "EpochStart")] == [
        "first_start",
        "history_lost",
        "history_lost",
    ]


def test_whole_tables_are_read_beside_their_changes(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill of MySQL's tables is exact while they change: its chunks lie between two sets of GTIDs."""
    monkeypatch.setattr(chunks, "ROWS_MAX", 7)
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, d DOUBLE, j JSON)", "CREATE TABLE hollow (id INT PRIMARY KEY)"
    )
    source.run("INSERT INTO t VALUES " + ", ".join(f"({n}, {n}, {n / 7}, '[{n}]')" for n in range(150)))
    r = random.Random(1)
    with Backfilled(source) as backfilled:
        for _ in range(60):
            at, other = r.randrange(200), r.randrange(200)
            source.run(
                r.choice(
                    [
                        f"UPDATE t SET v = v + 1 WHERE id = {at}",
                        f"DELETE FROM t WHERE id = {at}",
                        f"INSERT IGNORE INTO t VALUES ({at}, 1, 0.1, '{{}}')",
                        f"UPDATE IGNORE t SET id = {other} WHERE id = {at}",
                    ]
                )
            )
        backfilled.await_whole("t", "hollow")
        assert backfilled.images("t") == source.selected("t")
        assert backfilled.is_absent("t", 1_000)
