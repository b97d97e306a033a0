"""Planted bugs: the simulator catches each one."""

from __future__ import annotations

import pytest

from lab.simulation.campaign import hunt
from lab.simulation.planted.every import PLANTED_BUGS
from lab.simulation.planted.models import WRONG_SOURCES
from lab.simulation.planted.planting import PlantedBug

HISTORIES_MAX = 10_000


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: PlantedBug) -> None:
    """The simulator catches this mistake within 10,000 histories."""
    caught = hunt(bug, 1, HISTORIES_MAX)
    assert caught.rule, f"{bug.name} survived {caught.histories} histories: {bug.what}"


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG_SOURCES, ids=lambda wrong: wrong.name)
def test_a_source_that_answers_wrongly_is_found_out(wrong: PlantedBug) -> None:
    """The checkers rely on nothing that the source says of its own answers."""
    caught = hunt(wrong, 1, HISTORIES_MAX)
    assert caught.rule, f"{wrong.name} survived {caught.histories} histories: {wrong.what}"
