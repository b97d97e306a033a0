"""What a rebuild owes to its form as Structured Streaming: any micro-batches, ends, kills and continued runs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_jobs.rebuild
from consumers.store.store import partition_directory
from spark_jobs.offsets import OffsetsError
from spark_jobs.output import REPORT_NAME, STATE_NAME, RebuildError, read_report
from spark_jobs.rebuild import RebuildRequest, prepare, rebuild
from spark_jobs.streaming import CHECKPOINT_PREFIX, complete_stores
from tests.spark_jobs.topics import TestTopic, items_of, rows

Topics = Callable[[int], TestTopic]


def differences(filled: TestTopic, out: Path, live: Path) -> list[int]:
    """The partitions of a rebuild that differ from the live store's fold to the same end."""
    ends = read_report(out).ends
    return [
        partition
        for partition in range(filled.partitions)
        if items_of(partition_directory(out, filled.keyspace, partition))
        != filled.folded(partition, live, ends[partition])[0]
    ]


def test_two_runs_equal_one_in_any_micro_batches(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """The state does not depend on micro-batches or on a stop between them; the report counts what a run folded."""
    filled = topic(3)
    messages = filled.history(frames=40)
    filled.write(0, messages[:30])
    filled.write(1, filled.history(frames=5))
    request = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", offsets_per_batch=25)
    first = rebuild(spark, request)
    assert first.ends == filled.ends()
    filled.write(0, messages[30:])
    second = rebuild(spark, request)
    assert second.partitions[0].messages == len(messages) - 30
    assert read_report(tmp_path / "out") == second
    assert differences(filled, tmp_path / "out", tmp_path / "live") == []
    third = rebuild(spark, request)
    assert (third.messages, third.partitions[0].digest) == (0, second.partitions[0].digest)
    assert not list((tmp_path / "out").glob(f"{CHECKPOINT_PREFIX}*"))


def test_what_lies_beyond_a_named_end_is_left_out_of_the_last_micro_batch(
    spark: Any, topic: Topics, tmp_path: Path
) -> None:
    """Also in small micro-batches, one partition's end long before the other's; a later run goes on from there."""
    filled = topic(2)
    filled.write(0, filled.history(frames=40))
    filled.write(1, filled.history(frames=40))
    filled.transaction([(1, rows(9000, 3))], commit=False)
    for ends in ({0: 31, 1: 4}, {0: 31, 1: 40}, filled.ends()):
        rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", ends, offsets_per_batch=20))
        assert read_report(tmp_path / "out").ends == ends
        assert differences(filled, tmp_path / "out", tmp_path / f"live{ends[1]}") == []
    with pytest.raises(OffsetsError, match="before the start"):
        prepare(RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", {0: 31, 1: 4}))


def test_a_store_that_is_gone_is_folded_from_the_beginning(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """The stores decide where a run begins: a lost one costs time and nothing else."""
    filled = topic(2)
    filled.write(0, filled.history())
    filled.write(1, filled.history())
    request = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out")
    rebuild(spark, request)
    shutil.rmtree(partition_directory(tmp_path / "out", filled.keyspace, 0))
    again = rebuild(spark, request)
    assert [each.messages > 0 for each in again.partitions] == [True, False]
    assert differences(filled, tmp_path / "out", tmp_path / "live") == []


def test_a_directory_of_another_topic_or_base_is_not_gone_on_with(topic: Topics, tmp_path: Path) -> None:
    """A damaged note, another topic and another beginning are refused before Spark starts."""
    filled = topic(1)
    state = tmp_path / "out" / STATE_NAME
    state.parent.mkdir()
    for text in ("{", f'{{"keyspace": "{filled.keyspace}", "topic_id": "other", "base": "", "begins": {{}}}}'):
        state.write_text(text)
        with pytest.raises(RebuildError) as refused:
            prepare(RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out"))
        assert refused.value.code == "state_missing"
    state.write_text(
        f'{{"keyspace": "{filled.keyspace}", "topic_id": "{filled.topic_id()}", "base": "/b", "begins": {{}}}}'
    )
    with pytest.raises(RebuildError, match="begun from base /b"):
        prepare(RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out"))


def test_stores_that_the_driver_does_not_find_are_no_success(
    spark: Any, topic: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where all tasks have run on one machine, whose directory is not the driver's: there is no report."""
    filled = topic(2)
    filled.write(0, filled.history())
    out = tmp_path / "out"

    def elsewhere(*given: Any) -> Any:
        found = complete_stores(*given)
        partition_directory(out, filled.keyspace, 1).rename(tmp_path / "elsewhere")
        return found

    monkeypatch.setattr(spark_jobs.rebuild, "complete_stores", elsewhere)
    with pytest.raises(RebuildError, match="share this directory") as refused:
        rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, out))
    assert refused.value.code == "target_not_shared"
    assert not (out / REPORT_NAME).exists()


def test_a_cut_topic_is_refused_in_one_line(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """An error inside a micro-batch or at the end is raised with its own code, and there is no report."""
    filled = topic(1)
    filled.write(0, filled.history())
    filled.delete_before(0, 5)
    with pytest.raises(RebuildError, match="offset 5 only") as refused:
        rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out"))
    assert refused.value.code == "history_incomplete"
    assert not (tmp_path / "out" / "rebuild.json").exists()


def test_following_makes_each_micro_batch_durable_and_ends_whole(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """A rebuild that follows takes in what comes, and an interrupt ends it with a report of all of it."""
    filled = topic(2)
    filled.write(0, filled.history())
    out = tmp_path / "out"
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 1:
            filled.write(1, filled.history(frames=9))
        elif len(told) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, out, follow=True), progress=tell)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(told) >= 2
    assert read_report(out).ends[1] == filled.ends()[1]
    assert differences(filled, out, tmp_path / "live") == []
