"""How to reach a MariaDB server, and what goes wrong on the way, said in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import ER

from tokens.errors import FreshetError

Connection: TypeAlias = pymysql.connections.Connection

_ENCODERS = dict(pymysql.converters.encoders)
"""PyMySQL's encoders without its decoders: values come as the server's bytes, which `selected_rows` reads exactly."""

LOST_CONNECTION = frozenset({2002, 2003, 2006, 2013, 2014, 2055, 1053, 1077, 1079, 1158, 1159, 1160, 1161, 1927, 4150})
"""Client and server codes that mean: the connection is gone, another one may work."""

OUT_OF_SOMETHING = frozenset(
    {*range(1, 120), 1021, 1023, 1026, 1030, 1037, 1038, 1040, 1041, 1135, 1203, 1205, 1206, 1213, 1226, 3024}
)
"""Server codes that mean: not now. Its disk, its memory, its connections or threads are used up, or a lock took too
long; below 120 are those of its file layer and of the operating system. A login that fails for one of these is no
wrong login, and a source that ended at one would leave the cache behind for what heals by itself."""


class MariaDBError(FreshetError):
    """A MariaDB server refused or failed; code ``mariadb_error``."""

    code = "mariadb_error"


class MariaDBUnreachable(MariaDBError):
    """Out of reach, gone away, or out of something just now; trying again may help. Code ``mariadb_unreachable``."""

    code = "mariadb_unreachable"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Where a server is and who asks. ``password`` is never printed; times are seconds."""

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "root"
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    ssl_ca: str | None = None
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
        return found


def connect(settings: ConnectionSettings, *, autocommit: bool = True) -> Connection:
    """A session in UTC whose values arrive as raw bytes (numbers and text alike). Raises `MariaDBUnreachable`.

    ``sql_mode`` is cleared so that PAD_CHAR_TO_FULL_LENGTH and friends of the server's default can't change an image;
    with READ COMMITTED as default a consistent snapshot would be none, without an error.
    """
    with translated(settings):
        connection = pymysql.connect(
            **settings.pymysql_arguments(),
            autocommit=autocommit,
            use_unicode=False,
            conv=_ENCODERS,
            init_command="SET time_zone='+00:00', sql_mode='', character_set_results=utf8mb4",
        )
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return connection


@contextlib.contextmanager
def translated(settings: ConnectionSettings) -> Iterator[None]:
    """Turns PyMySQL's and the socket's errors into `MariaDBError`, one line each."""
    try:
        yield
    except pymysql.err.Error as error:
        raise translate(error, settings) from error
    except (OSError, EOFError) as error:
        raise MariaDBUnreachable(
            f"MariaDB at {settings.name} cannot be reached: {error}", hint="is the server up, and the address right?"
        ) from error


def translate(error: pymysql.err.Error, settings: ConnectionSettings) -> MariaDBError:
    """The one-line error for what PyMySQL raised."""
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
            hint="one source for each shard, and a server_id of its own: [keyspaces.NAME.source] server_id",
            code="server_id_in_use",
        )
    if code in LOST_CONNECTION or isinstance(error, pymysql.err.InterfaceError):
        return MariaDBUnreachable(
            f"MariaDB at {settings.name} cannot be reached: {text}", hint="is the server up, and the address right?"
        )
    if code in OUT_OF_SOMETHING:
        return MariaDBUnreachable(
            f"MariaDB at {settings.name} cannot answer now: {text} ({code})",
            hint="the server lacks something (connections, disk, memory), or a lock took too long: see its error log",
        )
    return MariaDBError(f"MariaDB at {settings.name}: {text} ({code})")


GRANTS_HINT = "GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO the user (what a source needs)"


def fetch_all(connection: Connection, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query; text columns decoded from UTF-8, numbers left as their digits' text, NULL as None."""
    with connection.cursor() as cursor:
        cursor.execute(sql, tuple(arguments) or None)
        return [tuple(map(_text, row)) for row in cursor.fetchall()]


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
