"""Planted bugs: the simulator catches each one, and the bug is what it catches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from freshet.cli import app
from lab.simulation import catches
from lab.simulation.campaign import HuntResult, hunt, unpatched_failures
from lab.simulation.catches import complaint
from lab.simulation.planted import kept as keeping
from lab.simulation.planted.every import PLANTED_BUGS, planted_bugs
from lab.simulation.planted.kept import Catch, kept_catches
from lab.simulation.planted.planting import Begin, PlantedBug
from lab.simulation.planted.sources import WRONG_SOURCES
from lab.simulation.reports import detection_lines
from tokens import Position, decision

KEPT = kept_catches()


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: PlantedBug) -> None:
    """The kept history of each bug breaks its rule with the bug, and no rule without."""
    assert not complaint(bug, KEPT.get(bug.name))


def test_no_history_is_kept_of_a_bug_that_is_gone() -> None:
    """What is kept is what is planted."""
    assert set(KEPT) == {bug.name for bug in PLANTED_BUGS}


def test_a_kept_history_that_catches_nothing_is_refused() -> None:
    """A history that a change of the world has emptied does not count, nor one of another rule, nor none."""
    [bug] = planted_bugs("stale_is_fresh")
    kept = KEPT[bug.name]
    assert "does not catch stale_is_fresh any more" in complaint(bug, Catch(kept.rule, []))
    assert "when its history was kept, now" in complaint(bug, Catch("never raises", kept.ops))
    assert "python -m lab.simulation.catches" in complaint(bug, None)


def test_a_history_that_fails_without_its_bug_is_refused() -> None:
    """A defect of the product does not count as the catch of a planted bug."""
    [bug] = planted_bugs("stale_is_fresh")
    defect = PlantedBug("defect", "...", "rows", (Begin(decision._judge_component, "raise ValueError('defect')"),))
    with defect.planted():
        assert "breaks a rule without it: never raises" in complaint(bug, KEPT[bug.name])


def test_a_hunt_on_a_seed_that_fails_unpatched_proves_nothing() -> None:
    """Detection is only counted where the code as it is passes as many histories as the hunt took."""
    [bug] = planted_bugs("stale_is_fresh")
    found = [hunt(bug, 1, 200)]
    assert not unpatched_failures(found, 1)
    defect = PlantedBug("defect", "...", "rows", (Begin(decision._judge_component, "raise ValueError('defect')"),))
    with defect.planted():
        assert [failure.violation.rule for failure in unpatched_failures(found, 1)] == ["never raises"]


def test_what_a_planted_bug_has_parsed_is_forgotten() -> None:
    """Texts are parsed once and kept; those that a bug has read wrongly would fail the histories after it."""
    text = "MySQL56/3e11fa47-71ca-11e1-9e33-c80aa9429562:1:2"
    [bug] = planted_bugs("neighbours_are_not_merged")
    with bug.planted():
        wrong = Position.parse(text)
    assert Position.parse(text) != wrong


def test_a_bug_is_hunted_shrunk_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that an outdated history is answered with makes a history that is as good."""
    kept = tmp_path / "catches.json"
    kept.write_text("{}")
    monkeypatch.setattr(keeping, "KEPT", kept)
    [bug] = planted_bugs("stale_is_fresh")
    assert catches.record([bug], 1, 2_000) == []
    assert complaint(bug, kept_catches()[bug.name]) == ""
    assert catches.record([bug], 1, 1) == [bug]
    assert kept_catches() == {}


def test_the_command_counts_detection_with_and_without_motifs() -> None:
    """``--detection``: by rule and by module, each hunt twice, and the seed's failures without a bug."""
    arguments = ["simulate", "--mutate", "stale_is_fresh", "--histories", "2000", "--detection"]
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert told["unpatched"] == []
    assert [each["module"] for each in told["mutations"] + told["without_motifs"]] == ["tokens.decision"] * 2
    shown = CliRunner().invoke(app, arguments).stdout
    assert re.search(r"^tokens\.decision +1 +1 +1$", shown, re.MULTILINE)
    assert "only with motifs: none" in shown


def test_bugs_that_only_motifs_catch_are_named() -> None:
    """They say what chance does not meet; one that survives, or that chance alone meets, is not among them."""
    bugs = [*PLANTED_BUGS[:4]]

    def results(*rules: str) -> list[HuntResult]:
        return [HuntResult(bug, rule, 9, 0.1, None) for bug, rule in zip(bugs, rules, strict=True)]

    lines = detection_lines(results("a rule", "a rule", "", ""), results("a rule", "", "a rule", ""))
    assert lines[-1] == f"only with motifs: {bugs[1].name}"


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG_SOURCES, ids=lambda wrong: wrong.name)
def test_a_source_that_answers_wrongly_is_found_out(wrong: PlantedBug) -> None:
    """The checkers rely on nothing that the source says of its own answers."""
    caught = hunt(wrong, 1, 10_000)
    assert caught.rule, f"{wrong.name} survived {caught.histories} histories: {wrong.what}"
