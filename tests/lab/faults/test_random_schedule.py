"""Forty seconds of random faults under load: no answer is wrong, and everything comes back by itself."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import summary
from lab.faults.run import run_faults
from lab.faults.schedule import Fault, schedule

SECONDS = 40.0
GAP_S = 12.0
"""Between two faults of a target: half of what a soak waits, so that a short run meets more of them."""
SEED = "20261121"

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.usefixtures("server_files")]


@pytest.mark.timeout(1800)
def test_no_answer_is_wrong_whatever_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills, pauses, a bad network, a disk that is full or fails, clock steps; FAULTS_SEED=now: another schedule."""
    wanted = os.environ.get("FAULTS_SEED", SEED)
    seed = int(time.time()) if wanted == "now" else int(wanted)
    findings = run_faults(SECONDS, seed, faults=schedule(seed, SECONDS, gap_s=GAP_S))
    assert findings.passed, f"FAULTS_SEED={seed}\n{capsys.readouterr().out}\n{summary(findings)}"
    assert findings.answers["cache/fresh"] > 0
    assert findings.answers["source/fresh"] > 0


@pytest.mark.timeout(1800)
@pytest.mark.nightly
def test_a_consumer_frozen_for_longer_than_its_group_waits_never_answers_with_what_it_no_longer_knows(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Another one takes its partitions over; thawed, it still thinks that it owns them, and fronts may still ask it."""
    frozen = [
        Fault(5.0, "consume", "pause", 15.0, 0.0),
        Fault(24.0, "consume-2", "pause", 15.0, 0.0),
        Fault(27.0, "serve>kafka", "hole", 15.0, 0.0),  # the front doesn't hear who took over
    ]
    findings = run_faults(46.0, 11, faults=frozen, consumers=2, directory=tmp_path)
    assert findings.passed, f"{capsys.readouterr().out}\n{summary(findings)}"
    for role in ("consume", "consume-2"):
        taken = {line["partition"] for line in logged(tmp_path / f"{role}.log") if line["event"] == "partition taken"}
        assert len(taken) == 6, f"{role} never had all partitions: {taken}"


def logged(log_file: Path) -> list[dict[str, Any]]:
    """The lines of one of our logs."""
    return [json.loads(line) for line in log_file.read_text().splitlines() if line.startswith("{")]


LIAR = """
import consumers.owner.rows
from tokens import Decision, Freshness, Verdict
consumers.owner.rows.decide = lambda demand, tag: Decision(Freshness.FRESH, "because I say so", Verdict.PROVED)
"""


@pytest.mark.timeout(1800)
def test_an_owner_that_calls_everything_fresh_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judges find wrong answers: with an owner that skips the comparator, the run fails.

    Spark is no judge of answers, and is left out.
    """
    monkeypatch.setattr("lab.faults.run.rebuild_and_verify", lambda _: {"shop": {"equal": True}})
    (tmp_path / "lie").mkdir()
    (tmp_path / "lie" / "sitecustomize.py").write_text(LIAR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lie"))
    slow = [Fault(2.0, "consume>kafka", "latency", 8.0, 1.0)]
    findings = run_faults(12.0, 5, faults=slow, directory=tmp_path)
    assert findings.wrong
    assert not findings.passed
