"""The fold of catalog events: how one event changes the state of tables and names. Pure; called by `fold.messages`.

Rules (docs/concepts/catalog.md):

- After a write the entry is not servable until its image has arrived and its writer has ended.
- A COMMIT removes ids from the open ones. It never revives an image older than the last write event.
- If the source undoes writes on ABORT they are *staged*: the committed image stays until the COMMIT.
- An event is folded into a table iff its ordinal is above the table's in the same epoch. A later epoch starts the
  table anew.
- What belongs to a table goes with it.
- Where events are lost (before the first one of a table, and after a void) any open transaction may have written it.
  A write then waits for an unknown writer too, and the server's own list, once it arrives, says whom to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from consumers.fold.catalog_state import (
    TRANSACTIONAL,
    UNKNOWN_WRITER,
    Binding,
    CatalogChanges,
    StagedImage,
    TableState,
    decode_binding,
    decode_table,
    encode_binding,
    encode_table,
    name_key,
    table_key,
)
from consumers.fold.objects import fold_object, fold_set, forget_objects
from consumers.fold.shards import is_succeeded
from consumers.fold.state import NAME_PREFIX, Head, Lookup, Rejection
from stream.wire.events import EVERY_TABLE
from tokens import Position, ValidWriteIdList

Event = dict[str, Any]


def fold_catalog(name: str, event: Event, lookup: Lookup, head: Head) -> CatalogChanges:
    """The table states and name bindings that the event ``name`` (fields as in ``schemas/``) changes.

    ``head``: before the event.

    Raises `CatalogStateError` for invalid stored bytes, `TokenError` or `ValueError` for invalid fields.
    """
    match name:
        case "AllocWriteId":
            return _fold_allocation(event, lookup, head)
        case "TableImage":
            return _fold_image(event, lookup, head)
        case "CommitTxn" | "AbortTxn":
            return _fold_end(event, lookup, head, committed=name == "CommitTxn")
        case "WriteIdsReset":
            return _fold_reset(event, lookup, head)
        case "CatalogObject":
            return fold_object(event, lookup, head)
        case "CatalogSet":
            return fold_set(event, lookup, head)
        case "NameBinding":
            return _fold_binding(event, lookup, head)
    raise ValueError(f"{name} is not a catalog event")


def void_catalog(
    table: str, lookup: Lookup, name_prefix: bytes = NAME_PREFIX, at: tuple[str, int, int] | None = None
) -> dict[bytes, bytes]:
    """Makes the image of ``table`` (``db.table``) unservable until a new one arrives; returns the changed entry.

    ``at`` is the void's (shard, epoch, ordinal), so that a duplicate of it changes nothing. A void of ``*`` changes no
    entry: readers check it (`consumers.owner.tables.why_unservable`).
    """
    bound = lookup(name_prefix + table.encode())
    table_id = decode_binding(bound).table_id if bound is not None else 0
    value = lookup(table_key(table_id)) if table_id else None
    if value is None:
        return {}
    state = decode_table(value)
    if at is not None:
        shard, epoch, ordinal = at
        if state.shard != shard or (epoch, ordinal) <= (state.epoch, state.ordinal):
            return {}
        if epoch == state.epoch:
            state.ordinal = ordinal
    state.void = "voided: what happened to it could not be read"
    state.staged = []
    state.objects_void = state.ordinal
    state.list_ordinal = 0  # the head keeps the void under this name, and a rename would lose it
    return {table_key(table_id): encode_table(state)}


def _load(table_id: int, event: Event, lookup: Lookup, head: Head) -> TableState | None:
    """The state to fold the event into, blank for a new table or epoch; None for a duplicate or an older event."""
    if table_id < 1:
        raise ValueError(f"invalid table id {table_id}")
    value = lookup(table_key(table_id))
    blank = TableState(table_id, event["shard"], event["epoch"], 0, partial=head.begin > 0)
    if value is None:
        return blank
    state = decode_table(value)
    if state.shard != event["shard"]:
        if is_succeeded(head, state.shard, state.epoch):
            return blank
        raise ValueError(f"table {table_id} is of shard {state.shard}, the event of {event['shard']}")
    if event["epoch"] > state.epoch:
        return blank
    return state if (event["epoch"], event["ordinal"]) > (state.epoch, state.ordinal) else None


def _load_known(table_id: int, event: Event, lookup: Lookup, head: Head) -> TableState | None:
    """As `_load`, but None unless this partition holds the table in the event's epoch."""
    value = lookup(table_key(table_id)) if table_id > 0 else None
    if value is None or decode_table(value).epoch != event["epoch"]:
        return None
    return _load(table_id, event, lookup, head)


