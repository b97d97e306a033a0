"""Changed credentials are taken over, whenever they change, and SIGHUP ends nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from consumers.workers import _next_news
from freshet.access.reloading import Reloader
from freshet.sections.secrets import read_files
from freshet.settings import Settings, load_settings, use_config
from stream.access.grants import AccessRefused

WAIT_S = 20.0


class Reader:
    """Keeps the token that was read last, and waits amid it until it may `go_on`."""

    def __init__(self) -> None:
        self.token = ""
        self.begun, self.go_on, self.renewed = threading.Event(), threading.Event(), threading.Condition()

    def renew(self, now: Settings) -> None:
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        with self.renewed:
            self.token = now.serve.bearer_token.get_secret_value() if now.serve.bearer_token is not None else ""
            self.renewed.notify_all()

    def has(self, token: str) -> bool:
        """Whether that one is read in time."""
        with self.renewed:
            return self.renewed.wait_for(lambda: self.token == token, WAIT_S)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "freshet.toml"
    write(path, "first")
    use_config(path)
    return path


def write(path: Path, token: str) -> None:
    path.write_text(f'[serve]\nbearer_token = "{token}"\n')


def test_a_change_amid_a_reload_is_not_missed(config: Path) -> None:
    """The file is written again after it was read: a token that was taken away would else be good until a restart."""
    reader = Reader()
    with Reloader(reader.renew, look_s=0.01):
        assert reader.begun.wait(WAIT_S)
        write(config, "second, longer")
        reader.go_on.set()
        assert reader.has("second, longer")


def test_a_change_before_the_first_look_is_not_missed(config: Path) -> None:
    """Between the settings' first reading and the first look a process may wait long, say for Kafka."""
    load_settings()
    write(config, "second")
    reader = Reader()
    reader.go_on.set()
    with Reloader(reader.renew, look_s=0.01):
        assert reader.has("second")


def test_sighup_does_not_stop_workers() -> None:
    """SIGHUP reads credentials again (docs/operating/security.md); the supervisor ends on SIGTERM and SIGINT only."""
    signalled, wake = socket.socketpair()
    wake.setblocking(False)
    numbers = (signal.SIGHUP, signal.SIGTERM)
    before = {each: signal.signal(each, lambda *_: None) for each in numbers}
    woken_before = signal.set_wakeup_fd(wake.fileno())
    try:
        signal.raise_signal(signal.SIGHUP)
        assert not _next_news([], signalled)
        signal.raise_signal(signal.SIGTERM)
        assert _next_news([], signalled)
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        signalled.close()
        wake.close()


@pytest.mark.parametrize("command", ["consume", "node", "serve"])
def test_a_hangup_while_it_starts_does_not_end_a_process(command: str) -> None:
    """Whoever rotates secrets tells all processes, also one that has just begun; it reads them anyway."""
    code = "import os, signal; from freshet import cli; "
    code += "cli.run = lambda: os.kill(os.getpid(), signal.SIGHUP) or print('alive') or 0; cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr


def test_a_folder_that_may_not_be_read_for_a_moment_ends_no_reloading(config: Path) -> None:
    """A mounted secret is replaced as a whole: the change after that must still be seen."""
    reader, tried = Reader(), threading.Event()
    reader.go_on.set()

    def renew(now: Settings) -> None:
        if not tried.is_set():
            tried.set()
            raise PermissionError(13, "Permission denied")
        reader.renew(now)

    with Reloader(renew, look_s=0.01):
        assert tried.wait(WAIT_S)
        write(config, "second, longer")
        assert reader.has("second, longer")


def test_a_change_of_a_file_that_holds_a_secret_is_not_missed(tmp_path: Path) -> None:
    """The settings file names it and stays as it is."""
    secret, config = tmp_path / "token", tmp_path / "freshet.toml"
    secret.write_text("first\n")
    config.write_text(f'[serve]\nbearer_token_file = "{secret}"\n')
    read_files.clear()
    load_settings(config)
    reader = Reader()
    reader.go_on.set()
    with Reloader(reader.renew, look_s=0.01):
        assert reader.has("first")
        secret.write_text("second, longer\n")
        assert reader.has("second, longer")


def test_a_secret_that_is_written_after_the_settings_that_name_it_is_taken_over(tmp_path: Path) -> None:
    """Else the token that they take away would be good until a restart."""
    secret, config = tmp_path / "token", tmp_path / "freshet.toml"
    config.write_text('[serve]\nbearer_token = "first"\n')
    read_files.clear()
    use_config(config)
    reader = Reader()
    reader.go_on.set()
    with Reloader(reader.renew, look_s=0.01):
        assert reader.has("first")
        config.write_text(f'[serve]\nbearer_token_file = "{secret}"\n')
        deadline = time.monotonic() + WAIT_S
        while secret not in read_files and time.monotonic() < deadline:
            time.sleep(0.01)
        secret.write_text("second, longer\n")
        assert reader.has("second, longer")


@pytest.mark.usefixtures("config")
def test_settings_that_can_not_be_read_at_first_are_not_read_without_a_pause() -> None:
    """The next look is due in a second, or when something changes: a core would be busy with nothing else."""
    tried: list[Settings] = []
    looks: list[int] = []

    class Looking(Reloader):
        def _is_asked(self) -> bool:
            looks.append(len(tried))
            self._stopping = len(looks) == 2
            return False

    def renew(now: Settings) -> None:
        tried.append(now)
        reloader._stopping = len(tried) > 1
        raise AccessRefused("a token of before would be lost")

    reloader = Looking(renew)
    reloader._run()
    assert (len(tried), looks) == (1, [1, 1])
