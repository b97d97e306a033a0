"""The binlog connection uses three private parts of PyMySQL. An update without them must be noticed."""

from __future__ import annotations

import inspect
import socket
import struct
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pymysql
import pytest

from stream.sources.mariadb.binlog import dump, events
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import SERVER_IDS, Source


@pytest.mark.parametrize(
    ("name", "what_breaks"),
    [
        ("_execute_command", "the binlog cannot be asked for (COM_BINLOG_DUMP)"),
        ("_force_close", "a dump cannot be ended without waiting for the server"),
        ("_sock", "raw events cannot be read"),
    ],
)
def test_pymysql_has_the_private_parts_that_a_dump_uses(name: str, what_breaks: str) -> None:
    """PyMySQL still has the private attributes that the binlog connection uses."""
    assert hasattr(pymysql.connections.Connection(defer_connect=True), name), f"PyMySQL has no {name}: {what_breaks}"


def test_pymysql_sends_a_command_with_a_body_of_bytes() -> None:
    """`_execute_command` still takes a command and its body, as the request for a dump needs it."""
    parameters = inspect.signature(pymysql.connections.Connection._execute_command).parameters
    assert list(parameters) == ["self", "command", "sql"]


def sent(monkeypatch: pytest.MonkeyPatch, packets: Sequence[bytes], cut: int = 0) -> BinlogDump:
    """A dump of a server that has sent these packets, but for the last ``cut`` bytes, and has gone."""
    here, there = socket.socketpair()
    connection: Any = SimpleNamespace(_sock=here, _force_close=here.close)
    monkeypatch.setattr(pymysql, "connect", lambda **_: connection)
    for name in ("_server_id", "is_mysql", "_request_dump"):
        monkeypatch.setattr(dump, name, lambda *_: 0)
    made = BinlogDump(ConnectionSettings(), "0-1-1", 7)
    text = b"".join(struct.pack("<I", len(packet))[:3] + b"\0" + packet for packet in packets)
    there.sendall(text[: len(text) - cut])
    there.close()
    return made


def packet(kind: int, body: bytes = b"", *, mark: int = 0, spoilt: int = 0) -> bytes:
    """An event with its checksum."""
    event = struct.pack("<IBIIIH", 7, kind, 1, 23 + len(body), 0, 0) + body
    return bytes((mark,)) + event + struct.pack("<I", crc32(event) ^ spoilt)


FORMAT = packet(events.FORMAT_DESCRIPTION, b"\1")
"""It says that events have checksums."""


def test_events_that_have_arrived_are_given_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, verified, without its checksum; of one that is cut off nothing before the connection says so."""
    packets = [FORMAT, *(packet(events.XID, struct.pack("<Q", number)) for number in range(40))]
    found = sent(monkeypatch, packets, cut=1)
    assert found.read()[4] == events.FORMAT_DESCRIPTION
    assert found.arrived() == [each[1:-4] for each in packets[1:-1]]
    assert found.arrived() == []
    with pytest.raises(MariaDBError, match="inside an event"):
        found.read()


@pytest.mark.parametrize("odd", [packet(events.XID, spoilt=1), FORMAT, b"\xfe", b"\xff\x28\x04#HY000gone", b"\0", b""])
def test_what_is_odd_waits_for_who_reads_it_alone(monkeypatch: pytest.MonkeyPatch, odd: bytes) -> None:
    """So an error comes after all that was sent before it, and a change of checksums counts from there on."""
    before, after = packet(events.XID), packet(events.STOP)
    found = sent(monkeypatch, [FORMAT, before, odd, after])
    found.read()
    assert found.arrived() == [before[1:-4]]
    assert found.arrived() == []
    if odd == FORMAT:
        assert [found.read(), *found.arrived()] == [FORMAT[1:-4], after[1:-4]]
    else:
        with pytest.raises((MariaDBError, BinlogFormatError)):
            found.read()


def test_events_without_checksums_are_given_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """``binlog_checksum = NONE``: nothing is cut off, and nothing of another kind is taken for an event."""
    plain = packet(events.XID, b"12345678")
    found = sent(monkeypatch, [packet(events.FORMAT_DESCRIPTION, b"\0"), plain, b"\xfe" + plain[1:]])
    found.read()
    assert found.arrived() == [plain[1:]]


def test_a_dump_knows_without_waiting_whether_more_was_sent(source: Source) -> None:
    """A backfill gives way to changes that wait, and a look for them must not end the connection."""
    dump = BinlogDump(source.settings, source.position().removeprefix("MariaDB/"), next(SERVER_IDS), heartbeat_s=1)
    try:
        kind = 0
        while kind != events.HEARTBEAT or dump.has_more:
            kind = dump.read()[4]
        source.run("CREATE TABLE t (id INT PRIMARY KEY)")
        deadline = time.monotonic() + PATIENCE_S
        while not dump.has_more:
            assert time.monotonic() < deadline
        while kind == events.HEARTBEAT:
            kind = dump.read()[4]
        assert kind == events.GTID
    finally:
        dump.close()


@pytest.mark.parametrize("size", [39, 40, 41, 79, 80, 81])
def test_an_event_that_fills_its_packets_goes_on_in_the_next_one(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A packet of the largest size is followed by another, which may be empty."""
    monkeypatch.setattr(dump, "_PACKET_MAX", 40)
    event = packet(events.XID, bytes(size - 24))
    assert len(event) == size
    parts = [event[at : at + 40] for at in range(0, size + 1, 40)]
    after = packet(events.STOP)
    found = sent(monkeypatch, [*parts, after])
    assert [found.read(), found.read()] == [event[1:], after[1:]]
