"""A PyMySQL connection whose commits a session follows: after each, the transaction's own GTID goes into the vector."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from .errors import WriteNotTracked

_READ_ONLY = frozenset({"select", "show", "explain", "describe", "desc", "use", "with", "values", "help", "kill"})
_WITHIN_TRANSACTION = frozenset({"insert", "update", "delete", "replace", "load"})
"""Statements that never end the transaction that they run in; what they pend for is its COMMIT."""

_IN_TRANSACTION = 1
"""SERVER_STATUS_IN_TRANS of the protocol."""

_FIRST_WORD = re.compile(rb"(?:\s|/\*(?!!).*?\*/|--[^\n]*\n|#[^\n]*\n|\()*([A-Za-z]+)", re.DOTALL)


class TrackedConnection:
    """Stands for a PyMySQL connection and behaves as it; ``observe`` gets the GTID (``0-1-5``) of every commit.

    Commits are seen by ``commit()``, by statements (COMMIT, DDL, START TRANSACTION, CALL) and by autocommit. A
    statement that begins with SELECT and yet writes (a function with side effects, under autocommit) needs `settle`
    with ``force=True`` after it.
    """

    def __init__(self, connection: Any, observe: Callable[[str], None]) -> None:
        self._inner = connection
        self._observe = observe
        self._pending = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cursor(self, cursor: Any = None) -> Any:
        """A cursor whose statements are tracked."""
        made = self._inner.cursor(cursor)
        made.connection = self
        return made

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Runs a statement, as PyMySQL's own ``query``; called by cursors."""
        word, before = _first_word(sql), self._in_transaction()
        self._pending = self._pending or word not in _READ_ONLY
        affected: int = self._inner.query(sql, unbuffered)
        if word in _WITHIN_TRANSACTION and before and self._in_transaction():
            return affected
        if word not in _READ_ONLY or before != self._in_transaction() or self._inner._result.has_next:
            self._pending = True
            self.settle()
        return affected

    def begin(self) -> None:
        """Starts a transaction; the one before it, if any, is committed by that."""
        self._pending = True
        self._inner.begin()
        self.settle()

    def commit(self) -> None:
        """Commits, and adds the transaction to the session's vector."""
        self._pending = True
        self._inner.commit()
        self.settle()

    def autocommit(self, value: bool) -> None:
        """Switches autocommit; switching it on commits."""
        self._pending = True
        self._inner.autocommit(value)
        self.settle()

    def close(self) -> None:
        """Closes the connection; what was committed is in the vector."""
        self.settle()
        self._inner.close()

    @property
    def done(self) -> bool:
        """True if it is closed and nothing that it committed is missing from the vector."""
        return not self._inner.open and not self._pending

    def settle(self, force: bool = False) -> None:
        """Takes the last commit's GTID, if there may be a new one and the connection is free to be asked."""
        import pymysql  # the client doesn't need it: whoever wraps one of its connections has it

        result = self._inner._result
        if not (self._pending or force) or (result is not None and (result.has_next or result.unbuffered_active)):
            return
        if not self._inner.open:
            return
        try:
            with self._inner.cursor(pymysql.cursors.Cursor) as cursor:
                cursor.execute("SELECT @@last_gtid")
                found = cursor.fetchone()[0]
        except pymysql.err.Error:
            return  # stays pending: `require_settled` says so before the next read
        finally:
            # The caller's cursor reads its own result after this.
            self._inner._result = result
        self._pending = False
        text = found.decode() if isinstance(found, bytes) else str(found or "")
        if text:
            self._observe(text)

    def require_settled(self) -> None:
        """Raises `WriteNotTracked` if a commit's GTID is still unknown."""
        self.settle()
        if self._pending:
            raise WriteNotTracked(
                "a transaction may have been committed on this connection, and its GTID could not be asked for",
                hint="read all results of the last statement; connection broken? client.session(str(session.vector))",
            )

    def _in_transaction(self) -> bool:
        return bool(self._inner.server_status & _IN_TRANSACTION)


def _first_word(sql: str | bytes) -> str:
    """The statement's first keyword in lower case, comments skipped; "" if there is none, which counts as a write."""
    raw = sql.encode("utf-8", "replace") if isinstance(sql, str) else bytes(sql)
    found = _FIRST_WORD.match(raw)
    return found[1].decode().lower() if found else ""