def _changed(state: TableState, event: Event) -> CatalogChanges:
    state.ordinal = event["ordinal"]
    return CatalogChanges({table_key(state.table_id): encode_table(state)})


def _fold_allocation(event: Event, lookup: Lookup, head: Head) -> CatalogChanges:
    state = _load(event["table_id"], event, lookup, head)
    if state is None or state.is_dropped:
        return CatalogChanges()
    if event["write_id"] < 1:
        raise ValueError(f"invalid write id {event['write_id']}")
    txn, write_id = event["txn"], event["write_id"]
    state.ids.allocate(txn, write_id, reallocated=event["reallocated"])
    # A list does not tell who holds an id. The transaction's end may name another one, if it gets that instead.
    state.pending = sorted({(txn, write_id) if pair == (0, write_id) else pair for pair in state.pending})
    return _changed(state, event)


def _fold_image(event: Event, lookup: Lookup, head: Head) -> CatalogChanges:
    state = _load(event["table_id"], event, lookup, head)
    change = event["change"]
    if state is None or (state.is_dropped and change != "created"):
        return CatalogChanges()
    if change == "dropped":
        changes = _changed(_drop(state, event), event)
        changes.gone = forget_objects(state.table_id, lookup)
        return changes
    if change == "image":
        _take_image(state, event, head)
    elif change == "written" and event["staged"] and event["txn"]:
        _stage(state, event)
    elif change in ("created", "written"):
        _take_write(state, event, head)
    else:
        raise ValueError(f"invalid change {change!r} of table {state.table_id}")
    if state.partial:
        state.partial = not (change == "created" or _is_whole_now(state, event, head))
    return _changed(state, event)


def _drop(state: TableState, event: Event) -> TableState:
    return TableState(
        state.table_id, state.shard, state.epoch, 0, name=event["name"], kind=event["kind"], created=event["ordinal"]
    )


def _is_whole_now(state: TableState, event: Event, head: Head) -> bool:
    """Whether the event makes up for what was before this state began.

    Its image must be from after all of that, and no writer of then may be open: what it staged would be lost.
    """
    low_water = head.lineages[state.shard].low_water if state.shard in head.lineages else ""
    if not low_water or state.image is None or state.image_ordinal != event["ordinal"]:
        return False
    if not Position.parse(state.lo).at_or_past(Position.parse(low_water)):
        return False
    if state.kind != TRANSACTIONAL:
        return True
    return event["write_ids"] is not None and all(holder for _, holder in state.ids.open)


def _mark_existing(state: TableState, event: Event) -> None:
    if not state.exists or event["change"] == "created":
        state.exists, state.created = True, event["ordinal"]
        state.objects_void = event["ordinal"]
    if event["change"] == "created":
        state.list_ordinal = event["ordinal"]
    state.name, state.kind = event["name"], event["kind"]


def _replace_list(state: TableState, event: Event, committed: bool | None = None) -> None:
    """Takes the server's own list if the event has one. Writers that it does not show as open have ended.

    It says nothing of ids above its high-water mark: it is older than they are, or collapsed to its lowest exception.
    """
    if event["write_ids"] is None:
        return
    found = ValidWriteIdList.parse(event["write_ids"])
    state.list_ordinal = event["ordinal"]
    state.ids.replace(found.hwm, found.open_ids, found.aborted_ids, committed=committed)
    still_open = {write_id for write_id, _ in state.ids.open}
    waits_for_anyone = UNKNOWN_WRITER in state.pending
    pending = {pair for pair in state.pending if pair[1] in still_open or pair[1] > found.hwm}
    if waits_for_anyone:  # the list has its id, if it is open
        pending |= {(txn, write_id) for write_id, txn in state.ids.open if not txn}
    state.pending = sorted(pending)
    state.staged = [each for each in state.staged if state.ids.held_by(each.txn)]


