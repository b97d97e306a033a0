"""A tracked connection to MySQL tells a session of every commit, by the server's packets or by all that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT

from freshet.local.mariadb import MariaDBAddress
from serving.client import tracked_mysql
from serving.client.errors import WriteNotTracked
from serving.client.tracked_mysql import MysqlTrackedConnection, gtids_in, is_mysql
from tokens import Position

Made = tuple[Any, list[str], Callable[[], Position]]


@pytest.fixture(params=[CLIENT.SESSION_TRACK, 0], ids=["told", "asked"])
def made(request: pytest.FixtureRequest, mysql: MariaDBAddress, mysql_database: str) -> Iterator[Made]:
    """A tracked connection, what it observed, and a function that gives the server's position."""
    observed: list[str] = []
    inner = mysql.connect(database=mysql_database, client_flag=request.param | CLIENT.MULTI_STATEMENTS)
    connection = MysqlTrackedConnection(inner, observed.append)
    with mysql.connect(autocommit=True) as other, other.cursor() as asking:

        def position() -> Position:
            asking.execute("SELECT @@GLOBAL.gtid_executed")
            return Position.parse("MySQL56/" + asking.fetchone()[0].replace("\n", ""))

        yield connection, observed, position
    connection.close()


def last(observed: list[str]) -> Position:
    """The last position that was observed."""
    return Position.parse(f"MySQL56/{observed[-1]}")


def seen(observed: list[str]) -> Position:
    """All that was observed."""
    return Position.parse("MySQL56/" + ",".join(observed))


STATEMENTS = [
    ["CREATE TABLE t (id INT PRIMARY KEY)"],
    ["BEGIN", "INSERT INTO t VALUES (1)", "COMMIT"],
    ["BEGIN", "INSERT INTO t VALUES (2)", "ALTER TABLE t ADD v INT"],
    ["SET AUTOCOMMIT = 1", "INSERT INTO t (id) VALUES (3)"],
    ["SET gtid_next = 'AUTOMATIC:billing'", "INSERT INTO t (id) VALUES (4)", "SET gtid_next = 'AUTOMATIC'"],
    ["INSERT INTO t (id) VALUES (5); INSERT INTO t (id) VALUES (6); SELECT 1"],
    ["CREATE PROCEDURE p() BEGIN INSERT INTO t (id) VALUES (7); SELECT 1; INSERT INTO t (id) VALUES (8); END"],
    ["CALL p()"],
]


def test_each_commit_is_observed_however_it_was_made(made: Made) -> None:
    """After each group of statements everything that the server has since then from this session was observed."""
    connection, observed, position = made
    known = position()
    for statements in STATEMENTS:
        before = position()
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                while cursor.nextset():
                    pass
        for gtids in observed:
            known = known.union(Position.parse(f"MySQL56/{gtids}"))
        assert known.at_or_past(position()), statements
        assert not before.at_or_past(position())
        connection.require_settled()


