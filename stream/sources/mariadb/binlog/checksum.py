"""A checksum of a transaction as it was read, not as it was decoded: the same on a replica of the server.

So nothing goes into it that differs between servers: table ids, offsets in the file, compression, and how the rows of a
statement are cut into events.
"""

from __future__ import annotations

import re
from zlib import crc32

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.events import HEADER_SIZE

_KNOWN = 1 << 32
"""A checksum is never 0, which means unknown."""
_KINDS = (
    dict.fromkeys(events.WRITES, b"\0w") | dict.fromkeys(events.UPDATES, b"\0u") | dict.fromkeys(events.DELETES, b"\0d")
)
_NOTHING = b""
_OWN_XID = re.compile(rb" /\* xid=[0-9]+ \*/\Z")
"""Behind DDL in MySQL's log is the number that the server itself gave it."""
_COPIED_BYTES_MAX = 64 << 10
"""Of less a copy is made, which takes less time than a view."""


class TransactionChecksum:
    """Collects the parts of one transaction after another."""

    __slots__ = ("_is_mysql", "_last", "_sum")

    def __init__(self) -> None:
        self._sum = 0
        self._last = _NOTHING
        self._is_mysql = False

    def begin(self, gtid_event: bytes) -> None:
        """Begin a transaction with MariaDB's GTID event: sequence, domain and server."""
        self._sum = crc32(gtid_event[5:9] + gtid_event[HEADER_SIZE : HEADER_SIZE + 12])
        self._last = _NOTHING

    def begin_with(self, gtid: str) -> None:
        """Begin a transaction with the text of its GTID. MySQL's event has the times of its commit at each server."""
        self._sum = crc32(gtid.encode())
        self._is_mysql = True
        self._last = _NOTHING

    def rows(self, name: bytes, kind: int, data: bytes, at: int) -> None:
        """Add the rows of one event of table ``name``: ``data`` from ``at`` on, uncompressed."""
        rows = data[at:] if len(data) < _COPIED_BYTES_MAX else memoryview(data)[at:]
        label = name + _KINDS[kind]
        before = self._sum
        if self._last != label:
            self._last = label
            before = crc32(label, before)
        self._sum = crc32(rows, before)

    def statement(self, query: events.Query) -> None:
        """Add a statement."""
        self._last = _NOTHING
        is_of_its_server = self._is_mysql and query.sql.startswith(b"XA ")  # replicas write another database there
        database = b"" if is_of_its_server else query.database.encode()
        self._sum = crc32(_OWN_XID.sub(b"", query.sql), crc32(database, self._sum))

    @property
    def value(self) -> int:
        """The checksum so far."""
        return self._sum | _KNOWN
