"""The simulator itself: determinism, what a failure looks like, shrinking, and the command."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from freshet.cli import app
from lab.simulation.campaign import hunt, shrink_failure, simulate
from lab.simulation.engine import Op, World, history_of, run_many, run_one, share_of
from lab.simulation.memo import sharing_work
from lab.simulation.planted.every import PLANTED_BUGS, planted_bugs
from lab.simulation.shrink import shrink
from lab.simulation.worlds import all_worlds
from tests.lengths import length

WORLDS = all_worlds()
HISTORIES = length(1_000, 3_000)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_no_rule_breaks_in_many_histories(world: World) -> None:
    """The claim itself: in none of many histories is an answer stale, or anything lost, or a miss permanent."""
    found = run_many(world, 20, range(share_of(world, HISTORIES)))
    assert found.failure is None, shrink_failure(found.failure).text
    if found.histories >= 1_000:  # a slow world's share is too small to meet most pairs
        assert len(found.empty(world)) * 4 < max(len(world.faults) * len(world.states), 1)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_no_rule_breaks_in_a_few_histories(world: World) -> None:
    """The fast check's share of the claim."""
    found = run_many(world, 7, range(share_of(world, 150)))
    assert found.failure is None, shrink_failure(found.failure).text


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_a_seed_gives_the_same_histories_and_the_same_outcomes(world: World) -> None:
    """A seed replays a bug: same ops, same words, same counts, each time."""
    for number in range(min(10, share_of(world, 200))):
        ops = history_of(world, 3, number)
        assert ops == history_of(world, 3, number)
        assert repr(run_one(world, ops, trace=True)) == repr(run_one(world, ops, trace=True))


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_a_history_has_the_same_outcome_with_and_without_the_memo(world: World) -> None:
    """The memo makes histories faster and changes nothing else: every word of the trace is the same without it."""
    histories = [history_of(world, 11, number) for number in range(share_of(world, length(100, 500)))]
    with sharing_work():
        shared = [repr(run_one(world, ops, trace=True)) for ops in histories]
    for ops, outcome in zip(histories, shared, strict=True):
        assert repr(run_one(world, ops, trace=True)) == outcome


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_any_part_of_a_history_is_a_history(world: World) -> None:
    """Ops that do not apply do nothing: else a history could not be shrunk by leaving ops out."""
    for number in range(share_of(world, 40)):
        ops = history_of(world, 5, number)
        for part in (ops[::2], ops[1::2], ops[len(ops) // 2 :]):
            assert run_one(world, part).violations == []


def test_a_history_is_shrunk_to_the_ops_that_matter() -> None:
    """What a person reads is short: no op of it can be left out, no number be made smaller."""
    noise: list[Op] = [("a", 3), ("b", 9), ("c", 4), ("b", 1), ("d", 7), ("a", 8), ("e", 2)]

    def fails(ops: list[Op]) -> bool:
        big = next((at for at, op in enumerate(ops) if op[0] == "b" and int(op[1]) >= 5), None)
        return big is not None and any(op[0] == "d" for op in ops[big:])

    assert shrink(noise, fails) == [("b", 9), ("d", 0)]


def test_a_failure_tells_its_seed_and_a_short_story() -> None:
    """A failure can be understood, and run again, from its text."""
    [bug] = planted_bugs("fill_survives_a_change")
    caught = hunt(bug, 1, 2_000)
    assert caught.failure is not None
    story = shrink_failure(caught.failure, bug)
    assert len(story.ops) <= 10
    assert "--seed 1" in story.text
    assert "reaches its owner: filled" in story.text


def test_the_memo_is_cleared_when_a_bug_is_planted() -> None:
    """Histories that ran well just before do not hide the bug from the histories after."""
    [bug] = planted_bugs("watermark_without_marker")
    first = hunt(bug, 1, 2_000)
    assert run_many(WORLDS["rows"], 1, range(first.histories)).failure is None
    again = hunt(bug, 1, 2_000)
    assert (again.rule, again.histories) == (first.rule, first.histories)


def test_the_command_reports_for_programs() -> None:
    """``--json``: histories, answers, what was met and what never was."""
    found = CliRunner().invoke(app, ["simulate", "--histories", "20", "--json"])
    assert found.exit_code == 0
    reports = json.loads(found.stdout)["reports"]
    assert {report["world"] for report in reports} == set(WORLDS)
    assert all(report["histories"] == share_of(WORLDS[report["world"]], 20) for report in reports)
    assert all(report["met"] for report in reports if report["histories"] == 20)


def test_the_command_fails_where_a_planted_bug_survives() -> None:
    """Too few histories to catch it: exit code 1, and the survivor is named."""
    found = CliRunner().invoke(app, ["simulate", "--mutate", "cache_after_commit_is_empty", "--histories", "1"])
    assert found.exit_code == 1
    assert "SURVIVED" in found.stdout


@pytest.mark.slow
def test_several_processes_find_what_one_finds() -> None:
    """``--jobs`` changes the speed and nothing else."""
    one, two = simulate("processes", 4, 600), simulate("processes", 4, 600, jobs=2)
    assert (one.met, one.answers, one.histories) == (two.met, two.answers, two.histories)


def test_there_are_planted_bugs_enough() -> None:
    """There are at least 152, each with a unique name and a world that must catch it."""
    assert len({bug.name for bug in PLANTED_BUGS}) == len(PLANTED_BUGS) >= 152
    assert {bug.world for bug in PLANTED_BUGS} <= set(WORLDS)
