"""What an owner's state says about a catalog table, and what may stand beside it. Pure.

The order of reads matters to the caller as for rows: watermark first, state after.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from consumers.fold.catalog_state import EXTERNAL, TRANSACTIONAL, UNHEARD, TableState, decode_table
from consumers.fold.state import EVERY_TABLE, Void
from tokens import Demand, FreshetError, Freshness, Position, Tag, ValidWriteIdList, decide
from tokens.writeids import NO_OPEN_ID

Voids = Iterable[tuple[tuple[str, str], Void]]
"""As in ``Head.voids.items()``: ((table or ``*``, shard), void)."""


class MissingWriteIds(FreshetError):
    """A transactional table was asked for without write-id list or table id: HTTP 400. Code ``missing_write_ids``."""

    code = "missing_write_ids"


class TableFill(NamedTuple):
    """A table as the source of truth answered. ``lo`` was noted before it was read, nothing in it is later than ``hi``.

    ``write_ids`` is the list fetched before the image, "" for a table that has none.
    """

    table_id: int
    name: str
    kind: str
    image: bytes
    write_ids: str
    lo: str
    hi: str


class CatalogAnswer(NamedTuple):
    """``servable``: ``image`` may be given to the reader. ``lo``, ``hi`` and ``write_ids`` are "" if not known."""

    servable: bool
    image: bytes | None
    freshness: Freshness
    why: str
    lo: str
    hi: str
    write_ids: str
    table_id: int


def read_table(
    state_bytes: bytes | None,
    demand: Demand,
    watermark: Position | None,
    shard: str,
    epoch: int,
    voids: Voids = (),
) -> CatalogAnswer:
    """Whether the folded state answers ``demand``, and why (not).

    ``watermark`` and ``epoch`` are those of ``shard`` in the partition. Raises `MissingWriteIds` for a transactional
    table if the demand lacks list or table id, `CatalogStateError` for bytes that are no state.
    """
    if state_bytes is None:
        return _unknown("no event of this table was folded", demand.table_id)
    state = decode_table(state_bytes)
    if state.epoch != epoch or state.shard != shard:
        return _unknown(f"folded from {state.shard} epoch {state.epoch}, the shard is {shard} epoch {epoch}", 0)
    if state.exists:
        require_write_ids(state.name, state.kind, demand)
    text = state.ids.text(state.name) if state.kind == TRANSACTIONAL else ""
    why = why_unservable(state, voids)
    if why:
        return CatalogAnswer(False, None, Freshness.UNKNOWN, why, state.lo, state.hi, text, state.table_id)
    tag = Tag(
        shard=shard,
        epoch=epoch,
        lo=Position.parse(state.lo),
        hi=Position.parse(state.hi),
        watermark=watermark,
        write_ids=_list_of(state),
        table_id=state.table_id,
    )
    freshness, reason = decide(_bearing(state.kind, demand), tag)
    return _answer(state.image, freshness, reason, state.lo, state.hi, text, state.table_id)


def read_fill(fill: TableFill, demand: Demand, watermark: Position | None, shard: str, epoch: int) -> CatalogAnswer:
    """As `read_table`, for a value in the overlay (its folded state unchanged), or one just read from the source.

    For the latter ``watermark`` is None: only its own position and list may prove the demand.
    """
    require_write_ids(fill.name, fill.kind, demand)
    listed = fill.kind == TRANSACTIONAL and fill.write_ids
    tag = Tag(
        shard=shard,
        epoch=epoch,
        lo=Position.parse(fill.lo),
        hi=Position.parse(fill.hi),
        watermark=watermark,
        write_ids=ValidWriteIdList.parse(fill.write_ids) if listed else None,
        table_id=fill.table_id,
    )
    freshness, why = decide(_bearing(fill.kind, demand), tag)
    return _answer(fill.image, freshness, why, fill.lo, fill.hi, fill.write_ids, fill.table_id)


def may_fill_table(
    state_bytes: bytes | None,
    fill: TableFill,
    low_water: str,
    watermark: str,
    shard: str,
    epoch: int,
    voids: Voids = (),
) -> tuple[bool, str]:
    """Whether a source's answer may stand in the overlay over this state, and why (not).

    Not over an image that the stream has; not while a writer is pending, unless the fill's own list says that it has
    ended (its COMMIT may be lost, or still to come); not below the low-water, the last write event,
    a void's floor or the watermark (a source behind the stream). ``low_water`` and ``watermark`` are "" if not known.
    """
    lo = Position.parse(fill.lo)
    if not low_water or not lo.at_or_past(Position.parse(low_water)):
        return False, f"{fill.lo} is below the low-water {low_water or '(unknown)'}"
    if watermark and not lo.at_or_past(Position.parse(watermark)):
        return False, f"{fill.lo} is behind the watermark {watermark}"
    for (scope, of_shard), void in voids:
        if of_shard != shard or scope not in (EVERY_TABLE, fill.name) or void.epoch != epoch:
            continue
        if not void.floor:
            return False, "the table was voided, and the marker that follows has not come"
        if not lo.at_or_past(Position.parse(void.floor)):
            return False, f"{fill.lo} is below {void.floor}, where the table was voided"
    if state_bytes is None:
        return True, "filled"
    state = decode_table(state_bytes)
    if (state.shard, state.epoch) != (shard, epoch):
        return True, "filled"
    return _may_fill_over(state, fill, lo, why_unservable(state, voids))


def _may_fill_over(state: TableState, fill: TableFill, lo: Position, unservable: str) -> tuple[bool, str]:
    if state.table_id != fill.table_id:
        return False, f"the answer is of table id {fill.table_id}, the entry of {state.table_id}"
    if state.created and not state.exists:
        return False, "the table was dropped"
    if state.pending and _may_be_open(state.pending, fill.write_ids):
        return False, state.waits_for()
    if state.exists and state.name != fill.name:
        return False, f"the answer is of {fill.name}, the table is {state.name} here"
    if not unservable and (state.ids.known or state.kind == EXTERNAL):
        return False, "the stream already has an image"
    if state.write_position and not lo.at_or_past(Position.parse(state.write_position)):
        return False, f"{fill.lo} is below the last write, {state.write_position}"
    return True, "filled"


def _may_be_open(pending: Iterable[tuple[int, int]], fetched: str) -> bool:
    """Whether one of the writers may not have ended yet by the list that was fetched before the image."""
    if not fetched:
        return True
    found = ValidWriteIdList.parse(fetched)
    still = {*found.open_ids}
    for writer in pending:
        if found.min_open != NO_OPEN_ID if writer == UNHEARD else writer[1] > found.hwm or writer[1] in still:
            return True
    return False


def require_write_ids(name: str, kind: str, demand: Demand) -> None:
    """Raises `MissingWriteIds` if a demand for a transactional table lacks its list or its id (0 is "not given")."""
    if kind != TRANSACTIONAL or (demand.write_ids is not None and demand.table_id):
        return
    lacks = "valid_write_ids" if demand.write_ids is None else "table_id"
    raise MissingWriteIds(
        f"{name} is transactional, and the request has no {lacks}",
        hint="send valid_write_ids and table_id, as fetched at the beginning of the transaction",
    )


def why_unservable(state: TableState, voids: Voids = ()) -> str:
    """Why the folded image may not be given to anybody, else empty."""
    why = state.waits_for()
    for (scope, shard), void in voids:
        if shard != state.shard or scope not in (EVERY_TABLE, state.name):
            continue
        if not why and (state.epoch, state.image_ordinal) <= (void.epoch, void.ordinal):
            why = f"voided at ordinal {void.ordinal} of epoch {void.epoch}"
    return why


def _list_of(state: TableState) -> ValidWriteIdList | None:
    if state.kind != TRANSACTIONAL or not state.ids.known:
        return None
    ids = state.ids
    return ValidWriteIdList(state.name, ids.hwm, (write_id for write_id, _ in ids.open), ids.aborted)


def _bearing(kind: str, demand: Demand) -> Demand:
    """The part of the demand that bears on the kind: an external table has no list."""
    if kind == TRANSACTIONAL or demand.write_ids is None:
        return demand
    return Demand(vector=demand.vector, write_ids=None, table_id=demand.table_id, given=demand.given)


def _answer(
    image: bytes | None, freshness: Freshness, why: str, lo: str, hi: str, write_ids: str, table_id: int
) -> CatalogAnswer:
    servable = freshness in (Freshness.FRESH, Freshness.EVENTUAL)
    return CatalogAnswer(servable, image if servable else None, freshness, why, lo, hi, write_ids, table_id)


def _unknown(why: str, table_id: int) -> CatalogAnswer:
    return CatalogAnswer(False, None, Freshness.UNKNOWN, why, "", "", "", table_id)
