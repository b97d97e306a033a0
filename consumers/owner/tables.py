"""How an owner answers for a catalog table: its folded state, the decision on a demand, and the check of fills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import xxhash

from consumers.fold.catalog_state import (
    EXTERNAL,
    TRANSACTIONAL,
    UNKNOWN_WRITER,
    Binding,
    TableState,
    decode_binding,
    decode_table,
    name_key,
    table_key,
)
from consumers.fold.shards import NO_KIN, Kin, is_succeeded, kin_of, sole_lineage
from consumers.fold.state import Head, Lineage, Void
from consumers.owner.evidence import (
    ACCEPTED,
    Evidence,
    FillVerdict,
    fill_refusal,
    may_catch_up,
    refused,
    tag_of,
)
from consumers.owner.meaning import check_table_partition
from consumers.owner.overlay import OverlayFill
from consumers.owner.partitions import Partition
from consumers.owner.protocol import HISTORY_LOST, FillTable, OwnerObjects, OwnerTable
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import Layout, LayoutError
from tokens import Decision, Demand, FreshetError, Freshness, Position, ValidWriteIdList, decide
from tokens.writeids import NO_OPEN_ID

Voids = Mapping[tuple[str, str], Void]
"""As ``Head.voids``: (table or ``*``, shard) → void. Those of dropped tables stay: no read looks at all of them."""
NO_VOIDS: Final[Voids] = {}
CHANGING: Final = "the table is changing"
UNMARKED: Final = "the marker that follows the last change of the table or its list has not arrived"


class MissingWriteIds(FreshetError):
    """A demand for a transactional table has no write-id list or no table id. HTTP 400, code ``missing_write_ids``."""

    code = "missing_write_ids"


def find_table(partitions: list[Partition], name: str, table_id: int) -> tuple[int, int]:
    """Table id (as given, else as bound to ``name``) and its partition; (0, -1) if the name is not bound here.

    Names are bound in every partition. One that is behind must not hide what another knows, so the newest binding
    counts; of bindings by different shards, the first one found.
    """
    layout: Layout | None = None
    newest: Binding | None = None
    for partition in partitions:
        own = _layout_of(partition)
        if own is None:
            continue
        layout = layout or own
        value = partition.store.get(name_key(name)) if not table_id else None
        if value is None:
            continue
        found = decode_binding(value)
        if newest is None or (
            found.shard == newest.shard and (found.epoch, found.ordinal) > (newest.epoch, newest.ordinal)
        ):
            newest = found
    wanted = table_id or (newest.table_id if newest is not None else 0)
    return (wanted, layout.table_partition(wanted)) if wanted and layout is not None else (0, -1)


def find_home(partitions: list[Partition], name: str, table_id: int) -> tuple[int, int]:
    """As `find_table`, for objects: those of no table (no ``name``, id 0) have a partition too."""
    if name or table_id:
        return find_table(partitions, name, table_id)
    layout = next((found for each in partitions if (found := _layout_of(each)) is not None), None)
    return (0, layout.table_partition(0)) if layout is not None else (0, -1)


def _layout_of(partition: Partition) -> Layout | None:
    text = partition.store.visible.layout
    try:
        return Layout.parse(text) if text else None
    except LayoutError:
        return None


def bound_id(partition: Partition, name: str) -> int:
    """The table id that ``name`` is bound to in this partition, 0 if it is not bound."""
    value = partition.store.get(name_key(name))
    return decode_binding(value).table_id if value is not None else 0


def no_table(partition: int, table_id: int, why: str, *, elsewhere: bool = False) -> OwnerTable:
    """The answer if this process has no state of the table."""
    found = _undecided(table_id, "", None, b"")
    found.partition, found.why, found.elsewhere, found.needs_source = partition, why, elsewhere, not elsewhere
    return found


def _undecided(table_id: int, shard: str, lineage: Lineage | None, stamp: bytes) -> OwnerTable:
    """An answer without image, position or decision."""
    return OwnerTable(
        id=0,
        table_id=table_id,
        partition=-1,
        image=None,
        write_ids="",
        freshness=Freshness.UNKNOWN.value,
        why="",
        served=False,
        needs_source=True,
        shard=shard if lineage else "",  # as in `consumers.owner.rows.view_row`
        epoch=lineage.epoch if lineage else 0,
        lo="",
        hi="",
        watermark=lineage.watermark if lineage else "",
        low_water=lineage.low_water if lineage else "",
        stamp=stamp,
        as_of_ms=lineage.as_of_ms if lineage else 0,
    )


def answer_table(
    partition: Partition, name: str, table_id: int, demand: Demand, *, as_struct: bool = False
) -> OwnerTable:
    """What is known of a catalog table, and whether it may be served for ``demand``. ``name`` "": it is asked by id.

    ``as_struct``: as in `GetTable`.

    Raises `MissingWriteIds`, `consumers.fold.catalog_state.CatalogStateError`.
    """
    store = partition.store
    head = store.visible
    bound = bound_id(partition, name) if name else table_id
    state_bytes = store.get(table_key(table_id))
    state = decode_table(state_bytes) if state_bytes is not None else None
    name = name or (state.name if state is not None and state.exists else "")
    found = view_table(head, state, table_id, _stamp(partition, state_bytes, head))
    found.partition, found.kin = partition.number, kin_of(head, found.shard).heard(partition.ready)
    shown = list_position(partition, head, state)
    if shown is None:
        await_marker(found, CHANGING if state is not None and is_ahead(head, state) else UNMARKED)
    else:
        answer_from_state(found, state, demand, head.voids, found.kin)
        found.hi = shown or found.hi
    if not found.served:
        fill = partition.overlay.get(table_key(table_id), found.stamp, found.low_water)
        if fill is not None and fill.table is not None and bound_id(partition, fill.table.name) == table_id:
            answer_from_fill(found, fill.table, demand, found.kin)
    elif state is not None and is_ahead(head, state):
        found.served, found.image, found.needs_source = False, None, True
        found.freshness, found.why = Freshness.UNKNOWN.value, CHANGING
    found.name = name
    current_name = state.name if state is not None and state.exists else name
    if found.served and (current_name != name or bound != table_id):
        found.served, found.needs_source, found.image = False, False, None
        found.freshness = Freshness.STALE.value
        found.why = f"{name} is bound to table id {bound or '(none)'} here, not to {table_id}"
    if as_struct:
        found.struct = state.struct if found.served and state is not None and not found.filled else None
        found.image = None
    return found


def list_position(partition: Partition, head: Head, state: TableState | None) -> str | None:
    """A position after which nothing is that the folded list shows: the session takes it away with the list.

    An image's own position tells nothing of a COMMIT that followed it. "": there is no list. None: no marker has
    followed the table's last event, and no position of that is known (docs/decisions/0198).
    """
    if state is None or state.kind != TRANSACTIONAL or (lineage := head.lineages.get(state.shard)) is None:
        return ""
    if state.epoch != lineage.epoch:
        return ""
    partition.marks.note(state.shard, lineage)
    if state.ordinal > lineage.watermark_ordinal:
        return None
    return partition.marks.first_past(state.shard, state.epoch, state.ordinal) or lineage.watermark


def await_marker(found: OwnerTable | OwnerObjects, why: str) -> None:
    """Makes ``found`` wait for a marker: the last one is before what the list shows."""
    found.why, found.needs_source = why, False
    found.watermark, found.as_of_ms = "", 0


def is_ahead(head: Head, state: TableState) -> bool:
    """Whether the state is newer than ``head``, which was read before it: a void between them would not be seen."""
    lineage = head.lineages.get(state.shard)
    return lineage is None or (state.epoch, state.ordinal) > (lineage.epoch, lineage.ordinal)


def view_table(head: Head, state: TableState | None, table_id: int, stamp: bytes) -> OwnerTable:
    """The answer for a table before its state is judged: shard, epoch, watermark and low-water."""
    shard, lineage = _lineage_of(head, state)
    found = _undecided(table_id, shard, lineage, stamp)
    place = (lineage.epoch, lineage.watermark_ordinal) if lineage is not None else (0, 0)
    if state is not None and (state.epoch, state.image_ordinal) > place:
        # a marker says nothing of what follows it; see `consumers.owner.rows.view_row`
        found.watermark, found.as_of_ms = "", 0
    return found


def _lineage_of(head: Head, state: TableState | None) -> tuple[str, Lineage | None]:
    """The shard that the table belongs to now, and its lineage."""
    if state is None or is_succeeded(head, state.shard, state.epoch):
        return sole_lineage(head)
    return state.shard, head.lineages.get(state.shard)


def answer_from_state(
    found: OwnerTable, state: TableState | None, demand: Demand, voids: Voids = NO_VOIDS, kin: Kin = NO_KIN
) -> None:
    """Writes the folded state's answer to ``demand`` into ``found``. Raises `MissingWriteIds`."""
    if state is None:
        found.why = "no event of this table has been folded"
        return
    if state.epoch != found.epoch or state.shard != found.shard:
        found.why = f"folded from {state.shard} epoch {state.epoch}, the shard is {found.shard} epoch {found.epoch}"
        return
    found.lo, found.hi = state.lo, state.hi
    found.write_ids = list_text_of(state)
    found.why = why_unservable(state, voids) or why_converted(state.kind, demand)
    if not found.why:  # else its kind may not be known either, and the source's answer is judged
        listed = list_of(state)
        decision = decide_table(found, state.kind, listed, state.table_id, demand, kin)
        if state.exists:
            require_write_ids(state.name, state.kind, demand, decision)
        _write_decision(found, decision, state.image)


