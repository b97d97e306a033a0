"""A few thousand inputs for every parser there is; millions by `make fuzz` (docs/internals/fuzzing.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stream.sources.mariadb.binlog.events import GTID
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.wire.events import SourceTransaction
from tests.fuzz.engine import Case, Misbehaved, Target, run
from tests.fuzz.mutate import Rng
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.binlog import Recorded, catalog
from tokens.errors import FreshetError

ROOT = Path(__file__).parents[2]
SEED = 20_261_122
COUNT = 3_000

pytestmark = pytest.mark.slow

Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def told() -> Told:
    """What each target found, all run one after the other in processes with a memory limit."""
    command = [sys.executable, "-m", "tests.fuzz", "--seed", str(SEED), "--count", str(COUNT), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(TARGETS), done.stderr[-2_000:]
    return {each["target"]: each for each in found}


@pytest.mark.parametrize("name", [target.name for target in TARGETS])
def test_no_input_makes_a_parser_misbehave(told: Told, name: str) -> None:
    """Each input is read or refused as documented: no crash, no hang, no memory, no error that is not ours."""
    assert not told[name]["failure"], told[name]["failure"]
    assert told[name]["executions"] >= COUNT * 0.04


def _target(run_one: Any) -> Target:
    return Target("own", "of this test", lambda: Case(lambda rng: rng.randrange(1_000), run_one))


def test_an_input_that_misbehaves_is_found_again_by_its_number() -> None:
    """A failure tells the seed and number that give the same input again."""

    def fails_at_times(drawn: int) -> None:
        if drawn % 7 == 0:
            raise Misbehaved(f"{drawn} is divisible by seven")

    first = run(_target(fails_at_times), seed=3, count=1_000).failure
    assert first is not None
    again = run(_target(fails_at_times), seed=3, skip=first.number, count=1).failure
    assert again is not None
    assert again.input == first.input
    assert f"--seed 3 --skip {first.number} --count 1" in str(first)


def test_an_input_that_takes_for_ever_is_ended_and_told() -> None:
    """A loop is a finding like any other, though it raises nothing itself."""

    def loops(_: int) -> None:
        while True:
            pass

    failure = run(_target(loops), seed=1, count=1, deadline_s=0.2).failure
    assert failure is not None
    assert "longer than its deadline" in failure.trace


def test_every_target_draws_the_same_input_for_the_same_number() -> None:
    """Without that nothing that is found could be looked at."""
    for target in TARGETS:
        if target.name in ("http", "owner_socket"):
            continue  # they start servers; their inputs are drawn like the others'
        case = target.build()
        for number in range(20):
            one, other = (repr(case.draw(Rng(f"{target.name}/{number}"))) for _ in range(2))
            if " object at 0x" not in one:
                assert one == other, target.name
        case.close()


def test_the_recorded_binlog_is_read_without_an_error() -> None:
    """The corpus is what a server sent, twice: unchanged, all of it is transactions."""
    known = catalog()
    begins = [at for at, event in enumerate(known.events) if event[4] == GTID]
    half = len(begins) // 2
    found: list[SourceTransaction | None] = []
    for events in (known.events[begins[0] : begins[half]], known.events[begins[half] :]):
        read = BinlogReader(Recorded(events), known, "MariaDB/0-1-1").transactions()  # type: ignore[arg-type]
        with pytest.raises(FreshetError, match="the end"):
            found.extend(read)
    assert sum(len(each.changes) for each in found if each is not None) > 30
