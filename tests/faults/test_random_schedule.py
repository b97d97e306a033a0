"""Two minutes of random faults under load: no answer is wrong, and everything comes back by itself."""

from __future__ import annotations

import os
import time

import pytest

from benchmarks.soak import summary
from freshet.faults.run import run_faults
from freshet.faults.schedule import Fault

SECONDS = 120.0

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.usefixtures("server_files")]


@pytest.mark.timeout(900)
def test_no_answer_is_wrong_whatever_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills, pauses, a bad network, a full disk, clock steps; FAULTS_SEED makes a run's schedule again."""
    seed = int(os.environ.get("FAULTS_SEED", time.time()))
    findings = run_faults(SECONDS, seed)
    assert findings.passed, f"FAULTS_SEED={seed}\n{capsys.readouterr().out}\n{summary(findings)}"
    assert findings.answers["cache/fresh"] > 0
    assert findings.answers["source/fresh"] > 0


@pytest.mark.timeout(600)
def test_a_consumer_frozen_for_longer_than_its_group_waits_never_answers_with_what_it_no_longer_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another one takes its partitions over; thawed, it still thinks that it owns them, and fronts may still ask it."""
    frozen = [
        Fault(8.0, "consume", "pause", 15.0, 0.0),
        Fault(30.0, "consume-2", "pause", 15.0, 0.0),
        Fault(34.0, "serve>kafka", "hole", 20.0, 0.0),  # the front doesn't hear who took over
    ]
    findings = run_faults(60.0, 11, faults=frozen, consumers=2)
    assert findings.passed, f"{capsys.readouterr().out}\n{summary(findings)}"
