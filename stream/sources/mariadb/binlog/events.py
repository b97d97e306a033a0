"""Binlog events other than rows and table maps: headers, GTIDs, queries, XA. Pure."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from typing import NamedTuple

from stream.sources.mariadb.binlog.mysql import events as mysql_events
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.gtid import Gtid

HEADER_SIZE = 19
EVENT_BYTES_MAX = 1 << 30
"""MariaDB's own limit for an event (``slave_max_allowed_packet``)."""

XID_PART_BYTES_MAX = 64
"""The limit of the XA standard for each of the two parts of a transaction's name."""

QUERY = 2
STOP = 3
ROTATE = 4
INTVAR = 5
RAND = 13
USER_VAR = 14
FORMAT_DESCRIPTION = 15
XID = 16
BEGIN_LOAD_QUERY = 17
EXECUTE_LOAD_QUERY = 18
TABLE_MAP = 19
WRITE_ROWS_V1 = 23
UPDATE_ROWS_V1 = 24
DELETE_ROWS_V1 = 25
INCIDENT = 26
HEARTBEAT = 27
WRITE_ROWS = 30
UPDATE_ROWS = 31
DELETE_ROWS = 32
XA_PREPARE = 38
ANNOTATE_ROWS = 160
BINLOG_CHECKPOINT = 161
GTID = 162
GTID_LIST = 163
START_ENCRYPTION = 164
QUERY_COMPRESSED = 165
WRITE_ROWS_COMPRESSED_V1 = 166
UPDATE_ROWS_COMPRESSED_V1 = 167
DELETE_ROWS_COMPRESSED_V1 = 168
WRITE_ROWS_COMPRESSED = 169
UPDATE_ROWS_COMPRESSED = 170
DELETE_ROWS_COMPRESSED = 171

WRITES = frozenset({WRITE_ROWS_V1, WRITE_ROWS, WRITE_ROWS_COMPRESSED_V1, WRITE_ROWS_COMPRESSED})
UPDATES = frozenset({UPDATE_ROWS_V1, UPDATE_ROWS, UPDATE_ROWS_COMPRESSED_V1, UPDATE_ROWS_COMPRESSED})
DELETES = frozenset({DELETE_ROWS_V1, DELETE_ROWS, DELETE_ROWS_COMPRESSED_V1, DELETE_ROWS_COMPRESSED})
ROWS = WRITES | UPDATES | DELETES
WITH_EXTRA_DATA = frozenset(
    {WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS, WRITE_ROWS_COMPRESSED, UPDATE_ROWS_COMPRESSED, DELETE_ROWS_COMPRESSED}
)
COMPRESSED_ROWS = frozenset(range(WRITE_ROWS_COMPRESSED_V1, DELETE_ROWS_COMPRESSED + 1))
IGNORED = mysql_events.IGNORED | frozenset(
    {STOP, ROTATE, INTVAR, RAND, USER_VAR, ANNOTATE_ROWS, BINLOG_CHECKPOINT, GTID_LIST, START_ENCRYPTION, HEARTBEAT}
)
"""Event types that change no rows by themselves."""

FLAGS_AT = 17
IGNORABLE_EVENT = 0x80
"""Flag in the header of an event: whoever doesn't know its type may pass over it."""

STATEMENT_END = 1
"""Flag of a rows event: the last one of its statement."""

NO_FOREIGN_KEYS = 2
"""Flag of a rows event: the session had foreign_key_checks off, so foreign keys changed nothing."""

STANDALONE = 1
"""Flag of a GTID event."""

GTID_BODY = struct.Struct("<QIB")
"""Sequence, domain and flags."""
_QUERY = struct.Struct("<IIBHH")
_STATUS_SIZES = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 128: 3, 129: 8, 255: 0}
"""Bytes after the code of a status variable; the names are MariaDB's ``Q_…`` (sql/log_event.h)."""
_STATUS_CHARSET = 4
_STATUS_WITH_LENGTH = frozenset({5, 6})
"""Time zone and catalog: a length in one byte, then the text."""
_STATUS_INVOKER = 11
"""Two texts: user and host."""
_STATUS_GTID_FLAGS = 130
"""A byte of flags, and in the second phase of an ALTER the sequence of its first."""
_ALTER_SECOND_PHASE = 4 | 8
_STATUS_CHARACTER_SET_COLLATIONS = 131
"""A count in one byte, then two numbers of two bytes for each."""


class LogPlace(NamedTuple):
    """A place in a server's binary logs: the server's id, the number of the file, and the byte offset in it."""

    server: int
    number: int
    offset: int

    @classmethod
    def of(cls, server: int, file: str, offset: int) -> LogPlace:
        """The place at ``offset`` in ``file`` (``binlog.000012``). Files of a server are ordered by their numbers."""
        digits = file.rpartition(".")[2]
        return cls(server, int(digits) if digits.isdecimal() else 0, offset)


class Query(NamedTuple):
    """A statement. ``collation``: the id of its client's collation, which tells the encoding of ``sql``; 0: unknown."""

    database: str
    sql: bytes
    collation: int


