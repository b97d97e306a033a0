"""One mutant on trial, in a forked process: the tests that execute its line, then the worlds that do."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest

from lab.mutation.executed import WORLD
from lab.mutation.mutants import Live, Mutant, plant
from lab.simulation.engine import run_many
from lab.simulation.worlds import all_worlds

HISTORIES: Final = {"rows": 1_500, "catalog": 1_500, "processes": 200}
"""Histories of a world that a mutant must survive; of other worlds, `HISTORIES_OF_OTHERS`."""
HISTORIES_OF_OTHERS: Final = 60
SEED: Final = 1
MEMORY_MB: Final = 2_048
"""Memory that a trial may map in addition to the process's at its start. What measures all tests has no limit."""
PATIENCE_S: Final = 20.0
PATIENCE_FACTOR: Final = 20.0
"""A test or world may take this many times what it took when measured, and `PATIENCE_S`; else the mutant is caught."""
SURVIVED: Final = "survived"
NOT_PLANTED: Final = "not planted"
TIMEOUT: Final = "timeout"
DIED: Final = "died"


def histories(world: str) -> int:
    """How many histories of a world a mutant must survive."""
    return HISTORIES.get(world, HISTORIES_OF_OTHERS)


@dataclass(slots=True)
class Trials:
    """What all trials share: the tests by name, how long each takes, the functions that can be changed, and caches."""

    items: Mapping[str, pytest.Item]
    seconds: Mapping[str, float]
    live: Live
    caches: Sequence[Any]
    failed: list[str]
    """The names of tests that failed in this process: the plugin adds to it."""

    def verdict(self, mutant: Mutant, number: int, names: Sequence[str]) -> str:
        """Plants the mutant for good and says who caught it. ``number``: its place in its module."""
        if not plant(mutant.module, number, self.live):
            return NOT_PLANTED
        for cache in self.caches:
            cache.cache_clear()
        chosen = [name for name in names if not name.startswith(WORLD)]
        for at, name in enumerate(chosen):
            self._limit(name)
            following = self.items[chosen[at + 1]] if at + 1 < len(chosen) else None
            item = self.items[name]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return self.failed[0]
        for name in (name for name in names if name.startswith(WORLD)):
            self._limit(name)
            world = all_worlds()[name.removeprefix(WORLD)]
            failure = run_many(world, SEED, range(histories(world.name))).failure
            if failure is not None:
                return f"{name}: {failure.violation.rule}"
        return SURVIVED

    def _limit(self, name: str) -> None:
        """Lets the kernel end this process if the test does not end."""
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S + PATIENCE_FACTOR * self.seconds.get(name, 0.0))


@dataclass(slots=True)
class Running:
    """A trial that runs. ``verdict``: the end of a pipe through which it comes. ``folder``: its temporary files."""

    pid: int
    verdict: int
    folder: str

    def ended(self, status: int) -> str:
        """The verdict, after the process has ended with ``status``."""
        with os.fdopen(self.verdict, "rb") as pipe:
            told = pipe.read().decode()
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what its tests left behind
        if told:
            return told
        return TIMEOUT if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else DIED


def forked(work: Callable[[], str], *, limited: bool = True) -> Running:
    """Does ``work`` in a forked process of its own group, silently. ``limited``: with `MEMORY_MB` more at most."""
    folder = tempfile.mkdtemp(prefix="freshet-mutation-")
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return Running(pid, ours, folder)
    try:
        _settle(folder, ours)
        if limited:
            _limit_memory()
        os.write(theirs, work().encode())
    except BaseException as error:  # noqa: BLE001 - the parent hears of it, and nothing of this process may go on
        os.write(theirs, f"{DIED}: {type(error).__name__}".encode())
    finally:
        os._exit(0)


def _settle(folder: str, pipe: int) -> None:
    os.setpgid(0, 0)
    os.close(pipe)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = folder
    tempfile.tempdir = folder
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _limit_memory() -> None:
    mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
    limit = mapped + MEMORY_MB * 1_048_576
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
