"""A tracked connection tells a session of every commit, whichever statement it was, and of nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.constants import SERVER_STATUS

from serving.client.errors import WriteNotTracked
from serving.client.tracked import TrackedConnection

WRITES = ["INSERT INTO t", "update t", "(DELETE FROM t)", "REPLACE INTO t", "LOAD DATA"]
IMPLICIT = ["CREATE TABLE u", "alter table t", "TRUNCATE t"]


class Cursor:
    """A cursor, as PyMySQL's: it queries through its connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.server: Connection = connection

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, sql: str) -> int:
        """Runs a statement."""
        return int(self.connection.query(sql))

    def fetchone(self) -> tuple[Any, ...]:
        """The last commit's GTID, the only thing that is asked for here."""
        return (self.server.last_gtid,)


class Connection:
    """As much of PyMySQL and of a server as transactions need. ``committed``: the GTIDs of this session, in order."""

    def __init__(self) -> None:
        self.open, self.server_status, self.is_autocommit = True, 0, True
        self._result = SimpleNamespace(has_next=False, unbuffered_active=False)
        self._sock = self
        self.committed: list[str] = []
        self.asked = 0
        self.fails = False
        self.dirty = False

    @property
    def last_gtid(self) -> bytes:
        """Empty before the first commit."""
        return self.committed[-1].encode() if self.committed else b""

    def cursor(self, _: Any = None) -> Cursor:
        """A cursor."""
        return Cursor(self)

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Runs a statement."""
        sql = sql.decode() if isinstance(sql, bytes) else sql
        word = (sql.strip("( ").split() or [""])[0].lower()
        if sql == "SELECT @@last_gtid":
            self.asked += 1
            if self.fails:
                raise pymysql.err.OperationalError(2013, "lost")
        self._result = SimpleNamespace(has_next=False, unbuffered_active=unbuffered)
        if word in ("insert", "update", "delete", "replace", "load", "call"):
            self.dirty = True
            if self.is_autocommit and not self.server_status:
                self._end(committed=True)
            else:
                self.server_status |= SERVER_STATUS.SERVER_STATUS_IN_TRANS
        elif word in ("create", "alter", "truncate"):
            self._end(committed=True)
            self.dirty = True
            self._end(committed=True)
        elif word in ("begin", "start"):
            self._end(committed=True)
            self.server_status |= SERVER_STATUS.SERVER_STATUS_IN_TRANS
        elif word in ("commit", "rollback"):
            self._end(committed=word == "commit")
        return 7

    def _end(self, *, committed: bool) -> None:
        if committed and self.dirty:
            self.committed.append(f"0-1-{len(self.committed) + 1}")
        self.dirty = False
        self.server_status &= ~SERVER_STATUS.SERVER_STATUS_IN_TRANS

    def begin(self) -> None:
        """As PyMySQL's."""
        self.query("BEGIN")

    def commit(self) -> None:
        """As PyMySQL's."""
        self.query("COMMIT")

    def autocommit(self, value: bool) -> None:
        """As PyMySQL's."""
        if value and not self.is_autocommit:
            self._end(committed=True)
        self.is_autocommit = value

    def close(self) -> None:
        """As PyMySQL's."""
        self.open = False


def tracked() -> tuple[TrackedConnection, Connection, list[str]]:
    """A connection, what is inside, and what it has observed."""
    inner, observed = Connection(), list[str]()
    return TrackedConnection(inner, observed.append), inner, observed


steps = st.one_of(
    st.sampled_from(
        [*WRITES, *IMPLICIT, "SELECT 1", "show tables", "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK"]
    ),
    st.sampled_from([".begin", ".commit", ".autocommit on", ".autocommit off"]),
)


def test_a_connection_that_is_opened_again_is_watched_again() -> None:
    """A session forgets a closed connection. Its pool may open it again, and commit without hearing of it."""
    watched: list[TrackedConnection] = []
    inner = Connection()
    connection = TrackedConnection(inner, list[str]().append, watched.append)
    connection.query("INSERT INTO t")
    assert watched == []
    connection.close()
    inner._sock, inner.open = Connection(), True
    connection.query("INSERT INTO t")
    assert watched == [connection]


def test_a_connection_that_is_opened_again_can_not_tell_of_the_commit_before() -> None:
    """It is another one for the server: neither its empty answer nor a commit of its own pays what is owed."""
    connection, inner, observed = tracked()
    inner.fails = True
    connection.query("INSERT INTO t")
    inner.fails, inner.committed, inner._sock = False, [], Connection()
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    connection.query("INSERT INTO t")
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    assert observed == []


@given(st.lists(steps, max_size=12))
def test_after_each_statement_the_last_commit_is_known(script: list[str]) -> None:
    """Whatever ends a transaction, a read that follows must include it."""
    connection, inner, observed = tracked()
    for step in script:
        match step.split():
            case [".begin"]:
                connection.begin()
            case [".commit"]:
                connection.commit()
            case [".autocommit", value]:
                connection.autocommit(value == "on")
            case _:
                connection.cursor().execute(step)
        assert (observed[-1:] or [""]) == (inner.committed[-1:] or [""]), step
        connection.require_settled()
    assert dict.fromkeys(observed) == dict.fromkeys(gtid for gtid in inner.committed if gtid in observed)


