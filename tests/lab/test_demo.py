"""The demo, as whoever tries it first sees it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from freshet import cli
from lab.demo.summary import Findings
from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
DEMO_S = PATIENCE_S * 4
"""Servers, traffic, and Spark."""


@pytest.mark.slow
@pytest.mark.integration
def test_the_demo_shows_answers_first_and_what_was_proven_last() -> None:
    """Three answers with their why, times, a rebuild of its own rate, plain words, and where the page is."""
    done = subprocess.run(
        [sys.executable, "-m", "freshet", "demo", "--seconds", "6"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEMO_S,
        check=False,
    )
    shown = done.stdout
    assert done.returncode == 0, (shown, done.stderr)
    page = re.search(r"look at (http://\S+/) meanwhile", shown)
    assert page is not None
    first, _, traffic = shown.partition("transactions")
    assert re.findall(r"^  (source|cache), (fresh|eventual)", first, re.MULTILINE)[1:] == [
        ("cache", "eventual"),
        ("cache", "fresh"),
    ]
    assert len(re.findall(r"^  why: \S+", first, re.MULTILINE)) == 3
    assert re.search(r"^  took +from the cache [\d.]+ ms \(half of them\), [\d.]+ ms \(99 %\)$", traffic, re.MULTILINE)
    assert len(re.findall(r"^rebuild .*\(\d+/s\), equal to the live state, byte for byte$", traffic, re.MULTILINE)) == 2
    assert "none was older than was demanded" in traffic
    assert f"The page was at {page[1]} meanwhile." in traffic
    assert traffic.splitlines()[-1].startswith("PASSED")


def test_times_are_told_by_who_answered() -> None:
    """The half and nearly all; whoever has not answered yet is left out."""
    findings = Findings()
    findings.note_times({"cache": [each / 1000 for each in range(100, 0, -1)], "source": []})
    assert "from the cache 51.0 ms (half of them), 100.0 ms (99 %)" in findings.summary()
    assert findings.as_json()["took_ms"] == {"cache": [51.0, 100.0]}


@pytest.mark.parametrize(
    ("words", "is_unattended", "seconds"),
    [
        ([], False, None),
        ([], True, 20.0),
        (["--json"], False, 20.0),
        (["--seconds", "3", "--json"], True, 3.0),
        (["--seconds", "3"], False, 3.0),
    ],
)
def test_a_demo_that_nobody_looks_at_ends_by_itself(
    words: list[str], is_unattended: bool, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wants its findings as JSON is a program, also on a terminal."""
    asked: list[float | None] = []

    def run(seconds: float | None, *_: object, **__: object) -> Findings:
        asked.append(seconds)
        return Findings()

    monkeypatch.delenv("DEMO_SECONDS", raising=False)
    monkeypatch.setattr("spark_jobs.session.check_pyspark", lambda: None)
    monkeypatch.setattr("lab.demo.run.is_unattended", lambda: is_unattended)
    monkeypatch.setattr("lab.demo.run.run_demo", run)
    cli.run(["demo", *words])
    assert asked == [seconds]
