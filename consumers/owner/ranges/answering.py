"""How an owner answers for a range: all rows of one table here whose keys begin with given values.

The answer is proved if the table is whole here (`consumers.fold.backfills.whole_shards`), so that a key without an
entry is absent, and if no row of the range has changed since the watermark. Then the rows are these at each position
from the last change to the watermark (docs/decisions/0022-ranges-at-one-position.md).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple

from consumers.fold.entry import ABSENT, HEAD, PREFIX, VALUE, decode_entry, kind_and_image
from consumers.fold.shards import is_succeeded, lineage_of_key, shard_map
from consumers.fold.state import Head, Void
from consumers.owner.evidence import kin_at, may_catch_up
from consumers.owner.meaning import compare_meaning, settled_meaning, still_means
from consumers.owner.partitions import Partition
from consumers.owner.protocol import HISTORY_LOST, SCHEMA_CHANGED, GetRange, OwnerError, RangeRows
from consumers.owner.ranges.ground import Form, Ground, Stretch, ground_of
from consumers.owner.ranges.indexed import NotKnown, changes_known, indexed_entries, keys_having
from consumers.owner.ranges.order import Rank
from consumers.owner.rows import table_of
from stream.wire.keys import SEPARATOR, Layout
from tokens import Demand, Freshness, Position, decide

RANKED_AT_ONCE: Final = 500
"""Rows that are put in order before others are answered."""
LOOKED_MAX: Final = 20_000
"""Entries of one partition that one answer may look at. The order of keys in the store is not that of the table, so
all entries of a range are looked at."""
LOOKED_BYTES_MAX: Final = 64 << 20
"""Of those entries: what is found is held until all are looked at."""
LOOKED_TOGETHER: Final = 256
"""Others are answered in between."""
IMAGES_BYTES_MAX: Final = 4 << 20
"""Of one answer, and of a page of several ones. It has one row at least."""
_UNKNOWN: Final = Freshness.UNKNOWN.value


class Found(NamedTuple):
    """The rows of a range, as (key, image), or how many there are, and from where on they are these.

    ``newest``: the highest ordinal of its entries.
    """

    rows: list[tuple[bytes, bytes]]
    number: int
    more: bool
    stretch: Stretch
    newest: int


def answer_range(partition: Partition, request: GetRange, demand: Demand) -> Generator[None, None, RangeRows]:
    """What is known of a range, and whether it may be served. Raises `OwnerError` ``wrong_partition``.

    It yields where others may be answered in between; most answers come without. The head is read before the entries
    and the description after them, as in `consumers.owner.rows.answer_rows`.
    """
    caught_up = partition.ready  # before the head, which may be the one of then
    head, table = partition.store.visible, table_of(request.leading)
    shard, ground = ground_of(partition, head, table, request.shard)
    meaning = settled_meaning(partition, head, table, shard)
    try:
        if not shard and shard_map(head) is not None:
            raise NotKnown(f"{request.keyspace} has several shards, and the request names none")
        if ground is None:
            raise NotKnown(f"{table} is not known to be complete in partition {partition.number}")
        if meaning is None or meaning.reason:
            raise NotKnown(meaning.reason if meaning is not None else f"{table} is not described here")
        form = ground.form(meaning, table, request)
        found = yield from _look(partition, head, request, ground, form)
    except (NotKnown, ValueError) as reason:
        return _unproved(request.id, head, shard, str(reason), caught_up=caught_up)
    prefix = meaning.prefix
    if request.meaning != form.expected or not still_means(partition, head, table, shard, meaning):
        why, prefix = _compare(partition, head, request, form, shard)
        if why:
            return _unproved(request.id, head, shard, why, SCHEMA_CHANGED, caught_up=caught_up)
    _check_partitions(head, partition.number, request, len(meaning.key), prefix)
    return _decide(request.id, demand, found, ground, caught_up=caught_up)


def _compare(partition: Partition, head: Head, request: GetRange, form: Form, shard: str) -> tuple[str, int]:
    """As `compare_meaning`. Where columns are named, the description must be the one that told what they are."""
    table, expected = table_of(request.leading), request.meaning
    is_by_columns = bool(request.index or request.order)
    if is_by_columns:
        expected = form.meaning.fingerprint if request.meaning == form.expected else b""
    why, prefix = compare_meaning(partition, head, table, shard, expected)
    if is_by_columns and not why and settled_meaning(partition, head, table, shard) != form.meaning:
        why = "the description of the table changed while it was looked at"
    return why, prefix


def _check_partitions(head: Head, number: int, request: GetRange, key_columns: int, prefix: int) -> None:
    """Raises `OwnerError` ``wrong_partition`` unless all partitions are asked that may hold rows of the range."""
    layout = Layout.parse(head.layout)
    if request.asked == layout.partitions:
        return
    home = layout.partition_of_leading(request.leading, request.columns, key_columns, prefix)
    if request.asked != 1 or home != number:
        raise OwnerError(
            f"of this range {request.asked} partitions are asked, among them {number}",
            hint="ask for the keyspace's layout and the table's description again",
            code="wrong_partition",
        )


def _unproved(request_id: int, head: Head, shard: str, why: str, code: str = "", *, caught_up: bool) -> RangeRows:
    """An answer that says where the partition is, and nothing of the range."""
    lineage = head.lineages.get(shard)
    named = shard if lineage is not None else ""  # as in `consumers.owner.rows.view_row`
    answer = RangeRows(request_id, [], [], 0, False, _UNKNOWN, why, False, True, named, 0, "", "", code=code)
    if lineage is not None:
        answer.epoch, answer.watermark, answer.as_of_ms = lineage.epoch, lineage.watermark, lineage.as_of_ms
        answer.kin = kin_at(head, shard, lineage.epoch).heard(caught_up)
    return answer


def _decide(request_id: int, demand: Demand, found: Found, ground: Ground, *, caught_up: bool) -> RangeRows:
    """The answer, with the rows if they may be served.

    A marker says nothing of what follows it, wherever its position lies: see `consumers.owner.rows.view_row`.
    """
    lineage, kin, hi = ground.lineage, ground.kin.heard(caught_up), str(found.stretch.hi)
    decision = decide(demand, found.stretch.tag)
    freshness, why, code = decision.freshness.value, decision.why, ""
    served, needs_source = False, False
    if not decision.may_be_served:
        needs_source = not may_catch_up(decision, lineage.watermark)
        code = HISTORY_LOST if decision.history_lost else ""
    elif found.newest > lineage.watermark_ordinal or not found.stretch.is_marked:
        freshness, why = _UNKNOWN, f"a row changed at {hi}, and the marker that follows has not arrived"
    else:
        served = True
    rows, count, more = (found.rows, found.number, found.more) if served else ([], 0, False)
    return RangeRows(
        request_id,
        [key for key, _ in rows],
        [image for _, image in rows],
        count,
        more,
        freshness,
        why,
        served,
        needs_source,
        ground.shard,
        lineage.epoch,
        hi,
        lineage.watermark,
        lineage.as_of_ms,
        code,
        kin,
    )


def _look(
    partition: Partition, head: Head, request: GetRange, ground: Ground, form: Form
) -> Generator[None, None, Found]:
    """The rows of a range in a partition in which its table is whole. Raises `NotKnown`, ``ValueError``."""
    table, ranking = table_of(request.leading), form.ranking
    unordered = ranking.unranked if request.limit else ""
    if unordered and (request.after or not request.index):
        raise NotKnown(f"only the source knows the order of {unordered}")
    known, known_since = 0, tuple[str, ...]()
    if form.extraction is not None:
        keys = keys_having(partition, form.extraction.index, request.equal, LOOKED_MAX)
        # not before: the keys may be of a commit since
        known, known_since = changes_known(partition, head, table, ground.shard)
        found = indexed_entries(partition, form.extraction, request.equal, keys)
    else:
        found = _entries(partition, request, len(form.meaning.key))
    newest, newest_at = 0, b""
    rows: list[tuple[Rank, bytes, bytes]] = []
    after = ranking.after(request.after, request.after_values) if request.after and request.limit else None
    count = size = 0
    for number, pairs in enumerate(found):
        if number:
            yield
            size += sum(len(value) for _, value in pairs)
            if size > LOOKED_BYTES_MAX:
                raise NotKnown(
                    f"the entries of the range are too large to be looked at in partition {partition.number}"
                )
        for kind, ordinal, key, value in _live_entries(pairs, head, ground, form.meaning.prefix):
            if ordinal > newest:
                newest, newest_at = ordinal, value
            if kind == ABSENT:
                continue
            if kind != VALUE:
                raise NotKnown(f"the image of {key!r} is not known")
            if not request.limit:
                count += 1
                if count == request.count_max:
                    break
                continue
            ranked = ranking.rank(key, _image(value, request)) if after is not None else ()
            if after is None or (ranked < after if request.descending else ranked > after):
                rows.append((ranked, key, value))
        if count and count == request.count_max:
            break
    if unordered and len(rows) > 1:
        raise NotKnown(f"only the source knows the order of {unordered}")
    if len(rows) > 1:  # one needs no order
        for at in range(0, len(rows) if after is None else 0, RANKED_AT_ONCE):
            some = rows[at : at + RANKED_AT_ONCE]
            rows[at : at + len(some)] = [
                (ranking.rank(key, _image(value, request)), key, value) for _, key, value in some
            ]
            yield
        rows.sort(key=_rank_of, reverse=request.descending)
    lineage = partition.store.visible.lineages.get(ground.shard)
    if lineage is None or lineage.low_water != ground.lineage.low_water:
        raise NotKnown("tombstones were dropped while the range was looked at")
    gone = partition.store.dropping.last(table, ground.shard)
    deleted = gone.position if gone is not None and gone.epoch == ground.lineage.epoch else ""
    stretch = ground.stretch_since(deleted, *known_since)
    last = decode_entry(newest_at).position if newest > known else ""
    if last:
        stretch = ground.stretch_from(stretch.hi.join(Position.parse(last)))
    if not request.limit:
        return Found([], count, False, stretch, newest)
    given = within_bytes((key, kind_and_image(value)[1]) for _, key, value in rows[: request.limit])
    return Found(given, len(given), len(given) < len(rows), stretch, newest)


def _live_entries(
    pairs: list[tuple[bytes, bytes]], head: Head, ground: Ground, prefix: int
) -> list[tuple[int, int, bytes, bytes]]:
    """Those of ``pairs`` that are the ground's shard's, and since the table's last void, after kind and ordinal.

    ``prefix``: of the table's description. Raises `NotKnown`.
    """
    shard, own, voided = ground.shard, ground.own, ground.voided
    live: list[tuple[int, int, bytes, bytes]] = []
    for key, value in pairs:
        if not value.startswith(own, PREFIX.size):
            if lineage_of_key(head, key, prefix)[0] == shard:
                _require_over(head, shard, ground.voids, value)
            continue
        kind, ordinal = HEAD.unpack_from(value)
        if ordinal > voided:
            live.append((kind, ordinal, key, value))
    return live


def _entries(partition: Partition, request: GetRange, key_columns: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """The keys of a range with their entries, some together. Raises `NotKnown`."""
    start, end = bounds_of(request.leading, request.columns, key_columns)
    looked = 0
    while True:
        pairs = partition.store.between(start, end, LOOKED_TOGETHER)
        yield pairs
        looked += len(pairs)
        if len(pairs) < LOOKED_TOGETHER:
            return
        if looked >= LOOKED_MAX:
            raise NotKnown(f"the range has more than {LOOKED_MAX} entries in partition {partition.number}")
        start = pairs[-1][0] + SEPARATOR


def _require_over(head: Head, shard: str, voids: tuple[Void, ...], value: bytes) -> None:
    """Raises `NotKnown` unless an entry of another shard, or of an earlier epoch, counts no more."""
    entry = decode_entry(value)
    if is_succeeded(head, entry.shard, entry.epoch):
        return
    if entry.shard != shard or not any((entry.epoch, entry.ordinal) <= void[:2] for void in voids):
        raise NotKnown(f"a row of the range was written by {entry.shard} in epoch {entry.epoch}")


def _image(value: bytes, request: GetRange) -> bytes:
    """The image of an entry, as far as the order needs it."""
    return kind_and_image(value)[1] if request.order else b""


def _rank_of(row: tuple[Rank, bytes, bytes]) -> Rank:
    return row[0]


def within_bytes(rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The first of the rows, as keys and images, that one answer may have."""
    given: list[tuple[bytes, bytes]] = []
    size = 0
    for key, image in rows:
        size += len(image)
        if given and size > IMAGES_BYTES_MAX:
            break
        given.append((key, image))
    return given


def bounds_of(leading: bytes, columns: int, key_columns: int) -> tuple[bytes, bytes]:
    """The store key from which a range reaches, and the one before which it ends. ``leading``: as in `GetRange`."""
    if not columns:
        return leading + b"[", leading + b"\\"
    if columns == key_columns:
        return leading, leading + SEPARATOR
    return leading[:-1] + b",", leading[:-1] + b"-"
