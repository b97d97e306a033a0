"""Packets of MariaDB's client protocol, from the server's side."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from pymysql import _auth
from pymysql.constants import CLIENT, COMMAND

from lab.simulation.mariadb.answers import Answer, ResultColumn
from lab.simulation.mariadb.storage.collations import BINARY_ID
from lab.simulation.mariadb.storage.errors import ServerError

PACKET_MAX: Final = 0xFFFFFF
SALT: Final = b"a-salt-of-20-bytes.."
_UTF8MB4: Final = 45
_CAPABILITIES: Final = (
    CLIENT.LONG_PASSWORD
    | CLIENT.FOUND_ROWS
    | CLIENT.LONG_FLAG
    | CLIENT.CONNECT_WITH_DB
    | CLIENT.PROTOCOL_41
    | CLIENT.TRANSACTIONS
    | CLIENT.SECURE_CONNECTION
    | CLIENT.MULTI_STATEMENTS
    | CLIENT.MULTI_RESULTS
    | CLIENT.PLUGIN_AUTH
)
SESSION_TRACK: Final = CLIENT.SESSION_TRACK
"""Whoever sets it understands what a MySQL tells behind an OK."""
_STATE_CHANGED: Final = 0x4000
_GTIDS: Final = b"\x03"
_EOF: Final = 0xFE
QUIT, INIT_DB, QUERY, PING = COMMAND.COM_QUIT, COMMAND.COM_INIT_DB, COMMAND.COM_QUERY, COMMAND.COM_PING
BINLOG_DUMP: Final = COMMAND.COM_BINLOG_DUMP


class Login(NamedTuple):
    """What a client sends after the greeting."""

    flags: int
    user: str
    scramble: bytes
    database: str


def framed(payloads: Iterable[bytes], first: int) -> bytes:
    """Packets with their headers, numbered from ``first``. A long payload takes more than one."""
    found = bytearray()
    number = first
    for payload in payloads:
        at = 0
        while True:
            part = payload[at : at + PACKET_MAX]
            found += len(part).to_bytes(3, "little") + bytes([number & 0xFF]) + part
            number += 1
            at += PACKET_MAX
            if len(part) < PACKET_MAX:
                break
    return bytes(found)


def greeting(version: str, number: int, status: int, more: int = 0) -> bytes:
    """The first packet of a connection. ``more``: capabilities beside those of every server."""
    name = version.encode() + b"\0"
    head = b"\x0a" + name + struct.pack("<I", number) + SALT[:8] + b"\0"
    high, low = divmod(_CAPABILITIES | more, 1 << 16)
    return (
        head
        + struct.pack("<HBHHB", low, _UTF8MB4, status, high, len(SALT) + 1)
        + bytes(10)
        + SALT[8:]
        + b"\0mysql_native_password\0"
    )


def parse_login(payload: bytes) -> Login:
    """The client's answer to the greeting."""
    flags = int.from_bytes(payload[:4], "little")
    user, _, rest = payload[32:].partition(b"\0")
    size = rest[0]
    scramble, rest = rest[1 : 1 + size], rest[1 + size :]
    database = rest.partition(b"\0")[0] if flags & CLIENT.CONNECT_WITH_DB else b""
    return Login(flags, user.decode(), scramble, database.decode())


def scrambled(password: str) -> bytes:
    """What a client that knows the password sends."""
    return bytes(_auth.scramble_native_password(password.encode(), SALT))


def ok(affected: int, status: int, news: str = "") -> bytes:
    """A statement without rows is done. ``news``: the GTIDs of what it has committed, for who understands that."""
    head = b"\0" + _length(affected) + _length(0)
    if not news:
        return head + struct.pack("<HH", status, 0)
    told = _GTIDS + _text(b"\0" + _text(news.encode()))
    return head + struct.pack("<HH", status | _STATE_CHANGED, 0) + _text(b"") + _text(told)


def failed(error: ServerError) -> bytes:
    """An error."""
    return b"\xff" + struct.pack("<H", error.code) + b"#" + error.state.encode() + error.text.encode()


def result(answer: Answer, status: int, news: str = "") -> list[bytes]:
    """The packets of an answer. ``news``: see `ok`; behind rows nobody is told."""
    if answer.columns is None:
        return [ok(answer.affected, status, news)]
    end = struct.pack("<BHH", _EOF, 0, status)
    rows = [b"".join(b"\xfb" if value is None else _text(value) for value in row) for row in answer.rows]
    return [_length(len(answer.columns)), *map(_column, answer.columns), end, *rows, end]


def _column(column: ResultColumn) -> bytes:
    name = _text(column.name.encode())
    charset = _UTF8MB4 if column.is_text else BINARY_ID
    head = _text(b"def") + _text(b"") * 3 + name + name
    return head + b"\x0c" + struct.pack("<HIBHB", charset, 1024, column.type, 0, 0) + b"\0\0"


def _text(value: bytes) -> bytes:
    return _length(len(value)) + value


def _length(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + number.to_bytes(2, "little")
    return b"\xfd" + number.to_bytes(3, "little") if number < 1 << 24 else b"\xfe" + number.to_bytes(8, "little")
