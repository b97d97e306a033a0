"""Rows, changes, open transactions and the end of a batch as the fields of Avro records, and back. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Final

import xxhash

from stream.wire.codec import READER_VERSION, Record, encode
from stream.wire.events import (
    VALUE,
    AbortTransaction,
    AllocateWriteId,
    BackfillTable,
    BeginScope,
    BindName,
    Change,
    CommitTransaction,
    DescribeTable,
    KeylessRow,
    ObjectImage,
    ObjectSet,
    OpenTransaction,
    ResetWriteIds,
    ResumePoint,
    RowImages,
    SingleRows,
    SourceTransaction,
    TableImage,
    VoidTable,
)
from stream.wire.frames import INT_MAX
from stream.wire.keys import Layout, object_name

ROW_OVERHEAD: Final = 24
"""Bytes counted for a row in addition to its key and image."""
_BEFORE_OVERHEAD = 8
"""Bytes that an image of before takes besides itself."""


class RowColumns:
    """The columns of a row frame that is being filled. Its ordinals are counted from ``base``."""

    __slots__ = (
        "base",
        "gtids",
        "images",
        "keys",
        "operations",
        "ordinals",
        "origins",
        "positions",
        "serial",
        "size",
        "timestamps",
        "transactions",
    )

    def __init__(self, base: int) -> None:
        self.base = base
        self.serial = -1
        self.size = 0
        self.keys: list[bytes] = []
        self.images: list[bytes] = []
        self.operations = bytearray()
        self.ordinals: list[int] = []
        self.transactions: list[int] = []
        self.gtids: list[str] = []
        self.positions: list[str] = []
        self.timestamps: list[int] = []
        self.origins: list[str] = []

    def begin(self, serial: int, txn: SourceTransaction) -> None:
        """Start a transaction: the rows added from now on belong to ``txn``."""
        self.serial = serial
        self.transactions.append(0)
        self.gtids.append(txn.gtid)
        self.positions.append(txn.position)
        self.timestamps.append(txn.timestamp)
        self.origins.append(txn.origin)
        self.size += len(txn.gtid) + len(txn.position) + len(txn.origin)

    def add_images(self, rows: RowImages, places: Sequence[int], first: int) -> int:
        """Adds the rows at ``places``. ``first``: the ordinal of the first of all. Returns the bytes that count."""
        keys, images = [rows.keys[place] for place in places], [rows.images[place] for place in places]
        self.keys += keys
        self.images += images
        self.operations += bytes((VALUE,)) * len(places)
        before = first - self.base
        self.ordinals += [before + place for place in places]
        self.transactions[-1] += len(places)
        size = sum(map(len, keys)) + sum(map(len, images)) + ROW_OVERHEAD * len(places)
        self.size += size
        return size

    def add_run(
        self, run: SingleRows, places: Sequence[int], first: int, rows_max: int, bytes_max: int
    ) -> tuple[int, int]:
        """Adds transactions of a run, those at ``places``, until the frame is full. ``first``: its first ordinal.

        Returns how many were added, and the bytes of their rows.
        """
        rows, places = run.rows, places[: rows_max - len(self.keys)]
        keys, images = [rows.keys[place] for place in places], [rows.images[place] for place in places]
        gtids, positions = [run.gtids[place] for place in places], [run.positions[place] for place in places]
        sizes = list(accumulate(map(sum, zip(map(len, keys), map(len, images), repeat(ROW_OVERHEAD)))))
        texts = list(accumulate(map(add, map(len, gtids), map(len, positions))))
        taken = bisect_left(list(map(add, sizes, texts)), bytes_max - self.size) + 1
        if taken < len(places):
            places, keys, images = places[:taken], keys[:taken], images[:taken]
            gtids, positions = gtids[:taken], positions[:taken]
        taken = len(places)
        self.keys += keys
        self.images += images
        self.operations += bytes([rows.operations[place] for place in places])
        before = first - self.base
        self.ordinals += [before + place for place in places]
        self.transactions += [1] * taken
        self.gtids += gtids
        self.positions += positions
        self.timestamps += [run.timestamps[place] for place in places]
        self.origins += [run.origin] * taken
        self.size += sizes[taken - 1] + texts[taken - 1]
        return taken, sizes[taken - 1]

    def encode(self, shard: str, epoch: int) -> bytes:
        """The frame as a message."""
        return encode(
            "RowFrame",
            {
                "shard": shard,
                "epoch": epoch,
                "ordinal": self.base,
                "keys": self.keys,
                "images": self.images,
                "operations": bytes(self.operations),
                "ordinals": self.ordinals,
                "transactions": self.transactions,
                "gtids": self.gtids,
                "positions": [] if self.positions == self.gtids else self.positions,
                "timestamps": self.timestamps,
                "origins": self.origins if any(self.origins) else [],
            },
        )


def before_records(shard: str, epoch: int, rows: Sequence[tuple[int, bytes]], bytes_max: int) -> Iterator[bytes]:
    """What ``rows`` (ordinal, image) were before, as messages of about ``bytes_max`` bytes. Ordinals rise."""
    start, size = 0, 0
    for end, (_, image) in enumerate(rows, 1):
        size += len(image) + _BEFORE_OVERHEAD
        if size >= bytes_max or end == len(rows) or rows[end][0] - rows[start][0] >= INT_MAX:
            base = rows[start][0] - 1
            ordinals = [ordinal - base for ordinal, _ in rows[start:end]]
            images = [each for _, each in rows[start:end]]
            head: Record = {"shard": shard, "epoch": epoch, "ordinal": base}
            yield encode("BeforeImages", head | {"ordinals": ordinals, "images": images})
            start, size = end, 0


def event_record(change: Change, position: str, image_bytes_max: int) -> tuple[str, Record]:
    """The record name and fields of a change other than a row. ``position`` is the set after its transaction.

    A table image above ``image_bytes_max`` is left out, and one of a row above half of it. Raises `TypeError` for any
    other object.
    """
    fields: Record
    match change:
        case VoidTable(table, reason):
            return "TableVoid", {"position": position, "table": table, "reason": reason}
        case KeylessRow(table, operation, before, after):
            before, after = (each if 2 * len(each) <= image_bytes_max else b"" for each in (before, after))
            fields = {"position": position, "table": table, "operation": operation}
            return "KeylessRow", fields | {"before": before, "after": after}
        case BackfillTable(table, complete):
            return "TableBackfill", {"position": position, "table": table, "complete": complete}
        case DescribeTable():
            return "TableSchema", _schema_fields(change)
        case BeginScope(tables):
            return "Scope", {"tables": list(tables)}
        case BindName(name, table_id, previous):
            return "NameBinding", {"name": name, "table_id": table_id, "previous_name": previous}
        case AllocateWriteId(table_id, txn, write_id, reallocated):
            fields = {"table_id": table_id, "txn": txn, "write_id": write_id, "reallocated": reallocated}
            return "AllocWriteId", fields
        case TableImage():
            return "TableImage", _image_fields(change, image_bytes_max)
        case ObjectImage():
            return "CatalogObject", _object_fields(change, image_bytes_max)
        case ObjectSet(kind, table_id, what, lo, reason):
            fields = {"kind": kind, "table_id": table_id, "change": what, "lo": lo, "reason": reason}
            return "CatalogSet", fields
        case ResetWriteIds(table_id, write_ids, committed):
            return "WriteIdsReset", {"table_id": table_id, "write_ids": write_ids, "committed": committed}
        case CommitTransaction(txn, pairs):
            return "CommitTxn", {"txn": txn, "write_ids": _pairs(pairs)}
        case AbortTransaction(txn, pairs, reconciled):
            return "AbortTxn", {"txn": txn, "write_ids": _pairs(pairs), "reconciled": reconciled}
    raise TypeError(f"{type(change).__name__} is not an event")


def open_fields(opened: OpenTransaction) -> Record:
    """An open transaction as `SourceState` holds it."""
    return {
        "txn": opened.txn,
        "write_ids": _pairs(opened.write_ids),
        "seen_open": opened.seen_open,
        "wrote": list(opened.wrote),
    }


def open_transaction(fields: Record) -> OpenTransaction:
    """The open transaction that `SourceState` holds; inverse of `open_fields`."""
    pairs = tuple((pair["table_id"], pair["write_id"]) for pair in fields["write_ids"])
    return OpenTransaction(fields["txn"], pairs, fields["seen_open"], tuple(fields["wrote"]))


def _pairs(pairs: Iterable[tuple[int, int]]) -> list[Record]:
    return [{"table_id": table, "write_id": write_id} for table, write_id in pairs]


def _schema_fields(change: DescribeTable) -> Record:
    return {
        "table": change.table,
        "columns": [
            {"name": each.name, "kind": each.kind, "exact": each.exact, "sql_type": each.sql_type}
            for each in change.columns
        ],
        "primary_key": list(change.primary_key),
        "cacheable": change.cacheable,
        "reason": change.reason,
        "prefix": change.prefix,
    }


def _image_fields(change: TableImage, image_bytes_max: int) -> Record:
    too_big = _size(change) > image_bytes_max
    return {
        "table_id": change.table_id,
        "name": change.name,
        "kind": change.kind,
        "change": "written" if too_big and change.change == "image" else change.change,
        "txn": change.txn,
        "write_id": change.write_id,
        "staged": change.staged,
        "image": None if too_big else change.image,
        "write_ids": change.write_ids,
        "lo": change.lo,
        "hi": change.hi,
        "struct": None if too_big else change.struct,
    }


def _object_fields(change: ObjectImage, image_bytes_max: int) -> Record:
    too_big = _size(change) > image_bytes_max
    return {
        "kind": change.kind,
        "table_id": change.table_id,
        "name": object_name(change.name),
        "change": "written" if too_big else change.change,
        "image": None if too_big else change.image,
        "struct": None if too_big else change.struct,
        "lo": change.lo,
        "hi": change.hi,
    }


def _size(change: TableImage | ObjectImage) -> int:
    return len(change.image or b"") + len(change.struct or b"")


def continuity_of(at: ResumePoint, nonce: int) -> int:
    """Names the markers of the batch that ends at ``at``, and through those before them the whole of the epoch."""
    parts = (at.continuity, at.epoch, at.ordinal, at.position, nonce)
    return xxhash.xxh3_64_intdigest("\0".join(map(str, parts)).encode()) >> 1 or 1


def follows_a_gap(held: int, marker: Record) -> bool:
    """Whether a marker follows another one than that of continuity ``held``, the last of its partition and epoch.

    Then Kafka has lost or replaced records. 0: of an older version, not checked.
    """
    previous = marker["previous"]
    return bool(held and previous) and held not in (previous, marker["continuity"])


def marker_fields(at: ResumePoint, layout: Layout, previous: int, as_of_ms: int) -> Record:
    """The fields of the `Marker` of each partition. ``previous``: the continuity of the marker before it."""
    at_boundary = not at.partial_gtid
    return {
        "shard": at.shard,
        "epoch": at.epoch,
        "ordinal": at.ordinal - at.partial_events,
        "position": at.position,
        "timestamp": at.timestamp,
        "low_water": at.low_water,
        "layout": str(layout),
        "whole": at_boundary,
        "continuity": at.continuity,
        "previous": previous,
        "reader_version": READER_VERSION,
        "as_of_ms": as_of_ms,
    }


def state_fields(
    at: ResumePoint, layout: Layout, opened: Iterable[OpenTransaction], closed: Iterable[int], *, whole: bool
) -> Record:
    """The fields of the `SourceState`. ``whole``: ``opened`` are all open transactions, not those since the last."""
    return {
        "shard": at.shard,
        "epoch": at.epoch,
        "ordinal": at.ordinal,
        "position": at.position,
        "timestamp": at.timestamp,
        "low_water": at.low_water,
        "partial_gtid": at.partial_gtid,
        "partial_events": at.partial_events,
        "sequence": at.sequence,
        "whole": whole,
        "opened": [open_fields(each) for each in opened],
        "closed": sorted(closed),
        "layout": str(layout),
        "table_choice": at.table_choice,
        "cursor": at.cursor,
        "annotations": at.annotations,
        "checksum": at.checksum,
        "declared_at": at.declared_at,
        "continuity": at.continuity,
    }
