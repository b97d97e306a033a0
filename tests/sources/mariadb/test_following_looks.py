"""What a source that follows a replica looks at while it reads, and what it remembers of a look. Servers are stubs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.replicas import primary, sessions
from stream.sources.mariadb.replicas.following import ServerLeft
from tests.sources.mariadb.server_stubs import (
    FIRST,
    LAST,
    SECOND,
    Reading,
    Servers,
    Stub,
    at,
    followed,
    point,
    watch_of,
)


def test_a_replica_that_is_ahead_once_in_a_while_is_not_left(servers: Servers) -> None:
    """Of a cluster another node may be asked each time, and some are slower. At two looks in a row it is lost."""
    made, watch = followed(servers), watch_of()
    servers.by_host["first"].end = LAST + 1
    for end in (LAST, LAST + 1, LAST, LAST + 1, LAST):
        servers.by_host["host"].end = end
        made._look_at_lag(watch)
    with pytest.raises(ServerLeft, match="lacks"):
        made._look_at_lag(watch)


def test_where_a_replica_was_that_is_left_says_nothing_of_the_next_one(servers: Servers) -> None:
    """It would be left at the first look for what another one had."""
    made, watch = followed(servers), watch_of()
    servers.by_host["first"].end = LAST + 1
    made._look_at_lag(watch)
    made._left("its connection was lost")
    made._check_server()
    assert made.server == SECOND
    made._look_at_lag(watch)


def test_a_replica_that_catches_up_lags_no_more_however_often_it_was_behind(servers: Servers) -> None:
    """All that it lacked at earlier looks is forgotten at once: the oldest of it says how long it lags."""
    made, watch = followed(servers), watch_of()
    for end in (LAST + 1, LAST + 2, LAST + 3):
        servers.by_host["host"].end = end
        made._look_at_lag(watch)
    assert len(made._ends) == 3
    servers.by_host["first"].end = LAST + 3
    made._look_at_lag(watch)
    assert not made._ends


def test_replicas_are_looked_at_in_turn_with_what_is_committed_by_then(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never is up to date hides no other; and one that lacks what the topic has by now is not up to date."""
    made = Reading(servers, Stub(servers))
    looked_at: list[tuple[ConnectionSettings, str]] = []

    def check(server: ConnectionSettings, _: float) -> None:
        looked_at.append((server, made._published))
        raise MariaDBError("it lags")

    monkeypatch.setattr(made, "_check_replica", check)
    publisher: Any = Stub(servers)
    for sequence in (LAST + 1, LAST + 2, LAST + 3):
        made.status.position = at(sequence)
        made._look_for_replica(publisher)
    assert looked_at == [(FIRST, at(LAST + 1)), (SECOND, at(LAST + 2)), (FIRST, at(LAST + 3))]


def test_a_log_that_cannot_be_compared_is_no_loss(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own log may be damaged, or of a form that is not read: nobody can tell, and its replica is read."""
    made = followed(servers)
    made._at_host.doubt(Progress(point()))

    def unreadable(*_: object) -> None:
        raise BinlogFormatError("checksum mismatch", code="binlog_corrupt")

    monkeypatch.setattr(primary, "check_same", unreadable)
    assert made._at_host.check_published()


def test_a_session_beside_the_log_that_failed_is_replaced_at_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each later look would fail with it: a server that is up again would never be read, nor its clock be known."""
    told: list[str] = []

    def connect(_: ConnectionSettings) -> Any:
        number = len(told)
        return SimpleNamespace(number=number, _force_close=lambda: told.append(f"closed {number}"))

    def ask(session: Any) -> str:
        told.append(f"asked {session.number}")
        if session.number == 0:
            raise MariaDBUnreachable("gone away")
        return "answered"

    monkeypatch.setattr(sessions, "connect", connect)
    made = sessions.Sessions()
    with pytest.raises(MariaDBUnreachable):
        made.asked(FIRST, ask)
    assert [made.asked(FIRST, ask) for _ in range(2)] == ["answered"] * 2
    made.close()
    assert told == ["asked 0", "closed 0", "asked 2", "asked 2", "closed 2"]
