"""Tests that do a share of their length in `make test`: what makes them do all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHORTENED = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "tests").rglob("test_*.py")
    if "from tests.lengths import" in path.read_text() and path != Path(__file__)
)


@pytest.mark.parametrize(("setting", "said"), [("", "3"), ("1", "7")])
def test_the_setting_makes_tests_as_long_as_they_can_be(setting: str, said: str) -> None:
    """Without it a share is done, with it the whole."""
    asked = [sys.executable, "-c", "from tests.lengths import length; print(length(3, 7))"]
    environment = os.environ | {"FRESHET_TEST_LONG": setting}
    assert subprocess.check_output(asked, cwd=ROOT, env=environment, text=True).strip() == said


def test_the_long_run_has_each_test_that_is_shortened() -> None:
    """The soak selects a marker, and sets the variable: a file that shortens a test has to have the marker."""
    assert len(SHORTENED) >= 4
    assert [str(path) for path in SHORTENED if "pytest.mark.long" not in (ROOT / path).read_text()] == []
    [soak] = re.findall(r"^soak:.*\n((?:\t.*\n?)+)", (ROOT / "Makefile").read_text(), re.M)
    assert re.search(r"FRESHET_TEST_LONG=1 .*pytest .*-m long", soak)
