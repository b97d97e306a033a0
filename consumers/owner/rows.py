"""How an owner answers for a row key: its folded state, the decision on a demand, and the check of fills."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Final

import msgspec

from consumers.fold.backfills import is_left_behind, is_readable, voids_of, whole_at
from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.shards import NO_KIN, Kin, is_succeeded, lineage_of_key, shard_map
from consumers.fold.state import Head
from consumers.owner.evidence import ACCEPTED, FillVerdict, fill_refusal, kin_at, may_catch_up, refused, tag_of
from consumers.owner.meaning import check_partition, compare_meaning, folded_meaning, prefix_of, refuse_row
from consumers.owner.overlay import OverlayFill
from consumers.owner.partitions import Partition
from consumers.owner.protocol import HISTORY_LOST, UNKNOWN_KEY, Fill, Get, OwnerRow
from consumers.store.dropping import LastDropped
from stream.wire.events import EVERY_TABLE
from tokens import Demand, Freshness, Order, Position, decide


class Stamp(msgspec.Struct, array_like=True, frozen=True):
    """The folded state that a fill of a row is made over. A fill is valid while its key has the same stamp.

    A front gets it as bytes and returns it unread, so it may have another form in each version.
    """

    shard: str
    epoch: int
    ordinal: int
    voids: tuple[tuple[int, int, str], ...] = ()


_UNKNOWN: Final = Freshness.UNKNOWN.value
NO_DEMAND: Final = Demand()
encode_stamp = msgspec.msgpack.Encoder().encode
read_stamp = msgspec.msgpack.Decoder(Stamp).decode
"""The stamp in an answer of this process. Raises ``msgspec.DecodeError``."""


def table_of(key: bytes) -> str:
    """The table in a row key; raises ``UnicodeDecodeError`` if the name is not UTF-8."""
    return key.partition(b"\0")[0].decode()


def nothing_dropped(_: str, __: str) -> LastDropped | None:
    """As `Dropping.last`, of a state that has dropped nothing."""
    return None


def view_row(
    head: Head,
    key: bytes,
    value: bytes | None,
    dropped: Callable[[str, str], LastDropped | None] = nothing_dropped,
    prefix: int | None = None,
) -> OwnerRow:
    """The folded state of a row key, no demand considered. A newer void of its table or shard hides the entry.

    A key without an entry may have had a tombstone, which is at or before what ``dropped`` tells of the table. An entry
    that counts as dropped is passed over when the table is whole no more: stores may have dropped it, or not.
    ``prefix``: of the table's description, by which a map tells the shard of a key; None: it was not looked up.
    """
    table = table_of(key)
    entry = decode_entry(value) if value is not None else None
    if entry is None or is_succeeded(head, entry.shard, entry.epoch):
        shard, lineage = lineage_of_key(head, key, prefix)
        if lineage is None:
            shard = ""  # nothing has come of it: a name without an epoch would become one of every reader's token
        epoch, watermark, low_water = (lineage.epoch, lineage.watermark, lineage.low_water) if lineage else (0, "", "")
        as_of_ms = lineage.as_of_ms if lineage else 0
        stamp = encode_stamp(Stamp(shard, epoch, 0, _all_voids(head, table)))
        why = "no event of this key has been folded"
        last = dropped(table, shard) if entry is None else None
        since = last.position if last is not None and last.epoch == epoch else ""
        low_water = later_of(low_water, since)
        row = _row(UNKNOWN_KEY, None, why, shard, epoch, "", 0, watermark, low_water, stamp, as_of_ms)
        return _absent_if_whole(head, table, shard, row, since)
    found = head.lineages.get(entry.shard)
    # The head was read before the entry, so it may still be of the previous epoch.
    current = max(found.epoch, entry.epoch) if found else entry.epoch
    watermark, low_water, as_of_ms = "", "", 0
    if found is not None and found.epoch >= entry.epoch:
        low_water = found.low_water
        # A marker says nothing of events after it. After a gap in the log, their positions may even lie below its own.
        if (entry.epoch, entry.ordinal) <= (found.epoch, found.watermark_ordinal):
            watermark, as_of_ms = found.watermark, found.as_of_ms
    kind, position, why = entry.kind, entry.position, f"folded from {entry.position} at ordinal {entry.ordinal}"
    if kind == VOID:
        why = f"changed at {position}, by a foreign key, or to an image that is too large for the stream"
    if not is_readable(position):
        kind, position, why = VOID, "", f"its event has an unreadable position, {entry.position!r}"
    is_hidden = False
    may_be_filled = True
    if shard_map(head) is not None and entry.shard != lineage_of_key(head, key, prefix)[0]:
        # What the key's own shard has said of it is gone: the entry of the other one took its place.
        kind, position, may_be_filled = VOID, "", False
        why = f"written by {entry.shard}, to which the key does not belong by the map of the keyspace's shards"
    for void in voids_of(head, table, entry.shard):
        if (entry.epoch, entry.ordinal) <= (void.epoch, void.ordinal):
            kind, why = VOID, f"voided at ordinal {void.ordinal} of epoch {void.epoch}"
            is_hidden = True
    if may_be_filled and is_left_behind(head, table, entry):
        if entry.kind != ABSENT:
            return view_row(head, key, None, dropped, prefix)
        gone = LastDropped(entry.epoch, entry.ordinal, entry.position)
        return view_row(head, key, None, lambda *scope: max(dropped(*scope) or gone, gone), prefix)
    image = entry.image if kind == VALUE else None
    made_over = b""  # nothing is filled over a value
    if kind != VALUE and may_be_filled:
        made_over = encode_stamp(Stamp(entry.shard, entry.epoch, entry.ordinal, _all_voids(head, table)))
    at = entry.timestamp
    row = _row(kind, image, why, entry.shard, current, position, at, watermark, low_water, made_over, as_of_ms)
    return _absent_if_whole(head, table, entry.shard, row) if is_hidden and may_be_filled else row


def _absent_if_whole(head: Head, table: str, shard: str, row: OwnerRow, since: str = "") -> OwnerRow:
    """``row``, of a key of ``shard`` without an entry since the last void; known to be absent if the table is whole
    there since then.

    It reads as if each such key had been deleted where the backfill was complete, or later: its tombstone may have been
    dropped, at or before the position ``since``.
    """
    backfill = whole_at(head, table, shard)
    if backfill is None:
        return row
    row.kind, row.shard, row.epoch = ABSENT, shard, backfill.epoch
    row.lo, row.hi = backfill.position, later_of(backfill.position, since)
    row.timestamp, row.watermark = backfill.timestamp, head.lineages[shard].watermark
    row.as_of_ms = head.lineages[shard].as_of_ms
    row.why = f"{table} is complete since {backfill.position}, and has no row of this key"
    return row


def _row(
    kind: int,
    image: bytes | None,
    why: str,
    shard: str,
    epoch: int,
    position: str,
    timestamp: int,
    watermark: str,
    low_water: str,
    stamp: bytes,
    as_of_ms: int,
) -> OwnerRow:
    """A folded row: ``lo`` and ``hi`` are both ``position``."""
    return OwnerRow(
        kind=kind,
        image=image,
        freshness=_UNKNOWN,
        why=why,
        served=False,
        needs_source=True,
        shard=shard,
        epoch=epoch,
        lo=position,
        hi=position,
        timestamp=timestamp,
        watermark=watermark,
        low_water=low_water,
        stamp=stamp,
        as_of_ms=as_of_ms,
    )


def later_of(position: str, other: str) -> str:
    """The join of two positions of one lineage; "" is before all."""
    if not other or position == other:
        return position
    return str(Position.parse(position).join(Position.parse(other))) if position else other


def _all_voids(head: Head, table: str) -> tuple[tuple[int, int, str], ...]:
    """Those that cover a table's keys of any shard. A shard that has voids has a lineage."""
    voids = head.voids
    if not voids:
        return ()
    scopes = product(sorted((table, EVERY_TABLE)), sorted(head.lineages))
    return tuple(voids[scope] for scope in scopes if scope in voids)


