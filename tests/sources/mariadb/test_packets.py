"""The rows of a statement, cut out of what the server has sent, are those that PyMySQL reads."""

from __future__ import annotations

import socket

import pymysql
import pytest
from pymysql.cursors import SSCursor

from stream.sources.mariadb.backfill import packets
from stream.sources.mariadb.backfill.packets import RowPackets
from stream.sources.mariadb.connection import Connection, connect, fetch_all
from tests.sources.mariadb.conftest import Source

VALUES = """SELECT seq, IF(seq % 7, REPEAT('x', seq % 260), NULL), REPEAT('ä', IF(seq % 1000, 1, 40000)),
    IF(seq = 4321, REPEAT(x'00FF', 40000), ''), NULL FROM seq_1_to_6000 ORDER BY seq"""
"""Values of all widths of a length but the longest, and NULLs; more than a block."""

MORE_THAN_BUFFERS = 200_000_000
"""More bytes than the buffers of both ends of a connection have room for."""

OUT_OF_RANGE = 1690
"""The server's error for a number that no DOUBLE can be."""


def connected(source: Source) -> Connection:
    """A session of its own."""
    session = connect(source.settings)
    session.select_db(source.database)
    return session


def read_on(reader: RowPackets) -> None:
    """All that is left."""
    while reader.read():
        pass


def by_pymysql(session: Connection, statement: str) -> list[tuple[bytes | None, ...]]:
    """The rows as PyMySQL has them."""
    cursor = SSCursor(session)
    cursor.execute(statement)
    return [*cursor.fetchall()]


def cut(session: Connection, statement: str) -> list[tuple[bytes | None, ...]]:
    """The rows as they are cut out, in all blocks."""
    reader = RowPackets(session, statement)
    found: list[tuple[bytes | None, ...]] = []
    while columns := reader.read():
        found += zip(*columns, strict=True)
    assert reader.is_over
    return found


def test_rows_of_any_widths_are_those_that_the_driver_reads(source: Source) -> None:
    """Lengths of one to three bytes, NULLs, empty values; and the session can be asked again afterwards."""
    session = connected(source)
    assert cut(session, VALUES) == by_pymysql(session, VALUES)
    assert cut(session, "SELECT seq FROM seq_1_to_10 WHERE seq > 10") == []
    assert fetch_all(session, "SELECT 7") == [("7",)]
    session.close()


@pytest.mark.parametrize("more", [-1, 0, 1, 1_000])
def test_a_row_of_several_packets_is_put_together(source: Source, more: int) -> None:
    """A packet has 16 MiB at most. One that is full goes on in another, which may be empty."""
    session = connected(source)
    sizes = (10_000_000, packets._PACKET_MAX - 10_000_000 - 2 * 4 - 2 + more)
    statement = f"SELECT REPEAT('a', {sizes[0]}), seq, REPEAT('b', {sizes[1]}) FROM seq_1_to_2 ORDER BY seq"
    rows = cut(session, statement)
    assert [(row[0] == b"a" * sizes[0], row[1], row[2] == b"b" * sizes[1]) for row in rows] == [
        (True, b"1", True),
        (True, b"2", True),
    ]
    assert fetch_all(session, "SELECT 7") == [("7",)]
    session.close()


def test_an_error_amid_the_rows_is_raised_and_the_session_goes_on(source: Source) -> None:
    """A statement that runs out of time ends so, after rows that are no answer without the others."""
    session = connected(source)
    reader = RowPackets(session, "SELECT seq, EXP(IF(seq > 50000, 1000, 1)) FROM seq_1_to_99999 ORDER BY seq")
    assert reader.read()
    with pytest.raises(pymysql.err.MySQLError) as raised:
        read_on(reader)
    assert raised.value.args[0] == OUT_OF_RANGE
    assert fetch_all(session, "SELECT 7") == [("7",)]
    session.close()


def test_a_connection_that_ends_amid_the_rows_gives_none_of_an_unfinished_block(source: Source) -> None:
    """Half of a row is no row, and the end of what was sent is not the end of the table."""
    session = connected(source)
    reader = RowPackets(session, f"SELECT REPEAT('x', 1000) FROM seq_1_to_{MORE_THAN_BUFFERS // 1000}")
    assert reader.read()
    session._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises((EOFError, OSError)):
        read_on(reader)
    assert not reader.is_over
    reader.give_up()
    session._force_close()


@pytest.mark.parametrize(
    ("name", "what_breaks"),
    [
        ("_rfile", "rows cannot be read"),
        ("_result", "it is not known how many columns there are, nor can a result be left"),
    ],
)
def test_pymysql_has_the_private_parts_that_are_used(name: str, what_breaks: str) -> None:
    """An update of PyMySQL without them must be noticed."""
    assert hasattr(pymysql.connections.Connection(defer_connect=True), name), f"PyMySQL has no {name}: {what_breaks}"
