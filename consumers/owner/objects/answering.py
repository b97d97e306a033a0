"""How an owner answers for partitions, databases, functions, constraints and statistics: by name, and as lists.

An object that belongs to a table is answered only if the table's own state may be: its list covers the demand's. A
list needs its set to be whole. The set moves with each member, in the same step, so a list during which neither set
nor table moved is of one moment; and a page of a set that has moved since the first page is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from consumers.fold.catalog_state import TableState, decode_table, table_key
from consumers.fold.objects import (
    PARTITION,
    ObjectState,
    SetState,
    decode_object,
    decode_set,
    object_key,
    objects_prefix,
    set_key,
)
from consumers.fold.shards import kin_of, sole_lineage
from consumers.fold.state import Head, Lineage
from consumers.owner.evidence import may_catch_up
from consumers.owner.objects.filter import Matches, PartitionKey, parse_filter
from consumers.owner.objects.statistics import do_hold
from consumers.owner.partitions import Partition
from consumers.owner.protocol import HISTORY_LOST, PAGE_EXPIRED, GetObjects, OwnerObjects
from consumers.owner.tables import (
    CHANGING,
    UNMARKED,
    await_marker,
    bound_id,
    decide_table,
    is_ahead,
    list_of,
    list_position,
    list_text_of,
    require_write_ids,
    why_converted,
    why_unservable,
)
from stream.wire.canonical import UNDECODABLE
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import object_parts
from tokens import Demand, Freshness, Position

PAGE_MAX: Final = 10_000
"""Objects in one answer, at most."""
PAGE_BYTES_MAX: Final = 4 << 20
"""Of the images in a page of a list. It has one object at least."""
LOOKED_TOGETHER: Final = 256
"""Objects of a list that are read from the store at once."""
LOOKED_AT_ONCE: Final = 64
"""Objects that are looked at while other requests wait. More of them are looked at in a thread."""
FUNCTION: Final = "function"
_UNLOGGED: Final = {
    FUNCTION: "an ALTER FUNCTION leaves no event",
    "database": "an ALTER DATABASE of its location or comment, or a DROP of a remote one, leaves no event",
    "catalog": "an ALTER CATALOG leaves no event",
}
"""Objects that change or go without an event (``AlterDatabaseEvent.shouldSkipCapturing``). None comes without one."""
AGGREGATE_STATISTICS: Final = "aggregate_statistics"
_STATISTICS: Final = ("statistics", "partition_statistics", AGGREGATE_STATISTICS)


class _Place(NamedTuple):
    """Where the objects of a request lie: the table that they belong to, if any, and their set."""

    head: Head
    table: TableState | None
    group: SetState | None
    table_bytes: bytes | None
    set_bytes: bytes | None


class _TooMany(Exception):
    """More objects would be looked at than may be."""


def answer_few(partition: Partition, request: GetObjects, table_id: int, demand: Demand) -> OwnerObjects | None:
    """As `answer_objects`; None if more than `LOOKED_AT_ONCE` may be looked at. A thread costs more than so few."""
    if len(request.names) > LOOKED_AT_ONCE or request.kind == AGGREGATE_STATISTICS:
        return None
    try:
        return answer_objects(partition, request, table_id, demand, LOOKED_AT_ONCE)
    except _TooMany:
        return None


def answer_objects(
    partition: Partition, request: GetObjects, table_id: int, demand: Demand, looked_max: int = 0
) -> OwnerObjects:
    """What is known of the objects in ``request``, and whether it may be served for ``demand``.

    Reads a range of keys if the request has no names, so a long list belongs into a thread of its own. Raises
    `consumers.owner.tables.MissingWriteIds`, `consumers.owner.objects.filter.FilterError`,
    `consumers.fold.catalog_state.CatalogStateError`. ``looked_max``: of a list; 0: all.
    """
    place = _place(partition, request.kind, table_id)
    found = _undecided(partition, place, table_id)
    shown = list_position(partition, place.head, place.table)
    if shown is None:
        await_marker(found, CHANGING if place.table is not None and is_ahead(place.head, place.table) else UNMARKED)
        return found
    if place.table is not None and shown:
        found.write_ids = list_text_of(place.table)
    members: list[tuple[str, ObjectState]] = []
    why = _why_unservable(partition, place, request, demand)
    why = why or _take(partition, place, request, table_id, members, found, looked_max)
    if why or found.code:
        found.why = found.why or why
        return found
    _decide(found, place, request, members, demand)
    found.hi = latest_of((found.hi, shown))
    if found.served:
        why = _show(partition, found, place, request, members, demand)
        if _has_moved(partition, place, request.kind, table_id):
            why = f"the {request.kind} objects changed while they were read"
        if why:
            found = _undecided(partition, place, table_id)
            found.why = why
    return found


def _has_moved(partition: Partition, place: _Place, kind: str, table_id: int) -> bool:
    """Whether what was read after ``place`` may be of a later moment."""
    return _bytes_of(partition, kind, table_id) != (place.table_bytes, place.set_bytes)


def _bytes_of(partition: Partition, kind: str, table_id: int) -> tuple[bytes | None, bytes | None]:
    """The states of the table and of the set, as stored."""
    table_bytes = partition.store.get(table_key(table_id)) if table_id else None
    return table_bytes, partition.store.get(set_key(kind, table_id))


def _place(partition: Partition, kind: str, table_id: int) -> _Place:
    head = partition.store.visible  # before the entries, as everywhere
    table_bytes, set_bytes = _bytes_of(partition, kind, table_id)
    table = decode_table(table_bytes) if table_bytes is not None else None
    group = decode_set(set_bytes) if set_bytes is not None else None
    return _Place(head, table, group, table_bytes, set_bytes)


def _lineage(place: _Place) -> tuple[str, Lineage | None]:
    of = place.table or place.group
    return (of.shard, place.head.lineages.get(of.shard)) if of is not None else sole_lineage(place.head)


def _undecided(partition: Partition, place: _Place, table_id: int) -> OwnerObjects:
    shard, lineage = _lineage(place)
    group = place.group
    return OwnerObjects(
        id=0,
        table_id=table_id,
        partition=partition.number,
        freshness="unknown",
        why="",
        served=False,
        needs_source=True,
        shard=shard if lineage else "",  # as in `consumers.owner.rows.view_row`
        epoch=lineage.epoch if lineage else 0,
        lo="",
        hi="",
        watermark=lineage.watermark if lineage else "",
        names=[],
        images=[],
        version=f"{group.epoch}.{group.ordinal}" if group is not None else "",
        kin=kin_of(place.head, shard).heard(partition.ready),
        as_of_ms=lineage.as_of_ms if lineage else 0,
    )


def _why_unservable(partition: Partition, place: _Place, request: GetObjects, demand: Demand) -> str:
    """Why nothing may be answered of what the request asks for, whatever it is; "" if it may."""
    group, table = place.group, place.table
    if group is None:
        return f"nothing of a {request.kind} has been folded"
    shard, lineage = _lineage(place)
    if lineage is None or (group.shard, group.epoch) != (shard, lineage.epoch):
        return f"folded from {group.shard} epoch {group.epoch}, the shard is {shard} at another"
    if group.ordinal > lineage.ordinal:
        return f"the {request.kind} objects are changing"
    if not group_belongs_to_table(request):
        return ""
    if table is None or table.epoch != lineage.epoch:
        return "no event of the table has been folded"
    if is_ahead(place.head, table):
        return CHANGING
    if request.table and (table.name != request.table or bound_id(partition, request.table) != table.table_id):
        return f"{request.table} is not bound to table id {table.table_id} here"
    return why_unservable(table, place.head.voids) or why_converted(table.kind, demand)


def group_belongs_to_table(request: GetObjects) -> bool:
    """Whether the request is for objects of a table."""
    return bool(request.table or request.table_id)


def _floor(place: _Place) -> int:
    """Ordinal at or below which no member counts: voids of the set, of its table, and of everything."""
    group, table = place.group, place.table
    assert group is not None
    floors = [group.void]
    if table is not None:
        floors.append(table.objects_void)
    scopes = (EVERY_TABLE, table.name) if table is not None else (EVERY_TABLE,)
    for scope in scopes:
        void = place.head.voids.get((scope, group.shard))
        if void is not None and void.epoch >= group.epoch:
            floors.append(void.ordinal)
    return max(floors)


def _is_whole(place: _Place) -> bool:
    group = place.group
    return group is not None and group.complete > 0 and group.base >= _floor(place)


def _take(
    partition: Partition,
    place: _Place,
    request: GetObjects,
    table_id: int,
    members: list[tuple[str, ObjectState]],
    found: OwnerObjects,
    looked_max: int,
) -> str:
    """Adds what the request names, or one page of the set; returns why that can't be, "" if it can."""
    if request.names:
        return _take_named(partition, place, request, table_id, members)
    return _take_list(partition, place, request, table_id, members, found, looked_max)


