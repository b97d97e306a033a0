"""Settings: precedence, limits, and errors that say what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from freshet.commands.consume import consumption_settings
from freshet.commands.get import _position as position_of
from freshet.commands.source import server_of, source_options
from freshet.sections.sources import HiveSourceSettings, MariaDBSourceSettings
from freshet.settings import KeyspaceSettings, Settings, load_settings
from freshet.settings_errors import SettingsError

SHOP = """
[kafka]
bootstrap = "file:1"
[keyspaces.shop]
partitions = 8
[keyspaces.shop.source]
kind = "mariadb"
databases = ["shop"]
password = "in-the-file"
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps the machine's settings out of a test."""
    for name in [name for name in os.environ if name.startswith("FRESHET_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def load(text: str = SHOP, **flags: object) -> Settings:
    """Settings from a TOML text and flags."""
    path = Path("given.toml")
    path.write_text(text)
    return load_settings(path, flags)


def refused(text: str) -> SettingsError:
    """The error that a TOML text gives."""
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert caught.value.code == "bad_settings"
    return caught.value


def test_a_hot_table_is_not_read_from_the_beginning() -> None:
    """Whatever the patterns of the backfill say; the bound of its fills goes to the consumer."""
    source = {"kind": "mariadb", "databases": ["shop"], "backfill": ["shop.*"]}
    settings = Settings(keyspaces={"k": {"source": source, "hot": {"shop.carts": 1_000}}})  # type: ignore[dict-item]
    backfill = source_options(settings, "k", False, "k/0").backfill
    assert backfill is not None
    wanted = backfill.tables
    assert wanted is not None
    assert ("shop.orders" in wanted, "shop.carts" in wanted) == (True, False)
    assert consumption_settings(settings).hot == {"k": {"shop.carts": 1_000}}


def test_a_table_without_images_is_not_read_from_the_beginning() -> None:
    """A table of mode invalidate is left out of the backfill: its chunks would be published without their rows."""
    source = {"kind": "mariadb", "databases": ["shop"], "backfill": ["shop.*"]}
    settings = Settings(keyspaces={"k": {"source": source, "invalidate": "shop.carts"}})  # type: ignore[dict-item]
    backfill = source_options(settings, "k", False, "k/0").backfill
    assert backfill is not None
    wanted = backfill.tables
    assert wanted is not None
    assert ("shop.orders" in wanted, "shop.carts" in wanted) == (True, False)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"uris": ["thrift://hms:9083"]}, "the password would be sent to hms as it is"),
        ({"uris": ["thrift://127.0.0.1:9083", "thrift://10.0.0.9:9083"]}, "sent to 10.0.0.9"),
        ({"user": ""}, "needed both, or none"),
        ({"password": ""}, "needed both, or none"),
        ({"ssl_cert": "own.pem"}, "ssl_cert needs ssl_ca"),
        ({"uris": ["thrift://hms:9083"], "ssl_ca": "ca.pem"}, ""),
        ({"uris": ["thrift://hms:9083"], "plain": True}, ""),
        ({"uris": ["thrift://127.0.0.1:9083", "thrift://localhost:9084"]}, ""),
    ],
)
def test_a_metastores_password_is_not_sent_in_plain(more: dict[str, object], problem: str) -> None:
    """Beyond this machine it goes over TLS, or somebody has said that the network encrypts. No message shows it."""
    source = {"kind": "hive", "user": "freshet", "password": "s3cret"} | more
    if not problem:
        HiveSourceSettings.model_validate(source)
        return
    with pytest.raises(SettingsError, match=problem) as caught:
        load_settings(flags={"keyspaces": {"lake": {"kind": "catalog", "source": source}}})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("place", ["schema_registry.url", "tracing.endpoint", "keyspaces.k.source.connect_url"])
@pytest.mark.parametrize(
    "url", ["https://u:hunter2@host:8083", "https://hunter2@host/a", "https://host/?token=hunter2"]
)
def test_an_address_with_a_password_is_refused_and_not_repeated(place: str, url: str) -> None:
    """Addresses are in errors and logs: what is to be shown there has settings of its own."""
    flags: dict[str, Any] = {"keyspaces": {"k": {"source": dict(DEBEZIUM)}}}
    *sections, name = place.split(".")
    section = flags
    for each in sections:
        section = section.setdefault(each, {})
    section[name] = url
    with pytest.raises(SettingsError, match=f"{place}: must be as http://host") as refused:
        load_settings(flags=flags)
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


