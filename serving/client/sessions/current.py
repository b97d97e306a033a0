"""The session of the request that is being answered, in a context variable: one for each task or thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ..aio import AsyncSession
from ..client import Session
from ..errors import ClientError
from ..session import SessionState

Kind = TypeVar("Kind", bound=SessionState)

_current: ContextVar[SessionState | None] = ContextVar("freshet_session", default=None)


class NoSession(ClientError):
    """There is no current session, or it is of the other kind (blocking, asyncio); code ``no_session``."""

    code = "no_session"


def current() -> SessionState | None:
    """The current session of either kind."""
    return _current.get()


def current_session() -> Session:
    """The current session. Raises `NoSession`."""
    return _of_kind(Session)


def current_async_session() -> AsyncSession:
    """The current session of an `AsyncClient`. Raises `NoSession`."""
    return _of_kind(AsyncSession)


@contextmanager
def using(session: Kind) -> Iterator[Kind]:
    """Makes ``session`` the current one within a ``with``: for a job, a test, or another framework's requests."""
    before = _current.set(session)
    try:
        yield session
    finally:
        _current.reset(before)


def _of_kind(kind: type[Kind]) -> Kind:
    found = _current.get()
    if not isinstance(found, kind):
        is_there = "is of another kind of client" if found is not None else "does not exist here"
        raise NoSession(
            f"the current session {is_there}",
            hint="put the middleware around the application; in a thread of your own run it in copy_context().run",
        )
    return found
