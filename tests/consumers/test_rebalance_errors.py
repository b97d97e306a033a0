"""What goes wrong while partitions are taken over: the consumer tries again, it never stops without a word."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from consumers.errors import DiskFullError
from consumers.loop import Consumption, ConsumptionSettings
from consumers.partitions import Ownership, Partition
from stream.topics import Topic
from tests.consumers.consuming import Feed, until


class Silent:
    """An outlet to nowhere."""

    def dead_letter(self, *_: Any) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def announce(self, _: Partition) -> None:
        """Nothing."""

    def withdraw(self, _: Partition) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Unlucky(Consumption):
    """Its first attempts to open a store meet a broker that is away, then a full disk."""

    attempts = 0

    def _open(self, keyspace: str, number: int, topic: Topic) -> Partition:
        self.attempts += 1
        if self.attempts == 1:
            away = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "x", "log_level": 0})
            away.get_watermark_offsets(TopicPartition(topic.name, number), timeout=0.2)
        if self.attempts == 2:
            raise DiskFullError("no space left", hint="make some")
        return super()._open(keyspace, number, topic)


def test_a_broker_or_disk_that_fails_while_partitions_are_taken_over_is_waited_for(
    kafka: str, keyspace_name: str, tmp_path: Path
) -> None:
    """An exception of librdkafka's own inside its callback is none that Python could catch: the thread just died."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(10)
    settings = ConsumptionSettings(bootstrap=kafka, keyspaces=(keyspace_name,), data_dir=tmp_path, group=keyspace_name)
    consumption = Unlucky(settings, Ownership(tmp_path), Silent(), lambda _: None)
    thread = threading.Thread(target=consumption.run)
    thread.start()
    try:
        until(lambda: consumption.ready.done() or not thread.is_alive(), "ready")
        assert thread.is_alive()
        assert consumption.attempts == 3
    finally:
        consumption.stop()
        thread.join(30)
    assert not thread.is_alive()