def _take_named(
    partition: Partition, place: _Place, request: GetObjects, table_id: int, members: list[tuple[str, ObjectState]]
) -> str:
    """Adds the objects that the request names; returns why one of them is unknown, "" if none is."""
    group, floor, is_whole = place.group, _floor(place), _is_whole(place)
    assert group is not None
    base = group.base if is_whole else 0
    for name in request.names:
        value = partition.store.get(object_key(request.kind, table_id, name))
        state = decode_object(value) if value is not None else None
        if state is not None and (state.shard, state.epoch) == (group.shard, group.epoch):
            if state.is_awaited and state.known_at > max(floor, base):
                return _awaited(name, state)
            if state.image_ordinal > floor and state.known_at > base:
                members.append((name, state))
                continue
        if not is_whole:
            return f"{name} is unknown here, and not all {request.kind} objects are"
        members.append((name, ObjectState(group.shard, group.epoch, 0)))
    return ""


def _awaited(name: str, state: ObjectState) -> str:
    return f"{name} was written at {state.write_position}; the image that follows has not arrived"


def _take_list(
    partition: Partition,
    place: _Place,
    request: GetObjects,
    table_id: int,
    members: list[tuple[str, ObjectState]],
    found: OwnerObjects,
    looked_max: int,
) -> str:
    """Adds one page of the set; returns why it cannot be listed, "" if it can. Raises `_TooMany`."""
    group, floor = place.group, _floor(place)
    assert group is not None
    if not _is_whole(place):
        return f"not all {request.kind} objects are known: {group.reason or 'they have not all been published'}"
    if request.version and request.version != found.version:
        found.code, found.needs_source = PAGE_EXPIRED, False
        return f"the {request.kind} objects changed between two pages"
    passes = _selection(request.prefix, request.filter, place.table.image if place.table is not None else None)
    prefix = objects_prefix(request.kind, table_id)
    limit, size = min(request.limit, PAGE_MAX) if request.limit > 0 else PAGE_MAX, 0
    start = prefix + request.after.encode() + b"\0" if request.after else prefix
    for key, value in _between(partition, start, prefix + b"\xff", looked_max):
        state = decode_object(value)
        if state.epoch != group.epoch or state.known_at <= group.base:
            continue
        name = key[len(prefix) :].decode()
        if not (state.exists or state.is_awaited) or not passes(object_parts(name)):
            continue
        if state.is_awaited or state.image_ordinal <= floor:
            return _awaited(name, state)
        size += len(state.image or b"") if not request.names_only else 0
        if members and (len(members) == limit or size > PAGE_BYTES_MAX):
            found.after = members[-1][0]
            break
        found.count += 1
        if not request.count_only:
            members.append((name, state))
    return ""


