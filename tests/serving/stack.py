"""Source, consumer and read API as processes of their own, over the session's Kafka and a MariaDB or MySQL."""

from __future__ import annotations

import copy
import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
import tomli_w

from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import ServerProcess, free_ports
from serving.client import FreshetClient
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from tests.patience import PATIENCE_S
from tokens import Position, Vector

Found = TypeVar("Found")

ROWS = ("mariadb", "mysql", "debezium")
"""The kinds of sources of rows."""


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    connection.settimeout(0.001)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def eventually(look: Callable[[], Found], *, timeout_s: float = PATIENCE_S, what: str = "it") -> Found:
    """The first true value of ``look``; fails the test if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s")
        time.sleep(0.02)


def without_settings() -> dict[str, str]:
    """This process's environment without settings of Freshet."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")}


class ServingStack:
    """One keyspace of rows (or a catalog) from its source to HTTP. A context manager; stops what it started."""

    def __init__(
        self,
        directory: Path,
        kafka: KafkaCluster,
        mariadb: MariaDBAddress | None,
        keyspace: str,
        database: str,
        *,
        kind: str = "mariadb",
        partitions: int = 2,
        source: dict[str, Any] | None = None,
        indexes: Sequence[str] = (),
        invalidate: Sequence[str] = (),
        published: dict[str, bool] | None = None,
        **source_settings: Any,
    ) -> None:
        """``published``: what the keyspace publishes besides. ``source``: the settings of a source that is no MariaDB;
        ``source_settings``: more of one that is.
        """
        self.directory = directory
        self.keyspace, self.database = keyspace, database
        if mariadb is not None:
            self.mariadb = mariadb
        self.is_mysql = kind == "mysql"
        self.shard = f"{keyspace}/0"
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment: dict[str, str] = {}
        """More variables of the processes that start from now on."""
        self._processes: dict[str, ServerProcess] = {}
        self._said_before: dict[str, int] = {}
        """Role → characters in its log when it was started last."""
        if source is None:
            assert mariadb is not None
            server = {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user, "password": mariadb.password}
            of_rows = {"databases": [database], "server_id": random.randrange(10**6, 10**9)}
            source = server | (of_rows if kind in ROWS else {"database": database}) | source_settings
        settings: dict[str, Any] = {
            "data_dir": str(directory / "stores"),
            "kafka": {"bootstrap": kafka.bootstrap, "prefix": kafka.prefix},
            "keyspaces": {
                keyspace: {
                    "kind": "rows" if kind in ROWS else "catalog",
                    "partitions": partitions,
                    "indexes": list(indexes),
                    "invalidate": list(invalidate),
                    **(published or {}),
                    "source": {"kind": kind, **source},
                }
            },
            "consumer": {"group": f"group-{keyspace}"},
            "serve": {"port": self.port},
        }
        self._settings = settings
        self.config = directory / "freshet.toml"
        self.config.write_text(tomli_w.dumps(settings))
        self._commands = {
            "source": ["source", kind, "--keyspace", keyspace],
            "consume": ["consume"],
            "serve": ["serve"],
        }
        self._programs: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        try:
            for role in self._commands:
                self.start(role)
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, role: str, *flags: str) -> None:
        """Starts a process, with ``flags`` added to its command."""
        config = self.directory / f"{role}.toml"
        used = str(config if config.exists() else self.config)
        program = self._programs.get(role, ["-m", "freshet"])
        command = [sys.executable, *program, "--config", used, *self._commands[role], *flags]
        environment = without_settings() | {"PYTHONPATH": str(Path(__file__).parents[2])} | self.environment
        self._said_before[role] = len(self.log_of(role))
        self._processes[role] = ServerProcess(
            role, command, log_file=self.directory / f"{role}.log", env=environment, cwd=self.directory
        )

    def add_front(self, serve: dict[str, Any] | None = None, **source: Any) -> FreshetClient:
        """Starts another front of the keyspace, with these settings of its own and of its source; a client of it."""
        settings = copy.deepcopy(self._settings)
        settings["keyspaces"][self.keyspace]["source"] |= source
        settings["serve"] |= {"port": free_ports(1)[0]} | (serve or {})
        port = settings["serve"]["port"]
        config = self.directory / f"front-{port}.toml"
        config.write_text(tomli_w.dumps(settings))
        role = config.stem
        self._commands[role] = ["serve"]
        self.start(role)
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            try:
                return httpx2.get(f"{url}/readyz", timeout=2).status_code == httpx2.codes.OK
            except httpx2.HTTPError:
                return False

        eventually(ready, what="another front")
        return FreshetClient(url)

    def add_follower(self) -> None:
        """Starts a consumer that follows the owner, as ``follower``; returns once all its partitions are announced."""
        self._add_consumers("follower", follower=True)
        kafka = self._settings["kafka"]
        with LocationsReader(KafkaCluster(kafka["bootstrap"], prefix=kafka["prefix"])) as reader:
            eventually(
                lambda: all(reader.followers(self.keyspace, each) for each in self.partitions), what="a follower"
            )

    @property
    def partitions(self) -> range:
        """Those of the keyspace."""
        return range(self._settings["keyspaces"][self.keyspace]["partitions"])

    def add_standby(self, code: str) -> str:
        """Starts a standby, as ``standby``, by a program in place of ``python -m freshet``; its address, once ready."""
        port = free_ports(1)[0]
        self._add_consumers("standby", code, standby=True, owner_port=port)
        eventually(lambda: "ready" in self.log_of("standby"), what="a standby")
        return f"127.0.0.1:{port}"

    def _add_consumers(self, role: str, code: str = "", **options: Any) -> None:
        """Starts a second group of consumers, with stores of its own."""
        settings = copy.deepcopy(self._settings)
        settings["data_dir"] = str(self.directory / f"stores-{role}")
        settings["consumer"] |= {"group": f"{role}-{self.keyspace}", **options}
        (self.directory / f"{role}.toml").write_text(tomli_w.dumps(settings))
        self._commands[role] = ["consume"]
        if code:
            self._programs[role] = ["-c", code]
        self.start(role)

    def pid_of(self, role: str) -> int:
        """The process id of what runs as ``role``."""
        return self._processes[role]._popen.pid

    def kill(self, role: str) -> None:
        """Kill -9."""
        self._processes[role].kill()

    def stop(self, role: str) -> int:
        """SIGTERM; the exit code."""
        process = self._processes[role]
        process.stop(PATIENCE_S)
        return process._popen.returncode

    def log_of(self, role: str) -> str:
        """Everything that a process has logged, and those before it."""
        log = self.directory / f"{role}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def wait_ready(self, *roles: str) -> None:
        """Until /readyz says so; fails with the logs of what ended, of ``roles`` (default: all)."""

        def ready() -> bool:
            for process in (self._processes[role] for role in roles or self._processes):
                assert process.running(), f"{process.name} ended:\n{process.log_tail()}"
            try:
                return httpx2.get(f"{self.url}/readyz", timeout=2).status_code == httpx2.codes.OK
            except httpx2.HTTPError:
                return False

        eventually(ready, what="readiness")
        # An empty topic is caught up with at once: the shard's first marker is what says that its source is there.
        location = f"/v1/locations/{self.keyspace}/0"
        eventually(lambda: Vector.parse(self.get(location).json().get("token", "")), what="the source's first marker")
        # A source marks before it reads the tables. What is written until then is told as a void of its table.
        for role in [each for each in self._processes if each.startswith("source")]:
            eventually(lambda r=role: self.has_begun(r), what=f"{role} reads the log")  # type: ignore[misc]

    def has_begun(self, role: str) -> bool:
        """Whether a source knows the tables, and reads the log; or has ended."""
        said = self.log_of(role)[self._said_before[role] :]
        return bool(re.search(r"\bready\b", said)) or not self._processes[role].running()

    def close(self) -> None:
        """Stops everything."""
        for process in reversed(list(self._processes.values())):
            process.stop()

    def client(self) -> FreshetClient:
        """A client of the read API."""
        return FreshetClient(self.url)

    def connect(self, **options: Any) -> Any:
        """A connection to the database, autocommit unless said otherwise."""
        return self.mariadb.connect(**{"database": self.database, "autocommit": True, **options})

    def run(self, *statements: str) -> None:
        """Statements, each in a transaction of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def get(self, path: str, **params: str) -> httpx2.Response:
        """GET below the API's root."""
        return httpx2.get(f"{self.url}{path}", params=params, timeout=40)


def is_complete(stack: ServingStack, table: str) -> bool:
    """Whether the cache can count a table's rows."""
    return bool(stack.get(f"/v1/rows/{stack.keyspace}/{table}", only="count").json()["served_from"] == "cache")


def settled(stack: ServingStack) -> str:
    """A token that the cache has reached: everything committed so far is folded in every partition."""
    with stack.connect() as connection, connection.cursor() as cursor:
        flavor, variable = ("MySQL56", "GLOBAL.gtid_executed") if stack.is_mysql else ("MariaDB", "gtid_binlog_pos")
        cursor.execute(f"SELECT @@{variable}")
        position = Position.parse(f"{flavor}/{cursor.fetchone()[0]}")

    def reached() -> str:
        tokens = [stack.get(f"/v1/locations/{stack.keyspace}/{p}").json()["token"] for p in stack.partitions]
        components = [Vector.parse(token).get(stack.shard) for token in tokens]
        there = all(component is not None and component.position.at_or_past(position) for component in components)
        return tokens[0] if there else ""

    return eventually(reached, what="folding")
