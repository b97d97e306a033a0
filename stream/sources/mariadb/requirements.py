"""What a server must be like to have a source: its binlog complete, its GTIDs in order, and durable.

A cached answer is proved by comparing GTID sequences. So a server on which a later transaction may get a lower
sequence, or the sequence of a transaction that was published and then lost, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pymysql

from stream.sources.mariadb.connection import (
    GRANTS_HINT,
    Connection,
    ServerSettingsError,
    fetch_all,
    is_mysql,
)
from stream.sources.mariadb.mysql import requirements as mysql_requirements
from stream.sources.mariadb.position import by_domain_and_server

REPLICA_GRANT_HINT = "on a replica a source also needs: GRANT REPLICA MONITOR ON *.* TO its user"

_VARIABLES = (
    "version",
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "log_slave_updates",
    "gtid_strict_mode",
    "sync_binlog",
    "innodb_flush_log_at_trx_commit",
    "wsrep_on",
    "wsrep_gtid_mode",
    "read_only",
    "gtid_domain_id",
)
_WANTED = (
    ("binlog_format", "ROW", "hides changes"),
    ("binlog_row_image", "FULL", "hides changes"),
    ("binlog_row_metadata", "FULL", "hides changes"),
    ("gtid_strict_mode", "ON", "lets a later transaction have a lower GTID"),
    ("sync_binlog", "1", "lets a power loss take back transactions whose GTIDs are then used again"),
    ("innodb_flush_log_at_trx_commit", "1", "lets a crash take back rows that are in the binary log"),
)
_OF_ROWS = frozenset({"binlog_format", "binlog_row_image", "binlog_row_metadata"})
"""What matters only in the log that is read."""
_AS_GOOD = ("innodb_flush_log_at_trx_commit", "3")
"""It syncs as 1 does, and once more."""
_PRIVILEGE_MISSING = 1227


def check_server(connection: Connection) -> bool:
    """Refuse a server whose binlog is incomplete or out of order. Raises `ServerSettingsError` with the fix as hint.

    Returns whether it is a replica, also while it replicates nothing, or a node of a Galera cluster: it may not have
    yet what is committed elsewhere.
    """
    *others, replication = _checks(connection)
    for check in others:
        check()
    return bool(replication())


def check_writer(connection: Connection) -> bool:
    """Refuse a server whose replicas can't be read: its history is not kept, or they have other values than it.

    Returns whether it could be read itself. Raises `ServerSettingsError`.
    """
    try:
        check_server(connection)
    except ServerSettingsError:
        for check in _checks(connection, is_read=False):
            check()
        return False
    return True


def problems_of(connection: Connection) -> list[ServerSettingsError]:
    """All for which `check_server` would refuse a server, and not only the first."""
    found = []
    try:
        checks = _checks(connection)
    except ServerSettingsError as other_product:
        return [other_product]
    for check in checks:
        try:
            check()
        except ServerSettingsError as problem:
            found.append(problem)
    return found


def _checks(connection: Connection, *, is_read: bool = True) -> list[Callable[[], object]]:
    """Each raises one problem; the last returns what `check_server` does. Raises for another product.

    ``is_read``: or only its replicas are.
    """
    if is_mysql(connection):
        return mysql_requirements.checks(connection, is_read=is_read)
    names = ",".join(["%s"] * len(_VARIABLES))
    found = dict(fetch_all(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})", _VARIABLES))
    if "mariadb" not in found.get("version", "").lower() or "binlog_row_metadata" not in found:
        raise ServerSettingsError(
            f"the server is {found.get('version', 'unknown')}", hint="a MariaDB server of 10.5 or later is needed"
        )
    return [
        partial(_check_log, found),
        *(partial(_check_setting, found, *wanted) for wanted in _WANTED if is_read or wanted[0] not in _OF_ROWS),
        partial(mysql_requirements.check_statements, found, is_read=is_read),
        partial(_check_galera, found),
        partial(_check_filters, connection),
        partial(_check_replication, connection, found),
    ]


def _check_log(found: dict[str, str]) -> None:
    if found["log_bin"] != "ON":
        raise ServerSettingsError(
            "the server writes no binary log", hint="set log_bin in its configuration file and restart it"
        )


def _check_setting(found: dict[str, str], name: str, wanted: str, why: str) -> None:
    if found[name].upper() != wanted and (name, found[name]) != _AS_GOOD:
        reconnect = "; then reconnect all clients" if name.startswith("binlog") else ""
        raise ServerSettingsError(
            f"{name} is {found[name]}, which {why}",
            hint=f"SET GLOBAL {name} = {wanted}; set it in the configuration file too{reconnect}",
        )


def _check_galera(found: dict[str, str]) -> None:
    if found.get("wsrep_on") == "ON" and found.get("wsrep_gtid_mode") != "ON":
        raise ServerSettingsError(
            "the server is a Galera node whose GTIDs differ from those of the other nodes",
            hint="SET GLOBAL wsrep_gtid_mode = ON; set it in the configuration file of every node too, with one"
            " wsrep_gtid_domain_id for all",
        )


def _check_filters(connection: Connection) -> None:
    try:
        status = fetch_all(connection, "SHOW MASTER STATUS")
    except pymysql.err.OperationalError as error:
        if error.args and error.args[0] == _PRIVILEGE_MISSING:
            raise ServerSettingsError(
                "the user may not read the binary log's status", hint=GRANTS_HINT, code="mariadb_access_denied"
            ) from error
        raise
    for _, _, do_db, ignore_db in status:
        if do_db or ignore_db:
            setting = "binlog_do_db" if do_db else "binlog_ignore_db"
            raise ServerSettingsError(
                f"{setting} = {do_db or ignore_db} hides changes",
                hint=f"remove {setting} from the server's configuration file and restart it",
            )


def _check_replication(connection: Connection, found: dict[str, str]) -> bool:
    """Refuse a replica that does not log what it replicates, and two writers in one GTID domain.

    Returns whether it is a replica, or a node of a Galera cluster.
    """
    ((replicated, own_id, state),) = fetch_all(connection, "SELECT @@gtid_slave_pos, @@server_id, @@gtid_binlog_state")
    if replicated and found["log_slave_updates"] != "ON":
        raise ServerSettingsError(
            "the server is a replica that does not log what it replicates",
            hint="set log_slave_updates = ON in its configuration file and restart it, or read from its primary",
        )
    status = _replication(connection, is_replica=bool(replicated))
    running = [row for row in status if row["Slave_SQL_Running"] == b"Yes"]
    primaries = frozenset(int(row["Master_Server_Id"]) for row in running)
    writers: dict[int, int] = {}
    if primaries and found["read_only"] == "OFF":
        writers[int(found["gtid_domain_id"])] = int(own_id)
    for domain, server in by_domain_and_server(state):
        if server in primaries and writers.setdefault(domain, server) != server:
            raise ServerSettingsError(
                f"GTID domain {domain} has two writers: servers {writers[domain]} and {server}, each with its own"
                " sequence",
                hint="on a replica that nobody writes to: SET GLOBAL read_only = ON; else give each primary a domain"
                " of its own: SET GLOBAL gtid_domain_id = N",
            )
    return bool(status) or found.get("wsrep_on") == "ON"


def _replication(connection: Connection, *, is_replica: bool) -> list[dict[str, Any]]:
    """The status of each replication into this server, running or not."""
    try:
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("SHOW ALL SLAVES STATUS")
            return list(cursor.fetchall())
    except pymysql.err.OperationalError as error:
        if not error.args or error.args[0] != _PRIVILEGE_MISSING:
            raise
        if not is_replica:
            return []
        raise ServerSettingsError(
            "the user may not read the replica's status", hint=REPLICA_GRANT_HINT, code="mariadb_access_denied"
        ) from error


def own_histories(connection: Connection) -> set[str]:
    """The GTID domains, of MySQL the servers' UUIDs, that the servers of a shard write, as far as this one tells.

    A server that takes writes tells its own, a read-only one those of its primaries, too. Raises `ServerSettingsError`
    as `check_server`.
    """
    if is_mysql(connection):
        return mysql_requirements.own_histories(connection)
    ((read_only, domain, own_id, state, replicated),) = fetch_all(
        connection, "SELECT @@read_only, @@gtid_domain_id, @@server_id, @@gtid_binlog_state, @@gtid_slave_pos"
    )
    writers, own = {int(own_id)}, set[str]()
    if str(read_only) in ("0", "OFF"):
        own.add(str(domain))
    else:
        writers |= {int(row["Master_Server_Id"]) for row in _replication(connection, is_replica=bool(replicated))}
    return own | {str(domain) for domain, server in by_domain_and_server(state) if server in writers}
