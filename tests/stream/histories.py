"""Histories of source transactions for property tests, and a reader of the framed records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from stream.wire.batch import Batch
from stream.wire.checks import check
from stream.wire.codec import decode
from stream.wire.declarations import Declarations
from stream.wire.events import (
    ABSENT,
    VALUE,
    VOID,
    AbortTransaction,
    AllocateWriteId,
    BackfillTable,
    BeginScope,
    BindName,
    Change,
    Column,
    CommitTransaction,
    DescribeTable,
    KeylessRow,
    OpenTransaction,
    ResetWriteIds,
    RowChange,
    SourceTransaction,
    TableImage,
    VoidTable,
)
from stream.wire.keys import Layout, row_key, split_row_key
from stream.wire.records import event_record

Seen = tuple[int, str, Any]
"""Ordinal, record name, its own fields."""

_tables = st.sampled_from(["shop.orders", "shop.items", "ünï.côde"])
_ids = st.integers(1, 9)
_pairs = st.lists(st.tuples(_ids, _ids), max_size=3).map(tuple)

rows = st.builds(
    lambda table, key, operation, size, before: RowChange(
        row_key(table, [key]), operation, b"{" + b"x" * size + b"}" if operation == VALUE else b"", before
    ),
    _tables,
    st.integers(0, 30),
    st.sampled_from([VALUE, VALUE, VALUE, ABSENT, VOID]),
    st.integers(0, 60),
    st.none() | st.sampled_from([b"", b"{}", b'{"v":1}']),
)

events = st.one_of(
    st.builds(VoidTable, _tables, st.just("DDL")),
    st.builds(KeylessRow, _tables, st.just("updated"), st.binary(max_size=60), st.binary(max_size=60)),
    st.builds(
        DescribeTable, _tables, st.just((Column("id", "int", True),)), st.just(("id",)), prefix=st.integers(0, 1)
    ),
    st.builds(BackfillTable, _tables, st.booleans()),
    st.builds(BeginScope, st.lists(_tables, max_size=2).map(tuple)),
    st.builds(AllocateWriteId, _ids, _ids, _ids, st.booleans()),
    st.builds(
        TableImage,
        _ids,
        st.just("db.t"),
        st.sampled_from(["transactional", "external"]),
        st.sampled_from(["created", "written", "image", "dropped"]),
        image=st.none() | st.binary(max_size=80),
    ),
    st.builds(CommitTransaction, _ids, _pairs),
    st.builds(AbortTransaction, _ids, _pairs, st.booleans()),
    st.builds(ResetWriteIds, _ids, st.just("db.t:5:5:5:"), st.none() | st.booleans()),
    st.builds(BindName, st.just("db.t"), st.integers(0, 9), st.sampled_from(["", "db.old"])),
)

opened = st.builds(OpenTransaction, _ids, _pairs, st.booleans(), st.lists(_ids, max_size=2).map(tuple))


@st.composite
def histories(draw: st.DrawFn) -> list[SourceTransaction]:
    """Up to twelve transactions of rows and catalog events; some empty, some with a position that is a set."""
    history = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        gtid = f"MariaDB/0-1-{number}"
        history.append(
            SourceTransaction(
                gtid=gtid,
                position=draw(st.sampled_from([gtid, f"{gtid},1-1-7"])),
                timestamp=1_700_000_000 + draw(st.integers(-5, 5)),
                changes=draw(st.lists(st.one_of(rows, rows, rows, events), max_size=12)),
                origin=draw(st.sampled_from(["", "old/0 MariaDB/1-1-3"])),
                opened=draw(st.lists(opened, max_size=2).map(tuple)),
                closed=draw(st.lists(_ids, max_size=2).map(tuple)),
                table_choice=draw(st.integers(0, 2)),
                checksum=draw(st.sampled_from([0, 2**32 - 1])),
                cursor=draw(st.sampled_from(["", "binlog.000007:4711"])),
            )
        )
    return history


def record(txn: SourceTransaction, change: Change) -> tuple[str, Any]:
    """The record name and fields that a reader must see for ``change`` (for rows with the transaction's fields)."""
    if isinstance(change, RowChange):
        about = (txn.gtid, txn.position, txn.timestamp, txn.origin)
        return "row", (change.key, change.operation, change.image, *about)
    return event_record(change, txn.position, 10**9)


def partitions(layout: Layout, change: Change, prefixes: dict[str, int]) -> set[int]:
    """The partitions that ``change`` must at least go to. ``prefixes``: of the tables described before it."""
    match change:
        case RowChange(key):
            return {layout.partition_of(key, prefixes.get(split_row_key(key)[0], 0))}
        case VoidTable() | BackfillTable() | DescribeTable() | BeginScope() | BindName():
            return set(range(layout.partitions))
        case KeylessRow():
            return set()  # the home of the shard, of which a change knows nothing
        case CommitTransaction(_, pairs) | AbortTransaction(_, pairs):
            return {layout.table_partition(table) for table, _ in pairs}
        case _:
            return {layout.table_partition(change.table_id)}


def declared(batches: Iterable[Batch], shard: str, epoch: int) -> Declarations:
    """What the batches say of an epoch."""
    found = Declarations(shard, epoch)
    for batch in batches:
        for partition, value in batch.records:
            if partition == 0:
                found.read(value)
    return found


def read(batches: Iterable[Batch]) -> dict[int, list[tuple[str, Any]]]:
    """Partition → its records in order, decoded and checked; a row frame is split into ``row`` records."""
    seen: dict[int, list[tuple[str, Any]]] = defaultdict(list)
    for batch in batches:
        for partition, value in batch.records:
            name, fields = decode(value)
            check(name, fields)
            if name == "BeforeImages":
                continue  # of rows that are there already
            if name == "RowFrame":
                seen[partition].extend(_frame_rows(fields))
            else:
                seen[partition].append((name, fields))
    return seen


def _frame_rows(frame: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    positions = frame["positions"] or frame["gtids"]
    origins = frame["origins"] or [""] * len(positions)
    row = 0
    about = zip(frame["transactions"], frame["gtids"], positions, frame["timestamps"], origins, strict=True)
    for count, *transaction in about:
        for at in range(row, row + count):
            change = (frame["keys"][at], frame["operations"][at], frame["images"][at])
            yield "row", {"ordinal": frame["ordinal"] + frame["ordinals"][at], "change": (*change, *transaction)}
        row += count
