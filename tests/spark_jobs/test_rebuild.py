"""The rebuild on a real Kafka and a real Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

import spark_jobs.rebuild
from consumers.fold.state import is_head_key
from consumers.store.manifest import read_manifest
from consumers.store.store import partition_directory
from freshet.local.artifacts import jars
from spark_jobs.offsets import OffsetsError
from spark_jobs.output import RebuildError, find_stores, read_report
from spark_jobs.rebuild import RebuildRequest, checkpoint_offsets, prepare, rebuild
from spark_jobs.session import CONNECTOR
from spark_jobs.verify import verify_stores
from stream.kafka.connection import client_settings
from stream.kafka.topics import TopicError
from tests.patience import PATIENCE_S
from tests.servers.standalone import spark_environment
from tests.spark_jobs.topics import TestTopic, items_of, rows

Topics = Callable[[int], TestTopic]


def test_a_rebuild_equals_the_live_fold_byte_for_byte(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """With poison, voids, duplicates, two shards and aborted transactions each partition is still the same."""
    filled = topic(4)
    filled.write(0, filled.history())
    filled.write(1, filled.history(frames=33))
    filled.transaction([(0, rows(2000, 9)), (2, rows(2000, 9)), (1, rows(2000, 3))], commit=False)
    filled.transaction([(0, rows(3000, 9)), (1, rows(3000, 9))], commit=True)
    filled.transaction([(0, rows(4000, 2)), (2, rows(4000, 2))], commit=False)
    seen: list[tuple[int, int]] = []
    request = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", spill_rows=50)
    report = rebuild(spark, request, progress=lambda done, total: seen.append((done, total)))
    assert report.ends == filled.ends()
    assert seen[-1] == (sum(report.ends.values()), sum(report.ends.values()))
    for summary in report.partitions:
        expected, dead = filled.folded(summary.partition, tmp_path / "live")
        found = items_of(partition_directory(tmp_path / "out", filled.keyspace, summary.partition))
        assert found == expected
        assert (summary.dead_letters, summary.entries) == (dead, sum(not is_head_key(key) for key, _ in expected))
    assert report.dead_letters > 0
    assert [each.messages == 0 for each in report.partitions] == [False, False, True, True]
    assert read_report(tmp_path / "out") == report


def test_a_rebuild_stops_exactly_at_the_offsets_asked_for(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """Messages past the requested offsets are not in the state, and the manifests carry those offsets."""
    filled = topic(2)
    filled.write(0, filled.history())
    filled.write(1, filled.history(frames=7))
    ends = {0: 17, 1: 0}
    rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", ends))
    for partition, end in ends.items():
        directory = partition_directory(tmp_path / "out", filled.keyspace, partition)
        assert items_of(directory) == filled.folded(partition, tmp_path / "live", end)[0]
        manifest = read_manifest(directory)
        assert manifest is not None
        assert manifest.offset == end


def test_a_rebuild_from_a_base_equals_one_from_the_start(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """A checkpoint and the tail after it give the same state; the base is unchanged."""
    filled = topic(1)
    filled.write(0, filled.history())
    start = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "base", {0: 23})
    rebuild(spark, start)
    before = items_of(partition_directory(tmp_path / "base", filled.keyspace, 0))
    report = rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", base=tmp_path / "base"))
    assert report.partitions[0].start == 23
    rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "whole"))
    assert verify_stores(find_stores(tmp_path / "out"), find_stores(tmp_path / "whole")).equal
    assert items_of(partition_directory(tmp_path / "base", filled.keyspace, 0)) == before


def test_a_cut_topic_is_refused_and_leaves_nothing(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """If retention removed the beginning, the rebuild fails with its code; what it leaves is no rebuild."""
    filled = topic(1)
    filled.write(0, filled.history())
    filled.delete_before(0, 5)
    with pytest.raises(RebuildError, match="offset 5 only") as refused:
        rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out"))
    assert refused.value.code == "history_incomplete"
    assert not (tmp_path / "out" / "rebuild.json").exists()
    with pytest.raises(RebuildError) as unfinished:
        checkpoint_offsets(find_stores(tmp_path / "out"))
    assert unfinished.value.code == "not_a_checkpoint"


def test_wrong_requests_are_refused_before_spark_starts(topic: Topics, tmp_path: Path) -> None:
    """Offsets beyond the end, an existing directory and an unknown keyspace are refused at once."""
    filled = topic(1)
    filled.write(0, filled.history(frames=2))
    end = filled.ends()[0]
    with pytest.raises(OffsetsError, match=f"ends at offset {end}, but {end + 1} was requested") as beyond:
        prepare(RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", {0: end + 1}))
    assert beyond.value.code == "offsets_beyond_end"
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(RebuildError, match="exists") as taken:
        prepare(RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "taken"))
    assert taken.value.code == "target_exists"
    with pytest.raises(TopicError) as missing:
        prepare(RebuildRequest("nobody", filled.kafka, tmp_path / "out"))
    assert missing.value.code == "topic_missing"


def test_an_open_transaction_at_the_tail_is_left_out(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """The end now is the last stable offset, so a rebuild does not wait for a transaction that hangs."""
    from confluent_kafka import Producer

    filled = topic(1)
    filled.write(0, filled.history(frames=3))
    producer = Producer(client_settings(filled.kafka, **{"transactional.id": f"open-{filled.keyspace}"}))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(filled.name, rows(500, 3), partition=0)
    assert producer.flush(60) == 0
    report = rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out"))
    producer.abort_transaction(60)
    assert (
        items_of(partition_directory(tmp_path / "out", filled.keyspace, 0))
        == filled.folded(0, tmp_path / "live", report.ends[0])[0]
    )


@pytest.mark.slow
def test_a_rebuild_whose_driver_was_killed_is_gone_on_with(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """After a SIGKILL there is no report; the next run folds what the stores lack, to the same bytes."""
    filled = topic(2)
    frames = [rows(2 + 100 * number, 100, keys=5000) for number in range(1500)]
    for partition in range(2):
        filled.write(partition, [*filled.history(frames=0)[:1], *frames])
    target = tmp_path / "out"
    program = [sys.executable, "-c", "from freshet.cli import main; main()", "rebuild", "--keyspace", filled.keyspace]
    command = [*program, "--to", str(target), "--spark-log", str(tmp_path / "log")]
    command += ["--bootstrap", filled.kafka.bootstrap]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not list(target.glob(f"{filled.keyspace}/*/db/*.sst")):
            assert killed.poll() is None, "the run ended before it came to fold"
            assert time.monotonic() < deadline, "the run never came to fold"
            time.sleep(0.01)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait(PATIENCE_S)
    assert not (target / "rebuild.json").exists()
    report = rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, target))
    assert report.messages < 2 * len(frames), "what was durable was not folded again"
    for partition in range(2):
        found = items_of(partition_directory(target, filled.keyspace, partition))
        assert found == filled.folded(partition, tmp_path / "live")[0]


@pytest.mark.slow
def test_spark_submit_runs_the_job_and_prints_its_outcome_as_json(topic: Topics, tmp_path: Path) -> None:
    """A submitted job is the command: settings from a file, JSON on success, code and hint on an error.

    The hint of a Spark without the Kafka connector is the option that brings it.
    """
    filled = topic(1)
    filled.write(0, filled.history(frames=3))
    (tmp_path / "freshet.toml").write_text(f'[kafka]\nbootstrap = "{filled.kafka.bootstrap}"\n')
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]"]
    submit += ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
    submit += ["--conf", "spark.ui.enabled=false"]
    connector = ["--jars", ",".join(map(str, jars("spark")))]
    job = [spark_jobs.rebuild.__file__, "--json", "--config", str(tmp_path / "freshet.toml"), "--keyspace"]
    environment = spark_environment() | {"PYSPARK_PYTHON": sys.executable}

    def run(keyspace: str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [*submit, *more, *job, keyspace, "--to", str(tmp_path / f"out{len(more)}")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    done = run(filled.keyspace, *connector)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ends"] == {"0": filled.ends()[0]}
    refused = run("nobody", *connector)
    assert refused.returncode == 1
    assert "error[topic_missing]" in refused.stdout, "spark-submit gives the job one stream for both"
    without = run(filled.keyspace)
    assert without.returncode == 1
    assert "error[spark_unfit]: this Spark has no Kafka connector" in without.stdout
    assert f"submit with --packages {CONNECTOR}" in without.stdout