def test_a_shards_own_certificate_needs_an_authority_too() -> None:
    """Of the shard's or of the keyspace's source; without it the connection would be plain, and nobody would notice."""
    source = {"kind": "mariadb", "databases": ["shop"]}
    for own, more, is_right in (
        ({"ssl_cert": "own.pem"}, {}, False),
        ({"ssl_key": "own.key"}, {}, False),
        ({"ssl_cert": "own.pem"}, {"ssl_ca": "ca.pem"}, True),
    ):
        of_shards = {"-80": own, "80-": {}}
        given = {"kind": "rows", "source": source | more, "shards": of_shards}
        if is_right:
            KeyspaceSettings.model_validate(given)
            continue
        with pytest.raises(ValueError, match="shard -80: ssl_cert needs ssl_ca"):
            KeyspaceSettings.model_validate(given)


def test_defaults_are_enough_to_start() -> None:
    """Without file, environment and flags all settings have defaults."""
    settings = load_settings()
    assert settings.kafka.bootstrap == "127.0.0.1:9092"
    assert settings.publisher.batch_interval_ms == 25
    assert (settings.consumer.commit_interval_ms, settings.consumer.commit_rows) == (1_000, 50_000)
    assert settings.consumer.overlay_bytes == 64 << 20
    assert (settings.serve.host, settings.serve.port) == ("127.0.0.1", 8480)


def test_a_setting_of_several_types_is_named_as_it_is_written() -> None:
    """`consumer.workers` is a number or `auto`: what is neither is one finding, and its path has no types."""
    with pytest.raises(SettingsError) as raised:
        load_settings(flags={"consumer": {"workers": "banana"}})
    assert str(raised.value).startswith("consumer.workers: input should be a valid integer")
    assert str(raised.value).endswith("not 'banana'; or 'auto'")
    assert "([consumer] workers)" in raised.value.hint
    assert "FRESHET_CONSUMER__WORKERS," in raised.value.hint


def test_flags_win_over_environment_and_environment_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags win over FRESHET_* variables, these over the file; a flag that is not given changes nothing."""
    assert load().kafka.bootstrap == "file:1"
    monkeypatch.setenv("FRESHET_KAFKA__BOOTSTRAP", "environment:2")
    assert load().kafka.bootstrap == "environment:2"
    assert load(kafka={"bootstrap": None}).kafka.bootstrap == "environment:2"
    assert load(kafka={"bootstrap": "flag:3"}).kafka.bootstrap == "flag:3"


def test_environment_reaches_into_a_keyspace_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password can come from the environment while the rest stays in the file; lists may be comma-separated."""
    monkeypatch.setenv("FRESHET_KEYSPACES__SHOP__SOURCE__PASSWORD", "from-outside")
    monkeypatch.setenv("FRESHET_KEYSPACES__SHOP__SOURCE__DATABASES", "a, b")
    monkeypatch.setenv("FRESHET_KEYSPACES__SHOP__SOURCE__KEY_PREFIX_COLUMNS", '{"a.t": 2}')
    settings = load()
    source = settings.keyspace("shop").source
    assert source is not None
    assert source.kind == "mariadb"
    assert source.password.get_secret_value() == "from-outside"
    assert source.databases == ["a", "b"]
    assert source.key_prefix_columns == {"a.t": 2}
    assert settings.keyspace("shop").partitions == 8


def test_the_default_file_is_found_and_a_named_one_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """freshet.toml is optional; --config and FRESHET_CONFIG are not."""
    Path("freshet.toml").write_text("[serve]\nport = 1\n")
    assert load_settings().serve.port == 1
    monkeypatch.setenv("FRESHET_CONFIG", "elsewhere.toml")
    with pytest.raises(SettingsError, match=r"no settings file elsewhere\.toml$"):
        load_settings()
    Path("elsewhere.toml").mkdir()
    with pytest.raises(SettingsError, match=r"no settings file elsewhere\.toml \(it is a directory\)"):
        load_settings()


def test_local_servers_are_found_without_a_settings_file() -> None:
    """The file of `freshet local up` is used in its directory unless there is a freshet.toml."""
    Path(".freshet/local").mkdir(parents=True)
    Path(".freshet/local/freshet.toml").write_text('[kafka]\nbootstrap = "local:1"\n')
    assert load_settings().kafka.bootstrap == "local:1"
    Path("freshet.toml").write_text('[kafka]\nbootstrap = "mine:1"\n')
    assert load_settings().kafka.bootstrap == "mine:1"


