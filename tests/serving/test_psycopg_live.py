"""psycopg's connections tell a session what they commit, however it is committed, over a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from serving.client import ClientError, FreshetClient, Session
from serving.client.session import Doubt
from serving.client.sessions import track, track_async, using
from serving.client.sessions.django import track_database
from serving.client.sessions.postgres import statement_of
from serving.client.sessions.sqlalchemy import track_engine
from stream.sources.mariadb.connection import ConnectionSettings
from tests.sources.postgres.conftest import empty
from tokens import Position

__all__ = ["empty"]

pytestmark = pytest.mark.integration

SHARD: Final = "docs/0"
FLUSHED: Final = "-c synchronous_commit=on"
"""A slot tells only of what is."""
TABLES: Final = (
    "CREATE TABLE t (id INT PRIMARY KEY, n INT)",
    "CREATE PROCEDURE put(n INT) LANGUAGE plpgsql AS $$ BEGIN UPDATE t SET n = put.n; COMMIT; PERFORM 1; END $$",
    "CREATE PUBLICATION every FOR ALL TABLES",
    "INSERT INTO t VALUES (1, 0), (2, 0)",
    "SELECT pg_create_logical_replication_slot(current_database()::text, 'pgoutput')",
)


class Server:
    """A database with a slot that says where the last commit ends."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.plain = self.connect(autocommit=True)
        for statement in TABLES:
            self.plain.execute(statement.encode())

    @property
    def login(self) -> dict[str, Any]:
        """Where it is."""
        at = self.settings
        login = {"host": at.host, "port": at.port, "user": at.user, "password": at.password, "dbname": at.database}
        return login | {"options": FLUSHED}

    def connect(self, *, autocommit: bool) -> psycopg.Connection[Any]:
        """A connection."""
        return psycopg.connect(**self.login, autocommit=autocommit)

    def last(self) -> Position | None:
        """Where the last commit ends that was made since the last call; None if there is none."""
        found = self.plain.execute(
            "SELECT max(lsn)::text, (SELECT timeline_id FROM pg_control_checkpoint())"
            " FROM pg_logical_slot_get_binary_changes(current_database()::name, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'every')"
        ).fetchone()
        assert found is not None
        return Position.parse(f"Postgres/{found[1]}:{found[0]}") if found[0] else None

    def url(self) -> URL:
        """For SQLAlchemy."""
        at = self.settings
        more = {"options": FLUSHED}
        return URL.create("postgresql+psycopg", at.user, at.password, at.host, at.port, at.database, more)


@pytest.fixture
def server(empty: ConnectionSettings) -> Iterator[Server]:
    """A database of the test's own."""
    made = Server(empty)
    made.last()
    try:
        yield made
    finally:
        made.plain.execute("SELECT pg_drop_replication_slot(current_database()::name)")
        made.plain.close()


@pytest.fixture
def session() -> Session:
    """A session that asks no front."""
    return FreshetClient("http://127.0.0.1:9").session()


def knows(session: Session, place: Position | None) -> bool:
    """Whether the session's reads demand at least ``place``, and nothing is in doubt."""
    known = session.carried.unplaced.get(SHARD, "")
    return place is not None and bool(known) and Position.parse(known).contains(place) and not session.carried.doubts


UPDATE: Final = "UPDATE t SET n = n + 1 WHERE id = 1"
Way = Callable[[Any], object]


def several(connection: Any, *statements: str, pipeline: bool = False) -> None:
    """Runs each, in a pipeline or not."""
    with connection.pipeline() if pipeline else nullcontext():
        for statement in statements:
            connection.execute(statement)


def in_blocks(connection: Any) -> None:
    """Nested transactions, of which the inner one is taken back."""
    with connection.transaction():
        connection.execute(UPDATE)
        with connection.transaction(force_rollback=True):
            connection.execute("DELETE FROM t")


def copied(connection: Any) -> None:
    """Rows by COPY."""
    with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
        copy.write_row((7, 7))


def half_refused(connection: Any) -> None:
    """Statements in a text, of which the last is refused when the others are committed."""
    with pytest.raises(psycopg.Error):
        connection.execute(f"BEGIN; {UPDATE}; COMMIT; SELECT 1 / 0")


def in_two_phases(connection: Any) -> None:
    """A transaction that is prepared, and committed by its name."""
    connection.tpc_begin("x")
    connection.execute(UPDATE)
    connection.tpc_prepare()
    connection.tpc_commit()


