"""A process's asyncio loop: asyncio's own tasks and futures, on virtual threads and time."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from asyncio import Future, Handle, Task, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from typing import Any

from lab.simulation.kernel.network import Listener, Network
from lab.simulation.kernel.switching import GreenThread, Process, Switching, Timer
from lab.simulation.kernel.threads import SimulatedExecutor


@contextmanager
def _unheard() -> Iterator[None]:
    """While it lasts, nobody hears that a coroutine can't be closed well, nor what it logs then."""
    before, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable()
    try:
        yield
    finally:
        logging.disable(disabled)
        sys.unraisablehook = before


class VirtualLoop:
    """What asyncio asks of an `asyncio.AbstractEventLoop`.

    Callbacks run in their order, in a thread of their own; after each of them other threads may run.
    """

    def __init__(self, kernel: Switching, process: Process, network: Network) -> None:
        self._kernel = kernel
        self._process = process
        self._network = network
        self._ready: deque[Handle] = deque()
        self._thread: GreenThread | None = None
        self._idle = False
        self._timers: dict[TimerHandle, Timer] = {}
        self._tasks: list[Task[Any]] = []
        """All of them: a task that nobody holds must not be ended by the garbage collection at some other time."""
        self._signals: dict[int, Handle] = {}
        self._executor: Executor | None = None

    def _run(self) -> None:
        ready, kernel = self._ready, self._kernel
        while True:
            if not ready:
                self._idle = True
                kernel.park()
                continue
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
            kernel.breathe()

    def _add(self, handle: Handle) -> None:
        self._ready.append(handle)
        if self._thread is not None:
            if self._idle:
                self._idle = False
                self._kernel.wake(self._thread)
        elif not self._process.dead:
            self._thread = self._kernel.spawn(self._process, self._run, "loop", self)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Handle:
        handle = Handle(callback, args, self, context)  # type: ignore[arg-type]
        self._add(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Handle:
        handle = self.call_soon(callback, *args, context=context)
        self._kernel.breathe()
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self._kernel.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context or contextvars.copy_context())  # type: ignore[arg-type]
        self._timers[handle] = self._kernel.call_at(when, partial(self._due, handle), self._process)
        return handle

    def _due(self, handle: TimerHandle) -> None:
        self._timers.pop(handle, None)
        self._add(handle)

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        timer = self._timers.pop(handle, None)
        if timer is not None:
            timer.cancel()

    def time(self) -> float:
        return self._kernel.now

    def create_future(self) -> Future[Any]:
        return Future(loop=self)  # type: ignore[arg-type]

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> Task[Any]:
        task: Task[Any] = Task(coro, loop=self, name=name, context=context)  # type: ignore[arg-type]
        self._tasks.append(task)
        return task

    def judge(self, done: Task[Any]) -> None:
        """Adds the error that a task ended with to those of the kernel."""
        if not done.cancelled() and (error := done.exception()) is not None:
            coroutine: Any = done.get_coro()
            self._kernel.errors.append((f"{self._process.name}/{coroutine.__qualname__}", error))

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> Future[Any]:
        if executor is None:
            executor = self._executor = self._executor or SimulatedExecutor(self._kernel)
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)  # type: ignore[arg-type]

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int = 0, **_: Any
    ) -> Listener:
        return self._network.listen(self._process, self, protocol_factory, host, port)

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,  # noqa: ARG002 - the network is one host
        port: int,
        **_: Any,  # of TLS, which no world has
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self._network.connect(self._process, self, protocol_factory, port)

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        self._signals[sig] = Handle(callback, args, self, None)  # type: ignore[arg-type]

    def handles(self, number: int) -> bool:
        """Whether the process handles a signal."""
        return number in self._signals

    def signal(self, number: int) -> None:
        """The process gets a signal that it handles."""
        self._add(self._signals[number])

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        self._kernel.errors.append((f"{self._process.name}/{context['message']}", error))

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def forget(self) -> None:
        """Lets go of all tasks, when the history is over."""
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException), _unheard():
                task.get_coro().close()
        for handle in self._ready:
            for each in handle._args or ():
                if hasattr(each, "cr_frame"):
                    each.close()
        self._tasks.clear()
        self._timers.clear()
        self._ready.clear()
