"""Whether a replica applies all that its server logs. What it leaves out is not in its log, and nothing there tells."""

from __future__ import annotations

from typing import Final

import pymysql

from stream.sources.mariadb.connection import Connection, ServerSettingsError, fetch_all, is_mysql

_WANTED: Final = {
    "slave_exec_mode": "STRICT",
    "replica_exec_mode": "STRICT",
    "slave_skip_errors": "OFF",
    "replica_skip_errors": "OFF",
    "replicate_events_marked_for_skip": "REPLICATE",
}
"""Variable → the value with which every change is applied, or replication stops."""


def check_leaves_nothing_out(connection: Connection) -> None:
    """Raises `ServerSettingsError` if a replica filters what it replicates, or goes on after what it can't apply."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SHOW REPLICA STATUS" if is_mysql(connection) else "SHOW ALL SLAVES STATUS")
        found = {name: value for row in cursor.fetchall() for name, value in row.items() if value}
    said = {name: value for name, value in found.items() if name.lower().startswith("replicate_")}
    marks = ",".join(["%s"] * len(_WANTED))
    variables = fetch_all(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", tuple(_WANTED))
    said |= {name: value for name, value in variables if value.upper() != _WANTED[name.lower()]}
    for name, value in said.items():
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        raise ServerSettingsError(
            f"the replica has {name.lower()} = {text}, which leaves out changes that its server logs",
            hint="take it out of replicas, or take the setting out of its configuration",
        )
