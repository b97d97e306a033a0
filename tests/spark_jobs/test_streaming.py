"""The rebuild as Structured Streaming on a real Kafka and a real Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumers.store.store import partition_directory
from spark_jobs.output import RebuildError, find_stores, read_report
from spark_jobs.rebuild import RebuildRequest, rebuild
from spark_jobs.streaming import CHECKPOINT_NAME, StreamingRequest, rebuild_streaming
from spark_jobs.verify import verify_stores
from tests.spark_jobs.topics import TestTopic, history

Topics = Callable[[int], TestTopic]


def test_two_runs_equal_one(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """The state does not depend on micro-batches or on a stop between them."""
    filled = topic(3)
    messages = history(frames=40)
    filled.write(0, messages[:30])
    filled.write(1, history(frames=5))
    request = StreamingRequest(filled.keyspace, filled.kafka, tmp_path / "out", offsets_per_batch=25)
    first = rebuild_streaming(spark, request)
    assert first.ends == filled.ends()
    filled.write(0, messages[30:])
    second = rebuild_streaming(spark, request)
    assert second.partitions[0].messages == len(messages) - 30
    assert read_report(tmp_path / "out") == second
    rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "whole"))
    assert verify_stores(find_stores(tmp_path / "out"), find_stores(tmp_path / "whole")).equal


def test_a_micro_batch_that_runs_again_changes_nothing(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """After a crash between our commit and Spark's, Spark repeats the batch and the stores skip it."""
    filled = topic(1)
    filled.write(0, history())
    request = StreamingRequest(filled.keyspace, filled.kafka, tmp_path / "out")
    first = rebuild_streaming(spark, request)
    commits = tmp_path / "out" / CHECKPOINT_NAME / "commits"
    shutil.rmtree(commits)
    again = rebuild_streaming(spark, request)
    assert again.messages == 0
    assert again.partitions[0].digest == first.partitions[0].digest


def test_a_missing_store_is_refused(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """Spark's checkpoint would skip what the missing store held, so the run is refused with a hint."""
    filled = topic(1)
    filled.write(0, history())
    request = StreamingRequest(filled.keyspace, filled.kafka, tmp_path / "out")
    rebuild_streaming(spark, request)
    shutil.rmtree(partition_directory(tmp_path / "out", filled.keyspace, 0))
    with pytest.raises(RebuildError) as refused:
        rebuild_streaming(spark, request)
    assert refused.value.code == "state_missing"


def test_a_cut_topic_is_refused_in_one_line(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """An error inside a micro-batch is raised with its own code, not as Spark's traceback."""
    filled = topic(1)
    filled.write(0, history())
    filled.delete_before(0, 5)
    with pytest.raises(RebuildError, match="offset 5 only") as refused:
        rebuild_streaming(spark, StreamingRequest(filled.keyspace, filled.kafka, tmp_path / "out"))
    assert refused.value.code == "history_incomplete"
    assert not (tmp_path / "out" / "rebuild.json").exists()
