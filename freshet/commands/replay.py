"""``freshet replay``: folds a captured notification log offline, and shows what the catalog cache would hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from consumers.process.replay import Replay, ReplayedTable
from stream.sources.hive.messages import HiveMessageError
from tokens.errors import FreshetError


class ReplayFileError(FreshetError):
    """A captured log that cannot be read; the message names the line. Code ``bad_log``."""

    code = "bad_log"


def command(
    file: Annotated[Path, typer.Argument(help="Notification events, one JSON object a line; - reads standard input.")],
    every: Annotated[
        bool, typer.Option("--every", help="Show the tables after each event, not only the last.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for a program.")] = False,
    images: Annotated[
        bool,
        typer.Option(
            "--images/--no-images",
            help="Use the table in an event as its image, as if a source had fetched it; without, nothing is servable.",
        ),
    ] = True,
    catalog: Annotated[str, typer.Option(help="Events of other catalogs are skipped.")] = "hive",
) -> None:
    """Fold a captured Hive notification log (as get_next_notification answers it) through the live path, offline."""
    folded = Replay(catalog, with_images=images)
    last: int | None = None
    for number, row in _rows(file):
        try:
            event_id = folded.feed(row)
        except HiveMessageError as error:
            raise ReplayFileError(
                f"{file} line {number}: {error}", hint="each line is one notification event"
            ) from error
        if event_id is None:
            continue
        last = event_id
        if every:
            _show(event_id, folded.tables(), as_json)
    if last is None:
        raise ReplayFileError(f"{file} contains no event", hint="one JSON object a line, with eventId, eventType, …")
    if not every:
        _show(last, folded.tables(), as_json)
    for letter in folded.rejections:
        typer.echo(f"dead letter: {letter.reason} ({letter.place})", err=True)


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with sys.stdin if str(file) == "-" else file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _row(file, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayFileError(f"{file} cannot be read: {error}", hint="is the path right?") from error


def _row(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ReplayFileError(f"{file} line {number} is not JSON: {error}", hint="is the file cut off?") from error
    if not isinstance(row, dict):
        raise ReplayFileError(f"{file} line {number} is not a JSON object", hint="each line is one notification event")
    return row


def _show(event_id: int, tables: dict[str, ReplayedTable], as_json: bool) -> None:
    if as_json:
        shown = {
            name: {
                "table_id": table.table_id,
                "write_ids": table.write_ids,
                "servable": table.servable,
                "why": table.why,
            }
            for name, table in tables.items()
        }
        typer.echo(json.dumps({"after_event": event_id, "tables": shown}, separators=(",", ":")))
        return
    typer.echo(f"after event {event_id}:")
    for name, table in tables.items():
        mark = "servable" if table.servable else "not servable"
        typer.echo(f"  {name} (id {table.table_id}) {table.write_ids or 'no write ids'}: {mark}, {table.why}")
