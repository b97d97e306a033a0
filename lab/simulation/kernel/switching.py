"""Greenlets as threads, a virtual clock, and a seeded choice of who runs next.

One greenlet runs at a time, until it waits or passes a place where threads may interleave. Time moves only while all
wait. Whoever waits for another thread is woken by it; only predicates (`Kernel.wait`) are asked again and again.
"""

from __future__ import annotations

import sys
from asyncio import _set_running_loop
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from traceback import StackSummary, walk_stack
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

TICK_S: Final = 1e-6
"""A wait takes at least this long, so that no rounding keeps time from moving."""
SWITCH_CHANCE: Final = 0.25
"""How often a thread that need not wait lets another one run first."""
SWITCHES_MAX: Final = 200_000
"""Switches without time moving after which the threads are taken to run in circles."""


class DeadlockError(Exception):
    """Nothing can ever run again, or the threads run in circles. Names what each thread waits for."""


class Timer:
    """A call at a time. ``owner``: the process that it dies with."""

    __slots__ = ("call", "owner")

    def __init__(self, owner: Process, call: Callable[[], None]) -> None:
        self.owner = owner
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Makes it nothing."""
        self.call = None


class Process:
    """A process of the installation, from its start to its end. One that starts again is another `Process`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.held: list[GreenThread] = []
        """Threads that could run but for the pause."""
        self.threads: list[GreenThread] = []
        self.at_end: list[Callable[[], None]] = []
        """What the operating system does when the process ends, such as closing its connections."""


class GreenThread:
    """A thread of a process. ``loop``: the event loop that it runs, if any."""

    __slots__ = ("done", "green", "joiners", "loop", "name", "process", "ready", "timer", "waiting", "woken")

    def __init__(self, process: Process, name: str, loop: Any) -> None:
        self.process = process
        self.name = name
        self.loop = loop
        self.green: greenlet
        self.ready: Callable[[], bool] | None = None
        self.timer: Timer | None = None
        self.waiting = False
        self.woken = False
        self.done = False
        self.joiners: list[GreenThread] = []

    def __repr__(self) -> str:
        return f"{self.process.name or 'driver'}/{self.name}"