def answer_from_fill(found: OwnerTable, fill: FillTable, demand: Demand, kin: Kin = NO_KIN) -> None:
    """Writes the answer of a fill in the overlay into ``found``. Raises `MissingWriteIds`."""
    found.lo, found.hi, found.write_ids, found.filled = fill.lo, fill.hi, fill.write_ids, True
    found.why = why_converted(fill.kind, demand)
    if found.why:
        return
    decision = decide_answer(found, fill.name, fill.kind, fill.write_ids, fill.table_id, demand, kin)
    _write_decision(found, decision, fill.image)


def decide_answer(
    evidence: Evidence, name: str, kind: str, write_ids: str, table_id: int, demand: Demand, kin: Kin = NO_KIN
) -> Decision:
    """The decision on a source's answer, fresh or kept as a fill. Raises `MissingWriteIds`."""
    listed = ValidWriteIdList.parse(write_ids) if kind == TRANSACTIONAL and write_ids else None
    decision = decide_table(evidence, kind, listed, table_id, demand, kin)
    require_write_ids(name, kind, demand, decision)
    return decision


def decide_table(
    evidence: Evidence,
    kind: str,
    listed: ValidWriteIdList | None,
    table_id: int,
    demand: Demand,
    kin: Kin = NO_KIN,
) -> Decision:
    """The decision on an image that ``listed`` describes. For an external table the demand's list is ignored."""
    if kind != TRANSACTIONAL and demand.write_ids is not None:
        demand = replace(demand, write_ids=None)
    return decide(demand, tag_of(evidence, listed, table_id, kin))


