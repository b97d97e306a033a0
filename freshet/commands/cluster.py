"""``freshet cluster``: which instances answer for which partitions, how one gives its own away, how one is moved."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet.owners import owner_connection
from freshet.settings import load_settings
from freshet.settings_errors import unknown_keyspace
from tokens.errors import FreshetError

if TYPE_CHECKING:
    from consumers.owner.client import OwnerConnection
    from consumers.owner.protocol import PartitionStatus
    from stream.kafka.connection import KafkaCluster
    from stream.kafka.locations import Announcement

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Show which instances answer for which partitions, empty one, move one (docs/operating/nodes.md).",
)
POLL_S = 0.2


class DrainError(FreshetError):
    """An instance still has partitions, which nobody has taken over yet."""

    code = "drain_unfinished"


@app.callback()
def cluster() -> None:
    """Show which instances answer for which partitions, empty one, move one (docs/operating/nodes.md)."""


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
            if not numbers:
                raise unknown_keyspace(name, settings.keyspaces, also="nobody is announced for it")
            for number in numbers:
                owner = reader.owner_of(name, number)
                missing += owner is None
                found = [*([owner] if owner is not None else []), *reader.followers(name, number)]
                _show(name, number, [_plain(each) for each in found], as_json=as_json)
    if missing:
        raise typer.Exit(1)


@app.command("drain")
def drain(
    addresses: Annotated[
        list[str],
        typer.Argument(help="Where it answers fronts, as `freshet cluster status` shows.", metavar="HOST:PORT"),
    ],
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the others have taken over.", min=0)] = 3600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Have instances give their partitions to the others of their group, and wait until they have none.

    Each goes on answering for a partition until the one that takes it over has read what was there at that time and is
    announced, so no read is refused. Then it can be stopped. A drained instance gets no partitions until it is started
    again.
    """
    settings = load_settings()
    deadline = time.monotonic() + timeout
    with ExitStack() as opened:
        connections = [opened.enter_context(owner_connection(settings, address)) for address in addresses]
        drained = [(each, each.drain().partitions) for each in connections]  # all, before one gives its own to another
        for connection, partitions in drained:
            if partitions:
                _show_drain(connection.address, partitions, as_json=as_json)
        for connection, partitions in drained:
            _wait_until_empty(connection, deadline, as_json=as_json)
            _wait_for_owners(settings.kafka.cluster, connection.address, partitions, deadline)
            _show_drain(connection.address, [], as_json=as_json)


@app.command("move")
def move(
    keyspace: Annotated[str, typer.Argument(help="The keyspace.")],
    partition: Annotated[int, typer.Argument(help="Its partition whose readers move.", min=0)],
    address: Annotated[
        str,
        typer.Argument(
            help="Where the instance that takes it answers fronts, as `freshet cluster status` shows.",
            metavar="HOST:PORT",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Move the readers of one partition to a follower of it, or back to the owner whose group has it.

    Within a group Kafka shares the partitions out, so no other member can be chosen. Both go on folding: no read is
    refused, and the same command with the address of before moves the readers back.
    """
    from freshet.commands.swap import move_readers

    _, before = move_readers(load_settings(), keyspace, [address], partition)
    if as_json:
        typer.echo(json.dumps({"keyspace": keyspace, "partition": partition, "to": address, "before": before}))
    else:
        back = f"; back: freshet cluster move {keyspace} {partition} {before[0]}" if before else ""
        typer.echo(f"moved {keyspace}/{partition} to {address}{back}")


def _wait_until_empty(connection: OwnerConnection, deadline: float, *, as_json: bool) -> None:
    """Tells each time that partitions have gone. Raises `DrainError` at the ``deadline``, monotonic.

    One that is still draining gets partitions again, if only to hand them over.
    """
    shown = -1
    while (told := connection.status()).partitions or told.draining:
        left = told.partitions
        if left and shown not in (-1, len(left)):
            _show_drain(connection.address, left, as_json=as_json)
        shown = len(left)
        if time.monotonic() > deadline:
            what = f"answers for {', '.join(_names(left))}" if left else "may get partitions: it has not left its group"
            raise DrainError(
                f"{connection.address} still {what}",
                hint="are there other instances of its group that are running and catching up? It goes on handing "
                "over. A partition that was moved to it can be moved back: `freshet cluster move`",
            )
        time.sleep(POLL_S)


def _wait_for_owners(kafka: KafkaCluster, address: str, given: list[PartitionStatus], deadline: float) -> None:
    """Until each partition that ``address`` had is announced by another instance. Raises `DrainError`.

    One that has failed amid the drain has none for a while, too.
    """
    from stream.kafka.locations import LocationsReader

    with LocationsReader(kafka) as reader:
        while True:
            owners = [(each, reader.owner_of(each.keyspace, each.partition)) for each in given]
            left = [each for each, owner in owners if owner is None or owner.address == address]
            if not left:
                return
            if time.monotonic() > deadline:
                raise DrainError(
                    f"nobody else is announced for {', '.join(_names(left))}, which {address} had",
                    hint="`freshet cluster status` shows who is there; run the command again",
                )
            time.sleep(POLL_S)


def _names(partitions: list[PartitionStatus]) -> list[str]:
    return [f"{each.keyspace}/{each.partition}" for each in partitions]


def _show_drain(address: str, left: list[PartitionStatus], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"address": address, "partitions": _names(left)}, ensure_ascii=False))
    elif left:
        typer.echo(f"{address} hands over {len(left)} partitions")
    else:
        typer.echo(f"{address} has no partitions any more: it can be stopped")


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
