"""A connection of psycopg 3 that tells a session what it commits.

It stays the driver's own object, with all that pools and frameworks know of it. What psycopg sends, whoever asks for
it, goes through its connection's ``wait``, and after that the driver knows whether a transaction is open. So no commit
can be missed that ends one: not of ``transaction()``, of a pipeline, of COPY, of a procedure, nor of a transaction that
was prepared. What statements say is only used to ask less.

PostgreSQL names no position for a commit. The end of its log, asked for after it, is behind it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from ..errors import ClientError
from ..session import SessionState
from ..tracked import Statement
from .commits import COMMIT, POSTGRES, ROLLBACK, SET, Asking, Commits

_IDLE, _ACTIVE, _IN_TRANSACTION, _IN_ERROR = range(4)
"""libpq's transaction statuses; all others are of a broken connection."""
_READS: Final = frozenset({"select", "show", "table", "values", "set", "reset", "listen", "unlisten", "nothing"})
_COMMITS: Final = frozenset({"commit", "end", ""})
"""What may commit and leave a transaction open: ``COMMIT AND CHAIN``, and what is not known."""
_INTO: Final = re.compile(rb"\binto\b", re.IGNORECASE)
_FIRST_WORD: Final = re.compile(rb"(?:[\s(]|--[^\r\n]*(?:[\r\n]|\Z)|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)*([A-Za-z]+)")
"""PostgreSQL's comments end with a carriage return, too, and may be nested: what is within nested ones is not told."""
_OTHERS: Final = frozenset({"psycopg2", "psycopg2cffi", "pg8000", "asyncpg"})
_ATTRIBUTE: Final = "_freshet_commits"
_running: ContextVar[tuple[Any, Statement] | None] = ContextVar("freshet_statement", default=None)
"""The connection, and its statement that is run in this thread or task."""


def driver_of(connection: Any) -> Any:
    """psycopg's connection within what SQLAlchemy makes of it; None if ``connection`` is of another driver.

    Raises `ClientError` for other drivers of PostgreSQL: what others' servers are asked would end their transaction.
    """
    connection = getattr(connection, "driver_connection", connection)
    if others := {each.__module__.partition(".")[0] for each in type(connection).__mro__} & _OTHERS:
        raise ClientError(
            f"connections of {others.pop()} can't be tracked",
            hint="connect with psycopg 3 (SQLAlchemy: postgresql+psycopg://…)",
            code="not_tracked",
        )
    of_psycopg = any(each.__module__ == "psycopg" for each in type(connection).__mro__)
    return connection if of_psycopg and hasattr(connection, "wait") else None


def is_hooked(driver: Any) -> bool:
    """Whether `track_postgres` was called for it."""
    return hasattr(driver, _ATTRIBUTE)


def track_postgres(connection: Any, shard: str, whose: Callable[[], SessionState | None]) -> None:
    """Has psycopg's ``connection`` tell the session that ``whose`` names what it commits. It may be done again."""
    known: PostgresCommits | None = getattr(connection, _ATTRIBUTE, None)
    if known is not None:
        known.retarget(shard, whose)
        return
    from psycopg import AsyncConnection

    commits = PostgresCommits(connection, shard, whose)
    setattr(connection, _ATTRIBUTE, commits)
    (_hook_async if isinstance(connection, AsyncConnection) else _hook)(connection, commits)


