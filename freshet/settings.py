"""Settings: a TOML file < environment (``FRESHET_KAFKA__BOOTSTRAP``) < flags, with limits for every value.

The file is ``--config``, else ``$FRESHET_CONFIG``, else ``freshet.toml`` in the current directory, else the one that
``freshet local up`` wrote below it while its servers are up. A wrong value is a `SettingsError` (code ``bad_settings``)
that names the key, the problem and where to set the value. It never prints a secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from freshet.sections.access import ClientSettings, OwnCertificate, TlsSettings, Tokens, TokenSettings, credentials
from freshet.sections.layers import Earlier
from freshet.sections.limits import LimitsSettings
from freshet.sections.registry import SchemaRegistrySettings
from freshet.sections.secrets import secret_in
from freshet.sections.shards import Shards, ShardSettings, map_of, names_of
from freshet.sections.sources import (
    EncryptedSettings,
    HiveSourceSettings,
    MariaDBSourceSettings,
    SourceSettings,
    WorkloadSourceSettings,
)
from freshet.sections.thrift import ThriftSettings
from freshet.sections.tracing import TracingSettings
from freshet.sections.values import Host, Json, Name, Names, Port, Section, Shard, is_address
from freshet.settings_errors import (
    SettingsError,
    from_validation,
    split_list,
    unknown_keyspace,
    unknown_variables,
)
from stream.access.networks import networks_of

if TYPE_CHECKING:
    from consumers.owner.client import Identity
    from consumers.store.index import Index
    from serving.bytecache.options import CacheOptions
    from stream.access.grants import Credential
    from stream.kafka.connection import KafkaCluster
    from stream.shards.map import ShardMap

DEFAULT_CONFIG = Path("freshet.toml")
LOCAL_CONFIG = Path(".freshet/local/freshet.toml")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOUR_MS, DAY_MS, YEAR_MS = 3_600_000, 86_400_000, 366 * 86_400_000

_config_file: ContextVar[Path | None] = ContextVar("freshet_config_file", default=None)


class KafkaSettings(Section):
    """Where Kafka is. ``extra`` goes to every librdkafka client (security, timeouts).

    ``extra_files``: name of such a setting → a file that holds its value, a password say.
    ``prefix`` begins the names of topics, groups and transactional ids: one for each installation on a Kafka.
    """

    bootstrap: str = Field(default="127.0.0.1:9092", min_length=1, max_length=4_096)
    prefix: Name = "freshet"
    replication_factor: int = Field(default=1, ge=1, le=16)
    extra: Annotated[dict[str, str], Json] = Field(default_factory=dict, repr=False)
    extra_files: Annotated[dict[str, str], Json] = Field(default_factory=dict)

    @property
    def cluster(self) -> KafkaCluster:
        """The address and settings for every Kafka client. Raises `KafkaSettingsError`, `SettingsError`."""
        # Not above: commands that need no Kafka must not import its client.
        from stream.kafka.connection import KafkaCluster

        try:
            read = {name: secret_in(path, name) for name, path in self.extra_files.items()}
        except ValueError as error:
            raise SettingsError(f"kafka.extra_files: {error}", hint="is it there, and readable?") from None
        return KafkaCluster(self.bootstrap, self.extra | read, self.prefix, self.replication_factor).check()


def _directory(value: object) -> object:
    """Refuses an address: of ``s3://bucket`` a path makes ``s3:/bucket``, below the present directory."""
    if is_address(str(value)):
        raise ValueError("must be a directory of this machine, not an address")
    return value


LEARNT: Final = "schema"
"""In place of an index: those of the source's tables."""


def _index(text: str) -> str:
    """Refuses what is no index, nor ``schema``. Raises ``ValueError``."""
    from consumers.store.index import Index

    return LEARNT if text.strip() == LEARNT else str(Index.parse(text))