def answer_rows(partition: Partition, request: Get, demand: Demand) -> list[OwnerRow]:
    """What is known of each key of ``request``. Raises `OwnerError` ``wrong_partition``.

    The head is read before the entries and the descriptions after them: a description that holds at both ends holds
    for every entry in between.
    """
    partition.recent.extend(request.keys)
    head = partition.store.visible
    prefixes: dict[str, int | None] = {}
    rows: list[OwnerRow] = []
    for key in request.keys:
        table = table_of(key)
        if table not in prefixes:
            prefixes[table] = prefix_of(partition, head, table)
        row = answer_row(partition, key, demand, prefixes[table])
        if request.last_known and row.kind == VOID and demand == NO_DEMAND:
            row = last_known_row(head, key, partition.store.get(key), prefixes[table]) or row
        rows.append(row)
    judged, why, prefix = ("", ""), "", 0
    for key, row in zip(request.keys, rows, strict=True):
        table = table_of(key)
        if (table, row.shard) != judged:
            judged = table, row.shard
            why, prefix = compare_meaning(partition, head, table, row.shard, request.meanings.get(table))
            if not why and prefixes[table] not in (None, prefix):
                why = "the table's description is changing"
        if why:
            refuse_row(row, why)
        else:
            check_partition(head, partition.number, key, prefix)
    return rows