def _write_decision(found: OwnerTable, decision: Decision, image: bytes | None) -> None:
    found.freshness, found.why = decision.freshness.value, decision.why
    found.served = decision.may_be_served
    found.image = image if found.served else None
    found.needs_source = not found.served and not may_catch_up(decision, found.watermark)
    found.code = HISTORY_LOST if decision.history_lost else ""


def require_write_ids(name: str, kind: str, demand: Demand, decision: Decision) -> None:
    """Raises `MissingWriteIds` if a demand that a transactional table would meet lacks the list or the id (0).

    What has not reached the demand may be of before the table was converted, or another one: then nothing is missing.
    """
    if kind != TRANSACTIONAL or not decision.may_be_served or (demand.write_ids is not None and demand.table_id):
        return
    missing = "valid_write_ids" if demand.write_ids is None else "table_id"
    raise MissingWriteIds(
        f"{name} is transactional, and the request has no {missing}",
        hint="send valid_write_ids and table_id as fetched at the start of the transaction",
    )


def why_unservable(state: TableState, voids: Voids = NO_VOIDS) -> str:
    """Why the folded image may not be served for any demand; "" if it may."""
    why = state.waits_for()
    if why:
        return why
    for void in _voids_of(voids, state.name, state.shard):
        if (state.epoch, state.image_ordinal) <= (void.epoch, void.ordinal):
            return f"voided at ordinal {void.ordinal} of epoch {void.epoch}"
    return ""