AUTOCOMMITTED: Final[dict[str, Way]] = {
    "execute": lambda c: c.execute(UPDATE),
    "composed": lambda c: c.execute(sql.SQL("UPDATE {} SET n = 5").format(sql.Identifier("t"))),
    "a read with a write within": lambda c: c.execute(f"WITH x AS ({UPDATE} RETURNING n) SELECT n FROM x").fetchall(),
    "explain analyze": lambda c: c.execute(f"EXPLAIN ANALYZE {UPDATE}"),
    "select into": lambda c: several(c, "SELECT 1 AS id INTO made", UPDATE),
    "many at once": lambda c: c.cursor().executemany("UPDATE t SET n = %s WHERE id = %s", [(3, 1), (4, 2)]),
    "a stream of what it wrote": lambda c: [*c.cursor().stream(f"{UPDATE} RETURNING n")],
    "copy": copied,
    "a procedure": lambda c: c.execute("CALL put(8)"),
    "a block of statements": lambda c: c.execute("DO $$ BEGIN UPDATE t SET n = 9; END $$"),
    "SQL's own words": lambda c: several(c, "BEGIN", UPDATE, "COMMIT"),
    "several in a text": lambda c: c.execute(f"{UPDATE}; SELECT 1"),
    "several, of which the last fails": half_refused,
    "a comment within a comment": lambda c: c.execute(f"/* /* */ select */ {UPDATE}"),
    "a comment that a carriage return ends": lambda c: c.execute(f"-- now\r{UPDATE}\n"),
    "a chain": lambda c: several(c, "BEGIN", UPDATE, "COMMIT AND CHAIN", "ROLLBACK"),
    "transactions in blocks": in_blocks,
    "a pipeline": lambda c: several(c, UPDATE, "SELECT 1", pipeline=True),
    "another class of cursors": lambda c: psycopg.ClientCursor(c).execute(UPDATE),
}
COMMITTED: Final[dict[str, Way]] = {
    "commit": lambda c: (c.execute(UPDATE), c.commit()),
    "a pipeline": lambda c: [each() for each in (lambda: several(c, UPDATE, pipeline=True), c.commit)],
    "many at once": lambda c: (c.cursor().executemany("UPDATE t SET n = %s", [(3,)]), c.commit()),
    "the end of the connection": lambda c: c.__exit__(None, None, None) if c.execute(UPDATE) else None,
    "transactions in blocks": in_blocks,
    "two phases": in_two_phases,
    "another statement first": lambda c: (c.execute("SELECT 1"), c.execute(UPDATE), c.commit()),
}


@pytest.mark.parametrize("way", AUTOCOMMITTED)
def test_whatever_is_committed_by_itself_is_told(server: Server, session: Session, way: str) -> None:
    """The session demands the place behind the commit at once, and nothing stays in doubt."""
    with server.connect(autocommit=True) as connection:
        assert track(connection, SHARD) is connection
        with using(session):
            AUTOCOMMITTED[way](connection)
    assert knows(session, server.last())


@pytest.mark.parametrize("way", COMMITTED)
def test_whatever_an_application_commits_is_told(server: Server, session: Session, way: str) -> None:
    """Also by ``with``, and what was prepared."""
    connection = track(server.connect(autocommit=False), SHARD)
    with using(session):
        COMMITTED[way](connection)
    connection.close()
    assert knows(session, server.last())


def test_reads_and_what_is_taken_back_cost_no_question(server: Server, session: Session) -> None:
    """Nor do statements within a transaction, commits of nothing, or anything without a session."""
    with server.connect(autocommit=True) as connection:
        track(connection, SHARD)
        last = "SELECT query FROM pg_stat_activity WHERE pid = %s"
        pid = connection.info.backend_pid

        def has_asked() -> bool:
            [(query,)] = server.plain.execute(last, (pid,)).fetchall()
            return "pg_current_wal" in query

        connection.execute(UPDATE)
        assert not has_asked()
        with using(session):
            connection.execute(UPDATE)
            assert has_asked()
            for statement in ("SELECT n FROM t", "BEGIN", UPDATE, "SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK"):
                connection.execute(statement.encode())
                assert not has_asked(), statement
            before = session.carried
            connection.commit()
            connection.rollback()
            connection.execute("")
            connection.autocommit = False
            connection.autocommit = True
            assert not has_asked()
        assert session.carried == before


def test_a_session_is_told_of_its_own_commits_only(server: Server) -> None:
    """Two sessions share a connection; who was not current is told nothing."""
    with FreshetClient("http://127.0.0.1:9") as client, server.connect(autocommit=True) as connection:
        one, other = client.session(), client.session()
        track(connection, SHARD)
        with using(one):
            connection.execute(UPDATE)
        first = server.last()
        connection.execute(UPDATE)  # nobody's
        server.last()
        assert knows(one, first)
        assert other.carried.unplaced == {}
        assert other.wrap(connection, SHARD) is connection
        connection.execute(UPDATE)
        assert knows(other, server.last())


def test_a_commit_whose_connection_breaks_is_in_doubt_until_the_server_tells(server: Server, session: Session) -> None:
    """Nobody knows whether it was committed, so reads demand everything."""
    broken = session.wrap(server.connect(autocommit=True), SHARD)
    broken.execute(UPDATE)
    with pytest.raises(psycopg.Error):
        broken.execute("DO $$ BEGIN UPDATE t SET n = 6; COMMIT; PERFORM pg_terminate_backend(pg_backend_pid()); END $$")
    place = server.last()
    assert list(session.carried.doubts) == [SHARD]
    assert session.carried.doubts[SHARD].server > 0
    with server.connect(autocommit=True) as other:
        session.wrap(other, SHARD)
        other.execute("CREATE TABLE another (id INT)")
    assert knows(session, place)


