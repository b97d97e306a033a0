"""Where a change stream begins, as a value. Pure.

The rule of each kind is in docs/concepts/change-stream.md: what is left out lies before the beginning, and once the
first transaction is given out nothing is dropped any more, whatever its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from stream.changes.checkpoint import Checkpoint, Place
from tokens import Order, Position


class FromTime(NamedTuple):
    """Leave out the transactions before the first one of this second or later."""

    timestamp: int

    def leaves_out(self, place: Place, position: str, timestamp: int) -> bool:  # noqa: ARG002 - as `AfterPosition`
        """Whether a transaction at this place is left out. Once it says no, it is not asked again."""
        return timestamp < self.timestamp

    def is_reached(self, place: Place, position: str, timestamp: int) -> bool:
        """Whether nothing that follows this watermark is left out. ``timestamp``: the source had come to it."""
        return not self.leaves_out(place, position, timestamp)


class AfterPosition(NamedTuple):
    """Leave out the transactions up to a position of an epoch.

    A transaction whose order to it is unknown is given out: twice is better than never.
    """

    epoch: int
    position: Position

    def leaves_out(self, place: Place, position: str, timestamp: int) -> bool:  # noqa: ARG002 - as `FromTime`
        """Whether a transaction with this position after it is left out."""
        if place.epoch != self.epoch:
            return place.epoch < self.epoch
        order = Position.parse(position).order(self.position)
        return order is Order.OLDER or order is Order.SAME

    def is_reached(self, place: Place, position: str, timestamp: int) -> bool:  # noqa: ARG002 - as `FromTime`
        """Whether nothing that follows this watermark is left out."""
        if place.epoch != self.epoch:
            return place.epoch > self.epoch
        return Position.parse(position).order(self.position) is not Order.OLDER


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
