"""``freshet replay``: folds a captured notification log offline, and shows what the catalog cache would hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from consumers.process.replay import Replay, ReplayedTable
from stream.sources.hive.messages import HiveMessageError, integer
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
    until: Annotated[
        int | None, typer.Option(help="Stop after this event id: what the cache held then.", show_default=False)
    ] = None,
    catalog: Annotated[str, typer.Option(help="Events of other catalogs are skipped.")] = "hive",
) -> None:
    """Fold a captured Hive notification log (as get_next_notification answers it) through the live path, offline."""
    folded = Replay(catalog, with_images=images)
    last: int | None = None
    for number, row in _rows(file):
        if until is not None and _is_later(row, until):
            break
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


def _is_later(row: dict[str, Any], until: int) -> bool:
    try:
        return integer(row, "eventId") > until
    except HiveMessageError:
        return False  # the fold says what is wrong with it


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


def _described(table: ReplayedTable) -> dict[str, Any]:
    """Columns, parameters and partitions, as the log shows them; null where nothing is known."""
    image = json.loads(table.image) if table.image is not None else {}
    columns = (image.get("sd") or {}).get("cols") if image else None
    partitions = [
        {"values": each.values, "parameters": json.loads(each.image).get("parameters") if each.image else None}
        for each in table.partitions
    ]
    return {
        "columns": columns,
        "partition_keys": image.get("partitionKeys"),
        "parameters": image.get("parameters"),
        "partitions": partitions,
        "partitions_whole": table.partitions_whole,
    }


def _show(event_id: int, tables: dict[str, ReplayedTable], as_json: bool) -> None:
    if as_json:
        shown = {
            name: {
                "table_id": table.table_id,
                "write_ids": table.write_ids,
                "servable": table.servable,
                "why": table.why,
                **_described(table),
            }
            for name, table in tables.items()
        }
        typer.echo(json.dumps({"after_event": event_id, "tables": shown}, separators=(",", ":")))
        return
    typer.echo(f"after event {event_id}:")
    for name, table in tables.items():
        mark = "servable" if table.servable else "not servable"
        typer.echo(f"  {name} (id {table.table_id}) {table.write_ids or 'no write ids'}: {mark}, {table.why}")
        described = _described(table)
        for what in ("columns", "partition_keys"):
            columns = ", ".join(f"{each.get('name')} {each.get('type')}" for each in described[what] or ())
            if columns:
                typer.echo(f"    {what.replace('_', ' ')}: {columns}")
        if described["parameters"]:
            typer.echo("    parameters: " + ", ".join(f"{k}={v}" for k, v in sorted(described["parameters"].items())))
        for each in described["partitions"]:
            typer.echo(f"    partition {'/'.join(each['values'])}")
