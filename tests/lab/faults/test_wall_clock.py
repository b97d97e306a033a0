"""Steps of our processes' wall clock: seen by the process, and nothing but the wall clock; nothing of ours minds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.soak import summary
from lab.faults.run import run_faults
from lab.faults.schedule import Fault
from lab.faults.wall_clock import STEPS_S, WallClocks, find_library
from tests.patience import PATIENCE_S

WATCH = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


@pytest.mark.slow
def test_a_process_sees_its_wall_clock_step_and_its_monotonic_clock_go_on(tmp_path: Path) -> None:
    """Forward and back again while it runs; where there is no library there are no steps, and that is said."""
    clocks = WallClocks(tmp_path / "clocks")
    assert bool(clocks.missing) == (clocks.environment("watch") == {})
    assert find_library() is not None or clocks.missing
    started = [sys.executable, "-c", WATCH]
    environment = os.environ | clocks.environment("watch")
    with subprocess.Popen(
        started, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ahead() -> float:
            """Seconds by which its wall clock is ahead of ours, at most."""
            assert process.stdin is not None
            assert process.stdout is not None
            asked, asked_at = time.time(), time.monotonic()
            print(file=process.stdin, flush=True)
            wall, monotonic = map(float, process.stdout.readline().split())
            assert asked_at - 5 < monotonic < time.monotonic() + 5
            return wall - asked

        for offset_s in (*STEPS_S.values(), 0.0) if not clocks.missing else (0.0,):
            clocks.step("watch", offset_s)
            deadline = time.monotonic() + PATIENCE_S
            while abs(ahead() - offset_s) > 5:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    clocks.forget(process.pid)
    assert not [name for name in os.listdir("/dev/shm") if name.endswith(f"_{process.pid}")]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("server_files")
@pytest.mark.nightly
def test_no_answer_is_wrong_and_nothing_stops_when_wall_clocks_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All clocks at once, then one process's alone while it starts again: announcements, leases, waits and markers."""
    steps = [
        Fault(3.0, "wall-clock", "forward", 6.0, 0.0),
        Fault(12.0, "wall-clock", "far_back", 8.0, 0.3),  # the source of the rows
        Fault(23.0, "wall-clock", "far_back", 9.0, 0.7),  # the consumer, which starts while its clock is behind
        Fault(25.0, "consume", "kill", 0.5, 0.0),
        Fault(35.0, "wall-clock", "back", 5.0, 0.9),  # the read API
        Fault(37.0, "serve", "stop", 0.1, 0.0),
    ]
    findings = run_faults(45.0, 3, faults=steps, directory=tmp_path)
    assert findings.passed, f"{capsys.readouterr().out}\n{summary(findings)}"
    assert findings.answers["cache/fresh"] > 0
    if "libfaketime" in findings.clocks and "can't" not in findings.clocks:
        assert findings.faults["wall-clock far_back"] == 2
