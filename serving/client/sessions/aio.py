"""A connection of aiomysql, asyncmy or psycopg that tells the current session what it commits; as `dbapi` for asyncio.

What has many connections (SQLAlchemy's asynchronous engine) is tracked by `sqlalchemy.track_engine`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, Self, TypeVar

from ..tracked import Statement
from .commits import BEGIN, COMMIT, ROLLBACK, SET, UNKNOWN, Asking, Commits, in_transaction
from .current import current
from .postgres import driver_of, track_postgres

Result = TypeVar("Result")

_MAY_COMMIT: Final = frozenset({"query", "next_result"})
"""Methods beyond those below by which the drivers run statements or end transactions."""


def track_async(connection: Any, shard: str) -> Any:
    """As `dbapi.track`, of a connection for asyncio. Wrap what a pool gives out; give the pool back what it gave."""
    driver = driver_of(connection)
    if driver is None:
        return TrackedAsync(connection, shard)
    track_postgres(driver, shard, current)
    return connection


class TrackedAsync:
    """What `track_async` returns."""

    def __init__(self, connection: Any, shard: str) -> None:
        self._inner = connection
        self._commits = Commits(shard)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in _MAY_COMMIT or not callable(found):
            return found
        return lambda *args, **options: self._call(UNKNOWN, lambda: found(*args, **options))

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        await self._run(self._commits.settle())
        return await self._inner.__aexit__(*raised)

    def cursor(self, *args: Any, **options: Any) -> TrackedAsyncCursor:
        """A cursor whose statements are noticed: ``async with``, or awaited."""
        return TrackedAsyncCursor(lambda: self._inner.cursor(*args, **options), self)

    async def begin(self) -> None:
        """Starts a transaction, which commits the one before it."""
        await self._call(BEGIN, self._inner.begin)

    async def commit(self) -> None:
        """Commits, and tells the session."""
        await self._call(COMMIT, self._inner.commit)

    async def rollback(self) -> None:
        """Rolls back."""
        await self._call(ROLLBACK, self._inner.rollback)

    async def autocommit(self, value: bool) -> None:
        """Switches autocommit. Switching it on commits."""
        if value:
            await self._call(SET, lambda: self._inner.autocommit(value))
        else:
            await self._inner.autocommit(value)

    async def ensure_closed(self) -> None:
        """Says good-bye to the server, and closes the connection."""
        await self._run(self._commits.settle())
        await self._inner.ensure_closed()

    async def _call(self, statement: Statement, run: Callable[[], Awaitable[Result]], cursor: Any = None) -> Result:
        await self._run(self._commits.before(statement))
        try:
            result = await run()
        except BaseException as error:
            await self._run(self._commits.failed(statement, can_ask=isinstance(error, Exception)))
            raise
        has_rows = getattr(cursor, "description", None) is not None
        await self._run(self._commits.after(statement, in_transaction=in_transaction(self._inner), has_rows=has_rows))
        return result

    async def _run(self, plan: Asking) -> None:
        try:
            question = next(plan)
            while True:
                question = plan.send(await self._asked(question))
        except StopIteration:
            pass
        except BaseException:  # cut off while it asked
            for _ in self._commits.settle(can_ask=False):
                pass
            raise

    async def _asked(self, question: str) -> Sequence[Any] | None:
        """The first row of the answer; None if there is none."""
        try:
            async with self._inner.cursor() as cursor:
                await cursor.execute(question)
                row: Sequence[Any] = (await cursor.fetchall())[0]
                return list(row.values()) if isinstance(row, dict) else row
        except Exception:  # noqa: BLE001 - each driver has its own, and whatever it is, nothing was told
            return None


class TrackedAsyncCursor:
    """A cursor of a `TrackedAsync`; behaves as the driver's once it is entered or awaited."""

    def __init__(self, make: Callable[[], Any], connection: TrackedAsync) -> None:
        self._make = make
        self.connection = connection
        self._cursor: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        self._cursor = await self._make().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Any:
        return self._cursor.__aiter__()

    async def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        """Runs a statement."""
        return await self._call(Statement.of(query), lambda: self._cursor.execute(query, *args, **options))

    async def executemany(self, query: Any, *args: Any, **options: Any) -> Any:
        """Runs a statement for each of several parameters."""
        return await self._call(Statement.of(query), lambda: self._cursor.executemany(query, *args, **options))

    async def callproc(self, *args: Any, **options: Any) -> Any:
        """Calls a procedure, which may commit."""
        return await self._call(UNKNOWN, lambda: self._cursor.callproc(*args, **options))

    async def nextset(self) -> Any:
        """Goes on to the next result, of a further statement."""
        return await self._call(UNKNOWN, self._cursor.nextset)

    async def close(self) -> None:
        """Closes the cursor. What was read no further is over, so that the server can be asked."""
        await self._cursor.close()
        await self.connection._run(self.connection._commits.settle())

    async def _call(self, statement: Statement, run: Callable[[], Awaitable[Result]]) -> Result:
        return await self.connection._call(statement, run, self._cursor)
