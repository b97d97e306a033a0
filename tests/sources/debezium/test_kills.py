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
from contextlib import contextmanager
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
from tests.sources.mariadb.test_source import PARTITIONS, ROOT, published, until

pytestmark = pytest.mark.long

KILLS = length(3, 24)
SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"
partitions = {partitions}

[publisher]
batch_bytes = 16384
batch_interval_ms = 5

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
        self.command = [
            *"-m freshet --config".split(),
            str(self.config),
            *"source debezium --keyspace".split(),
            keyspace,
        ]
        self.start()

    def start(self) -> None:
        """Start it; it may take a while until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.command], env=self.environment, cwd=ROOT, stderr=log, stdout=log
            )

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
    mysql: MariaDBAddress,
    tmp_path: Path,
) -> None:
    """Under load, each process is killed in turn at instants that differ; then the topic has the binlog's transactions."""
    kafka = new_kafka()
    connect = new_connect(kafka.cluster)
    keyspace = f"ks{uuid.uuid4().hex[:10]}"
    r = random.Random(5)
    with own_database(mysql) as database:
        source = Source(settings_of(mysql, "MySQL"), database)
        captured = Captured(kafka.cluster, connect, source, f"c{uuid.uuid4().hex[:10]}")
        source.run(
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), n BIGINT UNSIGNED)",
            "CREATE TABLE u (a INT, b VARCHAR(10), PRIMARY KEY (b, a))",
            "INSERT INTO t VALUES (0, 'there before', 0)",
            "INSERT INTO u VALUES (0, 'x')",
        )
        captured.create()
        process = Process(captured, keyspace, tmp_path)
        try:
            until(lambda: "ready" in process.log.read_text(), "ready")
            source.run("INSERT INTO u VALUES (1, 'x')")
            until(lambda: published(kafka.cluster, keyspace) == source.position(), "the first row")
            source.begin()
            pause = threading.Event()
            victims = [process.kill, lambda: (connect.kill(), connect.start()), lambda: (kafka.kill(), kafka.start())]
            for number in range(KILLS):
                with writing(source):
                    pause.wait(r.uniform(0.2, 1.5))  # the instant of the kill is what is varied
                    victims[number % len(victims)]()
                    pause.wait(r.uniform(0.0, 1.0))
            connect.await_task(captured.prefix)
            until(lambda: published(kafka.cluster, keyspace) == source.position(), process.log.read_text()[-3000:])
            process.stop()
        finally:
            process.process.kill()
            process.process.wait()
        same, wrong = captured.differences(keyspace)
        source.close()
    assert not wrong
    assert same > KILLS * 20
