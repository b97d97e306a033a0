"""The request for MySQL's binlog after a GTID set, as a replica sends it."""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from stream.sources.mariadb.connection import Connection
from stream.sources.mariadb.gtid import MysqlGtidSet

_COM_BINLOG_DUMP_GTID: Final = 0x1E
_THROUGH_GTID: Final = 4
_BEGINNING: Final = 4


def request_dump(connection: Connection, position: str, server_id: int, heartbeat_s: float) -> None:
    """Request the binlog after ``position``, a set without flavor.

    The variables have two names each, because servers before 8.4 know only the old ones.
    """
    with connection.cursor() as cursor:
        for role in ("source", "master"):
            cursor.execute(f"SET @{role}_binlog_checksum = @@global.binlog_checksum")
            cursor.execute(f"SET @{role}_heartbeat_period = %s", (int(heartbeat_s * 1_000_000_000),))
    encoded = encoded_set(MysqlGtidSet.of(position))
    request = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, _BEGINNING, len(encoded)) + encoded
    connection._execute_command(_COM_BINLOG_DUMP_GTID, request)


def encoded_set(gtids: MysqlGtidSet) -> bytes:
    """A set as ``Gtid_set::encode`` writes it (sql/rpl_gtid_set.cc). An interval's end is exclusive.

    Servers before 8.3 understand the form without tags only, so it is used where there are none.
    """
    sources = sorted(gtids.sources.items())
    is_tagged = any(tag for (_, tag), _ in sources)
    parts = [struct.pack("<Q", (1 << 56) | (len(sources) << 8) | 1 if is_tagged else len(sources))]
    for (uuid, tag), intervals in sources:
        parts.append(UUID(uuid).bytes)
        if is_tagged:
            parts += [bytes([len(tag) << 1]), tag.encode()]
        parts.append(struct.pack("<Q", len(intervals)))
        parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
    return b"".join(parts)
