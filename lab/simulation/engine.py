"""Histories, worlds and what comes of running one in the other. Nothing here touches a clock, a disk or a network.

A history is a list of *ops*: a name and small integers, which every world can interpret in any state (an op that does
not apply does nothing). So a history shrinks by leaving ops out, and a regression test is a short list of ops.
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

from lab.simulation.memo import sharing_work

Op = tuple[str | int, ...]
"""Name, then integers."""
History = list[Op]
Cell = tuple[str, str]
"""(fault, state that it met)."""

COLLECTED_EVERY = 256
"""Histories between two collections of garbage. A history leaves next to none (`HistoryRun.close`)."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule of docs/concepts/guarantees.md that did not hold, and how."""

    rule: str
    what: str


@dataclass(slots=True)
class Outcome:
    """What came of one history. ``trace``: one line an op, in words, if it was asked for."""

    violations: list[Violation] = field(default_factory=list)
    met: Counter[Cell] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    """Answers and their kind, to see that a world does something."""
    trace: list[str] = field(default_factory=list)

    def complain(self, rule: str, what: str) -> None:
        """Takes note of a violation."""
        self.violations.append(Violation(rule, what))


class World(Protocol):
    """A part of the system with the faults that it must bear."""

    name: str
    rules: tuple[str, ...]
    """Checkers, one a rule."""
    faults: tuple[str, ...]
    states: tuple[str, ...]

    def history(self, rng: Random) -> History:
        """A random history."""

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs a history; equal histories give equal outcomes. May raise what the code under test raises."""


class HistoryRun(Protocol):
    """A world while it runs one history."""

    outcome: Outcome

    def finish(self) -> None:
        """Quiet: the rules of the whole are checked."""

    def close(self) -> None:
        """Lets go of what refers to itself: the next history has its memory, without a garbage collection."""


class TracedRun:
    """What every run has: its outcome, and a trace in words where one is asked for."""

    def __init__(self, outcome: Outcome, trace: bool) -> None:
        self.outcome = outcome
        self.tracing = trace

    def complain(self, rule: str, what: str) -> None:
        """Takes note of a violation."""
        self.outcome.complain(rule, what)

    def say(self, text: str) -> None:
        """A line of the trace."""
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
    """What running many histories of one world showed."""

    world: str
    seed: int
    histories: int = 0
    seconds: float = 0.0
    """Of processor time, over all processes: what else the machine does is not counted."""
    failure: BrokenHistory | None = None
    met: Counter[Cell] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        """Takes in what another process found."""
        self.histories += other.histories
        self.seconds += other.seconds
        if self.failure is None or (other.failure is not None and other.failure.number < self.failure.number):
            self.failure = other.failure or self.failure
        self.met.update(other.met)
        self.answers.update(other.answers)

    def empty(self, world: World) -> list[Cell]:
        """Pairs of fault and state that no history met."""
        return [(fault, state) for fault in world.faults for state in world.states if not self.met[fault, state]]


def history_of(world: World, seed: int, number: int) -> History:
    """History ``number`` of ``seed``."""
    return world.history(Random(seed * 1_000_003 + number))


def run_one(world: World, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
    """Runs a history; what the code under test raises is a violation of ``never raises``."""
    try:
        return world.run(ops, trace=trace)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{'/'.join(place.filename.split('/')[-2:])}:{place.name}"
        return Outcome([Violation("never raises", f"{type(error).__name__} in {where}: {error}")])


def ops_of(run: type) -> dict[str, Callable[..., None]]:
    """The ops of a world's runs by name: its methods ``op_…``, with spaces."""
    return {name[3:].replace("_", " "): getattr(run, name) for name in dir(run) if name.startswith("op_")}


def shape(ops: Sequence[Op], fields: int) -> tuple[int, ...]:
    """The integers of a history's first op ``world``, filled up with zeros."""
    given = ops[0][1:] if ops and ops[0][0] == "world" else ()
    return (*(int(value) for value in given), *(0,) * fields)[:fields]


def play(run: HistoryRun, ops: Sequence[Op], known: Mapping[str, Callable[..., None]]) -> Outcome:
    """Runs the ops, and then until it is quiet. Stops at the first violation."""
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
    """No garbage collection but where the given function is called: of what came to be since the last one."""
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
    """Runs histories until one fails. ``during`` is entered around all of them (a planted bug)."""
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