def answer_row(partition: Partition, key: bytes, demand: Demand, prefix: int | None = None) -> OwnerRow:
    """What is known of ``key``, and whether it may be served for ``demand``. ``prefix``: as in `view_row`.

    A key without a folded value is answered from the overlay if its fill was made over the same folded state.
    """
    store = partition.store
    head = store.visible
    row = view_row(head, key, store.get(key), store.dropping.last, prefix)
    if row.kind not in (VALUE, ABSENT):
        fill = partition.overlay.get(key, row.stamp, row.low_water)
        if fill is None:
            row.kin = kin_at(head, row.shard, row.epoch).heard(partition.ready)
            return row
        row.kind = VALUE if fill.image is not None else ABSENT
        row.image, row.lo, row.hi, row.timestamp = fill.image, fill.lo, fill.hi, fill.timestamp
        row.why, row.filled = f"filled from the source at {fill.lo}", True
    decide_row(row, demand, kin_at(head, row.shard, row.epoch).heard(partition.ready))
    return row


def last_known_row(head: Head, key: bytes, value: bytes | None, prefix: int | None = None) -> OwnerRow | None:
    """The image of before a void, for a read that demands nothing; None if there is none (docs/decisions/0103).

    It is an old state of the row, so it is `EVENTUAL` and proves nothing. Of another epoch it may never have been one.
    """
    entry = decode_entry(value) if value is not None else None
    if entry is None or entry.kind != VALUE or not is_readable(entry.position):
        return None
    if is_left_behind(head, table_of(key), entry):
        return None
    shard, lineage = lineage_of_key(head, key, prefix)
    if lineage is None or (shard, lineage.epoch) != (entry.shard, entry.epoch):
        return None
    voids = voids_of(head, table_of(key), entry.shard)
    above = [void for void in voids if (entry.epoch, entry.ordinal) <= (void.epoch, void.ordinal)]
    if not above or any(void.epoch != entry.epoch for void in above):
        return None
    voided = f"before a void at ordinal {max(above).ordinal}, by the columns of then"
    why = f"the image of {voided}; folded from {entry.position}"
    row = _row(VALUE, entry.image, why, shard, entry.epoch, entry.position, entry.timestamp, "", "", b"", 0)
    row.freshness, row.served, row.needs_source = Freshness.EVENTUAL.value, True, False
    return row


