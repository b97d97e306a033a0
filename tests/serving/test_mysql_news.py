"""A tracked connection to MySQL owes what no packet has told, decided without a server: scripted packets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pymysql.constants import CLIENT

from serving.client.errors import WriteNotTracked
from serving.client.tracked_mysql import _STATE_CHANGED, MysqlTrackedConnection

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def packet(sequence: int, *, has_next: bool = False, fields: int = 0) -> SimpleNamespace:
    """What PyMySQL makes of the packet that ends a statement; with news of a commit, but for the sequence 0."""
    text = f"{SERVER}:{sequence}".encode()
    gtids = bytes([3, len(text) + 2, 0, len(text)]) + text
    news = _STATE_CHANGED if sequence else 0
    message = bytes([0, len(gtids)]) + gtids if sequence else b""
    return SimpleNamespace(
        message=message, server_status=news, has_next=has_next, unbuffered_active=False, field_count=fields
    )


class Cursor:
    """A cursor of tracking's own."""

    def __init__(self, server: Connection) -> None:
        self.server = server

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, sql: str) -> None:
        """The server is told to tell, or asked."""
        self.server.asked.append(sql)

    def fetchone(self) -> tuple[str, str]:
        """Whether it tells, and all that it has committed."""
        return self.server.mode, f"{SERVER}:1-9"


class Connection:
    """As much of PyMySQL as tracking uses. ``packets``: of the next results."""

    def __init__(self, *packets: SimpleNamespace) -> None:
        self.packets = list(packets)
        self.open, self.server_status, self.client_flag = True, 0, CLIENT.SESSION_TRACK
        self.mode = "OWN_GTID"
        self._result: Any = None
        self._sock: object = self
        self.asked: list[str] = []

    def cursor(self, _: Any = None) -> Cursor:
        """A cursor."""
        return Cursor(self)

    def query(self, _: str, unbuffered: bool = False) -> int:
        """Runs a statement."""
        assert not unbuffered
        return self.next_result()

    def next_result(self, unbuffered: bool = False) -> int:
        """Goes on to the next packet."""
        assert not unbuffered
        self._result = self.packets.pop(0)
        return 0


def tracked(*packets: SimpleNamespace) -> tuple[Any, Connection, list[str]]:
    """A tracked connection, the one that it wraps, and what it observed."""
    inner, observed = Connection(*packets), list[str]()
    return MysqlTrackedConnection(inner, observed.append), inner, observed


def test_the_second_commit_of_a_text_is_owed_until_its_packet_was_heard() -> None:
    """The first packet tells of the first statement alone: reads are refused until the other one was read."""
    connection, _, observed = tracked(packet(5, has_next=True), packet(6))
    connection.query("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    connection.next_result()
    connection.require_settled()
    assert observed == [f"{SERVER}:5", f"{SERVER}:6"]


@pytest.mark.parametrize("has_read_on", [False, True])
def test_what_was_passed_over_unread_is_told_by_no_later_packet(has_read_on: bool) -> None:
    """PyMySQL reads on before it sends the next statement, and throws away what those packets tell.

    So it is where the results of an earlier text were all read.
    """
    reads = [packet(0, has_next=True), packet(0)] if has_read_on else []
    connection, _, observed = tracked(*reads, packet(5, has_next=True), packet(7))
    if has_read_on:
        connection.query("SELECT 1; SELECT 2")
        connection.next_result()
    connection.query("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
    connection.commit()
    connection.require_settled()
    assert observed == [f"{SERVER}:{number}" for number in (5, 7, "1-9")]


def test_what_commits_and_answers_with_rows_has_all_that_is_committed_asked_for() -> None:
    """The packet behind rows tells no GTID."""
    connection, _, observed = tracked(packet(0, fields=4))
    connection.query("ANALYZE TABLE t")
    assert observed == [f"{SERVER}:1-9"]


def test_a_server_that_tells_is_believed_where_it_tells_of_nothing() -> None:
    """A rollback, or a commit of nothing: there is nothing to wait for."""
    connection, _, observed = tracked(packet(0))
    connection.commit()
    connection.require_settled()
    assert observed == []


def test_a_server_that_has_forgotten_to_tell_is_not_believed() -> None:
    """After the connection was opened again, or its session was reset: all that it has committed is taken."""
    connection, inner, observed = tracked(packet(0))
    inner._sock, inner.mode = object(), "OFF"
    connection.commit()
    connection.require_settled()
    assert observed == [f"{SERVER}:1-9"]


def test_whoever_forces_it_has_all_that_is_committed_asked_for() -> None:
    """After a function that writes: what the packets before it have told says nothing of that."""
    connection, _, observed = tracked(packet(0))
    connection.commit()
    connection.settle(force=True)
    assert observed == [f"{SERVER}:1-9"]
