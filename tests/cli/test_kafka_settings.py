"""Kafka's client settings: used by every command, refused in one line, and never printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from freshet.cli import run
from stream.kafka.connection import _without_values

COMMANDS = (
    ["consume"],
    ["serve", "--port", "0"],
    ["source", "mariadb", "--keyspace", "shop"],
    ["rebuild", "--keyspace", "shop", "--to", "rebuilt"],
    ["verify", "--keyspace", "shop"],
    ["dlq", "list", "shop"],
    ["lag", "shop"],
)
SECRET = "hunter2-hunter2"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file whose Kafka settings the test completes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "freshet.toml"


def write(config: Path, extra: dict[str, str]) -> None:
    """The settings with ``extra``."""
    source = {"kind": "mariadb", "databases": ["shop"], "port": 1}
    kafka = {"bootstrap": "127.0.0.1:1", "extra": extra}
    config.write_text(tomli_w.dumps({"kafka": kafka, "keyspaces": {"shop": {"source": source}}}))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("name", "value"), [("no.such.setting", SECRET), ("security.protocol", SECRET), ("isolation.level", SECRET)]
)
def test_invalid_client_settings_stop_every_command(
    config: Path, capfd: pytest.CaptureFixture[str], command: list[str], name: str, value: str
) -> None:
    """A wrong setting in kafka.extra stops every command with a code, a line and a hint, without its value."""
    write(config, {name: value})
    assert run(["--log-format", "json", *command]) == 1
    said = capfd.readouterr()
    assert "error[bad_kafka_settings]: kafka.extra" in said.err
    assert said.err.count("\n") == 2
    assert SECRET not in said.err + said.out


def test_no_rest_of_a_password_is_shown_that_begins_as_another_value() -> None:
    """The name of a user is often the beginning of the password: what follows it would be printed."""
    assert _without_values("invalid value freshet-hunter2", {"a": "freshet", "b": "freshet-hunter2"}) == (
        "invalid value ***"
    )
