"""Twins of what the standard library has for threads. Each blocks its virtual thread, and no other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Executor, Future
from concurrent.futures._base import PENDING, RUNNING
from queue import Empty
from typing import Any, Generic, NamedTuple, TypeVar

from lab.simulation.kernel.switching import GreenThread, Switching

T = TypeVar("T")


def _leave(waiting: MutableSequence[GreenThread], thread: GreenThread) -> None:
    """The thread waits no more. If its process was held, its turn may have come since its time was up."""
    if thread in waiting:
        waiting.remove(thread)


class SimulatedLock:
    """`threading.Lock`; with ``reentrant``, `threading.RLock`."""

    __slots__ = ("_depth", "_kernel", "_owner", "_reentrant", "_waiting")

    def __init__(self, kernel: Switching, *, reentrant: bool = False) -> None:
        self._kernel = kernel
        self._reentrant = reentrant
        self._owner: GreenThread | None = None
        self._depth = 0
        self._waiting: deque[GreenThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self._kernel
        kernel.breathe()
        me = kernel.current_thread
        if self._reentrant and self._owner is me:
            self._depth += 1
            return True
        end = kernel.now + timeout
        while self._owner is not None:
            if not blocking or (timeout >= 0 and kernel.now >= end):
                return False
            self._waiting.append(me)
            if not kernel.park(None if timeout < 0 else end - kernel.now):
                _leave(self._waiting, me)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if self._owner is None:
            if self._kernel.is_over:
                return  # its thread ends in the middle of `acquire_again`
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if self._depth == 0:
            self._free()

    def _free(self) -> None:
        self._owner = None
        if self._waiting:
            self._kernel.wake(self._waiting.popleft())

    def locked(self) -> bool:
        return self._owner is not None

    def release_all(self) -> int:
        """For a condition: releases it, however often it was acquired; returns how often."""
        depth, self._depth = self._depth, 0
        self._free()
        return depth

    def acquire_again(self, depth: int) -> None:
        """Undoes `release_all`."""
        self.acquire()
        self._depth = depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedLocal:
    """`threading.local`: each virtual thread has its own attributes."""

    def __init__(self, kernel: Switching) -> None:
        vars(self).update(_kernel=kernel, _of_thread={})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._of_thread[self._kernel.current_thread][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._of_thread.setdefault(self._kernel.current_thread, {})[name] = value


class SimulatedCondition:
    """`threading.Condition`."""

    __slots__ = ("_kernel", "_lock", "_waiting")

    def __init__(self, kernel: Switching, lock: SimulatedLock | None = None) -> None:
        self._kernel = kernel
        self._lock = lock or SimulatedLock(kernel, reentrant=True)
        self._waiting: list[GreenThread] = []

    def acquire(self) -> bool:
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        me = self._kernel.current_thread
        self._waiting.append(me)
        depth = self._lock.release_all()
        try:
            return self._kernel.park(timeout)
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
            self._lock.acquire_again(depth)

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        until = None if timeout is None else self._kernel.now + timeout
        while not (found := predicate()) and (until is None or self._kernel.now < until):
            self.wait(None if until is None else until - self._kernel.now)
        return found

    def notify(self, n: int = 1) -> None:
        for thread in self._waiting[:n]:
            self._waiting.remove(thread)
            self._kernel.wake(thread)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimulatedEvent:
    """`threading.Event`."""

    __slots__ = ("_is_set", "_kernel", "_waiting")

    def __init__(self, kernel: Switching) -> None:
        self._kernel = kernel
        self._is_set = False
        self._waiting: list[GreenThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            self._kernel.wake(thread)
        self._kernel.breathe()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._kernel.breathe()
        if not self._is_set:
            me = self._kernel.current_thread
            self._waiting.append(me)
            if not self._kernel.park(timeout):
                _leave(self._waiting, me)
        return self._is_set


class SimulatedSemaphore:
    """`threading.BoundedSemaphore`."""

    def __init__(self, kernel: Switching, value: int = 1) -> None:
        self._changed = SimulatedCondition(kernel)
        self._kernel = kernel
        self._value = self._bound = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        end = None if timeout is None else self._kernel.now + timeout
        with self._changed:
            while not self._value:
                if not blocking or (end is not None and self._kernel.now >= end):
                    return False
                self._changed.wait(None if end is None else end - self._kernel.now)
            self._value -= 1
            return True

    def release(self) -> None:
        with self._changed:
            if self._value >= self._bound:
                raise ValueError("Semaphore released too many times")
            self._value += 1
            self._changed.notify()


class SimulatedThread:
    """`threading.Thread`, of the process that makes it."""

    def __init__(
        self,
        kernel: Switching,
        target: Callable[..., object],
        name: str = "",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool = False,
    ) -> None:
        self.name = name
        self.daemon = daemon
        self._kernel = kernel
        self._work = lambda: target(*args, **(kwargs or {}))
        self._thread: GreenThread | None = None

    def start(self) -> None:
        self._thread = self._kernel.spawn(self._kernel.current_process, self._work, self.name)
        self._kernel.breathe()

    def join(self, timeout: float | None = None) -> None:
        if self._thread is None:
            raise RuntimeError("cannot join thread before it is started")
        self._kernel.join(self._thread, timeout)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.done


class SimulatedQueue(Generic[T]):
    """`queue.SimpleQueue`."""

    __slots__ = ("_items", "_kernel", "_waiting")

    def __init__(self, kernel: Switching) -> None:
        self._kernel = kernel
        self._items: deque[T] = deque()
        self._waiting: deque[GreenThread] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._waiting:
            self._kernel.wake(self._waiting.popleft())
        self._kernel.breathe()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        kernel = self._kernel
        end = None if timeout is None else kernel.now + timeout
        while not self._items:
            if not block or (end is not None and kernel.now >= end):
                raise Empty
            me = kernel.current_thread
            self._waiting.append(me)
            if not kernel.park(None if end is None else end - kernel.now):
                _leave(self._waiting, me)
        return self._items.popleft()

    def get_nowait(self) -> T:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class SimulatedFuture(Future[T]):
    """`concurrent.futures.Future`, whose condition is of the simulation."""

    def __init__(self, kernel: Switching) -> None:
        super().__init__()
        self._condition = SimulatedCondition(kernel)  # type: ignore[assignment]


class SimulatedExecutor(Executor):
    """`concurrent.futures.ThreadPoolExecutor`: up to ``max_workers`` threads of the process that makes it."""

    def __init__(
        self,
        kernel: Switching,
        max_workers: int = 8,
        thread_name_prefix: str = "pool",
    ) -> None:
        self._kernel = kernel
        self._process = kernel.current_process
        self._name = thread_name_prefix
        self._max = max_workers
        self._work: SimulatedQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimulatedQueue(kernel)
        self._threads: list[GreenThread] = []
        self._idle = 0
        self._is_shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = SimulatedFuture(self._kernel)
        if self._idle <= self._work.qsize() and len(self._threads) < self._max:
            name = f"{self._name}_{len(self._threads)}"
            self._threads.append(self._kernel.spawn(self._process, self._serve, name))
        self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def _serve(self) -> None:
        while True:
            self._idle += 1
            work = self._work.get()
            self._idle -= 1
            if work is None:
                self._work.put(None)  # for the next thread
                return
            future, call = work
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - it belongs to who waits
                    future.set_exception(error)
                else:
                    future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        while cancel_futures and not self._work.empty():
            work = self._work.get()
            if work is not None:
                work[0].cancel()
        self._work.put(None)
        if wait:
            for thread in self._threads:
                self._kernel.join(thread)


class Waited(NamedTuple):
    """`concurrent.futures.wait`'s result."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


def wait_futures(
    kernel: Switching, fs: Iterable[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> Waited:
    """`concurrent.futures.wait`."""
    futures = set(fs)
    enough = any if return_when == FIRST_COMPLETED else all
    # without their locks: nobody runs while the scheduler asks
    kernel.wait(lambda: enough(each._state not in (PENDING, RUNNING) for each in futures), timeout)
    done = {each for each in futures if each.done()}
    return Waited(done, futures - done)
