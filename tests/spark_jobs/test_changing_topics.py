"""What happens to a topic while Spark reads it: transactions, retention, another topic, more partitions, a dead broker.

Each test changes a real topic between two micro-batches of a rebuild or an export.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

import spark_jobs.export
import spark_jobs.rebuild
import spark_jobs.streaming
from consumers.store.errors import StoreError
from freshet.local.kafka import KafkaServer
from spark_jobs.export import NOTES, ExportRequest, export, read_commit
from spark_jobs.offsets import OffsetsError
from spark_jobs.output import REPORT_NAME, RebuildError
from spark_jobs.rebuild import RebuildRequest, rebuild
from stream.kafka.connection import KafkaCluster, client_settings
from tests.patience import PATIENCE_S
from tests.spark_jobs.test_streaming import differences
from tests.spark_jobs.topics import TestTopic, rows
from tests.stream.committed import await_decided

Topics = Callable[[int], TestTopic]
BATCH: Final = 25
"""Offsets of a micro-batch: a rebuild of a history here takes several."""
LARGE_BYTES: Final = 900_000
"""Of a message: 60 of them are more than Spark's consumers fetch ahead, and keep from one micro-batch to the next."""


@pytest.fixture
def after_a_batch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something happen once, when the first micro-batch of a rebuild or an export has been read."""

    def arrange(happen: Callable[[], None]) -> None:
        left = [happen]

        def then(read: Callable[..., Any]) -> Callable[..., Any]:
            def reading(*given: Any) -> Any:
                found = read(*given)
                if left:
                    left.pop()()
                return found

            return reading

        monkeypatch.setattr(spark_jobs.rebuild, "run_tasks", then(spark_jobs.streaming.run_tasks))
        monkeypatch.setattr(spark_jobs.export, "answers", then(spark_jobs.streaming.answers))

    return arrange


Arrange = Callable[[Callable[[], None]], None]


def request_of(filled: TestTopic, target: Path, **more: Any) -> RebuildRequest:
    """A rebuild in small micro-batches."""
    return RebuildRequest(filled.keyspace, filled.kafka, target, offsets_per_batch=BATCH, **more)


@contextmanager
def open_transaction(filled: TestTopic) -> Iterator[Producer]:
    """A transaction with rows in both partitions that is aborted at the end."""
    patient = {"transactional.id": uuid.uuid4().hex, "transaction.timeout.ms": 900_000}
    producer = Producer(client_settings(filled.kafka, **patient))
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(filled.partitions):
        producer.produce(filled.name, rows(70_000, 3), partition=partition)
    assert producer.flush(60) == 0
    yield producer
    producer.abort_transaction(60)
    await_decided(filled.kafka, filled.name, range(filled.partitions))


def test_huge_and_open_transactions_are_folded_as_the_live_consumer_folds_them(
    spark: Any, topic: Topics, tmp_path: Path
) -> None:
    """Larger than a poll: the committed one is whole, the aborted one absent, the open one past the end."""
    filled = topic(2)
    for partition in range(2):
        filled.write(partition, filled.history(frames=4))
    many = [(number % 2, rows(1000 + 2 * number, 2)) for number in range(6000)]
    filled.transaction(many, commit=False)
    filled.transaction(many, commit=True)
    request = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", offsets_per_batch=7000)
    with open_transaction(filled):
        for partition in range(2):
            filled.write(partition, [rows(80_000, 3)])  # behind an open transaction: not stable yet
        report = rebuild(spark, request)
        assert report.ends == filled.ends()
        assert differences(filled, tmp_path / "out", tmp_path / "live") == []
        assert [each.messages > 3000 for each in report.partitions] == [True, True]
    again = rebuild(spark, request)
    assert [each.messages for each in again.partitions] == [1, 1], "the aborted rows are in no state"
    assert differences(filled, tmp_path / "out", tmp_path / "later") == []


def test_a_topic_created_again_during_a_run_is_not_taken_for_the_old_one(
    spark: Any, topic: Topics, tmp_path: Path, after_a_batch: Arrange
) -> None:
    """Spark would read on in it, since it is long enough. There is no report, and no run goes on with the directory."""
    filled = topic(1)
    filled.write(0, filled.history(frames=30))

    def replace() -> None:
        filled.create_again()
        filled.write(0, [rows(5 * number + 1, 5) for number in range(100)])

    after_a_batch(replace)
    with pytest.raises(OffsetsError, match="created again") as refused:
        rebuild(spark, request_of(filled, tmp_path / "out"))
    assert refused.value.code == "topic_changed"
    assert not (tmp_path / "out" / REPORT_NAME).exists()
    with pytest.raises(RebuildError, match="topic id") as other:
        rebuild(spark, request_of(filled, tmp_path / "out"))
    assert other.value.code == "state_missing"


def test_nothing_of_a_topic_created_again_is_exported_as_the_old_ones(
    spark: Any, topic: Topics, tmp_path: Path, after_a_batch: Arrange
) -> None:
    """The commit that would hold rows of two topics is not made."""
    filled = topic(1)
    filled.write(0, filled.history(frames=30))
    after_a_batch(filled.create_again)
    with pytest.raises(OffsetsError) as refused:
        export(spark, ExportRequest(filled.keyspace, filled.kafka, tmp_path / "out", offsets_per_commit=BATCH))
    assert refused.value.code == "topic_changed"
    assert read_commit(tmp_path / "out") is None
    assert [each.name for each in (tmp_path / "out").iterdir()] == [NOTES]


def test_retention_that_passes_a_run_ends_it(spark: Any, topic: Topics, tmp_path: Path, after_a_batch: Arrange) -> None:
    """What is lost is never skipped: the run says where the topic begins now, and how far it was."""
    filled = topic(1)
    filled.write(0, [*filled.history(frames=4), *(os.urandom(LARGE_BYTES) for _ in range(60))])
    kept = filled.ends()[0] - 2
    after_a_batch(lambda: filled.delete_before(0, kept))
    with pytest.raises(OffsetsError, match=f"begins at offset {kept}, the run has read up to {BATCH}") as refused:
        rebuild(spark, request_of(filled, tmp_path / "out"))
    assert refused.value.code == "offsets_expired"
    assert not (tmp_path / "out" / REPORT_NAME).exists()
    with pytest.raises(OffsetsError, match="begins at offset") as again:
        rebuild(spark, request_of(filled, tmp_path / "out"))
    assert again.value.code == "offsets_expired"


def test_partitions_added_to_a_topic_are_refused(
    spark: Any, topic: Topics, tmp_path: Path, after_a_batch: Arrange
) -> None:
    """During a run, and before it: keys would be looked for in other partitions than those that hold them."""
    filled = topic(1)
    filled.write(0, filled.history(frames=30))
    after_a_batch(lambda: filled.add_partitions(2))
    with pytest.raises(OffsetsError, match="has 2 partitions now, it had 1") as during:
        rebuild(spark, request_of(filled, tmp_path / "out"))
    with pytest.raises(StoreError, match="layout xxh3_64;partitions=1") as before:
        rebuild(spark, request_of(filled, tmp_path / "other"))
    assert during.value.code == before.value.code == "wrong_partition_count"
    for target in ("out", "other"):
        assert not (tmp_path / target / REPORT_NAME).exists()


def test_a_broker_that_dies_and_comes_again_costs_a_run_nothing(
    spark: Any, new_kafka: Callable[..., KafkaServer], tmp_path: Path, after_a_batch: Arrange
) -> None:
    """Spark waits for it, and the state is the live one byte for byte."""
    server = new_kafka()
    filled = TestTopic(KafkaCluster(server.bootstrap), "killed", 1)
    filled.write(0, filled.history(frames=60))
    back = threading.Thread(target=server.restart)

    def die() -> None:
        server.kill()
        back.start()

    after_a_batch(die)
    try:
        report = rebuild(spark, request_of(filled, tmp_path / "out"))
    finally:
        if back.ident is not None:
            back.join(PATIENCE_S)
    assert report.ends == filled.ends()
    assert differences(filled, tmp_path / "out", tmp_path / "live") == []
