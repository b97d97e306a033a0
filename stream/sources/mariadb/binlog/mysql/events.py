"""Binlog events that only MySQL has: its GTIDs, and transactions compressed as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final
from uuid import UUID

import pyarrow as pa

from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.gtid import MysqlGtid

HEADER_SIZE: Final = 19
IGNORABLE: Final = 28
ROWS_QUERY: Final = 29
GTID: Final = 33
ANONYMOUS_GTID: Final = 34
PREVIOUS_GTIDS: Final = 35
TRANSACTION_CONTEXT: Final = 36
VIEW_CHANGE: Final = 37
PARTIAL_UPDATE_ROWS: Final = 39
TRANSACTION_PAYLOAD: Final = 40
GTID_TAGGED: Final = 42

GTIDS: Final = frozenset({GTID, ANONYMOUS_GTID, GTID_TAGGED})
IGNORED: Final = frozenset({IGNORABLE, ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE})
SQL_FOREIGN_KEYS: Final = 16
"""Flag of a rows event (since 9.6): foreign keys are the SQL layer's, so the rows that they changed are logged too."""
EVENT_BYTES_MAX: Final = 1 << 30
_PAYLOAD_SIZE, _COMPRESSION, _ZSTD, _NONE = 1, 2, 0, 255
_FLAGS_FIELD, _UUID_FIELD, _NUMBER_FIELD, _TAG_FIELD = 0, 1, 2, 3
_TAG_CHARS_MAX: Final = 32


def parse_gtid(event: bytes) -> MysqlGtid:
    """Parse a GTID event, tagged or not. Raises `BinlogFormatError`.

    One that can't be parsed must stop the reading: its transaction has no place in history.
    """
    kind = event[4]
    if kind == ANONYMOUS_GTID:
        raise BinlogFormatError("the binlog has a transaction without a GTID", hint="SET PERSIST gtid_mode = ON")
    try:
        if kind == GTID_TAGGED:
            return _tagged(event)
        uuid = str(UUID(bytes=event[HEADER_SIZE + 1 : HEADER_SIZE + 17]))
        number = int.from_bytes(event[HEADER_SIZE + 17 : HEADER_SIZE + 25], "little")
    except (ValueError, IndexError) as error:
        raise BinlogFormatError(f"invalid GTID event: {error}") from error
    if not number or len(event) < HEADER_SIZE + 25:
        raise BinlogFormatError("invalid GTID event: it is too short")
    return MysqlGtid(uuid, "", number)


def _tagged(event: bytes) -> MysqlGtid:
    """A message of MySQL's serialization library: version, size, last field that must be known, then fields by number.

    Each integer has the number of its bytes in the low bits of its first byte. A UUID is 16 such integers. Fields come
    in the order of their numbers, and those that are needed come first.
    """
    found = _Fields(event, HEADER_SIZE)
    for _ in range(3):
        found.integer()
    uuid, number, tag = b"", 0, ""
    for wanted in (_FLAGS_FIELD, _UUID_FIELD, _NUMBER_FIELD, _TAG_FIELD):
        field = found.integer()
        if field != wanted:
            raise BinlogFormatError(f"invalid tagged GTID event: field {field} in place of {wanted}")
        if field == _FLAGS_FIELD:
            found.integer()
        elif field == _UUID_FIELD:
            uuid = bytes(found.integer() for _ in range(16))
        elif field == _NUMBER_FIELD:
            number = found.signed()
        else:
            tag = found.text()
    if number < 1:
        raise BinlogFormatError(f"invalid tagged GTID event: its number is {number}")
    return MysqlGtid(str(UUID(bytes=uuid)), tag, number)


class _Fields:
    """Integers and texts of variable length. Raises IndexError beyond the end."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def integer(self) -> int:
        first = self._data[self._at]
        size = 1
        while size < 9 and first >> (size - 1) & 1:
            size += 1
        end = self._at + size
        if end > len(self._data):
            raise IndexError("it is too short")
        if size == 9:
            value = int.from_bytes(self._data[self._at + 1 : end], "little")
        else:
            value = int.from_bytes(self._data[self._at : end], "little") >> size
        self._at = end
        return value

    def signed(self) -> int:
        """The sign is the lowest bit; a negative number's other bits are inverted."""
        value = self.integer()
        return ~(value >> 1) if value & 1 else value >> 1

    def text(self) -> str:
        size = self.integer()
        if size > _TAG_CHARS_MAX or self._at + size > len(self._data):
            raise BinlogFormatError(f"invalid tagged GTID event: a tag of {size} bytes")
        start, self._at = self._at, self._at + size
        return self._data[start : self._at].decode("ascii")


def payload_events(event: bytes) -> Iterator[bytes]:
    """The events in a compressed transaction, which have no checksums. They are uncompressed one after the other.

    Raises `BinlogFormatError`.
    """
    compression, at, size = _payload_head(event)
    if compression not in (_ZSTD, _NONE):
        raise BinlogFormatError(f"a transaction is compressed by an unknown method ({compression})")
    data = pa.BufferReader(pa.py_buffer(event).slice(at, size))
    stream: IO[bytes] = pa.CompressedInputStream(data, "zstd") if compression == _ZSTD else data
    try:
        while head := stream.read(HEADER_SIZE):
            length = int.from_bytes(head[9:13], "little")
            if len(head) < HEADER_SIZE or not HEADER_SIZE <= length <= EVENT_BYTES_MAX:
                raise BinlogFormatError(f"a compressed transaction has an event of {length} bytes")
            body = stream.read(length - HEADER_SIZE)
            if len(body) < length - HEADER_SIZE:
                raise BinlogFormatError("a compressed transaction is cut off")
            yield head + body
    except (OSError, pa.ArrowInvalid) as error:
        raise BinlogFormatError(f"a compressed transaction cannot be uncompressed: {error}") from error


def _payload_head(event: bytes) -> tuple[int, int, int]:
    """Compression, first byte and size of the payload. The head is a list of fields: number, length, value."""
    at, compression, size = HEADER_SIZE, -1, -1
    try:
        while (field := event[at]) != 0:
            length, at = _packed(event, at + 1)
            value, _ = _packed(event, at)
            if field == _COMPRESSION:
                compression = value
            elif field == _PAYLOAD_SIZE:
                size = value
            at += length
    except IndexError as error:
        raise BinlogFormatError("a compressed transaction has an invalid head") from error
    at += 1
    if not 0 <= size <= len(event) - at:
        raise BinlogFormatError(f"a compressed transaction declares {size} bytes")
    return compression, at, size


def _packed(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer and the place after it. Raises IndexError."""
    first = data[at]
    if first < 251:
        return first, at + 1
    if first in (251, 255):
        return first, at + 1
    end = at + 1 + {252: 2, 253: 3, 254: 8}[first]
    if end > len(data):
        raise IndexError(at)
    return int.from_bytes(data[at + 1 : end], "little"), end
