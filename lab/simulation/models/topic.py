"""The topic and its faults: batches interleaved with another shard's or appended twice, and damaged messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from operator import gt
from typing import Final

from lab.simulation.memo import decoded
from stream.wire.announced import fingerprint_of
from stream.wire.batch import Batch
from stream.wire.codec import MAGIC, decode, encode
from stream.wire.keys import Layout

TOPIC_ID: Final = "topic"


class SimulatedTopic:
    """The committed messages of each partition. A commit is atomic."""

    topic_id = TOPIC_ID

    def __init__(self, layout: Layout, keyspace: str = "s") -> None:
        self.layout = layout
        self.keyspace = keyspace
        self.partitions: list[list[bytes | None]] = [[] for _ in range(layout.partitions)]
        self.batches: dict[str, list[list[tuple[int, bytes]]]] = {}
        self.states: dict[str, list[bytes]] = {}
        self.damage = -1
        """How a message of the next batch is damaged (modulo 8) and which one (divided by 8); -1: none."""
        self.damageable = frozenset({"RowFrame"})
        self.is_newer = False
        """Whether the next batch that has rows writes them in a record that this version does not have."""
        self._unreadable: dict[bytes, bytes] = {}
        """Message in such a record → what an upgraded reader finds in it."""
        self._told: dict[bytes, bytes] = {}
        """Message in such a record → the message before it that has its schema's text."""
        self.mixing = -1
        """Bits that interleave the next batch with the other shard's last one; -1: it is appended."""
        self.read_to = [0] * layout.partitions
        """The highest offset up to which any process has read each partition."""
        self._commits: list[tuple[str, list[int]]] = []
        """Shard and first offsets of each commit that the topic may still lose."""
        self.repeated_to = [0] * layout.partitions
        """Where the last block that is there twice ends, in each partition."""
        self._last = ("", [0] * layout.partitions)
        """Shard of the last batch ("": of several), and its first offset in each partition."""

    def commit(self, shard: str, batch: Batch) -> bool:
        """Appends a batch. Returns whether it was interleaved with another shard's."""
        (before, starts), begun = self._last, [len(records) for records in self.partitions]
        self._append(shard, batch)
        begins_epoch = any(name_of(value) == "EpochStart" for _, value in batch.records)
        self._commits = [] if begins_epoch else [*self._commits, (shard, begun)]
        self._last = (shard, begun)
        if self.mixing < 0 or before in ("", shard) or any(map(gt, self.read_to, starts)):
            return False
        for records, start, middle in zip(self.partitions, starts, begun, strict=True):
            records[start:] = _mixed(records[start:middle], records[middle:], self.mixing)
        self._last, self.mixing, self._commits = ("", starts), -1, []
        return True

    def lose_end(self, commits: int) -> bool:
        """Loses the last commits, as Kafka does when it elects an unclean leader. Returns whether there were any."""
        lost = self._commits[-commits:]
        if not lost:
            return False
        self._commits = self._commits[:-commits]
        for shard, _ in lost:
            self.batches[shard].pop()
            self.states[shard].pop()
        for records, end in zip(self.partitions, lost[0][1], strict=True):
            del records[end:]
        self._last = ("", [0] * self.layout.partitions)
        return True

    def settle(self) -> None:
        """What is written so far stays, and where it is."""
        self._commits, self._last = [], ("", [0] * self.layout.partitions)

    def say_again(self) -> None:
        """Appends what was said only once, the newest of each kind and name, as publishers do from time to time."""
        self._commits = []
        for partition in range(self.layout.partitions):
            newest: dict[tuple[str, str, str], bytes] = {}
            for batch in chain.from_iterable(self.batches.values()):
                for number, value in batch:
                    name, record = decoded(value)
                    if number == partition and name in ("TableSchema", "TableBackfill", "Topology"):
                        newest[name, record["shard"], record.get("table", "")] = value
            said = [value for value in newest.values() if decoded(value)[1].get("complete", True)]
            self.partitions[partition].extend(said)

    def _append(self, shard: str, batch: Batch) -> None:
        self.batches.setdefault(shard, []).append(batch.records)
        self.states.setdefault(shard, []).append(batch.records[-1][1])
        damage, self.damage = self.damage, -1
        if self.is_newer and any(name_of(value) == "RowFrame" for _, value in batch.records):
            self.is_newer = False
            for partition, value in batch.records:
                self.partitions[partition] += self._as_newer(value) if name_of(value) == "RowFrame" else [value]
            return
        if damage < 0:
            for partition, value in batch.records:
                self.partitions[partition].append(value)
            return
        able = [at for at, (_, value) in enumerate(batch.records) if name_of(value) in self.damageable]
        hit = able[damage // 8 % len(able)] if able else -1
        for at, (partition, value) in enumerate(batch.records):
            self.partitions[partition].append(damaged(value, damage) if at == hit else value)

    def _as_newer(self, value: bytes) -> list[bytes]:
        told, unreadable = announced("NewerRows", str(len(self._unreadable)), skippable=False)
        self._unreadable[unreadable] = value
        self._told[unreadable] = told
        return [told, unreadable]

    def cuts_off_schema(self, partition: int, begin: int) -> bool:
        """Whether an unreadable record is at or after ``begin`` and its schema's text before: it is then damage."""
        records = self.partitions[partition]
        return any(
            self._told.get(value or b"") in records[:begin] for value in records[begin:] if value in self._unreadable
        )

    def upgrade(self) -> bool:
        """Readers now have the newer record: in the model it becomes one that they have. False if there is none."""
        found, self._unreadable = self._unreadable, {}
        for records in self.partitions if found else ():
            records[:] = [found.get(value or b"", value) for value in records]
        return bool(found)

    def repeat(self, shard: str, number: int, begins: Mapping[int, int] | None = None) -> bool:
        """Appends an earlier batch again, as a broken producer would. Returns False if it does not.

        Never one from before ``begins`` (partition → offset), where a store began: it could not know it for a repeat.
        Its markers name no predecessor, as those of older versions: else the log would be taken for a refilled one.
        """
        batches = self.batches.get(shard)
        if not batches:
            return False
        batch = batches[number % len(batches)]
        if any(
            value not in self.partitions[partition][(begins or {}).get(partition, 0) :] for partition, value in batch
        ):
            return False
        self._commits = []
        for partition, value in batch:
            self.partitions[partition].append(_unlinked(value) if name_of(value) == "Marker" else value)
        self.repeated_to = [len(records) for records in self.partitions]
        return True


def _mixed(first: list[bytes | None], second: list[bytes | None], bits: int) -> list[bytes | None]:
    """Interleaves two lists, each in its own order. Each set bit takes the next element from ``second``."""
    found: list[bytes | None] = []
    left = {0: first[::-1], 1: second[::-1]}
    while left[0] and left[1]:
        found.append(left[bits & 1].pop())
        bits >>= 1
    return found + left[0][::-1] + left[1][::-1]


def _unlinked(marker: bytes) -> bytes:
    return encode("Marker", decode(marker)[1] | {"continuity": 0, "previous": 0})


def announced(name: str, text: str, *, skippable: bool) -> tuple[bytes, bytes]:
    """The announcement of a record that this version does not have, and such a record, which holds ``text``."""
    fields = [{"name": "text", "type": "string"}]
    schema = json.dumps({"name": f"freshet.{name}", "type": "record", "fields": fields}, separators=(",", ":"))
    known = {"name": name, "fingerprint": fingerprint_of(schema), "text": schema, "skippable": skippable}
    told = encode("SchemaText", {"shard": "s/0", "epoch": 1, "ordinal": 0} | known)
    return told, MAGIC + fingerprint_of(schema) + bytes([2 * len(text)]) + text.encode()


def name_of(value: bytes) -> str:
    """The name of an encoded record."""
    return decoded(value)[0]


def damaged(value: bytes, kind: int) -> bytes | None:
    """The message with one of eight kinds of damage (``kind`` modulo 8)."""
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
