"""Finds where to read the topic from: now, a second, a position, or a checkpoint.

A stream can begin at any whole markers: let m be the highest ordinal among the last ones before the chosen offsets, one
for each partition. Then all events above m lie behind those markers, and transactions above m are whole. So each
beginning is a set of offsets that surely lies before what is wanted, moved back to the markers before it, and a rule
for what to leave out from there (`stream.changes.start`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stream.changes.checkpoint import NOWHERE, Checkpoint, CheckpointError, Place, anchor_of
from stream.changes.start import AfterPosition, FromTime, Start
from stream.kafka.announced import announced_before
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, offsets_for_timestamp, read_ranges, start_offsets
from stream.kafka.topics import Topic
from stream.wire.announced import Announced
from stream.wire.codec import CodecError, NewerWireError, PartitionReader, Record
from tokens import Position, Vector
from tokens.decision import keyspace_of
from tokens.errors import FreshetError, TokenError

_READ: Final = frozenset({"Marker", "SchemaText"})
WINDOW_RECORDS: Final = 256
WINDOW_RECORDS_MAX: Final = 64 * 1024
"""How far back a shard's last marker is looked for. One that has said nothing for so long says so when it comes back:
all that it publishes then lies behind the beginning."""
PROBE_RECORDS: Final = 1024
CLOCK_AHEAD_S: Final = 10
"""By so much a server's clock may be ahead of its source's machine: no record has a time after the machine's own."""


class StreamTooOld(FreshetError):
    """The topic does not go back that far; code ``stream_too_old``. ``earliest``: the first second that it can tell."""

    code = "stream_too_old"

    def __init__(self, message: str, earliest: int) -> None:
        hint = f"the stream can start at second {earliest}; read anew what is older, and start before that"
        super().__init__(message, hint=hint if earliest else "nothing in the topic can be a beginning: start from now")
        self.earliest = earliest


class _At(NamedTuple):
    """A marker in a partition. ``time_ms``: Kafka's time of it; ``anchor``: as in a checkpoint."""

    offset: int
    time_ms: int
    place: Place
    position: str
    low_water: str
    anchor: int


class _Log(NamedTuple):
    """The topic in which a beginning is looked for. ``texts``: what it was found to announce."""

    kafka: KafkaCluster
    topic: Topic
    texts: dict[bytes, Announced]

    @property
    def partitions(self) -> range:
        """All of them."""
        return range(self.topic.partitions)

    def lows(self, partitions: Iterable[int]) -> dict[int, int]:
        """As `start_offsets`."""
        return start_offsets(self.kafka, self.topic.name, partitions)

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """As `end_offsets`, of what is committed."""
        return end_offsets(self.kafka, self.topic.name, partitions)

    def reader(self, partition: int, offset: int) -> PartitionReader:
        """Of the messages from an offset on."""
        return PartitionReader(self.texts, announced_before(self.kafka, self.topic.name, partition, offset))

    def markers(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, str, _At]]:
        """Partition, shard and place of each whole marker in ranges of offsets."""
        readers = {partition: self.reader(partition, start) for partition, (start, _) in ranges.items()}
        for message in read_ranges(self.kafka, self.topic.name, ranges):
            partition = message.partition() or 0
            marker = _marker(readers[partition], message.value())
            if marker is not None:
                yield partition, marker["shard"], _at(message, marker)


@dataclass(slots=True)
class _Seen:
    """The last markers before some offsets: shard → partition → marker."""

    markers: dict[str, dict[int, _At]] = field(default_factory=dict)

    def bases(self) -> dict[str, Place]:
        """Shard → the place above which everything lies behind its markers."""
        return {shard: max(each.place for each in found.values()) for shard, found in self.markers.items()}


def start_and_end(kafka: KafkaCluster, keyspace: str, topic: Topic) -> tuple[Start, tuple[int, ...]]:
    """Everything that is published from now on, and so all that is committed from now on; and `published_by_now`."""
    log = _Log(kafka, topic, {})
    at = log.ends(log.partitions)
    seen, checkpoint = _back_to_markers(log, keyspace, at)
    found = seen.markers.values()
    ends = (max((each[part].offset + 1 for each in found if part in each), default=0) for part in sorted(at))
    return Start(checkpoint), tuple(ends)


