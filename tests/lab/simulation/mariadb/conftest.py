"""A simulated MariaDB server in place of a real one, in a world with one thread."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lab.simulation.mariadb.connections import SimulatedDriver
from lab.simulation.mariadb.server import SimulatedServer
from stream.sources import sessions
from stream.sources.mariadb import by_key, connection, requirements, snapshot
from stream.sources.mariadb.binlog import dump
from stream.sources.mariadb.connection import ConnectionSettings

SETTINGS = ConnectionSettings("db", 3306, "root", "secret")
"""The address of the simulated server."""


class Alone:
    """`Waits` for one thread: while it waits, only time passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.current = "app"

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Let the time pass, if something is waited for."""
        if not ready():
            assert timeout_s is not None, "nobody can end this wait"
            self.now += timeout_s
        return ready()


class Installation:
    """Servers by address, and the driver that finds them."""

    def __init__(self) -> None:
        self.waits = Alone()
        self.server = SimulatedServer(self.waits, password="secret")
        self.servers = {("db", 3306): self.server}
        self.driver = SimulatedDriver(self.servers, self.waits)

    def connect(self, **options: Any) -> Any:
        """A connection of an application."""
        options = {"host": "db", "port": 3306, "user": "root", "password": "secret", "autocommit": True} | options
        return self.driver.connect(**options)

    def run(self, *statements: str) -> list[Any]:
        """Executes statements in a session of its own. Returns the rows of the last one."""
        made = self.connect()
        with made.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            rows = list(cursor.fetchall())
        made.close()
        return rows


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch) -> Installation:
    """A simulated server that the product's modules reach."""
    made = Installation()
    for module in (connection, dump, by_key, snapshot, requirements):
        monkeypatch.setattr(module, "pymysql", made.driver)
    clock = SimpleNamespace(monotonic=lambda: made.waits.now, sleep=lambda s: made.waits.wait(lambda: False, s))
    for timed in (by_key, snapshot, sessions):
        monkeypatch.setattr(timed, "time", clock)
    return made
