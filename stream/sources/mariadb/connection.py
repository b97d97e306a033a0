"""Connections to a MariaDB or MySQL server, and its errors as `MariaDBError`s of one line."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, TypeAlias

import pymysql
from pymysql.constants import CR, ER

from stream.access.certificates import CertificateError, Certificates
from stream.access.listening import is_loopback
from tokens.errors import FreshetError

Connection: TypeAlias = pymysql.connections.Connection

_ENCODERS = dict(pymysql.converters.encoders)
"""PyMySQL's encoders without its decoders: values arrive as bytes, which `selected_rows` reads exactly."""

SORT_BYTES: Final = 1 << 16
"""How many bytes of a value's weights ORDER BY compares: longer ones may come in another order than they compare."""
_OF_BOTH: Final = {
    "time_zone": "'+00:00'",  # the text of TIMESTAMP
    "sql_mode": "''",  # PAD_CHAR_TO_FULL_LENGTH pads CHAR, ANSI_QUOTES changes SHOW CREATE TABLE
    "max_sort_length": str(SORT_BYTES),  # how many bytes of a value ORDER BY compares
    "sort_buffer_size": str(64 * SORT_BYTES),  # it must hold some rows
    "sql_select_limit": "18446744073709551615",  # how many rows a SELECT returns
    "sql_big_selects": "1",  # with max_join_size: whether a SELECT is refused
}
_OF_BOTH_TOO: Final = {
    "lc_time_names": "'en_US'",  # the names that DATE_FORMAT gives in a virtual column
    "div_precision_increment": "4",  # the digits of a quotient in a virtual column
    "default_week_format": "0",  # WEEK in a virtual column
}
_OF_MARIADB: Final = {
    **_OF_BOTH,
    "max_statement_time": "0",  # a statement's time; reads by key have one of their own
    **_OF_BOTH_TOO,
    "system_versioning_asof": "DEFAULT",  # DEFAULT is: the present rows, whatever the global value is
    "sql_quote_show_create": "1",  # the text of SHOW CREATE TABLE
    "query_cache_type": "0",  # a result that was kept before the read began
    "completion_type": "0",  # whether a ROLLBACK begins the next transaction or ends the session
}
_OF_MYSQL: Final = {
    **_OF_BOTH,
    "max_execution_time": "0",  # a SELECT's time; reads by key have one of their own
    **_OF_BOTH_TOO,
    "sql_quote_show_create": "1",
    "completion_type": "0",
    "information_schema_stats_expiry": "0",  # how old TABLE_ROWS may be
    "show_gipk_in_create_table_and_information_schema": "1",  # a generated primary key is a column as any other
    "use_secondary_engine": "OFF",  # which has rows later
}


def _assignments(variables: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())


SESSION_VARIABLES = _assignments(_OF_MARIADB)
"""What the answers of a session depend on, and why."""
_MYSQL_VARIABLES = _assignments(_OF_MYSQL)
_OTHER: Final[dict[str, str]] = {"MariaDB": "mysql", "MySQL": "mariadb"}

LOST_CONNECTION = frozenset({2002, 2003, 2006, 2013, 2014, 2055, 1053, 1077, 1079, 1158, 1159, 1160, 1161, 1927, 4150})
"""Client and server error numbers that mean: the connection is lost, a new one may work."""

RESOURCE_ERRORS = frozenset(
    {*range(1, 120), 1021, 1023, 1026, 1030, 1037, 1038, 1040, 1041, 1135, 1203, 1205, 1206, 1213, 1226, 3024}
    | {1317, 3032, 3168}
)
"""Server error numbers for temporary lack of a resource: disk, memory, connections, threads, or a lock in time; and for
what somebody does to a server for a while: KILL QUERY, ``offline_mode``, a start or stop.

Numbers below 120 are those of the server's file layer and of the operating system. A source must retry after these
errors, also at login: they pass by themselves."""


class MariaDBError(FreshetError):
    """A server, MariaDB or MySQL, refused or failed a request; code ``mariadb_error``."""

    code = "mariadb_error"


class MariaDBUnreachable(MariaDBError):
    """Unreachable, or short of a resource: a retry may help. Code ``mariadb_unreachable``."""

    code = "mariadb_unreachable"


class ServerBehind(MariaDBUnreachable):
    """The server has not yet replicated what other shards have published. Code ``server_behind``."""

    code = "server_behind"


class SourceHistoryLost(MariaDBError):
    """Published transactions are not in the server's history: it was replaced. Code ``history_lost``."""

    code = "history_lost"


class NotResumable(MariaDBError):
    """The server can't send what follows a position. Codes ``binlog_purged``, ``unknown_domain``."""

    code = "binlog_purged"


