"""What a MySQL server has committed, as GTID sets.

The binlog has a transaction first, then the engine shows it, then it is in ``gtid_executed``. From its place in the
binlog until then it is in ``gtid_owned``. So ``gtid_executed`` before a read is what the read has at least, and
``gtid_owned``, and after it ``gtid_executed``, are together what the read has at most. The latter alone would not be:
a read may see a transaction that is not in it yet. On a replica a transaction is owned from its beginning on, so there
the upper bound may name one that is still being applied.
"""

from __future__ import annotations

import re
from typing import Final

from stream.sources.mariadb.connection import Connection, NotResumable, SourceHistoryLost, fetch_all
from stream.sources.mariadb.gtid import MYSQL_FLAVOR, GtidPosition, MysqlGtidSet

_UUID: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_THREAD: Final = re.compile(r"#[0-9]+")


def executed(connection: Connection) -> MysqlGtidSet:
    """What each read that begins later sees."""
    ((text,),) = fetch_all(connection, "SELECT @@GLOBAL.gtid_executed")
    return MysqlGtidSet.of(text)


def logged(connection: Connection) -> MysqlGtidSet:
    """What reads that have ended may have seen: nothing else was visible, or in the binlog, when it was called."""
    owned = owned_by(connection)  # first: else one could be in neither
    return executed(connection).joined(owned)


def owned_by(connection: Connection) -> MysqlGtidSet:
    """What sessions are committing, or preparing (XA), and are not done with."""
    ((text,),) = fetch_all(connection, "SELECT @@GLOBAL.gtid_owned")
    return _owned(text)


def _owned(text: str) -> MysqlGtidSet:
    """The GTIDs of ``uuid:5#12:6#13uuid:tag:7#14``: behind each is its thread, and nothing between UUIDs."""
    _, *parts = _UUID.split(text)
    found = [uuid + _THREAD.sub("", numbers) for uuid, numbers in zip(parts[::2], parts[1::2], strict=True)]
    return MysqlGtidSet.of(",".join(found))


def is_replica(connection: Connection) -> bool:
    """Whether it replicates from another server, also while that is stopped."""
    return bool(fetch_all(connection, "SHOW REPLICA STATUS"))


def check_not_lost(connection: Connection, position: str) -> None:
    """Check that everything up to ``position`` is in the server's history. Raises `SourceHistoryLost`."""
    mine = GtidPosition.parse(position)
    here = logged(connection)
    if isinstance(mine, MysqlGtidSet) and here.covers(mine):
        return
    lost = mine.without(here).bare if isinstance(mine, MysqlGtidSet) else position
    raise SourceHistoryLost(
        f"{lost} was published, but is not in the server's history (it is at {here.bare or 'the start'})",
        hint="the server was restored, or another one took over without this transaction: a new epoch starts",
    )


def check_resumable(connection: Connection, position: str) -> None:
    """Check that the binlog has everything after ``position``, too. Raises `SourceHistoryLost`, `NotResumable`."""
    check_not_lost(connection, position)
    ((text,),) = fetch_all(connection, "SELECT @@GLOBAL.gtid_purged")
    if not GtidPosition.parse(position).covers(MysqlGtidSet.of(text)):
        raise NotResumable(
            f"the binary logs after {position} are purged: the server could start at"
            f" {MYSQL_FLAVOR}{MysqlGtidSet.of(text).bare} at the earliest",
            hint="start a new epoch (--new-epoch), and keep binary logs longer (binlog_expire_logs_seconds)",
        )