def why_converted(kind: str, demand: Demand) -> str:
    """Why an entry without a list may not be served to a demand with one; "" if it may.

    Whose list has write ids knows that the table has them: it was converted, and the entry may be from before that.
    """
    if kind == TRANSACTIONAL or demand.write_ids is None or not demand.write_ids.hwm:
        return ""
    return "the request's list has write ids, and the table has none here: it may have been converted"


def _voids_of(voids: Voids, name: str, shard: str) -> Iterable[Void]:
    return [void for scope in sorted({EVERY_TABLE, name}) if (void := voids.get((scope, shard))) is not None]


def list_text_of(state: TableState) -> str:
    """The folded list as a server prints it; "" if there is none, or it is unknown."""
    return state.ids.text(state.name) if state.kind == TRANSACTIONAL and state.ids.known else ""


def list_of(state: TableState) -> ValidWriteIdList | None:
    """The list that the folded state is good for; None if there is none, or it is unknown."""
    if state.kind != TRANSACTIONAL or not state.ids.known:
        return None
    ids = state.ids
    return ValidWriteIdList(state.name, ids.hwm, (write_id for write_id, _ in ids.open), ids.aborted)


def fill_table(partition: Partition, request: FillTable) -> FillVerdict:
    """As `consumers.owner.rows.fill_row`, for a catalog table."""
    store = partition.store
    head = store.visible
    check_table_partition(head, partition.number, request.table_id)
    key = table_key(request.table_id)
    state_bytes = store.get(key)
    if _stamp(partition, state_bytes, head) != request.stamp:
        return refused("the table changed since it was read")
    state = decode_table(state_bytes) if state_bytes is not None else None
    shard, lineage = _lineage_of(head, state)
    if lineage is None:
        return refused("the table's shard is unknown here")
    if bound_id(partition, request.name) != request.table_id:
        return refused(f"{request.name} is not bound to table id {request.table_id} here")
    Position.parse(request.hi)
    verdict = judge_table_fill(state, request, shard, lineage, head.voids)
    if not verdict.accepted:
        return verdict
    low_water = lineage.low_water
    fill = OverlayFill(request.image, request.lo, request.hi, 0, request.stamp, low_water, request)
    if not partition.overlay.put(key, fill):
        return refused("the value is larger than the overlay")
    return verdict


def judge_table_fill(
    state: TableState | None, fill: FillTable, shard: str, lineage: Lineage, voids: Voids = NO_VOIDS
) -> FillVerdict:
    """Whether the source's answer may be kept beside this state. Raises `tokens.TokenError`.

    Over a servable image only if the fill's own list has ids that the folded one lacks: a server may have got them
    without an event, and then no event would make the entry servable. Never from before the last write event. Only if
    its list shows that no pending writer is open, or none at all, and no later write, where not all of them are known.
    """
    lo = Position.parse(fill.lo)
    refusal = fill_refusal(lo, lineage, _voids_of(voids, fill.name, shard))
    if refusal:
        return refused(refusal)
    if state is not None and (state.shard, state.epoch) != (shard, lineage.epoch):
        state = None
    is_later = not lo.at_or_past(_last_write(fill))  # written after the list was fetched: by whom, it can't say
    has_writers = fill.kind == TRANSACTIONAL and (is_later or _may_be_open([UNKNOWN_WRITER], fill.write_ids))
    if has_writers and not _are_writers_known(state, fill, lineage, voids):
        return refused("a write id may be open, and what its transaction has written by then is not known here")
    return ACCEPTED if state is None else _judge_over_state(state, fill, lo, why_unservable(state, voids))