class ServerSettingsError(MariaDBError):
    """The server's settings hide changes or break their order. Code ``bad_server_settings``; the hint is the fix."""

    code = "bad_server_settings"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Address and login of a server. ``password`` is never printed. ``product``: what the server must be.

    ``ssl_ca``: a file of certificates; the connection is encrypted, and the server's certificate must be signed by one
    of them. ``ssl_verify_host``: it must be for ``host`` too. ``ssl_cert``, ``ssl_key``: the client's own, in files.
    ``database``: of PostgreSQL, where a session has one.
    """

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "root"
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    ssl_ca: str | None = None
    ssl_verify_host: bool = True
    ssl_cert: str | None = None
    ssl_key: str | None = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    product: Literal["MariaDB", "MySQL", "PostgreSQL"] = "MariaDB"
    database: str = ""

    @property
    def name(self) -> str:
        """``user@host:port``, for messages."""
        return f"{self.user}@{self.unix_socket or f'{self.host}:{self.port}'}"

    @property
    def is_server_known(self) -> bool:
        """Whether nobody else can answer in the server's place: it is verified, or is on this machine."""
        return bool(self.ssl_ca or self.unix_socket) or self.host.startswith("/") or is_loopback(self.host)

    def pymysql_arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``pymysql.connect``."""
        found: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password.encode(),  # of a text PyMySQL sends Latin-1, whatever the charset
            "charset": "utf8mb4",
            "connect_timeout": self.connect_timeout_s,
            "read_timeout": self.read_timeout_s,
            "write_timeout": self.read_timeout_s,
        }
        if self.unix_socket:
            found["unix_socket"] = self.unix_socket
        if not self.is_server_known:
            found["auth_plugin_map"] = dict.fromkeys(("mysql_clear_password", "dialog"), _Withheld)
        if self.ssl_ca:
            found["ssl_ca"] = self.ssl_ca
            found["ssl_verify_cert"] = True
            found["ssl_verify_identity"] = self.ssl_verify_host
            if self.ssl_cert:
                found["ssl_cert"] = self.ssl_cert
                found["ssl_key"] = self.ssl_key or self.ssl_cert
        return found


class _Withheld:
    """In place of PyMySQL's login that shows the password as it is, to whoever asks for it."""

    def __init__(self, _: Connection) -> None:
        """PyMySQL makes one when a server asks for that login."""

    def authenticate(self, _: Any) -> NoReturn:
        """Raises PyMySQL's error."""
        raise pymysql.err.OperationalError(CR.CR_AUTH_PLUGIN_ERR, "it wants the password as it is")


def connect(settings: ConnectionSettings, *, autocommit: bool = True) -> Connection:
    """Open a session in UTC whose values arrive as bytes, numbers too. Raises `MariaDBError`.

    `SESSION_VARIABLES` are set, because each of them has a global default that may differ. The isolation level is set
    because under READ COMMITTED two statements of a transaction read two different states.
    """
    variables = _MYSQL_VARIABLES if settings.product == "MySQL" else SESSION_VARIABLES
    with translated(settings):
        connection = pymysql.connect(
            **settings.pymysql_arguments(),
            autocommit=autocommit,
            use_unicode=False,
            conv=_ENCODERS,
            init_command=f"SET NAMES utf8mb4 COLLATE utf8mb4_general_ci, {variables},"
            f" lock_wait_timeout={max(1, round(settings.read_timeout_s))}",
        )
        if is_mysql(connection) is not (settings.product == "MySQL"):
            connection._force_close()
            raise _other_product(settings, f"it says that it is {connection.get_server_info()}")
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return connection


def is_mysql(connection: Connection) -> bool:
    """Whether the server is MySQL, and not MariaDB, by what it said of itself at login."""
    return "mariadb" not in connection.get_server_info().lower()


@contextlib.contextmanager
def translated(settings: ConnectionSettings) -> Iterator[None]:
    """Turn errors of PyMySQL and the socket into `MariaDBError`s of one line."""
    try:
        yield
    except pymysql.err.Error as error:
        raise translate(error, settings) from error
    except RuntimeError as error:  # PyMySQL's for a login that needs a package which is not installed
        raise MariaDBError(
            f"{settings.product} at {settings.name} asks for a login that is not supported here: {error}",
            hint="give the user another authentication plugin, or connect with TLS",
            code="mariadb_access_denied",
        ) from error
    except (OSError, EOFError) as error:
        raise bad_certificate(settings) or MariaDBUnreachable(
            f"{settings.product} at {settings.name} cannot be reached: {error}",
            hint="check that the server is running and that the address is right",
        ) from error


