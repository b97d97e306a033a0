"""The fold: how one message of the topic changes the state of its partition. A pure function.

Live consumer, Spark rebuild, simulator and offline replay all call `fold_message` or `fold_messages`, so they cannot
disagree. The fold never raises on bad input: it returns a rejection and a void of what the message may have changed.
Only a record that needs a newer Freshet is raised (`stream.wire.codec.NewerWireError`): nothing may be folded past it.

Order: within a lineage (shard, epoch) the ordinal decides. A later epoch of the same shard is newer. Entries of
different shards are ordered only if both carry a coordinate of the same origin. Otherwise the key becomes VOID with the
event's token, which is always safe (docs/concepts/order.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from consumers.fold.backfills import adopt_backfill, lines_left_behind
from consumers.fold.catalog import fold_catalog, void_catalog
from consumers.fold.columns import fold_columns
from consumers.fold.declared import adopt_schema, adopt_scope, adopt_text, adopt_topology, decode_announced
from consumers.fold.markers import fold_marker
from consumers.fold.rows import Record, fold_rows, fold_run
from consumers.fold.shards import (
    arrival_rejections,
    arrival_voids,
    is_succeeded,
    lineage_for,
    older_epoch_rejection,
    void_everything,
)
from consumers.fold.state import NAME_PREFIX, Changes, Head, Lineage, PartitionState, Rejection, Void
from stream.wire.checks import check
from stream.wire.codec import BAD_FIELD, HEADER_SIZE, SKIPPED, CodecError, decode, headers
from stream.wire.events import EVERY_TABLE
from tokens import Position, TokenError

_CATALOG_EVENTS = frozenset(
    {
        *("AllocWriteId", "TableImage", "CommitTxn", "AbortTxn", "WriteIdsReset", "NameBinding"),
        *("CatalogObject", "CatalogSet"),
    },
)
_UNFOLDED = frozenset({"BeforeImages", "KeylessRow", "SourceState"})
"""Records for publishers, or for change streams."""
_PASSED_OVER = frozenset().union(*map(headers, _UNFOLDED))
_REPEATED = frozenset({"TableSchema", "NameBinding", "Scope", "TableBackfill"})
"""Events that a publisher says again, perhaps of an epoch that is over."""


def fold_message(state: PartitionState, offset: int, value: bytes | None) -> Changes:
    """What the message at ``offset`` changes in ``state``; ``state`` is not modified."""
    changes = _fold_message(state, offset, value)
    dropped = lines_left_behind(state.head, changes)
    return changes._replace(dropped=dropped) if dropped else changes


def _fold_message(state: PartitionState, offset: int, value: bytes | None) -> Changes:
    after = offset + 1
    if value is None:
        return _poison(state, after, "not_freshet", "the message has no value", "message")
    if value[:HEADER_SIZE] in _PASSED_OVER:
        return Changes(after, {})  # not even damage of it concerns the state
    try:
        name, event = _read(state, value)
        if name == SKIPPED or name in _UNFOLDED:  # a newer one too
            return Changes(after, {})
        if name == "RowFrame":
            return fold_rows(state, after, event)
        check(name, event)
        return _fold_one(state, after, name, event)
    except CodecError as error:
        return _poison(state, after, error.code, str(error), "message")
    except (TokenError, ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return _poison(state, after, BAD_FIELD, reason, "message")


def _read(state: PartitionState, value: bytes) -> tuple[str, dict[str, Any]]:
    """Name and fields of a message, also of one that a `SchemaText` announced. Raises as `stream.wire.codec.decode`."""
    try:
        return decode(value)
    except CodecError as unknown:
        found = decode_announced(state.lookup, value) if unknown.code == "unknown_schema" else None
        if found is None:
            raise
        return found


def fold_messages(state: PartitionState, records: Sequence[Record]) -> Iterator[Changes]:
    """What ``records`` (offset, value; offsets rising) change, in order. Apply each result before asking for the next.

    Gives the same state as `fold_message` of each record. A run of frames gives one `Changes`. Records below the
    head's offset are skipped. All rejections in a `Changes` are of the last message before its ``offset``.
    """
    at, end, by_column_at = 0, len(records), 0
    while at < end:
        offset, value = records[at]
        if offset < state.head.offset:
            at += 1
            continue
        if at >= by_column_at:
            folded, by_column_at = fold_columns(state, records, at)
            if folded is not None:
                at = by_column_at
                yield folded
                continue
        if (run := fold_run(state.head, records, at, by_column_at)) is not None:
            changes, at = run
            yield changes
        else:
            at += 1
            yield fold_message(state, offset, value)


def _fold_one(state: PartitionState, after: int, name: str, event: dict[str, Any]) -> Changes:
    if name == "Marker":
        return fold_marker(state.head, after, event)
    if name == "Topology":
        topologies, voids = adopt_topology(state.head, event)
        return Changes(after, {}, voids=voids, topologies=topologies)
    if name == "SchemaText":
        return Changes(after, adopt_text(event))
    return _fold_event(state, after, name, event)


def _fold_event(state: PartitionState, after: int, name: str, event: dict[str, Any]) -> Changes:
    """Folds what has a number of its own."""
    head, shard = state.head, event["shard"]
    lineage = lineage_for(head, shard, event["epoch"])
    if lineage is None and name not in _REPEATED:
        return Changes(after, {}, rejections=(older_epoch_rejection(event),))
    if lineage is None and is_succeeded(head, shard, event["epoch"]):
        return Changes(after, {})  # nothing fences the source of a succeeded shard: it may go on to repeat itself
    moved: dict[str, Lineage] = {}
    voids: dict[tuple[str, str], Void] = {}
    rejections: tuple[Rejection, ...] = ()
    last = event["ordinal"]
    if lineage is not None:
        last = lineage.ordinal
        moved = {shard: lineage._replace(ordinal=max(last, event["ordinal"]))}
        voids, rejections = arrival_voids(head, shard, event["epoch"]), arrival_rejections(head, shard)
    if name == "EpochStart":
        return _fold_epoch_start(head, after, event, moved[shard], voids, rejections)
    if name == "TableVoid":
        return _fold_table_void(state, after, event, moved, voids)._replace(rejections=rejections)
    if name == "TableSchema":
        return Changes(after, adopt_schema(state.lookup, event), moved, voids, rejections=rejections)
    if name == "Scope":
        scopes, forgotten = adopt_scope(head, event)
        return Changes(after, {}, moved, voids | forgotten, rejections=rejections, scopes=scopes)
    if name == "TableBackfill":
        return Changes(after, {}, moved, voids, rejections=rejections, backfills=adopt_backfill(head, event))
    if name in _CATALOG_EVENTS:
        Position.parse(event["gtid"])
        changed = fold_catalog(name, event, state.lookup, head)
        return Changes(after, changed, moved, voids, rejections=rejections + changed.rejections, gone=changed.gone)
    return _poison(state, after, "unknown_event", f"the fold does not know the event {name}", "message")


def _fold_epoch_start(
    head: Head,
    after: int,
    event: dict[str, Any],
    moved: Lineage,
    voids: dict[tuple[str, str], Void],
    rejections: tuple[Rejection, ...],
) -> Changes:
    shard, epoch = event["shard"], event["epoch"]
    Position.parse(event["position"])
    before = head.lineages.get(shard)
    if before is not None and before.epoch == epoch and before.ordinal:
        return Changes(after, {})
    if before is not None:
        voids = {(EVERY_TABLE, shard): Void(epoch, event["ordinal"], event["position"])}
    return Changes(after, {}, {shard: moved._replace(low_water=event["position"])}, voids, rejections=rejections)


def _fold_table_void(
    state: PartitionState,
    after: int,
    event: dict[str, Any],
    moved: dict[str, Lineage],
    voids: dict[tuple[str, str], Void],
) -> Changes:
    scope = (event["table"], event["shard"])
    Position.parse(event["position"])
    before = state.head.voids.get(scope)
    if before is None or (event["epoch"], event["ordinal"]) > before[:2]:
        voids[scope] = Void(event["epoch"], event["ordinal"], event["position"])
    place = (event["shard"], event["epoch"], event["ordinal"])
    entries = void_catalog(event["table"], state.lookup, NAME_PREFIX, place)
    return Changes(after, entries, moved, voids)


def _poison(state: PartitionState, after: int, code: str, reason: str, place: str) -> Changes:
    """Rejects an unreadable message. It may have changed anything, so every shard's entries so far become void."""
    return Changes(after, {}, {}, void_everything(state.head), rejections=(Rejection(code, reason, place),))