class KeyspaceSettings(Section):
    """One keyspace: its layout, which cannot be changed later, and its source.

    ``shard`` defaults to ``<keyspace>/0``; read it through `Settings.shard_of`. ``shards``: all shards that publish
    in the keyspace's topic: their names, or a table of the ranges of their keys, where ``source`` says what they have
    in common. ``succeeds``: the shard, or ``shard@epoch``, whose history ``shard`` continues.
    ``indexes``: ``db.table(column, column)``, by which whole tables are read, too; ``schema``: all that the source has.
    ``hot``: ``db.table`` → bytes that its fills may take; it is not read from the beginning.
    ``invalidate``: ``db.table``, whose changes are published without images: they invalidate, and reads fill.
    ``snapshots``: where its snapshots are, for fsspec; a store that is missing begins with one.
    ``before_images``: change streams can tell what rows were before, too; the topic is about twice as large.
    ``keyless_rows``: they can tell the rows of tables without a primary key.
    """

    kind: Literal["rows", "catalog"] = "rows"
    partitions: int = Field(default=4, ge=1, le=1_024)
    shard: Shard | None = None
    shards: Shards = Field(default_factory=list)
    succeeds: Annotated[str, Field(pattern=r"^([A-Za-z0-9_./-]{1,150}(@[1-9][0-9]{0,17})?)?$")] = ""
    source: SourceSettings | None = None
    retention_ms: int = Field(default=7 * DAY_MS, ge=DAY_MS, le=YEAR_MS)
    indexes: Annotated[list[Annotated[str, AfterValidator(_index)]], BeforeValidator(split_list)] = Field(
        default_factory=list, max_length=1_000
    )
    hot: Annotated[dict[str, Annotated[int, Field(ge=0, le=64 * GIB)]], Json] = Field(default_factory=dict)
    invalidate: Annotated[list[Annotated[str, Field(pattern=r"^[^.]+\..+$")]], BeforeValidator(split_list)] = Field(
        default_factory=list, max_length=1_000
    )
    snapshots: str = Field(default="", max_length=4_096)
    before_images: bool = False
    keyless_rows: bool = False

    @property
    def ranges(self) -> dict[str, ShardSettings]:
        """Range → the shard that has it; empty where the shards have no ranges."""
        return self.shards if isinstance(self.shards, dict) else {}

    @property
    def row_indexes(self) -> tuple[Index, ...]:
        """Those of ``indexes`` that are named, as values."""
        from consumers.store.index import Index

        return tuple(Index.parse(text) for text in self.indexes if text != LEARNT)

    @property
    def learns_indexes(self) -> bool:
        """Whether the source's indexes count, too."""
        return LEARNT in self.indexes

    @model_validator(mode="after")
    def _source_fits_kind(self) -> KeyspaceSettings:
        fits = {"mariadb": "rows", "mysql": "rows", "debezium": "rows", "workload": "catalog", "hive": "catalog"}
        if self.source is not None and fits[self.source.kind] != self.kind:
            raise ValueError(f"a {self.source.kind} source needs kind = {fits[self.source.kind]!r}, not {self.kind!r}")
        if self.source is not None and self.source.kind == "debezium" and (self.shards or self.succeeds):
            raise ValueError("a debezium source is the only one of its keyspace: no shards, and nothing to succeed")
        if self.learns_indexes and isinstance(self.source, MariaDBSourceSettings) and self.source.is_postgres:
            raise ValueError(f"the indexes of a PostgreSQL are not read: name the columns in place of {LEARNT!r}")
        return self

    @model_validator(mode="after")
    def _keyless_rows_have_one_shard(self) -> KeyspaceSettings:
        if self.keyless_rows and (self.ranges or (self.source is not None and self.source.kind == "debezium")):
            raise ValueError(
                "keyless_rows: a row without a key is in no range of a shard, and in no connector's messages"
            )
        return self

    @model_validator(mode="after")
    def _every_shard_is_encrypted_that_should_be(self) -> KeyspaceSettings:
        for text, shard in self.ranges.items():
            merged = self.source.model_copy(update=shard.own()) if self.source is not None else None
            if isinstance(merged, EncryptedSettings) and merged.lacks_authority:
                hint = "without it the connection is plain; ssl_cert and ssl_key may be empty too"
                raise ValueError(f"shard {text}: ssl_cert needs ssl_ca: {hint}")
        return self

    @model_validator(mode="after")
    def _succeeds_another(self) -> KeyspaceSettings:
        ancestor = self.succeeds.partition("@")[0]
        if self.ranges and (self.shard or self.succeeds or self.kind != "rows" or self.source is None):
            raise ValueError("shards with ranges need kind = 'rows' and a source, and neither shard nor succeeds")
        if ancestor and ancestor in (self.shard, *self.shards):
            raise ValueError(f"{ancestor} can't be succeeded and publish in the keyspace too")
        return self


