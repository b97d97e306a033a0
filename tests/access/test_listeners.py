"""Each listener that there is, by the command that opens it: beyond this machine it wants credentials and TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from freshet.cli import app
from freshet.local.process import free_ports
from tokens.errors import FreshetError

MARIADB = {"kind": "mariadb", "databases": ["shop"], "user": "u", "password": "p", "host": "127.0.0.1"}
LISTENERS: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "the read API": (["serve"], {"serve": {"host": "0.0.0.0"}}, {"serve": {"bearer_token": "s3cret"}}),
    "the owner protocol": (
        ["consume"],
        {"consumer": {"owner_host": "0.0.0.0"}},
        {"consumer": {"owner_token": "s3cret"}},
    ),
    "the owner protocol of workers": (
        ["consume", "--workers", "2"],
        {"consumer": {"owner_host": "0.0.0.0"}},
        {"consumer": {"owner_token": "s3cret"}},
    ),
    "the metrics of a source": (
        ["source", "mariadb", "--keyspace", "shop"],
        {"source": {"metrics_host": "0.0.0.0", "metrics_port": 0}},
        {"source": {"metrics_token": "s3cret"}},
    ),
    "all in one": (["up"], {"serve": {"host": "0.0.0.0"}}, {"serve": {"bearer_token": "s3cret"}}),
    "a node": (["node"], {"serve": {"host": "0.0.0.0"}}, {"serve": {"bearer_token": "s3cret"}}),
}
"""What listens → the command, the settings that open it to the network, and those that ask for a token besides."""


def merged(*settings: dict[str, Any]) -> dict[str, Any]:
    """Sections of all of them."""
    found: dict[str, Any] = {}
    for each in settings:
        for section, values in each.items():
            found[section] = found.get(section, {}) | values
    return found


@pytest.mark.parametrize("name", LISTENERS)
def test_each_listener_is_refused_beyond_this_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a token it opens to nobody; with one, but without TLS, neither: before anything else is done."""
    command, opened, token = LISTENERS[name]
    monkeypatch.chdir(tmp_path)
    [gone] = free_ports(1)
    base = {"kafka": {"bootstrap": f"127.0.0.1:{gone}"}, "keyspaces": {"shop": {"source": MARIADB}}}
    for more, code in (({}, "refuse_open_listen"), (token, "refuse_plain_listen")):
        settings = {"data_dir": code} | merged(base, opened, more)  # this process keeps the lock of the first one
        (tmp_path / "freshet.toml").write_text(tomli_w.dumps(settings))
        done = CliRunner().invoke(app, ["--config", "freshet.toml", *command])
        assert isinstance(done.exception, FreshetError), done.output
        assert done.exception.code == code
        assert done.exception.hint
