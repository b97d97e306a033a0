"""Kafka Connect with Debezium's connectors, as a local process: one distributed worker."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx2

from freshet.local.artifacts import jars
from freshet.local.errors import LocalServerError
from freshet.local.java import QUICK_START, class_archive, find_java
from freshet.local.kafka import LOG4J2, KafkaServer
from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import ServerProcess
from freshet.local.server import LocalServer
from stream.kafka.connection import KafkaCluster
from stream.sources.debezium.connector import HEARTBEAT_QUERY
from tests.patience import PATIENCE_S
from tests.servers.choice import started, used
from tokens.errors import FreshetError

START_TIMEOUT_S: Final = 180.0
REQUEST_TIMEOUT_S: Final = 90.0
POLL_S: Final = 0.05
RETRIED: Final = {httpx2.codes.CONFLICT, httpx2.codes.INTERNAL_SERVER_ERROR, httpx2.codes.NOT_FOUND}
"""What a worker answers while it takes its connectors over."""
CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"
CLASSES: Final = {
    "MySQL": "io.debezium.connector.mysql.MySqlConnector",
    "MariaDB": "io.debezium.connector.mariadb.MariaDbConnector",
    "PostgreSQL": "io.debezium.connector.postgresql.PostgresConnector",
}


class ConnectServer(LocalServer):
    """One worker that writes each batch of a connector in one transaction (``exactly.once.source.support``).

    What it keeps lies in topics of ``kafka``, so that a worker started again on the same directory goes on, also after
    a kill. ``train``: the flag that makes the archive of its classes.
    """

    NAME = "Kafka Connect"
    PORT_TAKEN = ("Address already in use", "Failed to bind")

    def __init__(self, data_dir: Path, kafka: KafkaCluster, *, train: str | None = None) -> None:
        super().__init__(data_dir, None, detached=False)
        self.kafka = kafka
        self.train = train
        self.group = f"connect-{uuid.uuid4().hex[:10]}"

    @property
    def url(self) -> str:
        """Where its REST interface is."""
        return f"http://{self.host}:{self.port}"

    def _launch(self) -> None:
        (self.data_dir / "log4j2.properties").write_text(LOG4J2)
        properties = {
            "bootstrap.servers": self.kafka.bootstrap,
            "group.id": self.group,
            "listeners": self.url,
            "exactly.once.source.support": "enabled",
            "key.converter": CONVERTER,
            "value.converter": CONVERTER,
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "plugin.discovery": "service_load",
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "6000",  # a restart after a kill waits until the old member lapses
            "heartbeat.interval.ms": "1000",
        }
        for kind in ("config", "offset", "status"):
            properties[f"{kind}.storage.topic"] = f"{self.group}-{kind}"
            properties[f"{kind}.storage.replication.factor"] = "1"
        config = self.data_dir / "worker.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        classpath = os.pathsep.join(str(jar) for jar in jars("connect"))
        flags = (self.train,) if self.train else class_archive("connect", classpath, _train)
        log4j = f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}"
        command = [find_java().path, *QUICK_START, *flags, "-Xmx384m", log4j, "-cp", classpath]
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        log = self.data_dir / "connect.log"
        self._process = ServerProcess(self.NAME, [*command, main, str(config)], log_file=log, cwd=self.data_dir)
        self._await(self._answers, START_TIMEOUT_S)

    def stop(self) -> None:
        """End it at once: an orderly stop takes 13 s, and all that it keeps is in Kafka. But training needs one."""
        if self.train is None and self._process is not None:
            self.kill()
        super().stop()

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/connectors", timeout=10).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False

    def create(self, name: str, config: Mapping[str, str]) -> None:
        """Make a connector, or give one another configuration, and wait until its task runs. Raises as `await_task`."""
        self._ask("PUT", f"/connectors/{name}/config", dict(config))
        self.await_task(name)

    def await_task(self, name: str) -> None:
        """Wait until a connector's task runs. Raises `LocalServerError` with its trace if it fails."""
        deadline = time.monotonic() + PATIENCE_S
        while (tasks := self.tasks(name)) != ["RUNNING"]:
            if any(state.startswith("FAILED") for state in tasks):
                raise LocalServerError(f"connector {name}: {tasks}")
            if time.monotonic() > deadline:
                raise LocalServerError(f"connector {name} does not run: {tasks}")
            time.sleep(POLL_S)

    def tasks(self, name: str) -> list[str]:
        """The states of a connector's tasks, and why they failed."""
        with suppress(httpx2.HTTPError):
            answer = httpx2.get(f"{self.url}/connectors/{name}/status", timeout=10)
            if answer.status_code == httpx2.codes.OK:
                return [f"{task['state']} {task.get('trace', '')}".strip() for task in answer.json()["tasks"]]
        return []

    def restart_task(self, name: str) -> None:
        """End a connector's task, and start it again where its offsets say."""
        self._ask("POST", f"/connectors/{name}/restart?includeTasks=true")

    def halt(self, name: str) -> None:
        """Stop the tasks of a connector, which keeps its configuration."""
        self._ask("PUT", f"/connectors/{name}/stop")

    def resume(self, name: str) -> None:
        """Start the tasks of a connector again that was halted."""
        self._ask("PUT", f"/connectors/{name}/resume")

    def delete(self, name: str) -> None:
        """Remove a connector. What it wrote stays."""
        self._ask("DELETE", f"/connectors/{name}")

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = httpx2.request(method, f"{self.url}{path}", json=body, timeout=REQUEST_TIMEOUT_S)
            if answer.is_success:
                return
            if answer.status_code not in RETRIED or time.monotonic() > deadline:
                raise LocalServerError(f"{method} {path}: {answer.status_code} {answer.text}")
            time.sleep(POLL_S)


