"""The changes in a partition's messages, as rows by table and day. Pure.

What the topic can't tell is a row of its own kind, never a gap (docs/operating/export.md). A message that the publisher
repeated is exported once: ordinals of a shard's epoch rise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from stream.wire.announced import Announced
from stream.wire.canonical import UNDECODABLE
from stream.wire.checks import decode_folded
from stream.wire.codec import CodecError, NewerWireError, PartitionReader
from stream.wire.events import ABSENT, EVERY_TABLE, VALUE, VOID
from stream.wire.keys import KeyFormatError, split_row_key
from stream.wire.records import follows_a_gap

KINDS: Final = {VALUE: "value", ABSENT: "deleted", VOID: "void"}
"""Operation of a row → kind. ``void``: the row changed, its image is unknown."""
TABLE_VOID: Final = "table_void"
"""Rows of the table may have changed, and which is unknown."""
EPOCH_START: Final = "epoch_start"
"""The shard's history was replaced: what was exported of its earlier epochs may not have happened."""
NOT_CACHED: Final = "not_cached"
"""From here on changes of the table are not in the topic."""
KEYLESS: Final = {
    "inserted": (("keyless_inserted", "after"),),
    "updated": (("keyless_before", "before"), ("keyless_updated", "after")),
    "deleted": (("keyless_deleted", "before"),),
}
"""What happened to a row without a key → the kinds of the rows that tell it, and which image each has."""
UNREADABLE: Final = "unreadable"
"""A message that can't be read, or records that Kafka lost: they may have been about anything."""
_FOLLOWED: Final = frozenset({"RowFrame", "KeylessRow", "TableVoid", "TableSchema", "EpochStart", "Marker"})
"""What tells how far its shard is."""
_NO_DAY: Final = "1970-01-01"
Row = dict[str, Any]


@dataclass(slots=True)
class Exported:
    """What is carried from one message of a partition to the next, and kept with the offset in each commit."""

    offset: int
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """Table → column → kind, by the last description. Replaced, never changed."""
    unpublished: dict[str, str] = field(default_factory=dict)
    """Table that is not cached → why."""
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Shard → epoch and ordinal of the last change."""
    texts: dict[str, Announced] = field(default_factory=dict)
    """As of `PartitionReader`, by the fingerprint in hex."""
    links: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Shard → epoch and continuity of the last marker, which the next one must name."""


