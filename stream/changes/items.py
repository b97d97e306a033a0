"""What a change stream consists of. Pure values.

A `Transaction` is whole: all that it changed in this keyspace, over all partitions, in its order. Backfilled rows come
as transactions of the position that they were read at; several may have the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from stream.changes.checkpoint import Checkpoint, Place

KEYLESS: Final = "KeylessRow"
"""The name of the record that is a row without a key."""


class RowEvent(NamedTuple):
    """A row of a transaction. ``operation``: as in `stream.wire.events`; ``image``: empty unless that is VALUE.

    ``before``: as of `stream.wire.events.RowChange`, where the keyspace publishes it.
    """

    ordinal: int
    key: bytes
    operation: int
    image: bytes
    before: bytes | None = None


class RecordEvent(NamedTuple):
    """Any other event of a transaction: the record's name and its fields, as on the wire."""

    ordinal: int
    name: str
    fields: Mapping[str, Any]


Event: TypeAlias = RowEvent | RecordEvent


@dataclass(slots=True, eq=False)
class Transaction:
    """``place``: of its last event. ``position``: the set after it. ``timestamp``: source seconds since 1970.

    ``origin``: ``shard epoch position`` before filtered replication, or "". ``checkpoint``: goes on after it.
    ``cached``: encodings, by what was chosen of it: readers of the same choice share them.
    """

    shard: str
    place: Place
    gtid: str
    position: str
    timestamp: int
    origin: str
    events: Sequence[Event]
    checkpoint: Checkpoint
    size: int
    cached: dict[Any, bytes] = field(default_factory=dict)


class Mark(NamedTuple):
    """How far a shard is complete in every partition. ``as_of_ms``: the source's clock then; 0: unknown.

    ``is_over``: others have taken the shard's place, and nothing more comes of it.
    """

    place: Place
    position: str
    timestamp: int
    as_of_ms: int
    is_over: bool = False


@dataclass(slots=True, eq=False)
class Watermark:
    """Everything up to ``marks`` (shard → mark) has been given out. ``checkpoint``: goes on after it.

    A shard that has not come to the stream's beginning has no mark: what follows may still be left out.
    ``read``: partition → the offset behind what was read. What is whole before these has been given out; the rest of
    it, a transaction that is only half there, holds the checkpoint's offsets back.
    """

    marks: Mapping[str, Mark]
    checkpoint: Checkpoint
    read: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Unreadable:
    """A message that nobody can read: it may have changed anything. ``code``, ``reason``: as of its dead letter."""

    partition: int
    offset: int
    code: str
    reason: str
    checkpoint: Checkpoint


Item: TypeAlias = Transaction | Watermark | Unreadable
