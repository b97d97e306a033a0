"""Histories near the kept ones: they are histories of their world, repeat by their seed, and find what is wrong."""

from __future__ import annotations

from random import Random

import pytest
from typer.testing import CliRunner

from freshet.cli import app
from lab.simulation.campaign import shrink_failure, simulate
from lab.simulation.engine import BrokenHistory, History, World, history_of, run_many
from lab.simulation.near import NearWorld, near_worlds
from lab.simulation.planted.every import planted_bugs
from lab.simulation.worlds import all_worlds

WORLDS = near_worlds()


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_histories_run_and_are_of_the_same_seed_again(world: World) -> None:
    """Each op is one of the world, with as many numbers as it takes; slow worlds run few."""
    count = max(200 // world.cost, 5)
    report = run_many(world, 3, range(count))
    assert report.failure is None
    assert [history_of(world, 3, number) for number in range(count)] == [
        history_of(near_worlds()[world.name], 3, number) for number in range(count)
    ]


def test_each_differs_from_what_is_kept() -> None:
    """Nearly each history has another number, or an op more, less or elsewhere."""
    kept: list[History] = [[("world", 1, 0), ("read", 0, 0), ("write", 1, 2)], [("let", 3), ("read", 4, 5)]]
    world = NearWorld(all_worlds()["rows"], kept)
    found = [world.history(Random(number)) for number in range(500)]
    assert sum(each not in kept for each in found) > 400
    assert all(each for each in found)
    assert all(op[0] != "world" for each in found for op in each[1:])
    assert {op for each in found for op in each} > {op for each in kept for op in each[1:]}


def test_what_random_histories_seldom_meet_is_soon_found() -> None:
    """A bug that takes some ops in a row is met within a few dozen histories near those that meet it."""
    [bug] = planted_bugs("session_ignores_batches")
    assert run_many(near_worlds()[bug.world], 1, range(1_000), during=bug.planted()).failure is not None


def test_a_failure_is_reproduced_by_its_command() -> None:
    """It names the histories that it is one of, and they are run by several processes, too."""
    report = simulate("hive", 1, 600, jobs=2, near=True)
    assert (report.histories, report.failure) == (600, None)
    [bug] = planted_bugs("stale_is_fresh")
    failure = run_many(near_worlds()[bug.world], 1, range(2_000), during=bug.planted()).failure
    assert isinstance(failure, BrokenHistory)
    shown = shrink_failure(failure, bug, near=True).text
    assert f"--world {bug.world} --seed 1 --first {failure.number} --histories 1 --near" in shown


@pytest.mark.parametrize("other", [["--mutate", "stale_is_fresh"], ["--statements"]])
def test_no_bug_is_planted_meanwhile(other: list[str]) -> None:
    """Histories near a bug's own would tell nothing of how well it is found."""
    assert CliRunner().invoke(app, ["simulate", "--near", *other]).exit_code == 2
