"""How a local server is started: on which ports, again on which, and what a start that failed leaves."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from freshet import cli
from freshet.commands import local
from freshet.local import process as processes
from freshet.local import server as servers
from freshet.local.errors import LocalServerError
from freshet.local.mariadb import MariaDBServer
from freshet.local.process import ServerProcess
from freshet.local.server import START_ATTEMPTS, LocalServer
from freshet.local.state import ServerRecord, read_state, write_state
from freshet.settings import load_settings
from tests.patience import PATIENCE_S

TAKEN = "Address in use"


class Process:
    """One that has said something, until it is stopped."""

    def __init__(self, said: str) -> None:
        self.said, self.stops = said, 0

    def log(self) -> str:
        return self.said

    def stop(self) -> None:
        self.stops += 1


class Server(LocalServer):
    """A server with two ports, whose starts end as ``says``: what each logs before it fails; the rest succeed."""

    NAME = "Server"
    PORTS = 2
    PORT_TAKEN = (TAKEN,)

    def __init__(self, data_dir: Path, port: int | None = None, says: tuple[str, ...] = ()) -> None:
        super().__init__(data_dir, port, detached=False)
        self.says = [*says]
        self.begun: list[Any] = []
        self.tried: list[tuple[int, ...]] = []

    def _launch(self) -> None:
        self.tried.append(self._ports)
        said = self.says.pop(0) if self.says else ""
        self.begun.append(Process(said))
        self._process = self.begun[-1]
        if said:
            raise LocalServerError("it does not answer")


@pytest.fixture(autouse=True)
def ports(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports that others have; whoever wants any gets the next of 100, 101, …"""
    taken: set[int] = set()
    numbers = iter(range(100, 200))
    monkeypatch.setattr(servers, "port_is_free", lambda port: port not in taken)
    monkeypatch.setattr(servers, "free_ports", lambda count: [next(numbers) for _ in range(count)])
    return taken


@pytest.mark.parametrize("says", [("no memory",), (TAKEN,) * START_ATTEMPTS])
def test_a_start_that_fails_leaves_no_process(says: tuple[str, ...], tmp_path: Path) -> None:
    """Nobody would stop it: the server counts as not running. Nor are its ports kept."""
    server = Server(tmp_path, says=says)
    with pytest.raises(LocalServerError, match="it does not answer"):
        server.start()
    assert [each.stops for each in server.begun] == [1] * len(says)
    assert not server.is_running
    assert not (tmp_path / "ports.json").exists()


def test_ports_that_were_taken_meanwhile_are_exchanged_if_nobody_asked_for_them(tmp_path: Path) -> None:
    """Both: which of them it was is not known. The next start has those that served."""
    server = Server(tmp_path, says=(TAKEN, TAKEN)).start(usual=9)
    assert server.tried == [(9, 100), (101, 102), (103, 104)]
    assert [each.stops for each in server.begun] == [1, 1, 0]
    assert json.loads((tmp_path / "ports.json").read_text()) == [103, 104]
    assert Server(tmp_path).start(usual=9).tried == [(103, 104)]


@pytest.mark.parametrize("is_again", [False, True])
def test_ports_that_somebody_knows_are_not_exchanged(is_again: bool, tmp_path: Path) -> None:
    """Those that were asked for, and those of a server that is started again: clients ask there."""
    server = Server(tmp_path, port=None if is_again else 7)
    if is_again:
        server.start()
        server.stop()
    server.says.append(TAKEN)
    with pytest.raises(LocalServerError, match="it does not answer"):
        server.start()
    assert len({*server.tried}) == 1


def test_the_ports_of_the_last_start_are_left_if_one_is_taken(tmp_path: Path, ports: set[int]) -> None:
    """One of them alone is of no use. A wanted port is refused at once then."""
    first = Server(tmp_path).start()
    ports.add(first._ports[1])
    assert Server(tmp_path).start(usual=9).tried == [(102, 103)]
    ports.add(7)
    with pytest.raises(LocalServerError, match="port 7 is in use") as refused:
        Server(tmp_path, port=7).start()
    assert refused.value.code == "cannot_listen"


def test_what_an_earlier_run_has_logged_is_not_this_ones(tmp_path: Path) -> None:
    """That a port was taken then says nothing of why it does not start now."""
    log = tmp_path / "log"
    log.write_text(f"{TAKEN}\n")
    process = ServerProcess("broken", ["sh", "-c", "echo out of cheese; exit 3"], log_file=log)
    with pytest.raises(LocalServerError):
        process.wait_until(lambda: False, timeout_s=PATIENCE_S)
    assert process.log() == "out of cheese\n"


