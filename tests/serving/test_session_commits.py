"""What a connection tells the current session, decided without a server: scripted answers, one for each question."""

from __future__ import annotations

from typing import Any

import pytest

from serving.client import FreshetClient, Session
from serving.client.session import Doubt
from serving.client.sessions import NoSession, current_async_session, current_session, track, using
from serving.client.sessions.commits import in_transaction
from serving.client.tracked import Statement

SHARD = "shop/0"


class Server:
    """A driver's connection and its server. ``answers``: of the next questions; then all is as at the beginning."""

    def __init__(self, *answers: tuple[object, ...] | Exception) -> None:
        self.answers = list(answers)
        self.server_status = 0
        self.ran: list[str] = []
        self.fails: BaseException | None = None

    def cursor(self) -> Cursor:
        """A cursor."""
        return Cursor(self)

    def commit(self) -> None:
        """Commits."""
        self.ran.append("commit()")
        if self.fails is not None:
            raise self.fails

    def rollback(self) -> None:
        """Rolls back."""
        self.ran.append("rollback()")


class Cursor:
    """A cursor of a `Server`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.description: object = None
        self.rows: list[Any] = []

    def execute(self, sql: str) -> None:
        """Answers a question from the script; runs anything else."""
        self.server.ran.append(sql)
        if "@@pseudo_thread_id" in sql:
            answer = self.server.answers.pop(0) if self.server.answers else (7, 1, "0-1-5", "0-1-9")
            if isinstance(answer, Exception):
                raise answer
            self.rows = [answer]
        elif self.server.fails is not None:
            raise self.server.fails
        self.description = "rows" if "SELECT" in sql or "RETURNING" in sql else None

    def fetchall(self) -> list[Any]:
        """The answer."""
        return self.rows

    def close(self) -> None:
        """Forgets its rows."""


@pytest.fixture
def session() -> Session:
    """A session that asks no front."""
    return FreshetClient("http://127.0.0.1:9").session()


def run(server: Server, session: Session | None, *statements: str) -> Session:
    """The session, after statements of one cursor, which stays open; ``commit()`` commits."""
    connection = track(server, SHARD)
    server.ran.clear()
    with using(session or FreshetClient("http://127.0.0.1:9").session()) as current:
        cursor = connection.cursor()
        for statement in statements:
            if statement == "commit()":
                connection.commit()
            else:
                cursor.execute(statement)
        return current


def observed(session: Session) -> str:
    """The write that the session must see; "" for none."""
    return session.carried.unplaced.get(SHARD, "")


@pytest.mark.parametrize(
    "statements",
    [["UPDATE t"], ["COMMIT"], ["CREATE TABLE u"], ["BEGIN"], ["XA COMMIT 'x'"], ["UPDATE t", "commit()"], ["WITH x"]],
)
def test_a_commit_is_asked_for_and_observed(statements: list[str]) -> None:
    """Autocommit, SQL's own COMMIT, implicit commits and the driver's."""
    assert observed(run(Server(), None, *statements)) == "MariaDB/0-1-5"


@pytest.mark.parametrize("statement", ["SELECT 1", "show tables", "/* c */ (SELECT 1)", "EXPLAIN UPDATE t"])
def test_a_read_asks_nothing(statement: str) -> None:
    """Reads cost no further question."""
    server = Server()
    assert observed(run(server, None, statement)) == ""
    assert server.ran == [statement]


@pytest.mark.parametrize("statement", ["INSERT INTO t", "SAVEPOINT a", "ROLLBACK TO a", "SET NAMES utf8mb4"])
def test_within_a_transaction_nothing_is_asked(statement: str) -> None:
    """While the driver says that the transaction is open nothing was committed."""
    server = Server()
    server.server_status = 1
    assert observed(run(server, None, statement)) == ""
    assert server.ran == [statement]


def test_statements_in_one_text_may_do_anything() -> None:
    """What follows in a text may have committed, also if it begins with a read or a transaction is open after it."""
    server = Server()
    server.server_status = 1
    assert run(server, None, "SELECT 1; COMMIT").carried.doubts.keys() == {SHARD}
    assert run(server, None, "UPDATE t; COMMIT; BEGIN").carried.doubts.keys() == {SHARD}


def test_rows_that_a_write_returns_are_left_alone_and_the_commit_is_in_doubt_until_they_are_read(
    session: Session,
) -> None:
    """A question would throw them away. Until then reads demand all that is committed; then the server tells."""
    server = Server()
    connection = track(server, SHARD)
    server.ran.clear()
    with using(session):
        cursor = connection.cursor()
        cursor.execute("INSERT INTO t RETURNING id")
        assert server.ran == ["INSERT INTO t RETURNING id"]
        assert session.carried.doubts[SHARD].server == 1
        assert session._bound("shop", 5_000) == 0
        assert session._bound("other", 5_000) == 5_000
        cursor.close()
    assert session.carried.doubts == {}
    assert observed(session) == "MariaDB/0-1-9"


def test_another_connections_last_commit_is_none_of_this_ones() -> None:
    """Opened again, or another one of a proxy's: all that the same server has committed is demanded instead."""
    same, other = (7, 1, "0-1-5", "0-1-9"), (8, 1, "0-1-4", "0-1-9")
    assert observed(run(Server(same, other), None, "UPDATE t")) == "MariaDB/0-1-9"
    assert run(Server(same, other), None, "UPDATE t").carried.doubts == {}


