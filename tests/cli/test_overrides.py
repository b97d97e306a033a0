"""A value that was given counts, also one that says no: nought, false, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import load_settings
from freshet.settings_errors import SettingsError

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


def with_secret(tmp_path: Path, shop: str, serve: str = "") -> Path:
    """A settings file with these lines for a source and the front, beside the files ``old`` and ``new``."""
    for name in ("old", "new"):
        (tmp_path / name).write_text(f"{name}\n")
    path = tmp_path / "secrets.toml"
    path.write_text(f"[serve]\n{serve}\n[keyspaces.shop.source]\nkind = 'mariadb'\ndatabases = ['shop']\n{shop}\n")
    return path


PASSWORD = "FRESHET_KEYSPACES__SHOP__SOURCE__PASSWORD"


@pytest.mark.parametrize(
    ("file", "variables", "flag", "counts"),
    [
        ("password_file = 'old'", {PASSWORD: "variable"}, None, "variable"),
        ("password_file = 'gone'", {}, "flag", "flag"),
        ("password_file = 'old'", {f"{PASSWORD}_FILE": "new"}, None, "new"),
        ("password = 'old'", {f"{PASSWORD}_FILE": "new"}, None, "new"),
        ("password = 'old'", {f"{PASSWORD}_FILE": "new"}, "flag", "flag"),
        ("password_file = 'old'", {PASSWORD: "variable", f"{PASSWORD}_FILE": "new"}, "flag", "flag"),
    ],
)
def test_a_secret_that_is_given_later_counts_in_whichever_way(
    file: str,
    variables: dict[str, str],
    flag: str | None,
    counts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As text or as a file, for one process or for a try: as any other setting. It was refused, as given twice."""
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    flags = {"keyspaces": {"shop": {"source": {"password": flag}}}}
    source = load_settings(with_secret(tmp_path, file), flags).keyspaces["shop"].source
    assert isinstance(source, MariaDBSourceSettings)
    assert source.password.get_secret_value() == counts


@pytest.mark.parametrize(
    ("file", "variable"), [("bearer_token_file = 'old'", ""), ("bearer_token = 'old'", "_FILE")], ids=["text", "file"]
)
def test_an_empty_variable_takes_no_secret_away(
    file: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compose's ``${TOKEN:-}`` is empty where nobody has set it: a front would ask nobody for a token any more."""
    monkeypatch.setenv(f"FRESHET_SERVE__BEARER_TOKEN{variable}", "")
    with pytest.raises(SettingsError, match="bearer_token and bearer_token_file are both set"):
        load_settings(with_secret(tmp_path, "", file))


def test_a_secret_that_is_given_twice_in_one_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows which one was meant. What ends with _file and is no secret's stands beside what it is not of."""
    config = with_secret(tmp_path, "", "locations = {'shop/0' = 'a:1'}")
    monkeypatch.setenv("FRESHET_SERVE__LOCATIONS_FILE", "there")
    assert load_settings(config).serve.locations == {"shop/0": "a:1"}
    monkeypatch.setenv("FRESHET_SERVE__BEARER_TOKEN", "x")
    monkeypatch.setenv("FRESHET_SERVE__BEARER_TOKEN_FILE", str(tmp_path / "new"))
    with pytest.raises(SettingsError) as refused:
        load_settings(config)
    assert str(refused.value) == "serve: bearer_token and bearer_token_file are both set"
    assert refused.value.hint == "take one of them away"