def test_a_shard_is_named_after_its_keyspace() -> None:
    """The default shard is <keyspace>/0, and it can be set."""
    assert load().shard_of("shop") == "shop/0"
    assert load('[keyspaces.shop]\nshard = "eu/7"\n').shard_of("shop") == "eu/7"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[serve]\nport = 65536", "serve.port"),
        ("data_dir = 's3://bucket/x'", "data_dir: must be a directory of this machine, not an address"),
        ("[keyspaces.a]\npartitions = 0", "keyspaces.a.partitions"),
        ("[keyspaces.a]\npartitions = 1025", "keyspaces.a.partitions"),
        ("[keyspaces.a]\nretention_ms = 1000", "keyspaces.a.retention_ms"),
        ("[keyspaces.'a b']", "keyspaces.a b"),
        ("[consumer]\noverlay_bytes = -1", "consumer.overlay_bytes"),
        ("[publisher]\nbatch_interval_ms = 0", "publisher.batch_interval_ms"),
        ("[log]\nformat = 'xml'", "log.format"),
        ("[keyspaces.a.source]\nkind = 'oracle'", "keyspaces.a.source"),
        ("[keyspaces.a.source]\nkind = 'mariadb'", "keyspaces.a.source.databases: must be set"),
        ("[keyspaces.mariadb]\npartitions = 'x'", "keyspaces.mariadb.partitions"),
        ("[keyspaces.a]\nkind = 'catalog'\nsource = {kind = 'mariadb', databases = ['x']}", "keyspaces.a: a mariadb"),
    ],
)
def test_a_value_out_of_its_limits_names_its_key(text: str, key: str) -> None:
    """The error for a wrong value is one line that starts with the key, and the hint says where to set it."""
    error = refused(text)
    assert str(error).startswith(key)
    assert "\n" not in str(error)
    assert "given.toml" in error.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[serve]\nprot = 1", "did you mean port?"),
        ("[sevre]\nport = 1", "did you mean serve?"),
        ("[keyspaces.a]\npartition = 1", "did you mean partitions?"),
        ("[keyspaces.a.source]\nkind='mariadb'\ndatabases=['x']\npasword='y'", "did you mean password?"),
        (
            "[keyspaces.a]\nkind='catalog'\nsource={kind='hive', databases=['x']}",
            "remove it: a source of kind hive has no such setting",
        ),
    ],
)
def test_a_key_that_is_none_is_an_error_with_the_right_one(text: str, hint: str) -> None:
    """A misspelled key is refused with the right spelling; one of another kind of source is told to be that."""
    assert refused(text).hint == hint


def test_a_misspelled_section_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment variable of an unknown section is refused instead of ignored."""
    monkeypatch.setenv("FRESHET_KAFAK__BOOTSTRAP", "x")
    with pytest.raises(SettingsError, match="FRESHET_KAFAK__BOOTSTRAP") as caught:
        load_settings()
    assert caught.value.hint == "did you mean kafka?"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[keyspaces.a.source]\nkynd = 'mariadb'", "keyspaces.a.source.kind: must be set, to one of: debezium, hive, "),
        ("[keyspaces.a.source]\nkind = 'oracle'", "keyspaces.a.source.kind: 'oracle' is none of: debezium, hive, "),
        ("data_dir = 5", "data_dir: 5 is not a path"),
        ("[keyspaces.'sh/op']", "keyspaces.sh/op: a name can't have all of these letters: it must fit "),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(text: str, problem: str) -> None:
    """No word of the library that reads settings, and no variable that no shell could set."""
    error = refused(text)
    assert str(error).startswith(problem)
    assert "FRESHET_KEYSPACES__SH/OP" not in error.hint


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("FRESHET_KAFKA_BOOTSTRAP", "FRESHET_KAFKA__BOOTSTRAP"),
        ("FRESHET_DATADIR", "FRESHET_DATA_DIR"),
        ("FRESHET_DATA__DIR", "FRESHET_DATA_DIR"),
        ("FRESHET_CONSUMER_COMMITROWS", "FRESHET_CONSUMER__COMMIT_ROWS"),
    ],
)
def test_wrong_underscores_in_the_environment_are_an_error(
    written: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process would run against another cluster than the variable says; what is no setting may be anybody's."""
    monkeypatch.setenv("FRESHET_BOGUS", "x")
    monkeypatch.setenv("FRESHET_SERVE_PORT", "tcp://10.0.0.1:8480")
    monkeypatch.setenv("FRESHET_DATA_DIR", "x")
    load_settings()
    monkeypatch.setenv(written, "x")
    with pytest.raises(SettingsError, match=written) as caught:
        load_settings()
    assert caught.value.hint == f"did you mean {meant}?"


