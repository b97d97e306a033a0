"""`freshet up`: what it runs, that it starts again what dies, and that nothing outlives it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from freshet import cli
from freshet.commands.up import _printer
from freshet.local.process import free_ports
from freshet.settings import KeyspaceSettings, Settings, SourceProcessSettings
from freshet.settings_errors import SettingsError
from freshet.together.parts import Part, parts_of
from freshet.together.running import PartFailed, Together
from tests.cli.interrupting import Moment, interrupted, up
from tests.consumers.consuming import until
from tests.lengths import length
from tests.marked import MARK, mark_of, marked
from tests.patience import PATIENCE_S

SHOP: dict[str, Any] = {"source": {"kind": "mariadb", "databases": ["shop"]}}


def settings_with(**keyspaces: dict[str, Any]) -> Settings:
    """Settings with these keyspaces."""
    return Settings(keyspaces={name: KeyspaceSettings(**each) for name, each in keyspaces.items()})


def test_a_part_for_each_source_one_consumer_and_one_front() -> None:
    """Each shard with a source has a process; what the consumer and the front are told stands in for the settings."""
    ranged = SHOP | {"shards": {"-80": {"host": "a"}, "80-": {"host": "b"}}}
    settings = settings_with(shop=SHOP, big=ranged, afar={})
    parts = parts_of(settings, [], None, None)
    assert [part.arguments for part in parts] == [
        ("source", "mariadb", "--keyspace=shop"),
        ("source", "mariadb", "--keyspace=big", "--shard=big/-80"),
        ("source", "mariadb", "--keyspace=big", "--shard=big/80-"),
        ("consume",),
        ("serve",),
    ]
    assert [part.needed for part in parts] == [False, False, False, True, True]
    some = parts_of(settings, ["shop"], "2", 8481)
    assert [part.arguments for part in some[1:]] == [
        ("consume", "--keyspace=shop", "--workers=2"),
        ("serve", "--port=8481"),
    ]
    twice = parts_of(settings, ["shop", "big", "shop"], None, None)  # two sources would fight for a shard
    assert [part for part in twice if not part.needed] == parts[:3]
    assert twice[3].arguments == ("consume", "--keyspace=shop", "--keyspace=big")


def test_sources_do_not_fight_for_one_port() -> None:
    """`source.metrics_port` is the first source's; the others take any."""
    settings = settings_with(a=SHOP, b=SHOP).model_copy(update={"source": SourceProcessSettings(metrics_port=9470)})
    first, second, *_ = parts_of(settings, [], None, None)
    assert dict(first.environment) == {}
    assert dict(second.environment) == {"FRESHET_SOURCE__METRICS_PORT": "0"}


def test_nothing_to_run_and_misspelled_keyspaces_are_errors() -> None:
    """Before anything is started."""
    with pytest.raises(SettingsError, match="no keyspace is configured"):
        parts_of(Settings(), [], None, None)
    with pytest.raises(SettingsError, match="shpo"):
        parts_of(settings_with(shop=SHOP), ["shpo"], None, None)


def test_what_dies_is_started_again_and_what_cannot_start_ends_all(tmp_path: Path) -> None:
    """A source that ends is started again; a front that fails at its start ends all, and says which lines say why."""
    lines: list[tuple[str, str]] = []
    again = threading.Event()

    def say(name: str, line: str) -> None:
        lines.append((name, line))
        if "starting it again" in line:
            again.set()

    source = Part("source a", ("compare", "MariaDB/0-1-5", "MariaDB/0-1-6"))  # a command that ends by itself
    together = Together([source], [], say, tmp_path)

    def end() -> None:
        again.wait(PATIENCE_S)
        together.stop()

    ender = threading.Thread(target=end)
    ender.start()
    together.run()
    ender.join()
    assert again.is_set()
    assert any(name == "source a" and "OLDER" in line.upper() for name, line in lines)
    front = Part("serve", ("serve", "--port", "70000"), needed=True)
    with pytest.raises(PartFailed, match="freshet serve --port 70000 ended with exit code 2"):
        Together([front], [], say, tmp_path).run()
    assert any(name == "serve" and "--port" in line for name, line in lines)


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """All processes below it."""
    found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return found


def are_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs."""

    def runs(process: psutil.Process) -> bool:
        try:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False  # it has ended between the two

    return not any(map(runs, processes))


@pytest.mark.integration
def test_a_source_that_is_away_does_not_hinder_others_and_nothing_survives(settings: Path) -> None:
    """One keyspace gets ready while the other's server is away; Ctrl-C ends all; SIGKILL too, by the kernel."""
    with up(settings) as (process, printed):
        until(lambda: "shop is ready" in printed(), "shop is ready")
        assert "away is ready" not in printed()
        assert "answers at http://127.0.0.1:" in printed()
        below = family(process)
        assert len(below) >= 4
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        until(lambda: are_gone(below), "nothing that it started is left")
        assert "killing it" not in printed()
        assert printed().rstrip().endswith("| stopped")
    with up(settings) as (process, printed):
        until(lambda: "answers at" in printed(), "the front answers")
        below = family(process)
        process.kill()
        until(lambda: are_gone(below), "the kernel ends them")


