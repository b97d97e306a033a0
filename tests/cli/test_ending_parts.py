"""How the parts of `freshet up` end, what is said of them meanwhile, and where their front is looked for."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from http.client import BadStatusLine, IncompleteRead
from pathlib import Path
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from consumers.store.errors import StoreError
from freshet import cli
from freshet.commands.up import _local_servers
from freshet.together import running, watching
from freshet.together.alone import AlreadyUp, alone
from freshet.together.parts import Part
from freshet.together.running import PartFailed, Together
from freshet.together.watching import STILL_AFTER, Watch

PART = Part("source a", ())


class Stubborn:
    """A process that ends at SIGKILL, or once it was looked at so often."""

    def __init__(self, looks: int, looked: Callable[[int], None]) -> None:
        self.returncode: int | None = None
        self.signals: list[int] = []
        self._looks, self._looked, self._seen = looks, looked, 0

    def poll(self) -> int | None:
        self._seen += 1
        self._looked(self._seen)
        if self._seen > self._looks:
            self.returncode = 0
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.returncode = -number

    def wait(self) -> None: ...


@pytest.mark.parametrize(
    ("before", "meanwhile", "is_killed"), [(1, 0, False), (1, 1, True), (0, 0, False), (0, 1, False), (0, 2, True)]
)
def test_who_asks_a_second_time_kills_what_has_not_ended(
    before: int, meanwhile: int, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request is kind, also where a part that failed ends the others already when it comes."""
    monkeypatch.setattr(running, "POLL_S", 0.0)
    said: list[str] = []
    together = Together([PART], [], lambda _, line: said.append(line))

    def looked(times: int) -> None:
        if 2 <= times < 2 + meanwhile:
            together.stop()

    for _ in range(before):
        together.stop()
    process: Any = Stubborn(20, looked)
    together._parts[0].process = process
    together._end()
    assert process.signals == [signal.SIGTERM, *([signal.SIGKILL] if is_killed else [])]
    assert said == (["did not end, killing it"] if is_killed else [])


