"""Events of the binlog as bytes, in the server's format."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from lab.simulation.mariadb.storage.collations import BINARY_ID, COLLATIONS
from lab.simulation.mariadb.storage.tables import Row, Table
from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.table_map import (
    COLUMN_CHARSET,
    COLUMN_NAME,
    DEFAULT_CHARSET,
    SIGNEDNESS,
    SIMPLE_PRIMARY_KEY,
)

Gtid: TypeAlias = tuple[int, int, int]
"""Domain, server, sequence."""

HEADER: Final = struct.Struct("<IBIIIH")
"""Timestamp, type, server, length, end in the file, flags."""
GTID_BODY: Final = struct.Struct("<QIB")
"""Sequence, domain, flags."""
QUERY_BODY: Final = struct.Struct("<IIBHH")
"""Thread, seconds, length of the database's name, error, length of the status variables."""
CHECKSUM_BYTES: Final = 4

ARTIFICIAL: Final = 0x20
"""Flag of an event that is in no file."""
TRANSACTIONAL: Final = 0x04 | 0x08
DDL: Final = 0x20 | 0x08 | events.STANDALONE
PREPARED_XA: Final = 0x40 | 0x0C
COMPLETED_XA: Final = 0x80 | 0x0C | events.STANDALONE
"""Flags of a GTID event."""

_FORMAT_BODY: Final = (
    struct.pack("<H50sIB", 4, b"11.4.5-MariaDB-log", 0, HEADER.size)
    + bytes.fromhex("380d000800120004040404120000e400041a08000000080808020000000a0a0a0000000000000a0a0a")
    + bytes(119)
    + bytes.fromhex("041304000d0808080a0a0a01")
)
"""What MariaDB 11.4 writes: its version, lengths of the events' fixed parts, and 1 for CRC32."""
_STATUS: Final = bytes.fromhex("0000000000 01 0000000000000000 06 03 737464 04 2d00 2d00 2d00".replace(" ", ""))
"""Status variables of a statement: flags, SQL mode, catalog, and its client's character set (utf8mb4_general_ci)."""


class Event(NamedTuple):
    """An event before it has a place. ``placed``: its header names the place; rows have none, as in a cache."""

    timestamp: int
    kind: int
    server: int
    body: bytes
    flags: int = 0
    placed: bool = True

    def at(self, start: int) -> bytes:
        """The bytes in a file, the event beginning at ``start``; with checksum."""
        size = HEADER.size + len(self.body) + CHECKSUM_BYTES
        end = (start + size) & 0xFFFFFFFF if self.placed else 0
        raw = HEADER.pack(self.timestamp, self.kind, self.server, size, end, self.flags) + self.body
        return raw + zlib.crc32(raw).to_bytes(CHECKSUM_BYTES, "little")


def format_description(timestamp: int, server: int) -> Event:
    """The first event of a file."""
    return Event(timestamp, events.FORMAT_DESCRIPTION, server, _FORMAT_BODY)


def gtid_list(server: int, state: Mapping[tuple[int, int], int]) -> Event:
    """The state at the beginning of a file: the last sequence of each domain and server."""
    body = len(state).to_bytes(4, "little")
    for (domain, origin), sequence in state.items():
        body += struct.pack("<IIQ", domain, origin, sequence)
    return Event(0, events.GTID_LIST, server, body)


def checkpoint(timestamp: int, server: int, file: str) -> Event:
    """A BINLOG_CHECKPOINT event."""
    return Event(timestamp, events.BINLOG_CHECKPOINT, server, len(file).to_bytes(4, "little") + file.encode())


def rotate(timestamp: int, server: int, file: str, *, artificial: bool) -> Event:
    """The event that names the next file, or the one that is sent first."""
    body = (4).to_bytes(8, "little") + file.encode()
    return Event(timestamp, events.ROTATE, server, body, ARTIFICIAL * artificial, placed=not artificial)


def heartbeat(server: int, file: str, offset: int) -> bytes:
    """A heartbeat, complete: it is in no file."""
    size = HEADER.size + len(file) + CHECKSUM_BYTES
    raw = HEADER.pack(0, events.HEARTBEAT, server, size, offset & 0xFFFFFFFF, 0) + file.encode()
    return raw + zlib.crc32(raw).to_bytes(CHECKSUM_BYTES, "little")


def gtid(timestamp: int, of: Gtid, flags: int, xid: bytes = b"") -> Event:
    """The event that begins a transaction. ``xid``: of an XA transaction, with the lengths of its parts before it."""
    domain, server, sequence = of
    tail = struct.pack("<I", 1) + xid if xid else bytes(6)
    if flags == PREPARED_XA:
        tail += b"\x01\xff"  # which engines take part is not told
    return Event(timestamp, events.GTID, server, GTID_BODY.pack(sequence, domain, flags) + tail, 0x08)


