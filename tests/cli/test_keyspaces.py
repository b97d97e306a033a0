"""A misspelled keyspace: every command reports it and names the known ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshet import cli
from freshet.commands.consume import consumption_settings
from freshet.keyspaces import explain_unknown_keyspace
from freshet.logs import configure_logs
from freshet.settings import load_settings
from stream.kafka.connection import KafkaCluster
from tokens.errors import FreshetError

SETTINGS = """\
[keyspaces.shop.source]
kind = "mariadb"
databases = ["shop"]

[keyspaces.hive]
kind = "catalog"
"""


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs in a directory with a settings file of two keyspaces."""
    monkeypatch.chdir(tmp_path)
    Path("freshet.toml").write_text(SETTINGS)


@pytest.mark.parametrize(
    "command",
    [
        *(f"source {kind}" for kind in ("mariadb", "mysql", "debezium", "hive", "workload")),
        *("rebuild --to stores", "export --to files", "sink sqlite:// --table shop.orders"),
    ],
)
def test_what_works_on_one_keyspace_takes_it_as_its_first_argument(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As all other commands do; --keyspace is the same. Neither, and both, are wrong usage."""
    name, *words = command.split()
    words = [name, *words]
    place = 2 if name == "source" else 1
    for wrong in (words, [*words[:place], "shop", *words[place:], "--keyspace", "shop"]):
        assert cli.run(wrong) == 2
        assert "name one keyspace, as the first argument" in capsys.readouterr().err
    for named in ([*words[:place], "shpo", *words[place:]], [*words, "--keyspace", "shpo"]):
        cli.run(["--config", "none.toml", *named])
        assert "name one keyspace" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["mariadb", "workload"])
def test_a_source_of_an_unknown_keyspace_names_the_known_ones(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is the unknown keyspace, and it comes before any server is asked or topic created."""
    assert cli.run(["source", kind, "--keyspace", "shpo"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error[unknown_keyspace]: no keyspace 'shpo' in the settings",
        "hint: known: hive, shop; or name a database with --database",
    ]


def test_a_source_without_any_settings_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a settings file the hint is to add the keyspace or to use a flag."""
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
        ["rebuild", "shpo", "--to", "stores"],
        ["rebuild", "--keyspace", "shpo", "--to", "stores"],
        ["rebuild", "--keyspace", "shpo", "--to", "stores", "--follow"],
        ["dlq", "list", "shpo"],
        ["dlq", "show", "shpo", "freshet.shpo.events/0/1"],
        ["dlq", "retry", "shpo"],
    ],
)
def test_a_command_on_an_unknown_keyspace_names_the_known_ones(
    command: list[str], kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing topic or owner of an unknown keyspace is reported as a misspelled name."""
    monkeypatch.setenv("FRESHET_KAFKA__BOOTSTRAP", kafka.bootstrap)
    assert cli.run(command) == 1
    error, hint = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]
    assert error.startswith("error[unknown_keyspace]: no keyspace 'shpo' in the settings, and ")
    assert hint.startswith("hint: known: hive, shop; or ")


def test_a_known_keyspace_without_a_topic_is_topic_missing(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The missing topic of a known keyspace is not reported as a misspelled name."""
    monkeypatch.setenv("FRESHET_KAFKA__BOOTSTRAP", kafka.bootstrap)
    assert cli.run(["dlq", "list", "hive"]) == 1
    assert capsys.readouterr().err.startswith("error[topic_missing]: ")


def test_a_consumer_of_an_unknown_keyspace_only_warns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A keyspace may be defined by a source's flags alone, so a consumer logs a warning and goes on."""
    configure_logs("json", "info")
    assert consumption_settings(load_settings(), ["shop", "shpo"]).keyspaces == ("shop", "shpo")
    [line] = capsys.readouterr().err.splitlines()
    assert '"unknown_keyspace"' in line
    assert "known: hive, shop" in line


@pytest.mark.parametrize(
    ("keyspace", "code", "has_settings", "told"),
    [
        ("shpo", "topic_missing", True, "unknown_keyspace"),
        ("shpo", "owner_unknown", True, "unknown_keyspace"),
        ("shpo", "kafka_unreachable", True, "kafka_unreachable"),
        ("shpo", "topic_missing", False, "topic_missing"),
        ("shop", "topic_missing", True, "topic_missing"),
    ],
)
def test_only_what_a_misspelled_name_leads_to_is_taken_for_one(
    keyspace: str, code: str, has_settings: bool, told: str
) -> None:
    """Where the settings have other keyspaces: whoever has none names what is in Kafka."""
    if not has_settings:
        Path("freshet.toml").unlink()
    settings = load_settings()
    assert bool(settings.keyspaces) is has_settings
    with pytest.raises(FreshetError) as raised, explain_unknown_keyspace(settings, keyspace):
        raise FreshetError("it is not there", hint="make it", code=code)
    assert raised.value.code == told
    assert "it is not there" in str(raised.value)
    assert raised.value.hint.endswith("make it")
