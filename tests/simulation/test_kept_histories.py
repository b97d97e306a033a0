"""Histories that once broke a rule: shrunk by the simulator, kept so that they stay good."""

from __future__ import annotations

import pytest

from freshet.simulation.engine import History, run_one
from freshet.simulation.rows.world import Rows

ROWS: dict[str, History] = {
    "the description of the tables is split over two batches and its publisher dies between them": [
        ("publish", 0, 0, 1, 1),
        ("write", 0, 0, 0),
    ],
}


@pytest.mark.parametrize("ops", ROWS.values(), ids=ROWS)
def test_a_history_that_once_broke_a_rule_of_rows_breaks_none(ops: History) -> None:
    """What the simulator has found once is not lost again."""
    assert run_one(Rows(), ops).violations == []