def published_by_now(kafka: KafkaCluster, keyspace: str, topic: Topic) -> tuple[int, ...]:
    """Partition → the offset behind its last marker. What is whole by now lies before these."""
    return start_and_end(kafka, keyspace, topic)[1]


def start_at_time(kafka: KafkaCluster, keyspace: str, topic: Topic, second: int) -> Start:
    """From the first transaction of each shard whose source time is ``second`` or later. Raises `StreamTooOld`."""
    log = _Log(kafka, topic, {})
    earliest = _earliest_second(log)
    if not earliest or second < earliest:
        raise StreamTooOld(f"the topic {topic.name} does not go back to second {second}", earliest)
    return _start_at(log, keyspace, second)


def start_at_earliest(kafka: KafkaCluster, keyspace: str, topic: Topic) -> Start:
    """All that the topic has; from the first second that it can tell, if retention has deleted its beginning.

    Raises `StreamTooOld`. A second does not find the beginning of a whole topic: a source that begins with an old
    backlog publishes it under later times, or retention would delete it at once.
    """
    log = _Log(kafka, topic, {})
    if not any(log.lows(log.partitions).values()):
        nothing = (0,) * topic.partitions
        return Start(Checkpoint(keyspace, topic.topic_id, nothing, {}, nothing))
    earliest = _earliest_second(log)
    if not earliest:
        raise StreamTooOld(f"retention has left a partition of {topic.name} without a marker", earliest)
    return _start_at(log, keyspace, earliest)


def _start_at(log: _Log, keyspace: str, second: int) -> Start:
    at = offsets_for_timestamp(log.kafka, log.topic.name, log.partitions, second - CLOCK_AHEAD_S)
    _, checkpoint = _back_to_markers(log, keyspace, at)
    skip = FromTime(second)
    return Start(checkpoint, dict.fromkeys(checkpoint.places, skip), skip)


def start_after(kafka: KafkaCluster, keyspace: str, topic: Topic, vector: Vector) -> Start:
    """After the positions of ``vector``; of shards that it does not name, from about the same time.

    Raises `StreamTooOld` if some of it is no longer in the topic, `CheckpointError` if it is of an epoch that is not.
    """
    wanted = {shard: AfterPosition(*component) for shard, component in vector.items() if _is_of(shard, keyspace)}
    if not wanted:
        raise CheckpointError(f"the token names no shard of keyspace {keyspace}", hint="or start from now")
    log = _Log(kafka, topic, {})
    seen, checkpoint = _back_to_markers(log, keyspace, _search(log, wanted))
    _require_begun(log, keyspace, wanted, seen)
    for shard, skip in wanted.items():
        _require_kept(log, shard, skip, seen.markers.get(shard, {}))
    return Start(checkpoint, skips=wanted)


def _is_of(shard: str, keyspace: str) -> bool:
    """Whether a component can concern the keyspace: a session's token names shards of others, too."""
    return keyspace_of(shard) in ("", keyspace)


def start_at_checkpoint(kafka: KafkaCluster, keyspace: str, topic: Topic, checkpoint: Checkpoint) -> Start:
    """Exactly where another stream ended. Raises `CheckpointError`, `StreamTooOld`."""
    if checkpoint.keyspace != keyspace:
        raise CheckpointError(
            f"the checkpoint is of keyspace {checkpoint.keyspace}, not of {keyspace}",
            hint="each keyspace has its own checkpoints",
        )
    if checkpoint.topic_id != topic.topic_id or len(checkpoint.offsets) != topic.partitions:
        raise CheckpointError(
            f"the topic {topic.name} was replaced since the checkpoint was written",
            hint="its changes can't be told from here on: read anew, and start from a second or from now",
            code="checkpoint_lost",
        )
    log = _Log(kafka, topic, {})
    partitions, lows = log.partitions, log.lows(log.partitions)
    anchors = {partition: anchor for partition, anchor in enumerate(checkpoint.anchors) if anchor}
    needed = [at - (partition in anchors) for partition, at in enumerate(checkpoint.offsets)]
    if any(lows[partition] > needed[partition] for partition in partitions):
        raise StreamTooOld("the topic does not go back to the checkpoint any more", _earliest_second(log))
    ends = end_offsets(kafka, topic.name, partitions, committed=False)
    if any(ends[partition] < checkpoint.offsets[partition] for partition in partitions):
        raise CheckpointError(
            f"the topic {topic.name} ends before the checkpoint: Kafka lost its end",
            hint="read anew, and start from a second or from now",
            code="checkpoint_lost",
        )
    return Start(checkpoint, links=_links(log, checkpoint.offsets, anchors))


