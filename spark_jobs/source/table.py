"""The rows of one table in one partition, folded to a cut by the consumer's own fold, and read as an owner reads them.

Only entries of the table are kept, in memory. A checkpoint or rebuild (``base``) saves what lies before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from consumers.fold.backfills import backfilled_tables
from consumers.fold.declared import announced_texts
from consumers.fold.entry import decode_entry
from consumers.fold.messages import fold_messages
from consumers.fold.shards import shard_map, sole_lineage
from consumers.fold.state import META, Changes, Head, PartitionState, schema_key
from consumers.owner.rows import view_row
from consumers.store.store import StoreView
from spark_jobs.source.cut import AsOf, AsOfError, Cut, Ended, cutter, note_ended
from stream.wire.announced import Announced
from stream.wire.canonical import UNDECODABLE
from stream.wire.codec import PartitionReader, decode
from stream.wire.events import ABSENT, VALUE

INCOMPLETE: Final = "incomplete"
"""The table was not read whole: rows without a change since the topic began, or since a void, are missing."""
FOLDED_TOGETHER: Final = 2_000
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Base:
    """What a checkpoint or rebuild holds of a table's partition: the head, and the entries that matter."""

    head: Head
    entries: Mapping[bytes, bytes]

    @staticmethod
    def read(directory: Path, table: str) -> Base:
        """Reads a store directory; of the table "" the head alone. Raises `consumers.store.errors.StoreError`."""
        with StoreView(directory) as view:
            entries = dict(view.items(META, b"\x01"))
            if table:
                entries |= dict(view.items(f"{table}\0".encode(), f"{table}\1".encode()))
            return Base(view.head, entries)

    def check(self, as_of: AsOf) -> None:
        """Raises `AsOfError` ``bad_as_of`` unless all that it holds is known to belong to the moment.

        Now all does that the cut does not leave out (`ahead`): half of a transaction is long whole in the topic.
        """
        for shard, lineage in self.head.lineages.items():
            if not as_of.is_now and (
                lineage.ordinal > lineage.watermark_ordinal
                or not as_of.has_all(
                    shard, lineage.epoch, lineage.watermark, lineage.watermark_timestamp, lineage.as_of_ms
                )
            ):
                raise AsOfError(
                    f"the base is not known to be before that moment: of {shard} it has "
                    f"{lineage.watermark or 'no position'} and ordinal {lineage.ordinal}",
                    hint="give an older base, or none",
                )

    def ahead(self, cut: Cut) -> str:
        """Why no rows begin with it: it holds what is left out, which can't be taken back. Empty if it does not.

        What it has of a shard that is over is in nobody's way: the successors publish it again.
        """
        over = self.over()
        for shard, lineage in self.head.lineages.items():
            is_left_out = (lineage.epoch, lineage.ordinal) >= cut.get(shard, (0, 0))
            if is_left_out and lineage.epoch > over.get(shard, -1):
                return f"the base has more of {shard} than all partitions of the topic can be read to yet"
        return ""

    def over(self) -> Ended:
        """The shards that others had succeeded by then."""
        found: Ended = {}
        for each in self.head.topologies.values():
            note_ended(found, (*each.succeeded.items(), *each.ancestors.items()))
        return found

    def reached(self) -> list[dict[str, Any]]:
        """How far it is of each shard, as a marker would say it."""
        return [
            {
                "shard": shard,
                "epoch": lineage.epoch,
                "ordinal": lineage.watermark_ordinal,
                "whole": True,
                "position": lineage.watermark,
                "timestamp": lineage.watermark_timestamp,
                "as_of_ms": lineage.as_of_ms,
            }
            for shard, lineage in self.head.lineages.items()
            if lineage.watermark
        ]

    def descriptions(self, table: str) -> list[dict[str, Any]]:
        """What its shards say of the table."""
        prefix = schema_key(table, "")
        return [decode(value)[1] for key, value in self.entries.items() if key.startswith(prefix)]

    def texts(self) -> dict[bytes, Announced]:
        """What was announced before it, as of `PartitionReader`."""
        return announced_texts(self.entries)


class TablePartition:
    """Folds a partition's messages, given in order, and lists the rows of one table.

    ``prefix``: of the table's description. Where shards have ranges, it tells the shard of a key. ``is_now``: no moment
    was asked for.
    """

    def __init__(
        self, table: str, partition: int, cut: Cut, base: Base | None = None, prefix: int = 0, *, is_now: bool = False
    ) -> None:
        self._prefix = prefix
        self._mine = f"{table}\0".encode()
        self._table, self._partition = table, partition
        self._entries = dict(base.entries) if base is not None else {}
        head = base.head.copy() if base is not None else Head()
        self._state = PartitionState(head, self._entries.get)
        self._before = cutter(cut, PartitionReader(base.texts() if base is not None else None), is_now=is_now)

    def fold(self, records: Iterable[tuple[int, bytes | None]]) -> None:
        """Folds (offset, message) pairs up to the cut. Raises `stream.wire.codec.NewerWireError`."""
        waiting: list[tuple[int, bytes | None]] = []
        for offset, value in records:
            kept = self._before(value)
            if kept != b"" or value == b"":  # an empty message is one that the fold rejects
                waiting.append((offset, kept))
            if len(waiting) >= FOLDED_TOGETHER:
                self._fold(waiting)
                waiting = []
        self._fold(waiting)

    def _fold(self, records: list[tuple[int, bytes | None]]) -> None:
        for changes in fold_messages(self._state, records):
            self._put(changes)
            self._state.apply(changes)

    def _shards_without(self) -> list[str]:
        """The shards whose source has told that it does not see the table, or no more."""
        head = self._state.head
        known = shard_map(head)
        shards = known.shards if known is not None else sole_lineage(head)[:1]
        told = ((shard, self._entries.get(schema_key(self._table, shard))) for shard in shards)
        return [shard for shard, value in told if value is not None and not decode(value)[1]["columns"]]

    def _put(self, changes: Changes) -> None:
        mine, entries = (self._mine, META), self._entries
        for each in changes.gone:
            under = [key for key in entries if key.startswith(each)] if each.endswith(b"\0") else [each]
            for key in under:
                entries.pop(key, None)
        entries.update((key, changes.entries[key]) for key in changes.entries if key.startswith(mine))

    def rows(self) -> Iterator[Row]:
        """The table's rows, in the order of their keys; what is not known as rows of their own kinds."""
        head = self._state.head
        stamp = {"_partition": self._partition, "_offset": head.offset}
        if not backfilled_tables(head).get(self._table):
            reason = "the table was not read whole: rows without a change since then are missing"
            yield {**stamp, "_kind": INCOMPLETE, "_reason": reason}
        for shard in self._shards_without():
            yield {**stamp, "_kind": INCOMPLETE, "_reason": f"the source of {shard} sees no such table"}
        for key in sorted(key for key in self._entries if key.startswith(self._mine)):
            seen = view_row(head, key, self._entries[key], prefix=self._prefix)
            if seen.kind == ABSENT:
                continue
            entry = decode_entry(self._entries[key])
            row = {**stamp, "_kind": "value", "_key": key[len(self._mine) :].decode(), "_shard": entry.shard}
            row |= {"_epoch": entry.epoch, "_ordinal": entry.ordinal, "_gtid": entry.position, "_time": entry.timestamp}
            try:
                image = msgspec.json.decode(seen.image or b"", type=dict[str, Any]) if seen.kind == VALUE else None
            except UNDECODABLE as error:
                image, seen.why = None, f"its image can't be read: {error}"
            yield row | ({"image": image} if image is not None else {"_kind": "void", "_reason": seen.why})
