"""Whether the last published transaction is still in the binlog as it was published.

A server that lost its last commits in a crash, or was restored, may use their GTIDs again for other changes.
"""

from __future__ import annotations

from collections.abc import Callable

from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.connection import ConnectionSettings, SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.schema import TableFilter

_OTHERS_MAX = 1_000
"""Transactions of other domains that may come first on another server; after more the comparison is given up."""

_HEARTBEATS_MAX = 8
"""In a row from the same place, where the server waits. While MySQL passes over what the position has, they move on."""


def check_same(
    settings: ConnectionSettings,
    server_id: int,
    cursor: str,
    position: str,
    checksum: int,
    opened: Callable[[BinlogReader], object] = lambda _: None,
) -> None:
    """Read the transaction between ``cursor`` and ``position`` again and compare its ``checksum``.

    ``opened`` is given the reader: once somebody has stopped that, this ends, and says nothing. Raises
    `SourceHistoryLost` if it differs, `MariaDBError`.
    """
    before, after = GtidPosition.parse(cursor), GtidPosition.parse(position)
    wanted = {after.flavor + gtid for gtid in after.transactions_since(before)}
    if len(wanted) != 1:
        return
    dump = BinlogDump(settings, before.bare, server_id)
    reader = BinlogReader(dump, LiveSchema(settings, TableFilter(exclude=("*",))), cursor)
    try:
        opened(reader)
        others = heartbeats = 0
        place = reader.last_heartbeat
        for transaction in reader.transactions():
            if transaction is None:
                heartbeats = heartbeats + 1 if reader.last_heartbeat == place else 0
                place = reader.last_heartbeat
            others += transaction is not None
            if heartbeats > _HEARTBEATS_MAX or others > _OTHERS_MAX:
                return
            if transaction is not None and transaction.gtid in wanted:
                if not reader.is_last(checksum):
                    raise _another(transaction.gtid)
                return
    finally:
        dump.close()


def _another(gtid: str) -> SourceHistoryLost:
    return SourceHistoryLost(
        f"{gtid} is another transaction now than the one that was published",
        hint="the server lost its last commits, or was restored, and used their GTIDs again: a new epoch starts",
    )
