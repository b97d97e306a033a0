"""Errors while partitions are taken over: the consumer retries and never stops silently."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumers.owner.partitions import Ownership, Partition
from consumers.process import assignment
from consumers.process.loop import Consumption, ConsumptionSettings
from consumers.process.opening import open_partition
from consumers.store.errors import DiskFullError
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.topics import Topic
from tests.consumers.consuming import Feed, until
from tests.patience import PATIENCE_S


class Silent:
    """A Kafka output that discards everything."""

    def bury(self, *_: Any) -> Future[None]:
        """Done at once."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def announce(self, _: Partition) -> None:
        """Nothing."""

    def withdraw(self, _: Partition) -> None:
        """Nothing."""

    def is_succeeded(self, _: Partition) -> bool:
        """Nobody is told of its partitions."""
        return True

    def ask_for_hot(self, _: Partition, __: str, ___: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Unlucky:
    """Opens stores; its first attempts meet a broker that is away, then a full disk."""

    attempts = 0

    def open_partition(
        self,
        data_dir: Path,
        keyspace: str,
        number: int,
        topic: Topic,
        bounds: tuple[int, int],
        overlay_bytes: int,
        *more: Any,
    ) -> Partition:
        """As `consumers.owner.partitions.open_partition`, at the third attempt."""
        self.attempts += 1
        if self.attempts == 1:
            away = Consumer(client_settings(KafkaCluster("127.0.0.1:1"), **{"group.id": "x"}))
            away.get_watermark_offsets(TopicPartition(topic.name, number), timeout=0.2)
        if self.attempts == 2:
            raise DiskFullError("no space left", hint="make some")
        return open_partition(data_dir, keyspace, number, topic, bounds, overlay_bytes, *more)


def test_a_broker_or_disk_error_during_a_take_over_is_retried(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KafkaException inside a rebalance callback must not end the fold thread."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(10)
    settings = ConsumptionSettings(kafka=kafka, keyspaces=(keyspace_name,), data_dir=tmp_path, group=keyspace_name)
    unlucky = Unlucky()
    monkeypatch.setattr(assignment, "open_partition", unlucky.open_partition)
    consumption = Consumption(settings, Ownership(tmp_path), Silent(), lambda _: None)
    thread = threading.Thread(target=consumption.run)
    thread.start()
    try:
        until(lambda: consumption.ready.done() or not thread.is_alive(), "ready")
        assert thread.is_alive()
        assert unlucky.attempts == 3
    finally:
        consumption.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
