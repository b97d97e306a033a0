"""Which tables are whole in a partition, so that a key without an entry is known to be absent. Pure.

A source says that a table's backfill begins, publishes the rows that were there before, and says that it is complete.
A partition that has folded both, and no void in between or since, holds an entry for each row of the table. One that
began in the middle has not folded the beginning, which is never said again (docs/concepts/rows.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consumers.fold.declared import is_in_scope
from consumers.fold.shards import sole_lineage
from consumers.fold.state import Backfill, Head
from stream.wire.events import EVERY_TABLE
from tokens import Position


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
    """Each table whose backfill has begun here, in order, and whether it is whole."""
    return {table: whole_table(head, table) is not None for table in sorted({table for table, _ in head.backfills})}


def whole_table(head: Head, table: str) -> tuple[str, Backfill] | None:
    """The partition's only shard and the backfill that made ``table`` whole here; None if it is not known to be.

    Each void of the table, the epoch and the scope ends what was known before it. Of a keyspace with several shards
    nothing is known: another one may have the key. The watermark must have passed the completion.
    """
    if not head.backfills:
        return None
    shard, lineage = sole_lineage(head)
    held, topology = head.backfills.get((table, shard)), head.topologies.get(shard)
    if held is None or lineage is None or not held.complete or held.epoch != lineage.epoch:
        return None
    if lineage.watermark_ordinal < held.complete or topology is None or topology.shards != (shard,):
        return None
    begun = (held.epoch, held.begun)
    voids = (head.voids.get((table, shard)), head.voids.get((EVERY_TABLE, shard)))
    if any(void is not None and void[:2] >= begun for void in voids) or not is_in_scope(head, shard, *begun):
        return None
    return shard, held
