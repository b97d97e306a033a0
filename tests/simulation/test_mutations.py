"""Planted bugs: each one is caught, else the simulator is not worth much."""

from __future__ import annotations

import pytest

from lab.simulation.campaign import hunt
from lab.simulation.mutations import Mutation, all_mutations

HISTORIES_MAX = 10_000

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mutation", all_mutations(), ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_caught(mutation: Mutation) -> None:
    """Whoever makes this mistake in the real code hears of it within 10,000 histories."""
    caught = hunt(mutation, 1, HISTORIES_MAX)
    assert caught.rule, f"{mutation.name} survived {caught.histories} histories: {mutation.what}"
