"""What commands make of a source in the settings: how it reads, what it declares, and where fronts are told to look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from consumers.process.run import OwnerSettings
from freshet.access.reloading import following_owner_access
from freshet.commands.consume import places_of_snapshots
from freshet.commands.serve import fixed_locations
from freshet.commands.source import _topology, check_keyspace, server_of, source_options
from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import Settings, config_in_use, load_settings
from freshet.settings_errors import SettingsError
from stream.access.grants import Access, digest_of
from stream.publish.topology import DeclaredTopology
from stream.sources.mariadb.backfill.plan import piece_bytes
from stream.sources.mariadb.backfill.run import BackfillOptions
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import SourceOptions


def settings_of(**given: Any) -> Settings:
    """As of a file."""
    return Settings.model_validate(given)


def test_a_source_of_rows_reads_as_the_settings_say() -> None:
    """What is left out on the way is not published, or faster than the server can bear."""
    source: dict[str, Any] = {
        "kind": "mariadb",
        "databases": ["shop"],
        "include": ["shop.*"],
        "exclude": ["shop.x"],
        "server_id": 7,
        "key_prefix_columns": {"shop.t": 1},
        "backfill": ["shop.*"],
        "backfill_rows_per_s": 8,
        "backfill_share": 0.5,
        "backfill_lag_max_s": 9.0,
    }
    keyspace = {"source": source, "hot": {"shop.h": 1}, "invalidate": ["shop.i"]}
    more = {"before_images": True, "keyless_rows": True}
    settings = settings_of(keyspaces={"k": keyspace | more}, publisher={"batch_bytes": 65_536})
    chosen = TableFilter(include=("shop.*",), exclude=("shop.h", "shop.i"))
    assert source_options(settings, "k", True, "k/0") == SourceOptions(
        server_of(MariaDBSourceSettings(**source)),
        "k/0",
        TableFilter(("shop",), ("shop.*",), ("shop.x",), (("shop.t", 1),)),
        server_id=7,
        new_epoch=True,
        backfill=BackfillOptions(chosen, 8, 0.5, 9.0, piece_bytes(65_536)),
        before_images=True,
        keyless_rows=True,
    )
    usual = source_options(settings_of(keyspaces={"k": {"source": source | {"backfill": []}}}), "k", False, "k/0")
    assert usual.backfill is not None
    assert (usual.backfill.tables, usual.new_epoch) == (None, False)
    assert [usual.before_images, usual.keyless_rows] == [False, False]


def test_a_shard_declares_those_around_it() -> None:
    """Which are over is said of all: a shard that ended long ago is succeeded by one of them, whoever says it."""
    source = {"kind": "mariadb", "databases": ["shop"]}
    shards = {"-80": {"succeeds": ["k/0"]}, "80-c0": {"succeeds": ["k/0", "k/a"]}, "c0-": {}}
    ranged = settings_of(keyspaces={"k": {"source": source, "shards": shards}})
    known = ranged.shard_map("k")
    assert _topology(ranged, "k", "k/-80") == DeclaredTopology((), ("k/0",), known, ("k/0", "k/a"))
    assert _topology(ranged, "k", "k/c0-") == DeclaredTopology((), (), known, ("k/0", "k/a"))
    named = settings_of(keyspaces={"k": {"source": source, "shards": ["k/1", "k/2"], "succeeds": "k/a@3"}})
    assert _topology(named, "k", "k/0") == DeclaredTopology(("k/1", "k/2"), ("k/a@3",), None, ())


@pytest.mark.parametrize("place", ["shpo/0", "shop/x", "shop", "shop/-1", "/0"])
def test_an_owner_of_no_partition_is_refused(place: str) -> None:
    """A front would never ask it, and the real one would be missing."""
    keyspaces: dict[str, Any] = {"shop": {}, "lake": {}}
    right = {"shop/0": "a:1", "shop/2": "b:2", "lake/0": "c:3"}
    found = fixed_locations(settings_of(keyspaces=keyspaces, serve={"locations": right}))
    assert found == {("shop", 0): "a:1", ("shop", 2): "b:2", ("lake", 0): "c:3"}
    with pytest.raises(SettingsError, match=f"'{place}' is not a keyspace/partition"):
        fixed_locations(settings_of(keyspaces=keyspaces, serve={"locations": {place: "a:1"}}))


@pytest.mark.parametrize(
    ("keyspace", "command", "named", "problem"),
    [
        ("shop", "source mariadb", False, ""),
        ("shop", "source mysql", False, "has a mariadb source, not a mysql one"),
        ("shop", "source mysql", True, "has a mariadb source, not a mysql one"),
        ("lake", "source hive", False, ""),
        ("shpo", "source mariadb", False, "no keyspace 'shpo'"),
        ("shpo", "source hive", False, "no keyspace 'shpo'"),
        ("shpo", "source mariadb", True, ""),
    ],
)
def test_a_source_of_another_kind_or_of_no_keyspace_is_refused(
    keyspace: str, command: str, named: bool, problem: str, tmp_path: Path
) -> None:
    """One that is named by flags alone is new. A catalog has a default, so it needs no settings at all."""
    file = tmp_path / "freshet.toml"
    file.write_text("")
    load_settings(file)
    check_keyspace("pond", "workload", named=False)
    file.write_text('[keyspaces.shop.source]\nkind = "mariadb"\ndatabases = ["shop"]\n[keyspaces.lake]\n')
    if not problem:
        check_keyspace(keyspace, command.split()[1], named=named)
        return
    with pytest.raises(SettingsError, match=problem):
        check_keyspace(keyspace, command.split()[1], named=named)


@pytest.mark.parametrize(("given", "places"), [(None, {"a": "s3://a"}), ("", {"a": "s3://a"}), ("s3://x", "all")])
def test_snapshots_are_where_a_flag_says_or_the_settings(given: str | None, places: Any) -> None:
    """A keyspace that the settings don't have, too; one without a place begins at its topic's start."""
    settings = settings_of(keyspaces={"a": {"snapshots": "s3://a"}, "b": {}})
    wanted = dict.fromkeys(("a", "b", "c"), "s3://x") if places == "all" else places
    assert places_of_snapshots(settings, ["a", "b", "c"], given) == wanted


def test_owners_without_a_settings_file_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is told which file was used. One that is not there is no error, as it was none at the start."""
    monkeypatch.chdir(tmp_path)
    access = Access()
    reloader = following_owner_access(config_in_use(), access)
    monkeypatch.setenv("FRESHET_CONSUMER__OWNER_TOKEN", "s")
    reloader._renew(load_settings())
    assert [each.digest for each in access.credentials] == [digest_of(b"s")]
    assert OwnerSettings().access.is_open


@pytest.mark.parametrize("kind", ["standby", "follower"])
def test_who_follows_has_a_group_of_its_own(kind: str) -> None:
    """In that of the others it would take their partitions, and readers would find nobody who owns them."""
    with pytest.raises(ValidationError, match=f"{kind} needs a group of its own"):
        settings_of(consumer={kind: True})
    assert getattr(settings_of(consumer={kind: True, "group": "g"}).consumer, kind) is True
