"""How late something can be that was read of a metastore's table: as the last event that concerns it, if that is known.

A session takes that position away, and whatever it reads next must have reached it. The end of the log is beyond what
any owner has folded: a session that took that away would miss with its next table as well, and with the one after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stream.sources.hive.foreign_keys import FREES
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.messages import HiveMessageError, parse_envelope, parse_notification, parse_table
from stream.sources.hive.rpc.connection import MetastoreTimeout

EVENTS_MAX: Final = 64
"""Events that are looked at. Of what lies farther back it is not told what it concerns."""
LOOK_TIMEOUT_S: Final = 1.0
OF_TRANSACTIONS: Final = frozenset({"OPEN_TXN", "COMMIT_TXN", "ABORT_TXN", "ALLOC_WRITE_ID_EVENT"})
"""They change lists, and no object of a table but for what a COMMIT sets (`TableObject.takes_commits`)."""
OF_KEYS: Final = FREES | {"DROP_TABLE", "ADD_PRIMARYKEY", "ADD_UNIQUECONSTRAINT", "DROP_CONSTRAINT"}
"""They may change the foreign keys of any table: of one that points to theirs."""


def latest_event(
    metastore: Metastore, name: str, lo: int, known: int, *, of_keys: bool = False, of_commits: bool = False
) -> int:
    """An event after which nothing is that was just read of the table ``name`` and of what belongs to it.

    ``lo``: the log's end before that. ``known``: an event up to which a cache has folded the log; what is at or before
    it needs no telling apart. ``of_keys``: constraints were read. ``of_commits``: a COMMIT may change the table, and
    does not name it. Raises `MetastoreError`, `ThriftError`.
    """
    since = known if 0 < lo - known < EVENTS_MAX else lo
    try:
        rows = metastore.events(since, EVENTS_MAX, LOOK_TIMEOUT_S)
    except MetastoreTimeout:  # large ones; what was read is good all the same
        return metastore.last_event()
    is_whole = [row["eventId"] for row in rows] == list(range(since + 1, since + 1 + len(rows)))
    if not is_whole or not lo <= since + len(rows) < since + EVENTS_MAX:  # the log was cleaned, or it goes on
        return metastore.last_event()
    return max((row["eventId"] for row in rows if _concerns(row, name, of_keys, of_commits)), default=since)


def _concerns(row: Mapping[str, Any], name: str, of_keys: bool, of_commits: bool) -> bool:
    """Whether the event may have changed something of the table, or given its name to another one."""
    try:
        event = parse_envelope(row)
        if event.event_type in OF_TRANSACTIONS:
            return of_commits and event.event_type == "COMMIT_TXN"
        if of_keys and event.event_type in OF_KEYS:
            return True
        if event.event_type == "ALTER_TABLE" and event.table_name != name:  # the name before is in the message
            return parse_table(parse_notification(row).message, "tableObjBeforeJson").name == name
    except HiveMessageError:
        return True
    return event.event_type == "ADD_FOREIGNKEY" or event.table_name in (name, "")
