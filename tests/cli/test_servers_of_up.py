"""The servers of `freshet up --local` that end by themselves are started again; those that were stopped are not.

Those of `freshet local up` are known to `freshet local down` whatever ended the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from freshet.commands import local, up
from freshet.commands.local import ended_servers, start_servers, stop_servers
from freshet.commands.up import LOOK_S, START_AGAIN_S, LocalServers
from freshet.local.errors import LocalServerError
from freshet.local.state import ServerRecord, read_state, record_of, write_state

pytestmark = pytest.mark.usefixtures("servers")


class Clock:
    """Time that stands."""

    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now


class Starts:
    """Starts of servers: which were asked for, and an error for as long as one is set."""

    def __init__(self) -> None:
        self.asked: list[dict[str, int | None]] = []
        self.error: LocalServerError | None = None

    def __call__(
        self, wanted: list[str], ports: dict[str, int | None], *, detached: bool
    ) -> tuple[list[ServerRecord], list[str]]:
        assert not detached
        self.asked.append({name: ports[name] for name in wanted})
        if self.error is not None:
            raise self.error
        return [ServerRecord(name, 1, 0.0, f"{name}:1", "", "its.log") for name in ("kafka", "mariadb")], list(wanted)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Two processes that the state file has as Kafka and MariaDB."""
    monkeypatch.setattr(local, "_home", lambda: tmp_path)
    running: dict[str, subprocess.Popen[bytes]] = {}
    for name in ("kafka", "mariadb"):
        command = [sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path / name)]
        running[name] = subprocess.Popen(command)
    log = tmp_path / "log"
    records = [record_of(name, each.pid, f"{name}:1", tmp_path / name, log) for name, each in running.items()]
    write_state(tmp_path / "state.json", records)
    yield running
    for process in running.values():
        process.kill()
        process.wait()


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """What is asked to be started from now on."""
    made = Starts()
    monkeypatch.setattr(local, "start_servers", made)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of `freshet up`."""
    made = Clock()
    monkeypatch.setattr(up, "time", made)
    return made


def test_what_ended_by_itself_is_told_from_what_was_stopped(servers: dict[str, subprocess.Popen[bytes]]) -> None:
    """`freshet local down` in another terminal means it."""
    assert ended_servers() == {}
    servers["mariadb"].kill()
    servers["mariadb"].wait()
    assert ended_servers() == {"mariadb": 1}
    assert stop_servers(["mariadb"]) == []
    assert stop_servers(["kafka"]) == ["kafka"]
    assert ended_servers() == {}


def test_a_server_that_ended_is_started_again_and_ended_with_the_rest(
    servers: dict[str, subprocess.Popen[bytes]],
    starts: Starts,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says so. The front's port, which a start takes out of the settings, is there again."""
    stopped: list[list[str]] = []
    monkeypatch.setattr(local, "stop_servers", lambda names: stopped.append(list(names)))
    said: list[str] = []
    running = LocalServers()
    running.tend(said.append)
    running.end()
    assert (starts.asked, said, stopped) == ([], [], [])  # they run, and are not its own
    running.note_front(8481)
    servers["mariadb"].kill()
    servers["mariadb"].wait()
    running.tend(said.append)
    assert starts.asked == []  # it has just looked
    clock.now += LOOK_S
    running.tend(said.append)
    assert starts.asked == [{"mariadb": 1}]  # at its port, by which the parts know it
    assert said == ["mariadb ended; starting again on the same data", "mariadb at mariadb:1; log: its.log"]
    assert "port = 8481" in (tmp_path / "freshet.toml").read_text()
    running.end()
    assert stopped == [["mariadb"]]


def test_a_server_that_does_not_start_again_is_tried_until_it_does(
    servers: dict[str, subprocess.Popen[bytes]], starts: Starts, clock: Clock
) -> None:
    """Less often, and the parts go on meanwhile."""
    said: list[str] = []
    running = LocalServers()
    servers["kafka"].kill()
    servers["kafka"].wait()
    starts.error = LocalServerError("no space")
    running.tend(said.append)
    clock.now += START_AGAIN_S - 0.1
    running.tend(said.append)
    assert starts.asked == [{"kafka": 1}]
    assert said[1:] == ["no space; trying again in 3 s"]
    starts.error = None
    clock.now += 0.1
    running.tend(said.append)
    assert starts.asked == [{"kafka": 1}, {"kafka": 1}]
    assert said[-1] == "kafka at kafka:1; log: its.log"


def test_servers_that_start_while_the_command_is_ended_are_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They survive it, and hold their data: whoever comes next must be able to end them."""
    [kafka, mariadb] = read_state(tmp_path / "state.json")
    write_state(tmp_path / "state.json", [kafka])

    def starts(*_: object) -> ServerRecord:
        threading.Event().wait(0.1)  # until the command waits for it
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.2)  # for whoever would go on without it
        return mariadb

    monkeypatch.setattr(local, "_start_mariadb", starts)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_servers(["mariadb"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert [each.name for each in read_state(tmp_path / "state.json")] == ["kafka", "mariadb"]
    assert stop_servers(["mariadb"]) == ["mariadb"]


def test_a_server_that_could_not_be_started_again_is_still_known(
    servers: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port may be in use for a moment: it would be tried once and then forgotten."""

    def fails(*_: object) -> ServerRecord:
        raise LocalServerError("port 1 is in use")

    monkeypatch.setattr(local, "_start_mariadb", fails)
    servers["mariadb"].kill()
    servers["mariadb"].wait()
    for _ in range(2):
        with pytest.raises(LocalServerError):
            start_servers(["mariadb"], {"mariadb": 1})
        assert ended_servers() == {"mariadb": 1}
