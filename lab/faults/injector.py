"""Injects a schedule of faults and undoes each; restarts our processes when they exit.

Each target has a thread, which begins and ends its faults, also when the run is over first.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final

import structlog

from freshet.local.errors import LocalServerError
from lab.demo.row_traffic import RowTraffic
from lab.faults.disk import ERRORS, Disk, FailingDisk, open_files, set_limit
from lab.faults.network import BOTH, Link, LinkConditions
from lab.faults.rig import CONSUMERS, LinkedStack
from lab.faults.schedule import Fault
from lab.faults.wall_clock import STEPS_S
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

WATCH_S: Final = 0.25
STOP_S_MAX: Final = 15.0
"""A stopped process must exit within this time, unless another fault makes it wait."""
LATENCY_S_MAX: Final = 0.4
BYTES_PER_S: Final = (4_000, 200_000)
CLOCK_SHIFTS_S: Final = {"forward": 3_600.0, "back": -30.0, "far_back": -86_400.0}
START_UP_S: Final = 12.0
"""Least time after a start before a process's open files are limited."""
READY: Final = '"event": "ready"'
AFTERMATH_S: Final = 5.0
"""A process may still exit because of a fault this long after its end."""
DISK_S_MAX: Final = 0.1
"""How long each read, write and sync of a slow disk takes at most, one after the other."""
ALL_ERRORS_ABOVE: Final = 0.5
"""Above this amount all operations of the disk fail; up to it, that share of them."""
RESTART_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class UnexpectedExit:
    """A process of ours exited without being stopped. ``during``: the faults of that moment; ``tail``: of its log."""

    role: str
    during: tuple[str, ...]
    tail: str

    @property
    def is_clean(self) -> bool:
        """Whether a consumer refused to start on a failing disk, with one line of error for the operator."""
        failing = any(f"disk {kind}" in self.during for kind in ERRORS)
        return failing and self.role in CONSUMERS and "error[store_io]" in self.tail