class Switching:
    """Threads and time of one history; `lab.simulation.kernel.scheduler.Kernel` adds event loops."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 0.0
        """Virtual monotonic time in seconds."""
        self.errors: list[tuple[str, BaseException]] = []
        """(thread, error) of each thread and callback that ended with one."""
        self._random = rng.random
        self._runnable: list[GreenThread] = []
        self._polling: list[GreenThread] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_count = 0
        self._switches = 0
        self._processes: dict[str, Process] = {}
        self._dead: list[Process] = []
        """Kept to the end, so that no garbage collection runs a dead thread's finally blocks in between."""
        self._closed = False
        self._deadlock = ""
        self._driver = GreenThread(self.process(""), "history", None)
        self._driver.green = getcurrent()
        self._running: GreenThread | None = self._driver
        self._running_loop: Any = None

    # --- processes ---

    @property
    def current(self) -> str:
        """The name of the running process; "" for the driver of the history."""
        return self.current_process.name

    @property
    def current_process(self) -> Process:
        """The running process."""
        return (self._running or self._driver).process

    @property
    def current_thread(self) -> GreenThread:
        """The running thread."""
        if self._closed or self._running is None:
            raise GreenletExit
        return self._running

    def process(self, name: str) -> Process:
        """The living process ``name``; it begins if there is none."""
        found = self._processes.get(name)
        if found is None:
            found = self._processes[name] = Process(name)
        return found

    def spawn(
        self,
        process: str | Process,
        work: Callable[[], object],
        name: str = "",
        loop: Any = None,
    ) -> GreenThread:
        """Starts a thread, which runs ``loop`` if there is one. An error that it ends with goes to `errors`."""
        of = process if isinstance(process, Process) else self.process(process)
        thread = GreenThread(of, name or getattr(work, "__name__", "thread"), loop)

        def body() -> None:
            try:
                work()
            except GreenletExit:
                pass
            except BaseException as error:  # noqa: BLE001 - a rule judges it
                self.errors.append((repr(thread), error))
            thread.done = True
            for joiner in thread.joiners:
                self.wake(joiner)
            self._running = None

        thread.green = greenlet(body, self._driver.green)
        of.threads.append(thread)
        self._make_runnable(thread)
        return thread

    def kill(self, process: str) -> None:
        """Ends the process at once: nothing of it runs again, and no finally block of it does anything."""
        of = self._processes.pop(process, None)
        if of is None:
            return
        of.dead = True
        self._dead.append(of)
        self._take_out(of)
        for call in of.at_end:
            call()
        if self.current_process is of:
            self._switch()

    def pause(self, process: str) -> None:
        """Lets nothing of the process run until `resume`; the world goes on around it."""
        of = self.process(process)
        if not of.paused:
            of.paused = True
            of.held = self._take_out(of)

    def resume(self, process: str) -> None:
        """Ends `pause`."""
        of = self.process(process)
        of.paused = False
        held, of.held = of.held, []
        for thread in held:
            (self._runnable if thread.ready is None else self._polling).append(thread)

    def _take_out(self, process: Process) -> list[GreenThread]:
        taken = [each for each in (*self._runnable, *self._polling) if each.process is process]
        self._runnable = [each for each in self._runnable if each.process is not process]
        self._polling = [each for each in self._polling if each.process is not process]
        return taken

    def is_running(self, process: str) -> bool:
        """Whether the process has begun and was not killed."""
        return process in self._processes

    # --- waiting ---

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """As `lab.simulation.kernel.waits.Waits.wait`.

        ``ready`` is asked by any thread at any time: it must neither change anything nor wait. Raises `DeadlockError`,
        in the driver only.
        """
        if ready() or (timeout_s is not None and timeout_s <= 0):
            self.breathe()
            if ready() or (timeout_s is not None and timeout_s <= 0):
                return ready()
        me = self.current_thread
        me.ready = ready
        self._polling.append(me)
        return self.park(timeout_s) or ready()

    def run_until(self, ready: Callable[[], bool], within_s: float) -> bool:
        """For the driver: lets everything run until ``ready()``; False if it is not within the time."""
        return self.wait(ready, within_s)

    def park(self, timeout_s: float | None = None) -> bool:
        """Blocks the calling thread until `wake`; False if the time was up first."""
        me = self.current_thread
        me.waiting, me.woken = True, False
        if timeout_s is not None:
            me.timer = self.call_at(self.now + timeout_s, lambda: self._end_wait(me), me.process)
        self._switch()
        return me.woken

    def wake(self, thread: GreenThread) -> None:
        """Ends the thread's `park`, if it still waits."""
        if thread.waiting:
            thread.woken = True
            self._end_wait(thread)

    def breathe(self) -> None:
        """A place where another thread may run first."""
        if self._runnable and self._random() < SWITCH_CHANCE:
            self._runnable.append(self.current_thread)
            self._switch()

    def join(self, thread: GreenThread, timeout_s: float | None = None) -> None:
        """Waits until the thread has ended."""
        if not thread.done:
            me = self.current_thread
            thread.joiners.append(me)
            if not self.park(timeout_s):
                thread.joiners.remove(me)

    def call_at(self, at: float, call: Callable[[], None], owner: Process | None = None) -> Timer:
        """Calls ``call`` at a time, in no thread: it must not wait. It dies with ``owner``."""
        timer = Timer(owner or self._driver.process, call)
        self._timer_count += 1
        heappush(self._timers, (max(at, self.now + TICK_S), self._timer_count, timer))
        return timer

    @property
    def is_over(self) -> bool:
        """Whether `close` was called: whatever runs now only cleans up."""
        return self._closed

    def close(self) -> None:
        """Ends all threads, whatever they wait for. What their finally blocks do reaches nobody."""
        self._closed = True
        self._runnable, self._polling, self._timers = [], [], []
        for process in [*self._dead, *self._processes.values()]:
            for thread in process.threads:
                self._running = thread
                thread.green.throw(GreenletExit)
            process.threads, process.at_end = [], []
        self._running = self._driver
        self._set_loop(None)

    # --- switching ---

    def _end_wait(self, thread: GreenThread) -> None:
        thread.waiting = False
        if thread.timer is not None:
            thread.timer.call = None
            thread.timer = None
        if thread.ready is not None:
            thread.ready = None
            (thread.process.held if thread.process.paused else self._polling).remove(thread)
        self._make_runnable(thread)

    def _make_runnable(self, thread: GreenThread) -> None:
        if thread.process.paused:
            thread.process.held.append(thread)
        elif not thread.process.dead:
            self._runnable.append(thread)

    def _switch(self) -> None:
        """Runs the next thread; returns when the calling one is next."""
        me = self._running
        while True:
            chosen = self._running = self._next()
            if chosen.loop is not self._running_loop:
                self._set_loop(chosen.loop)
            if chosen is not me:
                chosen.green.switch()
                if self._closed:
                    raise GreenletExit
            if self._running is me:
                break
            # A thread has ended, and greenlet came back to the driver's. It chooses the next one.
        if self._deadlock and me is self._driver:
            raise DeadlockError(self._deadlock)

    def _set_loop(self, loop: Any) -> None:
        self._running_loop = loop
        _set_running_loop(loop)

    def _next(self) -> GreenThread:
        self._switches += 1
        if self._switches > SWITCHES_MAX:
            return self._give_up("the threads run in circles")
        while True:
            thread = self._choose()
            if thread is not None:
                return thread
            if not self._pass_time():
                return self._give_up("nothing can ever run again")

    def _choose(self) -> GreenThread | None:
        runnable, polling = self._runnable, self._polling
        count, pollers = len(runnable), len(polling)
        if count:
            at = int(self._random() * (count + pollers))
            if at >= count:
                thread = polling[at - count]
                if thread.ready():  # type: ignore[misc]
                    return self._found_ready(thread)
                at = int(self._random() * count)
            thread = runnable[at]
            runnable[at] = runnable[-1]
            runnable.pop()
            return thread
        first = int(self._random() * pollers)
        for thread in (*polling[first:], *polling[:first]):
            if thread.ready():  # type: ignore[misc]
                return self._found_ready(thread)
        return None

    def _found_ready(self, thread: GreenThread) -> GreenThread:
        self.wake(thread)
        return self._runnable.pop()

    def _pass_time(self) -> bool:
        """Moves time to the next timer and calls all that are due then; False if there is none."""
        timers = self._timers
        due: float | None = None
        while timers and (due is None or timers[0][0] <= due):
            at, _, timer = heappop(timers)
            if timer.call is None or timer.owner.dead:
                continue
            due = self.now = at
            self._switches = 0
            timer.call()
        return due is not None

    def _give_up(self, why: str) -> GreenThread:
        self._deadlock = "\n".join([why, *self.waits()])
        return self._driver

    def waits(self) -> list[str]:
        """For each thread that has not ended: what it waits in, innermost call first."""
        return [
            f"{thread!r}{' (paused)' if process.paused else ''}: {_calls(thread, thread is self._running)}"
            for process in self._processes.values()
            for thread in (*process.threads, *([self._driver] if process is self._driver.process else ()))
            if not thread.done
        ]


def _calls(thread: GreenThread, is_running: bool) -> str:
    frame = sys._getframe() if is_running else thread.green.gr_frame
    stack = StackSummary.extract(walk_stack(frame), lookup_lines=False)
    outside = [each for each in stack if Path(each.filename).parent != Path(__file__).parent]
    return " < ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in outside[:4])
