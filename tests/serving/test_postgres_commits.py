"""When a connection of psycopg may have committed, decided without a server: plans over scripted statuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from serving.client import FreshetClient, Session
from serving.client.sessions.commits import COMMIT, ROLLBACK, Asking
from serving.client.sessions.postgres import _ATTRIBUTE, PostgresCommits, _hook, _hook_async, _runs
from serving.client.tracked import Statement

SHARD = "shop/0"
IDLE, ACTIVE, IN_TRANSACTION, IN_ERROR, UNKNOWN = range(5)


class Connection:
    """A connection that is idle."""

    autocommit = False
    pgconn = SimpleNamespace(pipeline_status=0, transaction_status=IDLE)


def new_session() -> Session:
    """A session that asks no front."""
    return FreshetClient("http://127.0.0.1:9").session()


def carried_out(plan: Asking) -> int:
    """How many questions a plan has. The same server answers all of them."""
    asked = 0
    try:
        next(plan)
        while True:
            asked += 1
            plan.send((7, 1, "", "1:0/5"))
    except StopIteration:
        return asked


@pytest.mark.parametrize(
    ("statement", "before", "is_told"),
    [
        (COMMIT, IDLE, False),
        (COMMIT, ACTIVE, True),
        (COMMIT, IN_TRANSACTION, True),
        (COMMIT, IN_ERROR, True),
        (COMMIT, UNKNOWN, False),
        (ROLLBACK, IN_TRANSACTION, False),
        (Statement("update", False), IDLE, True),
        (Statement("select", False), IDLE, False),
        (Statement("select", True), IDLE, True),
        (Statement("commit", False), IN_TRANSACTION, True),
        (Statement("release", False), IN_TRANSACTION, False),
        (None, IN_TRANSACTION, True),
    ],
)
def test_a_connection_that_is_idle_again_may_have_committed(
    statement: Statement | None, before: int, is_told: bool
) -> None:
    """``commit()`` after a pipeline too, of whose transaction nobody knew; not what was taken back or only read."""
    connection, session = Connection(), new_session()
    commits = PostgresCommits(connection, SHARD, lambda: session)
    if statement is None:
        carried_out(commits.ended(before))
    else:
        with _runs(connection, statement):
            carried_out(commits.ended(before))
    assert session.carried.unplaced == ({SHARD: "Postgres/1:0/5"} if is_told else {})
    assert session.carried.doubts == {}


def test_a_connection_that_is_wrapped_again_tells_another_session_of_another_shard() -> None:
    """A pool's connection serves one keyspace after another: the last one that wrapped it is meant."""
    one, other = new_session(), new_session()
    commits: Any = PostgresCommits(Connection(), SHARD, lambda: one)
    commits.retarget("other/1", lambda: other)
    assert carried_out(commits.ended(IN_TRANSACTION)) > 0
    assert (one.carried.unplaced, other.carried.unplaced) == ({}, {"other/1": "Postgres/1:0/5"})


class Many:
    """A cursor that sends many statements in a pipeline of the connection's, of which nobody else hears."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def executemany(self, *_: object) -> None:
        """It is idle before and after it."""
        self.connection.wait(None)
        self.connection.pgconn.pipeline_status = 1
        self.connection.wait(None)
        self.connection.pgconn.pipeline_status = 0


class AsyncMany(Many):
    """As `Many`, for asyncio."""

    async def executemany(self, *_: object) -> None:  # type: ignore[override]
        """See there."""
        await self.connection.wait(None)
        self.connection.pgconn.pipeline_status = 1
        await self.connection.wait(None)
        self.connection.pgconn.pipeline_status = 0


class Driver:
    """As much of psycopg's connection as is hooked. ``end``: of the server's log, which grows with each question."""

    autocommit = True
    cursor_factory: type[Any] = Many

    def __init__(self) -> None:
        self.pgconn = SimpleNamespace(pipeline_status=0, transaction_status=IDLE, send_query=self._asked)
        self.lock = nullcontext()
        self.rollback = self.commit = self.set_autocommit = lambda *_: None
        self.end = 4

    def _asked(self, _: bytes) -> None:
        self.end += 1

    def wait(self, _: object) -> Any:
        """What the server answers."""
        told = [b"7", b"1", b"", b"1:0/%d" % self.end]
        return [SimpleNamespace(ntuples=1, nfields=4, get_value=lambda _, column: told[column])]

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """It is idle before and after it."""
        self.wait(None)
        self.pgconn.pipeline_status = 1
        yield
        self.pgconn.pipeline_status = 0


class AsyncDriver(Driver):
    """As `Driver`, for asyncio."""

    cursor_factory = AsyncMany

    async def wait(self, _: object) -> Any:
        """See there."""
        return super().wait(_)

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[None]:  # type: ignore[override]
        """See there."""
        await self.wait(None)
        self.pgconn.pipeline_status = 1
        yield
        self.pgconn.pipeline_status = 0


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_pipeline_has_committed_is_told_when_it_is_over(monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    """Within it nothing can be asked. After it the connection may go back to its pool, where nobody asks."""
    monkeypatch.setattr("psycopg.generators.execute", lambda _: None)
    session = new_session()
    connection: Any = AsyncDriver() if is_async else Driver()
    commits = PostgresCommits(connection, SHARD, lambda: session)

    async def main() -> None:
        if is_async:
            _hook_async(connection, commits)
            async with connection.pipeline():
                await connection.wait(None)
                assert session.is_in_doubt("shop")
        else:
            _hook(connection, commits)
            with connection.pipeline():
                connection.wait(None)
                assert session.is_in_doubt("shop")

    asyncio.run(main())
    assert (session.carried.unplaced, session.carried.doubts) == ({SHARD: f"Postgres/1:0/{connection.end}"}, {})


@pytest.mark.parametrize("is_async", [False, True])
def test_what_many_statements_have_committed_is_told_after_them(
    monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """The driver sends them in a pipeline of its own, after which nothing else may be sent for long."""
    monkeypatch.setattr("psycopg.generators.execute", lambda _: None)
    session = new_session()
    connection: Any = AsyncDriver() if is_async else Driver()
    commits = PostgresCommits(connection, SHARD, lambda: session)
    setattr(connection, _ATTRIBUTE, commits)

    async def main() -> None:
        if is_async:
            _hook_async(connection, commits)
            await connection.cursor_factory(connection).executemany("INSERT INTO t VALUES (%s)", [[1], [2]])
        else:
            _hook(connection, commits)
            connection.cursor_factory(connection).executemany("INSERT INTO t VALUES (%s)", [[1], [2]])

    asyncio.run(main())
    assert (session.carried.unplaced, session.carried.doubts) == ({SHARD: f"Postgres/1:0/{connection.end}"}, {})