class PostgresCommits(Commits):
    """The commits of one connection."""

    def __init__(self, connection: Any, shard: str, whose: Callable[[], SessionState | None]) -> None:
        super().__init__(shard, whose=whose, flavors=(POSTGRES,))
        self._connection = connection
        self.settle_idle: Callable[[], Any] = lambda: None
        """Tells what was committed in a pipeline, once that is over."""

    def retarget(self, shard: str, whose: Callable[[], SessionState | None]) -> None:
        """Tell another session, from here on."""
        self._shard, self.whose = shard, whose

    @property
    def status(self) -> int:
        """libpq's transaction status; in a pipeline nobody knows, so a transaction is under way."""
        pgconn = self._connection.pgconn
        return _ACTIVE if pgconn.pipeline_status else int(pgconn.transaction_status)

    @property
    def _statement(self) -> Statement | None:
        """What is run; None if nobody has said."""
        running = _running.get()
        return running[1] if running is not None and running[0] is self._connection else None

    def begins(self) -> Asking:
        """Before anything is sent: learns where the connection leads, while that can be asked."""
        statement = self._statement
        is_read = statement is not None and statement.word in _READS
        if self.status == _IDLE and self.whose() is not None and not is_read:
            yield from self.meet()

    def ended(self, before: int, *, was_cut_off: bool = False) -> Asking:
        """After something was sent, when the connection's status was ``before``."""
        statement, status = self._statement, self.status
        if self._may_have_committed(statement, before, status):
            self.owes = self.whose() or self.owes
        yield from self.settle(can_ask=status == _IDLE and not was_cut_off)

    def _may_have_committed(self, statement: Statement | None, before: int, status: int) -> bool:
        if statement == ROLLBACK or before > _IN_ERROR:  # then it was closed, and nothing was sent
            return False
        if statement == COMMIT:
            return before != _IDLE
        if statement is not None and (statement.has_further or statement.word in _COMMITS):
            return True
        if self._connection.pgconn.pipeline_status:
            return statement is None or bool(self._connection.autocommit)
        if status in (_ACTIVE, _IN_TRANSACTION, _IN_ERROR):
            return False
        if statement is None:
            return True
        return before in (_IDLE, _ACTIVE) and statement.word not in _READS

    def settle(self, *, can_ask: bool = True) -> Asking:
        """As `Commits.settle`. The connection may not have been idle before."""
        if can_ask and self.owes is not None:
            yield from self.meet()
        yield from super().settle(can_ask=can_ask)

    def cut_off(self) -> None:
        """It was interrupted while it asked."""
        for _ in self.settle(can_ask=False):
            pass

    def answer(self, results: Sequence[Any]) -> Sequence[Any] | None:
        """The first row of what the server has answered; None if there is none."""
        if len(results) != 1 or not results[0].ntuples:
            return None
        return [results[0].get_value(0, column) for column in range(results[0].nfields)]


def statement_of(query: Any, connection: Any) -> Statement:
    """What a query's text says of it. Of anything whose text isn't known, nothing."""
    if hasattr(query, "as_bytes"):
        try:
            query = query.as_bytes(connection)
        except Exception:  # noqa: BLE001 - the driver will say what is wrong with it
            return Statement("", False)
    text = query.encode("utf-8", "replace") if isinstance(query, str) else query
    if not isinstance(text, bytes):
        return Statement("", False)
    if not text.strip():
        return Statement("nothing", False)
    first, has_further = _FIRST_WORD.match(text), Statement.of(text).has_further
    word = first[1].decode().lower() if first else ""
    if word == "select" and _INTO.search(text):
        return Statement("select into", has_further)
    return Statement(word, has_further)


@contextmanager
def _runs(connection: Any, statement: Statement) -> Iterator[None]:
    before = _running.set((connection, statement))
    try:
        yield
    finally:
        _running.reset(before)


@cache
def _cursors(base: Any) -> Any:
    """Cursors of the class ``base`` whose statements say what they do."""

    class TrackedCursor(base):  # type: ignore[misc]
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            with _runs(self.connection, statement_of(query, self.connection)):
                return super().execute(query, *arguments, **options)

        def executemany(self, query: Any, *arguments: Any, **options: Any) -> Any:
            try:
                with _runs(self.connection, statement_of(query, self.connection)):
                    return super().executemany(query, *arguments, **options)
            finally:
                getattr(self.connection, _ATTRIBUTE).settle_idle()

    return TrackedCursor


@cache
def _async_cursors(base: Any) -> Any:
    """As `_cursors`."""

    class TrackedAsyncCursor(base):  # type: ignore[misc]
        async def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            with _runs(self.connection, statement_of(query, self.connection)):
                return await super().execute(query, *arguments, **options)

        async def executemany(self, query: Any, *arguments: Any, **options: Any) -> Any:
            try:
                with _runs(self.connection, statement_of(query, self.connection)):
                    return await super().executemany(query, *arguments, **options)
            finally:
                await getattr(self.connection, _ATTRIBUTE).settle_idle()

    return TrackedAsyncCursor


