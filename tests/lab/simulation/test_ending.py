"""Running histories end when they are told to, whatever a history catches, and leave no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import psutil
import pytest

from lab.simulation.engine import History, Op, Outcome, run_many
from lab.simulation.worlds import all_worlds
from tests.consumers.consuming import until
from tests.marked import MARK, mark_of, marked
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
SLOWEST = max(all_worlds().values(), key=lambda world: world.cost).name
MANY = ["--world", SLOWEST, "--histories", "100000"]


class Swallowing:
    """A world that is interrupted amid each history, and takes that for an error of its own."""

    name = "swallowing"
    rules: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    cost = 1
    runs = 0

    def history(self, rng: Random) -> History:  # noqa: ARG002
        """Nothing."""
        return []

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:  # noqa: ARG002
        """As simulated threads do."""
        self.runs += 1
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as error:  # noqa: BLE001 - as simulated threads do
            return Outcome([], trace=[repr(error)])
        return Outcome()


def test_an_interrupt_strikes_after_the_history_that_it_meets() -> None:
    """It is neither lost nor taken for an error of the code under test."""
    world = Swallowing()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_many(world, 1, range(3))
    finally:
        signal.signal(signal.SIGINT, before)
    assert world.runs == 1


HANGS = """
from lab.simulation.engine import Outcome, run_one

class Hangs:
    def run(self, ops, *, trace=False):
        print("hangs", flush=True)
        while True:
            pass

run_one(Hangs(), [])
"""


def test_a_history_that_hangs_is_ended_by_the_second_signal() -> None:
    """The first one waits for the history's end."""
    with subprocess.Popen([sys.executable, "-c", HANGS], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        def told_again() -> bool:
            process.send_signal(signal.SIGTERM)
            return process.poll() is not None

        until(told_again, "it ends")
    assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [MANY, [*MANY, "--jobs", "2"], ["--mutate", "all", "--jobs", "2"]])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_soon_and_leaves_no_process(arguments: list[str], number: int, tmp_path: Path) -> None:
    """SIGTERM amid histories that would take hours is told in one line; a kill -9 takes its processes along."""
    said = tmp_path / "said"
    with mark_of("simulate", tmp_path.name) as mark, said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "freshet", "simulate", *arguments],
            cwd=ROOT,
            env=os.environ | {MARK: mark},
            stdout=out,
            stderr=out,
        )
        wanted = 2 if "--jobs" in arguments else 1
        until(lambda: sum(_works(each) for each in marked(mark)) >= wanted, "its processes run histories")
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
        until(lambda: not marked(mark), "nothing is left")
    if number == signal.SIGTERM:
        assert said.read_text().splitlines() == ["terminated"]


def _works(process: psutil.Process) -> bool:
    """Whether it has done more than to begin."""
    try:
        return bool(sum(process.cpu_times()[:2]) > 2)
    except psutil.Error:
        return False
