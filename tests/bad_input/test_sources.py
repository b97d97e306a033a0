"""A MariaDB that cannot be followed, or sends rows too large for a frame, under `freshet source mariadb`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports
from stream.kafka.connection import KafkaCluster
from tests.bad_input.running import freshet_fails, source_arguments
from tests.patience import PATIENCE_S
from tests.serving.stack import ServingStack, eventually

ROW_BYTES = 20 << 20


class Deployment:
    """A stack over a MariaDB of the test's own, with one table."""

    def __init__(self, kafka: KafkaCluster, server: Any, keyspace: str, directory: Path) -> None:
        self.server, self.kafka, self.keyspace = server, kafka, keyspace
        with server.connect(autocommit=True) as session, session.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        self.stack = ServingStack(directory, kafka, server.address, keyspace, "d")

    def source_fails(self, *arguments: str) -> str:
        """The output of `freshet source mariadb`, which must fail."""
        given = source_arguments(self.kafka, self.server.address, "d", self.keyspace)
        return freshet_fails(*given, "--partitions", "2", *arguments)

    def follows(self, key: int, **options: Any) -> None:
        """A write is read back from the cache by the session that made it."""
        with self.stack.client() as client:
            session = client.session()
            with session.wrap(self.stack.connect(**options), shard=self.stack.shard) as connection:
                with connection.cursor() as cursor:
                    cursor.execute(f"REPLACE INTO t VALUES ({key}, {key})")
                connection.commit()
            row = eventually(
                lambda: next(
                    (
                        found
                        for found in [session.get_row(self.keyspace, "t", key, max_wait_ms=5_000)]
                        if found.served_from == "cache"
                    ),
                    None,
                ),
                what="an answer from the cache",
            )
            assert row is not None
            assert (row.freshness, row.value) == ("fresh", {"id": key, "v": key})


@pytest.fixture
def deployment(kafka: KafkaCluster, new_mariadb: Callable[..., Any], keyspace_name: str, tmp_path: Path) -> Deployment:
    """A deployment that is not started."""
    return Deployment(kafka, new_mariadb(durable=False), keyspace_name, tmp_path)


def test_a_purged_binlog_stops_the_source_until_a_new_epoch_is_asked_for(deployment: Deployment) -> None:
    """A purged binlog is one error that says where the source could start, and --new-epoch continues."""
    with deployment.stack as stack:
        deployment.follows(1)
        assert stack.stop("source") == 0
        stack.run("REPLACE INTO t VALUES (2, 2)", "FLUSH BINARY LOGS", "REPLACE INTO t VALUES (3, 3)")
        _purge(deployment)
        said = deployment.source_fails()
        assert "error[binlog_purged]: the binary logs after MariaDB/0-" in said
        assert "could start at" in said
        assert "hint: start a new epoch (--new-epoch)" in said
        stack.start("source", "--new-epoch")
        deployment.follows(4)
        rows = f"/v1/rows/{deployment.keyspace}/t"
        eventually(lambda: stack.get(f"{rows}/1").json()["served_from"] == "source", what="the lost history's void")
        assert stack.get(f"{rows}/2").json()["row"] == {"id": 2, "v": 2}, "it was never published"


def test_an_unknown_domain_stops_the_source_until_a_new_epoch_is_asked_for(deployment: Deployment) -> None:
    """An unknown GTID domain is one error that names it, and --new-epoch continues."""
    with deployment.stack as stack:
        deployment.follows(1)
        assert stack.stop("source") == 0
        with stack.connect() as session, session.cursor() as cursor:
            cursor.execute("SET SESSION gtid_domain_id = 7")
            cursor.execute("REPLACE INTO t VALUES (2, 2)")
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("SET SESSION gtid_domain_id = 0")
            cursor.execute("REPLACE INTO t VALUES (3, 3)")
        _purge(deployment)
        said = deployment.source_fails()
        assert "error[unknown_domain]: the server has events of GTID domain 7" in said
        assert "hint: it would replay" in said
        stack.start("source", "--new-epoch")
        deployment.follows(4)


def test_a_row_of_twenty_megabytes_is_read_through_and_the_stream_goes_on(deployment: Deployment) -> None:
    """A row too large for a frame is published as void: the source answers for it, the cache for all others."""
    with deployment.stack as stack:
        stack.run("SET GLOBAL max_allowed_packet = 1073741824", "CREATE TABLE big (id INT PRIMARY KEY, v LONGBLOB)")
        with stack.connect() as session, session.cursor() as cursor:
            cursor.execute(f"INSERT INTO big VALUES (1, REPEAT('x', {ROW_BYTES})), (2, 'small')")
        deployment.follows(1)
        found = stack.get(f"/v1/rows/{deployment.keyspace}/big/1", max_wait_ms="100")
        assert found.status_code == 200, found.text[:300]
        assert found.json()["served_from"] == "source"
        assert len(found.json()["row"]["v"]["base64"]) > ROW_BYTES
        other = f"/v1/rows/{deployment.keyspace}/big/2"  # of another partition, which may be folded later
        eventually(lambda: stack.get(other).json()["served_from"] == "cache", what="the other row in the cache")


def test_servers_that_are_away_when_the_processes_start_are_waited_for(
    new_kafka: Callable[..., Any], new_mariadb: Callable[..., Any], keyspace_name: str, tmp_path: Path
) -> None:
    """Source, consumer and front that start before Kafka and MariaDB log once what is missing, and become ready."""
    kafka_port, mariadb_port = free_ports(2)
    server = new_mariadb(port=mariadb_port, durable=False)
    with server.connect(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
    server.stop()
    with ExitStack() as stack:
        absent = MariaDBAddress("127.0.0.1", mariadb_port, "root", "freshet")
        waiting = ServingStack(tmp_path, KafkaCluster(f"127.0.0.1:{kafka_port}"), absent, keyspace_name, "d")
        stack.callback(waiting.close)
        for role in ("source", "consume", "serve"):
            waiting.start(role)
        eventually(lambda: waiting.log_of("source").count("mariadb_unreachable") == 1, what="the source says so")
        eventually(
            lambda: waiting.log_of("consume").count("consuming was interrupted") == 1, what="the consumer says so"
        )
        server.start()
        eventually(lambda: waiting.log_of("source").count("kafka_unreachable") == 1, what="the source says so")
        new_kafka(port=kafka_port)
        waiting.wait_ready()
        for role in ("source", "consume", "serve"):
            assert "Traceback" not in waiting.log_of(role)
            assert waiting.stop(role) == 0


def _purge(deployment: Deployment) -> None:
    """Purges all binary logs but the last. Retries, since the server keeps a log that its recovery needs."""
    deadline = time.monotonic() + PATIENCE_S
    with deployment.stack.connect() as session, session.cursor() as cursor:
        while True:
            cursor.execute("SHOW BINARY LOGS")
            logs = [row[0] for row in cursor.fetchall()]
            if len(logs) == 1:
                return
            assert time.monotonic() < deadline, logs
            cursor.execute(f"PURGE BINARY LOGS TO '{logs[-1]}'")
            time.sleep(0.05)
