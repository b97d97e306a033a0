"""The decision at the owner: what its state and overlay say about a key or a table, for one demand. No I/O of its own.

The head (with the watermarks) is taken first and the entry after. A key without a folded value is answered by its
fill, if the overlay has one made over the same state; else only the source can answer.
"""

from __future__ import annotations

import xxhash

from consumers.fold.catalog_state import decode_binding, decode_table, name_key, table_key
from consumers.fold.entry import ABSENT, VALUE
from consumers.fold.state import Head, Void, schema_key
from consumers.owner.overlay import OverlayFill
from consumers.owner.partitions import Partition
from consumers.owner.protocol import Fill as FillRequest
from consumers.owner.protocol import FillTable, Row, Table
from consumers.owner.rows import View, is_servable, may_fill, own_lineage, tag_of, view_row
from consumers.owner.tables import CatalogAnswer, TableFill, may_fill_table, read_fill, read_table
from stream.wire.codec import decode
from stream.wire.keys import Layout, LayoutError
from tokens import Demand, Freshness, Order, Position, Tag, ValidWriteIdList, Vector, decide
from tokens.decision import HISTORY_LOST

UNKNOWN = Freshness.UNKNOWN.value


def demand_of(vector: str, write_ids: str = "", table_id: int = 0) -> Demand:
    """The demand that a request's texts stand for; raises `tokens.TokenError`."""
    return Demand(
        vector=Vector.parse(vector) if vector else Vector(),
        write_ids=ValidWriteIdList.parse(write_ids) if write_ids else None,
        table_id=table_id,
        given=bool(vector),
    )


def answer_row(partition: Partition, key: bytes, demand: Demand) -> Row:
    """What is known of ``key``, and whether it may be given for ``demand``."""
    store = partition.store
    head = store.visible
    view = view_row(head, key, store.get(key))
    lineage = head.lineages.get(view.shard)
    low_water = lineage.low_water if lineage else ""
    if view.kind in (VALUE, ABSENT):
        freshness, why = decide(demand, tag_of(view))
        served = is_servable(freshness)
        image = view.image if served and view.kind == VALUE else None
        shown = f"{why}; {view.why}" if served else why
        return _row(view, view.kind, image, freshness, shown, served, low_water)
    fill = partition.overlay.get(key, view.stamp)
    if fill is None:
        return _row(view, view.kind, None, Freshness.UNKNOWN, view.why, False, low_water, needs_source=True)
    watermark = Position.parse(view.watermark) if view.watermark else None
    tag = Tag(view.shard, view.epoch, Position.parse(fill.lo), Position.parse(fill.hi), watermark)
    freshness, why = decide(demand, tag)
    served = is_servable(freshness)
    row = _row(
        view._replace(lo=fill.lo, hi=fill.hi, timestamp=fill.timestamp),
        VALUE if fill.image is not None else ABSENT,
        fill.image if served else None,
        freshness,
        f"{why}; filled from the source at {fill.lo}" if served else why,
        served,
        low_water,
    )
    row.filled = True
    return row


def _row(
    view: View,
    kind: int,
    image: bytes | None,
    freshness: Freshness,
    why: str,
    served: bool,
    low_water: str,
    *,
    needs_source: bool = False,
) -> Row:
    lost = why.startswith(HISTORY_LOST)
    return Row(
        kind=kind,
        image=image,
        freshness=freshness.value,
        why=why,
        served=served,
        needs_source=needs_source or lost or (not served and not may_catch_up(freshness, view.watermark)),
        shard=view.shard,
        epoch=view.epoch,
        lo=view.lo,
        hi=view.hi,
        timestamp=view.timestamp,
        watermark=view.watermark,
        low_water=low_water,
        stamp=view.stamp,
        code=HISTORY_LOST if lost else "",
    )


def may_catch_up(freshness: Freshness, watermark: str) -> bool:
    """Whether waiting can turn this decision into a fresh one: the partition is behind, or says nothing yet."""
    return freshness is Freshness.STALE or (freshness is Freshness.UNKNOWN and not watermark)


