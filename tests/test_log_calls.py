"""Calls that write log lines are calls that can be made."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOMS = ("tokens", "stream", "consumers", "serving", "freshet", "spark_jobs")
METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


@pytest.mark.parametrize("room", ROOMS)
def test_no_log_line_has_a_field_called_event(room: str) -> None:
    """It is the name of the line itself: such a call raises TypeError, in the middle of what it is to tell of."""
    found = []
    for path in sorted((Path(__file__).parents[1] / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_log = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
            if is_log and any(each.arg == "event" for each in node.keywords):  # type: ignore[attr-defined]
                found.append(f"{path}:{node.lineno}")  # type: ignore[attr-defined]
    assert found == []
