"""A session of pytest that, instead of running its tests once, runs them for each mutant in a forked process."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import pytest
import xxhash
from hypothesis import Phase, settings

from lab.mutation.executed import FIXTURE, WORLD, Executed, Measuring, digest, load, product_digest
from lab.mutation.mutants import ROOT, Mutant, caches, live_functions, mutants
from lab.mutation.report import Equivalent
from lab.mutation.results import RESULTS, Result, Results
from lab.mutation.trial import SEED, SURVIVED, Running, Trials, forked, histories
from lab.simulation.engine import run_many
from lab.simulation.worlds import all_worlds

ARGUMENTS: Final = ["-q", "-s", "--tb=no", "--assert=plain", "-m", "not integration and not slow", "--timeout=0"]
WITHOUT: Final = ["xdist", "cacheprovider"]
"""Plugins that are left out."""
IN_OTHER_PROCESSES: Final = ["cli", "docs", "lab/mutation", "local", "packaging", "test_benchmarks.py", "test_rooms.py"]
"""Tests that run the code in other processes, or only read it, and those of the mutants themselves."""


@dataclass(frozen=True, slots=True)
class Options:
    """``chosen``: modules. ``sample``: mutants of each module, 0 for all. ``folder``: where results are kept.

    ``equivalent``: mutants that are not run. ``again``: also run mutants that were caught before.
    """

    chosen: Sequence[str]
    sample: int
    seed: int
    jobs: int
    folder: Path
    equivalent: Sequence[Equivalent]
    again: bool


class Session:
    """The plugin of pytest."""

    def __init__(self, options: Options, said: Callable[[str], None]) -> None:
        self._options = options
        self._say = said
        self._failed: list[str] = []
        self._measuring: Measuring | None = None
        self._current = ""
        self.results = Results(options.folder / RESULTS)

    @pytest.hookimpl
    def pytest_collection(self) -> None:
        """Lets Hypothesis repeat itself, and not look for shorter examples."""
        settings.register_profile("mutation", settings(), derandomize=True, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutation")

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remembers failures."""
        if report.failed:
            self._failed.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        """What a shared fixture executes belongs to every test that uses it."""
        if self._measuring is None or fixturedef.scope == "function":
            return (yield)
        self._measuring.running(f"{FIXTURE}{fixturedef.argname}")
        try:
            return (yield)
        finally:
            self._measuring.running(self._current)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measures what has changed, then tries the mutants."""
        items = {item.nodeid: item for item in session.items}
        executed = self._executed(items)
        trials = Trials(items, executed.seconds, live_functions(), caches(), self._failed)
        waiting = list(self._waiting(executed))
        random.Random(self._options.seed).shuffle(waiting)
        waiting.sort(key=lambda each: self.results.of(each[0]) is not None)  # survivors of before come first
        self._say(f"{len(waiting)} mutants to try")
        gc.collect()
        gc.freeze()  # forks need not copy what they never free
        running: dict[int, tuple[Running, Mutant, float]] = {}
        while waiting or running:
            while waiting and len(running) < self._options.jobs:
                mutant, number, names = waiting.pop()
                trial = forked(partial(trials.verdict, mutant, number, names))
                running[trial.pid] = trial, mutant, time.monotonic()
            pid, status = os.wait()
            trial, mutant, since = running.pop(pid)
            result = Result.of(mutant, trial.ended(status), round(time.monotonic() - since, 1))
            self.results.add(result)
            if result.verdict == SURVIVED:
                self._say(str(result))
        return True

    def _waiting(self, executed: Executed) -> Iterator[tuple[Mutant, int, list[str]]]:
        """(mutant, its number in its module, who executes it) of those to try. What nobody executes has survived."""
        for module in self._options.chosen:
            found = list(enumerate(mutants(module)))
            self.results.keep(module, {mutant.key for _, mutant in found})
            if self._options.sample:  # a sample that changes little when the module does
                found.sort(key=lambda each: xxhash.xxh3_64_intdigest(repr(each[1].key).encode(), self._options.seed))
            size = self._options.sample or len(found)
            for at, (number, mutant) in enumerate(found):
                before = self.results.of(mutant)
                if at >= size and before is None:
                    continue
                if any(each.is_one(mutant.key) for each in self._options.equivalent):
                    continue
                if before is not None and before.is_caught and not self._options.again:
                    continue
                names = executed.by(mutant.module, mutant.first, mutant.last)
                if names:
                    yield mutant, number, names
                else:
                    self.results.add(Result.of(mutant, SURVIVED, 0.0))
                    self._say(f"{mutant.module}:{mutant.first} is executed by no test and no world")

    def _executed(self, items: dict[str, pytest.Item]) -> Executed:
        """What each test and world executes: measured in forked processes where it is not known."""
        path = self._options.folder / "executed.json"
        product = product_digest()
        try:
            known = load(path)
        except (OSError, ValueError, TypeError):
            known = Executed()
        if known.product != product:
            known = Executed(product)
        files = {file: digest([ROOT / file]) for file in {name.split("::")[0] for name in items}}
        stale = sorted(file for file in files if known.files.get(file) != files[file])
        for file in {*known.files} - {*files} | {*stale}:
            known.forget(file)
        worlds = [] if known.product == product and known.files else [f"{WORLD}{name}" for name in all_worlds()]
        parts: list[list[str]] = [[] for _ in range(self._options.jobs)]
        for at, work in enumerate([*worlds, *stale]):
            parts[at % self._options.jobs].append(work)
        self._say(f"measures {len(worlds)} worlds and the tests of {len(stale)} files")
        running: dict[int, tuple[Running, Path]] = {}
        for at, part in enumerate(each for each in parts if each):
            made = self._options.folder / f"executed.{at}.json"
            trial = forked(partial(self._measure, part, items, made), limited=False)
            running[trial.pid] = trial, made
        while running:
            pid, status = os.wait()
            trial, made = running.pop(pid)
            if (told := trial.ended(status)) != SURVIVED:
                raise RuntimeError(f"the tests fail without a mutant: {told}")
            known.add(load(made))
            made.unlink()
        known.files = files
        known.save(path)
        return known

    def _measure(self, part: list[str], items: dict[str, pytest.Item], made: Path) -> str:
        """Runs files' tests and worlds, and writes what they execute. Says what failed."""
        measuring = self._measuring = Measuring(made.with_suffix(".coverage"))
        chosen = [item for name, item in items.items() if name.split("::")[0] in part]
        seconds: dict[str, float] = {}
        with measuring.measured():
            for name in (name for name in part if name.startswith(WORLD)):
                measuring.running(name)
                world = all_worlds()[name.removeprefix(WORLD)]
                since = time.process_time()
                report = run_many(world, SEED, range(histories(world.name)))
                seconds[name] = round(time.process_time() - since, 3)
                if report.failure is not None:
                    return f"{name}: {report.failure.violation}"
            held = caches()
            for item, following in zip_longest(chosen, chosen[1:]):
                for cache in held:
                    cache.cache_clear()  # else a line is executed only by the first test that needs its result
                self._current = item.nodeid
                measuring.running(item.nodeid)
                since = time.process_time()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                seconds[item.nodeid] = round(time.process_time() - since, 4)
        lines = measuring.lines()
        for by_line in lines.values():
            for line, names in by_line.items():
                by_line[line] = [each for name in names for each in _users(name, chosen)]
        Executed(lines=lines, seconds=seconds).save(made)
        return ", ".join(self._failed) or SURVIVED


def _users(name: str, items: list[pytest.Item]) -> list[str]:
    """The tests that use a shared fixture; any other name as it is."""
    if not name.startswith(FIXTURE):
        return [name]
    fixture = name.removeprefix(FIXTURE)
    return [item.nodeid for item in items if fixture in getattr(item, "fixturenames", ())]


def try_mutants(options: Options, said: Callable[[str], None]) -> tuple[int, Results]:
    """Runs the session. Gives pytest's exit code, and the results, old and new ones."""
    session = Session(options, said)
    without = [argument for plugin in WITHOUT for argument in ("-p", f"no:{plugin}")]
    ignored = [f"--ignore={ROOT / 'tests' / name}" for name in IN_OTHER_PROCESSES]
    arguments = [*ARGUMENTS, *without, *ignored, str(ROOT / "tests")]
    return int(pytest.main(arguments, plugins=[session])), session.results
