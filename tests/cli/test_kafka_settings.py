"""Client settings for Kafka: taken by every command, refused in one line, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from freshet.cli import run

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
def test_settings_that_no_client_takes_stop_every_command(
    config: Path, capfd: pytest.CaptureFixture[str], command: list[str], name: str, value: str
) -> None:
    """Every command hands kafka.extra to its clients: a wrong one is code, line and hint, and shows no value."""
    write(config, {name: value})
    assert run(["--log-format", "json", *command]) == 1
    said = capfd.readouterr()
    assert "error[bad_kafka_settings]: kafka.extra" in said.err
    assert said.err.count("\n") == 2
    assert SECRET not in said.err + said.out
