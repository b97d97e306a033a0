"""What stands behind a message that could not be folded, up to its shard's next marker, and was not folded either.

All of it is void up to the last event that was folded before it, and the marker counts for all of it. If one of these
messages is folded late, and a later one never, what it says of a key stands above the void, for everything up to the
marker: also for what only the other one said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from typing import Final, TypeAlias, cast

from confluent_kafka import Message

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, read_range
from stream.wire.checks import check
from stream.wire.codec import HEADER_SIZE, CodecError, decode, headers

Place: TypeAlias = tuple[int, int]
"""Partition and offset of a message."""
GAP_MAX: Final = 1_000
"""Over so many messages between two that are looked for it is read on; beyond it a new read begins."""
_UNFOLDED: Final = frozenset().union(*map(headers, ("BeforeImages", "KeylessRow", "SourceState")))
"""Records that change no state, whatever is lost of them."""


def nothing_left_behind(
    kafka: KafkaCluster, topic: str, wanted: Sequence[Place], unfolded: Collection[Place]
) -> set[Place]:
    """Which of the ``wanted`` messages may be folded late, the last ones first, so that nothing is left behind them.

    ``unfolded``: those that were not folded, as far as it is known, perhaps with the wanted ones. What can't be read is
    one of them. Raises `TopicReadError`, `KafkaUnreachable`.
    """
    ends = end_offsets(kafka, topic, sorted({partition for partition, _ in wanted}))
    found: set[Place] = set()
    for partition, end in ends.items():
        offsets = sorted(offset for at, offset in wanted if at == partition)
        behind = _behind(kafka, topic, partition, offsets, end, {offset for at, offset in unfolded if at == partition})
        late: set[int] = set()
        for offset in reversed(offsets):
            if behind[offset] <= late:
                late.add(offset)
        found |= {(partition, offset) for offset in late}
    return found


def _behind(
    kafka: KafkaCluster, topic: str, partition: int, offsets: Sequence[int], end: int, unfolded: set[int]
) -> dict[int, set[int]]:
    """Each of the rising ``offsets`` → what was not folded between it and its shard's next marker."""
    found: dict[int, set[int]] = {offset: set() for offset in offsets}
    waiting: dict[int, tuple[str, int, int]] = {}
    ahead = deque(offsets)
    while ahead:
        messages = cast("Generator[Message]", read_range(kafka, topic, partition, ahead[0], end))
        with closing(messages):
            for message in messages:
                offset, (name, at) = message.offset() or 0, _said(message.value())
                if not name or offset in unfolded:
                    for each in waiting:
                        found[each].add(offset)
                elif name == "Marker":
                    waiting = {each: of for each, of in waiting.items() if of[0] != at[0] or of > at}
                while ahead and ahead[0] <= offset:
                    wanted = ahead.popleft()
                    if at[0]:
                        waiting[wanted] = at
                if not waiting and (not ahead or ahead[0] - offset > GAP_MAX):
                    break
            else:
                break
    return found


def _said(value: bytes | None) -> tuple[str, tuple[str, int, int]]:
    """A message's name and last place: shard, epoch, ordinal. Without a name if it can't be read, and without a shard
    if it changes no state."""
    if value is not None and value[:HEADER_SIZE] in _UNFOLDED:
        return "SourceState", ("", 0, 0)
    try:
        name, fields = decode(value or b"")
        check(name, fields)
    except CodecError:
        return "", ("", 0, 0)
    return name, (fields["shard"], fields["epoch"], fields["ordinal"] + max(fields.get("ordinals") or (0,)))
