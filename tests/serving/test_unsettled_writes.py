"""Commits whose end the session has not heard of: no later read may be answered as if they had not been tried."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pymysql
import pytest

from serving.client import Session, WriteNotTracked
from serving.client.sessions import Carrier
from tests.serving.scripted_front import Front, row, vector

BROKEN = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


class Result:
    """A result that was read to its end."""

    has_next = unbuffered_active = False


class Database:
    """A PyMySQL connection, as far as tracking uses it. It breaks at the statement ``breaks_at``."""

    def __init__(self, breaks_at: str = "") -> None:
        self.breaks_at = breaks_at
        self.open = True
        self.server_status = 0
        self._result = Result()
        self._sock = self

    def get_server_info(self) -> str:
        return "11.8.6-MariaDB-log"

    def commit(self) -> None:
        self._run("COMMIT")

    def close(self) -> None:
        self.open = False

    def cursor(self, _: Any) -> Database:
        return self

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str) -> None:
        self._run(statement)

    def fetchone(self) -> tuple[str]:
        return ("0-1-9",)

    def _run(self, statement: str) -> None:
        if statement == self.breaks_at:
            self.open = False
            raise BROKEN


def carried(session: Session) -> Session:
    """The session of a next request."""
    carrier, after = Carrier("0123456789abcdef"), Session(Front(), vector())
    assert carrier.take(after, carrier.carry(session))
    return after


def session_over(database: Database) -> tuple[Session, Any]:
    session = Session(Front(row(vector(shop="1 0-1-9"))), vector(shop="1 0-1-5"))
    return session, session.wrap(database, "shop/0")


def committed_over(breaks_at: str) -> tuple[Session, Any]:
    """A session and its connection, which broke at its commit or behind it."""
    session, connection = session_over(Database(breaks_at))
    if breaks_at == "COMMIT":
        with pytest.raises(pymysql.err.OperationalError):
            connection.commit()
    else:
        connection.commit()
    return session, connection


def test_a_commit_that_went_well_is_demanded() -> None:
    """The session demands the GTID that the connection tells after the commit."""
    session, connection = session_over(Database())
    connection.commit()
    assert session.vector == vector(shop="1 0-1-9")
    assert session.get_row("shop", "shop.orders", 7).found


@pytest.mark.parametrize("breaks_at", ["COMMIT", "SELECT @@last_gtid"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_commit_whose_connection_breaks_is_not_forgotten(breaks_at: str, is_closed: bool) -> None:
    """It may have taken place: every read says so, also after the connection is closed and another one is wrapped."""
    session, connection = committed_over(breaks_at)
    if is_closed:
        connection.close()
    session.wrap(Database(), "shop/0")
    for _ in range(2):
        with pytest.raises(WriteNotTracked):
            session.get_row("shop", "shop.orders", 7)


class SlowDatabase(Database):
    """One whose COMMIT takes until the test lets it go on. ``statements``: all that was sent."""

    def __init__(self, breaks_at: str = "") -> None:
        super().__init__(breaks_at)
        self.begun, self.goes_on = Event(), Event()
        self.statements: list[str] = []

    def _run(self, statement: str) -> None:
        self.statements.append(statement)
        if statement == "COMMIT":
            self.begun.set()
            assert self.goes_on.wait(20)
        super()._run(statement)


def test_a_thread_that_reads_does_not_touch_the_connection_of_one_that_writes() -> None:
    """A connection belongs to one thread: meanwhile others read, without what is not committed yet."""
    database = SlowDatabase()
    session, connection = session_over(database)
    writer = Thread(target=connection.commit)
    writer.start()
    assert database.begun.wait(20)
    assert session.token == str(vector(shop="1 0-1-5"))
    assert database.statements == ["COMMIT"]
    database.goes_on.set()
    writer.join(20)
    assert session.token == str(vector(shop="1 0-1-9"))


def test_a_thread_that_reads_is_told_of_another_ones_unsettled_commit() -> None:
    """It cannot ask the connection, so it is refused; the connection's own thread can, and settles it."""
    database = Database("SELECT @@last_gtid")
    session, connection = session_over(database)
    connection.commit()
    database.open, database.breaks_at = True, ""
    refused: list[Exception] = []

    def read() -> None:
        try:
            _ = session.token
        except WriteNotTracked as error:
            refused.append(error)

    reader = Thread(target=read)
    reader.start()
    reader.join(20)
    assert len(refused) == 1
    assert session.token == str(vector(shop="1 0-1-9"))


@pytest.mark.parametrize("breaks_at", ["COMMIT", "SELECT @@last_gtid"])
def test_a_commit_that_could_not_be_observed_is_carried_as_a_doubt(breaks_at: str) -> None:
    """The next request's reads demand all that anybody has committed, of this keyspace alone."""
    session, connection = committed_over(breaks_at)
    connection.close()
    after = carried(session)
    assert (after.is_in_doubt("shop"), after.is_in_doubt("bank")) == (True, False)
    with pytest.raises(WriteNotTracked):
        session.get_row("shop", "shop.orders", 7)


def test_a_commit_is_observed_when_the_session_is_carried() -> None:
    """If the connection can be asked by then, the next request demands that commit and nothing else."""
    database = Database("SELECT @@last_gtid")
    session, connection = session_over(database)
    connection.commit()
    database.open, database.breaks_at = True, ""
    after = carried(session)
    assert (after.vector, after.is_in_doubt("shop")) == (vector(shop="1 0-1-9"), False)


def test_another_threads_unsettled_commit_is_carried_as_a_doubt() -> None:
    """Whoever carries the session cannot ask a connection that is not its own."""
    database = Database("SELECT @@last_gtid")
    session, connection = session_over(database)
    writer = Thread(target=connection.commit)
    writer.start()
    writer.join(20)
    database.open, database.breaks_at = True, ""
    after = carried(session)
    assert (after.vector, after.is_in_doubt("shop")) == (vector(shop="1 0-1-5"), True)
