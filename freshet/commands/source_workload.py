"""``freshet source workload``: publishes a catalog that is kept in MariaDB tables."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from freshet.commands import source as source_command
from freshet.keyspaces import AsArgument, AsOption, one_keyspace
from freshet.sections.sources import WorkloadSourceSettings
from freshet.settings import load_settings
from freshet.settings_errors import SettingsError
from freshet.signals import stopping_on_signals

log = structlog.get_logger(__name__)

TRAFFIC_WORKERS = 4


def workload(
    keyspace: AsArgument = "",
    *,
    keyspace_option: AsOption = "",
    host: Annotated[str | None, typer.Option(help="MariaDB's host.")] = None,
    port: Annotated[int | None, typer.Option(help="MariaDB's port.", min=1, max=65535)] = None,
    user: Annotated[str | None, typer.Option(help="MariaDB user.")] = None,
    password_file: Annotated[
        Path | None, typer.Option(help=f"File that holds the password (or set {source_command.PASSWORD_VARIABLE}).")
    ] = None,
    password: Annotated[str | None, typer.Option(envvar=source_command.PASSWORD_VARIABLE, hidden=True)] = None,
    database: Annotated[str | None, typer.Option(help="Database that holds the catalog's tables.")] = None,
    partitions: Annotated[int | None, typer.Option(help="Partitions of a new topic.", min=1, max=1024)] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Also run random transactions on the catalog, at the settings' rate.")
    ] = False,
    new_epoch: Annotated[
        bool, typer.Option("--new-epoch", help="Void what was published and publish the whole catalog again.")
    ] = False,
) -> None:
    """Publish the log of a catalog kept in MariaDB as one shard, exactly once, from where it stopped.

    The database must exist; its tables are created. The user needs SELECT, INSERT, UPDATE, DELETE and CREATE on it.
    """
    from lab.workload.run import WorkloadSource, run
    from lab.workload.traffic import Traffic
    from stream.sources.mariadb.connection import ConnectionSettings

    keyspace = one_keyspace(keyspace, keyspace_option)
    source_command.check_keyspace(keyspace, "workload", named=database is not None)
    if password_file is not None:
        password = source_command.read_password(password_file)
    flags: dict[str, Any] = {
        "kind": "workload",
        "host": host,
        "port": port,
        "user": user,
        "password": password,
        "database": database,
    }
    keyspaces = {keyspace: {"kind": "catalog", "partitions": partitions, "source": flags}}
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}, "keyspaces": keyspaces})
    found = settings.keyspace(keyspace).source
    if not isinstance(found, WorkloadSourceSettings):
        raise SettingsError(f"keyspace {keyspace} has no workload source", hint='set kind = "workload" in its source')
    server = ConnectionSettings(found.host, found.port, found.user, found.password.get_secret_value())
    stop = threading.Event()
    with stopping_on_signals(stop.set), ExitStack() as stack:
        if traffic:
            rate = found.transactions_per_s
            stack.enter_context(
                Traffic(
                    server, found.database, seed=found.seed, tables=found.tables, rate=rate, workers=TRAFFIC_WORKERS
                )
            )
        stack.enter_context(source_command.with_recovery_hint(f"freshet source workload {keyspace}"))
        make = source_command.publishers(settings, keyspace, stop, new_epoch=new_epoch)
        run(WorkloadSource(server, found.database, new_epoch=new_epoch), make, stop)
    log.info("stopped", keyspace=keyspace)