def test_a_connection_that_comes_back_tells_nothing_of_what_another_one_has_committed() -> None:
    """A proxy may send each question over another one: the last commit of the first may be older than this one's."""
    first, second, again = (7, 1, "0-1-5", "0-1-9"), (8, 1, "0-1-9", "0-1-9"), (7, 1, "0-1-5", "0-1-12")
    assert observed(run(Server(first, second, again), None, "UPDATE t", "UPDATE t")) == "MariaDB/0-1-12"


def test_who_is_owed_a_commit_is_told_it_whoever_asks_next(session: Session) -> None:
    """A pool gives the connection to a job without a session: the one before it would be in doubt for good."""
    connection = track(Server(), SHARD)
    with using(session):
        connection.cursor().execute("INSERT INTO t RETURNING id")
    assert session.carried.doubts.keys() == {SHARD}
    connection.cursor().execute("UPDATE t")
    assert (session.carried.doubts, observed(session)) == ({}, "MariaDB/0-1-9")


def test_another_server_ends_no_doubt(session: Session) -> None:
    """A proxy asked a replica, which may lag: nobody knows of the commit, and no server can tell any more."""
    elsewhere = (7, 2, "0-1-5", "0-1-9")
    run(Server((7, 1, "0-1-5", "0-1-9"), elsewhere), session, "UPDATE t")
    assert (observed(session), session.carried.doubts[SHARD].server) == ("", 0)
    run(Server(), session, "UPDATE t")
    assert session.carried.doubts[SHARD].server == 0
    session.end_doubt(SHARD, session.doubt_about(SHARD), 0, "MariaDB/0-1-9")
    assert session.carried.doubts


def test_a_connection_that_leads_to_another_server_is_in_doubt_once() -> None:
    """A switchover behind a proxy, or a reconnect: the next write is asked of the server that takes it."""
    moved = (9, 2, "0-2-6", "0-2-9")
    server = Server((7, 1, "0-1-5", "0-1-9"), *[moved] * 5)
    connection = track(server, SHARD)
    sessions = [FreshetClient("http://127.0.0.1:9").session() for _ in range(3)]
    for each in sessions:
        with using(each):
            connection.cursor().execute("UPDATE t")
    assert [observed(each) for each in sessions] == ["", "MariaDB/0-2-6", "MariaDB/0-2-6"]
    assert [{doubt.server for doubt in each.carried.doubts.values()} for each in sessions] == [{0}, set(), set()]
    assert "".join("U" if text == "UPDATE t" else "?" for text in server.ran) == "?U??U?U?"


