"""``freshet source``: publish the changes of a source of truth into Kafka."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import structlog
import typer

from freshet import DISTRIBUTION
from freshet.keyspaces import AsArgument, AsOption, one_keyspace
from freshet.sections.shards import names_of
from freshet.sections.sources import PASSWORD_VARIABLE, MariaDBSourceSettings
from freshet.settings import Settings, load_settings
from freshet.settings_errors import SettingsError, unknown_keyspace
from freshet.signals import stopping_on_signals

if TYPE_CHECKING:
    from stream.sources.mariadb.connection import ConnectionSettings
    from stream.sources.mariadb.schema import TableFilter
    from stream.sources.mariadb.source import SourceOptions
    from stream.sources.status import SourceStatus

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Publish the changes of a source into Kafka.",
)
log = structlog.get_logger(__name__)


@app.callback()
def _group() -> None:
    """Publish the changes of a source of truth into Kafka."""


MARIADB_HELP = """Publish a MariaDB server's binlog as one shard, exactly once, from where it stopped.

The user needs REPLICATION SLAVE, BINLOG MONITOR (REPLICATION CLIENT) and SELECT; the server log_bin,
binlog_format=ROW, binlog_row_image=FULL and binlog_row_metadata=FULL.
"""
MYSQL_HELP = """Publish a MySQL server's binlog as one shard, exactly once, from where it stopped.

The user needs REPLICATION SLAVE, REPLICATION CLIENT and SELECT; the server gtid_mode=ON, enforce_gtid_consistency=ON,
binlog_row_image=FULL and binlog_row_metadata=FULL.
"""


def _binlog_command(kind: Literal["mariadb", "mysql"]) -> Callable[..., None]:
    """The command that publishes the binlog of a server of this kind."""

    def run(
        keyspace: AsArgument = "",
        *,
        keyspace_option: AsOption = "",
        shard: Annotated[
            str, typer.Option(help="Which shard of a keyspace with several, by its range or name: --shard=-80.")
        ] = "",
        host: Annotated[str | None, typer.Option(help="The server's host.")] = None,
        port: Annotated[int | None, typer.Option(help="The server's port.", min=1, max=65535)] = None,
        user: Annotated[str | None, typer.Option(help="User to log in as.")] = None,
        password_file: Annotated[
            Path | None, typer.Option(help=f"File that holds the password (or set {PASSWORD_VARIABLE}).")
        ] = None,
        password: Annotated[str | None, typer.Option(envvar=PASSWORD_VARIABLE, hidden=True)] = None,
        databases: Annotated[
            list[str] | None, typer.Option("--database", help="Database to publish; repeatable.")
        ] = None,
        tables: Annotated[list[str] | None, typer.Option(help="Pattern of db.table to publish; repeatable.")] = None,
        exclude: Annotated[list[str] | None, typer.Option(help="Pattern of db.table to leave out; repeatable.")] = None,
        backfill: Annotated[
            list[str] | None, typer.Option(help="Pattern of db.table to publish from the beginning; repeatable.")
        ] = None,
        server_id: Annotated[
            int | None, typer.Option(help="Replica id, unique among the server's replicas.", min=1)
        ] = None,
        partitions: Annotated[int | None, typer.Option(help="Partitions of a new topic.", min=1, max=1024)] = None,
        bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
        new_epoch: Annotated[
            bool,
            typer.Option("--new-epoch", help="Void what was published and start at the server's current position."),
        ] = False,
    ) -> None:
        from stream.kafka.requests import RequestsReader
        from stream.sources.mariadb.replicas.following import FollowingSource
        from stream.sources.mariadb.source import MariaDBSource

        keyspace = one_keyspace(keyspace, keyspace_option)
        check_keyspace(keyspace, kind, named=bool(databases))
        if password_file is not None:
            password = read_password(password_file)
        server = {"host": host, "port": port, "user": user, "password": password, "server_id": server_id}
        chosen = {"kind": kind, "databases": databases, "include": tables, "exclude": exclude, "backfill": backfill}
        own_range = _range_of(keyspace, shard)
        keyspace_flags: dict[str, Any] = {"partitions": partitions, "source": chosen if own_range else chosen | server}
        if own_range:
            keyspace_flags["shards"] = {own_range: server}
        settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}, "keyspaces": {keyspace: keyspace_flags}})
        name = settings.shard_of(keyspace, shard)
        stopping = threading.Event()
        make = publishers(settings, keyspace, stopping, new_epoch=new_epoch, shard=name)
        options, replicas = source_options(settings, keyspace, new_epoch, name), replicas_of(settings, keyspace, name)
        source = (partial(FollowingSource, options, replicas) if replicas else partial(MariaDBSource, options))(
            make, ready(keyspace), lambda: RequestsReader(settings.kafka.cluster, keyspace, name)
        )
        again = f"freshet source {kind} {keyspace}{f' --shard={shard}' if shard else ''}"
        run_source(source, settings, keyspace, name, stopping, again)

    return run


app.command("mariadb", help=MARIADB_HELP)(_binlog_command("mariadb"))
app.command("mysql", help=MYSQL_HELP)(_binlog_command("mysql"))


def _range_of(keyspace: str, shard: str) -> str:
    """The range, as the settings write it, of the shard that is meant; "" if shards have no ranges.

    Raises `SettingsError` ``which_shard``.
    """
    try:
        settings = load_settings()
    except SettingsError:
        return ""  # loading them with the flags raises what is left
    chosen = settings.keyspaces.get(keyspace)
    ranges = chosen.ranges if chosen is not None else {}
    return names_of(keyspace, ranges)[settings.shard_of(keyspace, shard)] if ranges else ""


@contextlib.contextmanager
def monitored(settings: Settings, keyspace: str, status: SourceStatus, shard: str) -> Iterator[None]:
    """Metrics and health of this process at ``source.metrics_port``, if one is set. Raises `SettingsError`."""
    from prometheus_client import CollectorRegistry

    from stream.access.grants import Access
    from stream.access.listening import check_listener
    from stream.monitoring import serve_monitoring
    from stream.sources.metrics import SourceCollector

    at = settings.source
    if at.metrics_port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(SourceCollector(keyspace, shard, status))
    access = Access.of_secret(at.metrics_token.get_secret_value() if at.metrics_token is not None else "")
    check_listener(
        at.metrics_host,
        what="the metrics",
        section="source",
        setting="source.metrics_token",
        has_access=not access.is_open,
        is_encrypted=at.plain or bool(at.tls.certificate),
    )
    try:
        server = serve_monitoring(
            (at.metrics_host, at.metrics_port),
            registry,
            lambda: status.not_ready,
            version=version(DISTRIBUTION),
            access=access,
            files=at.tls.files,
        )
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {at.metrics_host}:{at.metrics_port}: {error}",
            hint="set source.metrics_port to a free port",
        ) from None
    log.info("metrics", address=f"{at.metrics_host}:{server.server_address[1]}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def check_keyspace(keyspace: str, kind: str, *, named: bool) -> None:
    """Raises `SettingsError` if the keyspace is not in the settings or has a source of another kind.

    ``named``: a flag names the database to publish, so the keyspace need not be in the settings.
    """
    try:
        known = load_settings().keyspaces
    except SettingsError:
        return  # flags may complete the settings; loading them with the flags raises what is left
    found = known.get(keyspace)
    if (
        found is None and not named and (known or kind in ("mariadb", "mysql"))
    ):  # a workload source has a default database
        raise unknown_keyspace(keyspace, known, hint="name a database with --database")
    if found is not None and found.source is not None and found.source.kind != kind:
        raise SettingsError(
            f"keyspace {keyspace} has a {found.source.kind} source, not a {kind} one",
            hint=f"freshet source {found.source.kind} {keyspace}",
        )


def read_password(file: Path) -> str:
    """The password in a file, without its line end. Raises `SettingsError`."""
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot read the password file {file}: {error}", hint="is it there, and readable?"
        ) from None


def table_filter(source: MariaDBSourceSettings, key_range: str = "") -> TableFilter:
    """The tables that a source publishes, and that a front may read through. ``key_range``: of the source's shard."""
    from stream.sources.mariadb.schema import TableFilter

    prefixes = tuple(sorted(source.key_prefix_columns.items()))
    return TableFilter(tuple(source.databases), tuple(source.include), tuple(source.exclude), prefixes, key_range)


