"""Where a change stream begins, as a value. Pure.

The rule of each kind is in docs/concepts/change-stream.md: what is left out lies before the beginning, and once the
first transaction is given out nothing is dropped any more, whatever its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import KEYLESS, Event, RecordEvent
from tokens import Order, Position


class FromTime(NamedTuple):
    """Leave out the transactions before the first one of this second or later."""

    timestamp: int

    def told(
        self,
        place: Place,  # noqa: ARG002 - as `AfterPosition`
        position: str,  # noqa: ARG002
        timestamp: int,
        events: Sequence[Event],
    ) -> Sequence[Event] | None:
        """What is told of a transaction at this place; None: it is left out. Once one is told, all are."""
        return events if timestamp >= self.timestamp else None

    def is_reached(self, place: Place, position: str, timestamp: int) -> bool:  # noqa: ARG002 - as `AfterPosition`
        """Whether nothing that follows this watermark is left out. ``timestamp``: the source had come to it."""
        return timestamp >= self.timestamp


class AfterPosition(NamedTuple):
    """Leave out the transactions up to a position of an epoch.

    A transaction whose order to it is unknown is given out: twice is better than never. So is a void of the position
    itself: sources void tables while nothing is logged, and so after all else of that position was told.
    """

    epoch: int
    position: Position

    def told(
        self,
        place: Place,
        position: str,
        timestamp: int,  # noqa: ARG002 - as `FromTime`
        events: Sequence[Event],
    ) -> Sequence[Event] | None:
        """What is told of a transaction with this position after it; None: it is left out."""
        if place.epoch != self.epoch:
            return events if place.epoch > self.epoch else None
        order = Position.parse(position).order(self.position)
        if order is Order.SAME:
            return _from_its_void_on(events)
        return None if order is Order.OLDER else events

    def is_reached(self, place: Place, position: str, timestamp: int) -> bool:  # noqa: ARG002 - as `FromTime`
        """Whether nothing that follows this watermark is left out."""
        if place.epoch != self.epoch:
            return place.epoch > self.epoch
        return Position.parse(position).order(self.position) is not Order.OLDER


def _from_its_void_on(events: Sequence[Event]) -> Sequence[Event] | None:
    """The events from the first void on; None without one. Rows without a key come once: they are of before it."""
    names = [event.name if isinstance(event, RecordEvent) else "" for event in events]
    if "TableVoid" not in names:
        return None
    first = names.index("TableVoid")
    return [event for event, name in zip(events[first:], names[first:], strict=True) if name != KEYLESS]


LeavesOut: TypeAlias = FromTime | AfterPosition


@dataclass(frozen=True, slots=True)
class Start:
    """``checkpoint``: where to read from, and what of each known shard is behind.

    ``links``: partition → shard of the marker before the offset, and its epoch and continuity: the next one names it.
    ``skips``: shard → what more of it is left out; ``skip_others``: of every shard that neither they nor the checkpoint
    name.
    """

    checkpoint: Checkpoint
    skips: Mapping[str, LeavesOut] = field(default_factory=dict)
    skip_others: FromTime | None = None
    links: Mapping[int, tuple[str, Place]] = field(default_factory=dict)
