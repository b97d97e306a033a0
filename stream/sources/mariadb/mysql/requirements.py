"""What a MySQL server must be like to have a source: its binlog complete, with GTIDs, and durable."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

import pymysql

from stream.sources.mariadb.connection import (
    MYSQL_GRANTS_HINT,
    Connection,
    ServerSettingsError,
    fetch_all,
    is_mysql,
)
from stream.sources.mariadb.mysql.position import is_replica

_VERSION_MIN: Final = (8, 0, 30)
"""Since then variables and statements have the names that are used here."""
_WANTED: Final = (
    ("gtid_mode", "ON", "leaves transactions without a place in history"),
    ("enforce_gtid_consistency", "ON", "lets a statement break up into several transactions"),
    ("binlog_format", "ROW", "hides changes"),
    ("binlog_row_image", "FULL", "hides changes"),
    ("binlog_row_metadata", "FULL", "hides changes"),
    ("binlog_row_value_options", "", "logs parts of JSON values"),
    ("binlog_error_action", "ABORT_SERVER", "lets the server go on without a log if it can't write one"),
    ("sync_binlog", "1", "lets a power loss take back transactions whose GTIDs are then used again"),
    ("innodb_flush_log_at_trx_commit", "1", "lets a crash take back rows that are in the binary log"),
)
_OF_ROWS: Final = frozenset({"binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options"})
"""What matters only in the log that is read."""
_OF_SESSIONS: Final = frozenset({"binlog_format", "binlog_row_image", "binlog_row_value_options"})


def checks(connection: Connection, *, is_read: bool = True) -> list[Callable[[], object]]:
    """Each raises one problem, a `ServerSettingsError` with the fix as hint. Raises one for another product.

    ``is_read``: or only its replicas are. The last returns whether the server is a replica, also while it replicates
    nothing.
    """
    names = ("version", "log_bin", "log_replica_updates", *(name for name, *_ in _WANTED))
    wanted = ",".join(["%s"] * len(names))
    found = dict(fetch_all(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({wanted})", names))
    version = tuple(map(int, re.findall(r"\d+", found.get("version", ""))[:3]))
    if not is_mysql(connection) or version < _VERSION_MIN:
        raise ServerSettingsError(
            f"the server is {found.get('version', 'unknown')}", hint="a MySQL server of 8.0.30 or later is needed"
        )
    return [
        partial(_check_log, found),
        *(partial(_check_setting, found, *each) for each in _WANTED if is_read or each[0] not in _OF_ROWS),
        partial(check_statements, found, is_read=is_read),
        partial(_check_filters, connection, found),
        partial(_check_replication, connection, found),
    ]


def _check_log(found: dict[str, str]) -> None:
    if found["log_bin"] != "ON":
        raise ServerSettingsError(
            "the server writes no binary log", hint="take skip_log_bin out of its configuration file and restart it"
        )


def _check_setting(found: dict[str, str], name: str, value: str, why: str) -> None:
    if found.get(name, value).upper() != value:
        reconnect = "; then reconnect all clients" if name in _OF_SESSIONS else ""
        raise ServerSettingsError(
            f"{name} is {found[name]}, which {why}",
            hint=f"SET PERSIST {name} = {value or repr('')}{reconnect}"
            if name != "gtid_mode"
            else "set gtid_mode = ON and enforce_gtid_consistency = ON, step by step as MySQL's manual says",
        )


def check_statements(found: dict[str, str], *, is_read: bool) -> None:
    """Refuse a server whose replicas run its statements: one with UUID() gives another value there."""
    if not is_read and found["binlog_format"].upper() == "STATEMENT":
        raise ServerSettingsError(
            "binlog_format is STATEMENT, so replicas may have other values than the server",
            hint="SET GLOBAL binlog_format = ROW, or MIXED if only replicas are read; set it in the configuration file"
            " too; then reconnect all clients",
        )


def _check_replication(connection: Connection, found: dict[str, str]) -> bool:
    replicates = is_replica(connection)
    if replicates and found["log_replica_updates"] != "ON":
        raise ServerSettingsError(
            "the server is a replica that does not log what it replicates",
            hint="set log_replica_updates = ON in its configuration file and restart it, or read from its primary",
        )
    return replicates


def binlog_status(connection: Connection) -> tuple[str, int, str, str]:
    """File and offset of the binlog's end, and the filters ``binlog_do_db`` and ``binlog_ignore_db``."""
    try:
        rows = fetch_all(connection, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError:
        rows = fetch_all(connection, "SHOW MASTER STATUS")  # its name before 8.2
    [[file, offset, do_db, ignore_db, *_]] = rows
    return str(file), int(offset), str(do_db or ""), str(ignore_db or "")


def _check_filters(connection: Connection, found: dict[str, str]) -> None:
    if found["log_bin"] != "ON":  # then it has no status
        return
    try:
        _, _, do_db, ignore_db = binlog_status(connection)
    except pymysql.err.OperationalError as error:
        if error.args and error.args[0] == 1227:
            raise ServerSettingsError(
                "the user may not read the binary log's status", hint=MYSQL_GRANTS_HINT, code="mariadb_access_denied"
            ) from error
        raise
    if do_db or ignore_db:
        setting = "binlog_do_db" if do_db else "binlog_ignore_db"
        raise ServerSettingsError(
            f"{setting} = {do_db or ignore_db} hides changes",
            hint=f"remove {setting} from the server's configuration file and restart it",
        )


def own_histories(connection: Connection) -> set[str]:
    """As `stream.sources.mariadb.requirements.own_histories`."""
    ((read_only, uuid),) = fetch_all(connection, "SELECT @@read_only, @@server_uuid")
    found = {str(uuid)}
    if str(read_only) not in ("0", "OFF"):
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("SHOW REPLICA STATUS")
            found |= {row["Source_UUID"].decode() for row in cursor.fetchall() if row["Source_UUID"]}
    return found