def _hook(connection: Any, commits: PostgresCommits) -> None:
    from psycopg import generators

    waits, pipeline, rollback, commit = connection.wait, connection.pipeline, connection.rollback, connection.commit

    def run(plan: Asking) -> None:
        try:
            question = next(plan)
            while True:
                question = plan.send(asked(question))
        except StopIteration:
            pass
        except BaseException:
            commits.cut_off()
            raise

    def asked(question: str) -> Sequence[Any] | None:
        try:
            connection.pgconn.send_query(question.encode())
            return commits.answer(waits(generators.execute(connection.pgconn)))
        except Exception:  # noqa: BLE001 - whatever it is, nothing was told
            return None

    def wait(generator: Any, *arguments: Any, **options: Any) -> Any:
        run(commits.begins())
        before = commits.status
        try:
            result = waits(generator, *arguments, **options)
        except BaseException as error:
            run(commits.ended(before, was_cut_off=not isinstance(error, Exception)))
            raise
        run(commits.ended(before))
        return result

    def settle() -> None:
        if commits.owes is not None:
            with connection.lock:
                if commits.status == _IDLE:
                    run(commits.settle())

    @contextmanager
    def with_pipeline() -> Iterator[Any]:
        try:
            with pipeline() as made:
                yield made
        finally:
            settle()

    def noted(statement: Statement, call: Callable[..., None]) -> Callable[..., None]:
        def run_noted(*arguments: Any, **options: Any) -> None:
            with _runs(connection, statement):
                call(*arguments, **options)

        return run_noted

    commits.settle_idle = settle
    connection.wait, connection.pipeline = wait, with_pipeline
    connection.cursor_factory = _cursors(connection.cursor_factory)
    connection.rollback, connection.commit = noted(ROLLBACK, rollback), noted(COMMIT, commit)
    connection.set_autocommit = noted(SET, connection.set_autocommit)  # Django does it around each block


def _hook_async(connection: Any, commits: PostgresCommits) -> None:
    from psycopg import generators

    waits, pipeline, rollback, commit = connection.wait, connection.pipeline, connection.rollback, connection.commit

    async def run(plan: Asking) -> None:
        try:
            question = next(plan)
            while True:
                question = plan.send(await asked(question))
        except StopIteration:
            pass
        except BaseException:
            commits.cut_off()
            raise

    async def asked(question: str) -> Sequence[Any] | None:
        try:
            connection.pgconn.send_query(question.encode())
            return commits.answer(await waits(generators.execute(connection.pgconn)))
        except Exception:  # noqa: BLE001 - whatever it is, nothing was told
            return None

    async def wait(generator: Any, *arguments: Any, **options: Any) -> Any:
        await run(commits.begins())
        before = commits.status
        try:
            result = await waits(generator, *arguments, **options)
        except BaseException as error:
            await run(commits.ended(before, was_cut_off=not isinstance(error, Exception)))
            raise
        await run(commits.ended(before))
        return result

    async def settle() -> None:
        if commits.owes is not None:
            async with connection.lock:
                if commits.status == _IDLE:
                    await run(commits.settle())

    @asynccontextmanager
    async def with_pipeline() -> AsyncIterator[Any]:
        try:
            async with pipeline() as made:
                yield made
        finally:
            await settle()

    def noted(statement: Statement, call: Callable[..., Any]) -> Callable[..., Any]:
        async def run_noted(*arguments: Any, **options: Any) -> None:
            with _runs(connection, statement):
                await call(*arguments, **options)

        return run_noted

    commits.settle_idle = settle
    connection.wait, connection.pipeline = wait, with_pipeline
    connection.cursor_factory = _async_cursors(connection.cursor_factory)
    connection.rollback, connection.commit = noted(ROLLBACK, rollback), noted(COMMIT, commit)
    connection.set_autocommit = noted(SET, connection.set_autocommit)  # Django does it around each block
