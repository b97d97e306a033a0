"""A real topic that a test fills, and the state that the live consumer folds from it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from consumers.store.store import PartitionStore, StoreView
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import describe_topic, ensure_topics, events_topic
from stream.wire.events import ABSENT, VALUE, VOID
from tests.consumers.histories import event, frame, key, marker, start
from tests.patience import PATIENCE_S
from tests.stream.committed import await_decided

Items = list[tuple[bytes, bytes]]


def in_arrow(offsets: Sequence[int], values: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
    """Messages as Spark gives them to a task: a part of larger arrays."""
    given = pa.array([-1, *offsets, -1], pa.int64()), pa.array([b"before", *values, b"after"], pa.binary())
    return given[0][1:-1], given[1][1:-1]


class TestTopic:
    """The event topic of a keyspace; messages are written by hand, past the publisher."""

    __test__ = False

    def __init__(self, kafka: KafkaCluster, keyspace: str, partitions: int) -> None:
        self.kafka, self.keyspace, self.partitions = kafka, keyspace, partitions
        self.name = events_topic(kafka, keyspace)
        ensure_topics(kafka, keyspace, partitions)
        self._admin = AdminClient(client_settings(kafka))
        self._producer = Producer(client_settings(kafka, **{"linger.ms": 5}))

    def history(self, first: int = 1, frames: int = 20) -> list[bytes | None]:
        """A partition's messages, as `history`, with the topic's number of partitions in their markers."""
        return history(first, frames, self.partitions)

    def write(self, partition: int, messages: Iterable[bytes | None]) -> None:
        """Append messages, outside any transaction."""
        for message in messages:
            self._producer.produce(self.name, message, partition=partition)
        assert self._producer.flush(60) == 0

    def transaction(self, messages: Iterable[tuple[int, bytes]], *, commit: bool) -> None:
        """Append (partition, message) pairs in a Kafka transaction, committed or aborted, as the partitions know."""
        producer = Producer(client_settings(self.kafka, **{"transactional.id": uuid.uuid4().hex}))
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition, message in messages:
            producer.produce(self.name, message, partition=partition)
        assert producer.flush(60) == 0
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        await_decided(self.kafka, self.name, range(self.partitions))

    def delete_before(self, partition: int, offset: int) -> None:
        """Drop the beginning of a partition, as retention does."""
        place = TopicPartition(self.name, partition, offset)
        for deleted in self._admin.delete_records([place]).values():
            deleted.result(PATIENCE_S)

    def create_again(self) -> None:
        """Delete the event topic, and create another of its name."""
        self._admin.delete_topics([self.name])[self.name].result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while self.name in self._admin.list_topics(timeout=60).topics:
            assert time.monotonic() < deadline, f"{self.name} is still there"
            time.sleep(0.05)
        ensure_topics(self.kafka, self.keyspace, self.partitions)
        self._producer = Producer(client_settings(self.kafka, **{"linger.ms": 5}))  # the old one knows the old topic

    def add_partitions(self, total: int) -> None:
        """Raise the event topic's number of partitions, which its layout forbids."""
        for raised in self._admin.create_partitions([NewPartitions(self.name, total)]).values():
            raised.result(PATIENCE_S)

    def remove(self) -> None:
        """Delete all topics of this installation."""
        names = [
            name for name in self._admin.list_topics(timeout=60).topics if name.startswith(f"{self.kafka.prefix}.")
        ]
        for deleted in self._admin.delete_topics(names).values():
            deleted.result(PATIENCE_S)

    def ends(self) -> dict[int, int]:
        """Last stable offsets."""
        return end_offsets(self.kafka, self.name, range(self.partitions))

    def topic_id(self) -> str:
        """Kafka's id of the topic."""
        return describe_topic(self.kafka, self.name).topic_id

    def folded(self, partition: int, scratch: Path, end: int | None = None) -> tuple[Items, int]:
        """The items of a live store that folded the partition up to ``end``, and the dead letters it met."""
        stop = self.ends()[partition] if end is None else end
        store = PartitionStore.open(scratch, keyspace=self.keyspace, partition=partition, topic_id=self.topic_id())
        records = [
            (message.offset(), message.value()) for message in read_range(self.kafka, self.name, partition, 0, stop)
        ]
        dead = store.fold(records)
        store.close()
        return items_of(store.directory), len(dead)


def items_of(directory: Path) -> Items:
    """All items of a store directory."""
    with StoreView(directory) as view:
        return list(view.items())


def rows(first: int, count: int, keys: int = 40) -> bytes:
    """A frame of ``count`` rows with ordinals from ``first``; values, deletes and voids mixed."""
    kinds = (VALUE, VALUE, VALUE, ABSENT, VOID)
    columns = []
    for ordinal in range(first, first + count):
        kind = kinds[ordinal % len(kinds)]
        image = b'{"n":%d}' % ordinal if kind == VALUE else b""
        columns.append((key(ordinal * 7 % keys), kind, image, ordinal))
    return frame(columns)


def history(first: int = 1, frames: int = 20, partitions: int = 1) -> list[bytes | None]:
    """A partition's messages from ordinal ``first``: frames, markers, voids, duplicates, another shard, and rubbish.

    ``partitions``: of the topic, as its markers say.
    """
    layout = f"xxh3_64;partitions={partitions}"
    messages: list[bytes | None] = [start()] if first == 1 else []
    ordinal = first + 1 if first == 1 else first
    for number in range(frames):
        message = rows(ordinal, 5)
        messages.append(message)
        ordinal += 5
        if number % 4 == 1:
            messages.append(marker(ordinal - 1, layout=layout))
        if number % 7 == 2:
            messages.append(message)  # the publisher's retry
        if number % 9 == 3:
            messages += [b"\xc3\x01garbage", b"", None]
        if number % 9 == 5:
            messages.append(event("TableVoid", ordinal, table="shop.items", reason="ddl"))
            ordinal += 1
    other = frame([(key(3), VALUE, b'{"n":"other"}', 2)], shard="shop/1")
    messages += (
        [start(shard="shop/1"), other, marker(ordinal - 1, layout=layout)]
        if first == 1
        else [marker(ordinal - 1, layout=layout)]
    )
    return messages
