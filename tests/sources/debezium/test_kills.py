"""kill -9 of each process between a database and the topic: the source, the worker of Kafka Connect, and Kafka."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from tests.lengths import length
from tests.patience import PATIENCE_S
from tests.servers.connect import ConnectServer
from tests.servers.databases import own_database
from tests.sources.debezium.conftest import Captured
from tests.sources.mariadb.conftest import Source, settings_of
from tests.sources.mariadb.test_source import PARTITIONS, ROOT, images, published, until
from tokens.errors import FreshetError

pytestmark = pytest.mark.long

KILLS = length(2, 24)
SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"

[publisher]
batch_bytes = 16384
batch_interval_ms = 5

[keyspaces.{keyspace}]
partitions = {partitions}

[keyspaces.{keyspace}.source]
kind = "debezium"
server = "{server}"
topic_prefix = "{prefix}"
connect_url = "{connect}"
host = "{host}"
port = {port}
user = "{user}"
databases = ["{database}"]
"""


class Process:
    """``freshet source debezium`` as a process, which may be killed and started again."""

    def __init__(self, captured: Captured, keyspace: str, directory: Path) -> None:
        at = captured.source.settings
        self.kafka, self.keyspace = captured.kafka, keyspace
        self.config = directory / "freshet.toml"
        self.log = directory / "source.log"
        self.environment = os.environ | {"FRESHET_MARIADB_PASSWORD": at.password}
        self.config.write_text(
            SETTINGS.format(
                bootstrap=captured.kafka.bootstrap,
                partitions=PARTITIONS,
                keyspace=keyspace,
                server=at.product.lower(),
                prefix=captured.prefix,
                connect=captured.connect.url,
                host=at.host,
                port=at.port,
                user=at.user,
                database=captured.source.database,
            )
        )
        self.command = ["-m", "freshet", "--config", str(self.config), "source", "debezium", "--keyspace", keyspace]
        self.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        """Start it; it may take a while until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.command], env=self.environment, cwd=ROOT, stderr=log, stdout=log
            )

    def until_published(self, position: str) -> None:
        """Wait until it has published up to a position. Fails at once if it has ended."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with suppress(FreshetError):  # the topic is not there yet, or its broker is not
                return published(self.kafka, self.keyspace) == position
            return False

        until(is_there, f"{position} published")

    def kill(self) -> None:
        """SIGKILL, and start it again."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        self.process.kill()
        self.process.wait()
        self.start()

    def stop(self) -> None:
        """An orderly end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()[-3000:]


@contextmanager
def writing(source: Source) -> Iterator[None]:
    """Transactions of several tables, small and large ones, while the body runs."""
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            size = 800 if number % 8 == 0 else 3
            values = ", ".join(f"({n}, 'v{number}', {number})" for n in range(size))
            source.run(
                "BEGIN",
                f"REPLACE INTO t VALUES {values}",
                f"DELETE FROM t WHERE id = {number % 5}",
                f"REPLACE INTO u VALUES ({number % 7}, 'u')",
                "COMMIT",
            )
            done.wait(0.05)  # the load, not the judge, is what is paced

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_whatever_is_killed_every_change_is_published_once(
    new_kafka: Callable[..., KafkaServer],
    new_connect: Callable[[KafkaCluster], ConnectServer],
    untagged_mysql: MariaDBAddress,
    tmp_path: Path,
) -> None:
    """Under load, each process is killed in turn at instants that differ; then the topic has what the binlog has."""
    kafka = new_kafka()
    connect = new_connect(kafka.cluster)
    keyspace = f"ks{uuid.uuid4().hex[:10]}"
    r = random.Random(5)
    with own_database(untagged_mysql) as database:
        source = Source(settings_of(untagged_mysql, "MySQL"), database)
        captured = Captured(kafka.cluster, connect, source, f"c{uuid.uuid4().hex[:10]}")
        source.run(
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), n BIGINT UNSIGNED)",
            "CREATE TABLE u (a INT, b VARCHAR(10), PRIMARY KEY (b, a))",
            "INSERT INTO t VALUES (0, 'there before', 0)",
            "INSERT INTO u VALUES (0, 'x')",
        )
        captured.create()

        def kill_worker() -> None:
            connect.kill()
            connect.start()

        def kill_kafka() -> None:
            kafka.kill()
            kafka.start()

        with Process(captured, keyspace, tmp_path) as process:

            def both_are_cached() -> bool:
                source.run("UPDATE t SET n = n + 1", "UPDATE u SET a = a + 1")
                process.until_published(source.position())
                tables = {key.partition(b"\0")[0] for key in images(captured.kafka, keyspace)}
                return tables == {f"{database}.{table}".encode() for table in "tu"}

            until(both_are_cached, "rows of both tables")  # until its schema is known a table is void
            source.begin()
            victims, pause = [kill_worker, process.kill, kill_kafka], threading.Event()
            for number in range(KILLS):
                with writing(source):
                    pause.wait(r.uniform(0.2, 1.5))  # the instant of the kill is what is varied
                    victims[number % len(victims)]()
                    pause.wait(r.uniform(0.0, 1.0))
            connect.await_task(captured.prefix)
            process.until_published(source.position())
            process.stop()
        same, wrong = captured.differences(keyspace)
        source.close()
    assert not wrong
    assert same > KILLS * 20
