"""A PyMySQL connection that reports the GTID of each commit, so that a session's reads include its writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from .errors import WriteNotTracked

_READ_ONLY = frozenset({"select", "show", "explain", "describe", "desc", "use", "values", "help", "kill"})
WITHIN_TRANSACTION = frozenset({"insert", "update", "delete", "replace", "load"})
"""Statements that never end the transaction they run in: their GTID comes with its COMMIT."""

IN_TRANSACTION = 1
"""SERVER_STATUS_IN_TRANS in the protocol's ``server_status``."""

Result = TypeVar("Result")

_FIRST_WORD = re.compile(rb"(?:\s|/\*(?!M?!).*?\*/|--[^\n]*\n|#[^\n]*\n|\()*([A-Za-z]+)", re.DOTALL)
"""Skips comments, but for ``/*! … */`` and ``/*M! … */``, which the server executes."""
_FURTHER_STATEMENT = re.compile(rb";\s*\S")
"""Something follows that may be another statement."""


class Statement(NamedTuple):
    """What a statement's text says of it. A further one in the same text may do anything.

    ``word``: its first keyword in lower case, comments skipped; "" if there is none, which counts as a write.
    """

    word: str
    has_further: bool

    @classmethod
    def of(cls, sql: object) -> Statement:
        """Of a statement's text; of anything else that a driver takes for one, nothing is known."""
        raw = sql.encode("utf-8", "replace") if isinstance(sql, str) else sql
        if not isinstance(raw, (bytes, bytearray)):
            return cls("", False)
        first = _FIRST_WORD.match(raw)
        return cls(first[1].decode().lower() if first else "", bool(_FURTHER_STATEMENT.search(raw)))

    @property
    def only_reads(self) -> bool:
        """Whether it commits nothing. Of functions that write nobody knows."""
        return self.word in _READ_ONLY and not self.has_further


class TrackedConnection:
    """Wraps a PyMySQL connection and behaves like it. ``observe`` is called with the GTID (``0-1-5``) of every commit.

    It notices ``commit()``, statements that commit (COMMIT, DDL, START TRANSACTION, CALL) and autocommit. It does not
    notice a SELECT that writes under autocommit (a function with side effects): call ``settle(force=True)`` after it.

    A connection belongs to one thread at a time, but other threads may read in the session meanwhile. They do not touch
    the connection, and need nothing of a call that is under way.
    """

    def __init__(
        self,
        connection: Any,
        observe: Callable[[str], None],
        watch: Callable[[TrackedConnection], None] = lambda _: None,
    ) -> None:
        """``watch``: is called when the connection was opened again: a session may have forgotten it when it closed."""
        self._inner = connection
        self._observe = observe
        self._watch = watch
        self._pending = False
        """A call has ended that may have committed something, and its GTID is unknown."""
        self._session = connection._sock
        """The network connection of the last call, or of the one that is pending: another can't tell of its commits."""
        self._under_way = False
        self._user = get_ident()
        """The thread that made the last call."""

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
        """Runs a statement like PyMySQL's ``query``. Cursors call it."""
        statement, before = Statement.of(sql), self._in_transaction()
        commits_nothing = statement.word in _READ_ONLY or (before and statement.word in WITHIN_TRANSACTION)

        def may_have_committed() -> bool:
            # A further result is of a further statement in the same text: the server may have executed it already.
            return not commits_nothing or before != self._in_transaction() or self._inner._result.has_next

        return self._call(
            lambda: int(self._inner.query(sql, unbuffered)), may_have_committed, is_read=statement.only_reads
        )

    def next_result(self, unbuffered: bool = False) -> int:
        """Reads the next result of a statement like PyMySQL's ``next_result``. Cursors call it."""
        return self._call(lambda: int(self._inner.next_result(unbuffered)))

    def begin(self) -> None:
        """Starts a transaction, which commits the one before it, if any."""
        self._call(self._inner.begin)

    def commit(self) -> None:
        """Commits, and observes the transaction's GTID."""
        self._call(self._inner.commit)

    def autocommit(self, value: bool) -> None:
        """Switches autocommit; switching it on commits."""
        self._call(lambda: self._inner.autocommit(value))

    def close(self) -> None:
        """Closes the connection, after observing the last commit."""
        self.settle()
        self._inner.close()

    def _call(
        self, run: Callable[[], Result], may_have_committed: Callable[[], bool] = lambda: True, *, is_read: bool = False
    ) -> Result:
        """The result of ``run``, after observing what it committed. If it fails, it may have committed too."""
        import pymysql

        self._user, self._under_way = get_ident(), True
        if not self._pending:
            if self._inner._sock is not self._session:
                self._watch(self)
            self._session = self._inner._sock
        try:
            result = run()
            if may_have_committed():
                self._pending = not self._is_observed()
            return result
        except BaseException as error:
            if not is_read and self._session is not None:  # else nothing was sent
                is_observed = False
                try:
                    is_observed = isinstance(error, pymysql.err.Error) and self._is_observed()
                finally:  # an interrupt may strike there
                    self._pending = not is_observed
            raise
        finally:
            self._under_way = False

    @property
    def is_done(self) -> bool:
        """Whether the connection is closed and all its commits have been observed."""
        # A call that ends sets _pending before it clears _under_way: so ask in the other order.
        return not (self._inner.open or self._under_way or self._pending)

    def settle(self, force: bool = False) -> None:
        """Observes the last commit's GTID, if there may be a new one and the connection is free for a query."""
        if self._pending or force:
            self._user = get_ident()
            self._pending = not self._is_observed()

    def _is_observed(self) -> bool:
        """Asks for the last commit's GTID. False if the connection broke (also if it was opened again), or is busy."""
        found = self._asked("SELECT @@last_gtid")
        if found is None:
            return False
        text = found[0].decode() if isinstance(found[0], bytes) else str(found[0] or "")
        if text:
            self._observe(text)
        return True

    def _asked(self, sql: str) -> Any:
        """The first row of a query of tracking's own; None as `_is_observed` is False."""
        import pymysql  # not a dependency of the client: an application that wraps a connection has it

        result = self._inner._result
        is_same = self._inner.open and self._inner._sock is self._session
        if not is_same or (result is not None and (result.has_next or result.unbuffered_active)):
            return None
        try:
            with self._inner.cursor(pymysql.cursors.Cursor) as cursor:
                cursor.execute(sql)
                return cursor.fetchone()
        except pymysql.err.Error:
            return None
        finally:
            # The caller's cursor has yet to read its own result.
            self._inner._result = result

    def is_settled(self) -> bool:
        """Whether the GTID of each commit that has ended is known, after asking for it where that is possible.

        Any thread may call it.
        """
        if self._pending and self._user == get_ident():
            self.settle()
        return not self._pending

    def require_settled(self) -> None:
        """Raises `WriteNotTracked` if the GTID of a commit that has ended is unknown. Any thread may call it."""
        if not self.is_settled():
            raise WriteNotTracked(
                "a transaction may have been committed on this connection, and its GTID could not be read",
                hint="read all results of the last statement; connection broken? client.session(session.known)",
            )

    def _in_transaction(self) -> bool:
        return bool(self._inner.server_status & IN_TRANSACTION)