def test_a_file_that_is_not_toml_is_one_line() -> None:
    """A syntax error is one line that names the file."""
    assert str(refused("[serve\n")).startswith("cannot read given.toml: ")


@pytest.mark.parametrize(
    "text",
    [
        "[keyspaces.a.source]\nkind = 'mariadb'\ndatabases = ['x']\npassword = ['s3cret']",
        "[keyspaces.a.source]\nkind = 'mariadb'\ndatabases = ['x']\npassword = 's3cret'\nport = 'y'",
        "[serve.bearer_token]\ns3cret = 1",
        "[kafka]\nextra = 's3cret'",
        'keyspaces = \'{"a": {"source": {"password": "s3cret"\'',
    ],
)
def test_no_error_contains_a_secret(text: str) -> None:
    """No error message or hint contains a secret value."""
    error = refused(text)
    assert "s3cret" not in f"{error} {error.hint} {error!r}"


def test_nothing_that_may_be_shown_contains_a_secret() -> None:
    """`public()` and repr mask passwords, tokens and Kafka's extra settings."""
    settings = load(SHOP + '[kafka.extra]\n"sasl.password" = "s3cret"\n', serve={"bearer_token": "s3cret"})
    shown = f"{settings.public()} {settings!r}"
    assert "s3cret" not in shown
    assert "in-the-file" not in shown
    assert "sasl.password" in str(settings.public())


def test_an_unknown_keyspace_lists_the_known_ones() -> None:
    """The error for an unknown keyspace lists the known ones."""
    with pytest.raises(SettingsError, match="no keyspace 'shpo' in the settings") as caught:
        load().keyspace("shpo")
    assert caught.value.hint == "known: shop"


SHARDED = """[keyspaces.shop.source]
kind = "mariadb"
user = "reader"
databases = ["shop"]

[keyspaces.shop.shards."-80"]
host = "db-1"

[keyspaces.shop.shards."80-"]
host = "db-2"
port = 3307
name = "shop/east"
"""


def test_shards_have_ranges_and_servers_of_their_own() -> None:
    """What a shard does not say is the source's; its name is its range unless it has another."""
    settings = load(SHARDED)
    assert settings.shards_of("shop") == ("shop/-80", "shop/east")
    found = settings.shard_map("shop")
    assert found is not None
    assert found.texts() == {"shop/-80": "-80", "shop/east": "80-"}
    east = settings.source_of("shop", "shop/east")
    assert isinstance(east, MariaDBSourceSettings)
    assert (east.host, east.port, east.user, east.databases) == ("db-2", 3307, "reader", ["shop"])
    for wanted, shard in (("-80", "shop/-80"), ("shop/-80", "shop/-80"), ("80-", "shop/east")):
        assert settings.shard_of("shop", wanted) == shard
    options = source_options(settings, "shop", False, "shop/east")
    assert (options.shard, options.tables.key_range, options.settings.host) == ("shop/east", "80-", "db-2")


def test_shards_may_succeed_others_that_are_over() -> None:
    """One that is succeeded has no keys any more; each shard says whom it succeeds, by name."""
    split = SHARDED.replace('[keyspaces.shop.shards."80-"]\n', '[keyspaces.shop.shards."80-"]\nsucceeds = ["shop/0"]\n')
    assert load(split).succession("shop") == {"shop/-80": (), "shop/east": ("shop/0",)}
    assert load("[keyspaces.shop]\nsucceeds = 'shop/a@3'\n").succession("shop") == {"shop/0": ("shop/a@3",)}
    with pytest.raises(SettingsError, match="shop/-80 has a range, and is succeeded, too"):
        load(split.replace("shop/0", "shop/-80")).succession("shop")


