"""The command ``freshet``: finds its commands in ``freshet/commands`` and turns errors into two lines.

A command is a module there with an ``app`` (a `typer.Typer`, for subcommands) or a function ``command``.
It is imported only when it is used or listed; one that isn't there is not listed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from freshet import DISTRIBUTION
from tokens.errors import FreshetError

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command that may exist, and what ``freshet --help`` says about it (without importing it)."""

    name: str
    summary: str
    hidden: bool = False


ENTRIES = (
    CommandEntry("doctor", "Check that this machine has what Freshet needs."),
    CommandEntry("local", "Start, stop and show real servers on this machine."),
    CommandEntry("source", "Publish the changes of a source of truth into Kafka."),
    CommandEntry("consume", "Fold a keyspace into its stores and answer for them."),
    CommandEntry("serve", "Answer reads over HTTP."),
    CommandEntry("rebuild", "Rebuild stores from Kafka with Spark."),
    CommandEntry("verify", "Compare stores with a rebuild, byte for byte."),
    CommandEntry("compare", "Decide whether a tag is fresh enough for a demand."),
    CommandEntry("inspect", "Show what a store holds for a key, and why."),
    CommandEntry("dlq", "List, show and retry dead letters."),
    CommandEntry("lag", "Show how far stores are behind their topics."),
    CommandEntry("replay", "Fold a captured log, offline."),
    CommandEntry("simulate", "Run seeded histories against an oracle."),
    CommandEntry("demo", "Everything on one machine, real servers, real traffic.", hidden=True),
)


class LazyGroup(TyperGroup):
    """Loads a command's module when it is used, so that ``freshet compare`` starts no Spark."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        """The commands whose module exists, in the order of `ENTRIES`."""
        return [entry.name for entry in ENTRIES if _exists(entry.name)]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]  # noqa: ARG002
        """The command, or None if there is no such module."""
        entry = next((entry for entry in ENTRIES if entry.name == cmd_name), None)
        return _load(entry) if entry is not None and _exists(entry.name) else None

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # noqa: ARG002
        """The list of commands in ``--help``."""
        rows = [(entry.name, entry.summary) for entry in ENTRIES if not entry.hidden and _exists(entry.name)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


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
        Literal["auto", "json", "console"] | None, typer.Option("--log-format", help="How to log to stderr.")
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
    except FreshetError:  # a command that needs settings will say so; the others don't mind
        log = LogSettings()
    configure_logs(log_format or log.format, log.level)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 nobody reads what it prints.
    """
    command = typer.main.get_command(app)
    try:
        command.main(args=list(arguments) if arguments is not None else None, prog_name="freshet")
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as ended:  # every ordinary end, and wrong usage, which the parser has explained
        if ended.code == EXIT_INTERRUPTED:
            return _interrupted()
        if isinstance(ended.__context__, BrokenPipeError):  # the parser makes a plain failure of it
            return _nobody_reads()
        return ended.code if isinstance(ended.code, int) else EXIT_FAILURE
    except FreshetError as error:
        print(f"error[{error.code}]: {_one_line(str(error))}", file=sys.stderr)
        if error.hint:
            print(f"hint: {_one_line(error.hint)}", file=sys.stderr)
        return EXIT_FAILURE
    except BrokenPipeError:
        return _nobody_reads()
    except OSError as error:
        return _of_the_system(error)
    except Exception as error:  # noqa: BLE001 - the last line of defence of a command line
        return _unexpected(error)
    return 0


def main() -> None:
    """Entry point of the console script."""
    signal.signal(signal.SIGTERM, partial(_end_as_by_ctrl_c, os.getpid()))
    code = run()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(code)


def _end_as_by_ctrl_c(of: int, number: int, _frame: object) -> None:
    """SIGTERM ends a command as Ctrl-C does, so that what is half done is cleared away; a fork of it just ends."""
    if os.getpid() == of:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _nobody_reads() -> int:
    """The reader of our output is gone, as by ``| head -1``: end as if SIGPIPE had, without a word."""
    with contextlib.suppress(OSError):  # keep the interpreter from flushing to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return EXIT_INTERRUPTED


def _of_the_system(error: OSError) -> int:
    """A file, directory or device that can't be read or written, and nobody who met it knew better."""
    if error.errno is None or isinstance(error, ConnectionError | TimeoutError) or os.environ.get("FRESHET_DEBUG"):
        return _unexpected(error)
    places = [str(name) for name in (error.filename, error.filename2) if name is not None]
    print(f"error[system]: {_one_line(': '.join([*places, error.strerror or str(error)]))}", file=sys.stderr)
    print("hint: is there space, and may this user read and write there?", file=sys.stderr)
    with contextlib.suppress(OSError):  # what is left in the buffer of a full device can't be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILURE


def _unexpected(error: Exception) -> int:
    """A defect: say so in one line; the traceback is for FRESHET_DEBUG=1."""
    if os.environ.get("FRESHET_DEBUG"):
        raise error
    print(f"error[internal]: {type(error).__name__}: {_one_line(str(error))}", file=sys.stderr)
    print("hint: this is a defect of freshet; FRESHET_DEBUG=1 shows where", file=sys.stderr)
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
    return command


if __name__ == "__main__":
    main()
