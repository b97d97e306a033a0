"""A DB-API connection of any driver for MariaDB or MySQL that tells the current session what it commits.

Tried with PyMySQL, mysqlclient, mysql-connector, and through SQLAlchemy also aiomysql and asyncmy. It behaves as what
it wraps: all that it does not know goes there. psycopg's is not wrapped: see `postgres`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, TypeVar

from ..tracked import Statement
from .commits import BEGIN, COMMIT, ROLLBACK, SET, UNKNOWN, Asking, Commits, in_transaction
from .current import current
from .postgres import driver_of, is_hooked, track_postgres

Result = TypeVar("Result")

_MAY_COMMIT: Final = {
    "start_transaction": BEGIN,
    **dict.fromkeys(("query", "cmd_query", "cmd_query_iter", "next_result"), UNKNOWN),
}
"""Methods beyond DB-API's by which drivers run statements or end transactions."""


def track(connection: Any, shard: str) -> Any:
    """A connection whose commits the current session's reads will see. ``shard``: as in the settings, ``shop/0``.

    Wrap it once, where the application or its pool opens it. Autocommit, DDL and implicit commits are noticed; a SELECT
    that writes under autocommit (a function with side effects) is not. psycopg's connection is returned itself.
    """
    driver = driver_of(connection)
    if driver is None:
        return TrackedDbapi(connection, shard)
    track_postgres(driver, shard, current)
    return connection


def is_tracked(connection: Any) -> bool:
    """Whether `track` returned it."""
    return isinstance(connection, TrackedDbapi) or is_hooked(driver_of(connection))


class TrackedDbapi:
    """What `track` returns."""

    _OWN: Final = frozenset({"_inner", "_commits"})

    def __init__(self, connection: Any, shard: str) -> None:
        self._inner = connection
        self._commits = Commits(shard)
        self._run(self._commits.meet())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in _MAY_COMMIT or not callable(found):
            return found
        return lambda *args, **options: self._call(_MAY_COMMIT[name], lambda: found(*args, **options))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN or name == "autocommit":
            super().__setattr__(name, value)
        else:
            setattr(self._inner, name, value)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *raised: Any) -> Any:
        self._run(self._commits.settle())
        return self._inner.__exit__(*raised)

    def cursor(self, *args: Any, **options: Any) -> TrackedCursor:
        """A cursor whose statements are noticed."""
        return TrackedCursor(self._inner.cursor(*args, **options), self)

    def begin(self) -> Any:
        """Starts a transaction, which commits the one before it."""
        return self._call(BEGIN, self._inner.begin)

    def commit(self) -> None:
        """Commits, and tells the session."""
        self._call(COMMIT, self._inner.commit)

    def rollback(self) -> None:
        """Rolls back."""
        self._call(ROLLBACK, self._inner.rollback)

    @property
    def autocommit(self) -> Any:
        """A method of most drivers, and a property of mysql-connector's. Switching it on commits."""
        found = self._inner.autocommit
        if not callable(found):
            return found
        return lambda value: self._call(SET, lambda: found(value)) if value else found(value)

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self._call(SET, lambda: setattr(self._inner, "autocommit", value))

    def close(self) -> None:
        """Closes the connection."""
        self._run(self._commits.settle())
        self._inner.close()

    def _call(self, statement: Statement, run: Callable[[], Result], cursor: Any = None) -> Result:
        self._run(self._commits.before(statement))
        try:
            result = run()
        except BaseException as error:
            self._run(self._commits.failed(statement, can_ask=isinstance(error, Exception)))
            raise
        has_rows = getattr(cursor, "description", None) is not None
        self._run(self._commits.after(statement, in_transaction=in_transaction(self._inner), has_rows=has_rows))
        return result

    def _run(self, plan: Asking) -> None:
        try:
            question = next(plan)
            while True:
                question = plan.send(self._asked(question))
        except StopIteration:
            pass
        except BaseException:  # cut off while it asked
            for _ in self._commits.settle(can_ask=False):
                pass
            raise

    def _asked(self, question: str) -> Sequence[Any] | None:
        """The first row of the answer; None if there is none."""
        try:
            cursor = self._inner.cursor()
            try:
                cursor.execute(question)
                row: Sequence[Any] = cursor.fetchall()[0]
                return list(row.values()) if isinstance(row, dict) else row
            finally:
                cursor.close()
        except Exception:  # noqa: BLE001 - each driver has its own, and whatever it is, nothing was told
            return None


class TrackedCursor:
    """A cursor of a `TrackedDbapi`; behaves as the driver's."""

    _OWN: Final = frozenset({"_cursor", "connection"})

    def __init__(self, cursor: Any, connection: TrackedDbapi) -> None:
        self._cursor = cursor
        self.connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._cursor, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    def __next__(self) -> Any:
        return next(self._cursor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, operation: Any, *args: Any, **options: Any) -> Any:
        """Runs a statement."""
        return self._call(Statement.of(operation), lambda: self._cursor.execute(operation, *args, **options))

    def executemany(self, operation: Any, *args: Any, **options: Any) -> Any:
        """Runs a statement for each of several parameters."""
        return self._call(Statement.of(operation), lambda: self._cursor.executemany(operation, *args, **options))

    def callproc(self, *args: Any, **options: Any) -> Any:
        """Calls a procedure, which may commit."""
        return self._call(UNKNOWN, lambda: self._cursor.callproc(*args, **options))

    def nextset(self) -> Any:
        """Goes on to the next result, of a further statement."""
        return self._call(UNKNOWN, self._cursor.nextset)

    def close(self) -> None:
        """Closes the cursor. What was read no further is over, so that the server can be asked."""
        self._cursor.close()
        self.connection._run(self.connection._commits.settle())

    def _call(self, statement: Statement, run: Callable[[], Result]) -> Result:
        return self.connection._call(statement, run, self._cursor)
