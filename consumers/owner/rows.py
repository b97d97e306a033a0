"""What an owner's state says about a key: pure functions over head, entry and overlay values.

The order of reads matters to the caller: watermark (the head's lineage) first, entry after. Then the value is
never older than the watermark it is judged by.
"""

from __future__ import annotations

from typing import NamedTuple

from consumers.fold.entry import VALUE, VOID, decode_entry
from consumers.fold.state import EVERY_TABLE, Head, Lineage, Void
from tokens import Freshness, Position, Tag, TokenError

UNKNOWN_KEY = 0
"""View kind: nothing was folded for the key since the shard's low-water."""


class Stamp(NamedTuple):
    """What a fill was made over. It answers only while the stamp of its key is still the same."""

    shard: str
    epoch: int
    ordinal: int
    voids: tuple[Void, ...]


class View(NamedTuple):
    """What is known of one key. ``kind`` is VALUE, ABSENT, VOID or UNKNOWN_KEY."""

    kind: int
    image: bytes
    shard: str
    epoch: int
    ordinal: int
    timestamp: int
    lo: str
    hi: str
    watermark: str
    stamp: Stamp
    why: str


def table_of(key: bytes) -> str:
    """The table in a row key; raises ``UnicodeDecodeError`` if the name is no UTF-8."""
    return key.partition(b"\0")[0].decode()


def own_lineage(head: Head) -> tuple[str, Lineage | None]:
    """The shard of keys that have no entry: known where the partition has one shard only."""
    if len(head.lineages) == 1:
        return next(iter(head.lineages.items()))
    return "", None


def voids_of(head: Head, table: str, shard: str) -> tuple[Void, ...]:
    """The voids that bear on a table's keys of one shard."""
    voids = head.voids
    if not voids:
        return ()
    found = (voids.get((table, shard)), voids.get((EVERY_TABLE, shard)))
    return tuple(void for void in found if void is not None)


def view_row(head: Head, key: bytes, value: bytes | None) -> View:
    """The state of a row key: its entry, unless a void of its table or shard is newer."""
    table = table_of(key)
    if value is None:
        shard, lineage = own_lineage(head)
        epoch, watermark = (lineage.epoch, lineage.watermark) if lineage else (0, "")
        stamp = Stamp(shard, epoch, 0, _all_voids(head, table))
        return View(UNKNOWN_KEY, b"", shard, epoch, 0, 0, "", "", watermark, stamp, "no event of this key was folded")
    entry = decode_entry(value)
    found = head.lineages.get(entry.shard)
    watermark = found.watermark if found and found.epoch == entry.epoch else ""
    voids = voids_of(head, table, entry.shard)
    stamp = Stamp(entry.shard, entry.epoch, entry.ordinal, _all_voids(head, table))
    kind, image, why = entry.kind, entry.image, f"folded from {entry.position} at ordinal {entry.ordinal}"
    position = entry.position
    if not _is_position(position):
        kind, image, position, why = VOID, b"", "", f"the position of its event, {entry.position!r}, cannot be read"
    for void in voids:
        if (entry.epoch, entry.ordinal) <= (void.epoch, void.ordinal):
            kind, image, why = VOID, b"", f"voided at ordinal {void.ordinal} of epoch {void.epoch}"
    # The head is read before the entry: it may be of the epoch before.
    current = max(found.epoch, entry.epoch) if found else entry.epoch
    return View(
        kind,
        image,
        entry.shard,
        current,
        entry.ordinal,
        entry.timestamp,
        position,
        position,
        watermark,
        stamp,
        why,
    )


def _is_position(text: str) -> bool:
    try:
        return bool(Position.parse(text).flavor)
    except TokenError:
        return False


def _all_voids(head: Head, table: str) -> tuple[Void, ...]:
    if not head.voids:
        return ()
    return tuple(void for (scope, _), void in sorted(head.voids.items()) if scope in (table, EVERY_TABLE))


def tag_of(view: View) -> Tag:
    """The view as the comparator wants it."""
    return Tag(
        shard=view.shard,
        epoch=view.epoch,
        lo=_parse(view.lo),
        hi=_parse(view.hi),
        watermark=_parse(view.watermark),
    )


def _parse(text: str) -> Position | None:
    return Position.parse(text) if text else None


def may_fill(head: Head, key: bytes, value: bytes | None, lo: str) -> tuple[bool, str]:
    """Whether a value read from the source at ``lo`` may stand beside the folded state of its key.

    The rules (docs/concepts/rows.md): over a value, left to the stream; over a tombstone, known to be as new; over
    nothing, at or above the low-water; never below the floor of a void, and not while a void waits for its marker.
    A fill behind the watermark is refused too: at a primary it would be lost history, at a replica the next will do.
    """
    view = view_row(head, key, value)
    position = Position.parse(lo)
    lineage = head.lineages.get(view.shard)
    if lineage is None:
        return False, "the shard of the key is not known here"
    if view.kind == VALUE:
        return False, "the stream already has a value"
    if not lineage.low_water or not position.at_or_past(Position.parse(lineage.low_water)):
        return False, f"{lo} is below the low-water {lineage.low_water or '(unknown)'}"
    for void in voids_of(head, table_of(key), view.shard):
        if not void.floor:
            return False, "the key was voided, and the marker that follows has not come"
        if void.epoch == lineage.epoch and not position.at_or_past(Position.parse(void.floor)):
            return False, f"{lo} is below {void.floor}, where the key's table was voided"
    same_epoch = value is not None and decode_entry(value).epoch == lineage.epoch
    if same_epoch and not view.lo:
        if lineage.watermark_ordinal < view.ordinal:
            return (
                False,
                "the position of the key's last event cannot be read, and the marker that follows has not come",
            )
    elif same_epoch and not position.at_or_past(Position.parse(view.lo)):
        return False, f"{lo} is not known to be as new as the tombstone's {view.lo}"
    if lineage.watermark and not position.at_or_past(Position.parse(lineage.watermark)):
        return False, f"{lo} is behind the watermark {lineage.watermark}"
    return True, "filled"


def is_servable(freshness: Freshness) -> bool:
    """Whether an answer from the cache may be given with this decision."""
    return freshness in (Freshness.FRESH, Freshness.EVENTUAL)