def server_of(source: MariaDBSourceSettings) -> ConnectionSettings:
    """How a source, and a front that reads through, connect to the server."""
    from stream.sources.mariadb.connection import ConnectionSettings

    return ConnectionSettings(
        source.host,
        source.port,
        source.user,
        source.password.get_secret_value(),
        ssl_ca=source.ssl_ca or None,
        ssl_verify_host=source.ssl_verify_host,
        ssl_cert=source.ssl_cert or None,
        ssl_key=source.ssl_key or None,
        product="PostgreSQL" if source.is_postgres else "MySQL" if source.is_mysql else "MariaDB",
        database=source.database,
    )


def replicas_of(settings: Settings, keyspace: str, shard: str) -> tuple[ConnectionSettings, ...]:
    """How a source connects to each of its server's replicas."""
    found = settings.source_of(keyspace, shard)
    if not isinstance(found, MariaDBSourceSettings):
        return ()
    addresses = [address.partition(":") for address in found.replicas]
    return tuple(replace(server_of(found), host=host, port=int(port or found.port)) for host, _, port in addresses)


def source_options(settings: Settings, keyspace: str, new_epoch: bool, shard: str) -> SourceOptions:
    """What a source of rows reads, and how. Raises `SettingsError`."""
    from stream.sources.mariadb.backfill.plan import piece_bytes
    from stream.sources.mariadb.backfill.run import BackfillOptions
    from stream.sources.mariadb.schema import TableFilter
    from stream.sources.mariadb.source import SourceOptions

    found, known = settings.source_of(keyspace, shard), settings.shard_map(keyspace)
    if not isinstance(found, MariaDBSourceSettings):
        raise SettingsError(
            f"keyspace {keyspace} has no MariaDB or MySQL source", hint="name a database with --database"
        )
    chosen = settings.keyspace(keyspace)
    partial = (*chosen.hot, *chosen.invalidate)
    return SourceOptions(
        settings=server_of(found),
        shard=shard,
        tables=table_filter(found, str(known.range_of(shard)) if known is not None else ""),
        server_id=found.server_id,
        new_epoch=new_epoch,
        backfill=BackfillOptions(
            TableFilter(include=tuple(found.backfill), exclude=partial) if found.backfill else None,
            found.backfill_rows_per_s,
            found.backfill_share,
            found.backfill_lag_max_s,
            piece_bytes(settings.publisher.batch_bytes),
        ),
        before_images=chosen.before_images,
        keyless_rows=chosen.keyless_rows,
    )


