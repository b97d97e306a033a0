"""The command line: exit codes, errors in two lines, commands that load only what they need."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

from consumers.process import run as process
from freshet import cli
from freshet.logs import configure_logs
from freshet.settings import load_settings
from tests.cli.interrupting import PYTHON_STARTS
from tests.patience import PATIENCE_S
from tokens.errors import FreshetError

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty directory, which is left afterwards."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """A command of the test's own, in the place of `doctor`."""
    module = ModuleType("freshet.commands.doctor")
    module.app = typer.Typer()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "freshet.commands.doctor", module)
    monkeypatch.setattr(cli, "_exists", lambda name: name == "doctor")
    return module.app  # type: ignore[no-any-return]


def test_help_lists_the_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """`freshet --help` lists the commands that are not hidden."""
    assert cli.run(["--help"]) == 0
    listed = capsys.readouterr().out
    assert "doctor" in listed
    assert "local" in listed
    assert "demo" not in listed


@pytest.mark.parametrize(("typed", "meant"), [("gte", "get"), ("lags", "lag"), ("verfiy", "verify")])
def test_a_misspelled_command_is_told_the_nearest(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Though no command is loaded for it."""
    assert cli.run([typed]) == 2
    assert f"Did you mean {meant!r}?" in capsys.readouterr().err


def test_a_command_whose_module_is_missing_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command whose module is missing is not listed, and using it is wrong usage."""
    monkeypatch.setattr(cli, "_exists", lambda name: name == "local")
    assert cli.run(["--help"]) == 0
    assert "doctor" not in capsys.readouterr().out
    assert cli.run(["doctor"]) == 2
    assert "No such command" in capsys.readouterr().err


@pytest.mark.parametrize("entry", [entry.name for entry in cli.ENTRIES])
def test_every_command_explains_itself(entry: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command that exists imports, and has a --help."""
    if cli._exists(entry):
        assert cli.run([entry, "--help"]) == 0
        assert f"freshet {entry}" in capsys.readouterr().out
    else:
        assert cli.run([entry, "--help"]) == 2


def test_an_error_is_a_code_a_line_and_a_hint(command: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    """A FreshetError is two lines on stderr and exit code 1."""

    @command.callback(invoke_without_command=True)
    def fail() -> None:
        raise FreshetError("the tap\nis closed", hint="open it", code="tap_closed")

    assert cli.run(["doctor"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "error[tap_closed]: the tap\\nis closed\nhint: open it\n"
    assert captured.out == ""


def test_an_argument_that_is_not_utf_8_is_named(command: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no UTF-8 reach a command as surrogates. That they can't be encoded is the user's to mend."""

    @command.callback(invoke_without_command=True)
    def send(key: str) -> None:
        key.encode()

    assert cli.run(["doctor", os.fsdecode(b"caf\xe9")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[bad_argument]: the argument 'caf\\xe9' is not UTF-8\nhint: ")


def test_a_defect_is_one_line_too(
    command: typer.Typer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception is one line and a hint, and a traceback only with FRESHET_DEBUG."""

    @command.callback(invoke_without_command=True)
    def fail() -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.delenv("FRESHET_DEBUG", raising=False)
    assert cli.run(["doctor"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[internal]: ZeroDivisionError: by zero\nhint: ")
    assert "Traceback" not in err
    monkeypatch.setenv("FRESHET_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.run(["doctor"])


def test_a_path_that_cannot_be_written_is_named(
    command: typer.Typer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An error of the file system names the path and is not reported as a defect."""
    (tmp_path / "file").touch()

    @command.callback(invoke_without_command=True)
    def fail() -> None:
        (tmp_path / "file" / "below").mkdir()

    assert cli.run(["doctor"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error[system]: {tmp_path}/file/below: Not a directory\nhint: is there space")


def test_a_full_device_behind_stdout_is_one_line() -> None:
    """A full device is one error, without a second one when the interpreter flushes stdout."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "freshet", "compare", "MariaDB/0-1-5", "MariaDB/0-1-6"],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error[system]: No space left on device\nhint: ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "MariaDB/0-1-5", "MariaDB/0-1-6"], ["doctor"]])
def test_a_broken_pipe_ends_a_command_quietly(arguments: list[str]) -> None:
    """`freshet … | head -1` ends with exit code 141 and prints nothing on stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "freshet", *arguments],
            cwd=REPOSITORY,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_command_sets_its_exit_code(command: typer.Typer) -> None:
    """`raise typer.Exit(n)` is exit code n, a plain return is 0."""

    @command.callback(invoke_without_command=True)
    def end(code: int = 0) -> None:
        raise typer.Exit(code)

    assert cli.run(["doctor"]) == 0
    assert cli.run(["doctor", "--code", "1"]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-flag"],
        ["no-such-command"],
        ["--log-format", "xml", "local"],
        ["local", "x"],
        ["get", "shop", "orders", "1", "--url", "htp://127.0.0.1:8480"],
        ["get", "shop", "orders", "1", "--after", ""],
        ["get", "shop", "orders", "1", "--token", " "],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command line is exit code 2, with the reason on stderr."""
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert "Error" in captured.err
    assert captured.out == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`freshet --version` prints name and version."""
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("freshet 0.")


def test_config_reaches_the_command(command: typer.Typer, tmp_path: Path) -> None:
    """A command that loads settings gets those of --config."""
    (tmp_path / "mine.toml").write_text('[kafka]\nbootstrap = "mine:1"\n')
    seen: list[str] = []

    @command.callback(invoke_without_command=True)
    def look() -> None:
        seen.append(load_settings().kafka.bootstrap)

    assert cli.run(["--config", "mine.toml", "doctor"]) == 0
    assert seen == ["mine:1"]


def test_bad_settings_stop_a_command_that_needs_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong settings file stops only commands that read it, and the error names the key."""
    Path("freshet.toml").write_text("[serve]\nport = 'x'\n")
    assert cli.run(["local", "status"]) == 1
    assert capsys.readouterr().err.startswith("error[bad_settings]: serve.port: ")
    assert cli.run(["local", "--help"]) == 0


def test_the_command_line_starts_without_heavy_imports() -> None:
    """`freshet --help` and a small command do not import Spark, Kafka, pandas or a web framework."""
    script = (
        "import sys\nfrom freshet import cli\ncli.run(['--help'])\ncli.run(['local', 'status'])\n"
        "heavy = {'pyspark', 'pandas', 'pyarrow', 'confluent_kafka', 'starlette', 'jgo', 'pymysql'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": str(REPOSITORY)}, check=True
    )
    assert "heavy: []" in done.stdout


def test_logs_are_json_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a log line on stderr is a JSON object with time, level and fields."""
    import structlog

    configure_logs("auto", "info")
    structlog.get_logger("somewhere").info("ready", port=8480)
    structlog.get_logger("somewhere").debug("not shown")
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    logged = json.loads(line)
    assert logged.pop("timestamp").endswith("Z")
    assert logged == {"event": "ready", "level": "info", "logger": "somewhere", "port": 8480}
    assert captured.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", [["verify", "--keyspace", "k"], ["rebuild", "--keyspace", "k", "--to", "stores"]])
def test_sigterm_ends_a_job_as_ctrl_c_does_also_before_spark_runs(command: list[str], tmp_path: Path) -> None:
    """SIGTERM while a job waits for Kafka is one line and exit code 143, as of a program that it killed."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "freshet", *command, "--bootstrap", bootstrap],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            cwd=tmp_path,
        )
        silent.settimeout(PATIENCE_S)
        silent.accept()[0].close()
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=PATIENCE_S)
    lines = [
        line for line in said.splitlines() if not line.startswith("{")
    ]  # a log line where servers are fetched first
    assert (process.returncode, out, lines) == (143, "", ["terminated"])
    assert list(tmp_path.iterdir()) == []


def test_a_front_whose_port_is_taken_says_so_once(tmp_path: Path) -> None:
    """In one line, with the system's reason."""
    (tmp_path / "freshet.toml").write_text('[keyspaces.k]\nkind = "rows"\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = ["serve", "--port", str(taken.getsockname()[1]), *NOWHERE]
        command = [sys.executable, "-m", "freshet", *command]
        paths = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, capture_output=True, text=True, env=paths, cwd=tmp_path, check=False)
    lines = [line for line in done.stderr.splitlines() if "in use" in line]
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in lines] == ["error[cannot_listen]"], done.stderr


NOWHERE = ["--bootstrap", "127.0.0.1:1"]
SERVICES = ["consume --keyspace k --data-dir data", "serve --port 0", "source mariadb --keyspace k --database d"]


@pytest.mark.parametrize("command", SERVICES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_stopped_while_it_starts_ends_well(command: str, number: int, tmp_path: Path) -> None:
    """At whatever moment: before its first line of Python the signal ends it, later it returns 0."""
    (tmp_path / "freshet.toml").write_text('[keyspaces.k]\nkind = "rows"\n')
    for moment in range(4):
        process = subprocess.Popen(
            [sys.executable, "-m", "freshet", *command.split(), *NOWHERE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            cwd=tmp_path,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.3 + moment * 0.6)  # the moment of the signal is what differs here
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
        if any(words in said for words in PYTHON_STARTS):
            continue
        assert process.returncode in (0, -number), said
        assert "Traceback" not in said or process.returncode == -number, said
        assert "error[" not in said


LOSES_A_SIGNAL = """
import os, signal, time
from freshet import cli

class Dies:
    def __del__(self):
        os.kill(os.getpid(), signal.{number})
        time.sleep(0.1)

def run():
    try:
        Dies()
        time.sleep(240)
    except KeyboardInterrupt:
        return 7
    return 0

cli.run = run
cli.main()
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_amid_a_destructor_is_not_lost(number: str) -> None:
    """Python ignores what is raised there, and a service would run on after it was told to end."""
    command = [sys.executable, "-c", LOSES_A_SIGNAL.format(number=number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=REPOSITORY)
    assert (done.returncode, done.stderr) == (7, "")


STARTS_THREADS_SLOWLY = """
import threading, time
start = threading.Timer.start

def start_slowly(timer):
    start(timer)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass

threading.Timer.start = start_slowly
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_is_not_lost_while_it_is_told_that_one_was(number: str) -> None:
    """On a busy machine the thread that brings it again is slow to start, and it would come too early."""
    command = [sys.executable, "-c", STARTS_THREADS_SLOWLY + LOSES_A_SIGNAL.format(number=number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=REPOSITORY)
    assert (done.returncode, done.stderr) == (7, "")


SWALLOWS_A_SIGNAL = """
import os, signal
try:
    os.kill(os.getpid(), signal.{number})
except BaseException:
    pass
import sys
sys.path.remove(os.getcwd())
del sys.modules["confluent_kafka"]
import confluent_kafka
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("command", SERVICES)
def test_a_signal_amid_an_import_is_not_lost(command: str, number: str, tmp_path: Path) -> None:
    """Native modules, fastavro's for one, swallow an interrupt while they begin, and the service would run on."""
    (tmp_path / "freshet.toml").write_text('[keyspaces.k]\nkind = "rows"\n')
    (tmp_path / "confluent_kafka.py").write_text(SWALLOWS_A_SIGNAL.format(number=number))
    command_line = [sys.executable, "-m", "freshet", *command.split(), *NOWHERE]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    done = subprocess.run(
        command_line, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0
    assert "stopped" in done.stderr
    assert "error[" not in done.stderr
    assert "Traceback" not in done.stderr


ENDS_WITH_AN_IMPORT = """
import os, signal
from freshet import cli

def run():
    import freshet_test_late
    return 0

cli.run = run
cli.main()
"""


@pytest.mark.parametrize(("number", "code", "words"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")])
def test_a_signal_amid_the_last_import_ends_a_command_as_any_other(
    number: str, code: int, words: str, tmp_path: Path
) -> None:
    """It waits for the end of the import, and the process may not end with it."""
    (tmp_path / "freshet_test_late.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{number})\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    command = [sys.executable, "-c", ENDS_WITH_AN_IMPORT]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path, env=environment
    )
    assert (done.returncode, done.stderr) == (code, f"{words}\n")


def test_verify_takes_the_keyspace_as_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    """As `lag`, `dlq` and `inspect` do."""
    assert cli.run(["verify", "shop", *NOWHERE]) == 1
    assert "error[kafka_unreachable]" in capsys.readouterr().err
    assert cli.run(["verify", *NOWHERE]) == 2
    assert cli.run(["verify", "some/where", *NOWHERE]) == 2


def test_a_data_directory_on_a_read_only_disk_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process ends, so nothing says that it goes on by itself."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(process, "lock_directory", refuse)
    assert cli.run(["consume", "--keyspace", "k", "--data-dir", str(tmp_path), *NOWHERE]) == 1
    said = capsys.readouterr().err
    assert "error[store_io]" in said
    assert "by itself" not in said


def test_what_is_printed_is_printed_whole_also_without_buffers() -> None:
    """With PYTHONUNBUFFERED a signal ends a write to a pipe that is full, and Python forgets the rest of it."""
    size = 1 << 20
    program = (
        "import signal; from freshet.signals import write_whole\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None); write_whole()\n"
        f"print('ready'); print('x' * {size}, flush=True)"
    )
    line = [sys.executable, "-c", program]
    with subprocess.Popen(line, env={**os.environ, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found = os.read(process.stdout.fileno(), 6)
        while chunk := os.read(process.stdout.fileno(), 16_384):
            found += chunk
            if len(found) < size // 2:
                process.send_signal(signal.SIGUSR1)
    assert found == b"ready\n" + b"x" * size + b"\n"
