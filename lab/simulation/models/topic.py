"""The topic, and what may happen to it: batches mixed with another shard's or appended twice, damaged messages."""

from __future__ import annotations

from operator import gt

from lab.simulation.memo import decoded
from stream.wire.batch import Batch
from stream.wire.codec import decode, encode
from stream.wire.keys import Layout


class SimulatedTopic:
    """Committed messages, partition by partition. A commit is atomic."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.partitions: list[list[bytes | None]] = [[] for _ in range(layout.partitions)]
        self.batches: dict[str, list[list[tuple[int, bytes]]]] = {}
        self.states: dict[str, list[bytes]] = {}
        self.damage = -1
        """What happens to a message of the next batch, and (by eights) to which; -1: nothing."""
        self.damageable = frozenset({"RowFrame"})
        self.mixing = -1
        """How the next batch lies among the records of the other shard's last one; -1: behind them."""
        self.read_to = [0] * layout.partitions
        """Up to where anybody has ever read each partition."""
        self._last = ("", [0] * layout.partitions)
        """Shard of the last batch (empty: of several), and where it began in each partition."""

    def commit(self, shard: str, batch: Batch) -> bool:
        """Appends a batch; whether its records lie among another shard's."""
        (before, starts), begun = self._last, [len(records) for records in self.partitions]
        self._append(shard, batch)
        self._last = (shard, begun)
        if self.mixing < 0 or before in ("", shard) or any(map(gt, self.read_to, starts)):
            return False
        for records, start, middle in zip(self.partitions, starts, begun, strict=True):
            records[start:] = _mixed(records[start:middle], records[middle:], self.mixing)
        self._last, self.mixing = ("", starts), -1
        return True

    def _append(self, shard: str, batch: Batch) -> None:
        self.batches.setdefault(shard, []).append(batch.records)
        self.states.setdefault(shard, []).append(batch.records[-1][1])
        damage, self.damage = self.damage, -1
        if damage < 0:
            for partition, value in batch.records:
                self.partitions[partition].append(value)
            return
        able = [at for at, (_, value) in enumerate(batch.records) if name_of(value) in self.damageable]
        hit = able[damage // 8 % len(able)] if able else -1
        for at, (partition, value) in enumerate(batch.records):
            self.partitions[partition].append(damaged(value, damage) if at == hit else value)

    def repeat(self, shard: str, number: int) -> bool:
        """Appends an earlier batch once more, as a broken producer would; False if there is none."""
        batches = self.batches.get(shard)
        if not batches:
            return False
        for partition, value in batches[number % len(batches)]:
            self.partitions[partition].append(value)
        return True


def _mixed(first: list[bytes | None], second: list[bytes | None], bits: int) -> list[bytes | None]:
    """Both, each in its own order; a bit set: the next one is of the ``second``."""
    found: list[bytes | None] = []
    left = {0: first[::-1], 1: second[::-1]}
    while left[0] and left[1]:
        found.append(left[bits & 1].pop())
        bits >>= 1
    return found + left[0][::-1] + left[1][::-1]


def name_of(value: bytes) -> str:
    """The record's name."""
    return decoded(value)[0]


def damaged(value: bytes, kind: int) -> bytes | None:
    """A message that was damaged on its way, one of eight kinds."""
    match kind % 8:
        case 0:
            return b"\xc3\x01garbage"
        case 1:
            return value[:-3]
        case 2:
            return None
        case 3:
            return value + b"\0"
    name, frame = decode(value)
    if name != "RowFrame":
        return b"\xc3\x01garbage"
    rows = len(frame["keys"])
    match kind % 8:
        case 4:
            frame["operations"] = b"\x09" * rows
        case 5:
            frame["keys"] = [b"no-table"] * rows
        case 6:
            frame["operations"] = frame["operations"][:-1] + b"\x09"
        case 7:
            frame["keys"] = [*frame["keys"][:-1], b"no-table"]
    return encode("RowFrame", frame)