def _between(partition: Partition, start: bytes, end: bytes, looked_max: int) -> Iterator[tuple[bytes, bytes]]:
    """The folded pairs from ``start`` up to ``end``, a part at a time: mostly the first ones are enough.

    Raises `_TooMany` after ``looked_max`` of them, if there are more (0: there is no bound).
    """
    together = looked_max or LOOKED_TOGETHER
    while True:
        pairs = partition.store.between(start, end, together)
        yield from pairs
        if len(pairs) < together:
            return
        if looked_max:
            raise _TooMany
        start = pairs[-1][0] + b"\0"


def _selection(prefix: Sequence[str], text: str, table_image: bytes | None) -> Matches:
    """What of a set is asked for: a prefix of the names' parts, and a filter. Raises `FilterError`."""
    wanted = parse_filter(text, partition_keys(table_image)) if text else None
    if not prefix:
        return wanted or (lambda _: True)
    return lambda parts: _begins(parts, prefix) and (wanted is None or wanted(parts))


def select_named(
    names: Sequence[Sequence[str]], prefix: Sequence[str], text: str, table_image: bytes | None
) -> list[int]:
    """Places of the names that pass, as of an owner's list. Raises `FilterError`."""
    passes = _selection(prefix, text, table_image)
    return [place for place, parts in enumerate(names) if passes(parts)]


def _begins(parts: Sequence[str], prefix: Sequence[str]) -> bool:
    """As Hive's partial values: an empty one matches any."""
    return len(parts) >= len(prefix) and all(
        not want or want == part for want, part in zip(prefix, parts, strict=False)
    )


class _Column(msgspec.Struct):
    name: str = ""
    type: str = "string"


class _TableImage(msgspec.Struct):
    """The one part of a table's JSON image that filters read."""

    partitionKeys: list[_Column] | None = None


_table_image = msgspec.json.Decoder(_TableImage)


def partition_keys(image: bytes | None) -> list[PartitionKey]:
    """The partition columns of a table, from its JSON image; none if that cannot be read."""
    try:
        columns = _table_image.decode(image or b"{}").partitionKeys or ()
    except UNDECODABLE:
        return []
    return [PartitionKey(column.name, column.type) for column in columns]


