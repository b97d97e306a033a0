"""A value that was given counts, also one that says no: nought, false, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import load_settings

TWO_SERVERS = """
[serve]
port = 8480
[keyspaces.shop.source]
kind = "mariadb"
databases = ["shop"]
ssl_ca = "ca.pem"
[keyspaces.shop.shards."-80"]
[keyspaces.shop.shards."80-"]
ssl_ca = ""
ssl_verify_host = false
replicas = []
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "freshet.toml"
    path.write_text(TWO_SERVERS)
    return path


def test_a_flag_that_is_nought_or_false_stands_for_the_setting(config: Path) -> None:
    """``--port 0`` is any free port, not that of the file; what was not given, and tables of such, leave it."""
    flags = {"serve": {"port": 0, "host": None}, "log": {"level": None}, "consumer": {"standby": False}}
    settings = load_settings(config, flags)
    assert (settings.serve.port, settings.serve.host, settings.consumer.standby) == (0, "127.0.0.1", False)
    assert load_settings(config, {"serve": {"port": None}}).serve.port == 8480


def test_what_a_shard_takes_back_of_its_keyspaces_source_is_taken_back(config: Path) -> None:
    """Its server has another certificate, or none: with the keyspace's authority nobody could connect to it."""
    settings = load_settings(config)
    first, second = (settings.source_of("shop", shard) for shard in settings.shards_of("shop"))
    assert isinstance(first, MariaDBSourceSettings)
    assert isinstance(second, MariaDBSourceSettings)
    assert (first.ssl_ca, first.ssl_verify_host) == ("ca.pem", True)
    assert (second.ssl_ca, second.ssl_verify_host) == ("", False)
