"""The sources in the settings: which servers, how they are reached, and what of them is published."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from freshet.sections.access import TlsSettings
from freshet.sections.values import Addresses, Host, HttpUrl, Json, Names, Port, Section
from freshet.settings_errors import split_list
from stream.access.listening import is_loopback

if TYPE_CHECKING:
    from stream.sources.debezium.connector import KafkaConnect

PASSWORD_VARIABLE: Final = "FRESHET_MARIADB_PASSWORD"
"""The password of databases for which the settings have none, in every command."""

POSTGRES_PORT: Final = 5432

Uri = Annotated[str, Field(pattern=r"^thrift://[^/:\s]+:[0-9]{1,5}$", max_length=300)]


def _password() -> SecretStr:
    """The password of databases that the settings give none for."""
    return SecretStr(os.environ.get(PASSWORD_VARIABLE, ""))


class EncryptedSettings(Section):
    """How a connection is encrypted.

    ``ssl_ca``: a file of certificates; one of them must have signed the server's, which is for its host if
    ``ssl_verify_host``. ``ssl_cert``, ``ssl_key``: files of the own certificate, which needs ``ssl_ca``.
    """

    ssl_ca: str = Field(default="", max_length=1_000)
    ssl_verify_host: bool = True
    ssl_cert: str = Field(default="", max_length=1_000)
    ssl_key: str = Field(default="", max_length=1_000)

    @property
    def lacks_authority(self) -> bool:
        """Whether there is a certificate to show, but none to verify the server with: the connection would be plain."""
        return bool(self.ssl_cert or self.ssl_key) and not self.ssl_ca

    @model_validator(mode="after")
    def _own_certificate_needs_an_authority(self) -> Self:
        if self.lacks_authority:
            raise ValueError("ssl_cert needs ssl_ca: without it the connection is plain")
        return self


class MariaDBSourceSettings(EncryptedSettings):
    """A MariaDB or MySQL server whose binlog is one shard. ``server_id`` must differ from every other replica's.

    ``include``/``exclude`` are ``db.table`` patterns (``shop.*``); ``key_prefix_columns``: table → how many
    leading primary-key columns choose the partition (default: all of them).

    ``backfill``: patterns of the tables whose rows are published from the beginning, beside their changes, at most
    ``backfill_rows_per_s`` (0: as fast as the server answers) in ``backfill_share`` of the source's time, and not while
    the source is more than ``backfill_lag_max_s`` behind (0: always). ``freshet backfill`` asks for others.

    ``kind = "debezium"``: the changes are read from the topics ``<topic_prefix>.…`` of a connector, which Kafka Connect
    at ``connect_url`` runs; ``connect_user``, ``connect_password`` and ``connect_tls`` are as a schema registry's
    (`freshet.sections.registry`), and ``server`` says what the connector reads. The rest says how that server itself is
    reached. Of PostgreSQL ``database`` is the one that the connector reads, and ``databases`` are its schemas.

    ``replicas``: of the server, whose binlogs are read rather than its own, the first that is up to date.
    """

    kind: Literal["mariadb", "mysql", "debezium"]
    host: Host = "127.0.0.1"
    port: Port = 3306
    user: str = Field(default="freshet", min_length=1, max_length=128)
    password: SecretStr = Field(default_factory=_password)
    databases: Names = Field(min_length=1)
    include: Names = Field(default_factory=list)
    exclude: Names = Field(default_factory=list)
    replicas: Addresses = Field(default_factory=list)
    server_id: int = Field(default=4_380, ge=1, le=2**32 - 1)
    backfill: Names = Field(default_factory=list)
    backfill_rows_per_s: int = Field(default=0, ge=0, le=10_000_000)
    backfill_share: float = Field(default=1.0, gt=0, le=1)
    backfill_lag_max_s: float = Field(default=5.0, ge=0, le=86_400)
    key_prefix_columns: Annotated[dict[str, Annotated[int, Field(ge=1, le=64)]], Json] = Field(default_factory=dict)
    server: Literal["mysql", "mariadb", "postgres"] = "mysql"
    database: Annotated[str, Field(max_length=63)] = ""
    topic_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$", max_length=200)] = ""
    connect_url: HttpUrl = ""
    connect_user: str = Field(default="", max_length=1_000)
    connect_password: SecretStr | None = None
    connect_tls: TlsSettings = TlsSettings()

    @property
    def is_mysql(self) -> bool:
        """Whether the server must be MySQL; else MariaDB."""
        return (self.server if self.kind == "debezium" else self.kind) == "mysql"

    @property
    def is_postgres(self) -> bool:
        """Whether the server must be PostgreSQL."""
        return self.kind == "debezium" and self.server == "postgres"

    @property
    def connect(self) -> KafkaConnect:
        """Where the connector's configuration is asked for."""
        from stream.sources.debezium.connector import KafkaConnect

        password = self.connect_password.get_secret_value() if self.connect_password is not None else ""
        return KafkaConnect(self.connect_url, self.connect_user, password, self.connect_tls.files)

    @model_validator(mode="after")
    def _connects_password_is_not_shown_to_others(self) -> Self:
        if (self.connect_password is not None) != bool(self.connect_user):
            raise ValueError("connect_user and connect_password are needed both, or none")
        at = urlsplit(self.connect_url)
        if self.connect_user and at.scheme != "https" and not is_loopback(at.hostname or ""):
            raise ValueError(f"connect_password would be sent to {at.hostname} as it is: connect_url must be https://…")
        return self

    @model_validator(mode="after")
    def _database_of_postgres(self) -> Self:
        if self.is_postgres != bool(self.database):
            raise ValueError('server = "postgres" needs database, and no other one has it')
        return self

    @model_validator(mode="before")
    @classmethod
    def _port_of_postgres(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("server") == "postgres":
            return {"port": POSTGRES_PORT, **given}
        return given

    @model_validator(mode="after")
    def _connector_is_named(self) -> Self:
        named = [name for name in ("topic_prefix", "connect_url") if getattr(self, name)]
        if self.kind == "debezium" and len(named) < 2:
            raise ValueError('kind = "debezium" needs topic_prefix and connect_url')
        if self.kind != "debezium" and named:
            raise ValueError('topic_prefix and connect_url are for kind = "debezium"')
        if self.kind == "debezium" and self.replicas:
            raise ValueError('replicas are not for kind = "debezium": its connector chooses what it reads')
        return self


class WorkloadSourceSettings(Section):
    """A catalog kept in tables of a MariaDB ``database``, and the random history that ``seed`` generates in it."""

    kind: Literal["workload"]
    host: Host = "127.0.0.1"
    port: Port = 3306
    user: str = Field(default="freshet", min_length=1, max_length=128)
    password: SecretStr = Field(default_factory=_password)
    database: str = Field(default="catalog_truth", min_length=1, max_length=64)
    seed: int = Field(default=1, ge=0, le=2**63 - 1)
    tables: int = Field(default=8, ge=1, le=100_000)
    transactions_per_s: float = Field(default=50.0, gt=0, le=1_000_000)


class HiveSourceSettings(EncryptedSettings):
    """Hive Metastores over one database; its notification log is one shard. ``uris``: tried in turn.

    ``catalog``: the Hive catalog that is published (default: the keyspace's name). ``call_timeout_s`` bounds each call.
    ``poll_interval_ms``: between two looks at a log that had nothing new. ``bootstrap_threads`` fetch tables when a
    catalog is published for the first time. ``txn_list_age_s``: how long one list of transactions serves them.
    ``reconcile_every_s``: how often the transactions that seem open are compared with the metastore's.

    ``user``, ``password``: where the metastore asks for them (SASL PLAIN, ``metastore.authentication``). They are sent
    as they are, so beyond this machine ``ssl_ca`` is needed, or ``plain``, where the network encrypts.
    """

    kind: Literal["hive"]
    catalog: str = Field(default="", max_length=128)
    call_timeout_s: float = Field(default=30.0, ge=0.1, le=3_600)
    poll_interval_ms: int = Field(default=100, ge=1, le=60_000)
    bootstrap_threads: int = Field(default=8, ge=1, le=64)
    txn_list_age_s: float = Field(default=60.0, ge=0, le=3_600)
    reconcile_every_s: float = Field(default=30.0, ge=0.1, le=86_400)
    uris: Annotated[list[Uri], BeforeValidator(split_list), Field(min_length=1, max_length=64)] = Field(
        default=["thrift://127.0.0.1:9083"]
    )
    user: Annotated[str, Field(max_length=128, pattern=r"^[^\x00]*$")] = ""
    password: SecretStr = SecretStr("")
    plain: bool = False

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each of ``uris``."""
        parts = [uri.removeprefix("thrift://").rpartition(":") for uri in self.uris]
        return tuple((host, int(port)) for host, _, port in parts)

    @model_validator(mode="after")
    def _no_password_is_shown_to_others(self) -> Self:
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("user and password are needed both, or none")
        shown = [host for host, _ in self.addresses if not is_loopback(host)]
        if self.user and shown and not self.ssl_ca and not self.plain:
            hint = "set ssl_ca, or plain = true if the network encrypts"
            raise ValueError(f"the password would be sent to {shown[0]} as it is: {hint}")
        return self


SourceSettings = Annotated[
    MariaDBSourceSettings | WorkloadSourceSettings | HiveSourceSettings, Field(discriminator="kind")
]
