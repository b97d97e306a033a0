"""The measured topics. The real publisher writes them, with Kafka transactions, markers and state records."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from time import perf_counter
from typing import Any, Final

from benchmarks import workload
from benchmarks.workload import PARTITIONS, START_POSITION, START_SECONDS
from freshet.settings import PublisherSettings
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import ensure_topics, events_topic
from stream.publish.publisher import Publisher
from stream.wire.batch import BatchLimits
from stream.wire.codec import ROW_FRAME_HEADER
from stream.wire.events import SourceTransaction
from stream.wire.keys import Layout

FRAMES: Final = (1, 5, 20, 100)
"""Rows per frame."""
OWN: Final = 0
"""Stands for the publisher's own limits at full rate."""


def keyspace_of(rows_a_frame: int) -> str:
    """The keyspace whose frames hold this many rows."""
    return f"frames{rows_a_frame}" if rows_a_frame else "framesown"


def make_publisher(
    kafka: KafkaCluster, keyspace: str, rows_a_frame: int = OWN, batch_interval_ms: int | None = None
) -> Publisher:
    """A publisher with the default settings, except for the given ones."""
    defaults = PublisherSettings()
    return Publisher(
        kafka,
        keyspace,
        f"{keyspace}/0",
        Layout(PARTITIONS),
        batch_interval_s=(batch_interval_ms or defaults.batch_interval_ms) / 1000,
        limits=BatchLimits(
            rows_max=rows_a_frame or defaults.frame_rows_max,
            bytes_max=defaults.frame_bytes_max,
            batch_bytes=defaults.batch_bytes,
        ),
    )


def publish(
    kafka: KafkaCluster, keyspace: str, transactions: Iterable[SourceTransaction], rows_a_frame: int = OWN
) -> dict[str, Any]:
    """Publishes as fast as possible. Returns rows, seconds, batches, bytes."""
    ensure_topics(kafka, keyspace, PARTITIONS)
    with make_publisher(kafka, keyspace, rows_a_frame) as publisher:
        publisher.open(lambda: (START_POSITION, START_SECONDS))
        began = perf_counter()
        for transaction in chain([workload.describe_table()], transactions):
            publisher.publish(transaction)
        publisher.flush()
        seconds = perf_counter() - began
        stats = publisher.stats
        return {"rows": stats.rows, "seconds": seconds, "batches": stats.batches, "bytes": stats.bytes}


def fill(kafka: KafkaCluster, rows_a_frame: int, events: int, keys: int) -> dict[str, Any]:
    """Fills the topic for one frame size. Returns the publisher's figures. Runs in a child process."""
    transactions = list(workload.transactions(events, keys))
    done = publish(kafka, keyspace_of(rows_a_frame), transactions, rows_a_frame)
    return done | {"rows_s": done["rows"] / done["seconds"]}


def fill_once_each(kafka: KafkaCluster, keyspace: str, keys: int) -> dict[str, Any]:
    """Fills a topic with each of ``keys`` keys once. Runs in a child process."""
    return publish(kafka, keyspace, workload.each_key_once(keys))


def records_of(kafka: KafkaCluster, keyspace: str, partition: int) -> list[tuple[int, bytes]]:
    """(offset, value) of all committed records of one partition."""
    topic = events_topic(kafka, keyspace)
    [end] = end_offsets(kafka, topic, [partition]).values()
    messages = read_range(kafka, topic, partition, 0, end)
    return [(message.offset(), message.value() or b"") for message in messages]


def is_frame(value: bytes) -> bool:
    """Whether a record holds rows."""
    return value.startswith(ROW_FRAME_HEADER)
