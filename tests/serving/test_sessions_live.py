"""Sessions by themselves, over real servers: what a request wrote, the next one reads, wherever it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pymysql
import pytest
from flask import Flask, redirect
from pymysql.constants import CLIENT
from sqlalchemy import URL, create_engine, text
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from freshet.local.mariadb import MariaDBAddress
from serving.client import AsyncClient, FreshetClient, Session
from serving.client.sessions import AsgiSessions, Carrier, WsgiSessions, current_async_session, track, using
from serving.client.sessions.sqlalchemy import track_engine
from tests.serving.drivers import WRITERS, Write, run
from tests.serving.stack import ServingStack
from tokens import Position, Vector

pytestmark = pytest.mark.integration

SECRET = "0123456789abcdef-for-tests"


@pytest.fixture(scope="module")
def fronts(stack: ServingStack) -> Iterator[tuple[FreshetClient, FreshetClient]]:
    """Clients of two fronts."""
    with stack.client() as one, stack.add_front() as other:
        yield one, other


@pytest.mark.parametrize("kind", WRITERS)
def test_what_a_request_wrote_the_next_one_reads_at_another_front(
    stack: ServingStack, fronts: tuple[FreshetClient, FreshetClient], kind: str
) -> None:
    """Every driver's commits are in the session that is carried on: each following read proves that it has them."""
    carrier = Carrier(SECRET)
    table = f"of_{list(WRITERS).index(kind)}"
    stack.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT)", f"INSERT INTO {table} VALUES (1, -1)")

    async def body(write: Write) -> None:
        text = ""
        for number in range(6):
            writing, reading = (client.session() for client in (fronts[number % 2], fronts[1 - number % 2]))
            assert not text or carrier.take(writing, text)
            with using(writing):
                await write(f"UPDATE {table} SET n = {number} WHERE id = 1")
            text = carrier.carry(writing)
            assert carrier.take(reading, text)
            row = reading.get_row(stack.keyspace, table, 1)
            assert (row.value, row.freshness) == ({"id": 1, "n": number}, "fresh")
            assert reading.carried.doubts == {}
            text = carrier.carry(reading)

    run(body, kind, stack.mariadb, stack.database, stack.shard)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_session_is_told_of_its_own_commits_only(stack: ServingStack, kind: str) -> None:
    """Two sessions share a pool: each takes away the GTID of its own last commit, and one that read only has none."""
    number = list(WRITERS).index(kind)

    async def body(write: Write) -> None:
        with stack.client() as client:
            one, other, reader = (client.session() for _ in range(3))
            with using(one):
                await write("DELETE FROM many WHERE id = 1", f"INSERT INTO many VALUES (1, {number + 10_000})")
                first = _last(stack)
            await write(f"UPDATE many SET v = {number + 20_000} WHERE id = 2")  # nobody's
            with using(other):
                await write(f"CREATE TABLE ddl_{number} (id INT PRIMARY KEY)")
                await write(f"UPDATE many SET v = {number + 30_000} WHERE id = 3")
                second = _last(stack)
            with using(reader):
                await write("SELECT 1")
            assert (one.carried.unplaced, other.carried.unplaced) == tuple(
                {stack.shard: str(each)} for each in (first, second)
            )
            assert reader.carried.unplaced.get(stack.shard, "") in ("", str(second))

    run(body, kind, stack.mariadb, stack.database, stack.shard)


def test_whatever_a_statement_commits_is_noticed(stack: ServingStack, session: Session) -> None:
    """Rows that a write returns, procedures, several statements in a text, SQL's own BEGIN and COMMIT, many at once."""
    stack.run(
        "CREATE TABLE noticed (id INT PRIMARY KEY, n INT)",
        "CREATE PROCEDURE noticing(n INT) BEGIN UPDATE noticed SET n = n WHERE id = 1; SELECT 1; SELECT 2; END",
    )
    inner = stack.connect(client_flag=CLIENT.MULTI_STATEMENTS)
    connection = track(inner, stack.shard)
    run_it: list[Callable[[Any], object]] = [
        lambda cursor: cursor.execute("INSERT INTO noticed VALUES (1, 0) RETURNING id"),
        lambda cursor: cursor.callproc("noticing", (1,)),
        lambda cursor: cursor.execute("SELECT 1; UPDATE noticed SET n = 2; SELECT 2"),
        lambda cursor: [cursor.execute(text) for text in ("BEGIN", "UPDATE noticed SET n = 3", "COMMIT")],
        lambda cursor: cursor.executemany("REPLACE INTO noticed VALUES (%s, %s)", [(1, 4), (2, 4)]),
        lambda cursor: cursor.execute("ALTER TABLE noticed COMMENT = 'five'"),
        lambda _: connection.query("UPDATE noticed SET n = 6"),
        lambda cursor: [
            cursor.execute(text) for text in ("SET autocommit = 0", "DELETE FROM noticed", "SET autocommit = 1")
        ],
    ]
    with using(session), connection:
        for statement in run_it:
            with connection.cursor() as cursor:
                statement(cursor)
                # until its rows are read nobody can ask; a read demands all that is committed, so it is right already
                known = session.carried.unplaced.get(stack.shard) or "MariaDB/0-1-1"
                assert session.carried.doubts or Position.parse(known).contains(_last(stack))
            assert session.carried.doubts == {}
            assert Position.parse(session.carried.unplaced[stack.shard]).contains(_last(stack))


