"""``freshet serve``: the public read API in front of the owners of the stores."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from consumers.owner.client import Identity
from freshet.commands.bytes import Dirs, FreeShare
from freshet.commands.source import server_of, table_filter
from freshet.sections.sources import HiveSourceSettings, MariaDBSourceSettings, WorkloadSourceSettings
from freshet.settings import BytesSettings, KeyspaceSettings, Settings, load_settings
from freshet.settings_errors import SettingsError

if TYPE_CHECKING:
    from serving.http.bytes.files import Files
    from serving.http.front import Front
    from serving.http.server import FrontServer
    from serving.locations.refreshing import Locations
    from serving.reads.spaces import RowSpace, TableSpace
    from serving.sources.source import TableSource
    from serving.thrift.listener import ThriftListener
    from stream.access.grants import Access

log = structlog.get_logger(__name__)


def command(
    host: Annotated[str | None, typer.Option(help="Address to listen on; only loopback needs no token.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    bytes_dirs: Dirs = None,
    bytes_free_share: FreeShare = None,
) -> None:
    """Serve reads over HTTP: from the owners' caches where that is provably fresh, else from the source.

    Serves all keyspaces of the settings. Any address but loopback needs tokens ([serve.tokens.NAME], `freshet token
    new`) and TLS ([serve.tls], or serve.plain = true). Tokens are read again when the settings file changes.
    """
    serve_flags: dict[str, Any] = {"host": host, "port": port}
    bytes_flags = {"dirs": bytes_dirs, "free_share": bytes_free_share}
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}, "serve": serve_flags, "bytes": bytes_flags})
    with settings.tracing.traced("serve"), open_front(settings) as server:
        run_server(server, server.serve)
    log.info("stopped", role="serve")


@contextmanager
def open_front(settings: Settings, tell: Callable[[Settings], None] = lambda _: None) -> Iterator[FrontServer]:
    """The front of the settings as a server to run; ``tell`` is told of settings that were read again.

    Raises `SettingsError`, `OpenListenRefused`, `PlainListenRefused`.
    """
    from freshet.access.reloading import Reloader, front_access, renewed
    from serving.http.admission.connections import fitting
    from serving.http.server import check_front, make_server
    from serving.locations.directory import TopicDirectory
    from serving.locations.file import LocationFile
    from serving.locations.refreshing import Locations
    from stream.kafka.locations import LocationsReader

    if not settings.keyspaces:
        raise SettingsError("no keyspace is configured", hint="add [keyspaces.<name>] to the settings file")
    chosen, access = settings.serve, front_access(settings)
    check_front(chosen.host, access, chosen.tls.files, plain=chosen.plain)
    if chosen.dead_letter_buttons and access.is_open:
        raise SettingsError(
            "serve.dead_letter_buttons is set, but nobody is asked for a token",
            hint="give the front tokens ([serve.tokens.NAME]), or use `freshet dlq`",
        )
    shown = settings.consumer.identity

    def renew(now: Settings) -> None:
        nonlocal shown
        renewed(access, now.serve.credentials, "front")
        shown = now.consumer.identity
        tell(now)

    def secret() -> str:
        return shown.secret()  # the one of now

    kafka = settings.kafka.cluster
    with LocationsReader(kafka).start(patient=True) as reader, Reloader(renew), ExitStack() as kept:
        directory = TopicDirectory(reader)
        locations = Locations(directory, fixed=fixed_locations(settings), zone=settings.zone)
        locations.front_of = directory.front_of
        if chosen.locations_file is not None:
            kept.enter_context(LocationFile(chosen.locations_file, kafka, directory, locations))
        front = _front(settings, locations, access, Identity(secret, shown.files, shown.networks))
        of_engines = sum(2 * each.connections for each in chosen.thrift.values())  # one to the metastore for each
        held = fitting(chosen.limits.of_connections, of_engines)
        beside = thrift_listeners(settings, front)
        files, plain = chosen.tls.files, chosen.plain
        yield make_server(front, chosen.host, chosen.port, files, plain=plain, connections=held, beside=beside)


def thrift_listeners(settings: Settings, front: Front) -> list[ThriftListener]:
    """Those of ``serve.thrift``. Raises `SettingsError`, `PlainListenRefused`."""
    from freshet.commands.source_hive import access_of
    from serving.thrift.listener import ListenerSettings, ThriftListener, check_thrift

    found: list[ThriftListener] = []
    for name, chosen in settings.serve.thrift.items():
        keyspace = settings.keyspaces.get(name)
        source = keyspace.source if keyspace is not None else None
        if not isinstance(source, HiveSourceSettings):
            raise SettingsError(
                f"serve.thrift.{name}: no keyspace {name} has a metastore for its source",
                hint=f'name it after one, as [serve.thrift.hive], and set [keyspaces.{name}.source] kind = "hive"',
            )
        if source.user or source.ssl_cert:
            raise SettingsError(
                f"serve.thrift.{name}: the metastore asks who its clients are, which this front can't",
                hint="engines have to ask that metastore themselves",
            )
        check_thrift(name, chosen.host, chosen.tls.files, plain=chosen.plain)
        access = access_of(source)
        listens = ListenerSettings(
            chosen.host,
            chosen.port,
            source.addresses,
            (source.catalog or name).lower(),
            access.context if access.ssl_ca else None,
            chosen.tls.files,
            chosen.max_wait_ms,
            chosen.max_staleness_ms,
            chosen.shown_bytes,
            chosen.connections,
        )
        found.append(ThriftListener(front, name, listens))
    return found


def run_server(server: FrontServer, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs ``run``, which serves ``server``, to its end. Raises `SettingsError` ``cannot_listen``."""
    import logging

    import uvloop

    from stream.interpreter import prepare_to_answer

    prepare_to_answer()
    reasons: list[str] = []

    def is_said(record: logging.LogRecord) -> bool:
        """uvicorn logs why it can't listen, and exits."""
        error = record.msg
        if isinstance(error, OSError):
            number = error.errno or 0
            reasons.append(os.strerror(number) if number > 0 else str(error))
        return not isinstance(error, OSError)

    logging.getLogger("uvicorn.error").addFilter(is_said)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(run())
        except SystemExit as failed:
            raise SettingsError(
                f"cannot listen on {server.config.host}:{server.config.port}"
                + "".join(f": {each}" for each in reasons),
                hint="choose another port with --port; 0 takes any free one",
                code="cannot_listen",
            ) from failed