def _judge_over_state(state: TableState, fill: FillTable, lo: Position, unservable: str) -> FillVerdict:
    if state.table_id != fill.table_id:
        return refused(f"the answer is of table id {fill.table_id}, the entry is of {state.table_id}")
    if state.created and not state.exists:
        return refused("the table was dropped")
    if state.pending and _may_be_open(state.pending, fill.write_ids):
        return refused(state.waits_for())
    if state.exists and state.name != fill.name:
        return refused(f"the answer is of {fill.name}, the table is called {state.name} here")
    if not unservable and (state.ids.known or state.kind == EXTERNAL) and not _has_more_ids(state, fill, lo):
        return refused("the stream already has an image")
    if state.write_position and not lo.at_or_past(Position.parse(state.write_position)):
        return refused(f"{fill.lo} is below the last write, {state.write_position}")
    return ACCEPTED


def _are_writers_known(state: TableState | None, fill: FillTable, lineage: Lineage, voids: Voids) -> bool:
    """Whether every write that the fill may show, and whose transaction may be open, has been folded."""
    if state is None or not (state.list_ordinal and lineage.watermark):
        return False
    place = state.epoch, state.list_ordinal
    was_lost = any((void.epoch, void.ordinal) >= place for void in _voids_of(voids, state.name, state.shard))
    return not was_lost and Position.parse(lineage.watermark).at_or_past(_last_write(fill))


def _last_write(fill: FillTable) -> Position:
    """No write that the fill shows is later. What a session takes away with it may be: its list's COMMIT."""
    return Position.parse(fill.written or fill.hi)


def _has_more_ids(state: TableState, fill: FillTable, lo: Position) -> bool:
    """Whether the server, asked since the folded image was read, lists ids as valid that the folded list lacks."""
    listed = list_of(state)
    if (
        listed is None
        or fill.kind != TRANSACTIONAL
        or not fill.write_ids
        or not lo.at_or_past(Position.parse(state.lo))
    ):
        return False
    return listed.missing(ValidWriteIdList.parse(fill.write_ids)) is not None


def _may_be_open(pending: Iterable[tuple[int, int]], fetched: str) -> bool:
    """Whether one of the writers may still be open by ``fetched``, the list fetched before the image ("": unknown)."""
    if not fetched:
        return True
    found = ValidWriteIdList.parse(fetched)
    still_open = {*found.open_ids}
    return any(
        found.min_open != NO_OPEN_ID if writer == UNKNOWN_WRITER else writer[1] > found.hwm or writer[1] in still_open
        for writer in pending
    )


def table_stamp(state_bytes: bytes | None, head: Head, voids: bytes | None = None) -> bytes:
    """A digest of what a fill of a table was made over: its folded bytes, the epochs and the voids.

    ``voids``: `_digest_of` those of ``head``, if that is known.
    """
    digest = xxhash.xxh3_128(state_bytes or b"")
    epochs = sorted((shard, lineage.epoch) for shard, lineage in head.lineages.items())
    digest.update(repr((state_bytes is None, epochs)).encode())
    digest.update(voids if voids is not None else _digest_of(head.voids))
    return digest.digest()


def _digest_of(voids: Voids) -> bytes:
    return xxhash.xxh3_128_digest(repr(sorted(voids.items())).encode())


def _stamp(partition: Partition, state_bytes: bytes | None, head: Head) -> bytes:
    """As `table_stamp`, by the digest of before while no void has come."""
    known = partition.voids_digest
    if known is None or (known[0] is not head.voids and known[0] != head.voids):
        known = head.voids, _digest_of(head.voids)
    partition.voids_digest = head.voids, known[1]
    return table_stamp(state_bytes, head, known[1])