class Changes:
    """The rows of one partition's messages, grouped by table, columns and day.

    ``reader``: of the messages; without one what the state holds is announced.
    """

    def __init__(self, partition: int, state: Exported, reader: PartitionReader | None = None) -> None:
        self.state = state
        self.count = 0
        self.size = 0
        """Bytes of the keys and images among the rows."""
        self._partition = partition
        self._reader = reader or PartitionReader({bytes.fromhex(each): told for each, told in state.texts.items()})
        self._groups: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
        self._described: list[dict[str, str]] = []
        """The columns of the groups; a group of changes after another description is another group."""

    def add(self, offsets: Sequence[int], values: Sequence[bytes | None]) -> None:
        """Takes messages that follow all earlier ones; skips those before the state's offset.

        Raises `stream.wire.codec.NewerWireError`.
        """
        for offset, value in zip(offsets, values, strict=True):
            if offset >= self.state.offset:
                for table, row in self._rows_of(value):  # one by one: a description counts for what follows it
                    stamped = {**row, "_partition": self._partition, "_offset": offset}
                    self._groups[table, day_of(row.get("_time")), self._description(table)].append(stamped)
                    self.count += 1
                self.state.offset = offset + 1
        self.state.texts = {each.hex(): told for each, told in self._reader.texts.items()}

    def take(self) -> Iterator[tuple[str, str, dict[str, str], list[Row]]]:
        """Table, day, columns and rows of each group; forgets them."""
        for (table, day, description), rows in sorted(self._groups.items()):
            yield table, day, self._described[description], rows
        self._groups.clear()
        self._described.clear()
        self.count = self.size = 0

    def _description(self, table: str) -> int:
        """The number of the table's columns among `_described`."""
        columns = self.state.columns.get(table, {})
        for number, each in enumerate(self._described):
            if each is columns or each == columns:
                return number
        self._described.append(columns)
        return len(self._described) - 1

    def _rows_of(self, value: bytes | None) -> Iterable[tuple[str, Row]]:
        try:
            name, event = decode_folded(self._reader, value)
            if name not in _FOLLOWED:
                return []
            lost = self._lost(name, event)
            if name == "RowFrame":
                return [*lost, *self._frame(event)]
            return [*lost, *(self._keyless(event) if name == "KeylessRow" else self._event(name, event))]
        except NewerWireError:
            raise
        except (CodecError, ValueError, KeyError, TypeError, IndexError) as error:
            return [(EVERY_TABLE, {"_kind": UNREADABLE, "_reason": str(error)[:400]})]

    def _lost(self, name: str, event: dict[str, Any]) -> list[tuple[str, Row]]:
        """The row of what Kafka lost or replaced before a message: of a marker's chain, or the beginning of an epoch.

        What was published since may have numbers that were exported of something else, so they count from here on.
        """
        shard, epoch = event["shard"], event["epoch"]
        place, link = self.state.places.get(shard), self.state.links.get(shard, (0, 0))
        is_lost = place is not None and epoch > place[0] and name != "EpochStart"
        if is_lost:
            self.state.places[shard] = epoch, 0
        if name == "Marker":
            if link[0] == epoch and follows_a_gap(link[1], event):
                is_lost = True
                self.state.places[shard] = epoch, event["ordinal"]
            if epoch > link[0] or (epoch == link[0] and event["continuity"]):
                self.state.links[shard] = epoch, event["continuity"]
        if not is_lost:
            return []
        row = {"_shard": shard, "_epoch": epoch, "_time": event.get("timestamp")}
        return [(EVERY_TABLE, {**row, "_kind": UNREADABLE, "_reason": "Kafka lost or replaced records"})]

    def _is_new(self, shard: str, epoch: int, ordinal: int) -> bool:
        if (epoch, ordinal) <= self.state.places.get(shard, (0, 0)):
            return False
        self.state.places[shard] = epoch, ordinal
        return True

    def _frame(self, frame: dict[str, Any]) -> Iterator[tuple[str, Row]]:
        transaction, left = -1, 0
        columns = zip(frame["keys"], frame["images"], frame["operations"], frame["ordinals"], strict=True)
        for key, image, operation, ordinal in columns:
            while not left:
                transaction += 1
                left = frame["transactions"][transaction]
            left -= 1
            if not self._is_new(frame["shard"], frame["epoch"], frame["ordinal"] + ordinal):
                continue
            self.size += len(key) + len(image)
            row = {
                "_shard": frame["shard"],
                "_epoch": frame["epoch"],
                "_ordinal": frame["ordinal"] + ordinal,
                "_gtid": frame["gtids"][transaction],
                "_time": frame["timestamps"][transaction],
            }
            yield self._change(key, image, operation, row)

    def _change(self, key: bytes, image: bytes, operation: int, row: Row) -> tuple[str, Row]:
        try:
            table, _ = split_row_key(key)
        except KeyFormatError as error:
            return EVERY_TABLE, {**row, "_kind": UNREADABLE, "_reason": str(error)[:400]}
        row["_key"] = key.partition(b"\0")[2].decode()
        kind = KINDS.get(operation, "void")
        if kind == "value":
            row |= _read(image)
            kind = "value" if "image" in row else "void"
        return table, {**row, "_kind": kind}

    def _keyless(self, event: dict[str, Any]) -> Iterator[tuple[str, Row]]:
        kinds = KEYLESS[event["operation"]]
        if not self._is_new(event["shard"], event["epoch"], event["ordinal"]):
            return
        for kind, which in kinds:
            self.size += len(event[which])
            told = _read(event[which]) if event[which] else {"_reason": "its image is too large to be published"}
            yield event["table"], {**_place(event), **told, "_kind": kind}

    def _event(self, name: str, event: dict[str, Any]) -> Iterator[tuple[str, Row]]:
        if name not in ("TableVoid", "EpochStart", "TableSchema"):
            return
        row = {**_place(event), "_reason": event["reason"]}
        if name == "TableSchema":
            table = event["table"]
            self.state.columns[table] = {each["name"]: each["kind"] for each in event["columns"]}
            before = self.state.unpublished.pop(table, None)
            if event["cacheable"]:
                return
            self.state.unpublished[table] = event["reason"]
            if before == event["reason"]:
                return  # said again
        if self._is_new(event["shard"], event["epoch"], event["ordinal"]):
            kind = {"TableVoid": TABLE_VOID, "EpochStart": EPOCH_START, "TableSchema": NOT_CACHED}[name]
            yield event.get("table", EVERY_TABLE), {**row, "_kind": kind}


def _place(event: dict[str, Any]) -> Row:
    """Where and when an event with a number of its own happened."""
    names = ("shard", "epoch", "ordinal", "gtid", "timestamp")
    return {"_time" if name == "timestamp" else f"_{name}": event[name] for name in names}


def _read(image: bytes) -> Row:
    """The image of a row; or why it can't be read."""
    try:
        return {"image": msgspec.json.decode(image, type=dict[str, Any])}
    except UNDECODABLE as error:
        return {"_reason": f"its image can't be read: {error}"}


def day_of(seconds: int | None) -> str:
    """The day of a time of the source, UTC; the first of 1970 if it is unknown or no date."""
    try:
        return _NO_DAY if seconds is None else datetime.fromtimestamp(seconds, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return _NO_DAY
