"""The processes of a deployment on one machine: real Kafka and MariaDB, sources, consumer, read API.

Each is a separate process, as in production, started with the command that a user would type. Everything that was
started is stopped, also on failure and on Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import pymysql
import structlog
import tomli_w

from freshet.local.errors import LocalServerError
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBServer
from freshet.local.process import ServerProcess, free_ports
from freshet.local.server import LocalServer
from freshet.signals import signals_held
from serving.client import FreshetClient

log = structlog.get_logger(__name__)

ROWS, CATALOG = "shop", "hive"
"""Keyspaces. The rows come from the database of the same name, the catalog from `CATALOG_DATABASE`."""
CATALOG_DATABASE = "catalog_truth"
READY_TIMEOUT_S = 180.0


@dataclass(slots=True)
class Role:
    """One of our processes, with the command that starts it. ``starts``: how often it was started."""

    command: list[str]
    process: ServerProcess | None = None
    starts: int = 0


class Stack:
    """A running deployment in ``directory``, which is the caller's. A context manager."""

    def __init__(self, directory: Path, partitions: int = 4, overrides: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        self.partitions = partitions
        self.config = directory / "freshet.toml"
        self.kafka = KafkaServer(directory / "kafka")
        self.mariadb = MariaDBServer(directory / "mariadb")
        self.roles: dict[str, Role] = {}
        self._overrides = dict(overrides or {})
        self._stop = ExitStack()
        self._api_port = 0

    @property
    def url(self) -> str:
        """Base URL of the read API."""
        return f"http://127.0.0.1:{self._api_port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._stop.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.close()

    def start(self, prepare: Callable[[], None] | None = None) -> None:
        """Starts Kafka and MariaDB, creates the databases, then calls ``prepare``. Raises `LocalServerError`."""
        servers = self.servers()
        for server in servers:
            self._stop.callback(server.stop)
        with ThreadPoolExecutor(len(servers)) as pool:
            try:
                with signals_held():
                    starting = [pool.submit(server.start) for server in servers]
                for each in starting:
                    each.result()
            except BaseException:  # the pool waits for all, so Ctrl-C ends them
                for server in servers:
                    server.stop()
                raise
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {ROWS} CHARACTER SET utf8mb4")
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {CATALOG_DATABASE} CHARACTER SET utf8mb4")
        if prepare is not None:
            prepare()

    def servers(self) -> Sequence[LocalServer]:
        """What `start` starts, at the same time. The last one is stopped first."""
        return self.mariadb, self.kafka

    def connect(
        self, database: str | None = None, autocommit: bool = True
    ) -> pymysql.connections.Connection[pymysql.cursors.Cursor]:
        """A connection to MariaDB."""
        return self.mariadb.connect(database=database, autocommit=autocommit, charset="utf8mb4")

    def connect_as_writer(self, database: str) -> pymysql.connections.Connection[pymysql.cursors.Cursor]:
        """A connection without autocommit, as an application has it."""
        return self.connect(database, autocommit=False)

    def commands(self) -> dict[str, list[str]]:
        """Name → arguments of `freshet`, for each of our processes."""
        return {
            "source-rows": ["source", "mariadb", "--keyspace", ROWS],
            "source-catalog": ["source", "workload", "--keyspace", CATALOG],
            "consume": ["consume"],
            "serve": ["serve"],
        }

    def start_roles(self, wait: bool = True) -> None:
        """Starts sources, consumer and read API; ``wait``: until the read API is ready. Raises `LocalServerError`."""
        self._api_port = free_ports(1)[0]
        self._write_config()
        for name, command in self.commands().items():
            self.add_role(name, command)
            self.start_role(name)
        if wait:
            self.wait_ready()

    def client(self) -> FreshetClient:
        """A client as an application has it."""
        return FreshetClient(self.url)

    def add_role(self, name: str, command: list[str]) -> None:
        """Describes one of our processes, which is stopped at the end. ``command``: arguments of `freshet`."""
        freshet = [sys.executable, "-m", "freshet", "--config", str(self.config_of(name)), "--log-format", "json"]
        self.roles[name] = Role([*freshet, *command])
        self._stop.callback(self.stop_role, name)

    def start_role(self, name: str) -> None:
        """Starts one of our processes."""
        role = self.roles[name]
        role.starts += 1
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment_of(name)}
        role.process = ServerProcess(
            name, role.command, log_file=self.directory / f"{name}.log", env=environment, cwd=self.directory
        )

    def stop_role(self, name: str) -> None:
        """Stops one of our processes with SIGTERM. Does nothing if it is not running."""
        process = self.roles[name].process
        if process is not None:
            process.stop()

    def kill_role(self, name: str) -> None:
        """Kills one of our processes with SIGKILL."""
        process = self.roles[name].process
        if process is not None:
            process.kill()

    def unexpected_exit(self) -> str | None:
        """A process that exited without being stopped, with the end of its log; None if all are running."""
        for name, role in self.roles.items():
            if role.process is not None and not role.process.running():
                return f"{name} exited unexpectedly:\n{role.process.log_tail()}"
        return None

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Polls /readyz. Raises `LocalServerError` with its last answer, or with the log of a process that exited."""
        deadline = time.monotonic() + timeout_s
        last_answer = "no answer"
        while time.monotonic() < deadline:
            if ended := self.unexpected_exit():
                raise LocalServerError(ended, hint=f"see the logs in {self.directory}")
            try:
                answer = httpx2.get(f"{self.url}/readyz", timeout=2, trust_env=False)
                if answer.status_code == httpx2.codes.OK:
                    return
                last_answer = answer.text
            except httpx2.HTTPError as error:
                last_answer = str(error)
            time.sleep(0.1)
        raise LocalServerError(
            f"not ready after {timeout_s:.0f} s: {last_answer}", hint=f"see the logs in {self.directory}"
        )

    def config_of(self, role: str) -> Path:  # noqa: ARG002 - a subclass has one file per role
        """The settings file of one of our processes."""
        return self.config

    def environment_of(self, role: str) -> dict[str, str]:  # noqa: ARG002 - as above
        """Additional environment variables of one of our processes."""
        return {}

    def _write_config(self) -> None:
        self.config.touch(mode=0o600)
        self.config.write_text(tomli_w.dumps(self.settings()))

    def settings(self) -> dict[str, Any]:
        """The content of the settings file."""
        address = self.mariadb.address
        server = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password,
        }
        rows = {"kind": "mariadb", **server, "databases": [ROWS], "server_id": 4380, "backfill": ["*"]}
        catalog = {"kind": "workload", **server, "database": CATALOG_DATABASE}
        return {
            "data_dir": str(self.directory / "stores"),
            "kafka": {"bootstrap": self.kafka.bootstrap},
            "keyspaces": {
                ROWS: {"kind": "rows", "partitions": self.partitions, "source": rows},
                CATALOG: {"kind": "catalog", "partitions": 2, "source": catalog},
            },
            "serve": {"port": self._api_port},
        } | self._overrides