def fill_row(partition: Partition, request: FillRequest) -> tuple[bool, str]:
    """Keeps what the source said of a key if it may stand beside the folded state; raises `tokens.TokenError`.

    CAS: the key's stamp must still be the one that the reader was given. The overlay entry carries it, so an event
    that is folded right after this check silences the fill all the same.
    """
    store = partition.store
    head = store.visible
    value = store.get(request.key)
    view = view_row(head, request.key, value)
    if view.stamp != request.stamp:
        return False, "the key changed meanwhile"
    Position.parse(request.hi)
    accepted, why = may_fill(head, request.key, value, request.lo)
    if not accepted:
        return False, why
    refusal = _refuse_by_schema(partition, request)
    if refusal:
        return False, refusal
    before = partition.overlay.get(request.key, view.stamp)
    if before is not None and Position.parse(before.lo).order(Position.parse(request.lo)) is Order.NEWER:
        return False, f"a fill of {before.lo} is there, which is newer"
    fill = OverlayFill(request.image, request.lo, request.hi, request.timestamp, view.stamp)
    if not partition.overlay.put(request.key, fill):
        return False, "it is larger than the overlay"
    return True, why


def _refuse_by_schema(partition: Partition, request: FillRequest) -> str:
    """Absence may be kept only where equal keys have equal texts; tables that are read through are never kept."""
    described = partition.store.get(schema_key(request.key.partition(b"\0")[0].decode()))
    if described is None:
        return "the table's schema is not known here yet"
    _, schema = decode(described)
    if not schema["cacheable"]:
        return f"the table is always read through: {schema['reason']}"
    if request.image is None:
        exact = {column["name"]: column["exact"] for column in schema["columns"]}
        inexact = [name for name in schema["primary_key"] if not exact.get(name, False)]
        if inexact:
            return f"key column {inexact[0]} is compared by a collation: absence can't be kept"
    return ""


def find_table(partitions: list[Partition], name: str, table_id: int) -> tuple[int, int]:
    """Table id and partition of a name: the id as given, else as bound; (0, -1) if the name stands for nothing here."""
    for partition in partitions:
        store = partition.store
        head = store.visible
        try:
            layout = Layout.parse(head.layout) if head.layout else None
        except LayoutError:
            layout = None
        if layout is None:
            continue
        wanted = table_id or bound_id(partition, name)
        return (wanted, layout.table_partition(wanted)) if wanted else (0, -1)
    return 0, -1


def bound_id(partition: Partition, name: str) -> int:
    """The table id that ``name`` stands for in this partition, 0 for none."""
    value = partition.store.get(name_key(name))
    return decode_binding(value).table_id if value is not None else 0


def answer_table(partition: Partition, name: str, table_id: int, demand: Demand) -> Table:
    """What is known of a catalog table; raises `MissingWriteIds`, `CatalogStateError`."""
    store = partition.store
    head = store.visible
    bound = bound_id(partition, name)
    state_bytes = store.get(table_key(table_id))
    state = decode_table(state_bytes) if state_bytes is not None else None
    shard = state.shard if state is not None else own_lineage(head)[0]
    lineage = head.lineages.get(shard)
    epoch, watermark = (lineage.epoch, lineage.watermark) if lineage else (0, "")
    mark = Position.parse(watermark) if watermark else None
    voids = _voids_of(head)
    stamp = table_stamp(state_bytes, head)
    answer = read_table(state_bytes, demand, mark, shard, epoch, voids)
    filled = False
    if not answer.servable:
        kept = partition.overlay.get(table_key(table_id), stamp)
        if kept is not None and kept.table is not None:
            answer, filled = read_fill(kept.table, demand, mark, shard, epoch), True
    named = state.name if state is not None and state.exists else name
    if answer.servable and (named != name or bound != table_id):
        answer = _another(answer, name, table_id, bound)
    return _table(
        answer, partition, table_id, shard, epoch, watermark, lineage.low_water if lineage else "", stamp, filled
    )


