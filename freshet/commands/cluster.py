"""``freshet cluster``: which instances answer for which partitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet.settings import load_settings

if TYPE_CHECKING:
    from stream.kafka.locations import Announcement

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Show which instances answer for which partitions (docs/operating/running.md).",
)


@app.callback()
def cluster() -> None:
    """Show which instances answer for which partitions (docs/operating/running.md)."""


@app.command("status")
def status(
    keyspace: Annotated[str, typer.Argument(help="The keyspace (default: all of the settings).")] = "",
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Show who is announced for each partition: its owner, its followers, and where they are.

    The epoch grows from one owner of a partition to the next, the term with each swap of the readers. Exit code 1 if a
    partition has no owner.
    """
    from stream.kafka.locations import LocationsReader

    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
    chosen = [keyspace] if keyspace else list(settings.keyspaces)
    missing = 0
    with LocationsReader(settings.kafka.cluster) as reader:
        for name in chosen:
            known = settings.keyspaces.get(name)
            numbers = range(known.partitions) if known is not None else sorted(reader.owners(name))
            for number in numbers:
                owner = reader.owner_of(name, number)
                missing += owner is None
                found = [*([owner] if owner is not None else []), *reader.followers(name, number)]
                _show(name, number, [_plain(each) for each in found], as_json=as_json)
    if missing:
        raise typer.Exit(1)


def _plain(announced: Announcement) -> dict[str, Any]:
    return {
        "role": announced.role,
        "address": announced.address,
        "instance": announced.instance,
        "zone": announced.zone,
        "group": announced.group,
        "epoch": announced.generation,
        "term": announced.swap,
    }


def _show(keyspace: str, partition: int, found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"keyspace": keyspace, "partition": partition, "instances": found}, ensure_ascii=False))
        return
    if not any(each["role"] == "owner" for each in found):
        typer.echo(f"{keyspace}/{partition}  no owner is announced")
    for each in found:
        zone = f"  zone {each['zone']}" if each["zone"] else ""
        place = f"{keyspace}/{partition}  {each['role']:<8}  {each['address']}{zone}"
        typer.echo(f"{place}  epoch {each['epoch']}.{each['term']}  group {each['group'] or '?'}")
