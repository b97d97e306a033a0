"""A misspelt keyspace: every command says that there is none of that name, and which there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshet import cli
from freshet.commands.consume import consumption_settings
from freshet.logs import configure_logs
from freshet.settings import load_settings, use_config
from stream.kafka.connection import KafkaCluster

SETTINGS = """\
[keyspaces.shop.source]
kind = "mariadb"
databases = ["shop"]

[keyspaces.hive]
kind = "catalog"
"""


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run beside a settings file with two keyspaces."""
    monkeypatch.chdir(tmp_path)
    use_config(None)
    Path("freshet.toml").write_text(SETTINGS)


@pytest.mark.parametrize("kind", ["mariadb", "workload"])
def test_a_source_of_an_unknown_keyspace_names_the_known_ones(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not that a database is missing; nobody is asked, and no topic of a wrong name is made."""
    assert cli.run(["source", kind, "--keyspace", "shpo"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error[unknown_keyspace]: no keyspace 'shpo' in the settings",
        "hint: known: hive, shop; or name a database with --database",
    ]


def test_a_source_without_any_settings_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    """On the first day there is no file: it takes flags, or an entry."""
    Path("freshet.toml").unlink()
    assert cli.run(["source", "mariadb", "--keyspace", "shop"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[unknown_keyspace]: no keyspace 'shop' in the settings\n")
    assert "add [keyspaces.shop] to the file; or name a database with --database" in err


@pytest.mark.parametrize(
    "command",
    [
        ["lag", "shpo"],
        ["inspect", "shpo", "shop.accounts", "7"],
        ["verify", "--keyspace", "shpo"],
        ["rebuild", "--keyspace", "shpo", "--to", "stores"],
        ["rebuild", "--keyspace", "shpo", "--to", "stores", "--streaming"],
        ["dlq", "list", "shpo"],
        ["dlq", "show", "shpo", "freshet.shpo.events/0/1"],
        ["dlq", "retry", "shpo"],
    ],
)
def test_a_command_on_an_unknown_keyspace_names_the_known_ones(
    command: list[str], kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic that is missing, or an owner, may be no more than a slip of the pen."""
    monkeypatch.setenv("FRESHET_KAFKA__BOOTSTRAP", kafka.bootstrap)
    assert cli.run(command) == 1
    error, hint = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]
    assert error.startswith("error[unknown_keyspace]: no keyspace 'shpo' in the settings, and ")
    assert hint.startswith("hint: known: hive, shop; or ")


def test_a_known_keyspace_without_a_topic_is_still_that(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name is right, so what is missing is the source."""
    monkeypatch.setenv("FRESHET_KAFKA__BOOTSTRAP", kafka.bootstrap)
    assert cli.run(["dlq", "list", "hive"]) == 1
    assert capsys.readouterr().err.startswith("error[topic_missing]: ")


def test_a_consumer_of_an_unknown_keyspace_says_so_and_waits_for_its_topic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A keyspace may be made by a source's flags alone, so it is a warning."""
    configure_logs("json", "info")
    assert consumption_settings(load_settings(), ["shop", "shpo"]).keyspaces == ("shop", "shpo")
    [line] = capsys.readouterr().err.splitlines()
    assert '"unknown_keyspace"' in line
    assert "known: hive, shop" in line