def _take_list(state: TableState, event: Event, head: Head) -> None:
    """As `_replace_list`. After a loss of events whoever holds an open id may have written the table: it is awaited."""
    is_lost = _list_has_gaps(state, head)
    _replace_list(state, event)
    if is_lost and event["write_ids"] is not None:
        state.pending = sorted({*state.pending, *_writers(state, 0, 0)})


def _set_image(state: TableState, image: bytes | None, struct: bytes | None, lo: str, hi: str, ordinal: int) -> None:
    Position.parse(lo), Position.parse(hi)
    state.struct = struct
    state.image, state.lo, state.hi, state.image_ordinal = image, lo, hi, ordinal
    state.void = ""


def _take_image(state: TableState, event: Event, head: Head) -> None:
    """Takes a fetched image, unless it was read before the last write event."""
    lo, hi = event["lo"] or event["gtid"], event["hi"] or event["gtid"]
    if state.write_position and not Position.parse(lo).at_or_past(Position.parse(state.write_position)):
        return
    _mark_existing(state, event)
    _take_list(state, event, head)
    if state.kind != TRANSACTIONAL:
        state.pending = []  # an event that did not tell the table's kind may have left some
    if event["image"] is not None:
        _set_image(state, event["image"], event["struct"], lo, hi, event["ordinal"])


def _take_write(state: TableState, event: Event, head: Head) -> None:
    """Takes a write that the source never undoes: it counts even if the writer aborts."""
    _mark_existing(state, event)
    _take_list(state, event, head)
    state.write_ordinal, state.write_position = event["ordinal"], event["gtid"]
    writers: set[tuple[int, int]] = set()  # a table without a list has none, whatever ids its name has from another one
    if state.kind == TRANSACTIONAL:
        writers = {*state.pending, *_writers(state, event["txn"], event["write_id"])}
        if _list_has_gaps(state, head):
            writers |= {UNKNOWN_WRITER, *_writers(state, 0, 0)}
        elif not event["write_id"] and not state.ids.known:
            writers.add(UNKNOWN_WRITER)
    state.pending = sorted(writers)
    if event["image"] is not None:
        lo, hi = event["lo"] or event["gtid"], event["hi"] or event["gtid"]
        _set_image(state, event["image"], event["struct"], lo, hi, event["ordinal"])


def _writers(state: TableState, txn: int, write_id: int) -> Iterable[tuple[int, int]]:
    """(transaction, write id) of the writers whose end the entry must wait for.

    A write that names no transaction may be by any transaction with an open id on the table. An open id of an unknown
    transaction (0) may belong to any.
    """
    if write_id:
        if write_id > state.ids.hwm:
            state.ids.allocate(txn, write_id)
        if write_id > state.ids.hwm:  # too far above what is known, and so is who holds the ids between
            return ((txn, write_id),)
        holder = state.ids.transaction_of(write_id)
        return () if holder is None else ((txn or holder, write_id),)
    if txn:
        return tuple((holder, each) for each, holder in state.ids.open if holder in (txn, 0))
    return tuple((holder, each) for each, holder in state.ids.open)


def _list_has_gaps(state: TableState, head: Head) -> bool:
    """Whether an ALLOC may have been lost: no CREATE or server's list was folded, or a void followed it."""
    if not state.list_ordinal:
        return True
    found = (head.voids.get((scope, state.shard)) for scope in (EVERY_TABLE, state.name))
    return any(void is not None and void.epoch == state.epoch and void.ordinal >= state.list_ordinal for void in found)


def _stage(state: TableState, event: Event) -> None:
    """Stages a write that an ABORT would undo. A transaction's last staged write counts."""
    txn, write_id = event["txn"], event["write_id"]
    if not state.exists:
        _mark_existing(state, event)
        state.write_ordinal, state.write_position = event["ordinal"], event["gtid"]
    if write_id > state.ids.hwm:
        state.ids.allocate(txn, write_id)
    staged = [each for each in state.staged if each.txn != txn]
    staged.append(StagedImage(txn, event["ordinal"], event["image"], event["struct"]))
    state.staged = sorted(staged, key=lambda each: each.txn)


