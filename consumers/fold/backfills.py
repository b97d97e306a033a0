"""Which tables are whole in a partition, so that a key without an entry is known to be absent. Pure.

A source says that a table's backfill begins, publishes the rows that were there before, and says that it is complete.
A partition that has folded both, and no void in between or since, holds an entry for each row of the table. One that
began in the middle has not folded the beginning, which is never said again (docs/concepts/rows.md).

So the tombstones of a whole table say nothing that its completeness does not say, once the watermark has passed them.
Nor does any entry from before a void: its row has come again since, or is no more. A store may drop them; folds and
digests take them for dropped (docs/decisions/0025-tombstones-of-whole-tables.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from consumers.fold.declared import is_in_scope
from consumers.fold.entry import ABSENT, HEAD, PREFIX, Entry, decode_entry
from consumers.fold.shards import shard_map, sole_lineage
from consumers.fold.state import Backfill, Changes, Dropped, Head, PartitionState, Void
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import SEPARATOR
from tokens import Position, TokenError

_PLAIN: Final = re.compile(r"MariaDB/[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,18}")
"""Most positions, of which each is another: to parse them takes twenty times as long."""


def adopt_backfill(head: Head, event: Mapping[str, Any]) -> dict[tuple[str, str], Backfill]:
    """What a `TableBackfill` changes. A completion counts only after a beginning that was folded here, and once."""
    scope = (event["table"], event["shard"])
    epoch, ordinal, held = event["epoch"], event["ordinal"], head.backfills.get(scope)
    Position.parse(event["position"])
    if not event["complete"]:
        is_newer = held is None or (epoch, ordinal) > (held.epoch, held.begun)
        return {scope: Backfill(epoch, ordinal, 0, "", 0)} if is_newer else {}
    if held is None or held.complete or held.epoch != epoch or ordinal <= held.begun:
        return {}
    return {scope: held._replace(complete=ordinal, position=event["position"], timestamp=event["timestamp"])}


def backfilled_tables(head: Head) -> dict[str, bool]:
    """Each table whose backfill has begun here, in order, and whether it is whole in each shard."""
    known = shard_map(head)
    shards = known.shards if known is not None else (sole_lineage(head)[0],)
    return {table: len(whole_shards(head, table)) == len(shards) for table in _backfilled(head)}


def whole_tables(head: Head) -> dict[tuple[str, str], Backfill]:
    """(table, shard) → the backfill that made the shard's rows of the table whole here, in order of tables."""
    shards = _telling_shards(head) if head.backfills else ()
    found = ((table, shard, _whole(head, table, shard)) for table in _backfilled(head) for shard in shards)
    return {(table, shard): backfill for table, shard, backfill in found if backfill is not None}


def _backfilled(head: Head) -> list[str]:
    return sorted({table for table, _ in head.backfills})


def whole_shards(head: Head, table: str) -> dict[str, Backfill]:
    """The shards all of whose rows of ``table`` are folded here, each with the backfill that made them whole.

    They are those of the map, each for its own keys. Without a map it is the partition's only shard: of several nothing
    is known, since another one may have the key.
    """
    if not head.backfills:
        return {}
    found = ((shard, _whole(head, table, shard)) for shard in _telling_shards(head))
    return {shard: backfill for shard, backfill in found if backfill is not None}


def _telling_shards(head: Head) -> Collection[str]:
    """The shards that may tell which of their tables are whole."""
    known = shard_map(head)
    if known is not None:
        return known.shards
    shard, _ = sole_lineage(head)
    topology = head.topologies.get(shard)
    if topology is None or topology.shards != (shard,):
        return ()
    return (shard,)


def may_change_whole_tables(head: Head, since: Head) -> bool:
    """Whether other tables may be whole than in an earlier head of the same partition, but for a watermark that rose.

    So it is known without a look at each table while none begins or ends.
    """
    epochs, before = ({shard: lineage.epoch for shard, lineage in each.lineages.items()} for each in (head, since))
    return (
        head.backfills != since.backfills
        or head.voids != since.voids
        or head.scopes != since.scopes
        or head.topologies != since.topologies
        or epochs != before
    )


def awaits_a_watermark(head: Head) -> bool:
    """Whether a table may be whole as soon as its shard's watermark has passed its completion."""
    for (_, shard), backfill in head.backfills.items():
        lineage = head.lineages.get(shard)
        if lineage is not None and backfill.epoch == lineage.epoch and lineage.watermark_ordinal < backfill.complete:
            return True
    return False


def whole_at(head: Head, table: str, shard: str) -> Backfill | None:
    """The backfill that made a shard's rows of ``table`` whole here; None if they are not known to be."""
    return whole_shards(head, table).get(shard)


def _whole(head: Head, table: str, shard: str) -> Backfill | None:
    """The backfill of a shard's rows that nothing has ended.

    Each void of the table, the epoch and the scope ends what was known before it. The watermark must have passed the
    completion.
    """
    lineage, held = head.lineages.get(shard), head.backfills.get((table, shard))
    if held is None or lineage is None or not held.complete or held.epoch != lineage.epoch:
        return None
    if lineage.watermark_ordinal < held.complete:
        return None
    begun = (held.epoch, held.begun)
    if any(void[:2] >= begun for void in voids_of(head, table, shard)) or not is_in_scope(head, shard, *begun):
        return None
    return held