def _decide(
    found: OwnerObjects,
    place: _Place,
    request: GetObjects,
    members: Iterable[tuple[str, ObjectState]],
    demand: Demand,
) -> None:
    """Decides on the demand by what is shown: the named objects, or the set. Raises `MissingWriteIds`."""
    group, table = place.group, place.table
    assert group is not None
    states = [state for _, state in members if state.image_ordinal] if request.names else []
    is_certain = bool(request.names) and len(states) == len(request.names)
    positions = [state.lo for state in states] if is_certain else [group.lo, *(state.lo for state in states)]
    found.lo = _extreme(positions, latest=False)
    found.hi = latest_of(state.hi for state in states) if is_certain else group.hi
    last = max((state.ordinal for state in states), default=0) if is_certain else group.ordinal
    lineage = place.head.lineages[group.shard]
    if last > lineage.watermark_ordinal or (table is not None and table.image_ordinal > lineage.watermark_ordinal):
        # a marker says nothing of what follows it; see `consumers.owner.rows.view_row`
        found.watermark, found.as_of_ms = "", 0
    listed = list_of(table) if table is not None else None
    kind = table.kind if table is not None else ""
    decision = decide_table(found, kind, listed, found.table_id, demand, found.kin)
    if table is not None and table.exists:
        require_write_ids(table.name, kind, demand, decision)
    found.freshness, found.why, found.served = decision.freshness.value, decision.why, decision.may_be_served
    is_shown = request.kind == FUNCTION or any(state.exists for _, state in members)
    if is_shown and request.kind in _UNLOGGED and decision.freshness is Freshness.FRESH:
        found.freshness, found.why = Freshness.EVENTUAL.value, _UNLOGGED[request.kind]
        if demand.not_before_ms:  # the metastore itself can prove a time
            found.freshness, found.served = Freshness.UNKNOWN.value, False
    found.needs_source = not found.served and not may_catch_up(decision, found.watermark)
    found.code = HISTORY_LOST if decision.history_lost else ""


def latest_of(positions: Iterable[str]) -> str:
    """The latest of positions of one log; "" if there is none."""
    return _extreme(positions, latest=True)


def _extreme(positions: Iterable[str], *, latest: bool) -> str:
    """The latest or the earliest of positions of one log; "" if there is none."""
    kept = ""
    for each in positions:
        if not each:
            continue
        if not kept or Position.parse(each).at_or_past(Position.parse(kept)) is latest:
            kept = each
    return kept


def _show(
    partition: Partition,
    found: OwnerObjects,
    place: _Place,
    request: GetObjects,
    members: Sequence[tuple[str, ObjectState]],
    demand: Demand,
) -> str:
    """Adds what is shown; returns why it must not be, "" if it may.

    Statistics of which nobody here can tell whether they hold for the reader's list are the source's to answer.
    """
    found.names = [name for name, _ in members]
    if request.as_struct:
        found.structs = [state.struct for _, state in members] if not request.names_only else []
    elif not request.names_only:
        found.images = [state.image for _, state in members]
    if request.names:
        found.count = sum(state.exists for _, state in members)
    if request.kind in _STATISTICS and place.table is not None and demand.write_ids is not None:
        described = [_described(partition, place.table, request.kind, name) for name, _ in members]
        known = [images for images in described if images is not None]
        if len(known) < len(described):
            return f"not all partitions are known, so nobody can tell whether the {request.kind} hold"
        found.compliant = [do_hold(images, demand.write_ids) for images in known]
    return ""


def _described(partition: Partition, table: TableState, kind: str, name: str) -> Sequence[bytes | None] | None:
    """The JSON images of all that statistics are of: these say whether they hold. None: not all are known."""
    if kind == "statistics":
        return [table.image]
    place = _place(partition, PARTITION, table.table_id)
    if place.group is None:
        return None
    names = [] if kind == AGGREGATE_STATISTICS else [name]
    request = GetObjects(0, partition.keyspace, PARTITION, names=names, names_only=True)  # no image of them is sent
    members: list[tuple[str, ObjectState]] = []
    found = _undecided(partition, place, table.table_id)
    unknown = _take(partition, place, request, table.table_id, members, found, 0) or found.after
    return None if unknown else [state.image for _, state in members]


def no_objects(table_id: int, partition: int, why: str, *, elsewhere: bool = False, id: int = 0) -> OwnerObjects:
    """The answer if this process has no state of the table that the objects belong to."""
    return OwnerObjects(
        id=id, table_id=table_id, partition=partition, freshness="unknown", why=why, served=False,
        needs_source=not elsewhere, shard="", epoch=0, lo="", hi="", watermark="", names=[], images=[],
        elsewhere=elsewhere,
    )  # fmt: skip