def _fold_end(event: Event, lookup: Lookup, head: Head, *, committed: bool) -> CatalogChanges:
    changes = CatalogChanges()
    by_table: dict[int, list[int]] = {}
    for pair in event["write_ids"]:
        by_table.setdefault(pair["table_id"], []).append(pair["write_id"])
    for table_id, write_ids in by_table.items():
        state = _load_known(table_id, event, lookup, head)
        if state is None or state.is_dropped:
            continue
        refused = _end_in_table(state, event, head, write_ids, committed=committed)
        if refused:
            changes.rejections = (*changes.rejections, Rejection("commit_of_aborted", refused, f"table {table_id}"))
        changes.update(_changed(state, event))
    return changes


def _end_in_table(state: TableState, event: Event, head: Head, write_ids: list[int], *, committed: bool) -> str:
    """Ends a transaction in one table. If the COMMIT contradicts the list, voids the list and returns the reason."""
    refused = ""
    for write_id in write_ids:
        if not committed:
            state.ids.abort(write_id)
        elif not state.ids.commit(write_id):
            refused = f"COMMIT of transaction {event['txn']} names write id {write_id}, which is aborted"
    txn = event["txn"]
    ended = {pair for pair in state.pending if pair[0] == txn or pair[1] in write_ids} - {UNKNOWN_WRITER}
    state.pending = [pair for pair in state.pending if pair not in ended]
    staged = state.staged_by(txn)
    if staged is not None:
        state.staged = [each for each in state.staged if each.txn != txn]
        if committed:
            _promote(state, staged, event)
    elif committed and state.kind == TRANSACTIONAL and _list_has_gaps(state, head):
        _await_image(state, event)  # what it staged may be lost
    if refused:
        state.ids.known = False
        state.void = refused
    return refused


def _promote(state: TableState, staged: StagedImage, event: Event) -> None:
    """Makes the staged image the committed one. It keeps the write's ordinal, so that a later write supersedes it."""
    if staged.image is None:
        _await_image(state, event)
    else:
        _set_image(state, staged.image, staged.struct, event["gtid"], event["gtid"], staged.ordinal)


def _await_image(state: TableState, event: Event) -> None:
    """It is unknown which image counts: only one that is read from here on does."""
    state.write_ordinal, state.write_position = event["ordinal"], event["gtid"]


def _fold_reset(event: Event, lookup: Lookup, head: Head) -> CatalogChanges:
    state = _load(event["table_id"], event, lookup, head)
    if state is None or state.is_dropped:
        return CatalogChanges()
    # A writer that ended without an event may have staged an image. After a gap, each may have.
    writers = {each for each, _ in state.ids.open} if _list_has_gaps(state, head) else set()
    staged = {each.txn for each in state.staged}
    _replace_list(state, event, event.get("committed"))
    if not state.ids.hwm and state.pending:  # the ids begin again: no event will tell the end of those before
        state.pending = [UNKNOWN_WRITER]
    if staged - {each.txn for each in state.staged} or writers - {each for each, _ in state.ids.open}:
        _await_image(state, event)
    return _changed(state, event)


def _fold_binding(event: Event, lookup: Lookup, head: Head) -> CatalogChanges:
    changes = CatalogChanges()
    table_id, name, previous = event["table_id"], event["name"], event["previous_name"]
    bound = Binding(table_id, event["shard"], event["epoch"], event["ordinal"])
    if previous and previous != name:
        before = lookup(name_key(previous))
        # Where nothing is bound, a repeat from before the rename could still bind it.
        if before is None or decode_binding(before).table_id == table_id:
            _bind(changes, previous, Binding(0, bound.shard, bound.epoch, bound.ordinal), before)
    _bind(changes, name, bound, lookup(name_key(name)))
    state = _load_known(table_id, event, lookup, head)
    if state is not None and not state.is_dropped:
        state.name = name
        changes.update(_changed(state, event))
    return changes


def _bind(changes: CatalogChanges, name: str, bound: Binding, existing: bytes | None) -> None:
    if existing is not None:
        before = decode_binding(existing)
        if before.shard == bound.shard and (before.epoch, before.ordinal) >= (bound.epoch, bound.ordinal):
            return
    changes[name_key(name)] = encode_binding(bound)