def voids_of(head: Head, table: str, shard: str) -> tuple[Void, ...]:
    """The voids that cover a table's keys of one shard."""
    voids = head.voids
    if not voids:
        return ()
    found = (voids.get((table, shard)), voids.get((EVERY_TABLE, shard)))
    return tuple(void for void in found if void is not None)


def drop_lines(head: Head, table: str) -> dict[str, Dropped]:
    """Shard → up to where its entries of ``table`` are dropped.

    While the table is whole, its tombstones are up to the watermark, and all entries up to the newest void.
    """
    if not head.backfills:
        return {}
    lines = {shard: line for shard in head.lineages if (line := head.dropped.get((table, shard))) is not None}
    for shard in whole_shards(head, table):
        lineage = head.lineages[shard]
        void = max(voids_of(head, table, shard), default=(0, 0))[:2]
        lines[shard] = Dropped(lineage.epoch, lineage.watermark_ordinal, lineage.watermark, *void)
    return lines


def lines_left_behind(head: Head, changes: Changes) -> dict[tuple[str, str], Dropped]:
    """Up to where tombstones are dropped of those tables that are whole in ``head``, and no more after ``changes``."""
    tables = _perhaps_ended(head, changes)
    if not tables:
        return {}
    after = PartitionState(head.copy(), lambda _: None)
    after.apply(changes)
    found: dict[tuple[str, str], Dropped] = {}
    for table in tables:
        ended = whole_shards(head, table).keys() - whole_shards(after.head, table).keys()
        if ended:
            lines = drop_lines(head, table)
            found |= {(table, shard): lines[shard] for shard in sorted(ended)}
    return found


def _perhaps_ended(head: Head, changes: Changes) -> set[str]:
    """The tables that may be whole no more after ``changes``."""
    if not head.backfills:
        return set()
    scopes = {table for table, _ in changes.voids} | {table for table, _ in changes.backfills}
    begins = any(_begins(head, shard, lineage.epoch) for shard, lineage in changes.lineages.items())
    if begins or changes.topologies or changes.scopes or EVERY_TABLE in scopes:
        return {table for table, _ in head.backfills}
    return scopes


def _begins(head: Head, shard: str, epoch: int) -> bool:
    held = head.lineages.get(shard)
    return held is None or held.epoch != epoch


def dropped_entry(lines: Mapping[str, Dropped], value: bytes) -> Entry | None:
    """The entry in ``value`` if it is dropped by its shard's line. One whose position can't be read is kept."""
    entry = decode_entry(value)
    line = lines.get(entry.shard)
    return entry if line is not None and _is_behind(line, entry) else None


def _is_behind(line: Dropped, entry: Entry) -> bool:
    place, voided = (entry.epoch, entry.ordinal), (line.void_epoch, line.void_ordinal)
    return place <= (line[:2] if entry.kind == ABSENT else voided) and is_readable(entry.position)


def is_left_behind(head: Head, table: str, entry: Entry) -> bool:
    """Whether an entry counts as dropped of a table that was whole, and is no more."""
    line = head.dropped.get((table, entry.shard))
    return line is not None and _is_behind(line, entry) and whole_at(head, table, entry.shard) is None


def may_be_dropped(value: bytes, shards: Collection[str]) -> bool:
    """Whether a later line of one of ``shards`` may cover the tombstone in ``value``."""
    if not shards:
        return False
    entry = decode_entry(value)
    return entry.shard in shards and is_readable(entry.position)


class Drops:
    """Which entries a state does without: of each table that is asked for, as `drop_lines`. False: of no table."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._lines: dict[bytes, tuple[dict[str, Dropped], list[tuple[bytes, bytes]]]] = {}
        """By a table's name and separator: its lines, and how tags of each lineage begin, with the ordinal, as an entry
        has it, up to which rows of it are dropped. Most rows are told apart by that."""

    def __bool__(self) -> bool:
        return bool(self._head.backfills)

    def entry(self, key: bytes, value: bytes) -> Entry | None:
        """The entry in ``value`` if the state does without it."""
        begin = key[: key.find(SEPARATOR) + 1]
        found = self._lines.get(begin)
        if found is None:
            found = self._lines[begin] = self._lines_of(begin)
        lines, living = found
        if not lines:
            return None
        if value[0] != ABSENT:
            for tag, voided in living:
                if value.startswith(tag, PREFIX.size) and value[1 : HEAD.size] > voided:
                    return None
        return dropped_entry(lines, value)

    def _lines_of(self, begin: bytes) -> tuple[dict[str, Dropped], list[tuple[bytes, bytes]]]:
        try:
            lines = drop_lines(self._head, begin.removesuffix(SEPARATOR).decode()) if begin else {}
        except UnicodeDecodeError:  # no table has such a name
            lines = {}
        living = list[tuple[bytes, bytes]]()
        for shard, line in lines.items():
            voided = line.void_ordinal if line.void_epoch == line.epoch else 0
            living.append((f"{shard}\0{line.epoch}\0".encode(), HEAD.pack(0, voided)[1:]))
        return lines, living


def live_items(head: Head, items: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The items of a state without the entries that ``head`` lets a store drop, dropped or not."""
    drops = Drops(head)
    if not drops:
        return iter(items)
    return (item for item in items if drops.entry(*item) is None)


def is_readable(position: str) -> bool:
    """Whether an entry's position says anything."""
    if _PLAIN.fullmatch(position):
        return True
    try:
        return bool(Position.parse(position).flavor)
    except TokenError:
        return False
