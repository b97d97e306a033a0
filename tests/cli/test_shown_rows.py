"""What others have written into a row is shown as a value, and as nothing else."""

from __future__ import annotations

import pytest

from freshet import cli
from freshet.commands.get import _show
from serving.client import Session
from serving.client.answers import Row
from serving.client.errors import HistoryLost

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


def test_a_lost_history_says_the_token_to_go_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer's token is in no other place that a user of the command sees."""

    def lose(*_: object, **__: object) -> None:
        lost = HistoryLost("it is lost", hint="continue with the token in this answer", code="history_lost", status=409)
        lost.token = "the-next-token"
        raise lost

    monkeypatch.setattr(Session, "get_row", lose)
    assert cli.run(["get", "shop", "orders", "1"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error[history_lost]: it is lost",
        "hint: continue with --token 'the-next-token'",
    ]
