"""An event loop without clock, sockets or threads: it runs what is ready, in order, and time moves when it is told to.

Tasks and futures are asyncio's own. A connection is two ends in memory: bytes that one end writes are at once received
by the other one.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from heapq import heappop, heappush
from logging import CRITICAL
from typing import Any, Final, TypeVar, cast

import structlog

Found = TypeVar("Found")
ProtocolFactory = Callable[[], Any]
_SILENT: Final = structlog.make_filtering_bound_logger(CRITICAL)


class _Call:
    """A callback that is due. It may be cancelled."""

    __slots__ = ("arguments", "callback", "context")

    def __init__(self, callback: Callable[..., object] | None, arguments: tuple[Any, ...], context: Context) -> None:
        self.callback, self.arguments, self.context = callback, arguments, context

    def cancel(self) -> None:
        """It will not run."""
        self.callback = None

    def run(self) -> None:
        """Runs it in its context."""
        if self.callback is not None:
            self.context.run(self.callback, *self.arguments)


class VirtualLoop:
    """Runs tasks until all of them wait. Nothing depends on the time that this takes.

    It has what asyncio and the code under test use of an `asyncio.AbstractEventLoop`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._numbered = 0
        self._failure: BaseException | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self.listeners: dict[str, ProtocolFactory] = {}
        """Host → what makes the server's end of a connection."""

    def run(self) -> None:
        """Runs everything that is ready, and what becomes ready by it."""
        ready, outer = self._ready, events._get_running_loop()
        events._set_running_loop(cast("Any", self))
        try:
            while ready:
                ready.popleft().run()
        finally:
            events._set_running_loop(outer)

    def advance(self, seconds: float) -> None:
        """Moves the time on, and runs everything that is due until then."""
        end = self._now + seconds
        self.run()
        while self._timers and self._timers[0][0] <= end:
            self._now, _, call = heappop(self._timers)
            self._ready.append(call)
            self.run()
        self._now = end

    def failure(self) -> BaseException | None:
        """The error of a task that nobody has asked for it, or of a protocol; None if there is none."""
        if self._failure is not None:
            return self._failure
        for task in self._tasks:
            if task.done() and not task.cancelled() and task._log_traceback:
                return task.exception()
        return None

    def close(self) -> None:
        """Forgets everything. Tasks that still wait never run again."""
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        for each in (self._tasks, self._ready, self._timers, self.listeners):
            each.clear()

    # --- what asyncio, and the code under test, ask of a loop ---

    def time(self) -> float:
        return self._now

    get_debug = staticmethod(bool)
    """It is False. Every task and future asks."""

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        call = _Call(callback, args, copy_context() if context is None else context)
        self._ready.append(call)
        return call

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        self._numbered += 1
        call = _Call(callback, args, copy_context() if context is None else context)
        heappush(self._timers, (when, self._numbered, call))
        return call

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("Any", self))

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=cast("Any", self), name=name, context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Errors of tasks are found by `failure`, not when garbage is collected. Others are those of protocols."""
        if "task" not in context and "future" not in context:
            self._failure = self._failure or context["exception"]

    async def create_connection(self, protocol_factory: ProtocolFactory, host: str, port: int, **_: Any) -> Any:
        """Connects to the listener at ``host``. Raises `ConnectionRefusedError`."""
        listener = self.listeners.get(host)
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        mine, theirs = protocol_factory(), listener()
        end, other = _End(theirs), _End(mine)
        end.other, other.other = other, end
        theirs.connection_made(other)
        mine.connection_made(end)
        return end, mine


class _End(asyncio.Transport):
    """One end of a connection. ``receiver``: the protocol at the other end."""

    def __init__(self, receiver: Any) -> None:
        super().__init__()
        self.receiver = receiver
        self.other: _End
        self.closed = False

    def write(self, data: Any) -> None:
        if self.closed:
            return
        try:
            self.receiver.data_received(data)
        except Exception as error:  # noqa: BLE001 - asyncio tells its handler, and ends the connection
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"exception": error})
            self.close()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if self.closed:
            return
        self.closed = self.other.closed = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self.receiver.connection_lost, None)
        loop.call_soon(self.other.receiver.connection_lost, None)

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def pause_reading(self) -> None:
        """Nothing is buffered."""

    resume_reading = pause_reading


@contextmanager
def silent() -> Iterator[None]:
    """Keeps the code under test from logging: each line costs more than what it tells of."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=_SILENT)
    try:
        yield
    finally:
        structlog.configure(**before)


def finished(loop: VirtualLoop, work: Coroutine[Any, Any, Found]) -> Found:
    """The result of ``work``, which must not wait for anything but other tasks."""
    task = loop.create_task(work)
    loop.run()
    found: Found = task.result()
    return found