def _links(log: _Log, offsets: Sequence[int], anchors: Mapping[int, int]) -> dict[int, tuple[str, Place]]:
    """Reads the messages before a checkpoint's offsets again. Raises `CheckpointError` if one is another one."""
    found: dict[int, tuple[str, Place]] = {}
    ranges = {partition: (offsets[partition] - 1, offsets[partition]) for partition in anchors}
    for message in read_ranges(log.kafka, log.topic.name, ranges):
        value, partition = message.value() or b"", message.partition() or 0
        if anchor_of(value) == anchors[partition]:
            found[partition] = "", NOWHERE
            with suppress(CodecError):  # retention may have deleted the text of its schema
                marker = log.reader(partition, offsets[partition] - 1).decode(value)[1]
                found[partition] = marker["shard"], Place(marker["epoch"], marker["continuity"])
    if lost := sorted(anchors.keys() - found.keys()):
        raise CheckpointError(
            f"Kafka lost the end of partition {lost[0]} of {log.topic.name} and filled it again since the checkpoint",
            hint="read anew, and start from a second or from now",
            code="checkpoint_lost",
        )
    return found


def _earliest_second(log: _Log) -> int:
    """The first second from which the topic has everything; 0 if a partition has no marker, yet or any more.

    That is the one after Kafka's time of the first marker of each partition: what lies before it may be gone, or have
    happened before the source began. What is gone may be of so much later as a server's clock may be ahead.
    """
    lows = log.lows(log.partitions)
    found = _first_markers(log, lows, log.ends(log.partitions))
    if any(not shards for shards in found.values()):
        return 0
    first_s = max(min(marker.time_ms for marker in shards.values()) for shards in found.values()) // 1000 + 1
    return first_s + CLOCK_AHEAD_S if any(lows.values()) else first_s


def _back_to_markers(log: _Log, keyspace: str, at: Mapping[int, int]) -> tuple[_Seen, Checkpoint]:
    """The last markers of each shard before the offsets ``at``; a checkpoint behind the first of them."""
    lows = log.lows(at)
    at = {partition: max(offset, lows[partition]) for partition, offset in at.items()}
    window = WINDOW_RECORDS
    seen, todo = _Seen(), dict(at)
    while todo:
        ranges = {partition: (max(lows[partition], end - window), end) for partition, end in todo.items()}
        for partition, shard, marker in log.markers(ranges):
            _keep(seen, partition, marker, shard)
        todo = {
            partition: at[partition]
            for partition, (start, _) in ranges.items()
            if start > lows[partition]
            and window < WINDOW_RECORDS_MAX
            and (not seen.markers or any(partition not in found for found in seen.markers.values()))
        }
        window *= 4
    offsets, anchors = [], []
    for partition in sorted(at):
        own = min((found[partition] for found in seen.markers.values() if partition in found), default=None)
        offsets.append(own.offset + 1 if own is not None else at[partition])
        anchors.append(own.anchor if own is not None else 0)
    return seen, Checkpoint(keyspace, log.topic.topic_id, tuple(offsets), seen.bases(), tuple(anchors))


def _keep(seen: _Seen, partition: int, marker: _At, shard: str) -> None:
    found = seen.markers.setdefault(shard, {})
    if partition not in found or found[partition].offset < marker.offset:
        found[partition] = marker


def _search(log: _Log, wanted: Mapping[str, AfterPosition]) -> dict[int, int]:
    """For each partition an offset at or before which no marker has reached what is ``wanted``, as late as it goes."""
    low, ends = log.lows(log.partitions), log.ends(log.partitions)
    high = dict(ends)
    while True:
        middles = {
            partition: (low[partition] + high[partition]) // 2
            for partition in low
            if high[partition] - low[partition] > WINDOW_RECORDS
        }
        if not middles:
            return low
        found = _first_markers(log, middles, ends, frozenset(wanted))
        for partition, middle in middles.items():
            if _is_before(found[partition], wanted):
                low[partition] = middle
            else:
                high[partition] = middle


def _is_before(found: Mapping[str, _At], wanted: Mapping[str, AfterPosition]) -> bool:
    """Whether the markers of all wanted shards are there, and have not reached them."""
    for shard, skip in wanted.items():
        marker = found.get(shard)
        if marker is None or skip.is_reached(marker.place, marker.position, 0):
            return False
    return True


