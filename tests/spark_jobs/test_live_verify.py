"""The owner's live state against Spark's rebuild: the proof that the cache equals the log."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from freshet.owners import live_checkpoint
from spark_jobs.beginning import lost_history
from spark_jobs.output import find_stores
from spark_jobs.rebuild import RebuildRequest, checkpoint_offsets, rebuild
from spark_jobs.verify import verify_stores
from stream.kafka.locations import LocationError, LocationsReader
from tests.consumers.histories import SHARD, marker, start
from tests.patience import PATIENCE_S
from tests.spark_jobs.topics import TestTopic, history, rows
from tests.upgrades.next_version import announcements
from tests.upgrades.next_version import topic as newer

Topics = Callable[[int], TestTopic]
FRESHET = [sys.executable, "-c", "from freshet.cli import main; main()"]


@contextmanager
def consuming(
    filled: TestTopic, data_dir: Path, config: Path | None = None, more: Sequence[str] = ()
) -> Iterator[None]:
    """``freshet consume`` in a process of its own, ready and announced; ``config``: its settings file, if there is one.

    Who asks for checkpoints waits for some seconds only until an owner that is ready is announced.
    """
    arguments = ["--keyspace", filled.keyspace, "--bootstrap", filled.kafka.bootstrap, "--data-dir", str(data_dir)]
    log = data_dir.with_suffix(".log")
    with log.open("wb") as output:
        first = [] if config is None else ["--config", str(config)]
        command = [*FRESHET, *first, "--log-format", "json", "consume", *arguments, "--group", filled.keyspace, *more]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while '"event": "ready"' not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        with LocationsReader(filled.kafka) as locations:
            for partition in range(filled.partitions):
                locations.wait_for(filled.keyspace, partition, PATIENCE_S)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_the_live_state_equals_the_rebuild_to_its_checkpoint(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """At the checkpoint's offsets, behind the topic's end, all bytes are the same."""
    filled = topic(3)
    filled.write(0, history(partitions=3))
    filled.write(1, history(frames=33, partitions=3))
    filled.transaction([(0, rows(2000, 9)), (2, rows(2000, 9))], commit=False)
    with consuming(filled, tmp_path / "data"):
        live = live_checkpoint(filled.kafka, filled.keyspace, [])
        filled.write(0, history(first=5000, partitions=3))
        request = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", checkpoint_offsets(live))
        rebuild(spark, request)
        verdict = verify_stores(live, find_stores(tmp_path / "out"), names=("live", "rebuilt"))
    assert verdict.equal, verdict.as_json()
    assert verdict.items > 40
    beside = verify_stores(find_stores(tmp_path / "data" / "checkpoints"), find_stores(tmp_path / "out"))
    assert beside.equal


@pytest.mark.nightly
def test_a_topic_without_its_beginning_is_verified_from_the_last_checkpoint(topic: Topics, tmp_path: Path) -> None:
    """If retention has cut the topic, `--base` continues from what was verified before."""
    filled = topic(1)
    filled.write(0, history())
    with consuming(filled, tmp_path / "data"):
        live_checkpoint(filled.kafka, filled.keyspace, [])
        shutil.copytree(tmp_path / "data" / "checkpoints", tmp_path / "kept")
        filled.delete_before(0, 10)
        filled.write(0, history(first=5000))
        verify = ["verify", "--keyspace", filled.keyspace, "--bootstrap", filled.kafka.bootstrap, "--json"]
        command = [*FRESHET, *verify, "--master", "local[1]", "--base", str(tmp_path / "kept")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"]


def test_a_topic_without_its_beginning_is_refused_before_a_jvm_is_started(topic: Topics, tmp_path: Path) -> None:
    """Without a base verify fails with `history_incomplete` before Spark is needed.

    Also if an epoch begins in what is left: a fold of that lacks what was voided, which is no fault of the live state.
    """
    filled = topic(1)
    filled.write(0, history())
    filled.write(0, [start(epoch=2), marker(1, epoch=2)])
    with consuming(filled, tmp_path / "data"):
        live_checkpoint(filled.kafka, filled.keyspace, [])
        filled.delete_before(0, 10)
        verify = ["verify", "--keyspace", filled.keyspace, "--bootstrap", filled.kafka.bootstrap]
        command = [*FRESHET, *verify, "--driver-memory", "none"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = done.stderr.splitlines()  # before it, warnings of what other tests have announced on this Kafka
    assert any(line.startswith("error[history_incomplete]: partition 0 is retained from offset 10") for line in lines)
    assert "--base" in done.stderr


def test_a_certainly_missing_beginning_is_found_without_a_fold() -> None:
    """The first marker's shard must begin in what is retained; uncertain cases are left to the Spark tasks."""
    whole = history()
    assert lost_history(whole) is None
    assert lost_history(whole[1:]) == "shop/0", "another shard's beginning is none of its own"
    assert lost_history([*whole[1:], *history()]) is None, "a later epoch voids what was lost"
    assert lost_history([]) == ""
    assert lost_history([rows(1, 5), b"", None]) == ""
    assert lost_history([whole[0]]) is None


def test_the_beginning_that_a_newer_publisher_wrote_is_found_too() -> None:
    """Its records are read by what the messages before them announce."""
    whole = [start(), rows(2, 5), marker(6)]
    assert lost_history([*announcements(SHARD), *newer(whole, SHARD)]) is None
    assert lost_history([*announcements(SHARD), *newer(whole[1:], SHARD)]) == SHARD


def test_a_keyspace_without_an_owner_cannot_be_verified(topic: Topics) -> None:
    """Without an owner verify fails with an error before Spark is started."""
    filled = topic(1)
    with pytest.raises(LocationError) as refused:
        live_checkpoint(filled.kafka, filled.keyspace, [])
    assert refused.value.code == "owner_unknown"
