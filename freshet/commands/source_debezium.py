"""``freshet source debezium``: publishes what a Debezium connector writes into Kafka."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer

from freshet.commands import source as source_command
from freshet.keyspaces import AsArgument, AsOption, one_keyspace
from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import load_settings
from freshet.settings_errors import SettingsError


def debezium(
    keyspace: AsArgument = "",
    *,
    keyspace_option: AsOption = "",
    topic_prefix: Annotated[str | None, typer.Option(help="The connector's topic.prefix.")] = None,
    connect_url: Annotated[str | None, typer.Option(help="Kafka Connect's address, http://host:port.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    new_epoch: Annotated[
        bool,
        typer.Option("--new-epoch", help="Void what was published and start at the server's current position."),
    ] = False,
) -> None:
    """Publish what a Debezium connector for MySQL, MariaDB or PostgreSQL writes, exactly once, from where it stopped.

    The log is not read. The server is asked for schemas, backfills and its clock: the user needs SELECT,
    REPLICATION CLIENT and, on MySQL, XA_RECOVER_ADMIN; on PostgreSQL no right but to connect. What the connector's
    configuration must be is in docs/operating/debezium.md.
    """
    from stream.kafka.requests import RequestsReader
    from stream.sources.debezium.source import ConnectorOptions, DebeziumSource
    from stream.sources.postgres.source import PostgresSource

    keyspace = one_keyspace(keyspace, keyspace_option)
    source_command.check_keyspace(keyspace, "debezium", named=False)
    flags: dict[str, Any] = {"kind": "debezium", "topic_prefix": topic_prefix, "connect_url": connect_url}
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}, "keyspaces": {keyspace: {"source": flags}}})
    found = settings.keyspace(keyspace).source
    if not isinstance(found, MariaDBSourceSettings):
        raise SettingsError(f"keyspace {keyspace} has no Debezium source", hint='set kind = "debezium" in its source')
    name = settings.shard_of(keyspace)
    stopping = threading.Event()
    make = PostgresSource if found.is_postgres else DebeziumSource
    source = make(
        source_command.source_options(settings, keyspace, new_epoch, name),
        ConnectorOptions(found.topic_prefix, found.connect, settings.kafka.cluster),
        source_command.publishers(settings, keyspace, stopping, new_epoch=new_epoch),
        source_command.ready(keyspace),
        lambda: RequestsReader(settings.kafka.cluster, keyspace, name),
    )
    again = f"freshet source debezium {keyspace}"
    source_command.run_source(source, settings, keyspace, name, stopping, again)