@pytest.mark.integration
def test_of_two_at_once_one_runs_and_the_other_says_so(settings: Path) -> None:
    """The second one takes no source from the first. Once that was killed, nothing is in the way."""
    with up(settings) as one, up(settings) as other:
        until(lambda: any(process.poll() is not None for process, _ in (one, other)), "one of them ends")
        (refused, told), (process, printed) = sorted((one, other), key=lambda each: each[0].poll() is None)
        assert refused.wait() == 1
        assert "error[already_up]" in told()
        assert "| " not in told()  # no part of it has run
        until(lambda: "shop is ready" in printed(), "the other one is ready")
        assert not [line for line in printed().splitlines() if "source shop" in line and "ended with" in line]
        below = family(process)
        process.kill()
        until(lambda: are_gone(below), "the kernel ends them")
    with up(settings) as (_, printed):
        until(lambda: "shop is ready" in printed(), "a later one is ready")


@pytest.mark.integration
@pytest.mark.slow
def test_of_two_with_local_servers_at_once_one_starts_them(tmp_path: Path) -> None:
    """The other one says so. Commands in the directory ask the front at the port that it was given.

    A database that is killed is started again, on its data; what is written then is read. When the first is killed,
    nothing is left: no broker, no database, no part.
    """
    log = tmp_path / "said.log"
    with mark_of("two", tmp_path.name) as mark, log.open("wb") as out:
        environment = {**os.environ, MARK: mark}
        command = [sys.executable, "-m", "freshet", "up", "--local", "--port", str(free_ports(1)[0])]
        both = [
            subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.STDOUT)
            for _ in range(2)
        ]
        until(lambda: any(each.poll() is not None for each in both), "one of them ends")
        refused, process = sorted(both, key=lambda each: each.poll() is None)
        assert refused.wait() == 1
        until(lambda: "shop is ready" in log.read_text(errors="replace"), "the other one is ready")
        assert "error[already_up]" in log.read_text(errors="replace")
        asked = [sys.executable, "-m", "freshet", "get", "shop", "nothing", "1"]
        told = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert told.stderr.startswith("error[unknown_table]"), told.stderr
        [database] = [each for each in family(process) if any("mariadb" in part for part in each.cmdline()[:1])]
        database.kill()
        until(lambda: "mariadb at" in log.read_text(errors="replace").partition("mariadb ended; ")[2], "it runs again")
        statements = "create table kept (id int primary key); insert into kept values (1)"
        subprocess.run([sys.executable, "-m", "freshet", "local", "sql", "-e", statements], cwd=tmp_path, check=True)
        asked[-2:] = ["kept", "1"]
        until(
            lambda: subprocess.run(asked, cwd=tmp_path, capture_output=True, check=False).returncode == 0, "it is read"
        )
        assert len(marked(mark)) >= 6  # itself, two servers, source, consumer, front
        process.kill()
        process.wait()
        until(lambda: not marked(mark), "nothing is left")


def test_a_port_that_is_in_use_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mostly by a second `freshet up` in the same directory, whose sources would put an end to those of the first."""
    settings = tmp_path / "freshet.toml"
    settings.write_text('[keyspaces.shop.source]\nkind = "mariadb"\ndatabases = ["shop"]\n')
    monkeypatch.chdir(tmp_path)
    started: list[Part] = []
    monkeypatch.setattr(Together, "run", lambda each: started.extend(part.part for part in each._parts))
    monkeypatch.setenv("FRESHET_SERVE__HOST", "127.0.0.2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        assert cli.run(["--config", str(settings), "up", "--port", str(taken.getsockname()[1])]) == 1
    said = capsys.readouterr().err
    assert "error[cannot_listen]" in said
    assert "is `freshet up` running already?" in said
    assert started == []


MOMENTS = length(2, 24)
SEED = int(os.environ.get("FRESHET_TEST_SEED", time.time_ns() % 100_000))


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("is_local", [False, True], ids=["own servers", "local servers"])
@pytest.mark.parametrize("number", range(MOMENTS))
def test_ctrl_c_is_clean_at_any_moment(settings: Path, tmp_path: Path, number: int, is_local: bool) -> None:
    """Amid imports, the start of servers or of parts, or once all is up; half of them twice, amid the shutdown.

    Before its first line of Python the signal ends it. FRESHET_TEST_SEED repeats the moments.
    """
    rng = random.Random(f"{SEED}/{number}/{is_local}")
    command = ["up", "--local"] if is_local else ["--config", str(settings), "up"]
    (empty := tmp_path / "empty").mkdir()
    with mark_of(SEED, number, is_local) as mark:
        environment = {MARK: mark, "FRESHET_SERVE__PORT": str(free_ports(1)[0])}
        interrupted(
            command, Moment.of(rng, 12), mark, f"seed {SEED}", cwd=empty, environment=environment, is_service=True
        )


def test_a_line_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the log may be full: who says that a part is started again must still start it."""
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", full)
    say = _printer([Part("serve", ("serve",))])
    say("serve", "ended with exit code 1; starting it again in 1 s")
    say("serve", "here")
    monkeypatch.undo()
    with pytest.raises(OSError, match="No space left"):
        full.close()
