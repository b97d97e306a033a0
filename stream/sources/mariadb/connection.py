"""Connections to a MariaDB server, and its errors as `MariaDBError`s of one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pymysql
from pymysql.constants import ER

from tokens.errors import FreshetError

Connection: TypeAlias = pymysql.connections.Connection

_ENCODERS = dict(pymysql.converters.encoders)
"""PyMySQL's encoders without its decoders: values arrive as bytes, which `selected_rows` reads exactly."""

SORT_BYTES: Final = 1 << 16
"""How many bytes of a value's weights ORDER BY compares: longer ones may come in another order than they compare."""
SESSION_VARIABLES = ", ".join(
    f"{name}={value}"
    for name, value in {
        "time_zone": "'+00:00'",  # the text of TIMESTAMP
        "sql_mode": "''",  # PAD_CHAR_TO_FULL_LENGTH pads CHAR, ANSI_QUOTES changes SHOW CREATE TABLE
        "max_sort_length": str(SORT_BYTES),  # how many bytes of a value ORDER BY compares
        "sort_buffer_size": str(64 * SORT_BYTES),  # it must hold some rows
        "sql_select_limit": "18446744073709551615",  # how many rows a SELECT returns
        "sql_big_selects": "1",  # with max_join_size: whether a SELECT is refused
        "max_statement_time": "0",  # a statement's time; reads by key have one of their own
        "lc_time_names": "'en_US'",  # the names that DATE_FORMAT gives in a virtual column
        "div_precision_increment": "4",  # the digits of a quotient in a virtual column
        "default_week_format": "0",  # WEEK in a virtual column
        "system_versioning_asof": "DEFAULT",  # DEFAULT is: the present rows, whatever the global value is
        "sql_quote_show_create": "1",  # the text of SHOW CREATE TABLE
        "query_cache_type": "0",  # a result that was kept before the read began
        "completion_type": "0",  # whether a ROLLBACK begins the next transaction or ends the session
    }.items()
)
"""What the answers of a session depend on, and why."""

LOST_CONNECTION = frozenset({2002, 2003, 2006, 2013, 2014, 2055, 1053, 1077, 1079, 1158, 1159, 1160, 1161, 1927, 4150})
"""Client and server error numbers that mean: the connection is lost, a new one may work."""

RESOURCE_ERRORS = frozenset(
    {*range(1, 120), 1021, 1023, 1026, 1030, 1037, 1038, 1040, 1041, 1135, 1203, 1205, 1206, 1213, 1226, 3024}
)
"""Server error numbers for temporary lack of a resource: disk, memory, connections, threads, or a lock in time.

Numbers below 120 are those of the server's file layer and of the operating system. A source must retry after these
errors, also at login: they pass by themselves."""


class MariaDBError(FreshetError):
    """A MariaDB server refused or failed a request; code ``mariadb_error``."""

    code = "mariadb_error"


class MariaDBUnreachable(MariaDBError):
    """Unreachable, or short of a resource: a retry may help. Code ``mariadb_unreachable``."""

    code = "mariadb_unreachable"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Address and login of a server. ``password`` is never printed.

    ``ssl_ca``: a file of certificates; the connection is encrypted, and the server's certificate must be signed by one
    of them. ``ssl_verify_host``: it must be for ``host`` too.
    """

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "root"
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    ssl_ca: str | None = None
    ssl_verify_host: bool = True
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0

    @property
    def name(self) -> str:
        """``user@host:port``, for messages."""
        return f"{self.user}@{self.unix_socket or f'{self.host}:{self.port}'}"

    def pymysql_arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``pymysql.connect``."""
        found: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "connect_timeout": self.connect_timeout_s,
            "read_timeout": self.read_timeout_s,
            "write_timeout": self.read_timeout_s,
        }
        if self.unix_socket:
            found["unix_socket"] = self.unix_socket
        if self.ssl_ca:
            found["ssl_ca"] = self.ssl_ca
            found["ssl_verify_cert"] = True
            found["ssl_verify_identity"] = self.ssl_verify_host
        return found


def connect(settings: ConnectionSettings, *, autocommit: bool = True) -> Connection:
    """Open a session in UTC whose values arrive as bytes, numbers too. Raises `MariaDBError`.

    `SESSION_VARIABLES` are set, because each of them has a global default that may differ. The isolation level is set
    because under READ COMMITTED two statements of a transaction read two different states.
    """
    with translated(settings):
        connection = pymysql.connect(
            **settings.pymysql_arguments(),
            autocommit=autocommit,
            use_unicode=False,
            conv=_ENCODERS,
            init_command=f"SET NAMES utf8mb4 COLLATE utf8mb4_general_ci, {SESSION_VARIABLES},"
            f" lock_wait_timeout={max(1, round(settings.read_timeout_s))}",
        )
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return connection


@contextlib.contextmanager
def translated(settings: ConnectionSettings) -> Iterator[None]:
    """Turn errors of PyMySQL and the socket into `MariaDBError`s of one line."""
    try:
        yield
    except pymysql.err.Error as error:
        raise translate(error, settings) from error
    except RuntimeError as error:  # PyMySQL's for a login that needs a package which is not installed
        raise MariaDBError(
            f"MariaDB at {settings.name} asks for a login that is not supported here: {error}",
            hint="give the user another authentication plugin, or connect with TLS",
            code="mariadb_access_denied",
        ) from error
    except (OSError, EOFError) as error:
        raise MariaDBUnreachable(
            f"MariaDB at {settings.name} cannot be reached: {error}",
            hint="check that the server is running and that the address is right",
        ) from error


def translate(error: pymysql.err.Error, settings: ConnectionSettings) -> MariaDBError:
    """The `MariaDBError` of one line for an error of PyMySQL."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = " ".join(str(error.args[1] if len(error.args) > 1 else error).split())
    if code in (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, 1698):
        return MariaDBError(
            f"MariaDB at {settings.name} refused the login: {text}",
            hint="check user and password",
            code="mariadb_access_denied",
        )
    if code in (1227, 1142, 1143, 1044):
        return MariaDBError(
            f"{settings.name} lacks a privilege: {text}", hint=GRANTS_HINT, code="mariadb_access_denied"
        )
    if "same server_uuid/server_id" in text:
        return MariaDBError(
            f"MariaDB at {settings.name} gave the binlog to another replica of the same server_id",
            hint="run one source for each shard, each with its own server_id: [keyspaces.NAME.source] server_id",
            code="server_id_in_use",
        )
    if code in LOST_CONNECTION or isinstance(error, pymysql.err.InterfaceError):
        return MariaDBUnreachable(
            f"MariaDB at {settings.name} cannot be reached: {text}",
            hint="check that the server is running and that the address is right",
        )
    if code in RESOURCE_ERRORS:
        return MariaDBUnreachable(
            f"MariaDB at {settings.name} cannot answer now: {text} ({code})",
            hint="the server is short of connections, disk or memory, or a lock took too long: see its error log",
        )
    return MariaDBError(f"MariaDB at {settings.name}: {text} ({code})")


GRANTS_HINT = "a source needs: GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO its user"


def fetch_all(connection: Connection, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query. Texts are decoded from UTF-8, numbers are left as text, NULL is None."""
    with connection.cursor() as cursor:
        cursor.execute(sql, tuple(arguments) or None)
        return [tuple(map(_text, row)) for row in cursor.fetchall()]


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