class PublisherSettings(Section):
    """How events are batched: one Kafka transaction per batch, one frame per partition up to a size."""

    batch_interval_ms: int = Field(default=25, ge=1, le=10_000)
    batch_bytes: int = Field(default=8 * MIB, ge=16 * KIB, le=256 * MIB)
    frame_bytes_max: int = Field(default=1 * MIB, ge=4 * KIB, le=8 * MIB)
    frame_rows_max: int = Field(default=16_384, ge=1, le=1_000_000)
    declare_every_s: int = Field(default=600, ge=1, le=86_400)


def _networks(texts: list[str]) -> list[str]:
    """Raises ``ValueError`` for what is no network."""
    return [str(each) for each in networks_of(texts)]


class ConsumerSettings(Section):
    """How a consumer folds, commits and answers. ``owner_port`` 0: any free port; it is announced.

    ``owner_token``: the secret that fronts send. Owners take it, and those of ``tokens``; one is needed to listen
    beyond loopback. ``tls``: of both sides of the owner protocol; with ``ca`` each side must show a certificate of it.
    ``plain``: owners and metrics may listen beyond loopback without TLS. ``networks``: where fronts and commands look
    for owners, whatever is announced; empty: anywhere.
    ``owner_announced``: the ``host:port`` to announce instead of the own one (port mapping, a proxy).
    ``workers``: processes that share the partitions; ``auto``: one for each core.
    ``standby``: answers, but is announced only once ``freshet swap`` has moved readers here. ``follower``: is announced
    as a follower of the owners until then.
    """

    group: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,200}$")
    commit_interval_ms: int = Field(default=1_000, ge=10, le=600_000)
    commit_rows: int = Field(default=50_000, ge=1, le=10_000_000)
    overlay_bytes: int = Field(default=64 * MIB, ge=0, le=64 * GIB)
    owner_host: Host = "127.0.0.1"
    owner_port: Port = 0
    owner_token: SecretStr | None = None
    tokens: Annotated[Tokens, Json] = Field(default_factory=dict, max_length=1_000)
    tls: TlsSettings = TlsSettings()
    plain: bool = False
    networks: Annotated[Names, AfterValidator(_networks)] = Field(default_factory=list)
    owner_announced: Annotated[str, Field(pattern=r"^(.+:\d{1,5})?$", max_length=300)] = ""
    metrics_port: Port | None = None
    workers: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = 1
    standby: bool = False
    follower: bool = False

    @property
    def credentials(self) -> list[Credential]:
        """Those that owners accept. Without any, which is for loopback only, a certificate of ``tls.ca`` is enough."""
        return credentials(self.tokens, self.owner_token, "owner_token")

    @property
    def identity(self) -> Identity:
        """What fronts and commands show to owners."""
        from consumers.owner.client import Identity

        token = self.owner_token.get_secret_value() if self.owner_token is not None else ""
        return Identity(lambda: token, self.tls.files, networks_of(self.networks))

    @model_validator(mode="after")
    def _standby_has_a_group(self) -> ConsumerSettings:
        if (self.standby or self.follower) and not self.group:
            kind = "standby" if self.standby else "follower"
            raise ValueError(
                f"{kind} needs a group of its own: in the group of the others it would take their partitions"
            )
        return self