def decide_row(row: OwnerRow, demand: Demand, kin: Kin = NO_KIN) -> None:
    """Writes the decision into ``row``, and removes an image that may not be served."""
    decision = decide(demand, tag_of(row, kin=kin))
    row.freshness = decision.freshness.value
    if decision.may_be_served:
        row.served, row.needs_source, row.why = True, False, f"{decision.why}; {row.why}"
        return
    row.image, row.why, row.kin = None, decision.why, kin
    row.needs_source = not may_catch_up(decision, row.watermark)
    row.code = HISTORY_LOST if decision.history_lost else ""


def fill_row(partition: Partition, request: Fill) -> FillVerdict:
    """Keeps the source's value of a key in the overlay if `judge_fill` accepts it.

    This is a CAS: the key's stamp must still be the one that the reader got. The fill carries the stamp, so an event
    folded right after this check invalidates it too. Raises `tokens.TokenError`, `OwnerError` ``wrong_partition``.
    """
    store = partition.store
    head = store.visible
    prefix = prefix_of(partition, head, table_of(request.key))
    row = view_row(head, request.key, store.get(request.key), store.dropping.last, prefix)
    if row.stamp != request.stamp:
        return refused("the key changed since it was read")
    Position.parse(request.hi)
    verdict = judge_fill(head, request.key, row, request.lo)
    if not verdict.accepted:
        return verdict
    refusal = _schema_refusal(partition, head, request, row.shard, prefix)
    if refusal:
        return refused(refusal)
    before = partition.overlay.get(request.key, row.stamp, row.low_water)
    if before is not None and Position.parse(before.lo).order(Position.parse(request.lo)) is Order.NEWER:
        return refused(f"a newer fill, of {before.lo}, is kept already")
    fill = OverlayFill(request.image, request.lo, request.hi, request.timestamp, row.stamp, row.low_water)
    if not partition.overlay.put(request.key, fill):
        return refused("the value is larger than the overlay")
    return verdict


def judge_fill(head: Head, key: bytes, row: OwnerRow, lo: str) -> FillVerdict:
    """Whether a value read from the source at ``lo`` may be kept beside ``row``, the folded state of ``key``.

    Never over a value. Over a tombstone only if ``lo`` is known to be at or past it. Always subject to `fill_refusal`
    (docs/concepts/rows.md). Raises `tokens.TokenError`.
    """
    position = Position.parse(lo)
    lineage = head.lineages.get(row.shard)
    if lineage is None:
        return refused("the key's shard is unknown here")
    if row.kind == VALUE:
        return refused("the stream already has a value")
    if not row.stamp:
        return refused(row.why)
    lineage = lineage._replace(low_water=row.low_water or lineage.low_water)
    refusal = fill_refusal(position, lineage, voids_of(head, table_of(key), row.shard))
    if refusal:
        return refused(refusal)
    stamp = read_stamp(row.stamp)
    if row.kind != UNKNOWN_KEY and stamp.epoch == lineage.epoch:
        if not row.lo:
            if lineage.watermark_ordinal < stamp.ordinal:
                why = "the key's last event has an unreadable position, and the marker that follows has not arrived"
                return refused(why)
        elif not position.at_or_past(Position.parse(row.lo)):
            return refused(f"{lo} is not known to be as new as the tombstone's {row.lo}")
    return ACCEPTED


def _schema_refusal(partition: Partition, head: Head, request: Fill, shard: str, prefix: int | None) -> str:
    """Why the table's description forbids the fill, else "". ``shard``: the key's, by ``prefix``.

    Tables that are always read through are not kept, nor those that the shard does not publish. Absence is kept only if
    no collation compares the key.
    """
    found = folded_meaning(partition, table_of(request.key), shard)
    if found is None:
        return f"shard {shard} does not publish the table, as far as is known here"
    check_partition(head, partition.number, request.key, found.prefix)
    if prefix not in (None, found.prefix):
        return "the table's description is changing"
    if request.meaning and request.meaning != found.fingerprint:
        return "the keys of the table mean something else here: its description has changed"
    if found.reason:
        return f"the table is always read through: {found.reason}"
    if request.image is None and found.inexact:
        return f"a collation compares key column {found.inexact}: absence can't be kept"
    return ""
