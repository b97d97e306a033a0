"""What a connector must be like to be a source: nothing that it hides or bends can be seen in its messages.

Its configuration is asked from Kafka Connect, when a source starts and while it runs.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from ssl import SSLContext, SSLError
from typing import Any, Final, TypeAlias, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec
import xxhash

from stream.access.certificates import CertificateError, Certificates
from stream.access.direct import direct
from stream.access.listening import is_loopback
from stream.sources.debezium.errors import ConnectUnreachable, DebeziumError
from stream.sources.debezium.messages import POSTGRES
from stream.sources.debezium.values import UNAVAILABLE

Answer = TypeVar("Answer")

TIMEOUT_S: Final = 10.0
CLASSES: Final = {
    "MySQL": "io.debezium.connector.mysql.MySqlConnector",
    "MariaDB": "io.debezium.connector.mariadb.MariaDbConnector",
    "PostgreSQL": "io.debezium.connector.postgresql.PostgresConnector",
}
CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"
_CHOICES: Final = ("table.include.list", "table.exclude.list")
_Wanted: TypeAlias = tuple[tuple[str, tuple[str, ...], str, str], ...]
_WANTED: Final[_Wanted] = (
    ("exactly.once.support", ("required",), "requested", "does not say that its messages become visible in order"),
    ("column.propagate.source.type", (".*",), "", "does not say the types of columns"),
    ("skipped.operations", ("none",), "t", "leaves out changes (TRUNCATE by default)"),
    ("value.converter", (CONVERTER,), "the worker's own", "is not the one whose messages are read"),
    ("value.converter.schemas.enable", ("true",), "true", "does not say the types of columns"),
    ("value.converter.replace.null.with.default", ("false",), "true", "writes a column's default in place of NULL"),
    ("event.converting.failure.handling.mode", ("fail",), "warn", "writes NULL for what it can't convert"),
    ("errors.tolerance", ("none",), "none", "leaves out changes"),
    ("event.processing.failure.handling.mode", ("fail",), "fail", "leaves out changes"),
    ("inconsistent.schema.handling.mode", ("fail",), "fail", "leaves out changes"),
    ("binary.handling.mode", ("bytes",), "bytes", "writes binary values in a form that is not read"),
    ("decimal.handling.mode", ("precise", "string"), "precise", "rounds decimals"),
    ("time.precision.mode", ("adaptive_time_microseconds",), "adaptive_time_microseconds", "loses fractions of times"),
    ("topic.delimiter", (".",), ".", "names topics in another way"),
    ("topic.transaction", ("transaction",), "transaction", "names topics in another way"),
    ("tasks.max", ("1",), "1", "lets several tasks write side by side"),
)
_WANTED_OF_BINLOGS: Final[_Wanted] = (
    ("enable.time.adjuster", ("false",), "true", "changes years below 100"),
    ("include.schema.changes", ("true",), "true", "does not tell DDL"),
    ("schema.history.internal.skip.unparseable.ddl", ("false",), "false", "leaves out DDL"),
    ("schema.history.internal.store.only.captured.tables.ddl", ("false",), "false", "leaves out DDL"),
    ("gtid.source.filter.dml.events", ("false",), "false", "leaves out changes"),
)
_FLUSH_MODE: Final = "lsn.flush.mode"
_IDLE_HINT: Final = ", as docs/operating/postgres.md says: one that was idle can't be started again by that alone"
_WANTED_OF_POSTGRES: Final[_Wanted] = (
    ("plugin.name", ("pgoutput",), "decoderbufs", "reads the log by a plugin that is not known here"),
    (_FLUSH_MODE, ("connector",), "connector", "does not keep its slot at its own offset"),
    ("flush.lsn.source", ("true",), "true", "does not keep its slot at its own offset"),
    (
        "offset.mismatch.strategy",
        ("no_validation", "trust_offset"),
        "no_validation",
        "goes on at a slot that was made anew",
    ),
    ("unavailable.value.placeholder", (UNAVAILABLE,), UNAVAILABLE, "writes another word for what it does not know"),
    ("publish.via.partition.root", ("false",), "false", "names partitions by their root"),
    ("slot.drop.on.stop", ("false",), "false", "loses what is committed while it is away"),
)
"""Setting, the values that it may have, its default, and what any other one does."""
HEARTBEAT_QUERY: Final = "SELECT pg_logical_emit_message(true, 'freshet', '')"
"""Commits something that the connector reads, and changes no row."""
_TELLS_ENDS: Final = "provide.transaction.metadata"
NO_ENDS: Final = "the connector does not say which events are one transaction, so rows are void once they change"
ENDS_HINT: Final = f"set {_TELLS_ENDS} = true in its configuration: then rows are cached as they change"
_UNWANTED: Final = (
    "database.include.list",
    "database.exclude.list",
    "transforms",
    "predicates",
    "converters",
    "post.processors",
    "message.key.columns",
    "gtid.source.includes",
    "gtid.source.excludes",
    "topic.naming.strategy",
    "column.include.list",
    "column.exclude.list",
    "column.mask.",
    "column.truncate.",
    "schema.include.list",
    "schema.exclude.list",
    "slot.stream.params",
)
"""Settings, or beginnings of some, that change what messages say.

