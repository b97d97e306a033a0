"""Topics in memory that were framed from histories, and what a change stream gives out of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stream.changes.assembling import HELD_BYTES_MAX, Assembler
from stream.changes.checkpoint import Checkpoint
from stream.changes.items import Item, Transaction
from stream.changes.start import Start
from stream.wire.batch import BatchLimits, Framer
from stream.wire.events import ResumePoint, SourceTransaction
from stream.wire.keys import Layout

TINY = BatchLimits(rows_max=3, bytes_max=120, batch_bytes=400, open_map_every=3, open_map_small=1)
KEYSPACE, TOPIC = "shop", "topic-id"
BEGIN = "MariaDB/0-1-0"


def framer_of(shard: str, layout: Layout, limits: BatchLimits = TINY) -> Framer:
    """Of a shard's first epoch, at its beginning."""
    return Framer(shard, layout, ResumePoint(shard, 1, 0, BEGIN, 1_600_000_000, BEGIN), limits)


@dataclass
class Log:
    """Partition → its messages; an offset is an index."""

    layout: Layout
    partitions: list[list[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.partitions = [[] for _ in range(self.layout.partitions)]

    def publish(self, framer: Framer, txn: SourceTransaction | None = None) -> None:
        """A transaction as the publisher adds it, and then what is left of its batch."""
        start = 0
        while txn is not None:
            end = framer.room(txn, start)
            if end < 0:
                self._write(framer)
                continue
            framer.add(txn, start, end)
            if end == len(txn.changes):
                break
            start = end
        self._write(framer)

    def _write(self, framer: Framer) -> None:
        for partition, value in framer.take().records:
            self.partitions[partition].append(value)

    @property
    def ends(self) -> tuple[int, ...]:
        """The offsets after the last messages."""
        return tuple(map(len, self.partitions))

    def read(self, partition: int, start: int, end: int) -> list[tuple[int, bytes]]:
        """The messages of a range, each with its offset."""
        return list(enumerate(self.partitions[partition]))[start:end]

    def beginning(self) -> Start:
        """Everything."""
        return Start(Checkpoint(KEYSPACE, TOPIC, (0,) * self.layout.partitions))


def follow(
    log: Log,
    start: Start,
    choose: random.Random,
    *,
    until: Sequence[int] | None = None,
    held_bytes_max: int = HELD_BYTES_MAX,
) -> Iterable[Item]:
    """What a reader is given whose partitions come in pieces, in an order that ``choose`` decides."""
    assembler = Assembler(start, held_bytes_max)
    at, ends = list(start.checkpoint.offsets), until or log.ends
    while left := [partition for partition, offset in enumerate(at) if offset < ends[partition]]:
        partition = choose.choice(left)
        for _ in range(choose.randint(1, 4)):
            if at[partition] < ends[partition]:
                assembler.feed(partition, at[partition], log.partitions[partition][at[partition]])
                at[partition] += 1
        if choose.random() < 0.7:
            yield from assembler.take()
    yield from assembler.take()


def transactions(items: Iterable[Item], shard: str = "") -> list[Transaction]:
    """The transactions among ``items``, of one shard or of all."""
    return [each for each in items if isinstance(each, Transaction) and each.shard in (shard or each.shard)]