class SourceProcessSettings(Section):
    """A source's process: where it shows metrics and health. Beyond loopback metrics need ``metrics_token``."""

    metrics_host: Host = "127.0.0.1"
    metrics_port: Port | None = None
    metrics_token: SecretStr | None = None
    tls: OwnCertificate = OwnCertificate()
    plain: bool = False


class ServeSettings(Section):
    """The HTTP front. ``locations``: ``keyspace/partition`` → ``host:port`` of owners that are not announced.

    ``announced``: the URL at which clients reach a node's front, if not the one that it listens at.
    ``locations_file``: keeps what is announced, for starts while Kafka is away.
    ``serve_stale_if_down``: a catalog table whose source does not answer is given as it is cached, marked as stale.
    ``dead_letter_buttons``: the page puts dead letters back and takes them off the list, for the role ``admin``.
    ``tokens``: who may ask; ``bearer_token``: one secret that may do everything, as before there were tokens. ``tls``:
    with ``ca`` a client may show a certificate. ``plain``: it may listen beyond loopback without TLS.
    ``hosts``: names by which a front without tokens may be asked. ``limits``: what one caller may take.
    ``thrift``: keyspaces of metastores that engines may ask here as they ask the metastore.
    """

    host: Host = "127.0.0.1"
    port: Port = 8480
    limits: LimitsSettings = LimitsSettings()
    bearer_token: SecretStr | None = None
    tokens: Annotated[Tokens, Json] = Field(default_factory=dict, max_length=1_000)
    tls: TlsSettings = TlsSettings()
    plain: bool = False
    hosts: Names = Field(default_factory=list)
    max_wait_ms_limit: int = Field(default=10_000, ge=0, le=20_000)
    default_wait_ms: int = Field(default=100, ge=0, le=20_000)
    serve_stale_if_down: bool = False
    dead_letter_buttons: bool = False
    locations: Annotated[dict[str, Annotated[str, Field(pattern=r"^.+:\d{1,5}$")]], Json] = Field(default_factory=dict)
    locations_file: Path | None = None
    thrift: Annotated[dict[str, ThriftSettings], Json] = Field(default_factory=dict, max_length=100)
    announced: Annotated[str, Field(pattern=r"^(https?://[^\s/]+)?$", max_length=300)] = ""

    @property
    def credentials(self) -> list[Credential]:
        """Those that the front accepts."""
        return credentials(self.tokens, self.bearer_token, "bearer_token")


_ROOT: Final = r"^[a-z][a-z0-9+.-]*://[^\s]+$"


class BytesSettings(Section):
    """The byte cache, as `serving.bytecache.options.CacheOptions` has it. Without ``dirs`` there is none.

    ``roots``: URIs; ``freshet serve`` gives the files below them.
    """

    dirs: Names = Field(default_factory=list)
    free_share: float = Field(default=0.5, gt=0, le=1)
    min_free: int = Field(default=0, ge=0)
    shards: int = Field(default=8, ge=1, le=64)
    policy: Literal["s3fifo", "lirs", "lru", "fifo"] = "s3fifo"
    key_file: str = Field(default="", max_length=1_000)
    write_buffer: int = Field(default=64 * MIB, ge=MIB, le=64 * GIB)
    gap: int = Field(default=64 * KIB, ge=0, le=GIB)
    request_bytes: int = Field(default=8 * MIB, ge=64 * KIB, le=GIB)
    admission: str = Field(default="all", max_length=100)
    scopes: Annotated[dict[str, Annotated[int, Field(ge=1)]], Json] = Field(default_factory=dict)
    ttl_s: int = Field(default=0, ge=0)
    values: Annotated[dict[str, Literal["scan", "normal", "index", "pinned"]], Json] = Field(default_factory=dict)
    read_only: bool = False
    trace: str = Field(default="", max_length=1_000)
    trace_share: float = Field(default=1.0, gt=0, le=1)
    trace_anonymous: bool = False
    hosts: Names = Field(default_factory=list)
    host: str = Field(default="", max_length=300)
    roots: Annotated[list[Annotated[str, Field(pattern=_ROOT)]], BeforeValidator(split_list)] = Field(
        default_factory=list
    )

    @property
    def options(self) -> CacheOptions:
        """As the byte cache takes them. Raises `ByteCacheError` ``bad_bytes_option``."""
        from serving.bytecache.options import CacheOptions

        return CacheOptions(
            **self.model_dump(exclude={"roots"}) | {"dirs": tuple(self.dirs), "hosts": tuple(self.hosts)}
        )


