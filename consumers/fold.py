"""The fold: what one message of the topic does to the state of its partition. A pure function.

Live consumer, Spark rebuild, simulator and offline replay call `fold_message`; so they cannot disagree. It
never raises on bad input: what cannot be read is returned as a dead letter together with a void of what it may
have touched, and the stream goes on.

Order. Within a lineage (shard, epoch) the ordinal decides. A later epoch of the same shard is newer. An entry
of another shard cannot be ordered, unless both carry a coordinate of the same origin: VOID with the event's
token, the safe answer of seed 001.
"""

from __future__ import annotations

from typing import Any

from consumers.catalog_fold import fold_catalog, void_catalog
from consumers.entry import ABSENT, HEAD, VALUE, VOID, decode_entry, encode_transaction_tag
from consumers.state import EVERY_TABLE, NAME_PREFIX, Changes, DeadLetter, Head, Lineage, PartitionState, Void, schema_key
from stream.codec import CodecError, decode, encode
from tokens import Order, Position, TokenError

_pack_head = HEAD.pack
_CATALOG_EVENTS = frozenset(
    {"AllocWriteId", "TableImage", "CommitTxn", "AbortTxn", "WriteIdsReset", "NameBinding"},
)
_ROW_KINDS = (VALUE, ABSENT, VOID)