@pytest.mark.parametrize(
    ("statement", "asks"),
    [
        ("SELECT 1", 0),
        ("  select 1", 0),
        ("/* a\nb */ SELECT 1", 0),
        ("-- note\nSELECT 1", 0),
        ("# note\n(SELECT 1)", 0),
        ("EXPLAIN SELECT 1", 0),
        ("/* M! */ SELECT 1", 0),
        ("/*!50003 CALL p() */", 1),
        ("/*M!100100 INSERT INTO t */ SELECT 1", 1),
        ("/*M! REPLACE INTO t */ VALUES (1)", 1),
        ("WITH a AS (SELECT 1) DELETE FROM t", 1),
        ("", 1),
        ("CALL p()", 1),
        ("INSERT INTO t", 1),
    ],
)
def test_only_a_statement_that_may_commit_costs_a_question(statement: str, asks: int) -> None:
    """Reads cost nothing; what is not known to be a read counts as a write, also behind a versioned comment."""
    connection, inner, _ = tracked()
    assert connection.query(statement) == 7
    assert connection.query(statement.encode()) == 7
    assert inner.asked == 2 * asks


def test_a_write_within_a_transaction_costs_no_question() -> None:
    """Its GTID comes with the COMMIT."""
    connection, inner, observed = tracked()
    connection.begin()
    before = inner.asked
    for statement in WRITES:
        connection.cursor().execute(statement)
    assert (inner.asked, observed) == (before, [])
    connection.cursor().execute("CALL p()")
    assert inner.asked == before + 1, "a procedure may have committed"
    connection.commit()
    assert observed == ["0-1-1"]


def test_the_callers_own_result_is_left_for_it() -> None:
    """The question's result must not be taken for that of the statement."""
    connection, inner, _ = tracked()
    connection.query("INSERT INTO t")
    mine = inner._result
    connection.commit()
    assert inner._result is not mine
    result = inner._result
    connection.settle(force=True)
    assert inner._result is result


@pytest.mark.parametrize("busy", ["has_next", "unbuffered_active"])
def test_a_connection_that_has_results_left_is_asked_later(busy: str) -> None:
    """A question in between would break the connection; a read before it is refused."""
    connection, inner, observed = tracked()
    inner.fails = True
    connection.query("INSERT INTO t")
    inner.fails = False
    setattr(inner._result, busy, True)
    asked = inner.asked
    with pytest.raises(WriteNotTracked) as caught:
        connection.require_settled()
    assert (inner.asked, observed) == (asked, [])
    assert caught.value.hint
    setattr(inner._result, busy, False)
    connection.require_settled()
    assert observed == ["0-1-1"]


@pytest.mark.parametrize("first", ["SELECT 1", *WRITES])
def test_a_result_that_follows_may_be_of_a_commit(first: str) -> None:
    """Several statements in one text: the first one commits nothing, a later one may have committed all."""
    connection, inner, observed = tracked()
    connection.begin()
    connection.query("INSERT INTO t")
    status = inner.server_status

    def several(sql: str | bytes, unbuffered: bool = False) -> int:
        done = Connection.query(inner, "COMMIT" if sql == f"{first}; COMMIT" else sql, unbuffered)
        if sql == f"{first}; COMMIT":
            inner.server_status, inner._result.has_next = status, True  # as the first result tells it
        return done

    inner.query = several  # type: ignore[method-assign]
    connection.query(f"{first}; COMMIT")
    assert observed == []
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    inner._result.has_next = False
    connection.require_settled()
    assert observed == ["0-1-1"]


def test_a_commit_whose_answer_is_lost_is_never_forgotten() -> None:
    """A connection that broke may have committed: no read may follow as if it had not."""
    connection, inner, observed = tracked()
    inner.fails = True
    connection.query("INSERT INTO t")
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    connection.close()
    assert not connection.is_done
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    assert (observed, inner.committed) == ([], ["0-1-1"])


def test_a_statement_that_fails_may_have_committed() -> None:
    """DDL commits what was before it even where it fails itself."""
    connection, inner, observed = tracked()
    connection.begin()
    connection.query("INSERT INTO t")

    def broken(sql: str | bytes, unbuffered: bool = False) -> int:
        if sql == "CREATE TABLE t":
            inner._end(committed=True)
            raise pymysql.err.ProgrammingError(1050, "exists")
        return Connection.query(inner, sql, unbuffered)

    inner.query = broken  # type: ignore[method-assign]
    with pytest.raises(pymysql.err.ProgrammingError):
        connection.query("CREATE TABLE t")
    connection.require_settled()
    assert observed == ["0-1-1"]


