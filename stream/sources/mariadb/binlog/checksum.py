"""A checksum of a transaction as it was read, not as it was decoded: the same on a replica of the server.

So nothing goes into it that differs between servers: table ids, offsets in the file, compression, and how the rows of a
statement are cut into events.
"""

from __future__ import annotations

from zlib import crc32

from stream.sources.mariadb.binlog import events

_KNOWN = 1 << 32
"""A checksum is never 0, which means unknown."""
_KINDS = (
    dict.fromkeys(events.WRITES, b"\0w") | dict.fromkeys(events.UPDATES, b"\0u") | dict.fromkeys(events.DELETES, b"\0d")
)
_NOTHING = (-1, b"")


class TransactionChecksum:
    """Collects the parts of one transaction after another."""

    __slots__ = ("_last", "_sum")

    def __init__(self) -> None:
        self._sum = 0
        self._last = _NOTHING

    def begin(self, gtid: events.Gtid) -> None:
        """Begin a transaction."""
        self._sum = crc32(b"%d-%d-%d" % gtid[:3])
        self._last = _NOTHING

    def rows(self, table: int, name: bytes, kind: int, data: bytes | memoryview) -> None:
        """Add the rows of one event, uncompressed and without its header. ``name``: of the table with id ``table``."""
        part = table, _KINDS.get(kind, b"\0?")
        if self._last != part:
            self._last = part
            self._sum = crc32(part[1], crc32(name, self._sum))
        self._sum = crc32(data, self._sum)

    def statement(self, query: events.Query) -> None:
        """Add a statement."""
        self._last = _NOTHING
        self._sum = crc32(query.sql, crc32(query.database.encode(), self._sum))

    @property
    def value(self) -> int:
        """The checksum so far."""
        return self._sum | _KNOWN
