"""The fold of row frames: which entries a frame's rows become. Pure; called by `consumers.fold.messages` only.

Within a lineage ordinals only rise, so a row whose ordinal is above all that this partition has folded of its
shard is newer than whatever its key has, and needs no look-up — as long as the partition holds one shard. That
is the fast path; everything else (several shards, duplicates, rows out of order, rows that can't be read) is
compared key by key and gives the same answer. Frames of one row that follow each other are taken together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, repeat
from operator import ge
from typing import Any, TypeAlias

from consumers.fold.entry import (
    ABSENT,
    HEAD,
    PREFIX,
    VALUE,
    VOID,
    Entry,
    decode_entry,
    encode_transaction_tag,
    encode_transaction_tags,
)
from consumers.fold.state import EVERY_TABLE, Changes, Head, Lineage, PartitionState, Rejection, Void
from stream.wire.codec import ROW_FRAME_HEADER, check_frame
from stream.wire.keys import RESERVED, is_row_key
from stream.wire.single import read_long, read_single, single_prefix
from tokens import Order, Position, TokenError

Record: TypeAlias = tuple[int, bytes | None]
"""Offset and value of a message."""

_pack_head = HEAD.pack
_pack_prefix = PREFIX.pack
_VALUE_BYTE = bytes([VALUE])
_ROW_KINDS = (VALUE, ABSENT, VOID)
_NOTHING: dict[Any, Any] = {}
_FIRST_TABLE_BYTE = RESERVED + 1


def lineage_for(head: Head, shard: str, epoch: int) -> Lineage | None:
    """The lineage that an event of (shard, epoch) continues; a fresh one for a new epoch; None for an old one."""
    lineage = head.lineages.get(shard)
    if lineage is None or epoch > lineage.epoch:
        return Lineage(epoch, 0, 0, "", 0, "")
    return lineage if epoch == lineage.epoch else None


def epoch_voids(head: Head, shard: str, epoch: int) -> dict[tuple[str, str], Void]:
    """A new epoch that was not announced still voids the one before it."""
    lineage = head.lineages.get(shard)
    if lineage is None or epoch <= lineage.epoch:
        return {}
    return {(EVERY_TABLE, shard): Void(epoch, 0, "")}


def older_epoch_rejection(event: dict[str, Any]) -> Rejection:
    """The dead letter of an event whose epoch is over."""
    shard, epoch = event["shard"], event["epoch"]
    return Rejection("older_epoch", f"epoch {epoch} of shard {shard} is over; a newer one has begun", f"shard {shard}")


def fold_singles(head: Head, records: Sequence[Record], at: int) -> tuple[Changes, int] | None:
    """What the frames of one row from ``records[at]`` on change, taken together, and where they end; None if none is.

    Only what the fast path may take: one shard, its ordinals rising. The first record that is anything else ends it.
    """
    value = records[at][1]
    if value is None or not value.startswith(ROW_FRAME_HEADER) or len(head.lineages) != 1:
        return None
    [(shard, lineage)] = head.lineages.items()
    prefix, tag = single_prefix(shard, lineage.epoch), f"{shard}\0{lineage.epoch}\0".encode()
    begin, tag_size = len(prefix), len(tag)
    after, last = head.offset, lineage.ordinal
    entries: dict[bytes, bytes] = {}
    stamp, seconds = b"", 0
    first = at
    for at in range(first, len(records)):
        offset, value = records[at]
        row = read_single(value, begin) if value is not None and value.startswith(prefix) else None
        if row is None:
            break
        ordinal, key, operation, image, gtid, timestamp = row
        if timestamp != stamp:
            read = read_long(timestamp)
            if read is None:
                break
            stamp, seconds = timestamp, read
        if (
            offset < after
            or ordinal <= last
            or not 0 < operation <= VOID
            or (operation == VALUE and not image)
            or key.find(b"\0") < 1
            or key[0] < _FIRST_TABLE_BYTE
            or not gtid.isascii()
        ):
            break
        last, after = ordinal, offset + 1
        start = _pack_prefix(operation, ordinal, seconds, tag_size + len(gtid))
        entries[key] = start + tag + gtid + image if operation == VALUE else start + tag + gtid
    else:
        at = len(records)
    if at == first:
        return None
    return Changes(after, entries, {shard: lineage._replace(ordinal=last)}, messages=at - first), at


def fold_rows(state: PartitionState, after: int, frame: dict[str, Any]) -> Changes:
    """What a `RowFrame` changes. Raises `CodecError` where nothing can be taken from the frame."""
    check_frame(frame)
    positions = frame["positions"] or frame["gtids"]
    shard, epoch, base = frame["shard"], frame["epoch"], frame["ordinal"]
    head = state.head
    lineage = lineage_for(head, shard, epoch)
    if lineage is None:
        return Changes(after, _NOTHING, rejections=(older_epoch_rejection(frame),))
    tags = _row_tags(frame, positions)
    suspects: list[int] = []
    if _is_plain(frame, lineage.ordinal):
        entries, last = _plain_entries(frame, tags), base + frame["ordinals"][-1]
    else:
        entries, last, suspects = _checked_entries(frame, tags, lineage.ordinal)
    moved = {shard: lineage._replace(ordinal=last)}
    voids = epoch_voids(head, shard, epoch)
    if not suspects and len(head.lineages) == 1 and shard in head.lineages:
        return Changes(after, entries, moved, voids)
    settled, more_voids, rejections = _settle_by_key(state, frame, tags, lineage, entries, suspects)
    return Changes(after, settled, moved, voids | more_voids, rejections=rejections)


def _is_plain(frame: dict[str, Any], last: int) -> bool:
    """Whether all rows are values of one table, with ordinals that rise above ``last``: what most frames hold.

    Column by column, without a step of the interpreter a row where that can be had.
    """
    keys, ordinals = frame["keys"], frame["ordinals"]
    first = keys[0]
    table = first[: first.find(b"\0") + 1]
    return (
        len(table) > 1
        and table[0] >= _FIRST_TABLE_BYTE
        and frame["ordinal"] + ordinals[0] > last
        and frame["operations"] == _VALUE_BYTE * len(keys)
        and all(frame["images"])
        and not any(map(ge, ordinals, islice(ordinals, 1, None)))
        and all([key.startswith(table) for key in keys])  # noqa: C419 - a list is faster here, and short
    )


def _plain_entries(frame: dict[str, Any], tags: list[bytes]) -> dict[bytes, bytes]:
    base = frame["ordinal"]
    columns = zip(frame["keys"], frame["images"], frame["ordinals"], tags, strict=True)
    return {key: _pack_head(VALUE, base + offset) + tag + image for key, image, offset, tag in columns}


def _checked_entries(frame: dict[str, Any], tags: list[bytes], last: int) -> tuple[dict[bytes, bytes], int, list[int]]:
    """Entries of the rows that rise above ``last``, the highest ordinal then, and the numbers of all other rows."""
    base = frame["ordinal"]
    entries: dict[bytes, bytes] = {}
    suspects: list[int] = []
    columns = zip(frame["keys"], frame["images"], frame["operations"], frame["ordinals"], tags, strict=True)
    for row, (key, image, operation, offset, tag) in enumerate(columns):
        ordinal = base + offset
        if (
            ordinal <= last
            or not 0 < operation <= VOID
            or (operation == VALUE and not image)
            or key.find(b"\0") < 1
            or key[0] < _FIRST_TABLE_BYTE
        ):
            suspects.append(row)
            last = max(last, ordinal)  # a bad row has its place in history too: nothing older may pass it unseen
            continue
        last = ordinal
        entries[key] = _pack_head(operation, ordinal) + tag + (image if operation == VALUE else b"")
    return entries, last, suspects


def _row_tags(frame: dict[str, Any], positions: list[str]) -> list[bytes]:
    """One tag a row, built once a transaction."""
    shard, epoch, origins, sizes = frame["shard"], frame["epoch"], frame["origins"], frame["transactions"]
    if origins:
        tags = [
            encode_transaction_tag(shard, epoch, position, timestamp, origin)
            for position, timestamp, origin in zip(positions, frame["timestamps"], origins, strict=True)
        ]
    else:
        tags = encode_transaction_tags(shard, epoch, positions, frame["timestamps"])
    if max(sizes) == 1 and len(tags) == len(frame["keys"]):
        return tags
    return list(chain.from_iterable(map(repeat, tags, sizes)))


def _settle_by_key(
    state: PartitionState,
    frame: dict[str, Any],
    tags: list[bytes],
    lineage: Lineage,
    accepted: dict[bytes, bytes],
    suspects: list[int],
) -> tuple[dict[bytes, bytes], dict[tuple[str, str], Void], tuple[Rejection, ...]]:
    """The general case: each event is compared with the entry that its key has.

    ``accepted`` rows rise above their own lineage, so only entries of other shards can be in their way;
    ``suspects`` are duplicates, events out of order, and rows that can't be read.
    """
    shard, epoch = frame["shard"], frame["epoch"]
    entries: dict[bytes, bytes] = {}
    voids: dict[tuple[str, str], Void] = {}
    rejections: list[Rejection] = []
    for key, value in accepted.items():
        settled = _settle(state.lookup(key), value)
        if settled is not None:
            entries[key] = settled
    for row in suspects:
        key, operation, ordinal = (
            frame["keys"][row],
            frame["operations"][row],
            frame["ordinal"] + frame["ordinals"][row],
        )
        if not is_row_key(key):
            rejections.append(Rejection("bad_key", f"row {row} has no table in its key", f"ordinal {ordinal}"))
            voids[EVERY_TABLE, shard] = Void(epoch, max(lineage.ordinal, ordinal), "")
            continue
        image = frame["images"][row] if operation == VALUE else b""
        if operation not in _ROW_KINDS or (operation == VALUE and not image):
            reason = f"row {row} has operation {operation} and {len(image)} bytes of image"
            rejections.append(Rejection("bad_operation", reason, f"key {key!r}"))
            operation = VOID
        existing = entries.get(key) or state.lookup(key)
        settled = _settle(existing, _pack_head(operation, ordinal) + tags[row] + image)
        if settled is not None:
            entries[key] = settled
    return entries, voids, tuple(rejections)


def _settle(existing: bytes | None, value: bytes) -> bytes | None:
    """What is stored when the event ``value`` meets ``existing``; None: the event is discarded."""
    if existing is None:
        return value
    old, new = decode_entry(existing), decode_entry(value)
    if old.shard == new.shard:
        return value if (new.epoch, new.ordinal) > (old.epoch, old.ordinal) else None
    by_origin = _order_by_origin(new, old)
    if by_origin is Order.NEWER:
        return value
    if by_origin in (Order.OLDER, Order.SAME):
        return None
    tag = encode_transaction_tag(new.shard, new.epoch, new.position, new.timestamp, new.origin)
    return _pack_head(VOID, new.ordinal) + tag


def _order_by_origin(new: Entry, old: Entry) -> Order:
    """Order by a coordinate of a shard that both know: its own position, or the origin's."""
    for_new = _coordinates(new)
    for shard, position in _coordinates(old).items():
        if shard in for_new:
            try:
                return Position.parse(for_new[shard]).order(Position.parse(position))
            except TokenError:
                return Order.UNKNOWN
    return Order.UNKNOWN


def _coordinates(entry: Entry) -> dict[str, str]:
    coordinates = {entry.shard: entry.position}
    if entry.origin:
        shard, _, position = entry.origin.partition(" ")
        coordinates[shard] = position
    return coordinates