With a list of databases a connector does not tell when a table is renamed into another one; with one of tables it does.
"""


_DENIED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(frozen=True, slots=True)
class KafkaConnect:
    """Where Kafka Connect's REST interface is, and what it is shown."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    certificates: Certificates = field(default_factory=Certificates)


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector that can be a source. ``captures``: which tables it tells of.

    ``tells_ends``: it says where transactions end. ``user``: its login at the server. ``publication``, ``slot``: of
    PostgreSQL, what it reads by.
    """

    name: str
    choices: tuple[str, ...]
    tells_ends: bool = True
    user: str = ""
    publication: str = ""
    slot: str = ""

    def captures(self, table: str) -> bool:
        """Whether the connector tells changes of ``db.table``."""
        included, excluded = self.choices
        return (not included or _matches(included, table)) and not _matches(excluded, table)

    @property
    def fingerprint(self) -> int:
        """A number for its choice of tables, and for what it tells of them."""
        words = [self.name, *self.choices, *filter(None, (self.publication, self.slot))]
        words += () if self.tells_ends else ("no ends",)
        return int(xxhash.xxh3_64_intdigest("\0".join(words).encode()) >> 1)


def _matches(patterns: str, name: str) -> bool:
    """As Debezium does it: regular expressions between commas, each for the whole name, in any case of letters."""
    return any(re.fullmatch(pattern.strip(), name, re.IGNORECASE) for pattern in patterns.split(",") if pattern.strip())


def find_connector(connect: KafkaConnect, prefix: str, server: str, timeout_s: float = TIMEOUT_S) -> Connector:
    """The connector with ``topic.prefix`` ``prefix``. ``server``: MySQL, MariaDB or PostgreSQL.

    Raises `ConnectUnreachable`, also if there is none (yet: a worker that starts has none), and `DebeziumError`: there
    are several, or it can't be a source.
    """
    url, every = connect.url, _configurations(connect, timeout_s)
    found = {name: config for name, config in every.items() if config.get("topic.prefix", "") == prefix}
    hint = "check topic_prefix and connect_url: exactly one connector must write these topics"
    if not found:
        raise ConnectUnreachable(
            f"{url} has no connector with topic.prefix = {prefix}", hint=hint, code="debezium_no_connector"
        )
    if len(found) > 1:
        raise DebeziumError(f"{url} has {len(found)} connectors with topic.prefix = {prefix}", hint=hint)
    [(name, config)] = found.items()
    return checked(name, config, server)


def checked(name: str, config: Mapping[str, str], server: str) -> Connector:
    """The connector of a configuration, if it can be a source. Raises `DebeziumError`."""
    kind = config.get("connector.class", "")
    if kind not in (CLASSES[server], CLASSES[server].rpartition(".")[2]):
        raise DebeziumError(
            f"connector {name} is a {kind or 'connector without a class'}, not Debezium's for {server}",
            hint="name the right server: mysql, mariadb or postgres; connectors for other databases are not read",
        )
    own = _WANTED_OF_POSTGRES if server == POSTGRES else _WANTED_OF_BINLOGS
    for setting, allowed, default, effect in (*_WANTED, *own):
        value = config.get(setting, default).strip()
        if value.lower() not in map(str.lower, allowed):
            raise DebeziumError(
                f"connector {name} has {setting} = {value or repr('')}, which {effect}",
                hint=f"set {setting} = {allowed[0]} in the connector's configuration"
                + (_IDLE_HINT if setting == _FLUSH_MODE else ""),
                code="debezium_bad_connector",
            )
    for setting, value in config.items():
        if value.strip() and any(
            setting == each or (each[-1] == "." and setting.startswith(each)) for each in _UNWANTED
        ):
            raise DebeziumError(
                f"connector {name} has {setting} = {value}, which changes what its messages say",
                hint=f"take {setting} out of the connector's configuration"
                + (" (and use table.include.list)" if setting.startswith("database.") else ""),
                code="debezium_bad_connector",
            )
    choices = tuple(config.get(choice, "") for choice in _CHOICES)
    try:
        for pattern in ",".join(choices).split(","):
            re.compile(pattern)
    except re.error as error:
        raise DebeziumError(
            f"connector {name} chooses tables by {pattern!r}, which is not understood: {error}"
        ) from None
    tells_ends = config.get(_TELLS_ENDS, "false").strip().lower() == "true"
    if (server == POSTGRES or not tells_ends) and not config.get("heartbeat.interval.ms", "0").strip().lstrip("0"):
        raise DebeziumError(
            f"connector {name} has no heartbeat.interval.ms, and so tells nothing while its tables are idle",
            hint="set heartbeat.interval.ms = 1000 in the connector's configuration",
            code="debezium_bad_connector",
        )
    if server != POSTGRES:
        return Connector(name, choices, tells_ends, config.get("database.user", ""))
    if not config.get("heartbeat.action.query", "").strip():
        raise DebeziumError(
            f"connector {name} has no heartbeat.action.query, and so its slot stays behind while its tables are idle",
            hint=f"set heartbeat.action.query = {HEARTBEAT_QUERY} in the connector's configuration",
            code="debezium_bad_connector",
        )
    publication, slot = config.get("publication.name", "dbz_publication"), config.get("slot.name", "debezium")
    return Connector(name, choices, tells_ends, publication=publication, slot=slot)


def _configurations(connect: KafkaConnect, timeout_s: float) -> dict[str, dict[str, str]]:
    """Connector → its configuration."""
    found = asked(connect, "connectors?expand=info", dict[str, dict[str, Any]], timeout_s)
    try:
        return {name: dict(each["info"]["config"]) for name, each in found.items()}
    except (KeyError, TypeError, ValueError):
        raise _no_connect(connect.url) from None


def _no_connect(url: str) -> DebeziumError:
    return DebeziumError(f"{url} is not Kafka Connect's REST interface", hint="check connect_url")


def asked(connect: KafkaConnect, path: str, kind: type[Answer], timeout_s: float = TIMEOUT_S) -> Answer:
    """What Kafka Connect answers. Raises `ConnectUnreachable`, `DebeziumError`."""
    url, hint = connect.url, "check connect_url, and its worker"
    request = Request(f"{url.rstrip('/')}/{path}")
    if connect.user:  # told to nobody else, if the answer names another address
        said = b64encode(f"{connect.user}:{connect.password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {said}")
    try:
        with _opened(request, timeout_s, connect.certificates.client()) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except CertificateError as error:
        raise DebeziumError(str(error), hint=error.hint, code=error.code) from error
    except HTTPError as error:
        reason = f"it answers {error.code}"
        if error.code in _DENIED:
            hint = "set connect_user and connect_password (or connect_password_file) in the keyspace's source"
    except (OSError, HTTPException) as error:
        reason = str(error)
        if isinstance(getattr(error, "reason", None), SSLError):
            hint = "check the certificates in connect_tls of the keyspace's source"
    except ValueError:
        raise _no_connect(url) from None
    raise ConnectUnreachable(f"Kafka Connect at {url} cannot be asked: {reason}", hint=hint)


def _opened(request: Request, timeout_s: float, context: SSLContext | None) -> Any:
    """Beyond this machine a proxy may be the only way. Raises as ``urlopen``."""
    if is_loopback(urlsplit(request.full_url).hostname or ""):
        return direct(context).open(request, timeout=timeout_s)
    return urlopen(request, timeout=timeout_s, context=context)
