"""Commits of which the server can't tell at once: it is not asked to the end, or the call itself has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import pytest

from serving.client import Session
from serving.client.sessions import track, track_async, using
from serving.client.sessions.postgres import _ATTRIBUTE, PostgresCommits, _hook, _hook_async
from tests.serving.test_async_commits import AsyncCursor, AsyncServer
from tests.serving.test_postgres_commits import AsyncDriver, Driver, new_session
from tests.serving.test_session_commits import SHARD, Cursor, Server


class Blocking(Server):
    """A server whose questions are cut off by an ``error``."""

    error: BaseException | None = None

    def begin(self) -> None:
        """Begins a transaction."""

    def cursor(self) -> Cursor:
        """A cursor."""
        if self.error is not None:
            raise self.error
        return super().cursor()


class Awaited(AsyncServer):
    """As `Blocking`, for asyncio."""

    error: BaseException | None = None

    async def begin(self) -> None:
        """Begins a transaction."""

    async def commit(self) -> None:
        """Commits."""

    def cursor(self) -> AsyncCursor:
        """A cursor."""
        if self.error is not None:
            raise self.error
        return super().cursor()


class Postgres(Driver):
    """As `Blocking`. ``fails``: its next call ends with this."""

    error: BaseException | None = None
    fails: BaseException | None = None

    def _asked(self, question: bytes) -> None:
        if self.error is not None:
            raise self.error
        super()._asked(question)

    def wait(self, generator: object) -> Any:
        """What the server answers."""
        failed, self.fails = self.fails, None
        if failed is not None:
            raise failed
        return super().wait(generator)


class AsyncPostgres(Postgres):
    """As `Postgres`, for asyncio."""

    async def wait(self, generator: object) -> Any:
        """See there."""
        return super().wait(generator)


def hooked(server: Any, session: Session) -> Any:
    """A connection of psycopg that tells the session what it commits."""
    commits = PostgresCommits(server, SHARD, lambda: session)
    setattr(server, _ATTRIBUTE, commits)
    (_hook_async if isinstance(server, AsyncPostgres | AsyncDriver) else _hook)(server, commits)
    return server


async def each(*calls: Callable[[], Any]) -> None:
    """Does them, one after the other."""
    for call in calls:
        done = call()
        if isawaitable(done):
            await done


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg's own generators need a connection."""
    monkeypatch.setattr("psycopg.generators.execute", lambda _: None)


@pytest.mark.parametrize("kind", [Blocking, Awaited, Postgres, AsyncPostgres])
def test_a_commit_whose_question_is_cut_off_is_in_doubt(kind: type[Any]) -> None:
    """Whoever goes on with the session would miss its write: it was committed, and nobody has told where."""
    session, server = new_session(), kind()

    def cut_off() -> None:
        server.error = asyncio.CancelledError()

    if kind in (Blocking, Awaited):
        tracked = (track if kind is Blocking else track_async)(server, SHARD)
        begin, commit = tracked.begin, tracked.commit
    else:
        hooked(server, session)
        begin = commit = lambda: server.wait(None)
    with using(session), pytest.raises(asyncio.CancelledError):
        asyncio.run(each(begin, cut_off, commit))
    assert session.carried.doubts.keys() == {SHARD}


@pytest.mark.parametrize("kind", [Postgres, AsyncPostgres])
@pytest.mark.parametrize(("error", "is_told"), [(OSError("broken"), True), (asyncio.CancelledError(), False)])
def test_a_call_that_fails_may_have_committed(kind: type[Any], error: BaseException, is_told: bool) -> None:
    """A connection that is idle after it can tell at once, but not where the call was cut off."""
    session, server = new_session(), kind()
    hooked(server, session)

    def fail() -> None:
        server.fails = error

    with pytest.raises(type(error)):
        asyncio.run(each(lambda: server.wait(None), fail, lambda: server.wait(None)))
    assert session.carried.doubts.keys() == (set() if is_told else {SHARD})
    assert session.carried.unplaced == {SHARD: f"Postgres/1:0/{server.end}"}