def _require_begun(log: _Log, keyspace: str, wanted: Mapping[str, AfterPosition], seen: _Seen) -> None:
    """Raises `CheckpointError` if the topic has a shard only in older epochs than a position is of.

    All that follows would lie before the position. An epoch that anybody can name has begun with a marker.
    """
    found = seen.bases()
    if all(shard in found and found[shard].epoch >= skip.epoch for shard, skip in wanted.items()):
        return
    last = _back_to_markers(log, keyspace, log.ends(log.partitions))[0].bases()
    for shard, skip in wanted.items():
        if shard in last and last[shard].epoch < skip.epoch:
            raise CheckpointError(
                f"the token is of epoch {skip.epoch} of {shard}, and {log.topic.name} ends in {last[shard].epoch}",
                hint="it is of another installation, or Kafka lost the epoch: read anew, and start from now",
                code="checkpoint_lost",
            )


def _require_kept(log: _Log, shard: str, skip: AfterPosition, before: Mapping[int, _At]) -> None:
    """Raises `StreamTooOld` unless everything of ``shard`` after the position is in the topic.

    That is so in a partition with a marker ``before`` the beginning that is not past it; else its first one says it.
    """
    unproved = [each for each in log.partitions if each not in before or _is_past(before[each], skip)]
    if not unproved:
        return
    lows = log.lows(unproved)
    found = _first_markers(log, lows, log.ends(unproved), frozenset({shard}))
    for partition in unproved:
        first = found[partition].get(shard)
        if first is None or not _begins_by(first, skip, is_whole=lows[partition] == 0):
            raise StreamTooOld(f"the topic does not go back to {skip.position} of {shard}", _earliest_second(log))


def _is_past(marker: _At, skip: AfterPosition) -> bool:
    is_at = marker.place.epoch == skip.epoch and Position.parse(marker.position) == skip.position
    return skip.is_reached(marker.place, marker.position, 0) and not is_at


def _begins_by(marker: _At, skip: AfterPosition, *, is_whole: bool) -> bool:
    """Whether a partition that begins with this marker has everything after the position.

    One of which nothing was deleted (``is_whole``) begins where its shard's first epoch does: at the low-water.
    """
    if not _is_past(marker, skip):
        return True
    is_same_history = marker.place.epoch == skip.epoch
    return is_whole and is_same_history and skip.position.at_or_past(Position.parse(marker.low_water))


def _first_markers(
    log: _Log, starts: Mapping[int, int], ends: Mapping[int, int], shards: Iterable[str] = ()
) -> dict[int, dict[str, _At]]:
    """Partition → shard → its first marker at or after ``starts``. ``shards``: those to look for; else any one."""
    found: dict[int, dict[str, _At]] = {partition: {} for partition in starts}
    wanted = frozenset(shards)
    window, places = PROBE_RECORDS, dict(starts)
    while places:
        ranges = {partition: (at, min(at + window, ends[partition])) for partition, at in places.items()}
        for partition, shard, marker in log.markers(ranges):
            found[partition].setdefault(shard, marker)
        places = {
            partition: end
            for partition, (_, end) in ranges.items()
            if end < ends[partition]
            and end - starts[partition] < WINDOW_RECORDS_MAX
            and (not found[partition] if not wanted else wanted - found[partition].keys())
        }
        window *= 4
    return found


def _marker(reader: PartitionReader, value: bytes | None) -> Record | None:
    """The marker that a message is, if it is whole. One that is damaged is none.

    Markers in the middle of a transaction repeat the ordinal before it, and parts of it lie before them.
    """
    if value is None or reader.name_of(value) not in _READ:
        return None
    try:
        name, marker = reader.decode(value)
        if name != "Marker":
            return None
        Position.parse(marker["position"])
        Position.parse(marker["low_water"])
    except (CodecError, NewerWireError, TokenError):
        return None
    return marker if marker["whole"] else None


def _at(message: object, marker: Record) -> _At:
    place = Place(marker["epoch"], marker["ordinal"])
    offset, (_, time_ms) = message.offset(), message.timestamp()  # type: ignore[attr-defined]  # librdkafka's
    anchor = anchor_of(message.value())  # type: ignore[attr-defined]
    return _At(offset, time_ms, place, marker["position"], marker["low_water"], anchor)