def bad_certificate(settings: ConnectionSettings) -> MariaDBUnreachable | None:
    """The error of a file of a certificate that can't be used; None if all can. Drivers don't say that it is a file.

    Files may be replaced at any time, so a retry may help. Code ``bad_certificate``.
    """
    if not settings.ssl_ca:
        return None
    for files in Certificates(ca=settings.ssl_ca), Certificates(settings.ssl_cert or "", settings.ssl_key or ""):
        try:
            files.load(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
        except CertificateError as error:
            where = f"{settings.product} at {settings.name}"
            return MariaDBUnreachable(f"{where} is not asked: {error}", hint=error.hint, code=error.code)
    return None


def translate(error: pymysql.err.Error, settings: ConnectionSettings) -> MariaDBError:
    """The `MariaDBError` of one line for an error of PyMySQL."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = " ".join(str(error.args[1] if len(error.args) > 1 else error).split())
    if code in (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, 1698):
        return MariaDBError(
            f"{settings.product} at {settings.name} refused the login: {text}",
            hint="check user and password",
            code="mariadb_access_denied",
        )
    if code in (1227, 1142, 1143, 1044):
        return MariaDBError(
            f"{settings.name} lacks a privilege: {text}",
            hint=MYSQL_GRANTS_HINT if settings.product == "MySQL" else GRANTS_HINT,
            code="mariadb_access_denied",
        )
    if code == CR.CR_AUTH_PLUGIN_ERR:
        return MariaDBError(
            f"{settings.product} at {settings.name} is not given the password: {text}",
            hint=VERIFY_HINT,
            code="mariadb_access_denied",
        )
    if "same server_uuid/server_id" in text:
        return MariaDBError(
            f"{settings.product} at {settings.name} gave the binlog to another replica of the same server_id",
            hint="run one source for each shard, each with its own server_id: [keyspaces.NAME.source] server_id",
            code="server_id_in_use",
        )
    if "missing the GTID" in text:  # MariaDB's: its log has what follows, by the numbers, and another server's there
        return SourceHistoryLost(
            f"what was published is not in the log of {settings.name}: {text}",
            hint="the server was restored, or another one took over without this transaction: a new epoch starts",
        )
    if code in LOST_CONNECTION or isinstance(error, pymysql.err.InterfaceError):
        return MariaDBUnreachable(
            f"{settings.product} at {settings.name} cannot be reached: {text}",
            hint="check that the server is running and that the address is right",
        )
    if "could not find next log" in text:  # MySQL's, after its logs were reset under a connection that reads them
        return MariaDBUnreachable(f"{settings.product} at {settings.name} has lost the log that was read: {text}")
    if code in RESOURCE_ERRORS:
        return MariaDBUnreachable(
            f"{settings.product} at {settings.name} cannot answer now: {text} ({code})",
            hint="the server is short of connections, disk or memory, a lock took too long, or somebody keeps it from "
            "answering (KILL QUERY, offline_mode): see its error log",
        )
    if code == ER.UNKNOWN_SYSTEM_VARIABLE:
        return _other_product(settings, text)
    return MariaDBError(f"{settings.product} at {settings.name}: {text} ({code})")


def _other_product(settings: ConnectionSettings, what: str) -> ServerSettingsError:
    return ServerSettingsError(
        f"the server at {settings.name} is no {settings.product} that is supported: {what}",
        hint=f'is it the other kind? then: [keyspaces.NAME.source] kind = "{_OTHER[settings.product]}"',
    )


VERIFY_HINT: Final = "without ssl_ca anybody may answer in the server's place: set it, or give the user another login"
GRANTS_HINT = "a source needs: GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO its user"
MYSQL_GRANTS_HINT = "a source needs: GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO its user"


def fetch_all(connection: Connection, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query. Texts are decoded from UTF-8, numbers are left as text, NULL is None."""
    with connection.cursor() as cursor:
        cursor.execute(sql, tuple(arguments) or None)
        return [tuple(map(_text, row)) for row in cursor.fetchall()]


def fetch_whole(connection: Connection, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """As `fetch_all`, from information_schema. Raises PyMySQL's error if a table was locked for too long.

    MariaDB only warns of that, and leaves the table out.
    """
    found = fetch_all(connection, sql, arguments)
    if not is_mysql(connection):
        for _, code, message in fetch_all(connection, "SHOW WARNINGS"):
            if int(code) == ER.LOCK_WAIT_TIMEOUT:
                raise pymysql.err.OperationalError(ER.LOCK_WAIT_TIMEOUT, message)
    return found


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
