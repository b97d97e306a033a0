"""The benchmarks run: a small one of each section except Spark's, on a real Kafka and a real MariaDB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.percentiles import percentiles_ms
from benchmarks.report import table
from benchmarks.workload import transactions
from stream.wire.events import RowChange

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 1800


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(TIMEOUT_S)
def test_a_quick_run_measures_every_section_and_keeps_its_figures(tmp_path: Path) -> None:
    """`make bench` still works, and its table can be printed again from the kept figures."""
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "a,b,c,d,f", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads(out.read_text())
    assert sorted(kept["results"]) == ["a", "b", "c", "d", "f"]
    assert kept["machine"]["spin_msteps_s"] > 0
    assert kept["results"]["f"]["messages_redone"] == 0
    assert {key: each["not_fresh"] for key, each in kept["results"]["c"].items()}.popitem()[1] == 0
    assert table(kept["results"], kept["machine"]) in done.stdout


def test_percentiles_leave_the_slowest_request_in() -> None:
    """The figures show the tail, which must not be cut off or smoothed."""
    found = percentiles_ms([0.001] * 998 + [0.5, 1.0])
    assert (found["p50_ms"], found["p999_ms"], found["max_ms"]) == (1.0, 1000.0, 1000.0)


def test_the_measured_images_are_as_large_as_stated_and_all_different() -> None:
    """Images have 150 to 200 bytes as documented, and none is repeated, which would favour every codec."""
    changes = [transaction.changes[0] for transaction in transactions(3_000)]
    images = [change.image for change in changes if isinstance(change, RowChange)]
    assert len(images) == 3_000
    assert 145 <= min(map(len, images)) <= 155
    assert 195 <= max(map(len, images)) <= 205
    assert len(set(images)) == len(images)
