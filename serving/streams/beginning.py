"""What one stream leaves out of what all share: of each shard, what lies before the stream's beginning. Pure.

`stream.changes.assembling` leaves it out while the stream has a reader of Kafka to itself. A shard whose source is away
may not come to the beginning for hours, so the stream takes the rule along to the shared ring, and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stream.changes.checkpoint import Place
from stream.changes.items import Mark, Transaction, Watermark
from stream.changes.start import FromTime, LeavesOut, Start


@dataclass(slots=True)
class Beginning:
    """``shards``: shard → what more of it is left out; ``others``: of every shard that the stream has not heard of."""

    shards: dict[str, LeavesOut] = field(default_factory=dict)
    others: FromTime | None = None

    def added_to(self, start: Start) -> Start:
        """A start from a checkpoint, which does not say what is left out."""
        return replace(start, skips=dict(self.shards), skip_others=self.others)

    def pass_over(self, shard: str, *, is_known: bool) -> None:
        """All that the ring has of a shard was passed over: what follows may lie before the beginning, too."""
        if not is_known and self.others is not None:
            self.shards.setdefault(shard, self.others)

    def told(self, item: Transaction, *, is_known: bool) -> Transaction | None:
        """What of it does not lie before the beginning of its shard. Once there is some, nothing of the shard does."""
        self.pass_over(item.shard, is_known=is_known)
        skip = self.shards.get(item.shard)
        if skip is None:
            return item
        events = skip.told(item.place, item.position, item.timestamp, item.events)
        if events is None:
            return None
        del self.shards[item.shard]
        return item if events is item.events else replace(item, events=events, cached={})

    def reached(self, watermark: Watermark, known: Mapping[str, Place]) -> Mapping[str, Mark]:
        """The marks of the shards that have come to their beginning."""
        for shard in watermark.checkpoint.places.keys() - known.keys():
            self.pass_over(shard, is_known=False)
        if not self.shards:
            return watermark.marks
        for shard, mark in watermark.marks.items():
            skip = self.shards.get(shard)
            told = max(mark.timestamp, mark.as_of_ms // 1000)
            if skip is not None and skip.is_reached(mark.place, mark.position, told):
                del self.shards[shard]
        return {shard: mark for shard, mark in watermark.marks.items() if shard not in self.shards}
