"""The command ``freshet``: finds its commands in ``freshet/commands`` and prints errors as two lines.

A command is a module there with an ``app`` (a `typer.Typer`, for subcommands) or a function ``command``. It is imported
only when it is used. A command whose module is missing is not listed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, Literal

import typer
from typer.core import TyperGroup

from freshet import DISTRIBUTION
from freshet.help.examples import explain
from freshet.signals import SIGNALS, interrupt, raise_deferred, write_whole
from tokens.errors import FreshetError

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_BROKEN_PIPE = 141


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command, and its line in ``freshet --help``, which is printed without importing the command."""

    name: str
    summary: str
    hidden: bool = False
    service: bool = False
    """Runs until it is stopped: SIGTERM and Ctrl-C are its ordinary end, at any moment."""
    unlike: str = ""
    """With this option the opposite of ``service`` is true: `log --follow` goes on, `sink --once` ends."""
    shares: bool = False
    """What it writes is for other users too. All others' files are for their own user only."""

    def is_service(self, arguments: Sequence[str]) -> bool:
        """Whether it is one with these arguments."""
        return self.service != any(each.partition("=")[0] == self.unlike for each in arguments if self.unlike)


ENTRIES = (
    CommandEntry("doctor", "Check that this machine has what Freshet needs."),
    CommandEntry("local", "Start, stop and show real servers on this machine.", shares=True),
    CommandEntry("up", "Run all of it in one terminal: sources, consumer, front.", service=True, shares=True),
    CommandEntry("get", "Ask the front for a row: the row, the decision, and why."),
    CommandEntry("source", "Publish the changes of a source of truth into Kafka.", service=True),
    CommandEntry("consume", "Fold a keyspace into its stores and answer for them.", service=True),
    CommandEntry("serve", "Answer reads over HTTP.", service=True),
    CommandEntry("node", "Consume and serve in one process: an instance of many.", service=True),
    CommandEntry("rebuild", "Rebuild stores from Kafka with Spark.", unlike="--follow"),
    CommandEntry("verify", "Compare stores with a rebuild, byte for byte.", unlike="--every"),
    CommandEntry("snapshots", "Make, list, check and remove snapshots of stores."),
    CommandEntry("swap", "Move the readers of a keyspace to other consumers, and back."),
    CommandEntry("cluster", "Show which instances answer for which partitions."),
    CommandEntry("export", "Write a keyspace's changes as Parquet with Spark.", shares=True, unlike="--follow"),
    CommandEntry(
        "sink", "Copy tables into another database, and keep the copy up to date.", service=True, unlike="--once"
    ),
    CommandEntry("log", "Print committed transactions, or keep a complete log of them in files.", unlike="--follow"),
    CommandEntry("compare", "Compare two positions, tokens or write-id lists."),
    CommandEntry("inspect", "Show what a store holds for a key, and why."),
    CommandEntry("bytes", "Show, check and drop what the byte cache holds; replay traces of it."),
    CommandEntry("dlq", "List, show, retry and dismiss dead letters."),
    CommandEntry("backfill", "Publish tables from their beginning, and show how far they are."),
    CommandEntry("token", "Make, hash and check the secrets that callers show."),
    CommandEntry("lag", "Show how far stores are behind their topics."),
    CommandEntry("replay", "Fold a captured log, offline."),
    CommandEntry("simulate", "Run seeded histories against an oracle."),
    CommandEntry("demo", "Everything on one machine, real servers, real traffic.", hidden=True, shares=True),
)


INTERRUPT_AGAIN_S: Final = 0.05
RELOADING: Final = frozenset({"consume", "node", "serve"})
"""Commands that read credentials again at SIGHUP (`freshet.access.reloading`)."""
PRIVATE: Final = 0o077
"""What is taken from the modes of new files and directories."""


@dataclass(slots=True)
class _Run:
    """Whether this process runs a service, and whether SIGTERM has met it."""

    service: bool = False
    terminated: bool = False


_run = _Run()