class LogSettings(Section):
    """How to log. ``auto``: coloured text if stderr is a terminal, else JSON lines."""

    format: Literal["auto", "json", "console"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(BaseSettings):
    """All settings. Make one with `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix="FRESHET_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
        enable_decoding=False,  # lists and objects in text are read by split_list and parse_object, with our errors
    )

    data_dir: Annotated[Path, BeforeValidator(_directory)] = Path(".freshet")
    zone: str = Field(default="", max_length=100)
    kafka: KafkaSettings = KafkaSettings()
    keyspaces: Annotated[dict[Name, KeyspaceSettings], Json] = Field(default_factory=dict, max_length=1_000)
    publisher: PublisherSettings = PublisherSettings()
    source: SourceProcessSettings = SourceProcessSettings()
    consumer: ConsumerSettings = ConsumerSettings()
    serve: ServeSettings = ServeSettings()
    bytes: BytesSettings = BytesSettings()
    client: ClientSettings = ClientSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags win over the environment, which wins over the file."""
        file = TomlConfigSettingsSource(settings_cls, toml_file=config_in_use())
        return init_settings, Earlier(settings_cls, env_settings), Earlier(settings_cls, file)

    def keyspace(self, name: str) -> KeyspaceSettings:
        """The settings of one keyspace. Raises `SettingsError` ``unknown_keyspace``, which names the known ones."""
        if name not in self.keyspaces:
            raise unknown_keyspace(name, self.keyspaces)
        return self.keyspaces[name]

    def shard_of(self, name: str, wanted: str = "") -> str:
        """The shard of a keyspace: as set, else ``<keyspace>/0``. ``wanted``: the name or the range of one of several.

        Raises `SettingsError` ``which_shard``.
        """
        chosen = self.keyspace(name)
        known = names_of(name, chosen.ranges) if chosen.ranges else {chosen.shard or f"{name}/0": ""}
        if not wanted and len(known) == 1:
            return next(iter(known))
        found = [shard for shard, text in known.items() if wanted and wanted in (shard, text)]
        if not found:
            told = ", ".join(filter(None, known.values())) or ", ".join(known)
            problem = f"keyspace {name} has no shard {wanted!r}" if wanted else f"keyspace {name} has several shards"
            raise SettingsError(problem, hint=f"name one by --shard=…: {told}", code="which_shard")
        return found[0]

    def shards_of(self, name: str) -> tuple[str, ...]:
        """All shards of a keyspace that have a source here, in the order of their ranges."""
        found = self.shard_map(name)
        return found.shards if found is not None else (self.shard_of(name),)

    def shard_map(self, name: str) -> ShardMap | None:
        """Which shard has which keys; None if the shards have no ranges."""
        ranges = self.keyspace(name).ranges
        return map_of(name, ranges) if ranges else None

    def succession(self, name: str) -> dict[str, tuple[str, ...]]:
        """Shard → those that it succeeds, of a keyspace; each ``shard`` or ``shard@epoch``.

        Raises `SettingsError` ``bad_settings`` if one of these has a range, too.
        """
        chosen = self.keyspace(name)
        if not chosen.ranges:
            return {self.shard_of(name): (chosen.succeeds,) if chosen.succeeds else ()}
        names = names_of(name, chosen.ranges)
        found = {shard: tuple(chosen.ranges[text].succeeds) for shard, text in names.items()}
        both = sorted({old for olds in found.values() for old in olds} & names.keys())
        if both:
            raise SettingsError(
                f"keyspaces.{name}.shards: {both[0]} has a range, and is succeeded, too",
                hint="a shard that is succeeded is over: take its range away",
            )
        return found

    def source_of(self, name: str, shard: str) -> SourceSettings | None:
        """The source of a shard of the keyspace, with what is its own."""
        chosen = self.keyspace(name)
        text = names_of(name, chosen.ranges).get(shard)
        if chosen.source is None or text is None:
            return chosen.source
        return chosen.source.model_copy(update=chosen.ranges[text].own())

    @property
    def front_secret(self) -> str | None:
        """What commands show to the front."""
        secret = self.client.token or self.serve.bearer_token
        return secret.get_secret_value() if secret is not None else None

    def public(self) -> dict[str, Any]:
        """All values, ready for JSON, with secrets masked so that they may be shown or logged."""
        shown = self.model_dump(mode="json")
        shown["kafka"]["extra"] = dict.fromkeys(self.kafka.extra, "**********")
        return shown


def use_config(path: Path | None) -> None:
    """Sets the TOML file that `load_settings` reads from now on (``--config``); None for the default."""
    _config_file.set(path)


def load_settings(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Reads the settings. ``flags`` is nested like the file; None in it means "not given".

    Raises `SettingsError` ``bad_settings``: unreadable file, unknown key, value out of its limits.
    """
    if config is not None:
        use_config(config)
    named = _config_file.get() or _named_by_environment()
    if named is not None and not named.is_file():
        where = " (it is a directory)" if named.is_dir() else ""
        raise SettingsError(f"no settings file {named}{where}", hint="check the path in --config or FRESHET_CONFIG")
    sections = {name: () if name == "keyspaces" else _known_keys([name]) for name in Settings.model_fields}
    if problem := unknown_variables(os.environ, sections):
        raise problem
    try:
        return Settings(**_given(flags or {}))
    except ValidationError as error:
        raise from_validation(error, config_in_use(), _known_keys) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"cannot read {config_in_use()}: {error}", hint="it must be TOML in UTF-8") from None


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in flags.items():
        kept = _given(value) if isinstance(value, Mapping) else value
        if kept is not None and kept != {}:
            given[key] = kept
    return given


def _named_by_environment() -> Path | None:
    named = os.environ.get("FRESHET_CONFIG")
    return Path(named) if named else None


def config_in_use() -> Path:
    """The settings file that `load_settings` reads; it need not exist."""
    named = _config_file.get() or _named_by_environment()
    return named or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() or not LOCAL_CONFIG.exists() else LOCAL_CONFIG)


def _known_keys(path: Sequence[str]) -> Iterable[str]:
    """The keys of the section at ``path``; empty if there is no such section."""
    if path[:1] == ["keyspaces"]:
        if len(path) == 2:
            return KeyspaceSettings.model_fields
        if path[2] == "shards":
            return ShardSettings.model_fields
        kinds = (MariaDBSourceSettings, WorkloadSourceSettings, HiveSourceSettings)
        return {key for kind in kinds for key in kind.model_fields}
    if not path:
        return Settings.model_fields
    section: Any = Settings
    for name in path:
        field = section.model_fields.get(name) if isinstance(section, type) and issubclass(section, BaseModel) else None
        section = field.annotation if field is not None else TokenSettings if section == Tokens else None
    return section.model_fields if isinstance(section, type) and issubclass(section, Section) else ()