def query(timestamp: int, server: int, database: str, sql: str, *, placed: bool = True) -> Event:
    """A statement."""
    name = database.encode()
    head = QUERY_BODY.pack(6, 0, len(name), 0, len(_STATUS))
    return Event(timestamp, events.QUERY, server, head + _STATUS + name + b"\0" + sql.encode(), placed=placed)


def xid(timestamp: int, server: int, number: int) -> Event:
    """The end of a transaction."""
    return Event(timestamp, events.XID, server, number.to_bytes(8, "little"))


def xa_prepare(timestamp: int, server: int, gtrid: bytes, bqual: bytes) -> Event:
    """The end of the first phase."""
    body = struct.pack("<BIII", 0, 1, len(gtrid), len(bqual)) + gtrid + bqual
    return Event(timestamp, events.XA_PREPARE, server, body)


def table_map(timestamp: int, server: int, table: Table) -> Event:
    """The description of a table, with full metadata."""
    types = [column.log_type for column in table.columns]
    metadata = b"".join(meta for _, meta in types)
    database, name = (each.encode() for each in table.name)
    nullable = _bits(column.definition.nullable for column in table.columns)
    body = table.id.to_bytes(6, "little") + struct.pack("<HB", 1, len(database)) + database + b"\0"
    body += bytes([len(name)]) + name + b"\0" + bytes([len(types), *(number for number, _ in types)])
    body += bytes([len(metadata)]) + metadata + nullable + b"".join(_optional(table))
    return Event(timestamp, events.TABLE_MAP, server, body, placed=False)


def _optional(table: Table) -> Iterable[bytes]:
    columns = table.columns
    numbers = [
        c for c in columns if not c.charset and c.kind not in ("varbinary", "blob", "datetime", "timestamp", "date")
    ]
    if numbers:
        yield _field(SIGNEDNESS, _bits((c.definition.unsigned for c in numbers), first=0x80))
    strings = [c for c in columns if c.charset or c.kind in ("varbinary", "blob")]
    if strings:
        ids = [COLLATIONS[c.collation].id if c.charset else BINARY_ID for c in strings]
        common = max(ids, key=ids.count)
        others = [packed for at, each in enumerate(ids) if each != common for packed in (_packed(at), _packed(each))]
        if len(others) + 1 < len(ids) or len(set(ids)) == 1:
            yield _field(DEFAULT_CHARSET, _packed(common) + b"".join(others))
        else:
            yield _field(COLUMN_CHARSET, b"".join(map(_packed, ids)))
    yield _field(COLUMN_NAME, b"".join(bytes([len(c.name.encode())]) + c.name.encode() for c in columns))
    if table.primary_key:
        yield _field(SIMPLE_PRIMARY_KEY, bytes(table.key_indexes))


def _field(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + _packed(len(value)) + value


def _packed(number: int) -> bytes:
    return bytes([number]) if number < 251 else b"\xfc" + number.to_bytes(2, "little")


def _bits(flags: Iterable[bool], first: int = 1) -> bytes:
    """A bitmap; ``first`` is the bit of the first flag in a byte: the lowest or the highest."""
    found = bytearray()
    for at, flag in enumerate(flags):
        if at % 8 == 0:
            found.append(0)
        if flag:
            found[-1] |= first >> at % 8 if first == 0x80 else first << at % 8
    return bytes(found)


def rows(
    timestamp: int, server: int, table: Table, changes: Sequence[tuple[Row | None, Row | None]], *, ends: bool
) -> Event:
    """Rows of one kind: each is (before, after). ``ends``: they are the statement's last ones."""
    before, after = changes[0]
    kind = events.WRITE_ROWS_V1 if before is None else events.DELETE_ROWS_V1 if after is None else events.UPDATE_ROWS_V1
    count = len(table.columns)
    present = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
    padding = (0xFF << count % 8) & 0xFF if count % 8 else 0
    bitmap = present[:-1] + bytes([present[-1] | padding]) if kind != events.UPDATE_ROWS_V1 else present
    head = table.id.to_bytes(6, "little") + struct.pack("<HB", events.STATEMENT_END * ends, count)
    head += bitmap * (2 if kind == events.UPDATE_ROWS_V1 else 1)
    body = b"".join(_row(table, row) for change in changes for row in change if row is not None)
    return Event(timestamp, kind, server, head + body, placed=False)


def _row(table: Table, row: Row) -> bytes:
    nulls = bytearray(_bits(value is None for value in row))
    if len(row) % 8:
        nulls[-1] |= (0xFF << len(row) % 8) & 0xFF
    parts = (column.log(value) for column, value in zip(table.columns, row, strict=True) if value is not None)
    return bytes(nulls) + b"".join(parts)