def fold_message(state: PartitionState, offset: int, value: bytes | None) -> Changes:
    """What the message at ``offset`` changes in ``state``, which is left as it is."""
    after = offset + 1
    if value is None:
        return _poison(state, after, "not_freshet", "the message has no value", "message")
    try:
        name, event = decode(value)
        if name == "RowFrame":
            return _fold_rows(state, after, event)
        return _fold_one(state, after, name, event)
    except CodecError as error:
        return _poison(state, after, error.code, str(error), "message")
    except (TokenError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        return _poison(state, after, "bad_event", f"{type(error).__name__}: {error}", "message")


def _fold_one(state: PartitionState, after: int, name: str, event: dict[str, Any]) -> Changes:
    if name == "Marker":
        return _fold_marker(state.head, after, event)
    if name == "SourceState":
        return Changes(after, {})
    lineage = _lineage_for(state.head, event["shard"], event["epoch"])
    if lineage is None:
        return Changes(after, {}, dead=(_older_epoch(event),))
    if name == "EpochStart":
        return _fold_epoch_start(state.head, after, event, lineage)
    ordinal = event["ordinal"]
    moved = {event["shard"]: lineage._replace(ordinal=max(lineage.ordinal, ordinal))}
    voids = _epoch_voids(state.head, event["shard"], event["epoch"])
    if name == "TableVoid":
        return _fold_table_void(state, after, event, moved, voids)
    if name == "TableSchema":
        key = schema_key(event["table"])
        entries = {} if ordinal <= lineage.ordinal else {key: encode("TableSchema", event)}
        return Changes(after, entries, moved, voids)
    if name in _CATALOG_EVENTS:
        changed = fold_catalog(name, event, state.lookup)
        return Changes(after, changed, moved, voids)
    return _poison(state, after, "unknown_event", f"no fold for {name}", "message")


def _older_epoch(event: dict[str, Any]) -> DeadLetter:
    shard, epoch = event["shard"], event["epoch"]
    return DeadLetter("older_epoch", f"epoch {epoch} of shard {shard} is over; a newer one has begun", f"shard {shard}")


def _lineage_for(head: Head, shard: str, epoch: int) -> Lineage | None:
    """The lineage that an event of (shard, epoch) continues; a fresh one for a new epoch; None for an old one."""
    lineage = head.lineages.get(shard)
    if lineage is None or epoch > lineage.epoch:
        return Lineage(epoch, 0, 0, "", 0, "")
    return lineage if epoch == lineage.epoch else None


def _epoch_voids(head: Head, shard: str, epoch: int) -> dict[tuple[str, str], Void]:
    """A new epoch that was not announced still voids the one before it."""
    lineage = head.lineages.get(shard)
    if lineage is None or epoch <= lineage.epoch:
        return {}
    return {(EVERY_TABLE, shard): Void(epoch, 0, "")}


def _fold_rows(state: PartitionState, after: int, frame: dict[str, Any]) -> Changes:
    shard, epoch, base = frame["shard"], frame["epoch"], frame["ordinal"]
    keys, images, operations = frame["keys"], frame["images"], frame["operations"]
    ordinals, sizes, gtids = frame["ordinals"], frame["transactions"], frame["gtids"]
    positions, stamps, origins = frame["positions"] or gtids, frame["timestamps"], frame["origins"]
    rows = len(keys)
    if not (
        rows == len(images) == len(operations) == len(ordinals) == sum(sizes)
        and len(sizes) == len(gtids) == len(positions) == len(stamps)
        and (not origins or len(origins) == len(sizes))
        and rows
    ):
        return _poison(state, after, "bad_frame", "the frame's columns differ in length", f"shard {shard}")
    head = state.head
    lineage = _lineage_for(head, shard, epoch)
    if lineage is None:
        return Changes(after, {}, dead=(_older_epoch(frame),))
    entries: dict[bytes, bytes] = {}
    suspects: list[int] = []
    last = lineage.ordinal
    row = 0
    for transaction, size in enumerate(sizes):
        tag = encode_transaction_tag(
            shard, epoch, positions[transaction], stamps[transaction], origins[transaction] if origins else ""
        )
        for row in range(row, row + size):  # noqa: B020, PLW2901 - one running index over all transactions
            ordinal = base + ordinals[row]
            key = keys[row]
            operation = operations[row]
            if ordinal <= last or operation not in _ROW_KINDS or b"\0" not in key or key[0] < 2:
                suspects.append(row)
                continue
            last = ordinal
            entries[key] = _pack_head(operation, ordinal) + tag + (images[row] if operation == VALUE else b"")
        row += 1  # noqa: PLW2901
    moved = {shard: Lineage(lineage[0], last, *lineage[2:])}
    voids = _epoch_voids(head, shard, epoch)
    dead: tuple[DeadLetter, ...] = ()
    if suspects or (len(head.lineages) > 1 or shard not in head.lineages):
        entries, more_voids, dead = _fold_rows_by_key(state, frame, positions, lineage, entries, suspects)
        voids |= more_voids
    return Changes(after, entries, moved, voids, dead=dead)


def _fold_rows_by_key(
    state: PartitionState,
    frame: dict[str, Any],
    positions: list[str],
    lineage: Lineage,
    accepted: dict[bytes, bytes],
    suspects: list[int],
) -> tuple[dict[bytes, bytes], dict[tuple[str, str], Void], tuple[DeadLetter, ...]]:
    """The general case: each event is compared with the entry that its key has.

    ``accepted`` rows rise above their own lineage, so only entries of other shards can be in their way;
    ``suspects`` are duplicates, events out of order, and rows that can't be read.
    """
    shard, epoch = frame["shard"], frame["epoch"]
    entries: dict[bytes, bytes] = {}
    voids: dict[tuple[str, str], Void] = {}
    dead: list[DeadLetter] = []
    for key, value in accepted.items():
        settled = _settle(state.lookup(key), value)
        if settled is not None:
            entries[key] = settled
    for row in suspects:
        key, operation = frame["keys"][row], frame["operations"][row]
        table, separator, _ = key.partition(b"\0")
        ordinal = frame["ordinal"] + frame["ordinals"][row]
        if not separator or not table or key[0] < 2:
            dead.append(DeadLetter("bad_key", f"row {row} has no table in its key", f"ordinal {ordinal}"))
            voids[EVERY_TABLE, shard] = Void(epoch, max(lineage.ordinal, ordinal), "")
            continue
        if operation not in _ROW_KINDS:
            dead.append(DeadLetter("bad_operation", f"row {row} has operation {operation}", f"key {key!r}"))
            operation = VOID
        transaction = _transaction_of(frame["transactions"], row)
        origin = frame["origins"][transaction] if frame["origins"] else ""
        tag = encode_transaction_tag(shard, epoch, positions[transaction], frame["timestamps"][transaction], origin)
        image = frame["images"][row] if operation == VALUE else b""
        settled = _settle(entries.get(key) or accepted.get(key) or state.lookup(key), _pack_head(operation, ordinal) + tag + image)
        if settled is not None:
            entries[key] = settled
    return entries, voids, tuple(dead)


def _transaction_of(sizes: list[int], row: int) -> int:
    for transaction, size in enumerate(sizes):
        if row < size:
            return transaction
        row -= size
    raise IndexError(row)


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
    return HEAD.pack(VOID, new.ordinal) + encode_transaction_tag(
        new.shard, new.epoch, new.position, new.timestamp, new.origin
    )


def _order_by_origin(new: Any, old: Any) -> Order:
    """Order by a coordinate of a shard that both know: its own position, or the origin's."""
    for_new = _coordinates(new)
    for shard, position in _coordinates(old).items():
        if shard in for_new:
            return Position.parse(for_new[shard]).order(Position.parse(position))
    return Order.UNKNOWN


def _coordinates(entry: Any) -> dict[str, str]:
    coordinates = {entry.shard: entry.position}
    if entry.origin:
        shard, _, position = entry.origin.partition(" ")
        coordinates[shard] = position
    return coordinates


def _fold_marker(head: Head, after: int, marker: dict[str, Any]) -> Changes:
    shard, epoch, ordinal, position = marker["shard"], marker["epoch"], marker["ordinal"], marker["position"]
    Position.parse(position)
    if head.layout and marker["layout"] != head.layout:
        reason = f"layout {marker['layout']} differs from the topic's {head.layout}"
        return Changes(after, {}, dead=(DeadLetter("layout_changed", reason, f"shard {shard}"),))
    lineage = _lineage_for(head, shard, epoch)
    if lineage is None:
        return Changes(after, {}, dead=(_older_epoch(marker),))
    if ordinal < lineage.watermark_ordinal:
        return Changes(after, {})
    voids = _epoch_voids(head, shard, epoch)
    if marker["whole"]:
        for scope, void in head.voids.items():
            if scope[1] == shard and void.epoch == epoch and not void.floor:
                voids[scope] = void._replace(floor=position)
    moved = Lineage(epoch, max(lineage.ordinal, ordinal), ordinal, position, marker["timestamp"], marker["low_water"])
    return Changes(after, {}, {shard: moved}, voids, marker["layout"])


def _fold_epoch_start(head: Head, after: int, event: dict[str, Any], lineage: Lineage) -> Changes:
    shard, epoch = event["shard"], event["epoch"]
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
    entries = void_catalog(event["table"], state.lookup, NAME_PREFIX)
    return Changes(after, entries, moved, voids)


def _poison(state: PartitionState, after: int, code: str, reason: str, place: str) -> Changes:
    """Nobody knows what the message would have changed: every shard's entries so far are void."""
    voids = {
        (EVERY_TABLE, shard): Void(lineage.epoch, lineage.ordinal, "") for shard, lineage in state.head.lineages.items()
    }
    return Changes(after, {}, {}, voids, dead=(DeadLetter(code, reason, place),))
