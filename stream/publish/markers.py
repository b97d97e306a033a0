"""What the markers in all partitions tell a publisher that opens: whether a tail was lost, and which shards publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, read_range, read_ranges, start_offsets
from stream.publish.resume import ResumeError
from stream.wire.codec import HEADER_SIZE, CodecError, decode, headers
from stream.wire.events import ResumePoint
from stream.wire.records import follows_a_gap

WINDOW_RECORDS: Final = 256
SAMPLES: Final = 24
"""Places of a partition at which `sample_shards` looks."""
_MARKERS: Final = headers("Marker")


@dataclass(slots=True)
class Markers:
    """The last markers of a topic."""

    own: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Partition → (epoch, continuity) of the shard's last marker."""
    gaps: dict[int, int] = field(default_factory=dict)
    """Partition → the last epoch of the shard in which a marker was not followed by its successor."""
    linked: set[int] = field(default_factory=set)
    """Partitions in which the shard's last marker was compared with the one before it, or names none."""
    others: dict[str, int] = field(default_factory=dict)
    """Other shard → its highest epoch seen."""
    layout: str = ""
    """The layout that the shard's last marker names, else any other shard's; empty without markers."""

    def see(self, shard: str, partition: int, value: bytes | None) -> bool:
        """Take in a message. Returns whether it is a marker of ``shard``. One that is damaged is no marker."""
        if value is None or value[:HEADER_SIZE] not in _MARKERS:
            return False
        try:
            record = decode(value)[1]
        except CodecError:
            return False
        if record["shard"] == shard:
            epoch, held = self.own.get(partition, (0, 0))
            if epoch == record["epoch"] and follows_a_gap(held, record):
                self.gaps[partition] = epoch
            if partition in self.own or not record["previous"]:
                self.linked.add(partition)
            self.own[partition] = record["epoch"], record["continuity"]
            self.layout = record["layout"]
            return True
        if not self.own:
            self.layout = record["layout"]
        self.others[record["shard"]] = max(record["epoch"], self.others.get(record["shard"], 0))
        return False

    def forget(self, partitions: Iterable[int]) -> None:
        """What was seen of the shard in these partitions."""
        for partition in partitions:
            self.own.pop(partition, None)
            self.gaps.pop(partition, None)


def read_markers(
    kafka: KafkaCluster,
    topic: str,
    partitions: Iterable[int],
    shard: str,
    *,
    is_known: bool = False,
    timeout_s: float = 60.0,
) -> Markers:
    """The last markers of ``shard`` in each of the partitions, and which other shards have markers near them.

    ``is_known``: the shard has published here, so a partition is searched until its last marker can be compared with
    the one before it. Raises `TopicReadError`, `KafkaUnreachable`.
    """
    found, wanted = Markers(), list(partitions)
    ends = end_offsets(kafka, topic, wanted, committed=False)
    lows = start_offsets(kafka, topic, wanted)
    window = WINDOW_RECORDS
    while True:
        starts = {partition: max(lows[partition], ends[partition] - window) for partition in wanted}
        ranges = {partition: (start, ends[partition]) for partition, start in starts.items()}
        for message in read_ranges(kafka, topic, ranges, timeout_s=timeout_s):
            found.see(shard, message.partition() or 0, message.value())
        wanted = [each for each in wanted if each not in found.linked and starts[each] > lows[each]]
        if not is_known or not wanted:
            return found
        found.forget(wanted)  # they are read again in order, from further back on
        window *= 4


def check_tails(
    topic: str,
    point: ResumePoint,
    own: Mapping[int, tuple[int, int]],
    gaps: Mapping[int, int],
    partitions: int,
) -> None:
    """Raise `ResumeError` ``tail_lost`` if a partition does not end with the markers of the last state's batch.

    One Kafka transaction wrote them, so some partition has lost its end: an unclean leader election, or a damaged disk.
    So it has if a batch is missing before that one (``gaps``): its transaction had no end there, and was aborted.
    """
    if not point.continuity:
        return  # written by a version without it
    wanted = point.epoch, point.continuity
    lost = [each for each in range(partitions) if own.get(each) != wanted or gaps.get(each) == point.epoch]
    if lost:
        raise ResumeError(
            f"the ends of {topic} contradict each other: partition {lost[0]} lacks some of the last markers of "
            f"{point.shard}",
            hint="a broker lost what it had acknowledged: check unclean.leader.election.enable, min.insync.replicas",
            code="tail_lost",
        )


def sample_shards(kafka: KafkaCluster, topic: str, partition: int, shard: str) -> dict[str, int]:
    """Other shards with markers at places spread over the whole ``partition`` → their epochs."""
    found = Markers()
    [low] = start_offsets(kafka, topic, [partition]).values()
    [end] = end_offsets(kafka, topic, [partition]).values()
    step = max((end - low) // SAMPLES, WINDOW_RECORDS)
    for start in range(low, end, step):
        for message in read_range(kafka, topic, partition, start, min(start + WINDOW_RECORDS, end)):
            found.see(shard, partition, message.value())
    return found.others
