"""What a connection for asyncio tells the current session, decided without a server: scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest

from serving.client import FreshetClient, Session
from serving.client.sessions import track_async, using
from tests.serving.test_session_commits import SHARD, observed

RETURNING = "INSERT INTO t RETURNING id"


class AsyncServer:
    """A driver's connection for asyncio and its server, which answers each question alike."""

    server_status = 0

    def __init__(self) -> None:
        self.ran: list[str] = []

    def cursor(self) -> AsyncCursor:
        """A cursor."""
        return AsyncCursor(self)

    async def ensure_closed(self) -> None:
        """Closes it."""
        self.ran.append("ensure_closed()")

    async def autocommit(self, value: bool) -> None:
        """Switches it."""
        self.ran.append(f"autocommit({value})")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ensure_closed()


class AsyncCursor:
    """A cursor of an `AsyncServer`."""

    def __init__(self, server: AsyncServer) -> None:
        self.server = server
        self.description: object = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def execute(self, sql: str) -> None:
        """Runs a statement."""
        self.server.ran.append("a question" if "@@pseudo_thread_id" in sql else sql)
        self.description = "rows" if "RETURNING" in sql else None

    async def fetchall(self) -> list[Any]:
        """The answer to a question."""
        return [(7, 1, "0-1-5", "0-1-9")]

    async def close(self) -> None:
        """Forgets its rows."""


async def leave(block: Any) -> None:
    """The end of a block of a connection or cursor."""
    async with block:
        pass


async def written(server: AsyncServer, end: Callable[[Any, Any], Awaitable[None]]) -> Session:
    """A session that writes a row without reading what is returned, and then ends its connection or its cursor."""
    session, connection = FreshetClient("http://127.0.0.1:9").session(), track_async(server, SHARD)
    with using(session):
        cursor = await connection.cursor()
        await cursor.execute(RETURNING)
        assert session.carried.doubts.keys() == {SHARD}
        await end(connection, cursor)
    return session


@pytest.mark.parametrize(
    "end", [lambda connection, _: connection.ensure_closed(), lambda connection, _: leave(connection)]
)
def test_what_may_be_committed_is_told_before_the_connection_is_closed(
    end: Callable[[Any, Any], Awaitable[None]],
) -> None:
    """Rows that were not read hide the commit from the session; afterwards nobody could tell it any more."""
    server = AsyncServer()
    session = asyncio.run(written(server, end))
    assert session.carried.doubts == {}
    assert observed(session) == "MariaDB/0-1-9"
    assert server.ran[-2:] == ["a question", "ensure_closed()"]


@pytest.mark.parametrize("end", [lambda _, cursor: cursor.close(), lambda _, cursor: leave(cursor)])
def test_what_may_be_committed_is_told_once_the_rows_are_not_wanted_any_more(
    end: Callable[[Any, Any], Awaitable[None]],
) -> None:
    """The connection is free then. Until its next statement, or for ever in a pool, each read would be in doubt."""
    session = asyncio.run(written(AsyncServer(), end))
    assert session.carried.doubts == {}
    assert observed(session) == "MariaDB/0-1-9"


@pytest.mark.parametrize(("value", "told"), [(True, "MariaDB/0-1-5"), (False, "")])
def test_switching_autocommit_on_commits(value: bool, told: str) -> None:
    """Switching it off does not, and costs no question."""
    session = FreshetClient("http://127.0.0.1:9").session()

    async def story() -> None:
        with using(session):
            await track_async(AsyncServer(), SHARD).autocommit(value)

    asyncio.run(story())
    assert observed(session) == told
