"""A mutant is planted where the code runs, in a process of its own, and what catches it is told."""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from lab.mutation import report
from lab.mutation.__main__ import MODULES, modules
from lab.mutation.executed import Executed, load
from lab.mutation.mutants import Mutant, changes, live_functions, mutants, plant
from lab.mutation.report import BEGIN, END, Equivalent, equivalents, table, write_page
from lab.mutation.results import Result, Results
from lab.mutation.trial import DIED, NOT_PLANTED, SURVIVED, TIMEOUT, forked
from tokens import integers

INTEGERS = "tokens/integers.py"


def verdict(work: object, *, limited: bool = True) -> str:
    """What comes of a function in a forked process."""
    assert callable(work)
    running = forked(work, limited=limited)
    _, status = os.waitpid(running.pid, 0)
    return running.ended(status)


def test_a_mutant_lives_in_its_process_only() -> None:
    """The process that goes on has the code as it is."""
    live = live_functions()
    before = integers.parse_unsigned.__code__

    def planted() -> str:
        number = [mutant.function for mutant in mutants(INTEGERS)].index("parse_unsigned")
        assert plant(INTEGERS, number, live)
        return "changed" if integers.parse_unsigned.__code__ != before else "same"

    assert verdict(planted) == "changed"
    assert integers.parse_unsigned.__code__ is before


def test_mutants_are_told_apart_and_found_again() -> None:
    """Keys name no lines, so what is said of a mutant holds while its function stays."""
    keys = [mutant.key for mutant in mutants(INTEGERS)]
    assert len(keys) > 20
    assert Counter(keys).most_common(1)[0][1] == 1
    assert [mutant.key for mutant in mutants(INTEGERS)] == keys
    assert len(list(changes(INTEGERS))) == len(keys)


def test_code_that_no_function_runs_is_not_planted() -> None:
    """A mutant that changes nothing in the process must not count as tried."""
    assert not plant(INTEGERS, 0, {})


def _hang() -> str:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    while True:
        time.sleep(1)


def _die() -> str:
    raise MemoryError


def test_a_trial_that_hangs_or_dies_has_a_verdict() -> None:
    """An endless loop or too much memory is a mistake that was noticed."""
    assert verdict(lambda: SURVIVED) == SURVIVED
    assert verdict(_hang) == TIMEOUT
    assert verdict(_die).startswith(DIED)


def test_who_executes_a_line_is_known_fastest_first(tmp_path: Path) -> None:
    """A mutant costs the quick tests of its lines; those that were measured anew replace the old ones."""
    known = Executed(
        "p",
        {"t.py": "1"},
        {"m.py": {"3": ["t.py::slow"], "4": ["t.py::fast", "u.py::slower"]}},
        {"t.py::slow": 5.0, "u.py::slower": 9.0},
    )
    known.add(Executed(lines={"m.py": {"4": ["u.py::x"]}}, seconds={"t.py::fast": 0.1, "u.py::x": 0.2}))
    known.save(tmp_path / "kept" / "executed.json")
    again = load(tmp_path / "kept" / "executed.json")
    assert again.by("m.py", 3, 4) == ["t.py::fast", "u.py::x", "t.py::slow"]
    assert again.by("m.py", 5, 9) == again.by("other.py", 3, 4) == []
    again.forget("t.py")
    assert again.by("m.py", 3, 4) == ["u.py::x"]


def _result(before: str, verdict: str) -> Result:
    return Result.of(Mutant("m.py", "f", "constant", before, "2", 1, 7, 7), verdict, 0.1)


def test_results_are_kept_and_the_last_one_counts(tmp_path: Path) -> None:
    """An interrupted run goes on where it was; mutants that are no more are forgotten."""
    results = Results(tmp_path / "results.jsonl")
    for result in (_result("1", SURVIVED), _result("1", "tests/x.py::y"), _result("3", SURVIVED)):
        results.add(result)
    again = Results(tmp_path / "results.jsonl")
    assert [(each.before, each.verdict) for each in again.all()] == [("1", "tests/x.py::y"), ("3", SURVIVED)]
    again.keep("m.py", {_result("3", SURVIVED).key})
    assert [each.before for each in again.all()] == ["3"]


def test_the_score_leaves_out_what_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equivalent mutants and those that were not planted are neither caught nor survivors."""
    results = [
        _result("1", "tests/x.py::y"),
        _result("2", "world rows: no stale answer"),
        _result("3", SURVIVED),
        _result("4", SURVIVED),
        _result("5", NOT_PLANTED),
        _result("6", TIMEOUT),
    ]
    lines = list(table(results, [Equivalent("m.py", "f", "it is the same", "4", "2")]))
    assert "| `m.py` | 4 | 2 | 1 | 1 | 75.0 % | 1 |" in lines
    assert "| all | 0 | 0 | 0 | 0 | – | 1 |" in table(results, [Equivalent("m.py", "f", "it only runs at import")])
    assert lines[-1] == "- m.py:7 f: `3` -> `2`"
    monkeypatch.setattr(report, "PAGE", tmp_path / "page")
    report.PAGE.write_text(f"# Page\n{BEGIN}\nold\n{END}\nend\n")
    write_page(["new"])
    assert report.PAGE.read_text() == f"# Page\n{BEGIN}\n\nnew\n\n{END}\nend\n"


def test_every_equivalent_mutant_is_one_of_the_code() -> None:
    """A reason for code that has changed is outdated: the mutant must be looked at again."""
    named = equivalents()
    there = {mutant.key for module in {each.module for each in named} for mutant in mutants(module)}
    assert [each for each in named if not any(each.is_one(key) for key in there)] == []
    assert [each for each in named if len(each.reason) < 20] == []


def test_the_modules_that_decide_answers_are_there() -> None:
    """A renamed module does not escape."""
    found = modules(MODULES)
    assert {"tokens/decision.py", "consumers/fold/rows.py", "serving/client/session.py"} <= set(found)
    assert len(found) > 50


def test_functions_that_a_consumer_has_frozen_are_found() -> None:
    """A consumer that starts tells the collector to pass over what there is."""
    gc.freeze()
    try:
        assert any(function is integers.parse_unsigned for found in live_functions().values() for function in found)
    finally:
        gc.unfreeze()


def test_only_trials_have_a_memory_limit() -> None:
    """The process that runs all tests to measure them maps more and more: a limit ended it after half an hour."""

    def limit() -> str:
        return str(resource.getrlimit(resource.RLIMIT_AS)[0])

    before = limit()
    assert verdict(limit) != before
    assert verdict(limit, limited=False) == before