@pytest.mark.parametrize(
    ("servers", "of_replicas", "told"),
    [
        ([2, 3, 2, 2, 3, 3], (0,), [False] * 5),  # as long as any takes writes: one that was left answers again
        ([2, 3, 3, 2, 2, 3, 3], (0,), [False] * 5),
        ([2, 2, 2, 2, 3, 3, 3], (1,), [False] * 3),  # MySQL's, and MariaDB's before 12
        ([2, 2, 2, 2, 3, 3, 3], ("ON",), [False] * 3),
        ([2, 2, 2, 2, 3, 3, 3], (0, 1), [False] * 3),  # only innodb_read_only says it
        ([2, 3, 1, 1, 3, 2, 1, 1], (1,), [False, True, False, False]),  # 1 is the primary, which has the write
    ],
)
def test_that_two_answers_of_a_replica_agree_tells_no_commit(
    servers: list[int], of_replicas: tuple[object, ...], told: list[bool]
) -> None:
    """A router spreads questions over replicas, each of which may lack the write that the primary took."""
    writable = (0,) * len(of_replicas)
    server = Server(*[(50 + each, each, "", "0-1-9", *(of_replicas if each > 1 else writable)) for each in servers])
    connection = track(server, SHARD)
    sessions = [FreshetClient("http://127.0.0.1:9").session() for _ in told]
    for each in sessions:
        with using(each):
            connection.cursor().execute("UPDATE t")
    assert [not each.carried.doubts for each in sessions] == told
    assert {doubt.server for each in sessions for doubt in each.carried.doubts.values()} == {0}


def test_a_doubt_of_one_server_is_ended_by_it_alone(session: Session) -> None:
    """Only the server that took the commit has it for certain among all that it has committed."""
    session.doubt(SHARD, Doubt(1, 100.0))
    run(Server(*[(7, 2, "0-2-5", "0-2-9")] * 2), session, "UPDATE t")
    assert session.carried.doubts[SHARD].server == 1
    run(Server(), session, "UPDATE t")
    assert session.carried.doubts == {}
    assert "0-1-9" in observed(session)


@pytest.mark.parametrize("error", [OSError("lost"), KeyboardInterrupt()])
def test_a_commit_without_an_answer_is_in_doubt(session: Session, error: BaseException) -> None:
    """The answer was lost, or the call was cut off: it may have committed."""
    server = Server((7, 1, "", "0-1-9"), OSError("lost too"))
    server.fails = error
    with pytest.raises(type(error)):
        run(server, session, "UPDATE t")
    assert session.carried.doubts.keys() == {SHARD}
    assert len([text for text in server.ran if "@@" in text]) == isinstance(error, Exception)


def test_a_statement_that_was_refused_costs_no_doubt(session: Session) -> None:
    """The connection lives, and tells its last commit."""
    server = Server()
    server.fails = ValueError("duplicate key")
    with pytest.raises(ValueError, match="duplicate"):
        run(server, session, "INSERT INTO t")
    assert session.carried.doubts == {}


def test_a_server_without_a_binlog_ends_no_doubt(session: Session) -> None:
    """It can't say what is committed."""
    session.doubt(SHARD, Doubt(1, 100.0))
    run(Server(*[(7, 1, "", "")] * 2), session, "UPDATE t")
    assert session.carried.doubts[SHARD].server == 1


def test_without_a_session_nothing_is_asked() -> None:
    """A job that has no session pays nothing; what it ran counts once a session commits it."""
    server = Server()
    connection = track(server, SHARD)
    server.ran.clear()
    connection.cursor().execute("UPDATE t")
    assert server.ran == ["UPDATE t"]
    with using(FreshetClient("http://127.0.0.1:9").session()) as session:
        connection.commit()
    assert observed(session) == "MariaDB/0-1-5"


def test_a_commit_of_nothing_asks_nothing(session: Session) -> None:
    """Frameworks commit after each request."""
    server = Server()
    connection = track(server, SHARD)
    server.ran.clear()
    with using(session):
        connection.commit()
        connection.rollback()
        connection.commit()
    assert len([text for text in server.ran if "@@last" in text]) == 1  # what was before the first is unknown


