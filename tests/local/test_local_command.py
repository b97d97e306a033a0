"""`freshet local`: servers stay up, and `down` stops only those in the state file."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from freshet import cli
from freshet.commands.source import server_of
from freshet.local.errors import LocalServerError
from freshet.local.kafka import KafkaServer
from freshet.local.state import ServerRecord, read_state, record_of, write_state
from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import load_settings
from stream.sources.mariadb.connection import connect
from stream.sources.mariadb.requirements import check_server
from tests.patience import PATIENCE_S
from tests.servers import choice


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty directory."""
    monkeypatch.chdir(tmp_path)


def freshet(*arguments: str) -> tuple[int, dict[str, object]]:
    """Run a command with --json; its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "freshet.cli", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.integration
def test_servers_stay_up_between_commands_and_go_down_together() -> None:
    """A second `up` keeps the running servers, and `down` stops them all."""
    try:
        code, first = freshet("local", "up")
        assert code == 0
        pids = {server["name"]: server["pid"] for server in first["servers"]}  # type: ignore[attr-defined]
        assert set(pids) == {"kafka", "mariadb"}
        assert all(psutil.pid_exists(pid) for pid in pids.values())
        source = load_settings().keyspace("shop").source
        assert source is not None
        assert source.kind == "mariadb"

        code, again = freshet("local", "up")
        assert (code, again) == (0, first)
        assert freshet("local", "status") == (0, first)
    finally:
        code, stopped = freshet("local", "down", "--wipe")
    assert (code, stopped) == (0, {"stopped": ["kafka", "mariadb"], "wiped": True})
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    code, after = freshet("local", "status")
    assert (code, after["servers"]) == (1, [])


@pytest.mark.integration
def test_two_at_once_start_one_server() -> None:
    """The second `up` waits for the first, and finds its server running."""
    command = [sys.executable, "-m", "freshet.cli", "local", "up", "mariadb", "--json"]
    try:
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        first, second = (json.loads(each.communicate(timeout=PATIENCE_S)[0]) for each in both)
        assert first == second
        assert [server["running"] for server in first["servers"]] == [True]
    finally:
        _, stopped = freshet("local", "down", "--wipe")
    assert stopped == {"stopped": ["mariadb"], "wiped": True}


@pytest.mark.integration
def test_a_metastore_is_started_by_name_and_takes_the_place_of_the_workload() -> None:
    """`up hive` starts a metastore alone; its settings have it as the catalog's source; `down` ends it."""
    try:
        code, first = freshet("local", "up", "hive")
        assert code == 0
        [server] = cast("list[dict[str, Any]]", first["servers"])
        assert server["name"] == "hive"
        source = load_settings().keyspace("hive").source
        assert source is not None
        assert source.kind == "hive"
        assert source.uris == [f"thrift://{server['address']}"]
        assert freshet("local", "status") == (0, first)
    finally:
        code, stopped = freshet("local", "down", "--wipe")
    assert (code, stopped) == (0, {"stopped": ["hive"], "wiped": True})
    assert not psutil.pid_exists(server["pid"])


@pytest.mark.integration
def test_a_mysql_is_started_by_name_with_a_keyspace_of_its_own() -> None:
    """`up mysql` starts a MySQL alone, and its settings lead a source to it; `down` ends it."""
    if not choice.has_local_mysql():
        pytest.skip(choice.used["mysql"])
    try:
        code, first = freshet("local", "up", "mysql")
        assert code == 0
        [server] = cast("list[dict[str, Any]]", first["servers"])
        assert server["name"] == "mysql"
        source = load_settings().keyspace("mysql").source
        assert isinstance(source, MariaDBSourceSettings)
        assert source.kind == "mysql"
        session = connect(server_of(source))
        check_server(session)
        session.close()
    finally:
        code, stopped = freshet("local", "down", "--wipe")
    assert (code, stopped) == (0, {"stopped": ["mysql"], "wiped": True})
    assert not psutil.pid_exists(server["pid"])


def test_an_unknown_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelled server is an error that names those that there are, and nothing is started."""
    assert cli.run(["local", "up", "hyve"]) != 0
    assert "kafka, mariadb, mysql, hive" in capsys.readouterr().err


def test_down_leaves_alone_what_it_did_not_start(tmp_path: Path) -> None:
    """A process that has taken a server's pid is not stopped."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path / "kafka")])
    try:
        own = record_of("kafka", process.pid, "127.0.0.1:1", tmp_path / "kafka", tmp_path / "log")
        reused = ServerRecord(own.name, own.pid, own.started_s - 60, own.address, own.data_dir, own.log)
        other_data = ServerRecord(own.name, own.pid, own.started_s, own.address, "/somewhere/else", own.log)
        assert reused.stop() is False
        assert other_data.stop() is False
        assert process.poll() is None
        assert own.stop() is True
        assert not psutil.pid_exists(own.pid)
        assert own.stop() is False
    finally:
        process.kill()
        process.wait()


def test_the_state_file_reads_back_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    """The state file reads back as written, and the error for a broken one says what to do."""
    path = tmp_path / "state.json"
    assert read_state(path) == []
    servers = [ServerRecord("kafka", 1, 2.5, "127.0.0.1:9092", "/data", "/log")]
    write_state(path, servers)
    assert read_state(path) == servers
    path.write_text("[{]")
    with pytest.raises(LocalServerError, match=r"state\.json") as caught:
        read_state(path)
    assert "pids" in caught.value.hint


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """A requested port that another process has is refused, so that it is not taken for the server."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalServerError, match=f"port {port} is in use") as caught:
            KafkaServer(tmp_path / "kafka", port=port).start()
    assert caught.value.code == "cannot_listen"


def test_down_without_servers_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """`down` without running servers succeeds."""
    assert cli.run(["local", "down"]) == 0
    assert capsys.readouterr().out == "nothing was running\n"
