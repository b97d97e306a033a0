"""The fold of row frames: which entries a frame's rows become. Pure; called by `consumers.fold.messages` only.

The fast path needs no look-up: in a partition with one shard, or with a map that gives each key one, a row whose
ordinal is above all that was folded of its shard is newer than the entry of its key. Everything else (shards without a
map, duplicates, rows out of order, unreadable rows) is compared key by key, with the same result. Consecutive small
frames are folded together.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, islice, repeat
from operator import ge
from typing import Any, TypeAlias

from consumers.fold.backfills import drop_lines, dropped_entry
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
from consumers.fold.shards import (
    arrival_rejections,
    arrival_voids,
    has_own_keys,
    is_succeeded,
    lineage_for,
    older_epoch_rejection,
)
from consumers.fold.state import Changes, Dropped, Head, Lineage, PartitionState, Rejection, Void
from stream.wire.checks import check_frame
from stream.wire.codec import HEADER_SIZE, ROW_FRAME_HEADER
from stream.wire.events import EVERY_TABLE
from stream.wire.frames import read
from stream.wire.keys import FIRST_TABLE_BYTE, is_row_key
from stream.wire.single import read_long, read_single, single_prefix
from tokens import EventToken, Order, Origin, Position, order

Record: TypeAlias = tuple[int, bytes | None]
"""Offset and value of a message."""

_pack_head = HEAD.pack
_pack_prefix = PREFIX.pack
_VALUE_BYTE = bytes([VALUE])
_ROW_KINDS = (VALUE, ABSENT, VOID)
_NOTHING: dict[Any, Any] = {}
_MANY = 4
"""Rows of a frame from which on columns are faster than rows."""
_SMALL = 16 * 1024
"""Bytes of a frame up to which the work per frame matters. Runs of larger frames would keep readers waiting."""


def fold_run(head: Head, records: Sequence[Record], at: int, end: int) -> tuple[Changes, int] | None:
    """Folds the run of small frames that begins at ``records[at]``: its changes, and the index after it (≤ ``end``).

    The run ends before the first record that is not on the fast path (of one shard that has keys of its own, rising
    ordinals). None if that is ``records[at]`` itself.
    """
    value = records[at][1]
    if value is None or not value.startswith(ROW_FRAME_HEADER):
        return None
    shard = _writer(head, value)
    if not shard:
        return None
    lineage = head.lineages[shard]
    prefix, tag = single_prefix(shard, lineage.epoch), f"{shard}\0{lineage.epoch}\0".encode()
    begin, tag_size = len(prefix), len(tag)
    after, last = head.offset, lineage.ordinal
    entries: dict[bytes, bytes] = {}
    last_timestamp: bytes | None = None  # not even a damaged one is equal
    seconds = 0
    first = at
    for at in range(first, end):
        offset, value = records[at]
        if value is None or offset < after or not value.startswith(prefix):
            break
        row = read_single(value, begin)
        if row is None:
            small = _small_entries(value, last)
            if small is None:
                break
            entries |= small[0]
            last, after = small[1], offset + 1
            continue
        ordinal, key, operation, image, gtid, timestamp = row
        if timestamp != last_timestamp:
            decoded = read_long(timestamp)
            if decoded is None:
                break
            last_timestamp, seconds = timestamp, decoded
        if (
            ordinal <= last
            or not 0 < operation <= VOID
            or (operation == VALUE and not image)
            or key.find(b"\0") < 1
            or key[0] < FIRST_TABLE_BYTE
            or not gtid.isascii()
        ):
            break
        last, after = ordinal, offset + 1
        start = _pack_prefix(operation, ordinal, seconds, tag_size + len(gtid))
        entries[key] = start + tag + gtid + image if operation == VALUE else start + tag + gtid
    else:
        at = end
    if at == first:
        return None
    return Changes(after, entries, {shard: lineage._replace(ordinal=last)}, messages=at - first), at


def _writer(head: Head, value: bytes) -> str:
    """The shard of a frame, if its rows need not be compared with the entries of others; else ""."""
    for shard, lineage in head.lineages.items():
        if value.startswith(single_prefix(shard, lineage.epoch)):
            is_over = is_succeeded(head, shard, lineage.epoch)
            return shard if not is_over and has_own_keys(head, shard) else ""
    return ""


def _small_entries(value: bytes, last: int) -> tuple[dict[bytes, bytes], int] | None:
    """Entries and last ordinal of a small frame; None if it is not on the fast path."""
    if len(value) > _SMALL:
        return None
    try:
        frame = read(value, HEADER_SIZE)
        check_frame(frame)
        entries, last, suspects = _entries(frame, last, _row_tags(frame))
    except (ValueError, IndexError, struct.error):
        return None
    return None if suspects else (entries, last)


def fold_rows(state: PartitionState, after: int, frame: dict[str, Any]) -> Changes:
    """What a `RowFrame` changes. Raises `CodecError` if its columns are inconsistent."""
    check_frame(frame)
    shard, epoch = frame["shard"], frame["epoch"]
    head = state.head
    lineage = lineage_for(head, shard, epoch)
    if lineage is None:
        return Changes(after, _NOTHING, rejections=(older_epoch_rejection(frame),))
    tags = _row_tags(frame)
    entries, last, suspects = _entries(frame, lineage.ordinal, tags)
    moved = {shard: lineage._replace(ordinal=last)}
    voids = arrival_voids(head, shard, epoch)
    if not suspects and shard in head.lineages and has_own_keys(head, shard):
        return Changes(after, entries, moved, voids)
    settled, more_voids, rejections = _settle_by_key(state, frame, tags, lineage)
    return Changes(after, settled, moved, voids | more_voids, rejections=arrival_rejections(head, shard) + rejections)


def _entries(frame: dict[str, Any], last: int, tags: list[bytes]) -> tuple[dict[bytes, bytes], int, list[int]]:
    """As `_checked_entries`, the fast way if there is one."""
    if len(frame["keys"]) >= _MANY and _is_plain(frame, last):
        return _plain_entries(frame, tags), frame["ordinal"] + frame["ordinals"][-1], []
    return _checked_entries(frame, tags, last)


def _is_plain(frame: dict[str, Any], last: int) -> bool:
    """Whether all rows are values of one table with ordinals that rise above ``last``, as in most frames.

    Works column by column, because an interpreted step per row would be slow.
    """
    keys, ordinals = frame["keys"], frame["ordinals"]
    first = keys[0]
    table = first[: first.find(b"\0") + 1]
    return (
        len(table) > 1
        and table[0] >= FIRST_TABLE_BYTE
        and frame["ordinal"] + ordinals[0] > last
        and frame["operations"] == _VALUE_BYTE * len(keys)
        and all(frame["images"])
        and not any(map(ge, ordinals, islice(ordinals, 1, None)))
        and all([key.startswith(table) for key in keys])  # noqa: C419 - a list is faster here
    )


def _plain_entries(frame: dict[str, Any], tags: list[bytes]) -> dict[bytes, bytes]:
    base = frame["ordinal"]
    columns = zip(frame["keys"], frame["images"], frame["ordinals"], tags, strict=True)
    return {key: _pack_head(VALUE, base + offset) + tag + image for key, image, offset, tag in columns}


def _checked_entries(frame: dict[str, Any], tags: list[bytes], last: int) -> tuple[dict[bytes, bytes], int, list[int]]:
    """Entries of the valid rows that rise above ``last``, the highest ordinal, and the indexes of all other rows."""
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
            or key[0] < FIRST_TABLE_BYTE
        ):
            suspects.append(row)
            last = max(last, ordinal)  # older rows after a bad one must not take the fast path
            continue
        last = ordinal
        entries[key] = _pack_head(operation, ordinal) + tag + (image if operation == VALUE else b"")
    return entries, last, suspects


def _row_tags(frame: dict[str, Any]) -> list[bytes]:
    """One tag per row; the rows of a transaction share theirs."""
    positions = frame["positions"] or frame["gtids"]
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
    state: PartitionState, frame: dict[str, Any], tags: list[bytes], lineage: Lineage
) -> tuple[dict[bytes, bytes], dict[tuple[str, str], Void], tuple[Rejection, ...]]:
    """The general case: compares each event with its key's entry, in order. Returns entries, voids and rejections.

    So a frame folds as its rows would in frames of their own. Only unreadable keys void up to where the frame begins.
    """
    shard, epoch = frame["shard"], frame["epoch"]
    own = f"{shard}\0".encode()
    entries: dict[bytes, bytes] = {}
    voids: dict[tuple[str, str], Void] = {}
    rejections: list[Rejection] = []
    lines: dict[str, dict[str, Dropped]] = {}
    is_alone = has_own_keys(state.head, shard)
    columns = zip(frame["keys"], frame["images"], frame["operations"], frame["ordinals"], tags, strict=True)
    for row, (key, image, operation, offset, tag) in enumerate(columns):
        ordinal, kind, body = frame["ordinal"] + offset, operation, image if operation == VALUE else b""
        if not is_row_key(key):
            rejections.append(Rejection("bad_key", f"row {row} has no table in its key", f"ordinal {ordinal}"))
            voids[EVERY_TABLE, shard] = Void(epoch, max(lineage.ordinal, ordinal), "")
            continue
        if operation not in _ROW_KINDS or (operation == VALUE and not image):
            reason = f"row {row} has operation {operation} and {len(body)} bytes of image"
            rejections.append(Rejection("bad_operation", reason, f"key {key!r}"))
            kind = VOID
        existing = entries.get(key) or state.lookup(key)
        table = key[: key.find(b"\0")].decode(errors="replace")
        if table not in lines:
            found = drop_lines(state.head, table)
            lines[table] = {name: line for name, line in found.items() if name == shard or not is_alone}
        if is_alone and existing is not None and not existing.startswith(own, PREFIX.size):
            existing = None  # of another shard, to which the key does not belong any more
        settled = _settle_over(state.head, existing, lines[table], _pack_head(kind, ordinal) + tag + body)
        if settled is not None:
            entries[key] = settled
    return entries, voids, tuple(rejections)


def _settle_over(head: Head, existing: bytes | None, lines: dict[str, Dropped], value: bytes) -> bytes | None:
    """As `_settle`; a key without an entry, or with a dropped one, counts as deleted where each line is."""
    if existing is not None and dropped_entry(lines, existing) is None:
        return _settle(head, existing, value)
    settled: bytes | None = value
    for shard, line in lines.items():
        deleted = _pack_head(ABSENT, line.ordinal) + encode_transaction_tag(shard, line.epoch, line.position, 0)
        if settled is not None:
            settled = _settle(head, deleted, settled)
    return settled


def _settle(head: Head, existing: bytes | None, value: bytes) -> bytes | None:
    """The entry to store for the event ``value`` if the key has ``existing``; None if the event is discarded."""
    if existing is None:
        return value
    old, new = decode_entry(existing), decode_entry(value)
    if old.shard == new.shard:
        return value if (new.epoch, new.ordinal) > (old.epoch, old.ordinal) else None
    answer = Order.NEWER if is_succeeded(head, old.shard, old.epoch) else _order(new, old)
    if answer is Order.NEWER:
        return value
    if answer is not Order.UNKNOWN:
        return None
    tag = encode_transaction_tag(new.shard, new.epoch, new.position, new.timestamp, new.origin)
    return _pack_head(VOID, new.ordinal) + tag


def _order(new: Entry, old: Entry) -> Order:
    """The order of two entries of different shards."""
    try:
        return order(_token(new), _token(old))
    except ValueError:
        return Order.UNKNOWN


def _token(entry: Entry) -> EventToken:
    """Where the entry stands. Raises `TokenError`."""
    origin = None
    place = entry.origin.rsplit(" ", 2)
    if len(place) == 3:  # older frames name no epoch: such an origin orders nothing
        origin = Origin(place[0], Position.parse(place[2]), int(place[1]))
    return EventToken(entry.timestamp, entry.shard, Position.parse(entry.position), origin, entry.epoch)