@pytest.mark.parametrize("status", [0, 1])
def test_going_back_to_a_savepoint_does_not_hide_the_commit(status: int) -> None:
    """What was written before the savepoint is committed after it, as in Django's nested blocks."""
    server = Server((7, 1, "", "0-1-9"))
    server.server_status = status
    server.answers += [(7, 1, "", "0-1-9")] * 4 if not status else []
    session = run(server, None, "INSERT INTO t", "SAVEPOINT a", "INSERT INTO t", "ROLLBACK TO SAVEPOINT a", "commit()")
    assert observed(session) == "MariaDB/0-1-5"
    assert server.ran.count("commit()") == 1


def test_a_commit_belongs_to_the_session_that_is_current() -> None:
    """A pooled connection serves one request after another."""
    server = Server()
    connection = track(server, SHARD)
    with FreshetClient("http://127.0.0.1:9") as client:
        one, other = client.session(), client.session()
    with using(one):
        connection.cursor().execute("UPDATE t")
    server.answers = [(7, 1, "0-1-6", "0-1-9")]
    with using(other):
        connection.cursor().execute("UPDATE t")
    assert (observed(one), observed(other)) == ("MariaDB/0-1-5", "MariaDB/0-1-6")


def test_there_is_no_session_outside_of_a_request(session: Session) -> None:
    """A read there says so, and does not read without a demand; nor with a session of the other kind."""
    with pytest.raises(NoSession, match="does not exist here"):
        current_session()
    with using(session):
        assert current_session() is session
        with pytest.raises(NoSession, match="another kind"):
            current_async_session()


@pytest.mark.parametrize(
    ("text", "word", "only_reads"),
    [
        ("SELECT 1", "select", True),
        (b"select 1", "select", True),
        ("SELECT 1; UPDATE t", "select", False),
        ("/*! UPDATE t */", "", False),
        (object(), "", False),
    ],
)
def test_a_statement_is_read_from_its_text(text: object, word: str, only_reads: bool) -> None:
    """What can't be read may do anything."""
    statement = Statement.of(text)
    assert (statement.word, statement.only_reads) == (word, only_reads)


def test_drivers_say_in_their_ways_whether_a_transaction_is_open() -> None:
    """An attribute, the protocol's status, or autocommit that is off; a driver that says nothing counts as no."""

    class Driver:
        def __init__(self, **said: Any) -> None:
            self.__dict__.update(said)

    assert in_transaction(Driver(in_transaction=True))
    assert not in_transaction(Driver(in_transaction=False, server_status=1))
    assert in_transaction(Driver(server_status=3))
    assert not in_transaction(Driver(server_status=2))
    assert in_transaction(Driver(get_autocommit=lambda: False))
    assert not in_transaction(Driver(get_autocommit=lambda: True))
    assert in_transaction(Driver(driver_connection=Driver(server_status=1)))
    assert not in_transaction(Driver())


def test_what_a_failed_text_has_written_is_committed_after_it(session: Session) -> None:
    """Its first statement went well: a commit that follows is not one of nothing, though a commit was before."""
    server = Server()
    connection = track(server, SHARD)
    with using(session):
        connection.commit()
        server.fails = ValueError("duplicate key")
        with pytest.raises(ValueError, match="duplicate"):
            connection.cursor().execute("INSERT INTO t VALUES (1); INSERT INTO t VALUES (1)")
        server.fails, server.answers = None, [(7, 1, "0-1-6", "0-1-9")]
        connection.commit()
    assert observed(session) == "MariaDB/0-1-6"


class Closing(Server):
    """A connection that a ``with`` closes, as PyMySQL's."""

    def close(self) -> None:
        """Closes it."""
        self.ran.append("close()")

    def __enter__(self) -> Closing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.mark.parametrize("is_block", [True, False])
def test_what_may_be_committed_is_told_before_the_connection_is_closed(session: Session, is_block: bool) -> None:
    """Rows that were not read hide it from the session; afterwards nobody could tell it any more."""
    server = Closing()
    connection = track(server, SHARD)
    with using(session):
        connection.cursor().execute("INSERT INTO t RETURNING id")
        assert session.carried.doubts.keys() == {SHARD}
        if is_block:
            with connection:
                pass
        else:
            connection.close()
    assert session.carried.doubts == {}
    assert observed(session) == "MariaDB/0-1-9"
    assert server.ran[-1] == "close()"
