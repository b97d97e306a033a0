"""Histories, worlds, and the outcomes of running histories. Nothing here reads a wall clock, a disk or a network.

A history is a list of *ops*: a name and small integers. Its world can run an op in any state: one that does not apply
does nothing. So a history can shrink by leaving ops out, and a regression test is a short list of ops.
"""

from __future__ import annotations

import gc
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import process_time
from typing import Protocol

from freshet.signals import signals_held
from lab.simulation.memo import sharing_work

Op = tuple[str | int, ...]
"""A name, then integers."""
History = list[Op]
Cell = tuple[str, str]
"""(fault, state in which it occurred)."""

COLLECTED_EVERY = 256
"""Histories between two garbage collections. A history leaves little garbage (`HistoryRun.close`)."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule of docs/concepts/guarantees.md that was broken, and how."""

    rule: str
    what: str


@dataclass(slots=True)
class Outcome:
    """The outcome of one history. ``trace``: lines that tell in words what happened, if requested."""

    violations: list[Violation] = field(default_factory=list)
    met: Counter[Cell] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    """Kind of answer → count, to show that a world does something."""
    trace: list[str] = field(default_factory=list)

    def complain(self, rule: str, what: str) -> None:
        """Records a violation."""
        self.violations.append(Violation(rule, what))


class World(Protocol):
    """A part of the system with the faults that it must tolerate."""

    name: str
    rules: tuple[str, ...]
    """The rules that it checks."""
    faults: tuple[str, ...]
    states: tuple[str, ...]
    cost: int
    """About how many histories of the fastest world run in the time of one. Where all worlds run, it runs fewer."""

    def history(self, rng: Random) -> History:
        """A random history."""

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs a history. Equal histories give equal outcomes. May raise what the code under test raises."""


def share_of(world: World, histories: int) -> int:
    """How many histories of a world to run where ``histories`` of the fastest one are."""
    return max(histories // world.cost, 2)


class HistoryRun(Protocol):
    """A world while it runs one history."""

    outcome: Outcome

    def finish(self) -> None:
        """Lets the run settle and checks the final state."""

    def close(self) -> None:
        """Breaks reference cycles, so that memory is freed without a garbage collection."""


class TracedRun:
    """The base of every run: its outcome, and a trace in words if requested."""

    def __init__(self, outcome: Outcome, trace: bool) -> None:
        self.outcome = outcome
        self.tracing = trace

    def complain(self, rule: str, what: str) -> None:
        """Records a violation."""
        self.outcome.complain(rule, what)

    def say(self, text: str) -> None:
        """Adds a line to the trace, if there is one."""
        if self.tracing:
            self.outcome.trace.append(text)


@dataclass(slots=True)
class BrokenHistory:
    """A history that broke a rule. ``number`` counts from 0 within the seed."""

    world: str
    seed: int
    number: int
    ops: History
    violation: Violation


@dataclass(slots=True)
class Report:
    """The result of running many histories of one world."""

    world: str
    seed: int
    histories: int = 0
    seconds: float = 0.0
    """Processor time over all processes, so that other load on the machine does not count."""
    failure: BrokenHistory | None = None
    met: Counter[Cell] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        """Adds another report of the same world and seed."""
        self.histories += other.histories
        self.seconds += other.seconds
        if self.failure is None or (other.failure is not None and other.failure.number < self.failure.number):
            self.failure = other.failure or self.failure
        self.met.update(other.met)
        self.answers.update(other.answers)

    def empty(self, world: World) -> list[Cell]:
        """The (fault, state) pairs that never occurred."""
        return [(fault, state) for fault in world.faults for state in world.states if not self.met[fault, state]]


def history_of(world: World, seed: int, number: int) -> History:
    """History ``number`` of ``seed``."""
    return world.history(Random(seed * 1_000_003 + number))


def run_one(world: World, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
    """Runs a history. An error of the code under test is a violation of ``never raises``.

    Ctrl-C and SIGTERM strike after it: what a handler raises amid a history is caught by the simulated threads, or by
    the code under test, as if it were an error of theirs. A second one ends the process, whatever hangs.
    """
    try:
        with signals_held(at_most=1):
            return world.run(ops, trace=trace)
    except Exception as error:  # noqa: BLE001 - every error is a finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{'/'.join(place.filename.split('/')[-2:])}:{place.name}"
        return Outcome([Violation("never raises", f"{type(error).__name__} in {where}: {error}")])


def ops_of(run: type) -> dict[str, Callable[..., None]]:
    """Name of op → method: the methods ``op_…`` of ``run``, with spaces for underscores."""
    return {name[3:].replace("_", " "): getattr(run, name) for name in dir(run) if name.startswith("op_")}


def shape(ops: Sequence[Op], fields: int) -> tuple[int, ...]:
    """The integers of a history's first op ``world``, padded with zeros to ``fields``."""
    given = ops[0][1:] if ops and ops[0][0] == "world" else ()
    return (*(int(value) for value in given), *(0,) * fields)[:fields]


def play(run: HistoryRun, ops: Sequence[Op], known: Mapping[str, Callable[..., None]]) -> Outcome:
    """Runs the ops, then the final checks. Stops at the first violation."""
    outcome = run.outcome
    try:
        for name, *numbers in ops:
            if name == "world":
                continue
            known[name](run, *numbers)  # type: ignore[index]
            if outcome.violations:
                return outcome
        run.finish()
        return outcome
    finally:
        run.close()


@contextmanager
def _deferred_garbage_collection() -> Iterator[Callable[[], int]]:
    """Disables automatic garbage collection. Gives a function that collects the youngest generation."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield partial(gc.collect, 0)
    finally:
        if enabled:
            gc.enable()


def run_many(
    world: World,
    seed: int,
    numbers: Iterable[int],
    *,
    during: AbstractContextManager[object] | None = None,
) -> Report:
    """Runs histories until one fails. ``during``: a context around all of them, such as a planted bug."""
    report = Report(world.name, seed)
    started = process_time()
    with during or nullcontext(), sharing_work(), _deferred_garbage_collection() as collect:
        for number in numbers:
            ops = history_of(world, seed, number)
            outcome = run_one(world, ops)
            report.histories += 1
            for cell, times in outcome.met.items():
                report.met[cell] += times
            for answer, times in outcome.answers.items():
                report.answers[answer] += times
            if outcome.violations:
                report.failure = BrokenHistory(world.name, seed, number, ops, outcome.violations[0])
                break
            if not report.histories % COLLECTED_EVERY:
                collect()
    report.seconds = process_time() - started
    return report
