"""``freshet doctor``: what this machine, Kafka, or a server that shall be a source, lacks, and how to get it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import Settings, load_settings
from freshet.settings_errors import SettingsError
from tokens.errors import printable

if TYPE_CHECKING:
    from freshet.checks.finding import Check


def command(
    source: Annotated[
        str, typer.Option(metavar="KEYSPACE", help="Check the server of this keyspace instead, before anything starts.")
    ] = "",
    kafka: Annotated[bool, typer.Option("--kafka", help="Check the Kafka of the settings instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Check that this machine has what Freshet needs. Exit code 1 if something essential is missing.

    With --source: the MariaDB or MySQL server of a keyspace in the settings. Binlog, order of GTIDs, grants, tables
    that can't be cached and why, size and time of a backfill. With --kafka: its brokers, and the topics of all
    keyspaces in the settings. Both may be given. It changes nothing there.
    """
    from freshet.checks.finding import healthy

    settings = load_settings()
    checks: list[Check] = []
    if source:
        checks += _of_source(settings, source)
    if kafka:
        checks += _of_kafka(settings)
    if not source and not kafka:
        checks += _of_machine(settings)
    if as_json:
        typer.echo(json.dumps({"healthy": healthy(checks), "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            typer.echo(f"{check.status:<8} {check.name}: {printable(check.found)}")
            if check.fix:
                typer.echo(f"{'':<8} → {printable(check.fix)}")
    if not healthy(checks):
        raise typer.Exit(1)


def _of_machine(settings: Settings) -> list[Check]:
    from freshet.checks.files import examine_files
    from freshet.checks.machine import examine

    return [*examine(settings.data_dir), examine_files(settings)]


def _of_kafka(settings: Settings) -> list[Check]:
    from freshet.checks.kafka import examine_kafka

    wanted = {name: (each.partitions, each.retention_ms) for name, each in settings.keyspaces.items()}
    return examine_kafka(settings.kafka.cluster, wanted)


def _of_source(settings: Settings, keyspace: str) -> Iterator[Check]:
    """The checks of each of the keyspace's servers, named by shard if there are several."""
    from dataclasses import replace

    from freshet.checks.postgres import examine_postgres
    from freshet.checks.source import examine_source
    from freshet.commands.source import server_of, table_filter

    shards = settings.shards_of(keyspace)
    for shard in shards:
        found = settings.source_of(keyspace, shard)
        if not isinstance(found, MariaDBSourceSettings):
            raise SettingsError(
                f"keyspace {keyspace} has no source that reads a database's log",
                hint="only those are checked: the others refuse at their start what they can't use",
            )
        examine = examine_postgres if found.is_postgres else examine_source
        for check in examine(server_of(found), table_filter(found), found):
            yield replace(check, name=f"{shard} {check.name}") if len(shards) > 1 else check
