"""What may not be shown is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import structlog
from freshet.logs import configure_logs
configure_logs({form!r})
def read(password, row):
    raise ValueError("failed")
try:
    read("hunter" + "2", {{"iban": "DE" + "89"}})
except ValueError:
    structlog.get_logger("x").exception("request failed")
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_variables(form: str) -> None:
    """A traceback says where it was; the values of variables, passwords and rows among them, stay out of the log."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(form=form)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "ValueError: failed" in found.stderr
    assert "hunter2" not in found.stderr
    assert "DE89" not in found.stderr
