"""The measured topics. The real publisher writes them, with Kafka transactions, markers and state records."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
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
from stream.publish.topology import DeclaredTopology
from stream.shards.map import IDS, IdRange, ShardMap
from stream.wire.batch import BatchLimits
from stream.wire.codec import ROW_FRAME_HEADER
from stream.wire.events import RowChange, SourceTransaction
from stream.wire.keys import Layout

OWN: Final = 0
"""Rows a frame: the publisher's own limits at full rate."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a topic of (a) holds. ``skewed``: few keys have most changes, and there are deletes.

    ``mapped``: which shard has which keys is declared, as of shards with ranges in the settings.
    """

    rows_a_frame: int = OWN
    shards: int = 1
    mapped: bool = True
    skewed: bool = False


SHAPES: Final = {
    "frames1": Shape(1),
    "frames5": Shape(5),
    "frames20": Shape(20),
    "frames100": Shape(100),
    "framesown": Shape(),
    "shards4": Shape(shards=4),
    "unmapped4": Shape(shards=4, mapped=False),
    "skewed": Shape(skewed=True),
}
"""Keyspace → what its topic holds."""


def make_publisher(
    kafka: KafkaCluster,
    keyspace: str,
    rows_a_frame: int = OWN,
    batch_interval_ms: int | None = None,
    shard: int = 0,
    shards: int = 1,
    known: ShardMap | None = None,
) -> Publisher:
    """A publisher with the default settings, except for the given ones."""
    defaults = PublisherSettings()
    others = tuple(f"{keyspace}/{other}" for other in range(shards) if other != shard)
    return Publisher(
        kafka,
        keyspace,
        f"{keyspace}/{shard}",
        Layout(PARTITIONS),
        topology=DeclaredTopology(others, map=known),
        batch_interval_s=(batch_interval_ms or defaults.batch_interval_ms) / 1000,
        limits=BatchLimits(
            rows_max=rows_a_frame or defaults.frame_rows_max,
            bytes_max=defaults.frame_bytes_max,
            batch_bytes=defaults.batch_bytes,
        ),
    )


def equal_ranges(keyspace: str, shards: int) -> ShardMap:
    """Shard n has the n-th of ``shards`` equal ranges, a power of two."""
    size = IDS // shards
    return ShardMap((f"{keyspace}/{n}", IdRange(n * size, (n + 1) * size)) for n in range(shards))


def publish(
    kafka: KafkaCluster,
    keyspace: str,
    transactions: Iterable[SourceTransaction],
    rows_a_frame: int = OWN,
    shards: int = 1,
    *,
    mapped: bool = False,
) -> dict[str, Any]:
    """Publishes as fast as possible, by a publisher for each shard. Returns rows, seconds, batches, bytes.

    A transaction's shard is that of its key in the map, or follows from its number.
    """
    ensure_topics(kafka, keyspace, PARTITIONS)
    known = equal_ranges(keyspace, shards) if mapped and shards > 1 else None
    with ExitStack() as stack:
        made = [make_publisher(kafka, keyspace, rows_a_frame, None, shard, shards, known) for shard in range(shards)]
        publishers = [stack.enter_context(each) for each in made]
        by_shard = {each.shard: each for each in publishers}
        layout = Layout(PARTITIONS)
        for publisher in publishers:
            publisher.open(lambda: (START_POSITION, START_SECONDS))
            publisher.publish(workload.describe_table())
        began = perf_counter()
        for number, transaction in enumerate(transactions, workload.FIRST):
            if known is None:
                publishers[number % shards].publish(transaction)
                continue
            [change] = transaction.changes
            assert isinstance(change, RowChange)
            by_shard[known.shard_of(layout.keyspace_id(change.key))].publish(transaction)
        for publisher in publishers:
            publisher.flush()
        seconds = perf_counter() - began
        stats = [publisher.stats for publisher in publishers]
    return {
        "rows": sum(each.rows for each in stats),
        "seconds": seconds,
        "batches": sum(each.batches for each in stats),
        "bytes": sum(each.bytes for each in stats),
    }


def fill(kafka: KafkaCluster, keyspace: str, events: int, keys: int) -> dict[str, Any]:
    """Fills a topic of `SHAPES`. Returns the publishers' figures. Runs in a child process."""
    shape = SHAPES[keyspace]
    turns = 1 if shape.mapped else shape.shards
    transactions = list(workload.transactions(events, keys, shards=turns, skewed=shape.skewed))
    done = publish(kafka, keyspace, transactions, shape.rows_a_frame, shape.shards, mapped=shape.mapped)
    return done | {"rows_s": done["rows"] / done["seconds"]}


def fill_distinct(kafka: KafkaCluster, keyspace: str, events: int, keys: int) -> dict[str, Any]:
    """Fills a topic with each of ``keys`` keys once, and then with changes of them. Runs in a child process."""
    first = workload.each_key_once(keys)
    return publish(
        kafka, keyspace, chain(first, workload.transactions(events - keys, keys, first=workload.FIRST + keys))
    )


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