class LazyGroup(TyperGroup):
    """Loads a command's module only when it is used, so that small commands start fast."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        """The commands whose module exists, in the order of `ENTRIES`."""
        return [entry.name for entry in ENTRIES if _exists(entry.name)]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]  # noqa: ARG002
        """The command, or None if it does not exist."""
        entry = next((entry for entry in ENTRIES if entry.name == cmd_name), None)
        return _load(entry) if entry is not None and _exists(entry.name) else None

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """The command that ``args`` begin with. For a misspelled one the nearest is named."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not ctx.resilient_parsing:
            near = get_close_matches(args[0], known, n=1)
            if near:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # noqa: ARG002
        """The list of commands in ``--help``."""
        rows = [(entry.name, entry.summary) for entry in ENTRIES if not entry.hidden and _exists(entry.name)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # also of all commands below
)


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        typer.echo(f"freshet {importlib.metadata.version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def options(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="Settings file (default: $FRESHET_CONFIG, else freshet.toml, else that of `freshet local up`).",
            metavar="FILE",
        ),
    ] = None,
    log_format: Annotated[
        Literal["auto", "json", "console"] | None, typer.Option("--log-format", help="Format of the log on stderr.")
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """A materialized cache that can prove each answer fresh."""
    from freshet.logs import configure_logs
    from freshet.settings import LogSettings, load_settings, use_config

    use_config(config)
    try:
        log = load_settings(flags={"log": {"format": log_format}}).log
    except FreshetError:  # a command that needs settings raises this again
        log = LogSettings()
    configure_logs(log_format or log.format, log.level)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 broken pipe on stdout, 143 terminated. A service that is
    interrupted or terminated has done its work: 0.
    """
    try:
        command = typer.main.get_command(app)
        command.main(args=list(arguments) if arguments is not None else None, prog_name="freshet")
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as ended:  # every ordinary end, and wrong usage, which typer has already explained
        if ended.code == EXIT_INTERRUPTED:
            return _interrupted()
        if isinstance(ended.__context__, BrokenPipeError):  # typer turns it into exit code 1
            return _broken_pipe()
        return ended.code if isinstance(ended.code, int) else EXIT_FAILURE
    except FreshetError as error:
        print(f"error[{error.code}]: {_one_line(str(error))}", file=sys.stderr)
        if error.hint:
            print(f"hint: {_one_line(error.hint)}", file=sys.stderr)
        return EXIT_FAILURE
    except BrokenPipeError:
        return _broken_pipe()
    except OSError as error:
        return _system_error(error)
    except UnicodeEncodeError as error:
        return _unreadable_argument(sys.argv[1:] if arguments is None else arguments, error)
    except Exception as error:  # noqa: BLE001 - a user gets one line instead of a traceback
        return _internal_error(error)
    return 0


def main() -> None:
    """What `freshet.__main__` runs."""
    # The command itself: a keyspace may be called as another one.
    named = next((each for word in sys.argv[1:] for each in ENTRIES if each.name == word), None)
    _run.service = named is not None and named.is_service(sys.argv[1:])
    if named is not None and named.name in RELOADING:
        signal.signal(signal.SIGHUP, _reload_later)
    if named is None or not named.shares:
        os.umask(os.umask(PRIVATE) | PRIVATE)  # stores, checkpoints, snapshots: 0700 and 0600
    sys.unraisablehook = _interrupt_again
    write_whole()
    try:
        for number in SIGNALS:
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, partial(_interrupt, os.getpid()))
        code = run()
        raise_deferred()
    except KeyboardInterrupt:  # before `run` heeds them, or another one amid the words on the first
        code = _interrupted()
    for number in SIGNALS:  # nothing is left to be done in order
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


def _reload_later(_number: int, _frame: object) -> None:
    """SIGHUP before there is anything to read again: the settings are read after it in any case."""


def _interrupt(main_pid: int, number: int, frame: FrameType | None) -> None:
    """Handles SIGTERM like Ctrl-C, so that a command cleans up. A forked child of it ends at once."""
    if os.getpid() == main_pid:
        _run.terminated |= number == signal.SIGTERM
        interrupt(number, frame)
    else:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _interrupt_again(lost: Any) -> None:
    """An interrupt amid a destructor, or native code that ignores errors, is lost there: it comes again soon."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    again = threading.Timer(INTERRUPT_AGAIN_S, _strike_again)
    again.daemon = True
    again.start()


def _strike_again() -> None:
    """Sends the signal once the main thread is no longer in `_interrupt_again`, where it would be lost once more.

    Nor has it left it just now: this thread runs again when that one begins to wait, and a signal that comes just
    before a call of the system does not end it.
    """
    was_told = True
    while was_told:
        was_told = _is_told_of_a_loss()
        time.sleep(INTERRUPT_AGAIN_S)
    os.kill(os.getpid(), signal.SIGTERM if _run.terminated else signal.SIGINT)


def _is_told_of_a_loss() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not _interrupt_again.__code__:
        frame = frame.f_back
    return frame is not None


def _broken_pipe() -> int:
    """The reader of stdout is gone, as with ``| head -1``: end silently, with the exit code of SIGPIPE."""
    with contextlib.suppress(OSError):  # else the interpreter fails when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def _interrupted() -> int:
    # CPython ends itself with SIGINT if an interrupt has passed through exec of a text (dataclasses use it), even if it
    # was caught since. The next exec makes it forget.
    exec("")
    if _run.service:
        print("stopped", file=sys.stderr)
        return 0
    print("terminated" if _run.terminated else "interrupted", file=sys.stderr)
    return EXIT_TERMINATED if _run.terminated else EXIT_INTERRUPTED


def _system_error(error: OSError) -> int:
    """Reports a file, directory or device that cannot be read or written."""
    if error.errno is None or isinstance(error, ConnectionError | TimeoutError) or os.environ.get("FRESHET_DEBUG"):
        return _internal_error(error)
    places = [str(name) for name in (error.filename, error.filename2) if name is not None]
    print(f"error[system]: {_one_line(': '.join([*places, error.strerror or str(error)]))}", file=sys.stderr)
    print("hint: is there space, and may this user read and write there?", file=sys.stderr)
    with contextlib.suppress(OSError):  # else the interpreter fails when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILURE


def _unreadable_argument(arguments: Sequence[str], error: UnicodeEncodeError) -> int:
    """Reports the argument whose bytes are no UTF-8: Python keeps them as surrogates, which nothing can encode."""
    for argument in arguments:
        shown = os.fsencode(argument).decode(errors="backslashreplace")
        if shown != argument:
            print(f"error[bad_argument]: the argument '{_one_line(shown)}' is not UTF-8", file=sys.stderr)
            print("hint: write it in UTF-8; a terminal or script may use another encoding", file=sys.stderr)
            return EXIT_FAILURE
    return _internal_error(error)


def _internal_error(error: Exception) -> int:
    """Reports a defect in one line. With FRESHET_DEBUG set it raises ``error`` again, for its traceback."""
    if os.environ.get("FRESHET_DEBUG"):
        raise error
    print(f"error[internal]: {type(error).__name__}: {_one_line(str(error))}", file=sys.stderr)
    print("hint: this is a bug in freshet; FRESHET_DEBUG=1 shows the traceback", file=sys.stderr)
    return EXIT_FAILURE


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _module(name: str) -> str:
    return f"freshet.commands.{name.replace('-', '_')}"


def _exists(name: str) -> bool:
    return importlib.util.find_spec(_module(name)) is not None


def _load(entry: CommandEntry) -> Any:
    module: Any = importlib.import_module(_module(entry.name))
    if hasattr(module, "app"):
        command: Any = typer.main.get_command(module.app)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command()(module.command)
        command = typer.main.get_command(single)
    command.name = entry.name
    command.hidden = entry.hidden
    return explain(command, entry.name)


if __name__ == "__main__":
    main()
