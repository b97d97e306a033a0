"""SIGTERM while Kafka is away: processes end in order within seconds and lose nothing that was acknowledged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from lab.workload.traffic import Traffic
from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.connection import ConnectionSettings
from tests.bad_input.running import source_arguments
from tests.consumers.consuming import until
from tests.patience import PATIENCE_S

STOP_S_MAX = 28.0
"""The longest request to a broker takes five seconds, and a busy machine needs some to end three processes.

Waiting for a request of the publisher to time out would take thirty.
"""
AWAY_S = 2.5
"""Long enough for a batch to be sent in vain, and shorter than any timeout."""


class Running:
    """One `freshet` process and its log."""

    def __init__(self, name: str, arguments: list[str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "freshet", "--log-format", "json", *arguments]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def says(self, what: str) -> bool:
        """Whether ``what`` is in the log; fails if the process has ended."""
        assert self.process.poll() is None, self.log.read_text()
        return what in self.log.read_text()


@contextmanager
def all_running(
    kafka: KafkaCluster, mariadb: MariaDBAddress, database: str, keyspace: str, directory: Path
) -> Iterator[list[Running]]:
    """Both sources and a consumer of what they publish."""
    catalog = f"{keyspace}_catalog"
    login = ["--host", mariadb.host, "--port", str(mariadb.port), "--user", mariadb.user]
    login += ["--bootstrap", kafka.bootstrap]
    commands = {
        "source mariadb": source_arguments(kafka, mariadb, database, keyspace),
        "source workload": ["source", "workload", "--keyspace", catalog, "--database", database, *login],
        "consume": [
            *("consume", "--keyspace", keyspace, "--keyspace", catalog, "--bootstrap", kafka.bootstrap),
            *("--data-dir", str(directory / "data"), "--group", keyspace),
        ],
    }
    with ExitStack() as stack:
        running = [Running(name, arguments, directory) for name, arguments in commands.items()]
        for each in running:
            stack.callback(each.process.wait)
            stack.callback(each.process.kill)
        yield running


def stopped(running: list[Running]) -> dict[str, float]:
    """Sends SIGTERM to all, which must end with exit code 0 and no traceback; name → seconds that it took."""
    took: dict[str, float] = {}

    def wait(each: Running) -> None:
        each.process.wait()
        took[each.name] = time.monotonic() - began

    began = time.monotonic()
    threads = [threading.Thread(target=wait, args=(each,)) for each in running]
    for thread, each in zip(threads, running, strict=True):
        thread.start()
        each.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(PATIENCE_S)
    for each in running:
        assert each.process.poll() == 0, each.log.read_text()
        assert "Traceback" not in each.log.read_text()
    print(took)
    return took


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_front_that_gets_two_signals_ends_without_a_traceback(
    first: int, second: int, kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal while the front stops does not end it with a traceback."""
    monkeypatch.setenv("FRESHET_KEYSPACES", json.dumps({keyspace_name: {}}))
    front = Running("serve", ["serve", "--port", "0", "--bootstrap", kafka.bootstrap], tmp_path)
    try:
        until(lambda: front.says('"event": "ready"'), "the front is ready")
        front.process.send_signal(first)
        front.process.send_signal(second)
        assert front.process.wait(PATIENCE_S) in (0, 130), front.log.read_text()
    finally:
        front.process.kill()
        front.process.wait()
    said = front.log.read_text()
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "paused"])
def test_everything_stops_soon_while_kafka_is_away(
    how: str,
    new_kafka: Callable[..., Any],
    mariadb: MariaDBAddress,
    database: str,
    keyspace_name: str,
    tmp_path: Path,
) -> None:
    """Processes neither wait for an open Kafka transaction nor abort it: they leave it as a crash would."""
    server = new_kafka()
    settings = ConnectionSettings(mariadb.host, mariadb.port, mariadb.user, mariadb.password)
    with all_running(server.cluster, mariadb, database, keyspace_name, tmp_path) as running:
        for each in running:
            until(lambda e=each: e.says('"event": "ready"'), f"{each.name} is ready")  # type: ignore[misc]
        with Traffic(settings, database, seed=1, tables=3, rate=50, workers=2):
            time.sleep(1)
            if how == "killed":
                server.kill()
            else:
                os.kill(server.pid, signal.SIGSTOP)
            time.sleep(AWAY_S)  # the instant at which they are asked to stop is what is tested
            took = stopped(running)
        if how == "paused":
            os.kill(server.pid, signal.SIGCONT)
    assert max(took.values()) < STOP_S_MAX, took


def test_everything_stops_soon_if_kafka_was_never_up(
    new_kafka: Callable[..., Any], mariadb: MariaDBAddress, database: str, keyspace_name: str, tmp_path: Path
) -> None:
    """A process that waits for its broker at start can be stopped like any other."""
    server = new_kafka()
    kafka = server.cluster
    server.kill()
    with all_running(kafka, mariadb, database, keyspace_name, tmp_path) as running:
        for each in running:
            until(lambda e=each: e.says("kafka_unreachable"), f"{each.name} says so")  # type: ignore[misc]
        took = stopped(running)
    assert max(took.values()) < STOP_S_MAX, took
