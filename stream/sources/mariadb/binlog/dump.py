"""A replica's connection: asks for the binlog from a GTID position and reads raw events from the socket.

python-mysql-replication makes the connection and the request (`BinLogStreamReader`); its event loop and row decoder are
not used. They cost 200 µs a transaction, reconnect by themselves from the *start* position, die on query status
variables of MariaDB, drop compressed row events without a word, and turn zero dates, empty sets and ENUM values into
None.
"""

from __future__ import annotations

import contextlib
import io
import socket
import zlib
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader

from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, translate

FORMAT_DESCRIPTION_EVENT = 15
HEADER_SIZE = 19
_BUFFER_BYTES = 1 << 20
_PACKET_MAX = 0xFFFFFF
_CHECKSUM_CRC32 = 1


class BinlogDump:
    """A stream of raw events: header (19 bytes) and body, checksum verified and cut off.

    ``position`` is MariaDB's bare GTID set. ``heartbeat_s`` is how often an idle server sends a heartbeat; four times
    that, at least five seconds, without a byte counts as a lost connection.
    """

    def __init__(self, settings: ConnectionSettings, position: str, server_id: int, heartbeat_s: float = 0.25) -> None:
        self._settings = settings
        self._silence_max_s = max(5.0, heartbeat_s * 4)
        arguments = settings.pymysql_arguments() | {"read_timeout": self._silence_max_s}
        self._stream = _Stream(
            connection_settings=arguments,
            server_id=server_id,
            blocking=True,
            is_mariadb=True,
            auto_position=position,
            slave_heartbeat=heartbeat_s,
            enable_logging=False,
        )
        self._checksum = False
        try:
            self._socket, self._file = self._stream.open()
        except pymysql.err.Error as error:
            self._stream.close()
            raise translate(error, settings) from error
        except OSError as error:
            self._stream.close()
            raise MariaDBUnreachable(f"MariaDB at {settings.name} cannot be reached: {error}") from error

    def read(self) -> bytes:
        """The next event; waits for it (heartbeats are events). Raises `MariaDBError`, `BinlogFormatError`."""
        try:
            event = self._packet()
        except (OSError, ValueError) as error:
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
            size = head[0] | head[1] << 8 | head[2] << 16
            parts.append(read(size))
        return b"".join(parts)

    def _verified(self, event: bytes) -> bytes:
        if len(event) < HEADER_SIZE + 1:
            raise BinlogFormatError(f"an event of {len(event)} bytes is shorter than its header")
        if event[5] == FORMAT_DESCRIPTION_EVENT:
            self._checksum = event[-5] == _CHECKSUM_CRC32
        if not self._checksum:
            return event[1:]
        view = memoryview(event)
        if zlib.crc32(view[1:-4]) != int.from_bytes(view[-4:], "little"):
            if event[5] == FORMAT_DESCRIPTION_EVENT:
                return event[1:-4]
            raise BinlogFormatError(
                f"checksum of a binlog event before position {int.from_bytes(event[14:18], 'little')} does not match",
                hint="the binlog or the network is damaged: check the server's disk",
                code="binlog_corrupt",
            )
        return event[1:-4]

    def close(self) -> None:
        """Ends the connection; a blocked `read` in another thread returns with an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, pymysql.err.Error):
            self._stream.close()


class _Stream(BinLogStreamReader):  # type: ignore[misc]
    """The library's stream, of which only the handshake is used."""

    def open(self) -> tuple[socket.socket, io.BufferedReader]:
        """Connects, asks for the dump, and hands out the socket with a reader of our own buffer size."""
        self._BinLogStreamReader__connect_to_stream()
        sock: Any = self._stream_connection._sock
        return sock, sock.makefile("rb", buffering=_BUFFER_BYTES)

    def close(self) -> None:
        """Closes the socket without a polite QUIT: the server is in the middle of a dump."""
        connection = getattr(self, "_stream_connection", None)
        if connection is not None:
            connection._force_close()
