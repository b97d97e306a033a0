"""``freshet source hive``: publishes a Hive Metastore's catalog."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet.commands import source as source_command
from freshet.keyspaces import AsArgument, AsOption, one_keyspace
from freshet.sections.sources import HiveSourceSettings
from freshet.settings import load_settings
from freshet.settings_errors import SettingsError

if TYPE_CHECKING:
    from stream.sources.hive.live.metastore import MetastoreSettings
    from stream.sources.hive.rpc.transport import Access


def hive(
    keyspace: AsArgument = "",
    *,
    keyspace_option: AsOption = "",
    uris: Annotated[
        list[str] | None, typer.Option("--uri", help="thrift://host:port of a metastore; repeatable: tried in turn.")
    ] = None,
    catalog: Annotated[str | None, typer.Option(help="Hive catalog (default: the keyspace's name).")] = None,
    partitions: Annotated[int | None, typer.Option(help="Partitions of a new topic.", min=1, max=1024)] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    new_epoch: Annotated[
        bool, typer.Option("--new-epoch", help="Void what was published and publish the whole catalog again.")
    ] = False,
) -> None:
    """Publish the notification log of a Hive Metastore as one shard, exactly once, from where it stopped.

    The metastore needs DbNotificationListener as a transactional listener, and must let this client read its log
    (hive.metastore.event.db.notification.api.auth).
    """
    from stream.sources.hive.live.following import FollowOptions
    from stream.sources.hive.live.source import HiveSource

    keyspace = one_keyspace(keyspace, keyspace_option)
    source_command.check_keyspace(keyspace, "hive", named=uris is not None)
    flags: dict[str, Any] = {"kind": "hive", "uris": uris, "catalog": catalog}
    keyspaces = {keyspace: {"kind": "catalog", "partitions": partitions, "source": flags}}
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}, "keyspaces": keyspaces})
    found = settings.keyspace(keyspace).source
    if not isinstance(found, HiveSourceSettings):
        raise SettingsError(f"keyspace {keyspace} has no Hive source", hint='set kind = "hive" in its source')
    options = FollowOptions(
        metastore_of(keyspace, found),
        settings.shard_of(keyspace),
        threads=found.bootstrap_threads,
        list_age_s=found.txn_list_age_s,
        reconcile_s=found.reconcile_every_s,
        poll_s=found.poll_interval_ms / 1000,
    )
    stopping = threading.Event()
    make = source_command.publishers(settings, keyspace, stopping, new_epoch=new_epoch)
    source = HiveSource(options, make, source_command.ready(keyspace), new_epoch=new_epoch)
    again = f"freshet source hive {keyspace}"
    source_command.run_source(source, settings, keyspace, settings.shard_of(keyspace), stopping, again)


def metastore_of(keyspace: str, source: HiveSourceSettings) -> MetastoreSettings:
    """How a source and a front that reads through reach the metastore. Raises what `check_settings` does."""
    from stream.sources.hive.live.metastore import MetastoreSettings, check_settings

    catalog = (source.catalog or keyspace).lower()  # as the metastore writes it, also in its events
    found = MetastoreSettings(source.addresses, catalog, source.call_timeout_s, access_of(source))
    check_settings(found)
    return found


def access_of(source: HiveSourceSettings) -> Access:
    """What a metastore asks of its clients."""
    from stream.sources.hive.rpc.transport import Access

    return Access(
        source.ssl_ca,
        source.ssl_verify_host,
        source.ssl_cert,
        source.ssl_key,
        source.user,
        source.password.get_secret_value(),
    )