class Injector:
    """Runs one schedule of faults against one stack."""

    def __init__(
        self,
        stack: LinkedStack,
        disk: Disk | None,
        traffic: RowTraffic,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.met: Counter[str] = Counter()
        """``target kind`` → how often the fault was injected."""
        self.ended: list[UnexpectedExit] = []
        self.errors: list[str] = []
        self._stack, self._disk, self._traffic, self._seed, self._say = stack, disk, traffic, seed, say
        self._file_limited: set[int] = set()
        self._over = threading.Event()
        self._watching = threading.Event()
        self._threads: list[threading.Thread] = []
        self._watcher = threading.Thread(target=self._watch, name="faults-watch", daemon=True)
        self._down: set[str] = set()
        self._now: dict[str, str] = {}
        self._ended_at_s: dict[str, float] = {}
        self._up_since: dict[str, float] = {}
        self._lock = threading.Lock()
        self._began = 0.0

    def start(self, faults: Sequence[Fault]) -> None:
        """Starts the schedule: its times count from now."""
        self._began = time.monotonic()
        self._watcher.start()
        for target, timeline in groupby(sorted(faults, key=attrgetter("target", "at_s")), attrgetter("target")):
            thread = threading.Thread(target=self._follow, args=(list(timeline),), name=f"faults-{target}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self) -> None:
        """Ends the faults that are under way. Afterwards everything is running and repaired."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Stops watching the processes. Call `finish` first."""
        self._watching.set()
        if self._watcher.ident is not None:
            self._watcher.join()

    def _follow(self, timeline: Sequence[Fault]) -> None:
        for planned in timeline:
            if self._over.wait(max(self._began + planned.at_s - time.monotonic(), 0)):
                return
            fault = self._supported(planned)
            if fault is None:
                continue
            self._say(fault.line(self._seed))
            self.met[f"{fault.target} {fault.kind}"] += 1
            self._now[fault.target] = fault.kind
            try:
                with self._fault(fault):
                    self._over.wait(fault.for_s)
            except (FreshetError, OSError) as error:
                self.errors.append(f"{fault.line(self._seed)}: {error}")
            finally:
                self._ended_at_s[f"{fault.target} {fault.kind}"] = time.monotonic()
                self._now.pop(fault.target, None)

    def _supported(self, fault: Fault) -> Fault | None:
        """The fault as this machine can inject it; None if it cannot."""
        if fault.target == "disk" and not isinstance(self._disk, FailingDisk):
            if fault.kind == "slow_disk":
                return None
            return replace(fault, kind="full")
        clocks = self._stack.clocks
        if fault.target == "wall-clock" and (clocks is None or clocks.missing):
            return None
        return fault

    @contextlib.contextmanager
    def _fault(self, fault: Fault) -> Iterator[None]:
        """Injects the fault; undoes it on leaving."""
        with ExitStack() as undo:
            if fault.target in self._stack.roles:
                self._at_role(fault, undo)
            elif fault.target in ("kafka", "mariadb"):
                self._at_server(fault, undo)
            elif fault.target == "disk":
                self._at_disk(fault, undo)
            elif fault.target == "wall-clock":
                self._at_clocks(fault, undo)
            elif fault.target == "clock":
                self._traffic.clock_shift_s = CLOCK_SHIFTS_S[fault.kind] * (0.5 + fault.amount)
                undo.callback(setattr, self._traffic, "clock_shift_s", 0.0)
            else:
                for link in self._stack.links_of(fault.target):
                    undo.callback(link.clear)
                    if fault.kind == "lost_answers":
                        undo.callback(link.reset)  # runs before `clear`: held bytes are lost
                    apply_network_fault(link, fault)
            yield

    def _at_server(self, fault: Fault, undo: ExitStack) -> None:
        server = self._stack.broker(fault.amount) if fault.target == "kafka" else self._stack.mariadb
        if fault.kind == "pause":
            os.kill(server.pid, signal.SIGSTOP)
            undo.callback(os.kill, server.pid, signal.SIGCONT)
            return
        undo.callback(_retry_start, server.start)
        if fault.kind == "stop":
            server.stop()
        else:
            server.kill()

    def _at_disk(self, fault: Fault, undo: ExitStack) -> None:
        if fault.kind == "slow_disk" and isinstance(self._disk, FailingDisk):
            undo.callback(self._disk.mend)
            self._disk.slow(fault.amount * DISK_S_MAX)
            return
        if fault.kind in ERRORS and isinstance(self._disk, FailingDisk):
            undo.callback(self._disk.mend)
            self._disk.fail(fault.kind, 1.0 if fault.amount > ALL_ERRORS_ABOVE else max(fault.amount, 0.01))
            return
        assert self._disk is not None, "the schedule has no faults of a disk where there is none to fail"
        pid = self._pid("consume")
        self._disk.fill(pid)
        undo.callback(self._disk.free, pid)

    def _at_clocks(self, fault: Fault, undo: ExitStack) -> None:
        """Steps the clock of one process or of all; ``amount`` chooses which."""
        clocks, roles = self._stack.clocks, list(self._stack.roles)
        assert clocks is not None
        chosen = int(fault.amount * (len(roles) + 1))
        stepping = roles[chosen - 1 : chosen] or roles
        self._say(f"{'':>10} of {', '.join(stepping)}: {STEPS_S[fault.kind]:+.0f} s")
        for role in stepping:
            undo.callback(clocks.step, role, 0.0)
            clocks.step(role, STEPS_S[fault.kind])

    def _at_role(self, fault: Fault, undo: ExitStack) -> None:
        role = fault.target
        if fault.kind in ("pause", "no_files"):
            if fault.kind == "no_files" and not self._wait_until_started(role):
                return
            with self._lock:
                pid = self._pid(role)
                if fault.kind == "pause":
                    os.kill(pid, signal.SIGSTOP)
                else:
                    self._file_limited.add(pid)
                    set_limit(pid, resource.RLIMIT_NOFILE, open_files(pid) + int(fault.amount * 4))
            undo.callback(_undo_at_process, pid, fault.kind)
            return
        with self._lock:
            self._down.add(role)
        undo.callback(self._restart_role, role)
        if fault.kind == "kill":
            self._stack.kill_role(role)
            return
        began = time.monotonic()
        self._stack.stop_role(role)
        took_s = time.monotonic() - began
        others = sorted(f"{target} {kind}" for target, kind in self._now.items() if target != role)
        if took_s > STOP_S_MAX and not others:
            self.errors.append(f"{role} took {took_s:.1f} s to stop")

    def _wait_until_started(self, role: str) -> bool:
        """Waits until a process has started and opened its files. Returns False if the run ends first."""
        self._over.wait(max(self._up_since.get(role, self._began) + START_UP_S - time.monotonic(), 0))
        while not self._over.is_set():
            process = self._stack.roles[role].process
            if process is not None and READY in process.log():
                return True
            self._over.wait(WATCH_S)
        return False

    def _restart_role(self, role: str) -> None:
        with self._lock:
            self._start(role)
            self._down.discard(role)

    def _start(self, role: str) -> None:
        self._stack.start_role(role)
        self._up_since[role] = time.monotonic()

    def _pid(self, role: str) -> int:
        process = self._stack.roles[role].process
        if process is None:
            raise LocalServerError(f"{role} is not running")
        return process.pid

    def _watch(self) -> None:
        """Restarts processes that exited, as a supervisor would, and records each exit."""
        while not self._watching.wait(WATCH_S):
            for role, started in self._stack.roles.items():
                with self._lock:
                    process = started.process
                    if role in self._down or process is None or process.running():
                        continue
                    active = {f"{target} {kind}" for target, kind in self._now.items()}
                    since = time.monotonic() - AFTERMATH_S
                    active.update(name for name, ended in dict(self._ended_at_s).items() if ended > since)
                    if process.pid in self._file_limited:  # it may exit some time after it met the limit
                        active.add(f"{role} no_files")
                    during = tuple(sorted(active))
                    self.ended.append(UnexpectedExit(role, during, process.log_tail()))
                    self._say(f"{time.monotonic() - self._began:8.2f} s  {role} exited unexpectedly")
                    self._start(role)


def apply_network_fault(link: Link, fault: Fault) -> None:
    """Applies a network fault to a link. Raises `ValueError` for an unknown kind."""
    slowest, fastest = BYTES_PER_S
    match fault.kind:
        case "cut":
            link.cut()
        case "reset":
            link.reset()
        case "latency":
            link.set_conditions(LinkConditions(latency_s=fault.amount * LATENCY_S_MAX))
        case "slow":
            link.set_conditions(LinkConditions(bytes_per_s=slowest + (fastest - slowest) * fault.amount**2))
        case "hole_up":
            link.set_conditions(LinkConditions(blocked=True), ("up",))
        case "hole_down" | "lost_answers":
            link.set_conditions(LinkConditions(blocked=True), ("down",))
        case "hole":
            link.set_conditions(LinkConditions(blocked=True), BOTH)
        case _:
            raise ValueError(f"unknown network fault {fault.kind}")


def _undo_at_process(pid: int, kind: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        if kind == "pause":
            os.kill(pid, signal.SIGCONT)
        else:
            set_limit(pid, resource.RLIMIT_NOFILE, None)


def _retry_start(start: Callable[[], object]) -> None:
    for attempt in range(RESTART_ATTEMPTS):
        try:
            start()
        except LocalServerError:
            if attempt == RESTART_ATTEMPTS - 1:
                raise
        else:
            return