@pytest.mark.parametrize(
    "go_on",
    [
        lambda _, cursor: cursor.nextset(),
        lambda connection, _: connection.commit(),
        lambda connection, _: connection.rollback(),
        lambda connection, _: connection.cursor().execute("DO 1"),
    ],
    ids=["read", "commit", "rollback", "other"],
)
def test_commits_of_statements_whose_results_were_not_read_are_owed(
    made: Made, go_on: Callable[[Any, Any], object]
) -> None:
    """The server has told of the first statement alone, and may have executed the others: reads are refused.

    PyMySQL passes over the others' results before another statement: then all that is committed is taken.
    """
    connection, observed, position = made
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        known = position()
        cursor.execute("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
        with pytest.raises(WriteNotTracked):
            connection.require_settled()
        go_on(connection, cursor)
    connection.require_settled()
    assert known.union(seen(observed)).at_or_past(position())


@pytest.mark.parametrize("word", ["ANALYZE", "OPTIMIZE", "CHECK", "REPAIR"])
def test_what_commits_and_answers_with_rows_is_observed(made: Made, word: str) -> None:
    """The packet behind rows tells no GTID, but these statements commit the transaction before them."""
    connection, observed, position = made
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        known = position()
        connection.begin()
        cursor.execute("INSERT INTO t VALUES (1)")
        cursor.execute(f"{word} TABLE t")
        assert cursor.fetchone()
    connection.require_settled()
    assert known.union(seen(observed)).at_or_past(position())


def test_own_commits_alone_are_told_where_the_server_tells_them(made: Made) -> None:
    """With SESSION_TRACK another session's commits are not waited for; without it they are, which is safe."""
    connection, observed, position = made
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        before = position()
        connection.begin()
        cursor.execute("INSERT INTO t VALUES (1)")
        assert observed.pop()
        observed.clear()
        connection.commit()
        [after] = observed
    own = Position.parse(f"MySQL56/{after}")
    assert position().at_or_past(own)
    if connection.client_flag & CLIENT.SESSION_TRACK:
        assert own.union(before).order(own).name == "UNKNOWN" or not own.contains(before)
    else:
        assert own.at_or_past(before)


def test_what_commits_nothing_is_not_observed_where_the_server_tells(made: Made) -> None:
    """Reads, rollbacks and empty commits leave nothing owed."""
    connection, observed, _ = made
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        observed.clear()
        cursor.execute("SELECT COUNT(*) FROM t")
        assert cursor.fetchone() == (0,)
        connection.begin()
        cursor.execute("INSERT INTO t VALUES (1)")
        connection.rollback()
        connection.commit()
    if connection.client_flag & CLIENT.SESSION_TRACK:
        assert observed == []
    connection.require_settled()


def test_a_statement_that_fails_after_a_commit_is_observed(made: Made) -> None:
    """DDL commits the transaction before it, also if it fails itself."""
    connection, observed, position = made
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        connection.begin()
        cursor.execute("INSERT INTO t VALUES (1)")
        observed.clear()
        with pytest.raises(pymysql.err.OperationalError):
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    assert last(observed).at_or_past(position())


def test_a_session_that_was_reset_or_connected_again_is_not_trusted_to_tell(made: Made) -> None:
    """The server forgets that it should tell: then all that it has committed is taken."""
    connection, observed, position = made
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        cursor.execute("SET SESSION session_track_gtids = OFF")
        observed.clear()
        connection.begin()
        cursor.execute("INSERT INTO t VALUES (1)")
        connection.commit()
    assert last(observed).at_or_past(position())
    observed.clear()
    connection._inner.close()
    with pytest.warns(DeprecationWarning, match="reconnect"):
        connection.ping(reconnect=True)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (2)")
        connection.commit()
    assert last(observed).at_or_past(position())


def test_a_commit_whose_answer_was_lost_is_owed(made: Made) -> None:
    """The write may have been kept, and nobody knows its GTID: reads are refused."""
    connection, _, _ = made
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        connection.begin()
        cursor.execute("INSERT INTO t VALUES (1)")
    inner = connection._inner
    read = inner._read_bytes

    def lose(size: int) -> bytes:
        read(size)
        inner._force_close()
        raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")

    inner._read_bytes = lose
    with pytest.raises(pymysql.err.OperationalError):
        connection.commit()
    del inner._read_bytes
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    inner.connect()


def test_the_server_is_recognised(mysql: MariaDBAddress, mariadb: MariaDBAddress) -> None:
    """`wrap` chooses by what the server is, whatever a proxy before it says; the flag is the protocol's."""
    assert is_mysql(mysql.connect())
    behind_a_proxy = mariadb.connect()
    assert not is_mysql(behind_a_proxy)
    behind_a_proxy.server_version = "8.0.30"
    assert not is_mysql(behind_a_proxy)
    assert tracked_mysql.SESSION_TRACK == CLIENT.SESSION_TRACK


def test_news_that_are_cut_off_are_no_gtids() -> None:
    """A part of a packet's end gives nothing: a part of a number would be another GTID. Other news are passed over."""
    text = b"3e11fa47-71ca-11e1-9e33-c80aa9429562:5"
    gtids = bytes([3, len(text) + 2, 0, len(text)]) + text
    news = bytes([5, 1, ord("1")]) + gtids
    message = b"\x02ok" + bytes([len(news)]) + news
    assert gtids_in(message) == [text.decode()]
    assert all(gtids_in(message[:size]) == [] for size in range(len(message)))
    assert gtids_in(b"") == []
