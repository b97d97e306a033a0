"""The kernel: the same seed gives the same run, time moves only while all wait, and what is killed is silent."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from queue import Empty
from random import Random
from typing import Any

import pytest

from lab.simulation.kernel.scheduler import EPOCH_S, Kernel
from lab.simulation.kernel.substitution import installed
from lab.simulation.kernel.switching import DeadlockError
from lab.simulation.kernel.threads import (
    SimulatedCondition,
    SimulatedEvent,
    SimulatedExecutor,
    SimulatedLocal,
    SimulatedLock,
    SimulatedQueue,
    SimulatedSemaphore,
    SimulatedThread,
)
from stream.publish.clock import SystemClock
from stream.sources.status import SourceStatus


def trace_of(seed: int) -> list[str]:
    """Who ran when, of three threads and two tasks that pass something on."""
    kernel, trace = Kernel(Random(seed)), list[str]()
    queue: SimulatedQueue[int] = SimulatedQueue(kernel)

    def give(name: str) -> None:
        for number in range(5):
            queue.put(number)
            trace.append(f"{name} gave {number} at {kernel.now:.6f}")
            kernel.park(kernel.rng.random() / 1000)

    def take() -> None:
        for _ in range(10):
            trace.append(f"took {queue.get()}")

    async def tick(name: str) -> None:
        for number in range(5):
            trace.append(f"{name} {number}")
            await asyncio.sleep(0)

    threads = [kernel.spawn("a", lambda: give("a")), kernel.spawn("b", lambda: give("b")), kernel.spawn("a", take)]
    kernel.run_task("a", lambda: tick("x"))
    kernel.run_task("b", lambda: tick("y"))
    assert kernel.run_until(lambda: all(each.done for each in threads), 10)
    kernel.close()
    return trace


def test_a_seed_is_a_run_and_seeds_differ() -> None:
    """Nothing but the seed decides who runs when."""
    runs = [trace_of(seed) for seed in range(8)]
    assert runs == [trace_of(seed) for seed in range(8)]
    assert len({tuple(run) for run in runs}) > 4


def test_time_moves_only_while_all_wait(kernel: Kernel) -> None:
    """A sleep of an hour takes no time, and ends in the order of the times."""
    ended = []

    def sleep(seconds: float) -> None:
        kernel.park(seconds)
        ended.append((seconds, kernel.now))

    for seconds in (3600.0, 1.0, 60.0):
        kernel.spawn("p", partial(sleep, seconds))
    assert not kernel.run_until(lambda: False, 4000)
    assert ended == [(1.0, 1.0), (60.0, 60.0), (3600.0, 3600.0)]
    assert kernel.now == 4000


def test_a_wait_ends_when_its_predicate_holds_or_its_time_is_up(kernel: Kernel) -> None:
    """`wait` returns what ``ready`` is, and not later than asked."""
    box = list[int]()
    found = list[tuple[bool, float]]()
    kernel.spawn("p", lambda: found.append((kernel.wait(lambda: bool(box), 5), kernel.now)))
    kernel.spawn("q", lambda: found.append((kernel.wait(lambda: len(box) > 1, 7), kernel.now)))

    def put() -> None:
        kernel.park(2)
        box.append(1)

    kernel.spawn("r", put)
    assert kernel.run_until(lambda: len(found) == 2, 100)
    assert found == [(True, 2.0), (False, 7.0)]


def test_a_killed_process_is_silent(kernel: Kernel) -> None:
    """Its threads stop where they wait: neither the next statement nor a finally block does anything, nor a task."""
    did = list[str]()
    event = SimulatedEvent(kernel)

    def work() -> None:
        try:
            event.wait()
            did.append("went on")
        finally:
            if not kernel.is_over:
                did.append("cleaned up")

    async def task() -> None:
        while True:
            did.append("tick")
            await asyncio.sleep(1)

    kernel.spawn("p", work)
    kernel.run_task("p", task)
    kernel.run_until(lambda: False, 2.5)
    assert did == ["tick"] * 3
    kernel.kill("p")
    event.set()
    kernel.run_until(lambda: False, 10)
    assert did == ["tick"] * 3
    assert not kernel.is_running("p")


def test_a_process_that_kills_itself_does_not_return(kernel: Kernel) -> None:
    """A crash in the middle of a call: nothing after it happens, and a new process of the name is another one."""
    did = list[str]()

    def crash() -> None:
        did.append("before")
        kernel.kill("p")
        did.append("after")

    kernel.spawn("p", crash)
    kernel.run_until(lambda: not kernel.is_running("p"), 1)
    kernel.spawn("p", lambda: did.append("again"))
    kernel.run_until(lambda: False, 1)
    assert did == ["before", "again"]


def test_a_paused_process_waits_until_it_is_resumed(kernel: Kernel) -> None:
    """Time passes for the others; afterwards it goes on, and finds its timers due."""
    ended = list[float]()

    def work() -> None:
        kernel.park(1)
        ended.append(kernel.now)

    kernel.spawn("p", work)
    kernel.run_until(lambda: False, 0.5)
    kernel.pause("p")
    kernel.run_until(lambda: False, 9.5)
    assert ended == []
    kernel.resume("p")
    kernel.run_until(lambda: False, 1)
    assert ended == [10.0]


def test_a_deadlock_is_an_error_that_names_what_is_waited_for(kernel: Kernel) -> None:
    """Two threads that hold each other's lock, and a driver that waits for them."""
    one, other = SimulatedLock(kernel), SimulatedLock(kernel)

    def take(first: SimulatedLock, second: SimulatedLock) -> None:
        with first:
            kernel.park(1)
            with second:
                raise AssertionError

    kernel.spawn("p", lambda: take(one, other), "left")
    kernel.spawn("p", lambda: take(other, one), "right")
    with pytest.raises(DeadlockError, match=r"(?s)p/left: test_kernel.py:\d+ take.*p/right: test_kernel.py:\d+ take"):
        kernel.wait(lambda: False)