def test_which_of_several_shards_is_meant_must_be_said() -> None:
    """A command that would take the first one would read another server than its user thinks."""
    for wanted in ("", "40-80", "shop/0"):
        with pytest.raises(SettingsError) as raised:
            load(SHARDED).shard_of("shop", wanted)
        assert raised.value.code == "which_shard"
        assert "-80, 80-" in raised.value.hint
    alone = load("[keyspaces.shop]\nshards = ['shop/0', 'shop/1']\n")
    assert alone.shards_of("shop") == ("shop/0",)
    assert alone.shard_map("shop") is None


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        (("-80",), "keyspaces.shop.shards: no shard has the range 80-"),
        (("-80", "40-"), "keyspaces.shop.shards: -80 and 40- overlap: both have 40-80"),
        (("-8", "8-"), "keyspaces.shop.shards: '-8' is no range of keyspace ids"),
        (("-80", "8000-", "80-"), "keyspaces.shop.shards"),
    ],
)
def test_ranges_that_are_no_map_are_refused(ranges: tuple[str, ...], problem: str) -> None:
    """Each key must have one shard, before anything is published."""
    text = "".join(f'[keyspaces.shop.shards."{each}"]\nhost = "a"\n' for each in ranges)
    with pytest.raises(SettingsError) as raised:
        load("[keyspaces.shop.source]\nkind = 'mariadb'\ndatabases = ['shop']\n" + text)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("[keyspaces.shop]\nshard = 'shop/0'\n", "shards with ranges need"),
        ("[keyspaces.shop]\nsucceeds = 'shop/0'\n", "shards with ranges need"),
    ],
)
def test_shards_with_ranges_have_no_settings_of_a_single_one(more: str, problem: str) -> None:
    """Of which of them would it be?"""
    with pytest.raises(SettingsError, match=problem):
        load(more + SHARDED)


def test_a_misspelt_setting_of_a_shard_is_named() -> None:
    """With its place, and the word that was meant."""
    with pytest.raises(SettingsError, match=r"keyspaces\.shop\.shards\.80-\.hots: no such setting") as raised:
        load(SHARDED.replace('host = "db-2"', 'hots = "db-2"'))
    assert "host" in raised.value.hint


DEBEZIUM = {"kind": "debezium", "databases": ["shop"], "topic_prefix": "pre", "connect_url": "http://connect:8083"}


@pytest.mark.parametrize(
    ("server", "flavor", "gtid"),
    [("mysql", "MySQL56", "16b1039f-22b6-11ed-b765-0a43f95f28a3:5"), ("mariadb", "MariaDB", "0-1-5")],
)
def test_a_connectors_source_has_the_positions_of_its_server(server: str, flavor: str, gtid: str) -> None:
    """A GTID that a person types is one of the server that the connector reads; what is none is refused with a hint."""
    settings = Settings(keyspaces={"k": {"source": {**DEBEZIUM, "server": server}}})  # type: ignore[dict-item]
    source = settings.keyspace("k").source
    assert isinstance(source, MariaDBSourceSettings)
    assert server_of(source).product == {"mysql": "MySQL", "mariadb": "MariaDB"}[server]
    assert position_of(settings, "k", gtid) == f"{flavor}/{gtid}"
    with pytest.raises(SettingsError, match=r"--after: .*'nonsense'") as refused:
        position_of(settings, "k", "nonsense")
    assert (refused.value.code, "SELECT @@last_gtid" in refused.value.hint) == ("bad_token", True)


POSTGRES = {**DEBEZIUM, "server": "postgres", "database": "d"}


def test_a_source_of_postgresql_has_its_port_and_database() -> None:
    """Another port may be given; what was there before is read as of any server."""
    settings = Settings(keyspaces={"k": {"source": POSTGRES}, "l": {"source": {**POSTGRES, "port": 6}}})  # type: ignore[dict-item]
    found = source_options(settings, "k", False, "k/0")
    assert (found.settings.product, found.settings.port, found.settings.database) == ("PostgreSQL", 5432, "d")
    assert found.backfill is not None
    assert source_options(settings, "l", False, "l/0").settings.port == 6


@pytest.mark.parametrize(
    ("keyspace", "problem"),
    [
        ({"source": {**POSTGRES, "database": ""}}, "needs database"),
        ({"source": {**DEBEZIUM, "database": "d"}}, "needs database"),
        ({"source": {**DEBEZIUM, "topic_prefix": ""}}, "needs topic_prefix and connect_url"),
        ({"source": {**DEBEZIUM, "connect_url": "connect:8083"}}, "connect_url"),
        ({"source": {**DEBEZIUM, "connect_user": "u"}}, "both, or none"),
        ({"source": {**DEBEZIUM, "connect_user": "u", "connect_password": "hunter2"}}, "sent to connect as it is"),
        ({"source": {**DEBEZIUM, "kind": "mysql"}}, "are for kind"),
        ({"source": DEBEZIUM, "shards": ["k/1"]}, "no shards"),
        ({"source": DEBEZIUM, "kind": "catalog"}, "needs kind = 'rows'"),
    ],
)
def test_a_connectors_source_is_whole_and_alone(keyspace: dict[str, object], problem: str) -> None:
    """A setting that would mean nothing is refused before anything starts."""
    with pytest.raises(ValidationError, match=problem):
        Settings(keyspaces={"k": keyspace})  # type: ignore[dict-item]