def publishers(
    settings: Settings, keyspace: str, stopping: threading.Event, *, new_epoch: bool = False, shard: str = ""
) -> Any:
    """A function that makes a shard's publisher, and the topic if it isn't there yet. ``shard`` "": the only one.

    Once ``stopping`` is set, waits for Kafka end soon.
    """
    from stream.kafka.advice import Advice, advise
    from stream.kafka.topics import ensure_requests_topic, ensure_topics
    from stream.publish.publisher import Publisher
    from stream.wire.batch import BatchLimits
    from stream.wire.keys import Layout

    chosen = settings.keyspace(keyspace)
    layout = Layout(chosen.partitions)
    batching = settings.publisher
    cluster = settings.kafka.cluster
    told: list[Advice] = []

    def make() -> Publisher:
        topic = ensure_topics(cluster, keyspace, chosen.partitions, retention_ms=chosen.retention_ms)
        advice = advise(cluster, topic, chosen.retention_ms)
        for each in advice:
            if each not in told:
                log.warning(each.found, keyspace=keyspace, code=each.code, hint=each.fix)
        told[:] = advice
        ensure_requests_topic(cluster, keyspace)
        return Publisher(
            cluster,
            keyspace,
            settings.shard_of(keyspace, shard),
            layout,
            batch_interval_s=batching.batch_interval_ms / 1000,
            limits=BatchLimits(
                rows_max=batching.frame_rows_max,
                bytes_max=batching.frame_bytes_max,
                batch_bytes=batching.batch_bytes,
            ),
            stopping=stopping,
            new_epoch=new_epoch,
            topology=_topology(settings, keyspace, settings.shard_of(keyspace, shard)),
            declare_every_s=batching.declare_every_s,
            invalidated=chosen.invalidate,
        )

    return make


def _topology(settings: Settings, keyspace: str, shard: str) -> Any:
    """What the settings say of the shards around ``shard``."""
    from stream.publish.topology import DeclaredTopology

    chosen, succession = settings.keyspace(keyspace), settings.succession(keyspace)
    over = sorted({name for names in succession.values() for name in names}) if chosen.ranges else ()
    others = () if chosen.ranges else tuple(chosen.shards)
    return DeclaredTopology(others, succession[shard], settings.shard_map(keyspace), tuple(over))


def ready(keyspace: str) -> Any:
    """A function that logs from which position a source reads."""

    def report(position: str) -> None:
        log.info("ready", keyspace=keyspace, position=position)

    return report


class RunnableSource(Protocol):
    """What a source has for `run_source`."""

    status: SourceStatus

    def run(self) -> None: ...

    def stop(self) -> None: ...


def run_source(
    source: RunnableSource, settings: Settings, keyspace: str, shard: str, stopping: threading.Event, again: str
) -> None:
    """Runs a source to its end, or until a signal, with its metrics. ``again``: the command that starts it once more.

    ``stopping``: as given to `publishers`, which stop waiting then.
    """

    def stop() -> None:
        stopping.set()
        source.stop()

    with monitored(settings, keyspace, source.status, shard), stopping_on_signals(stop), with_recovery_hint(again):
        source.run()
    log.info("stopped", keyspace=keyspace, shard=shard, transactions=source.status.transactions)


@contextlib.contextmanager
def with_recovery_hint(command: str) -> Iterator[None]:
    """Gives a `ResumeError` a hint with the command that starts a new epoch."""
    from stream.publish.resume import ResumeError

    try:
        yield
    except ResumeError as error:
        error.hint = f"stop every other publisher of the shard, then: {command} --new-epoch"
        raise


def _add_hive() -> None:
    """Adds the subcommand ``hive``, which uses what is above."""
    app.command("hive")(import_module("freshet.commands.source_hive").hive)


def _add_debezium() -> None:
    """Adds the subcommand ``debezium``, which uses what is above."""
    app.command("debezium")(import_module("freshet.commands.source_debezium").debezium)


def _add_workload() -> None:
    """Adds the subcommand ``workload`` if its module exists: a function ``workload`` or an ``app``."""
    if find_spec("freshet.commands.source_workload") is None:
        return
    module = import_module("freshet.commands.source_workload")
    if hasattr(module, "workload"):
        app.command("workload")(module.workload)
    else:
        app.add_typer(module.app, name="workload")


_add_hive()
_add_debezium()
_add_workload()
