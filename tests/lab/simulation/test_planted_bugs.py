"""Planted bugs: the simulator catches each one."""

from __future__ import annotations

import pytest

from lab.simulation.campaign import hunt
from lab.simulation.planted.every import PLANTED_BUGS
from lab.simulation.planted.planting import PlantedBug

HISTORIES_MAX = 10_000


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: PlantedBug) -> None:
    """The simulator catches this mistake within 10,000 histories."""
    caught = hunt(bug, 1, HISTORIES_MAX)
    assert caught.rule, f"{bug.name} survived {caught.histories} histories: {bug.what}"
