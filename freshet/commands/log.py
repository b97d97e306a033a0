"""``freshet log``: the committed transactions of a keyspace, one a line, printed or kept in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import unquote_to_bytes

import msgspec
import typer

from freshet.commands.get import front_client
from freshet.settings import load_settings
from serving.changelog.errors import ChangeLogError
from serving.changelog.files import Heading, LogFiles
from serving.changelog.writing import write_log
from serving.client import FreshetClient

DAY_S = 86_400


def command(
    keyspace: Annotated[str, typer.Argument(help="The keyspace.")],
    table: Annotated[
        list[str] | None, typer.Option(metavar="DB.TABLE", help="A table; repeatable. Default: all.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Print the history of this row of the one table, e.g. 7 or 7,2.")
    ] = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from", help="Where to begin: earliest, now, seconds (-3600: an hour ago), a token or a checkpoint."
        ),
    ] = "earliest",
    to: Annotated[Path | None, typer.Option(help="Write into files in this directory, instead of printing.")] = None,
    keep_days: Annotated[
        float | None, typer.Option(min=0.01, help="Remove files that ended longer ago. Default: keep all.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is committed later.")] = False,
    url: Annotated[str, typer.Option(help="The front (default: that of the settings).")] = "",
) -> None:
    """Print the committed transactions of a keyspace, or keep a complete log of them in files: one a line, in JSON.

    With --to the log goes on where its files end, exactly: kill it whenever you like, and start it again with the same
    words. One process for a keyspace and a directory.
    """
    settings, tables = load_settings(), sorted(set(table or ()))
    if to is None and keep_days is not None:
        raise ChangeLogError("--keep-days is of files", hint="name their directory with --to")
    if to is not None and key is not None:
        raise ChangeLogError("a log of one row is not kept in files", hint="leave --key out, or --to")
    with front_client(settings, url) as client:
        if to is None:
            _show(client, keyspace, begin, tables, key, follow=follow)
            return
        keep_s = keep_days * DAY_S if keep_days is not None else None
        try:
            with LogFiles(to, Heading(keyspace, tables), keep_s=keep_s) as files:
                write_log(client, keyspace, files, begin, tables=tables, once=not follow)
        except OSError as error:
            raise ChangeLogError(
                f"the log in {to} can't be written: {error.strerror or error}",
                hint="mend it, and start again: the log goes on where it was",
                code="log_failed",
            ) from error


def _show(
    client: FreshetClient, keyspace: str, begin: str, tables: list[str], key: str | None, *, follow: bool
) -> None:
    columns = [unquote_to_bytes(each) for each in key.split(",")] if key is not None else None
    events = client.stream(
        keyspace, begin, tables=tables, key=columns, include_rows=True, until="" if follow else "now"
    )
    for event in events:
        if event.kind not in ("watermark", "end"):
            typer.echo(msgspec.json.encode(event))
