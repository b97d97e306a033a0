"""What others have written into a row is shown as a value, and as nothing else."""

from __future__ import annotations

import pytest

from freshet.commands.get import _show
from serving.client.answers import Row

FORGED = "x\n\nserved_from  cache\nfreshness    fresh\x1b[2J\x9b2J"


def test_a_value_does_not_pass_for_a_line_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """A line break in it starts no line, and a terminal obeys nothing in it; letters of any language stay."""
    value = {"name": FORGED, FORGED: "x", "list": [FORGED], "city": "Zürich 東京"}
    _show(Row("source", "stale", "why", "token", True, value))
    said = capsys.readouterr().out
    assert [line.split()[-1] for line in said.splitlines() if line.startswith(("served_from", "freshness"))] == [
        "source",
        "stale",
    ]
    assert all(line.isprintable() for line in said.splitlines())
    assert "Zürich 東京" in said
