"""Connections to a PostgreSQL server, and its errors as `MariaDBError`s of one line."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from stream.sources.mariadb.connection import (
    VERIFY_HINT,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    ServerSettingsError,
    bad_certificate,
)
from stream.sources.sessions import ANSWER_MARGIN_S

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import PQGen

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_RETRIED: Final = ("08", "25", "40", "53", "55", "57")
"""Classes of SQLSTATE that mean: a new session, or the same request later, may work."""
_REFUSED: Final = ("password authentication failed", "no pg_hba.conf entry", "authentication", "does not exist")
"""What a server says when it refuses a login: the driver passes no SQLSTATE on then."""
T = TypeVar("T")
POLL_S: Final = 0.1
"""Between two looks at the clock while an answer is waited for."""
GRANTS_HINT: Final = "a source needs: GRANT CONNECT ON DATABASE … and GRANT USAGE ON SCHEMA … TO its user"


def connect(settings: ConnectionSettings) -> Connection:
    """Open a session that commits each statement, reads only, and has its times in UTC. Raises `MariaDBError`."""
    try:
        make = _session_class().connect
    except ImportError as error:
        raise ServerSettingsError(
            f"PostgreSQL's driver is not installed: {error}",
            hint="pip install 'freshet-cache[postgres]'",
            code="postgres_no_driver",
        ) from error
    with translated(settings):
        made: Connection = make(**_arguments(settings), autocommit=True)
    wait_for(made, settings.read_timeout_s)
    return made


def wait_for(connection: Connection, seconds: float) -> None:
    """Wait so long for each answer of a server that may hang. One that is well ends its statements itself, before."""
    connection.patience_s = seconds + ANSWER_MARGIN_S  # type: ignore[attr-defined]


@functools.cache
def _session_class() -> Any:
    """Sessions that wait no longer than ``patience_s`` for an answer: the driver would wait for a server that hangs.

    Made when it is needed, since the driver is an extra.
    """
    import psycopg

    class Session(psycopg.Connection[tuple[Any, ...]]):
        patience_s: float | None = None

        def wait(self, gen: PQGen[T], interval: float = POLL_S, timeout: float | None = None) -> T:
            return super().wait(gen, interval, self.patience_s if timeout is None else timeout)

    return Session


@contextlib.contextmanager
def session(settings: ConnectionSettings) -> Iterator[Connection]:
    """A session for a few questions. Raises `MariaDBError`."""
    connection = connect(settings)
    try:
        with translated(settings):
            yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """Answer what is asked meanwhile as of one moment: that of the first question."""
    connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        if not connection.broken:
            connection.execute(b"ROLLBACK")


def _arguments(settings: ConnectionSettings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "user": settings.user,
        "password": settings.password,
        "dbname": settings.database,
        "connect_timeout": round(settings.connect_timeout_s),
        "tcp_user_timeout": round(settings.read_timeout_s * 1000),
        "application_name": "freshet",
        "client_encoding": "UTF8",
        "options": "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c bytea_output=hex"
        " -c extra_float_digits=1 -c default_transaction_read_only=on"
        f" -c statement_timeout={round(settings.read_timeout_s * 1000)}",
    }
    if not settings.is_server_known:
        found["require_auth"] = "!password"  # a server that wants the password as it is does not get it
    if settings.ssl_ca:
        found["sslmode"] = "verify-full" if settings.ssl_verify_host else "verify-ca"
        found["sslrootcert"] = settings.ssl_ca
        if settings.ssl_cert:
            found["sslcert"], found["sslkey"] = settings.ssl_cert, settings.ssl_key or settings.ssl_cert
    return found


@contextlib.contextmanager
def translated(settings: ConnectionSettings) -> Iterator[None]:
    """Turn errors of the driver into `MariaDBError`s of one line."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        of_files = None if error.sqlstate else bad_certificate(settings)
        raise of_files or translate(error, settings) from error


def translate(error: psycopg.Error, settings: ConnectionSettings) -> MariaDBError:
    """The `MariaDBError` of one line for an error of the driver."""
    import psycopg

    text, state = " ".join(str(error).split()), error.sqlstate or ""
    name = f"PostgreSQL at {settings.name}"
    if not state and "cleartext password" in text:
        return MariaDBError(f"{name} is not given the password: {text}", hint=VERIFY_HINT, code=ACCESS_DENIED)
    if state.startswith("28") or state == "42501" or (not state and any(each in text for each in _REFUSED)):
        return MariaDBError(
            f"{name} refused: {text}", hint=f"check user, password and database; {GRANTS_HINT}", code=ACCESS_DENIED
        )
    if state.startswith(_RETRIED) or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return MariaDBUnreachable(
            f"{name} cannot be reached, or cannot answer now: {text}",
            hint="check that the server is running and that the address is right",
            code="postgres_unreachable",
        )
    return MariaDBError(f"{name}: {text}", code="postgres_error")


ACCESS_DENIED: Final = "postgres_access_denied"


def fetch_all(connection: Connection, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return connection.execute(sql.encode(), tuple(arguments) or None).fetchall()