def test_a_commit_whose_connection_breaks_is_still_read(
    stack: ServingStack, fronts: tuple[FreshetClient, FreshetClient]
) -> None:
    """Its GTID is unknown: reads prove all that anybody has committed, at other fronts too, until a server tells it."""
    stack.run(
        "CREATE PROCEDURE breaking() BEGIN UPDATE many SET v = -5 WHERE id = 5; COMMIT; KILL CONNECTION_ID(); END"
    )
    carrier, session = Carrier(SECRET), fronts[0].session()
    with using(session):
        broken = track(stack.connect(), stack.shard)
        with pytest.raises(pymysql.err.Error), broken.cursor() as cursor:
            cursor.execute("CALL breaking()")
    reading = fronts[1].session()
    assert carrier.take(reading, carrier.carry(session))
    assert list(reading.carried.doubts) == [stack.shard]
    row = reading.get_row(stack.keyspace, "many", 5, max_staleness_ms=60_000)
    assert (row.value, row.freshness) == ({"id": 5, "v": -5}, "fresh")
    [row] = reading.get_rows(stack.keyspace, [("many", (5,))])
    assert (row.value, row.freshness) == ({"id": 5, "v": -5}, "fresh")
    last = _last(stack)
    with using(reading), track(stack.connect(), stack.shard) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE many SET v = 0 WHERE id = 0")  # there is no such row
    assert reading.carried.doubts == {}
    position = Vector.parse(reading.token).get(stack.shard)
    assert position is not None
    assert position.position.contains(last)


def test_a_connection_that_was_opened_again_does_not_hide_a_commit(stack: ServingStack, session: Session) -> None:
    """The new connection's last GTID is not the old one's: all that the server has committed is demanded instead."""
    connection = track(stack.connect(), stack.shard)
    with using(session), connection, connection.cursor() as cursor:
        cursor.execute("UPDATE many SET v = v + 1 WHERE id = 7")
        stack.run(f"KILL {connection.thread_id()}", "UPDATE many SET v = v + 1 WHERE id = 8")
        connection.connect()
        cursor.execute("UPDATE many SET v = 0 WHERE id = 0")  # commits nothing, so it has no GTID
        assert Position.parse(session.carried.unplaced[stack.shard]).contains(_last(stack))


def test_whoever_posts_and_is_redirected_to_another_service_reads_what_they_wrote(
    stack: ServingStack, fronts: tuple[FreshetClient, FreshetClient]
) -> None:
    """Flask writes through SQLAlchemy's pool; Starlette answers the redirect, at another front, by the cookie alone."""
    stack.run("CREATE TABLE posts (id INT PRIMARY KEY, n INT)", "INSERT INTO posts VALUES (1, 0)")
    engine = create_engine(
        URL.create(
            "mariadb+pymysql", stack.mariadb.user, stack.mariadb.password, stack.mariadb.host, stack.mariadb.port
        )
    )
    track_engine(engine, stack.shard)
    writer = Flask("writer")

    def post() -> Any:
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE {stack.database}.posts SET n = n + 1"))
        return redirect("/posts/1", 303)

    writer.add_url_rule("/posts", view_func=post, methods=["POST"])

    async def show(_: Request) -> JSONResponse:
        row = await current_async_session().get_row(stack.keyspace, "posts", 1)
        return JSONResponse({"row": row.value, "freshness": row.freshness})

    async def main() -> None:
        reader = Starlette(routes=[Route("/posts/1", show)])
        async with AsyncClient(fronts[1]._router.homes[0]) as client:
            posting = httpx2.WSGITransport(WsgiSessions(writer, fronts[0], SECRET, secure=False))
            reading = httpx2.ASGITransport(AsgiSessions(reader, client, SECRET, secure=False))
            cookies = httpx2.Cookies()
            for number in range(1, 9):
                with httpx2.Client(transport=posting, base_url="http://shop.test", cookies=cookies) as browser:
                    posted = await asyncio.to_thread(browser.post, "/posts")
                    cookies = browser.cookies
                assert posted.status_code == httpx2.codes.SEE_OTHER
                async with httpx2.AsyncClient(
                    transport=reading, base_url="http://shop.test", cookies=cookies
                ) as browser:
                    shown = await browser.get(posted.headers["location"])
                    cookies = browser.cookies
                assert shown.json() == {"row": {"id": 1, "n": number}, "freshness": "fresh"}
                assert len(cookies) == 1

    asyncio.run(main())
    engine.dispose()


def test_a_session_is_told_of_mysqls_commits(mysql: MariaDBAddress, mysql_database: str) -> None:
    """MySQL can't tell one session's last GTID to every driver: all that the server has executed is demanded."""
    with FreshetClient("http://127.0.0.1:9") as client, mysql.connect(autocommit=True) as plain:
        session = client.session()
        with using(session), track(mysql.connect(database=mysql_database), "docs/0") as connection:
            with connection.cursor() as cursor:
                cursor.execute("CREATE TABLE told (id INT PRIMARY KEY)")
                cursor.execute("INSERT INTO told VALUES (1)")
            connection.commit()
            with plain.cursor() as asking:
                asking.execute("SELECT @@GLOBAL.gtid_executed")
                executed = asking.fetchone()[0].replace("\n", "")
        assert Position.parse(session.carried.unplaced["docs/0"]).contains(Position.parse(f"MySQL56/{executed}"))


def _last(stack: ServingStack) -> Position:
    """The server's last commit: the test is alone on it for a moment."""
    with stack.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_binlog_pos")
        return Position.parse(f"MariaDB/{cursor.fetchone()[0]}")