def test_threads_that_run_in_circles_are_an_error(kernel: Kernel) -> None:
    """A loop that asks without waiting would never end."""

    def spin() -> None:
        while True:
            kernel.wait(lambda: True)

    kernel.spawn("p", spin)
    kernel.spawn("q", spin)
    with pytest.raises(DeadlockError, match="circles"):
        kernel.run_until(lambda: False, 1)


def test_an_error_that_ends_a_thread_is_kept() -> None:
    """Nobody joins a daemon thread, but its error is a finding."""
    kernel = Kernel(Random(1))
    kernel.spawn("p", lambda: 1 // 0, "divide")

    async def fail() -> None:
        raise KeyError("x")

    kernel.run_task("p", fail)
    kernel.run_until(lambda: False, 1)
    kernel.close()
    assert {(where.split("/")[0], type(error)) for where, error in kernel.errors} == {
        ("p", KeyError),
        ("p", ZeroDivisionError),
    }


def test_a_condition_wakes_who_waits_and_a_lock_keeps_others_out(kernel: Kernel) -> None:
    """Increments that read and write apart are not lost under a lock; a notified waiter sees what was changed."""
    changed = SimulatedCondition(kernel)
    count = [0]

    def add() -> None:
        for _ in range(20):
            with changed:
                before = count[0]
                kernel.breathe()
                count[0] = before + 1
                changed.notify_all()

    seen = list[int]()

    def watch() -> None:
        with changed, changed:  # reentrant
            while count[0] < 60:
                assert changed.wait(100)
            seen.append(count[0])
            assert not changed.wait(5)

    for _ in range(3):
        kernel.spawn("p", add)
    watching = kernel.spawn("p", watch)
    assert kernel.run_until(lambda: watching.done, 10)
    assert seen == [60]


def test_a_waiter_whose_time_was_up_takes_no_wakeup_of_others(kernel: Kernel) -> None:
    """An item that is put goes to a thread that still waits for one."""
    queue: SimulatedQueue[str] = SimulatedQueue(kernel)
    got = list[object]()

    def take(timeout: float | None) -> None:
        try:
            got.append(queue.get(timeout=timeout))
        except Empty:
            got.append("nothing")

    kernel.spawn("p", lambda: take(1))
    kernel.spawn("p", lambda: take(None))
    kernel.run_until(lambda: False, 2)
    kernel.spawn("p", lambda: queue.put("late"))
    kernel.run_until(lambda: False, 2)
    assert got == ["nothing", "late"]


def test_an_executor_runs_as_many_as_it_may_and_its_futures_can_be_awaited(kernel: Kernel) -> None:
    """Two workers take three seconds for six jobs of a second; errors reach who asked; a task can await one."""
    results = list[object]()

    def job(number: int) -> int:
        kernel.park(1)
        return 10 // number

    def ask() -> None:
        pool = SimulatedExecutor(kernel, 2)
        futures = [pool.submit(job, number) for number in range(6)]
        for future in futures:
            try:
                results.append(future.result())
            except ZeroDivisionError:
                results.append("error")
        pool.shutdown()
        results.append(kernel.now)

    asking = kernel.spawn("p", ask)
    assert kernel.run_until(lambda: asking.done, 100)
    assert results == ["error", 10, 5, 3, 2, 2, pytest.approx(3.0, abs=0.001)]

    async def task() -> None:
        results.append(await kernel.loop.run_in_executor(None, job, 2))

    kernel.run_task("p", task)
    kernel.run_until(lambda: results[-1] == 5, 10)
    assert results[-1] == 5


def test_a_semaphore_gives_up_in_time_and_refuses_what_was_not_taken(kernel: Kernel) -> None:
    """One permit: the second thread waits its time, and a surplus release is an error."""
    semaphore = SimulatedSemaphore(kernel, 1)
    got = list[tuple[bool, float]]()

    def hold() -> None:
        got.append((semaphore.acquire(), kernel.now))
        kernel.park(5)
        semaphore.release()

    kernel.spawn("p", hold)
    kernel.run_until(lambda: False, 1)
    kernel.spawn("p", lambda: got.append((semaphore.acquire(timeout=1), kernel.now)))
    kernel.spawn("p", lambda: got.append((semaphore.acquire(), kernel.now)))
    kernel.run_until(lambda: False, 10)
    assert got == [(True, 0.0), (False, 2.0), (True, 5.0)]
    semaphore.release()
    with pytest.raises(ValueError, match="too many"):
        semaphore.release()


def test_a_thread_belongs_to_the_process_that_starts_it_and_can_be_joined(kernel: Kernel) -> None:
    """`threading.Thread`, its arguments, its end, and a join that gives up."""
    seen = list[object]()

    def child(number: int) -> None:
        seen.append((kernel.current, number))
        kernel.park(3)

    def work() -> None:
        thread = SimulatedThread(kernel, child, args=(7,), daemon=True)
        thread.start()
        thread.join(1)
        seen.append((thread.is_alive(), kernel.now))
        thread.join()
        seen.append((thread.is_alive(), kernel.now))

    kernel.spawn("p", work)
    kernel.run_until(lambda: False, 10)
    assert seen == [("p", 7), (True, 1.0), (False, 3.0)]


def test_asyncio_runs_on_virtual_time(kernel: Kernel) -> None:
    """Timeouts, gather and locks of asyncio itself, in one process while another one blocks."""
    seen = list[object]()

    async def late() -> None:
        try:
            async with asyncio.timeout(2):
                await asyncio.sleep(100)
        except TimeoutError:
            seen.append(asyncio.get_running_loop().time())

    async def work() -> None:
        await asyncio.gather(late(), asyncio.sleep(1))
        seen.append(await asyncio.wait_for(asyncio.sleep(3, "done"), 5))

    kernel.run_task("p", work)
    kernel.spawn("q", SimulatedEvent(kernel).wait)
    kernel.run_until(lambda: len(seen) == 2, 100)
    assert seen == [2.0, "done"]
    assert kernel.now == 5.0


def test_the_product_sees_the_twins_while_they_are_installed(kernel: Kernel) -> None:
    """Globals, modules, and defaults that were bound at import; all of it is put back."""
    import stream.publish.publisher

    seen: Any = stream.publish.publisher
    status = SourceStatus()
    with installed(kernel):
        assert SystemClock().now() == EPOCH_S
        assert SystemClock().monotonic() == 0.0
        assert SourceStatus().clock() == 0.0
        assert isinstance(seen.threading.Event(), SimulatedEvent)
    assert seen.threading is threading
    assert isinstance(seen.threading.Event(), threading.Event)
    assert SystemClock().monotonic() != SystemClock().now()
    assert status.clock() > 0
    assert SourceStatus().clock is status.clock


def test_threads_have_locals_of_their_own(kernel: Kernel) -> None:
    """What one thread sets another one does not see, although both run in one thread of the machine."""
    shared, seen = SimulatedLocal(kernel), list[str]()

    def work(name: str) -> None:
        shared.name = name
        kernel.park(0.01)
        seen.append(shared.name)

    for name in "ab":
        kernel.spawn("p", partial(work, name))
    kernel.run_until(lambda: len(seen) == 2, 1)
    assert sorted(seen) == ["a", "b"]
    with pytest.raises(AttributeError):
        _ = shared.name


def test_a_lock_may_be_freed_for_a_thread_that_is_held(kernel: Kernel) -> None:
    """Its time is up while its process is held, and so is its turn. It goes on all the same."""
    lock, got = SimulatedLock(kernel), list[bool]()

    def own() -> None:
        lock.acquire()
        kernel.park(0.5)
        lock.release()

    kernel.spawn("q", own)
    kernel.run_until(lock.locked, 1)
    kernel.spawn("p", lambda: got.append(lock.acquire(timeout=0.2)))
    kernel.run_until(lambda: False, 0.1)
    kernel.pause("p")
    kernel.run_until(lambda: not lock.locked(), 1)
    kernel.resume("p")
    kernel.run_until(lambda: bool(got), 1)
    assert len(got) == 1
