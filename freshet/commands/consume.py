"""``freshet consume``: fold keyspaces into their stores, and answer for them."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer

from consumers.process.loop import ConsumptionSettings
from consumers.process.run import OwnerSettings, run_consumer
from consumers.snapshots.restoring import Snapshots
from consumers.workers import run_workers
from freshet import DISTRIBUTION, logs
from freshet.access.reloading import following_owner_access, owner_access
from freshet.indexes import indexes_to_keep
from freshet.settings import Settings, config_in_use, load_settings
from freshet.settings_errors import SettingsError, unknown_keyspace
from freshet.snapshots import no_address

log = structlog.get_logger(__name__)


def command(
    keyspaces: Annotated[
        list[str] | None,
        typer.Option("--keyspace", help="Keyspace to consume; repeatable. Default: all."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the stores are.", metavar="DIR", parser=no_address)
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    group: Annotated[str | None, typer.Option(help="Consumer group that shares the partitions.")] = None,
    owner_host: Annotated[str | None, typer.Option(help="Address to answer on.")] = None,
    owner_port: Annotated[int | None, typer.Option(help="Port to answer on; 0: any.", min=0, max=65535)] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port for /metrics.", min=0, max=65535)] = None,
    from_snapshot: Annotated[
        str | None,
        typer.Option(help="Where snapshots are, for stores that are missing (default: the keyspace's).", metavar="URI"),
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Fold and answer, but leave readers where they are until `freshet swap`.")
    ] = False,
    follower: Annotated[
        bool, typer.Option("--follower", help="As --standby, and announced: fronts read here too. Needs its own group.")
    ] = False,
    workers: Annotated[str | None, typer.Option(help="Processes that share the work, or auto: one a core.")] = None,
) -> None:
    """Fold keyspaces into their stores and answer for them, until SIGTERM or Ctrl-C.

    Stores are under DATA_DIR/keyspace/partition; one process owns a data directory. It announces its
    partitions in the topic freshet.locations once it has caught up.
    """
    settings = load_settings(
        flags={
            "data_dir": data_dir,
            "kafka": {"bootstrap": bootstrap},
            "consumer": {
                "group": group,
                "owner_host": owner_host,
                "owner_port": owner_port,
                "metrics_port": metrics_port,
                "workers": workers,
                "standby": standby or None,
                "follower": follower or None,
            },
        }
    )
    consume, owner = consumption_settings(settings, keyspaces, from_snapshot), owner_settings(settings)
    count = settings.consumer.workers
    if count == "auto":
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count == 1:
        run_consumer(consume, owner)
    else:
        run_workers(count, consume, owner, partial(logs.configure_logs, *logs.configured))


def consumption_settings(
    settings: Settings, keyspaces: list[str] | None = None, from_snapshot: str | None = None
) -> ConsumptionSettings:
    """What to consume. ``from_snapshot``: where snapshots are. Raises `SettingsError` if there is no keyspace."""
    names = tuple(dict.fromkeys(keyspaces or settings.keyspaces))
    if not names:
        raise SettingsError("no keyspace to consume", hint="--keyspace NAME, or [keyspaces.NAME] in the settings file")
    for name in names:
        if settings.keyspaces and name not in settings.keyspaces:  # only a warning: its topic may exist
            unknown = unknown_keyspace(name, settings.keyspaces)
            log.warning(
                "keyspace not in the settings", keyspace=name, code=unknown.code, reason=str(unknown), hint=unknown.hint
            )
    consumer = settings.consumer
    return ConsumptionSettings(
        kafka=settings.kafka.cluster,
        keyspaces=names,
        data_dir=settings.data_dir,
        group=consumer.group,
        commit_rows=consumer.commit_rows,
        commit_interval_s=consumer.commit_interval_ms / 1000,
        overlay_bytes=consumer.overlay_bytes,
        hot={name: each.hot for name, each in settings.keyspaces.items()},
        indexes={name: indexes_to_keep(settings, name) for name in names if name in settings.keyspaces},
        snapshots=Snapshots(places_of_snapshots(settings, names, from_snapshot)),
    )


def places_of_snapshots(settings: Settings, names: Sequence[str], given: str | None) -> dict[str, str]:
    """Keyspace → where its snapshots are: ``given`` for all, else as set; those without a place are left out."""
    places = dict.fromkeys(names, given or "")
    if not given:
        places = {name: settings.keyspaces[name].snapshots for name in names if name in settings.keyspaces}
    return {name: uri for name, uri in places.items() if uri}


def owner_settings(settings: Settings) -> OwnerSettings:
    """Where and how to answer."""
    consumer = settings.consumer
    return OwnerSettings(
        consumer.owner_host,
        consumer.owner_port,
        owner_access(settings),
        consumer.metrics_port,
        consumer.owner_announced,
        importlib.metadata.version(DISTRIBUTION),
        standby=consumer.standby,
        follower=consumer.follower,
        zone=settings.zone,
        files=consumer.tls.files,
        plain=consumer.plain,
        follow=partial(following_owner_access, config_in_use()),
        traced=partial(settings.tracing.traced, "consume"),
    )
