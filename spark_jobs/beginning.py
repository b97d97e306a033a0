"""Checks without Spark that a topic still has the beginning of its history."""

from __future__ import annotations

from collections.abc import Iterable

from spark_jobs.offsets import Range
from spark_jobs.output import history_incomplete
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import read_range
from stream.wire.codec import PartitionReader
from tokens.errors import FreshetError


def check_beginnings(kafka: KafkaCluster, chosen: Range) -> None:
    """Refuses a partition that retention has cut if it certainly lacks the beginning of a shard's epoch.

    Reads such a partition up to the `EpochStart` of the shard whose marker comes first; decodes nothing else. That is
    cheaper than a fold that fails at its end. It checks one shard per partition; the Spark tasks check each. Raises
    `RebuildError` ``history_incomplete``, `ReadError`.
    """
    for partition, start in sorted(chosen.start.items()):
        low = chosen.low[partition]
        if low == 0 or start > low:  # nothing is cut off, or a base is continued
            continue
        messages = read_range(kafka, chosen.topic, partition, start, chosen.end[partition])
        lost = lost_history(message.value() for message in messages)
        if lost is not None:
            raise history_incomplete(partition, low, f"the beginning of {lost}" if lost else "everything")


def lost_history(values: Iterable[bytes | None]) -> str | None:
    """The shard of the first marker if its epoch does not begin in ``values``; None if it does.

    "" if there is neither a marker nor the beginning of an epoch.
    """
    begun: set[str] = set()
    first, reader = "", PartitionReader()
    for value in values:
        name = reader.name_of(value or b"")
        if name not in ("EpochStart", "SchemaText") and (first or name != "Marker"):
            continue
        try:
            _, record = reader.decode(value or b"")
        except FreshetError:
            continue  # the fold rejects it too
        if name == "EpochStart":
            begun.add(record["shard"])
        elif name == "Marker":
            first = record["shard"]
        if first in begun:
            return None
    return first if first or not begun else None
