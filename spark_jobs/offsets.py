"""The offsets that a rebuild reads, checked before Spark starts.

Ends are exclusive: the next offset to fold, as in a store's head. The default end is the last stable offset, which
leaves out an open transaction at the tail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, start_offsets
from stream.kafka.topics import describe_topic
from tokens.errors import FreshetError

BROKER_BACK_S: Final = 60.0
"""A run waits so long for brokers that are restarted, as Spark's own clients do."""


class OffsetsError(FreshetError):
    """Invalid or unavailable offsets. Codes: ``bad_offsets``, ``offsets_beyond_end``, ``offsets_expired``,
    ``topic_changed``, ``wrong_partition_count``.
    """

    code = "bad_offsets"


class Beginning(StrEnum):
    """What a range begins behind, as an error names it where retention has passed that."""

    BASE = "the base ends at"
    CHECKPOINT = "the checkpoint began at"
    EXPORT = "the export ends at"
    REBUILD = "the rebuild ends at"
    TABLE = "the table is read from"


_WAYS_OUT: Final = {
    Beginning.BASE: "give a newer base",
    Beginning.CHECKPOINT: "begin with a checkpoint, a rebuild or a snapshot (--base) that is newer",
    Beginning.EXPORT: "let the topic retain more than the time between runs; what is between is lost to this export",
    Beginning.REBUILD: "start again in another directory (--to), if the topic's beginning is gone with a newer --base",
    Beginning.TABLE: "begin with a snapshot, or with a base, whose offsets are retained",
}


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """A topic's id, and per partition the earliest retained offset and the last stable one (exclusive)."""

    topic: str
    topic_id: str
    low: dict[int, int]
    end: dict[int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Per partition the offsets from ``start`` to ``end`` (exclusive), and ``low``, the earliest retained."""

    topic: str
    topic_id: str
    low: dict[int, int]
    start: dict[int, int]
    end: dict[int, int]

    @property
    def messages(self) -> int:
        """Number of offsets, Kafka's control records included."""
        return sum(self.end[partition] - self.start[partition] for partition in self.end)


def topic_bounds(kafka: KafkaCluster, topic: str) -> TopicBounds:
    """Asks the broker; raises `TopicError` ``topic_missing``, `KafkaUnreachable`, `KafkaRequestError`."""
    described = describe_topic(kafka, topic)
    partitions = range(described.partitions)
    low, end = start_offsets(kafka, topic, partitions), end_offsets(kafka, topic, partitions)
    return TopicBounds(topic, described.topic_id, low, end)


def check_topic(kafka: KafkaCluster, chosen: Range, reached: Mapping[int, int] | None = None) -> None:
    """Checks that a topic is still the one whose range was chosen.

    Spark knows a topic by its name: it reads on in one that was created anew under the name, if that is long enough.
    ``reached``: partition → next offset to read; what lies there must still be retained. Raises `OffsetsError`
    ``topic_changed``, ``wrong_partition_count`` or ``offsets_expired``, and as `topic_bounds`.
    """
    topic = describe_topic(kafka, chosen.topic, timeout_s=BROKER_BACK_S)
    if topic.topic_id != chosen.topic_id:
        raise OffsetsError(
            f"{chosen.topic} was deleted and created again during the run: its id is {topic.topic_id} now, "
            f"not {chosen.topic_id}",
            hint="what was made is of no use: start again in another directory (--to)",
            code="topic_changed",
        )
    if topic.partitions != len(chosen.end):
        raise OffsetsError(
            f"{chosen.topic} has {topic.partitions} partitions now, it had {len(chosen.end)} when the run began",
            hint="the partition count of a topic with events must not change: create a new topic",
            code="wrong_partition_count",
        )
    if reached is None:
        return
    for partition, low in start_offsets(kafka, chosen.topic, range(topic.partitions)).items():
        if reached[partition] < low:
            raise OffsetsError(
                f"retention has passed the run: {chosen.topic}[{partition}] begins at offset {low}, "
                f"the run has read up to {reached[partition]}",
                hint="begin with a newer snapshot (--base), and let the topic retain more than a rebuild takes",
                code="offsets_expired",
            )


def choose_range(
    bounds: TopicBounds,
    ends: Mapping[int, int] | None = None,
    starts: Mapping[int, int] | None = None,
    behind: Beginning = Beginning.BASE,
) -> Range:
    """The range from ``starts`` (default: the earliest retained) to ``ends`` (default: now).

    ``behind``: what ends, or began, at ``starts``.

    Raises `OffsetsError` if a partition is missing or unknown, or an offset is beyond the end or no longer retained.
    """
    end = dict(bounds.end if ends is None else ends)
    start = dict(bounds.low if starts is None else starts)
    for name, given in (("end", end), ("start", start)):
        if given.keys() != bounds.end.keys():
            raise OffsetsError(
                f"the {name} offsets name partitions {sorted(given)}; {bounds.topic} has {sorted(bounds.end)}",
                hint="give one offset for each partition; of a checkpoint or base: if several consumers have them, put"
                " what is in the `checkpoints` of their data directories into one directory",
            )
    for partition, offset in sorted(end.items()):
        if offset > bounds.end[partition]:
            raise OffsetsError(
                f"{bounds.topic}[{partition}] ends at offset {bounds.end[partition]}, but {offset} was requested",
                hint="give offsets of this topic that are not inside an open transaction",
                code="offsets_beyond_end",
            )
        low = bounds.low[partition]
        if start[partition] < low:
            raise OffsetsError(
                f"{bounds.topic}[{partition}] begins at offset {low}, {behind} {start[partition]}",
                hint=_WAYS_OUT[behind],
                code="offsets_expired",
            )
        if start[partition] > offset:
            if starts is None and offset >= 0:
                raise OffsetsError(
                    f"{bounds.topic}[{partition}] begins at offset {start[partition]}, but {offset} was requested",
                    hint="give later offsets",
                    code="offsets_expired",
                )
            if ends is None:
                raise OffsetsError(
                    f"{bounds.topic}[{partition}] ends at offset {offset}, {behind} {start[partition]}",
                    hint="Kafka has lost the topic's end: start again in another directory (--to), with an older base",
                    code="offsets_beyond_end",
                )
            raise OffsetsError(
                f"{bounds.topic}[{partition}]: the end {offset} is before the start {start[partition]}",
                hint="give later offsets, or an older base",
            )
    return Range(bounds.topic, bounds.topic_id, dict(bounds.low), start, end)


def offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets in the JSON form that Spark's Kafka source takes."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})


def parse_offsets(text: str) -> dict[int, int]:
    """Partition → offset from JSON such as ``{"0": 17, "1": 4}``; raises `OffsetsError` ``bad_offsets``."""
    try:
        given = json.loads(text)
        offsets = {int(partition): offset for partition, offset in given.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise OffsetsError(
            f"offsets {text[:80]!r} are not a JSON object of partition → offset", hint='give e.g. {"0": 17, "1": 4}'
        ) from error
    bad = [offset for offset in offsets.values() if type(offset) is not int or offset < 0]
    if bad or not offsets:
        raise OffsetsError(f"invalid offset {bad[0]!r}" if bad else "no offsets given", hint='give e.g. {"0": 17}')
    return offsets
