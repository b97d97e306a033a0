"""`freshet token`, secrets in files, and what the settings refuse."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from freshet.commands.token import app
from freshet.sections.secrets import secret_in
from freshet.settings import Settings, load_settings
from freshet.settings_errors import SettingsError
from stream.access.grants import digest_of

RUN = CliRunner()
HASH = digest_of(b"x")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps the machine's settings out of a test."""
    for name in [name for name in os.environ if name.startswith("FRESHET_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def load(text: str) -> Settings:
    """Settings of a TOML text."""
    Path("freshet.toml").write_text(text)
    return load_settings()


def test_a_new_token_is_what_its_settings_say() -> None:
    """What `new` prints on stderr goes into the file as it is; `check` then says what the secret may do."""
    made = RUN.invoke(app, ["new", "checkout", "--role", "read", "--keyspace", "shop", "--days", "90"])
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert secret.startswith("freshet_")
    assert secret not in made.stderr
    assert tomllib.loads(made.stderr)["serve"]["tokens"]["checkout"]["hash"] == digest_of(secret.encode())
    load(made.stderr)
    found = RUN.invoke(app, ["check"], input=f"{secret}\n")
    assert found.exit_code == 0
    assert found.stdout.startswith("serve: checkout, roles read, keyspaces shop, expires 20")
    assert RUN.invoke(app, ["hash"], input=secret).stdout.strip() == digest_of(secret.encode())
    wrong = RUN.invoke(app, ["check"], input=f"{secret}x\n")
    assert (wrong.exit_code, secret in wrong.output) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["my app"], "the name: "),
        (["a.b"], "the name: "),
        (["a\n[serve]"], "the name: "),
        (["a", "--role", "reed"], "roles: "),
        (["a", "--keyspace", "sh op"], "keyspaces: "),
    ],
)
def test_what_the_settings_would_refuse_is_refused_at_once(arguments: list[str], told: str) -> None:
    """Before a secret is made, and with what was wrong."""
    made = RUN.invoke(app, ["new", *arguments])
    assert isinstance(made.exception, SettingsError)
    assert str(made.exception).startswith(told)
    assert str(made.exception).endswith(f"not {arguments[-1]!r}")
    assert made.stdout == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[serve.tokens.a]\nroles = ['read']", "hash"),
        (f"[serve.tokens.a]\nhash = '{HASH}'\nsubject = 'x'", "one of both"),
        ("[serve.tokens.a]\nhash = 'hunter2'", "serve.tokens.a.hash"),
        (f"[serve.tokens.a]\nhash = '{HASH}'\nroles = ['root']", "serve.tokens.a.roles"),
        (f"[serve.tokens.a]\nhash = '{HASH}'\nroles = []", "serve.tokens.a.roles"),
        (f"[serve.tokens.a]\nhash = '{HASH}'\nrole = 'read'", "no such setting"),
        ("[serve.tls]\nkey = 'k.pem'", "certificate"),
        ("[serve]\nbearer_token_file = 'gone'", "bearer_token_file: gone cannot be read"),
        ("[serve]\nbearer_token_file = 'secret'\nbearer_token = 'hunter2'", "both set"),
    ],
)
def test_wrong_access_settings_are_refused_without_showing_a_secret(text: str, why: str) -> None:
    """The key and the problem are named; a secret in a wrong place is not repeated."""
    Path("secret").write_text("hunter2")
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert why in f"{caught.value} {caught.value.hint}"
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_every_secret_may_stand_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any section, of a keyspace's source, of a variable of the environment, and of Kafka's clients."""
    Path("secret").write_text("hunter2\n")
    monkeypatch.setenv("FRESHET_CONSUMER__OWNER_TOKEN_FILE", "secret")
    settings = load(
        """
        [serve]
        bearer_token_file = "secret"
        [client]
        token_file = "secret"
        [source]
        metrics_token_file = "secret"
        [kafka]
        extra = { "security.protocol" = "SASL_SSL", "sasl.mechanism" = "PLAIN", "sasl.username" = "u" }
        extra_files = { "sasl.password" = "secret" }
        [keyspaces.shop.source]
        kind = "mariadb"
        databases = ["shop"]
        password_file = "secret"
        """
    )
    source = settings.keyspaces["shop"].source
    assert source is not None
    secrets = (
        settings.serve.bearer_token,
        settings.client.token,
        settings.source.metrics_token,
        settings.consumer.owner_token,
        source.password,
    )
    assert [each and each.get_secret_value() for each in secrets] == ["hunter2"] * 5
    assert settings.kafka.cluster.extra["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.public())
    Path("secret").write_bytes(b" hunter 2 \r\n")
    assert secret_in("secret", "password") == " hunter 2 ", "a space may be part of it, the line's end is not"


@pytest.mark.parametrize("given", [("client", "serve"), ("client",), ("serve",), ()])
def test_commands_show_the_front_their_own_token_if_they_have_one(given: tuple[str, ...]) -> None:
    """`serve.bearer_token` may do everything: it is shown only where nothing else is."""
    keys = {"client": '[client]\ntoken = "of commands"\n', "serve": '[serve]\nbearer_token = "of all"\n'}
    settings = load("".join(keys[each] for each in given))
    assert settings.front_secret == {"client": "of commands", "serve": "of all"}.get(given[0] if given else "")


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_a_token_without_a_zone_expires_by_utc(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine: else it would be good for hours more here than there."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for text in ("2026-03-01T12:00:00", "2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00"):
            token = load(f'[serve.tokens.a]\nhash = "{HASH}"\nexpires = {text}').serve.tokens["a"]
            assert token.credential("a").grant.expires_s == 1_772_366_400
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("words", "section"), [([], "serve"), (["--owner"], "consumer")])
@pytest.mark.parametrize("days", [0, 1, 90])
def test_a_token_is_for_its_listener_and_for_as_long_as_was_said(words: list[str], section: str, days: int) -> None:
    """Nought days are for ever."""
    made = RUN.invoke(app, ["new", "one", "--days", str(days), *words])
    [(listener, told)] = tomllib.loads(made.stderr).items()
    assert listener == section
    token = told["tokens"]["one"]
    assert ("expires" in token) is bool(days)
    if days:
        assert token["expires"].timestamp() - time.time() == pytest.approx(days * 86_400, abs=60)
