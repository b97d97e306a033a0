"""A replica's connection: requests the binlog from a GTID position and reads raw events from the socket.

PyMySQL logs in and sends the request. After that the socket is read directly, which is faster than PyMySQL's packet
reader.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
from zlib import crc32

import pymysql
from pymysql.constants.COMMAND import COM_BINLOG_DUMP

from stream.sources.mariadb.binlog.mysql import dump as mysql_dump
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    fetch_all,
    is_mysql,
    translate,
    translated,
)

FORMAT_DESCRIPTION_EVENT = 15
HEADER_SIZE = 19
_BUFFER_BYTES = 256 << 10
"""Also the most that is given at once."""
_HEAD = 4
"""Bytes before a packet: three of its size, and its number."""
_SIZE_MIN = 1 + HEADER_SIZE + 4
_PACKET_MAX = 0xFFFFFF
_CHECKSUM_CRC32 = 1
_CRC_BEFORE_MARK = 0x0F6A7026
"""A CRC-32 that the mark of a packet with an event, a zero byte, turns into the one of nothing."""
_CRC_WITH_ITSELF = 0x2144DF1C
"""The CRC-32 of whatever ends with its own CRC-32."""
_BEGINNING = 4
"""Offset of the first event in a binlog file. With a GTID position the server finds the file by itself."""
_BLOCKING = 0
"""Dump flags: at the binlog's end the server waits for new events."""


class BinlogDump:
    """A stream of raw events: header (19 bytes) and body, checksum verified and cut off.

    ``position`` is a GTID position without flavor, MariaDB's or MySQL's as the server is. ``heartbeat_s`` is how often
    an idle server sends a heartbeat. Without a byte for four times that, and at least five seconds, the connection
    counts as lost.
    """

    def __init__(self, settings: ConnectionSettings, position: str, server_id: int, heartbeat_s: float = 0.25) -> None:
        self._settings = settings
        self._silence_max_s = max(5.0, heartbeat_s * 4)
        self._checksum = False
        self._connection: Connection | None = None
        try:
            with translated(settings):
                self._connection = connection = pymysql.connect(
                    **settings.pymysql_arguments() | {"read_timeout": self._silence_max_s}
                )
                self.server = _server_id(connection)
                """The server's own id."""
                request = mysql_dump.request_dump if is_mysql(connection) else _request_dump
                request(connection, position, server_id, heartbeat_s)
        except MariaDBError:
            self._drop()
            raise
        self._socket: socket.socket = connection._sock
        self._socket.settimeout(self._silence_max_s)
        self._file: io.BufferedReader = self._socket.makefile("rb", buffering=_BUFFER_BYTES)

    def read(self) -> bytes:
        """Wait for the next event (heartbeats are events). Raises `MariaDBError`, `BinlogFormatError`."""
        try:
            event = self._packet()
        except (OSError, EOFError, ValueError) as error:
            self._file.close()
            raise MariaDBUnreachable(f"the binlog connection to {self._settings.name} broke: {error}") from error
        first = event[0] if event else 0xFE
        if first == 0:
            return self._verified(event)
        if first == 0xFF:
            try:
                pymysql.err.raise_mysql_exception(event)
            except pymysql.err.Error as error:
                raise translate(error, self._settings) from error
        raise MariaDBUnreachable(f"{self._settings.name} ended the binlog stream")

    @property
    def has_more(self) -> bool:
        """Whether the server has sent something that was not read yet. Does not wait."""
        return bool(self._sent())

    def arrived(self) -> list[bytes]:
        """The next events that are there already, as far as nothing is special about them: `read` takes what is."""
        found: list[bytes] = []
        sent, at, is_checked = self._sent(), 0, self._checksum
        while at + _HEAD < len(sent):
            start = at + _HEAD
            end = start + (sent[at] | sent[at + 1] << 8 | sent[at + 2] << 16)
            packet = sent[start:end]
            if (
                not _SIZE_MIN <= end - start == len(packet) < _PACKET_MAX
                or packet[0]
                or packet[5] == FORMAT_DESCRIPTION_EVENT
            ):
                break
            if not is_checked:
                found.append(packet[1:])
            elif crc32(packet, _CRC_BEFORE_MARK) == _CRC_WITH_ITSELF:
                found.append(packet[1:-4])
            else:
                break
            at = end
        if at:
            self._file.read(at)
        return found

    def _sent(self) -> bytes:
        """What the server has sent and was not read yet, or the first part of it. Does not wait."""
        try:
            self._socket.settimeout(0)
            return self._file.peek(_BUFFER_BYTES)
        except (OSError, ValueError):
            return b""  # the next `read` says what is wrong
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(self._silence_max_s)

    def _packet(self) -> bytes:
        read = self._file.read
        head = read(4)
        if len(head) < 4:
            raise EOFError("connection closed")
        size = head[0] | head[1] << 8 | head[2] << 16
        payload = read(size)
        if len(payload) < size:
            raise EOFError("connection closed inside an event")
        if size < _PACKET_MAX:
            return payload
        parts = [payload]
        while size == _PACKET_MAX:
            head = read(4)
            size = int.from_bytes(head[:3], "little")
            parts.append(read(size))
            if len(head) < 4 or len(parts[-1]) < size:
                raise EOFError("connection closed inside an event")
        return b"".join(parts)

    def _verified(self, event: bytes) -> bytes:
        if len(event) < HEADER_SIZE + 1:
            raise BinlogFormatError(f"an event of {len(event)} bytes is shorter than its header")
        if event[5] == FORMAT_DESCRIPTION_EVENT:
            self._checksum = event[-5] == _CHECKSUM_CRC32
        if not self._checksum:
            return event[1:]
        if crc32(event, _CRC_BEFORE_MARK) != _CRC_WITH_ITSELF:
            if event[5] == FORMAT_DESCRIPTION_EVENT:
                return event[1:-4]
            raise BinlogFormatError(
                f"checksum mismatch in the binlog event before position {int.from_bytes(event[14:18], 'little')}",
                hint="the binlog or the network is damaged: check the server's disk",
                code="binlog_corrupt",
            )
        return event[1:-4]

    def close(self) -> None:
        """End the connection. A blocked `read` in another thread raises an error, and frees the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._drop()

    def _drop(self) -> None:
        """Close the socket without sending QUIT: the server is in the middle of a dump."""
        if self._connection is not None:
            self._connection._force_close()


def _server_id(connection: Connection) -> int:
    ((found,),) = fetch_all(connection, "SELECT @@server_id")
    return int(found)


def _request_dump(connection: Connection, position: str, server_id: int, heartbeat_s: float) -> None:
    """Request the binlog after ``position``, as described at https://mariadb.com/kb/en/com_binlog_dump/.

    Capability 4 tells the server that we understand GTID events. It rewrites them for older replicas, some versions
    wrongly.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
        cursor.execute("SET @master_heartbeat_period = %s", (int(heartbeat_s * 1_000_000_000),))
        cursor.execute("SET @mariadb_slave_capability = 4")
        cursor.execute("SET @slave_connect_state = %s", (position,))
        cursor.execute("SET @slave_gtid_strict_mode = 1")
        cursor.execute("SET @slave_gtid_ignore_duplicates = 0")
    connection._execute_command(COM_BINLOG_DUMP, struct.pack("<IHI", _BEGINNING, _BLOCKING, server_id))