def parse_gtid(event: bytes) -> Gtid:
    """Parse a GTID event. Raises `BinlogFormatError`."""
    try:
        sequence, domain, flags = GTID_BODY.unpack_from(event, HEADER_SIZE)
    except struct.error as error:
        raise BinlogFormatError(f"invalid GTID event: {error}") from error
    return Gtid(domain, int.from_bytes(event[5:9], "little"), sequence, flags)


def parse_heartbeat(event: bytes) -> LogPlace:
    """The place up to which the server has sent its logs. The offset has its low 32 bits only."""
    file = event[HEADER_SIZE:].decode(errors="replace")
    return LogPlace.of(int.from_bytes(event[5:9], "little"), file, int.from_bytes(event[13:17], "little"))


def parse_query(event: bytes) -> Query:
    """Parse a query event, compressed or not. After an unknown status variable the collation counts as unknown.

    Raises `BinlogFormatError`.
    """
    try:
        _, _, database_size, _, status_size = _QUERY.unpack_from(event, HEADER_SIZE)
        start = HEADER_SIZE + _QUERY.size
        status = event[start : start + status_size]
        start += status_size
        database = event[start : start + database_size].decode()
        sql = event[start + database_size + 1 :]
        if event[4] == QUERY_COMPRESSED:
            sql = uncompress(sql)
    except (struct.error, UnicodeDecodeError) as error:
        raise BinlogFormatError(f"invalid query event: {error}") from error
    return Query(database, sql, _client_collation(status))


def _client_collation(status: bytes) -> int:
    at = 0
    with suppress(IndexError):
        while at < len(status):
            kind = status[at]
            at += 1
            if kind == _STATUS_CHARSET:
                return int.from_bytes(status[at : at + 2], "little")
            size = _status_size(kind, status, at)
            if size < 0:
                break
            at += size
    return 0


def _status_size(kind: int, status: bytes, at: int) -> int:
    """The bytes of the status variable whose value begins at ``at``; -1 if it is not known. Raises IndexError."""
    if kind in _STATUS_WITH_LENGTH:
        return 1 + status[at]
    if kind == _STATUS_INVOKER:
        host_at = at + 1 + status[at]
        return host_at + 1 + status[host_at] - at
    if kind == _STATUS_GTID_FLAGS:
        return 9 if status[at] & _ALTER_SECOND_PHASE else 1
    if kind == _STATUS_CHARACTER_SET_COLLATIONS:
        return 1 + 4 * status[at]
    return _STATUS_SIZES.get(kind, -1)


def bitmaps_of(event: bytes, kind: int) -> tuple[int, int]:
    """Where the bitmaps of present columns are in a rows event: the first byte, and the bytes of one; UPDATE has two.

    Raises `BinlogFormatError`, IndexError.
    """
    at = HEADER_SIZE + 8
    if kind in WITH_EXTRA_DATA:
        at += int.from_bytes(event[at : at + 2], "little")
    width = event[at]
    if width < 251:
        return at + 1, (width + 7) >> 3
    if width != 252:
        raise BinlogFormatError("a rows event declares more columns than a table can have")
    return at + 3, (int.from_bytes(event[at + 1 : at + 3], "little") + 7) >> 3


def uncompress(data: bytes) -> bytes:
    """Uncompress ``data``: a header byte, the length in 1 to 4 bytes, a zlib stream. Raises `BinlogFormatError`."""
    if not data or data[0] & 0xF0 != 0x80 or not 1 <= data[0] & 7 <= 4:
        raise BinlogFormatError("a compressed event has an invalid header")
    start = 1 + (data[0] & 7)
    size = int.from_bytes(data[1:start], "big")
    if size > EVENT_BYTES_MAX:
        raise BinlogFormatError(f"a compressed event declares {size} bytes")
    try:
        stream = zlib.decompressobj()
        found = stream.decompress(data[start:], size + 1)  # one byte more, to notice longer data
    except zlib.error as error:
        raise BinlogFormatError(f"a compressed event cannot be uncompressed: {error}") from error
    if len(found) != size or not stream.eof:
        raise BinlogFormatError(f"a compressed event has {len(found)} bytes, not the declared {size}")
    return found


def parse_xa_prepare(event: bytes) -> tuple[int, bytes, bytes, bool]:
    """Parse an XA_PREPARE event: format, gtrid, bqual, and whether it commits in one phase.

    Raises `BinlogFormatError`.
    """
    try:
        one_phase, form, gtrid, bqual = struct.unpack_from("<BIII", event, HEADER_SIZE)
    except struct.error as error:
        raise BinlogFormatError(f"invalid XA_PREPARE event: {error}") from error
    start = HEADER_SIZE + 13
    if not 0 < gtrid <= XID_PART_BYTES_MAX or bqual > XID_PART_BYTES_MAX or len(event) < start + gtrid + bqual:
        raise BinlogFormatError(f"an XA_PREPARE event declares parts of {gtrid} and {bqual} bytes")
    return form, event[start : start + gtrid], event[start + gtrid : start + gtrid + bqual], bool(one_phase)