def _another(answer: CatalogAnswer, name: str, table_id: int, bound: int) -> CatalogAnswer:
    why = f"{name} stands for table id {bound or '(none)'} here, not {table_id}"
    return answer._replace(servable=False, image=None, freshness=Freshness.STALE, why=why)


def _table(
    answer: CatalogAnswer,
    partition: Partition,
    table_id: int,
    shard: str,
    epoch: int,
    watermark: str,
    low_water: str,
    stamp: bytes,
    filled: bool,
) -> Table:
    lost = answer.why.startswith(HISTORY_LOST)
    return Table(
        id=0,
        table_id=table_id,
        partition=partition.number,
        image=answer.image,
        write_ids=answer.write_ids,
        freshness=answer.freshness.value,
        why=answer.why,
        served=answer.servable,
        needs_source=not answer.servable and (lost or answer.freshness is not Freshness.STALE),
        shard=shard,
        epoch=epoch,
        lo=answer.lo,
        hi=answer.hi,
        watermark=watermark,
        low_water=low_water,
        stamp=stamp,
        filled=filled,
        code=HISTORY_LOST if lost else "",
    )


def no_table(partition: int, table_id: int, why: str, *, elsewhere: bool = False) -> Table:
    """The answer where there is no state to judge."""
    return Table(
        0,
        table_id,
        partition,
        None,
        "",
        UNKNOWN,
        why,
        False,
        not elsewhere,
        "",
        0,
        "",
        "",
        "",
        "",
        b"",
        elsewhere=elsewhere,
    )


def fill_table(partition: Partition, request: FillTable) -> tuple[bool, str]:
    """As `fill_row`, for a catalog table."""
    store = partition.store
    head = store.visible
    key = table_key(request.table_id)
    state_bytes = store.get(key)
    stamp = table_stamp(state_bytes, head)
    if stamp != request.stamp:
        return False, "the table changed meanwhile"
    shard = decode_table(state_bytes).shard if state_bytes is not None else own_lineage(head)[0]
    lineage = head.lineages.get(shard)
    if lineage is None:
        return False, "the shard of the table is not known here"
    if bound_id(partition, request.name) != request.table_id:
        return False, f"{request.name} does not stand for table id {request.table_id} here"
    answer = TableFill(
        request.table_id, request.name, request.kind, request.image, request.write_ids, request.lo, request.hi
    )
    Position.parse(request.hi)
    accepted, why = may_fill_table(
        state_bytes, answer, lineage.low_water, lineage.watermark, shard, lineage.epoch, _voids_of(head)
    )
    if not accepted:
        return False, why
    fill = OverlayFill(request.image, request.lo, request.hi, 0, stamp, answer)
    if not partition.overlay.put(key, fill):
        return False, "it is larger than the overlay"
    return True, why


def _voids_of(head: Head) -> list[tuple[tuple[str, str], Void]]:
    return sorted(head.voids.items())


def table_stamp(state_bytes: bytes | None, head: Head) -> bytes:
    """What a fill of a table is made over: its folded bytes, the epochs and the voids."""
    digest = xxhash.xxh3_128(state_bytes or b"")
    epochs = sorted((shard, lineage.epoch) for shard, lineage in head.lineages.items())
    digest.update(repr((state_bytes is None, epochs, _voids_of(head))).encode())
    return digest.digest()


def reached(partition: Partition, vector: Vector) -> bool:
    """Whether the partition's watermarks are at or past ``vector``; a shard that is not known here is not."""
    lineages = partition.store.visible.lineages
    for shard, (epoch, position) in vector.items():
        lineage = lineages.get(shard)
        if lineage is None or lineage.epoch != epoch or not lineage.watermark:
            return False
        if Position.parse(lineage.watermark).order(position) not in (Order.NEWER, Order.SAME):
            return False
    return True


def watermarks(partition: Partition) -> Vector:
    """The partition's watermarks as a vector."""
    lineages = partition.store.visible.lineages
    return Vector(
        {name: (each.epoch, Position.parse(each.watermark)) for name, each in lineages.items() if each.watermark}
    )
