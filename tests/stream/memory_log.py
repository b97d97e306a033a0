"""A topic in memory, for publishers of tests: what they commit, and how they read it when they open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest

from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from stream.publish import markers, opening, publisher, resume
from stream.publish.publisher import Publisher
from stream.publish.shard_producer import PublisherLost
from stream.wire.codec import Record, decode, is_of_unknown_schema
from stream.wire.keys import Layout

KAFKA = KafkaCluster("127.0.0.1:1")
KEYSPACE = "ks"


@dataclass(frozen=True, slots=True)
class Kept:
    """A record. The methods are those of a Kafka message that readers use."""

    at: tuple[int, int]
    content: bytes
    time_ms: int

    def value(self) -> bytes:
        """The record's bytes."""
        return self.content

    def partition(self) -> int:
        """Its partition."""
        return self.at[0]

    def offset(self) -> int:
        """Its offset."""
        return self.at[1]

    def timestamp(self) -> tuple[int, int]:
        """(kind, time)."""
        return 1, self.time_ms


class Clock:
    """The seconds since 1970 are what a test says; time goes on as it does."""

    def __init__(self) -> None:
        self.seconds = 0

    def now(self) -> float:
        """What the test says."""
        return self.seconds

    def monotonic(self) -> float:
        """The machine's."""
        return monotonic()


class MemoryLog:
    """Partitions of records. A transaction's end takes an offset of its own, as in Kafka."""

    def __init__(self, partitions: int = 2) -> None:
        self.partitions: list[list[Kept | None]] = [[] for _ in range(partitions)]
        self.lows = [0] * partitions
        self.stable: list[int] = []
        """Where an open transaction of another shard begins, by partition; empty: nowhere."""
        self.commits_left = 1_000_000
        """The producer is lost at the commit after these."""
        self.ended_in: list[int] = []
        """Partitions in which a publisher has ended what hung."""
        self.topic_id = "one"
        self.watches = 0
        """How many clients watch the topic."""
        self.clock = Clock()
        """Epochs are numbered from 1 while it stands at 0."""

    def commit(self, records: list[tuple[int, bytes]], time_ms: int) -> int:
        """Appends (partition, value) records; the offset of the last one."""
        if not self.commits_left:
            raise PublisherLost("killed")
        self.commits_left -= 1
        for partition, value in records:
            kept = self.partitions[partition]
            kept.append(Kept((partition, len(kept)), value, time_ms))
        last = len(self.partitions[records[-1][0]]) - 1
        for partition in {partition for partition, _ in records}:
            self.partitions[partition].append(None)
        return last

    def end_offsets(self, _: KafkaCluster, __: str, wanted: list[int], *, committed: bool = True) -> dict[int, int]:
        """As `stream.kafka.reader.end_offsets`."""
        if committed and self.stable:
            return {partition: self.stable[partition] for partition in wanted}
        return {partition: len(self.partitions[partition]) for partition in wanted}

    def start_offsets(self, _: KafkaCluster, __: str, wanted: list[int]) -> dict[int, int]:
        """As `stream.kafka.reader.start_offsets`."""
        return {partition: self.lows[partition] for partition in wanted}

    def read_ranges(
        self, _: KafkaCluster, __: str, ranges: Mapping[int, tuple[int, int]], **___: Any
    ) -> Iterator[Kept]:
        """As `stream.kafka.reader.read_ranges`."""
        for partition, (start, end) in ranges.items():
            assert self.lows[partition] <= start <= end <= len(self.partitions[partition])
            yield from (kept for kept in self.partitions[partition][start:end] if kept is not None)

    def read_range(
        self, kafka: KafkaCluster, topic: str, partition: int, start: int, end: int, **options: Any
    ) -> Iterator[Kept]:
        """As `stream.kafka.reader.read_range`."""
        return self.read_ranges(kafka, topic, {partition: (start, end)}, **options)

    def records(self, partition: int) -> list[tuple[str, Record]]:
        """What a partition holds, decoded, without records of unknown schemas."""
        kept = [each.content for each in self.partitions[partition] if each is not None]
        return [decode(value) for value in kept if not is_of_unknown_schema(value)]

    def publisher(self, shard: str = f"{KEYSPACE}/0", **options: Any) -> Publisher:
        """A publisher into this log."""
        given: dict[str, Any] = {"batch_interval_s": 0.0, "idle_marker_s": 60.0, "clock": self.clock} | options
        return Publisher(KAFKA, KEYSPACE, shard, given.pop("layout", Layout(len(self.partitions))), **given)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lets every publisher use this log instead of a broker."""
        log = self

        class Producer:
            def __init__(self, *_: Any) -> None:
                self.is_open = False

            def open(self) -> None:
                self.is_open = True

            def commit(self, records: list[tuple[int, bytes]], time_ms: int) -> int:
                assert self.is_open
                return log.commit(records, time_ms)

            def end_hanging(self, partitions: list[int]) -> None:
                assert self.is_open
                log.ended_in = partitions

            def drop(self) -> None:
                self.is_open = False

        monkeypatch.setattr(publisher, "ShardProducer", Producer)

        class Watch:
            def __init__(self, _: KafkaCluster, topic: Topic) -> None:
                self.topic = topic
                log.watches += 1

            def other_id(self) -> str:
                return log.topic_id if log.topic_id != self.topic.topic_id else ""

            def close(self) -> None:
                log.watches -= 1

        def check_topics(*_: Any) -> Topic:
            return Topic(f"freshet.{KEYSPACE}.events", log.topic_id, len(log.partitions))

        monkeypatch.setattr(publisher, "TopicWatch", Watch)
        monkeypatch.setattr(publisher, "check_topics", check_topics)
        for module in (markers, resume, opening, publisher):
            for name in ("end_offsets", "start_offsets", "read_range", "read_ranges"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, getattr(self, name))
