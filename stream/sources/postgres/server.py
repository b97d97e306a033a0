"""Where a PostgreSQL server is: its timeline, the end of its log, its clock, and how far a slot has been confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stream.sources.mariadb.connection import MariaDBUnreachable, ServerSettingsError, SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition, PostgresPlace
from stream.sources.postgres.connection import fetch_all

if TYPE_CHECKING:
    from stream.sources.postgres.connection import Connection

_PRIMARY = (
    "SELECT (extract(epoch from clock_timestamp()) * 1000)::bigint, pg_current_wal_insert_lsn() - '0/0',"
    " pg_walfile_name(pg_current_wal_insert_lsn()), pg_current_wal_flush_lsn() - '0/0'"
)


class ServerState(NamedTuple):
    """A primary's clock, and the end of its log a moment later: whatever was committed by ``now_ms`` is before it.

    ``flushed``: an LSN up to which the log is kept if the server crashes; what is beyond may come to be other records.
    """

    now_ms: int
    end: PostgresPlace
    flushed: int


def read_state(connection: Connection) -> ServerState:
    """The state of a primary. Raises `MariaDBUnreachable`: it is a standby, until it is promoted."""
    if fetch_all(connection, "SELECT pg_is_in_recovery()") != [(False,)]:
        raise MariaDBUnreachable(
            "the server is a standby, which has no end of a log of its own",
            hint="host must be the primary that the connector reads",
            code="postgres_standby",
        )
    [(now_ms, end, file, flushed)] = fetch_all(connection, _PRIMARY)
    return ServerState(int(now_ms), PostgresPlace(int(file[:8], 16), int(end)), int(flushed))


VERSION_MIN: Final = 15
"""Its publications tell which rows and columns they have."""


def check_version(connection: Connection) -> None:
    """Raises `ServerSettingsError` if the server is too old to be asked for its tables."""
    [(number,)] = fetch_all(connection, "SELECT current_setting('server_version_num')")
    if (version := int(number) // 10_000) < VERSION_MIN:
        raise ServerSettingsError(
            f"PostgreSQL {VERSION_MIN} or later is needed, and the server is PostgreSQL {version}",
            hint="upgrade the server",
        )


def check_settings(connection: Connection) -> None:
    """Raises `ServerSettingsError` if the server is too old, or its log does not have rows."""
    check_version(connection)
    [(level,)] = fetch_all(connection, "SELECT current_setting('wal_level')")
    if level != "logical":
        raise ServerSettingsError(
            f"wal_level is {level}, so that the log does not tell rows",
            hint="ALTER SYSTEM SET wal_level = logical, and restart the server",
        )
    [(encoding,)] = fetch_all(connection, "SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise ServerSettingsError(
            f"the database has the encoding {encoding}", hint="only databases in UTF8 can be published"
        )


def check_not_lost(state: ServerState, position: str) -> None:
    """Raises `SourceHistoryLost` if ``position`` is not in the server's history."""
    mine = GtidPosition.parse(position)
    if not isinstance(mine, PostgresPlace) or not state.end.covers(mine):
        raise SourceHistoryLost(
            f"the server is at {state.end}, and {position} was published: it was promoted, or restored",
            hint="a new epoch starts",
        )


class Slot(NamedTuple):
    """Up to where a connector has written what is committed, whether it reads, and whether the log is kept for it."""

    confirmed: int
    is_read: bool
    is_reserved: bool


def slot_of(connection: Connection, name: str) -> Slot:
    """A connector's replication slot. Raises `SourceHistoryLost`: it is gone or lost."""
    found = fetch_all(
        connection,
        "SELECT confirmed_flush_lsn - '0/0', wal_status,"
        " EXISTS (SELECT FROM pg_stat_replication r WHERE r.pid = s.active_pid) FROM pg_replication_slots s"
        " WHERE slot_name = %s AND database = current_database()",
        (name,),
    )
    if not found or found[0][0] is None or found[0][1] == "lost":
        raise SourceHistoryLost(
            f"the connector's replication slot {name} is {'lost' if found else 'not there'}: changes may be missing",
            hint="a new epoch starts once the connector has one",
        )
    [(place, status, is_read)] = found
    return Slot(int(place), bool(is_read), status != "unreserved")
