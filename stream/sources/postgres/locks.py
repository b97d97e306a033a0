"""Who holds the locks of tables' writers, and which of them are prepared transactions.

One that is prepared keeps each lock that it took until COMMIT PREPARED or ROLLBACK PREPARED, over restarts of the
server too. A table on which it holds no writer's lock has nothing of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from stream.sources.postgres.connection import fetch_all

if TYPE_CHECKING:
    from stream.sources.postgres.connection import Connection

THIS_DATABASE: Final = "(SELECT oid FROM pg_database WHERE datname = current_database())"
RENAMES_SCHEMA: Final = "k.relation = 'pg_namespace'::regclass AND k.mode = 'RowExclusiveLock'"
"""All other statements that write into it leave this lock before they commit."""
WRITERS: Final = f"""SELECT n.nspname || '.' || c.relname, k.virtualtransaction, k.locktype <> 'relation' FROM (
 SELECT relation AS oid, virtualtransaction, locktype FROM pg_locks
 WHERE granted AND locktype = 'relation' AND database = {THIS_DATABASE}
  AND mode IN ('RowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
 UNION ALL SELECT a.attrelid, l.virtualtransaction, l.locktype FROM pg_locks l
 JOIN pg_type t ON l.objid IN (t.oid, t.typelem, t.typbasetype) JOIN pg_attribute a ON a.atttypid = t.oid
 WHERE l.granted AND l.locktype = 'object' AND l.classid = 'pg_type'::regclass AND l.mode LIKE '%%Exclusive%%'
 UNION ALL SELECT t.oid, k.virtualtransaction, 'schema' FROM pg_locks k CROSS JOIN pg_class t
 WHERE k.granted AND k.database = {THIS_DATABASE} AND {RENAMES_SCHEMA}
) k JOIN pg_class c ON c.oid = k.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname || '.' || c.relname = ANY(%s)"""
"""Table, who writes into it, and whether that is one who alters a type of its columns, or renames a schema: a value of
an ENUM may get another name, or the table's name be that of another one, and no row is marked."""
_HELD: Final = f"""SELECT DISTINCT ON (w.name) w.name, p.gid, to_char(p.prepared, 'YYYY-MM-DD HH24:MI:SS')
FROM ({WRITERS}) w (name, writer) JOIN pg_locks k ON k.virtualtransaction = w.writer AND k.locktype = 'transactionid'
JOIN pg_prepared_xacts p ON p.transaction = k.transactionid
WHERE p.prepared <= clock_timestamp() - make_interval(secs => %s) ORDER BY w.name, p.prepared, p.gid"""
"""By the lock of its own number: its locks have the name of the session's transaction, until the server restarts."""


def held_tables(connection: Connection, names: Collection[str], since_s: float = 0.0) -> dict[str, str]:
    """Which of the tables ``names`` prepared transactions write into, and the oldest of these, in words.

    ``since_s``: only those that were prepared so long ago, by the server's clock.
    """
    found = fetch_all(connection, _HELD, ([*names], since_s))
    return {name: f"the prepared transaction {gid!r} (of {since} UTC) writes into it" for name, gid, since in found}