def _front(settings: Settings, locations: Locations, access: Access, identity: Identity) -> Front:
    from serving.http.front import make_front
    from serving.http.limits import RequestLimits

    chosen = settings.serve
    return make_front(
        [space_of(settings, name, each) for name, each in settings.keyspaces.items()],
        locations,
        identity=identity,
        access=access,
        limits=RequestLimits(
            in_flight_max=chosen.limits.in_flight,
            request_s_max=chosen.limits.request_timeout_s,
            wait_ms_max=chosen.max_wait_ms_limit,
            wait_ms_default=chosen.default_wait_ms,
        ),
        callers=chosen.limits.of_caller,
        stale_if_down=chosen.serve_stale_if_down,
        kafka=settings.kafka.cluster,
        resolves_letters=chosen.dead_letter_buttons,
        files=_files(settings.bytes),
    )


def _files(chosen: BytesSettings) -> Files | None:
    if not chosen.roots:
        return None
    from serving.http.bytes.files import Files

    if not chosen.dirs:
        raise SettingsError(
            "bytes.roots names what to serve, but no directory for it", hint="set bytes.dirs, or give --bytes-dirs"
        )
    return Files(chosen.roots, dataclasses.asdict(chosen.options))


def fixed_locations(settings: Settings) -> dict[tuple[str, int], str]:
    """(keyspace, partition) → address of owners that are not announced. Raises `SettingsError`."""
    found = {}
    for place, address in settings.serve.locations.items():
        keyspace, _, partition = place.rpartition("/")
        if keyspace not in settings.keyspaces or not partition.isdigit():
            raise SettingsError(
                f"serve.locations: {place!r} is not a keyspace/partition of the settings", hint='e.g. "shop/0"'
            )
        found[keyspace, int(partition)] = address
    return found


def space_of(settings: Settings, name: str, chosen: KeyspaceSettings) -> RowSpace | TableSpace:
    """A keyspace as the front serves it, with its source of truth if the settings name one."""
    from serving.reads.spaces import RowSpace, TableSpace
    from serving.sources.mariadb import MariaDBRows
    from stream.sources.mariadb.connection import ConnectionSettings
    from stream.wire.keys import Layout

    source = chosen.source
    if chosen.kind == "catalog":
        shard = settings.shard_of(name)
        tables: TableSource | None = None
        if isinstance(source, WorkloadSourceSettings):
            from lab.workload.tables import WorkloadTables

            server = ConnectionSettings(source.host, source.port, source.user, source.password.get_secret_value())
            tables = WorkloadTables(server, source.database, shard)
        elif isinstance(source, HiveSourceSettings):
            from freshet.commands.source_hive import metastore_of
            from serving.sources.hive import HiveTables

            tables = HiveTables(metastore_of(name, source), shard)
        return TableSpace(name, Layout(chosen.partitions), tables)
    if not isinstance(source, MariaDBSourceSettings):
        return RowSpace(name, Layout(chosen.partitions), indexes=chosen.row_indexes)
    database = source.databases[0] if len(source.databases) == 1 else ""
    own = {each: settings.source_of(name, each) for each in settings.shards_of(name)}
    rows = [
        MariaDBRows(server_of(each), shard, table_filter(each))
        for shard, each in own.items()
        if isinstance(each, MariaDBSourceSettings)
    ]
    layout, learns, known = Layout(chosen.partitions), chosen.learns_indexes, settings.shard_map(name)
    return RowSpace(
        name, layout, database, rows[0], sources=rows, map=known, indexes=chosen.row_indexes, learns_indexes=learns
    )