def test_a_transaction_that_may_have_been_committed_is_in_doubt_until_the_connection_is_free(
    server: Server, session: Session
) -> None:
    """A question within the next one would be its first statement, and would fix its snapshot."""
    with server.connect(autocommit=True) as connection:
        session.wrap(connection, SHARD)
        several(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ", UPDATE, "COMMIT AND CHAIN")
        assert list(session.carried.doubts) == [SHARD]
        connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        connection.execute("COMMIT")
    assert knows(session, server.last())


def test_a_standby_or_another_server_can_end_no_doubt(session: Session) -> None:
    """Another server's log says nothing of a commit here."""
    session.doubt(SHARD, Doubt(5, 1e9))
    session.end_doubt(SHARD, session.doubt_about(SHARD), 6, "Postgres/1:0/5")
    assert list(session.carried.doubts) == [SHARD]


@pytest.mark.parametrize("autocommit", [True, False])
def test_connections_for_asyncio_tell_the_same(server: Server, session: Session, autocommit: bool) -> None:
    """Statements, blocks, pipelines and many at once, in a task of the session's."""

    async def in_a_block(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute(UPDATE)

    async def in_a_pipeline(connection: Any) -> None:
        async with connection.pipeline():
            await connection.execute(UPDATE)

    async def many(connection: Any) -> None:
        await connection.cursor().executemany("UPDATE t SET n = %s", [(3,), (4,)])

    async def copied(connection: Any) -> None:
        async with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            await copy.write_row((8 + autocommit, 7))

    async def main() -> None:
        connection = await psycopg.AsyncConnection.connect(**server.login, autocommit=autocommit)
        assert track_async(connection, SHARD) is connection
        ways: list[Callable[[Any], Awaitable[object]]] = [
            lambda c: c.execute(UPDATE), in_a_block, in_a_pipeline, many, copied
        ]  # fmt: skip
        for way in ways:
            with using(session):
                await way(connection)
                if not autocommit:
                    await connection.commit()
            assert knows(session, server.last()), way
        await connection.close()

    asyncio.run(main())


def test_engines_of_sqlalchemy_tell_the_same(server: Server, session: Session) -> None:
    """Blocking and for asyncio; their pools had opened connections before they were tracked."""
    engine = create_engine(server.url())
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    track_engine(engine, SHARD)
    for _ in range(2):
        with using(session), engine.begin() as connection:
            connection.execute(text(UPDATE))
        assert knows(session, server.last())
    with using(session), engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(UPDATE))
        assert knows(session, server.last())
    engine.dispose()

    async def main() -> None:
        made = create_async_engine(server.url())
        track_engine(made, SHARD)
        with using(session):
            async with made.begin() as connection:
                await connection.execute(text(UPDATE))
        assert knows(session, server.last())
        await made.dispose()

    asyncio.run(main())


def test_databases_of_django_tell_the_same(server: Server, session: Session) -> None:
    """In atomic blocks and outside of them; its own reads ask nothing."""
    import django
    from django.conf import settings
    from django.db import connections, transaction

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    alias, login = server.settings.database, server.login
    named = {"HOST": login["host"], "PORT": login["port"], "USER": login["user"], "PASSWORD": login["password"]}
    made = {"ENGINE": "django.db.backends.postgresql", "NAME": alias, **named, "OPTIONS": {"options": FLUSHED}}
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: made})[alias]
    track_database(alias, SHARD)
    try:
        with using(session):
            with transaction.atomic(alias), connections[alias].cursor() as cursor:
                cursor.execute(UPDATE)
            assert knows(session, server.last())
            with connections[alias].cursor() as cursor:
                cursor.execute(UPDATE)
            assert knows(session, server.last())
    finally:
        connections[alias].close()


def test_what_a_text_says() -> None:
    """What only reads, and what may commit."""
    assert statement_of("select 1", None).word == "select"
    assert statement_of(b"SELECT 1 INTO x", None).word == "select into"
    assert statement_of(" ", None).word == "nothing"
    assert statement_of(5, None).word == ""
    assert statement_of("/* c */ COMMIT AND CHAIN", None).word == "commit"
    assert statement_of("-- c\r\n/** * / */ (select 1)", None).word == "select"
    assert statement_of("/* /* */ select */ COMMIT", None).word == ""
    assert statement_of("-- now\rUPDATE t SET n = 1\nWHERE id IN (SELECT 1)", None).word == "update"
    assert statement_of("/*! c */ select 1 -- ", None).word == "select"


@pytest.mark.parametrize("driver", ["psycopg2.extensions", "pg8000.dbapi", "asyncpg.connection"])
def test_other_drivers_of_postgresql_are_refused(driver: str, session: Session) -> None:
    """What MariaDB is asked is an error there, after which nothing more can be done in the transaction."""
    connection = type("connection", (), {"__module__": driver})()
    for wrap in (track, track_async, session.wrap):
        with pytest.raises(ClientError, match=driver.partition(".")[0]):
            wrap(connection, SHARD)