def postgres_config(kafka: KafkaCluster, address: MariaDBAddress, database: str, prefix: str) -> dict[str, str]:
    """The configuration of a connector for PostgreSQL that a source of ours accepts."""
    config = debezium_config(kafka, "PostgreSQL", address, prefix)
    of_binlogs = ("schema.history", "database.server.id", "enable.time.adjuster", "connect.keep.alive")
    return {name: value for name, value in config.items() if not name.startswith(of_binlogs)} | {
        "database.dbname": database,
        "plugin.name": "pgoutput",
        "slot.name": prefix,
        "publication.name": prefix,
        "lsn.flush.mode": "connector",
        "heartbeat.interval.ms": "200",
        "heartbeat.action.query": HEARTBEAT_QUERY,
        "message.prefix.exclude.list": "freshet",
        "status.update.interval.ms": "200",
        "decimal.handling.mode": "string",
    }


def debezium_config(kafka: KafkaCluster, server: str, address: MariaDBAddress, prefix: str) -> dict[str, str]:
    """The configuration of a connector that a source of ours accepts. ``server``: MySQL or MariaDB."""
    return {
        "connector.class": CLASSES[server],
        "tasks.max": "1",
        "topic.prefix": prefix,
        "database.hostname": address.host,
        "database.port": str(address.port),
        "database.user": address.user,
        "database.password": address.password,
        "database.server.id": str(uuid.uuid4().int % 2_000_000_000 + 1_000),
        "schema.history.internal.kafka.bootstrap.servers": kafka.bootstrap,
        "schema.history.internal.kafka.topic": f"{prefix}-history",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
        "provide.transaction.metadata": "true",
        "exactly.once.support": "required",
        "skipped.operations": "none",
        "column.propagate.source.type": ".*",
        "enable.time.adjuster": "false",
        "value.converter": CONVERTER,
        "value.converter.replace.null.with.default": "false",
        "event.converting.failure.handling.mode": "fail",
        "decimal.handling.mode": "precise",
        "binary.handling.mode": "bytes",
        "time.precision.mode": "adaptive_time_microseconds",
        "poll.interval.ms": "20",
        "connect.keep.alive.interval.ms": "5000",  # a quiet server's last transaction is told four seconds later
    }


def _train(flag: str) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="freshet-connect-") as directory,
        KafkaServer(Path(directory) / "kafka") as kafka,
        ConnectServer(Path(directory) / "connect", kafka.cluster, train=flag),
    ):
        pass


def can_be_had() -> bool:
    """Whether this machine has the worker's files, or can fetch them. If not, the summary says so."""
    try:
        jars("connect")
    except FreshetError as error:
        used["connect"] = f"NOT RUN: its files can't be fetched ({error})"
        return False
    used["connect"] = "local process"
    return True


@contextmanager
def connect_server(kafka: KafkaCluster) -> Iterator[ConnectServer | None]:
    """A worker beside ``kafka``; None if it can't be had."""
    if not can_be_had():
        yield None
        return
    with started(ConnectServer, kafka) as server:
        yield server
