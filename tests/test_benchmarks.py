"""The benchmarks run: a small one of each section except Spark's, on a real Kafka and a real MariaDB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.catalog_load import Judge
from benchmarks.percentiles import percentiles_ms
from benchmarks.report import document, table
from benchmarks.sections import INTERVALS_MS, QUICK, Bench
from benchmarks.workload import FIRST, transactions
from stream.kafka.connection import KafkaCluster
from stream.wire.events import ABSENT, RowChange, SourceTransaction
from stream.wire.keys import split_row_key
from tests.lengths import LONG
from tests.patience import PATIENCE_S
from tokens import ValidWriteIdList

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 1800
SECTIONS = "abcdfghklnw" if LONG else "c"
"""The others take more than half of the time, and are for `make soak`."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(TIMEOUT_S)
def test_a_quick_run_measures_every_section_and_keeps_its_figures(tmp_path: Path) -> None:
    """`make bench` still works, and its table can be printed again from the kept figures."""
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", ",".join(SECTIONS), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads(out.read_text())
    assert sorted(kept["results"]) == list(SECTIONS)
    assert kept["machine"]["spin_msteps_s"] > 0
    assert {key: each["not_fresh"] for key, each in kept["results"]["c"].items()}.popitem()[1] == 0
    assert table(kept) in done.stdout
    assert done.stdout.startswith("QUICK")
    if LONG:
        assert kept["results"]["f"]["messages_redone"] == 0
        assert {"shards4", "skewed"} < kept["results"]["a"].keys()
        assert kept["results"]["a"]["framesown"]["indexed"]["rows_s"] > 0
        assert all(kept["results"]["d"][case]["frames_s"] > 0 for case in INTERVALS_MS)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["lookups", "answers"])
def test_a_benchmark_of_its_own_runs(name: str) -> None:
    """They stand in for parts of an owner's server: a change of its interface must not break them unseen."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "now" in done.stdout


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.integration
def test_the_doors_of_a_front_are_measured() -> None:
    """Plain, with a token, over TLS and mutual TLS, with traces: each door answers, and what it costs is told."""
    command = [sys.executable, "-m", "benchmarks.doors", "--keys", "500", "--rounds", "1", "--seconds", "0.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert list(found) == ["plain", "token", "tls", "mutual_tls", "traced_1_percent", "traced"]
    assert all(each["reads_front_s_of_plain"] > 0 and each["p99_ms"] > 0 for each in found.values())
    assert found["mutual_tls"]["handshakes_s"] > 0


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.integration
def test_change_streams_are_measured() -> None:
    """One reader, some that have caught up, and an application's cache: each gets all events."""
    sizes = ["--events", "2000", "--rounds", "1", "--readers", "3", "--rate", "50", "--seconds", "1"]
    command = [sys.executable, "-m", "benchmarks.changes", *sizes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["one"]["client_s"] > 0 < found["many"]["deliveries_s"]
    assert found["invalidate"]["p99_ms"] >= found["invalidate"]["p50_ms"] > 0
    assert all(each["with_before"] > each["now"] for each in found["wire"].values())


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.integration
def test_what_an_abuser_takes_is_measured() -> None:
    """Each abuser is at work while a reader reads on, and what it costs front and reader is told."""
    command = [sys.executable, "-m", "benchmarks.abuse", "--rounds", "1", "--seconds", "1", "--rate", "50"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert list(found) == ["quiet", "connections", "slow", "uncached", "uncached_rated", "crowd", "crowd_cached"]
    assert all(each["reads"] > 0 and each["not_fresh"] == 0 for each in found.values())
    assert all(found[name]["p99_of_busy"] > 0 and found[name]["abuser_core"] > 0 for name in found if name != "quiet")


def test_the_judge_of_catalog_reads_finds_what_is_missing() -> None:
    """A run without wrong answers says something only if one would be found."""
    judge = Judge()
    judge.writes("t", 3, version=30, partition="")
    judge.writes("t", 4, version=0, partition="d9")
    before, after = ValidWriteIdList.parse("d.t:4:3:3,4:"), ValidWriteIdList.parse("d.t:4:9223372036854775807::")
    old, new = {"parameters": {"v": "29"}}, {"parameters": {"v": "30"}}
    judge.table("t", before, old)
    judge.table("t", after, new)
    judge.partitions("t", before, [])
    judge.partitions("t", after, [["d9"]])
    assert judge.wrong == []
    judge.table("t", after, old)
    judge.partitions("t", after, [["d8"]])
    assert len(judge.wrong) == 2


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
    assert all(map(json.loads, images))


def test_shards_have_keys_of_their_own_and_skewed_keys_are_deleted_too() -> None:
    """The measured cases are what they are called."""
    of_shards = [key_of(each) % 4 for each in transactions(400, 40, shards=4)]
    assert of_shards == [number % 4 for number in range(FIRST, FIRST + 400)]
    skewed = list(transactions(3_000, 1_000, skewed=True))
    assert 0.4 < sum(key_of(each) < 63 for each in skewed) / 3_000 < 0.6
    assert (
        200
        < sum(each.changes[0].operation == ABSENT for each in skewed if isinstance(each.changes[0], RowChange))
        < 400
    )


def test_rounds_that_the_machine_disturbed_are_named() -> None:
    """Whoever reads the table must see which figures say little."""
    bench = Bench(KafkaCluster("127.0.0.1:1"), QUICK)
    bench.note_spins("(a) round 1 of 2", 18.0, 17.0)
    bench.note_spins("(a) round 2 of 2", 18.0, 16.0)
    assert bench.disturbed == ["(a) round 2 of 2: spin 18.0 before, 16.0 after"]
    found = document({}, bench.spins, bench.disturbed, rounds=2, seconds=1.0, quick=False)
    assert found["disturbed"] == bench.disturbed


def key_of(transaction: SourceTransaction) -> int:
    """The number in the key of its change."""
    [change] = transaction.changes
    assert isinstance(change, RowChange)
    return int(split_row_key(change.key)[1][0])