def test_a_server_that_has_died_is_forgotten_with_those_that_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the settings would go on naming it, and commands would ask nobody."""
    monkeypatch.setattr(local, "_home", lambda: tmp_path)
    dead = [ServerRecord(name, 2**30, 0.0, "127.0.0.1:1", str(tmp_path), "log") for name in ("kafka", "mariadb")]
    write_state(tmp_path / "state.json", dead)
    (tmp_path / "freshet.toml").touch()
    assert local.stop_servers(["kafka"]) == []
    assert read_state(tmp_path / "state.json") == []
    assert not (tmp_path / "freshet.toml").exists()


def test_the_fronts_port_stands_beside_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands of the directory find both. It is forgotten when servers are started or stopped."""
    monkeypatch.setattr(local, "_home", lambda: tmp_path)
    servers = {"kafka": ServerRecord("kafka", 1, 0.0, "127.0.0.1:7", str(tmp_path), "log")}
    local._write_settings(tmp_path, servers)
    usual = load_settings(tmp_path / "freshet.toml").serve.port
    local.note_front(7499)
    found = load_settings()
    assert (found.kafka.bootstrap, found.serve.port) == ("127.0.0.1:7", 7499)
    local._write_settings(tmp_path, servers)
    assert load_settings().serve.port == usual


def test_a_password_is_what_it_is_also_for_the_server(tmp_path: Path) -> None:
    """In SQL some of its letters have a meaning."""
    told = MariaDBServer(tmp_path, password="it's a \\ secret")._accounts()
    assert [line.partition("IDENTIFIED BY ")[2] for line in told if "IDENTIFIED" in line] == [
        r"'it\'s a \\ secret';"
    ] * 2


class Socket:
    """One of a kernel that gives the lowest port that nobody has."""

    held: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self._port = 0

    def bind(self, _: tuple[str, int]) -> None:
        self._port = next(port for port in itertools.count(1) if port not in self.held)
        self.held.add(self._port)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        self.held.discard(self._port)


def test_ports_that_the_kernel_chooses_are_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is held until all are found: it may give one again as soon as it is free. Afterwards all are."""
    monkeypatch.setattr(processes, "socket", SimpleNamespace(socket=Socket))
    assert processes._any_ports(3) == [1, 2, 3]
    assert Socket.held == set()


class Kept:
    """The local servers of a directory: which of those that were started before still run, and which can't start."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.running: set[str] = set()
        self.broken: set[str] = set()
        self.started: list[str] = []

    def record(self, name: str) -> ServerRecord:
        """As `local up` notes it."""
        return ServerRecord(name, 1, 0.0, "127.0.0.1:7", str(self.home / name), "log")

    def start(self, name: str) -> ServerRecord:
        """Starts one, or fails."""
        if name in self.broken:
            raise LocalServerError(f"{name} does not start")
        self.started.append(name)
        self.running.add(name)
        return self.record(name)

    @property
    def names(self) -> list[str]:
        """Of those that are noted."""
        return [each.name for each in read_state(self.home / "state.json")]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """None was started yet."""
    found = Kept(tmp_path / "local")
    monkeypatch.setattr(local, "_home", lambda: found.home)
    monkeypatch.setattr(ServerRecord, "process", lambda each: object() if each.name in found.running else None)
    for name in local.SERVERS:
        monkeypatch.setattr(local, f"_start_{name}", lambda *_, name=name: found.start(name))
    return found


@pytest.mark.parametrize("number", range(len(local.USUAL)))
def test_a_server_that_has_started_is_known_though_another_one_has_not(number: int, kept: Kept) -> None:
    """Nobody could stop it, and the next start would find its port taken."""
    broken = local.USUAL[number]
    kept.broken = {broken}
    with pytest.raises(LocalServerError, match=f"{broken} does not start"):
        local.start_servers()
    assert kept.names == kept.started == [name for name in local.USUAL if name != broken]
    kept.broken = set()
    servers, started = local.start_servers()
    assert [each.name for each in servers] == kept.names == list(local.USUAL)
    assert started == [broken]


def test_a_server_that_has_died_is_started_again(kept: Kept) -> None:
    """It is noted as started; that it runs is another thing. The others are left alone."""
    local.start_servers()
    kept.running -= {"mariadb"}
    kept.started.clear()
    assert local.start_servers()[1] == kept.started == ["mariadb"]


@pytest.mark.parametrize("has_metastore", [False, True])
def test_a_metastore_takes_the_place_of_the_workload(has_metastore: bool, kept: Kept) -> None:
    """A keyspace has one source; two of them would be no settings at all."""
    local.start_servers([*local.USUAL, *(["hive"] if has_metastore else [])])
    settings = load_settings(kept.home / "freshet.toml")
    source = settings.keyspace("hive").source
    assert source is not None
    assert source.kind == ("hive" if has_metastore else "workload")
    assert [*settings.keyspaces] == ["shop", "hive"]


def test_the_status_of_servers_is_told_by_the_exit_code(kept: Kept) -> None:
    """None at all is none that runs."""
    assert cli.run(["local", "status"]) == 1
    local.start_servers()
    assert cli.run(["local", "status"]) == 0
    kept.running -= {"kafka"}
    assert cli.run(["local", "status"]) == 1


@pytest.mark.parametrize("words", [[], ["--wipe"]])
def test_data_of_local_servers_are_kept_unless_they_are_not_wanted(words: list[str], kept: Kept) -> None:
    """What is beside them, as stores of a consumer, is never theirs."""
    for name in (*local.SERVERS, "stores"):
        (kept.home / name).mkdir(parents=True)
    assert cli.run(["local", "down", *words]) == 0
    left = {each.name for each in kept.home.iterdir() if each.is_dir()}
    assert left == {"stores", *(() if words else local.SERVERS)}
