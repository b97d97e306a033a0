"""Each option of a command stands for the setting that is meant, and for no other one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import SecretStr

from freshet import cli, logs
from freshet.settings import Settings, load_settings

SETTINGS = """
[keyspaces.shop.source]
kind = "mariadb"
databases = ["shop"]
[keyspaces.bank.source]
kind = "mysql"
databases = ["bank"]
[keyspaces.bank.shards."-80"]
[keyspaces.bank.shards."80-"]
[keyspaces.pre.source]
kind = "debezium"
databases = ["pre"]
topic_prefix = "pre"
connect_url = "http://connect:8083"
[keyspaces.lake]
kind = "catalog"
source = { kind = "hive" }
[keyspaces.pond]
kind = "catalog"
source = { kind = "workload" }
"""
KAFKA = {"kafka.bootstrap": "b:1"}
SERVER = {"host": "h", "port": 1, "user": "u", "password": SecretStr("p")}
AT_SERVER = "--host h --port 1 --user u --password-file password"


def flat(section: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Each setting by its full name."""
    found: dict[str, Any] = {}
    for name, value in section.items():
        found |= flat(value, f"{place}{name}.") if isinstance(value, Mapping) else {f"{place}{name}": value}
    return found


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs in a directory with a settings file, and a password."""
    monkeypatch.chdir(tmp_path)
    Path("freshet.toml").write_text(SETTINGS)
    Path("password").write_text("p\n")


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("consume", {}),
        (
            "consume --data-dir d --bootstrap b:1 --group g --owner-host h --owner-port 1 --metrics-port 0 --workers 3"
            " --standby",
            {
                **KAFKA,
                "data_dir": Path("d"),
                "consumer.group": "g",
                "consumer.owner_host": "h",
                "consumer.owner_port": 1,
                "consumer.metrics_port": 0,
                "consumer.workers": 3,
                "consumer.standby": True,
            },
        ),
        (
            "consume --group g --workers auto --follower",
            {"consumer.group": "g", "consumer.workers": "auto", "consumer.follower": True},
        ),
        ("node", {}),
        (
            "node --data-dir d --bootstrap b:1 --group g --host h --port 0 --owner-port 1 --metrics-port 2 --zone z"
            " --follower",
            {
                **KAFKA,
                "data_dir": Path("d"),
                "zone": "z",
                "consumer.group": "g",
                "consumer.owner_port": 1,
                "consumer.metrics_port": 2,
                "consumer.follower": True,
                "serve.host": "h",
                "serve.port": 0,
            },
        ),
        ("serve", {}),
        (
            "serve --host h --port 0 --bootstrap b:1 --bytes-dirs d,e:9MiB --bytes-free-share 0.25",
            {
                **KAFKA,
                "serve.host": "h",
                "serve.port": 0,
                "bytes.dirs": ["d", "e:9MiB"],
                "bytes.free_share": 0.25,
            },
        ),
        ("bytes du --bytes-dirs d --bytes-free-share 0.25", {"bytes.dirs": ["d"], "bytes.free_share": 0.25}),
        ("up --workers 2", {"consumer.workers": 2}),
        ("lag shop --bootstrap b:1", KAFKA),
        ("swap shop --to a:1 --bootstrap b:1", KAFKA),
        ("inspect shop t 1 --bootstrap b:1", KAFKA),
        ("backfill status shop --bootstrap b:1", KAFKA),
        ("backfill start shop --bootstrap b:1", KAFKA),
        ("backfill cancel shop --bootstrap b:1", KAFKA),
        ("cluster status shop --bootstrap b:1", KAFKA),
        ("source mariadb shop", {}),
        (
            f"source mariadb shop {AT_SERVER} --database a --database c --tables a.* --exclude a.x --backfill a.y"
            " --server-id 9 --partitions 3 --bootstrap b:1",
            {
                **KAFKA,
                **{f"keyspaces.shop.source.{name}": value for name, value in SERVER.items()},
                "keyspaces.shop.partitions": 3,
                "keyspaces.shop.source.databases": ["a", "c"],
                "keyspaces.shop.source.include": ["a.*"],
                "keyspaces.shop.source.exclude": ["a.x"],
                "keyspaces.shop.source.backfill": ["a.y"],
                "keyspaces.shop.source.server_id": 9,
            },
        ),
        (
            f"source mysql bank --shard=80- {AT_SERVER} --server-id 9 --backfill a.y --partitions 3",
            {
                **{f"keyspaces.bank.shards.80-.{name}": value for name, value in SERVER.items()},
                "keyspaces.bank.shards.80-.server_id": 9,
                "keyspaces.bank.partitions": 3,
                "keyspaces.bank.source.backfill": ["a.y"],
            },
        ),
        (
            "source debezium pre --topic-prefix q --connect-url http://h:1 --bootstrap b:1",
            {**KAFKA, "keyspaces.pre.source.topic_prefix": "q", "keyspaces.pre.source.connect_url": "http://h:1"},
        ),
        (
            "source hive lake --uri thrift://a:1 --uri thrift://c:2 --catalog d --partitions 3 --bootstrap b:1",
            {
                **KAFKA,
                "keyspaces.lake.partitions": 3,
                "keyspaces.lake.source.uris": ["thrift://a:1", "thrift://c:2"],
                "keyspaces.lake.source.catalog": "d",
            },
        ),
        (
            f"source workload pond {AT_SERVER} --database d --partitions 3 --bootstrap b:1",
            {
                **KAFKA,
                **{f"keyspaces.pond.source.{name}": value for name, value in SERVER.items()},
                "keyspaces.pond.partitions": 3,
                "keyspaces.pond.source.database": "d",
            },
        ),
    ],
)
def test_an_option_stands_for_its_setting(words: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that were another's would be obeyed in silence; nought is a value, and what is not given changes nothing."""
    seen: list[Settings] = []

    def load(flags: Mapping[str, Any] | None = None) -> Settings:
        found = load_settings(flags=flags)
        if flags is None:
            return found  # to see whether the keyspace is known
        seen.append(found)
        raise typer.Exit

    command, kind, *_ = [*words.split(), ""]
    module = command if command != "source" or kind in ("mariadb", "mysql") else f"source_{kind}"
    monkeypatch.setattr(f"freshet.commands.{module}.load_settings", load)
    before = flat(load_settings().model_dump())
    assert cli.run(words.split()) == 0
    [settings] = seen
    after = flat(settings.model_dump())
    assert {name: value for name, value in after.items() if name not in before or before[name] != value} == given


@pytest.mark.parametrize("words", ["get shop t 1", "log shop", "sink shop sqlite:// --table shop.t"])
@pytest.mark.parametrize("url", ["", "http://front:1"])
def test_the_front_that_is_named_is_the_one_that_is_asked(
    words: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else that of the settings: its rows may be those of another installation."""
    asked: list[str] = []

    def client(_: Settings, url: str = "") -> None:
        asked.append(url)
        raise typer.Exit

    monkeypatch.setattr(f"freshet.commands.{words.split()[0]}.front_client", client)
    assert cli.run([*words.split(), *(["--url", url] if url else [])]) == 0
    assert asked == [url]


@pytest.mark.parametrize(("words", "form"), [([], "console"), (["--log-format", "json"], "json")])
def test_processes_that_are_started_log_as_the_one_that_starts_them(words: list[str], form: str) -> None:
    """Workers and the parts of `freshet up`: who reads their lines expects one format."""
    Path("freshet.toml").write_text('[log]\nformat = "console"\nlevel = "warning"\n')
    assert cli.run([*words, "token", "new", "one"]) == 0
    assert logs.configured == (form, "warning")
