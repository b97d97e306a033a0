"""A bounded pool of sessions to a database, for short reads. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Generic, TypeVar

from tokens.errors import FreshetError

Session = TypeVar("Session")
T = TypeVar("T")

ANSWER_MARGIN_S: Final = 0.5
"""How much longer than a statement's limit its answer is waited for; the server ends the statement first."""


class SourceBusy(FreshetError):
    """All sessions to the source are in use. Code ``source_busy``."""

    code = "source_busy"


class Sessions(Generic[Session]):
    """Work that gets no session within ``wait_s`` seconds raises `SourceBusy`.

    Work that meets a dead session (an error that is ``lost``) is done once more with a new one, so that a restart of
    the server fails no read.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Session],
        end: Callable[[Session], None],
        during: Callable[[Session, float], AbstractContextManager[None]],
        lost: type[Exception],
        sessions_max: int,
        wait_s: float,
        timeout_s: float,
    ) -> None:
        """``name``: the server's, for messages. ``during``: what surrounds work that has so many seconds left.

        ``timeout_s``: what work has where nothing else is said.
        """
        self._name, self._connect, self._end, self._during, self._lost = name, connect, end, during, lost
        self._wait_s, self._timeout_s = wait_s, timeout_s
        self._permits = threading.BoundedSemaphore(sessions_max)
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._closed = False

    def run(self, timeout_s: float | None, work: Callable[[Session, float], T]) -> T:
        """Run ``work`` with a session and a deadline (`time.monotonic`)."""
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        with self._slot(deadline):
            session, fresh = self._take()
            try:
                return self._run_in(session, work, deadline)
            except self._lost:
                if fresh or time.monotonic() > deadline:
                    raise
            self._end_idle()
            return self._run_in(self._connect(), work, deadline)

    def close(self) -> None:
        """End all idle sessions. A session in use ends when its work is done."""
        with self._lock:
            self._closed = True
        self._end_idle()

    @contextmanager
    def _slot(self, deadline: float) -> Iterator[None]:
        if self._closed:
            raise SourceBusy("the reader of the source is closed")
        wait_s = max(min(self._wait_s, deadline - time.monotonic()), 0.0)
        if not self._permits.acquire(timeout=wait_s):
            raise SourceBusy(f"all sessions to {self._name} were busy for {wait_s:g} s", hint="try again later")
        try:
            yield
        finally:
            self._permits.release()

    def _take(self) -> tuple[Session, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return self._connect(), True

    def _run_in(self, session: Session, work: Callable[[Session, float], T], deadline: float) -> T:
        """Run ``work``. Keep the session only if no error occurred."""
        is_healthy = False
        try:
            with self._during(session, max(deadline - time.monotonic(), 0.0)):
                found = work(session, deadline)
            is_healthy = True
            return found
        finally:
            with self._lock:
                keep = is_healthy and not self._closed
                if keep:
                    self._idle.append(session)
            if not keep:
                self._end(session)

    def _end_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            self._end(session)