@pytest.mark.parametrize(
    ("needed", "has_settled", "ends"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_only_what_all_need_and_has_not_started_ends_all(
    needed: bool, has_settled: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front that ran for long and dies is started again, as a source is."""
    monkeypatch.setattr(running, "POLL_S", 0.0)
    together = Together([Part("serve", ("serve",), needed=needed)], [], lambda *_: None)
    [part] = together._parts
    process: Any = Stubborn(0, lambda _: None)
    part.process, part.has_settled = process, has_settled
    if ends:
        with pytest.raises(PartFailed, match="freshet serve ended with exit code 0"):
            together._tend(part)
        return
    together._tend(part)
    assert (part.process, part.start_at > 0, part.backoff_s) == (None, True, 2 * running.BACKOFF_S)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, list[str], list[Any]]:
    """A watch for two keyspaces, its lines, and what the front is going to answer; the last answer stays."""
    monkeypatch.setattr(watching, "POLL_S", 0.0)
    said: list[str] = []
    answers: list[Any] = []
    found = Watch("http://front", "", said.append, ["shop", "lake"])

    def ask() -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer() if callable(answer) else answer

    monkeypatch.setattr(found, "_ask", ask)
    return found, said, answers


def status(**ready: bool) -> list[dict[str, Any]]:
    """What a front says of keyspaces."""
    return [{"name": name, "ready": is_ready, "missing": ["no owner"]} for name, is_ready in ready.items()]


def test_a_look_that_was_under_way_at_the_end_says_nothing(watch: tuple[Watch, list[str], list[Any]]) -> None:
    """All has been ended by then: that a keyspace was ready would be the last line."""
    found, said, answers = watch

    def ended() -> list[dict[str, Any]]:
        found.end()
        return status(shop=True, lake=True)

    answers += [None, ended]
    found._look()
    assert said == []


def test_each_keyspace_is_told_once_and_what_the_late_ones_lack(watch: tuple[Watch, list[str], list[Any]]) -> None:
    """Of those that are waited for, when they are ready first, and after a while what is missing."""
    found, said, answers = watch
    answers += [None, status(shop=True, lake=False, other=True)]
    answers += [status(shop=False, lake=False, other=False)] * STILL_AFTER + [status(shop=True, lake=True)]
    found._look()
    assert said == [
        "answers at http://front (Ctrl-C ends everything)",
        "shop is ready",
        "lake is not ready yet: no owner",
        "lake is ready",
        "everything is ready",
    ]


@pytest.mark.parametrize(
    "error", [URLError("refused"), IncompleteRead(b'{"keys'), BadStatusLine("?"), TimeoutError(), ValueError("no JSON")]
)
def test_a_front_that_breaks_off_its_answer_is_asked_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started again when it has died; nobody would say when all is ready if the looks ended with it."""

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("urllib.request.OpenerDirector.open", fails)
    assert Watch("http://front", "", lambda _: None, ["shop"])._ask() is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (URLError("refused"), "refused"),
        (TimeoutError(), "TimeoutError"),
        (
            HTTPError("", 401, "Unauthorized", Message(), None),
            "it answers 401; set client.token to a secret that it accepts",
        ),
        (HTTPError("", 500, "", Message(), None), "it answers 500"),
        (URLError(SSLError(1, "certificate verify failed")), "certificate verify failed; check client.tls"),
    ],
)
def test_why_the_front_does_not_answer_is_said_once(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token or a certificate that does not fit was silence for good: nothing said why nothing got ready."""
    monkeypatch.setattr(watching, "POLL_S", 0.0)
    said: list[str] = []
    found = Watch("http://front", "", said.append, ["shop"])
    looks = iter(range(3 * STILL_AFTER))

    def fails(*_: object, **__: object) -> None:
        if next(looks, None) is None:
            found.end()
        raise error

    monkeypatch.setattr("urllib.request.OpenerDirector.open", fails)
    found._look()
    assert said == [f"no answer at http://front yet: {reason}"]


@pytest.mark.parametrize(("port", "words"), [("0", []), ("8480", ["--port", "0"])])
def test_the_front_is_looked_for_at_the_port_that_it_is_given(
    port: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port 0 is any free one: chosen once, before anything starts, or nobody would find it."""
    settings = tmp_path / "freshet.toml"
    settings.write_text('[keyspaces.shop.source]\nkind = "mariadb"\ndatabases = ["shop"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRESHET_SERVE__PORT", port)
    told: list[tuple[str, ...]] = []
    looked: list[str] = []
    monkeypatch.setattr(Together, "run", lambda each: told.extend(part.part.arguments for part in each._parts))
    monkeypatch.setattr(Watch, "start", lambda each: looked.append(each._url))
    assert cli.run(["--config", str(settings), "up", *words]) == 0
    [serve] = [each for each in told if each[0] == "serve"]
    [url] = looked
    chosen = url.rpartition(":")[2]
    assert serve == ("serve", f"--port={chosen}")
    assert int(chosen) not in (0, 8480)


@pytest.mark.parametrize("started", [["kafka", "mariadb"], ["mariadb"], []])
def test_local_servers_that_ran_before_run_on(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever started them goes on using them. The others end with it, however it ends."""
    stopped: list[str] = []
    monkeypatch.setattr("freshet.commands.local.start_servers", lambda *_, **__: ([], started))
    monkeypatch.setattr("freshet.commands.local.stop_servers", stopped.extend)
    with suppress(KeyError), _local_servers():
        assert stopped == []
        raise KeyError
    assert stopped == started


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The keyspaces that each `freshet up` waits for; nothing runs. In a directory with settings of local servers."""
    waited: list[set[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRESHET_SERVE__PORT", "0")
    own = tmp_path / ".freshet" / "local" / "freshet.toml"
    own.parent.mkdir(parents=True)
    own.write_text("".join(f'[keyspaces.{name}]\nkind = "rows"\n' for name in ("shop", "bank")))
    monkeypatch.setattr(Together, "run", lambda _: None)
    monkeypatch.setattr(Watch, "start", lambda each: waited.append(each._waiting))
    monkeypatch.setattr("freshet.commands.local.start_servers", lambda *_, **__: ([], []))
    return waited


@pytest.mark.parametrize(
    ("words", "waits"), [([], {"shop", "bank"}), (["--keyspace", "bank"], {"bank"}), (["--local"], {"shop", "bank"})]
)
def test_all_is_ready_once_all_is_that_runs(words: list[str], waits: set[str], ran: list[set[str]]) -> None:
    """What another machine may run is not waited for. Local servers may be up already, and their settings used."""
    assert cli.run(["up", *words]) == 0
    assert ran == [waits]


def test_local_servers_are_not_started_beside_those_of_the_settings(
    ran: list[set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """They would not be used, and nobody would see why rows are missing."""
    Path("freshet.toml").write_text("[keyspaces.shop]\n")
    assert cli.run(["up", "--local"]) == 1
    assert "freshet.toml names its own servers" in capsys.readouterr().err
    assert ran == []


def test_a_directory_is_held_by_one_at_a_time_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one says so at once; its sources would take those of the first to their end."""
    lock = fcntl.flock

    def look(handle: Any, how: int) -> None:
        assert how & fcntl.LOCK_NB, "it would wait"
        lock(handle, how)

    monkeypatch.setattr("consumers.store.directory.flock", look)
    for _ in range(2):
        with alone(tmp_path / "stores"):
            with pytest.raises(AlreadyUp, match="another `freshet up` runs with the stores"):
                alone(tmp_path / "stores").__enter__()
            with alone(tmp_path / "others"):
                pass


def test_a_file_system_without_locks_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was `error[system]: No locks available`, without a place, and asked for space."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("consumers.store.directory.flock", refuse)
    with pytest.raises(StoreError, match=rf"{tmp_path}: .* does not lock .*: No locks available") as refused:
        alone(tmp_path).__enter__()
    assert refused.value.code == "store_denied"