@pytest.mark.parametrize(("statement", "owes"), [("SELECT 1; COMMIT", True), ("SELECT 1 ;\n", False)])
def test_a_text_that_only_begins_as_a_read_may_have_committed(
    statement: str, owes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks before the first result is read: the server may have executed all of the text."""
    connection, inner, _ = tracked()

    def lost(sql: str | bytes, _: bool = False) -> int:
        inner.open = False
        raise pymysql.err.OperationalError(2013, sql)

    monkeypatch.setattr(inner, "query", lost)
    with pytest.raises(pymysql.err.OperationalError):
        connection.query(statement)
    assert connection.is_done is not owes


@pytest.mark.parametrize("method", ["begin", "commit", "autocommit"])
def test_a_call_that_fails_may_have_committed(method: str) -> None:
    """As for statements: the error may have come after the commit."""
    connection, inner, _ = tracked()

    def fails(*_: Any) -> None:
        raise pymysql.err.OperationalError(2013, "lost")

    setattr(inner, method, fails)
    inner.fails = True
    with pytest.raises(pymysql.err.OperationalError):
        getattr(connection, method)(*([True] if method == "autocommit" else []))
    with pytest.raises(WriteNotTracked):
        connection.require_settled()


def test_a_closed_connection_is_done_once_its_commits_are_known() -> None:
    """A session forgets it then, and not before."""
    connection, inner, observed = tracked()
    with connection:
        assert not connection.is_done
        inner.query("INSERT INTO t")
        connection.settle()
        assert observed == []
        connection.settle(force=True)
        assert observed == ["0-1-1"]
    assert connection.is_done
    assert not inner.open
    assert connection.server_status == 0, "everything else is PyMySQL's"


@pytest.mark.parametrize("told", [b"0-1-9", "0-1-9"])
def test_a_gtid_is_read_as_text_or_bytes(told: str | bytes) -> None:
    """An application may have set PyMySQL to either; nothing is observed before the first commit."""

    class Telling(Connection):
        last_gtid = None  # type: ignore[assignment]

    inner, observed = Telling(), list[str]()
    connection = TrackedConnection(inner, observed.append)
    connection.settle(force=True)
    assert observed == []
    inner.last_gtid = told  # type: ignore[assignment]
    connection.settle(force=True)
    assert observed == ["0-1-9"]


def test_an_interrupt_after_a_failed_statement_forgets_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A procedure may commit and then fail. If Ctrl-C strikes while its GTID is asked for, the commit is still owed."""
    connection, inner, _ = tracked()

    def query(sql: str, _: bool = False) -> int:
        raise KeyboardInterrupt if sql == "SELECT @@last_gtid" else pymysql.err.OperationalError(1644, "signalled")

    monkeypatch.setattr(inner, "query", query)
    with pytest.raises(KeyboardInterrupt):
        connection.query("CALL p()")
    inner.open = False
    assert not connection.is_done
    with pytest.raises(WriteNotTracked):
        connection.require_settled()


def test_the_last_result_of_a_procedure_tells_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads the results may end then; no other thread can ask for the GTID."""
    connection, inner, observed = tracked()

    def next_result(unbuffered: bool = False) -> int:
        inner._result = SimpleNamespace(has_next=False, unbuffered_active=unbuffered)
        return 0

    monkeypatch.setattr(inner, "next_result", next_result, raising=False)
    query = inner.query

    def with_two_results(sql: str, unbuffered: bool = False) -> int:
        found = query(sql, unbuffered)
        if sql.startswith("CALL"):
            inner._result = SimpleNamespace(has_next=True, unbuffered_active=False)
        return found

    monkeypatch.setattr(inner, "query", with_two_results)
    connection.query("CALL p()")
    assert observed == []
    connection.next_result()
    assert observed == ["0-1-1"]


@pytest.mark.parametrize("statement", ["SELECT 1", "INSERT INTO t", "COMMIT"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_has_ended_is_no_longer_under_way(statement: str, fails: bool) -> None:
    """A session keeps each connection that is not done: one that counted as busy for ever would be kept for ever."""
    connection, inner, _ = tracked()
    query = inner.query

    def failing(sql: str | bytes, unbuffered: bool = False) -> int:
        if sql == statement:
            raise pymysql.err.ProgrammingError(1064, "syntax")
        return query(sql, unbuffered)

    if fails:
        inner.query = failing  # type: ignore[method-assign]
        with pytest.raises(pymysql.err.ProgrammingError):
            connection.query(statement)
    else:
        connection.query(statement)
    connection.close()
    assert connection.is_done


def test_closing_asks_once_more_for_a_commit_that_is_owed() -> None:
    """It is the last moment at which the connection can tell."""
    connection, inner, observed = tracked()
    inner.fails = True
    connection.query("INSERT INTO t")
    inner.fails = False
    connection.close()
    assert (observed, connection.is_done) == (["0-1-1"], True)


@pytest.mark.parametrize("statement", ["SELECT f()", "INSERT INTO t"])
def test_whatever_ends_a_transaction_may_have_committed_it(statement: str) -> None:
    """The server says that the transaction is over; which statement it was is no proof of the contrary."""
    connection, inner, observed = tracked()
    connection.begin()
    connection.query("INSERT INTO t")
    query = inner.query

    def committing(sql: str | bytes, unbuffered: bool = False) -> int:
        return query("COMMIT" if sql == statement else sql, unbuffered)

    inner.query = committing  # type: ignore[method-assign]
    connection.query(statement)
    assert observed == ["0-1-1"]
