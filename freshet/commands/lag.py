"""``freshet lag``: how far each partition is behind its source."""

from __future__ import annotations

import json
from math import inf
from typing import Annotated, Any

import msgspec
import typer

from consumers.owner.protocol import OwnerError, PartitionStatus
from freshet.lag.tables import show_lags, table_lags
from freshet.owners import owner_addresses, owner_connection, partitions_of
from freshet.settings import load_settings
from tokens.errors import printable

QUIET_S = 5.0
"""A running source publishes markers at least once a second."""


def command(
    keyspace: Annotated[str, typer.Argument(help="The keyspace.")],
    owner: Annotated[
        list[str] | None,
        typer.Option(help="Address of an owner; repeatable. Default: as announced.", metavar="HOST:PORT"),
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    tables: Annotated[bool, typer.Option("--tables", help="Show each table, instead of each partition.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show for each partition its offsets, its watermarks, and how far it is behind the source in source time.

    "heard" is the time since the last message of the shard; a running source sends one each second. Of the tables that
    are published from the beginning it says in how many partitions they are complete.

    --tables: how far each table is read at the source, in how many partitions it is whole, and its last change that was
    folded. For that the ends of the topic's partitions are read, and no owner is kept from its work.

    Exit code 1 if a partition has no owner that answers.
    """
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
    found: dict[int, PartitionStatus] = {}
    silent: dict[str, str] = {}
    addresses = owner_addresses(settings, keyspace, owner or ())
    for address in sorted(set(addresses.values())):
        try:
            with owner_connection(settings, address) as connection:
                statuses = connection.status(keyspace).partitions
        except OwnerError as error:
            silent[address] = str(error)
            continue
        # It may follow what others own. Nobody is announced for what a consumer still reads.
        found |= {each.partition: each for each in statuses if addresses.get(each.partition, address) == address}
    expected = () if owner else partitions_of(settings.kafka.cluster, keyspace)
    missing = [number for number in expected if number not in found]
    if tables:
        lags = table_lags(settings, keyspace, found)
        if found or as_json:  # where nobody answers, nobody says that there are no tables
            show_lags(keyspace, lags, as_json=as_json)
        for number in missing:
            typer.echo(f"no owner answers for {keyspace}/{number}", err=True)
        for why in silent.values():
            typer.echo(why, err=True)
    elif as_json:
        typer.echo(json.dumps(_plain(keyspace, found, missing, silent), ensure_ascii=False))
    else:
        _show(found, missing, silent)
    if missing or silent:
        raise typer.Exit(1)


def _plain(
    keyspace: str, found: dict[int, PartitionStatus], missing: list[int], silent: dict[str, str]
) -> dict[str, Any]:
    partitions = [
        msgspec.structs.asdict(each)
        | {
            "shards": [msgspec.structs.asdict(shard) for shard in each.shards],
            "standing": msgspec.structs.asdict(each.standing) if each.standing is not None else None,
        }
        for _, each in sorted(found.items())
    ]
    return {"keyspace": keyspace, "partitions": partitions, "without_owner": missing, "silent": silent}


def _show(found: dict[int, PartitionStatus], missing: list[int], silent: dict[str, str]) -> None:
    if found:
        typer.echo(
            f"{'partition':>9}  {'state':<12} {'offset':>12} {'end':>12} {'durable':>12}  {'behind':>9}"
            f"  {'heard':>9}  watermark"
        )
    for number, each in sorted(found.items()):
        line = f"{number:>9}  {each.state:<12} {each.offset:>12} {each.end:>12} {each.committed:>12}"
        heard = f"{each.silent_seconds:.1f} s" if each.silent_seconds >= 0 else "unknown"
        for shard in each.shards:
            of_shard = f"{shard.silent_seconds:.1f} s" if shard.silent_seconds >= 0 else heard
            behind = f"{shard.lag_seconds:.1f} s" if shard.lag_seconds >= 0 else "unknown"
            typer.echo(f"{line}  {behind:>9}  {of_shard:>9}  {shard.shard} {shard.watermark or '(none yet)'}")
            line = " " * len(line)
        if not each.shards:
            typer.echo(f"{line}  {'unknown':>9}  {heard:>9}  (nothing folded)")
    for table in sorted({name for each in found.values() for name in each.tables}):
        whole = sum(each.tables.get(table, False) for each in found.values())
        typer.echo(f"{printable(table)} is complete in {whole} of {len(found)} partitions")
    for number in missing:
        typer.echo(f"{number:>9}  no owner answers for it")
    quiet = max((each.silent_seconds for each in found.values()), default=0.0)
    if quiet > QUIET_S:
        typer.echo(f"nothing has arrived from the source for {quiet:.0f} s: is `freshet source` running?", err=True)
    else:
        for name, silent_s in sorted(_quiet_shards(found).items()):
            typer.echo(f"nothing has arrived of {name} for {silent_s:.0f} s: is its source running?", err=True)
    for why in silent.values():
        typer.echo(why, err=True)


def _quiet_shards(found: dict[int, PartitionStatus]) -> dict[str, float]:
    """Shard → for how long no partition has heard of it, if that is long. Not those that others have succeeded: -1."""
    least: dict[str, float] = {}
    for partition in found.values():
        for each in partition.shards:
            least[each.shard] = min(each.silent_seconds, least.get(each.shard, inf))
    return {shard: silent_s for shard, silent_s in least.items() if silent_s > QUIET_S}
