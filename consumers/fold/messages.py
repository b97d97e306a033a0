"""The fold: how one message of the topic changes the state of its partition. A pure function.

Live consumer, Spark rebuild, simulator and offline replay all call `fold_message` or `fold_messages`, so they cannot
disagree. The fold never raises on bad input: it returns a rejection and a void of what the message may have changed.

Order: within a lineage (shard, epoch) the ordinal decides. A later epoch of the same shard is newer. Entries of
different shards are ordered only if both carry a coordinate of the same origin. Otherwise the key becomes VOID with the
event's token, which is always safe (docs/concepts/order.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from consumers.fold.catalog import fold_catalog, void_catalog
from consumers.fold.rows import Record, epoch_voids, fold_rows, fold_singles, lineage_for, older_epoch_rejection
from consumers.fold.state import NAME_PREFIX, Changes, Head, Lineage, PartitionState, Rejection, Void, schema_key
from stream.wire.checks import check
from stream.wire.codec import BAD_FIELD, CodecError, decode, encode
from stream.wire.events import EVERY_TABLE
from tokens import Position, TokenError

_CATALOG_EVENTS = frozenset(
    {"AllocWriteId", "TableImage", "CommitTxn", "AbortTxn", "WriteIdsReset", "NameBinding"},
)


def fold_message(state: PartitionState, offset: int, value: bytes | None) -> Changes:
    """What the message at ``offset`` changes in ``state``; ``state`` is not modified."""
    after = offset + 1
    if value is None:
        return _poison(state, after, "not_freshet", "the message has no value", "message")
    try:
        name, event = decode(value)
        if name == "RowFrame":
            return fold_rows(state, after, event)
        check(name, event)
        return _fold_one(state, after, name, event)
    except CodecError as error:
        return _poison(state, after, error.code, str(error), "message")
    except (TokenError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return _poison(state, after, BAD_FIELD, reason, "message")


def fold_messages(state: PartitionState, records: Sequence[Record]) -> Iterator[Changes]:
    """What ``records`` (offset, value; offsets rising) change, in order. Apply each result before asking for the next.

    Gives the same state as `fold_message` of each record. A run of frames of one row gives one `Changes`. Records below
    the head's offset are skipped. All rejections in a `Changes` are of the last message before its ``offset``.
    """
    at, end = 0, len(records)
    while at < end:
        offset, value = records[at]
        if offset < state.head.offset:
            at += 1
        elif (run := fold_singles(state.head, records, at)) is not None:
            changes, at = run
            yield changes
        else:
            at += 1
            yield fold_message(state, offset, value)


def _fold_one(state: PartitionState, after: int, name: str, event: dict[str, Any]) -> Changes:
    if name == "Marker":
        return _fold_marker(state.head, after, event)
    if name in ("SourceState", "Topology", "SchemaText"):
        return Changes(after, {})
    lineage = lineage_for(state.head, event["shard"], event["epoch"])
    if lineage is None:
        return Changes(after, {}, rejections=(older_epoch_rejection(event),))
    if name == "EpochStart":
        return _fold_epoch_start(state.head, after, event, lineage)
    ordinal = event["ordinal"]
    moved = {event["shard"]: lineage._replace(ordinal=max(lineage.ordinal, ordinal))}
    voids = epoch_voids(state.head, event["shard"], event["epoch"])
    if name == "TableVoid":
        return _fold_table_void(state, after, event, moved, voids)
    if name == "TableSchema":
        key = schema_key(event["table"])
        entries = {} if ordinal <= lineage.ordinal else {key: encode("TableSchema", event)}
        return Changes(after, entries, moved, voids)
    if name == "Scope":
        return Changes(after, {}, moved, voids)
    if name in _CATALOG_EVENTS:
        Position.parse(event["gtid"])
        changed = fold_catalog(name, event, state.lookup, state.head.voids)
        return Changes(after, changed, moved, voids, rejections=changed.rejections)
    return _poison(state, after, "unknown_event", f"the fold does not know the event {name}", "message")


def _fold_marker(head: Head, after: int, marker: dict[str, Any]) -> Changes:
    shard, epoch, ordinal, position = marker["shard"], marker["epoch"], marker["ordinal"], marker["position"]
    Position.parse(position)
    Position.parse(marker["low_water"])
    if head.layout and marker["layout"] != head.layout:
        reason = f"layout {marker['layout']} differs from the topic's {head.layout}"
        return Changes(after, {}, rejections=(Rejection("layout_changed", reason, f"shard {shard}"),))
    lineage = lineage_for(head, shard, epoch)
    if lineage is None:
        return Changes(after, {}, rejections=(older_epoch_rejection(marker),))
    if ordinal < lineage.watermark_ordinal:
        return Changes(after, {})
    voids = epoch_voids(head, shard, epoch)
    at_boundary = marker["whole"]
    if at_boundary:
        for scope, void in head.voids.items():
            if scope[1] == shard and void.epoch == epoch and not void.floor:
                voids[scope] = void._replace(floor=position)
    moved = Lineage(epoch, max(lineage.ordinal, ordinal), ordinal, position, marker["timestamp"], marker["low_water"])
    return Changes(after, {}, {shard: moved}, voids, marker["layout"])


def _fold_epoch_start(head: Head, after: int, event: dict[str, Any], lineage: Lineage) -> Changes:
    shard, epoch = event["shard"], event["epoch"]
    Position.parse(event["position"])
    if head.lineages.get(shard) is not None and head.lineages[shard].epoch == epoch and lineage.ordinal:
        return Changes(after, {})
    moved = lineage._replace(ordinal=max(lineage.ordinal, event["ordinal"]), low_water=event["position"])
    voids = {}
    if shard in head.lineages:
        voids[EVERY_TABLE, shard] = Void(epoch, event["ordinal"], event["position"])
    return Changes(after, {}, {shard: moved}, voids)


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
    voids = {
        (EVERY_TABLE, shard): Void(lineage.epoch, lineage.ordinal, "") for shard, lineage in state.head.lineages.items()
    }
    return Changes(after, {}, {}, voids, rejections=(Rejection(code, reason, place),))
