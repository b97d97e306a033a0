"""Which keys a backfill notes, what ends its progress, and what it resumes from. Without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stream.sources.mariadb.backfill import chunks
from stream.sources.mariadb.backfill import plan as plan_module
from stream.sources.mariadb.backfill.chunks import ChunkReader
from stream.sources.mariadb.backfill.plan import (
    CURSOR_CHARS_MAX,
    PIECE_BYTES,
    PIECE_BYTES_MAX,
    After,
    Chunk,
    Cursor,
    Plan,
    left_tables,
    piece_bytes,
    unfit,
)
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.position import Bounds
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.wire.events import (
    EVERY_TABLE,
    VALUE,
    BackfillTable,
    BeginScope,
    Change,
    Column,
    DescribeTable,
    ResumePoint,
    RowChange,
    RowImages,
    SourceTransaction,
    VoidTable,
)
from stream.wire.keys import row_key

TABLE = "s.t"
DESCRIBED = DescribeTable(TABLE, (Column("id", "int", True),), ("id",))


def at(sequence: int) -> str:
    """A position."""
    return f"MariaDB/0-1-{sequence}"


def row(number: int, table: str = TABLE, size: int = 2) -> RowChange:
    """A row's value."""
    return RowChange(row_key(table, [number]), VALUE, b"x" * size)


def transaction(*changes: Change) -> SourceTransaction:
    """Changes."""
    return SourceTransaction(at(5), at(5), 1, [*changes])


def chunk(*rows: RowChange, last: After | None = None) -> Chunk:
    """What was read at position 5."""
    return Chunk(DESCRIBED, rows, GtidPosition.parse(at(5)), GtidPosition.parse(at(5)), last)


def begun() -> Plan:
    """A plan whose table has begun at position 4."""
    plan = Plan()
    assert plan.begin(TABLE, at(4), 1).changes == [BackfillTable(TABLE, complete=False)]
    plan.take_up(TABLE, at(4))
    return plan


def published(plan: Plan, read: Chunk) -> list[list[Change]]:
    """The changes of the transactions that publish a chunk."""
    return [list(each.changes) for each in plan.publish(read, at(6), 1)]


def test_what_changed_meanwhile_is_left_out() -> None:
    """Keys of the same table that the stream has said since are not said again; other tables' keys don't matter."""
    plan = begun()
    assert not plan.notice(transaction(row(2), row(3, "s.other")))
    assert published(plan, chunk(row(1), row(2), row(3), last=After([3]))) == [[row(1), row(3)]]
    assert plan.cursors == {TABLE: Cursor(After([3]), 3)}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(VoidTable(TABLE, "DDL"), id="void"),
        pytest.param(VoidTable(EVERY_TABLE, "lost"), id="void of all"),
        pytest.param(DESCRIBED, id="description"),
        pytest.param(BeginScope(()), id="scope"),
    ],
)
def test_a_void_ends_progress_and_completeness(change: Change) -> None:
    """The table is read anew, and its cursor is forgotten, also behind rows of the same transaction."""
    plan = begun()
    published(plan, chunk(row(1), last=After([1])))
    assert plan.notice(transaction(row(7), change))
    assert (plan.table, plan.annotations, plan.since) == ("", {"backfills": ""}, None)
    plan.begin(TABLE, at(6), 1)
    plan.take_up(TABLE, at(6))
    published(plan, chunk(row(1)))
    assert plan.complete == {TABLE}
    plan.notice(transaction(change))
    assert (plan.complete, plan.lost) == (set(), {TABLE})


def test_the_last_chunk_makes_a_table_complete() -> None:
    """The completion comes after the rows, by itself, and takes the cursor away."""
    plan = begun()
    assert published(plan, chunk(row(1))) == [[row(1)], [BackfillTable(TABLE, complete=True)]]
    assert (plan.complete, plan.table, plan.annotations) == ({TABLE}, "", {"backfills": ""})


def test_no_transaction_of_a_chunk_is_larger_than_the_smallest_batch() -> None:
    """A transaction that is split over batches would have to be continued by the next source."""
    plan = begun()
    found = published(plan, chunk(*(row(number, size=3_000) for number in range(20)), last=After([19])))
    assert len(found) > 4
    assert [each for piece in found for each in piece] == [row(number, size=3_000) for number in range(20)]
    sizes = [sum(len(each.image) for each in piece if isinstance(each, RowChange)) for piece in found]
    assert max(sizes) <= PIECE_BYTES


def test_rows_as_columns_are_published_as_others_are() -> None:
    """What changed meanwhile is left out of them too, and they are cut into transactions at the same places."""
    rows = [row(number, size=900) for number in range(40)]
    columns = RowImages(TABLE, [each.key for each in rows], [each.image for each in rows])
    found = []
    for each in (rows, columns):
        plan = begun()
        plan.notice(transaction(row(3), row(17)))
        read = replace(chunk(last=After([39])), rows=each)
        pieces = [each.changes for each in plan.publish(read, at(6), 1)]
        found.append([[*piece] for piece in pieces])
        assert plan.cursors == {TABLE: Cursor(After([39]), 40)}
    assert found[0] == found[1]
    assert [each for piece in found[0] for each in piece] == [
        each for each in rows if each not in (row(3, size=900), row(17, size=900))
    ]


def test_pieces_are_as_large_as_batches_allow() -> None:
    """Each piece costs a reader as a transaction does; a half of a batch is never split over two."""
    assert piece_bytes(16 << 10) == PIECE_BYTES
    assert piece_bytes(64 << 10) == 32 << 10
    assert piece_bytes(256 << 20) == PIECE_BYTES_MAX


def test_too_many_changed_keys_end_the_noting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was read before may be published then."""
    monkeypatch.setattr(plan_module, "KEYS_MAX", 2)
    plan = begun()
    plan.notice(transaction(row(1), row(2)))
    assert plan.since is not None
    plan.notice(transaction(row(3)))
    assert plan.table == ""
    plan.take_up(TABLE, at(9))
    assert published(plan, chunk(row(3), last=After([3]))) == [[row(3)]]


def test_a_cursor_is_taken_up_in_its_epoch_and_while_its_table_is_described() -> None:
    """Another epoch's progress does not count, nor that of a table that is gone."""
    plan = Plan.resume(ResumePoint("s", 3, 1, at(1), 1, at(1), descriptions={TABLE: DESCRIBED}))
    plan.begin(TABLE, at(4), 1)
    plan.take_up(TABLE, at(4))
    published(plan, chunk(row(1), last=After(["ü", 7])))
    words = dict(plan.annotations)

    def resumed(epoch: int, tables: tuple[str, ...]) -> Plan:
        described = dict.fromkeys(tables, DESCRIBED)
        return Plan.resume(
            ResumePoint(
                "s", epoch, 9, at(5), 1, at(1), annotations=words, descriptions=described, complete=frozenset("x")
            )
        )

    again = resumed(3, (TABLE,))
    assert (again.cursors, again.table, again.complete) == ({TABLE: Cursor(After(["ü", 7]), 1)}, "", {"x"})
    assert (resumed(4, (TABLE,)).cursors, resumed(3, ()).cursors) == ({}, {})
    assert json.loads(words["backfills"]) == [3, {TABLE: [["ü", 7], 1]}], "as versions before have it"


def test_a_cursor_in_another_order_is_none_for_who_does_not_know_it() -> None:
    """An older version took it for one in ascending order, and left rows out. So it finds the table's beginning."""
    cursor = Cursor(After(["ü", 7], ("b",)), 9)
    words = json.loads(json.dumps(cursor.words))
    assert words[:2] == [None, 9]
    told = Cursor.told(words)
    assert told.after is not None
    assert (told.after.key, [*told.after.turned], told.rows) == (["ü", 7], ["b"], 9)
    assert Cursor.told([None, 0]) == Cursor()


@pytest.mark.parametrize(("lo", "follows"), [("0-1-5", True), ("0-2-6", True), ("0-2-5", False), ("0-1-4", False)])
def test_a_chunk_of_a_server_that_lost_the_last_change_does_not_count(lo: str, follows: bool) -> None:
    """It has a transaction of the same number, but not the one from which on changed keys are noted."""
    read = Chunk(DESCRIBED, (), GtidPosition.parse(lo), GtidPosition.parse(lo), None)
    assert read.follows(GtidPosition.parse(at(5))) is follows


def test_a_table_put_aside_goes_on_where_it_was() -> None:
    """Meanwhile another one is read; what changes then is in the stream, so nothing is read twice."""
    plan = begun()
    published(plan, chunk(row(1), last=After([1])))
    plan.put_aside()
    plan.begin("s.other", at(5), 1)
    plan.take_up("s.other", at(5))
    assert not plan.notice(transaction(row(2)))
    assert left_tables(plan, [DESCRIBED, replace(DESCRIBED, table="s.new")]) == [TABLE, "s.new"]
    plan.take_up(TABLE, at(5))
    assert published(plan, chunk(row(2), last=After([2]))) == [[row(2)]]
    assert plan.cursors == {TABLE: Cursor(After([2]), 2), "s.other": Cursor()}


def test_a_void_of_a_table_that_is_put_aside_ends_its_progress_alone() -> None:
    """The table that is read goes on, and the cursor of the other one is gone from the words."""
    plan = begun()
    plan.put_aside()
    plan.begin("s.other", at(5), 1)
    plan.take_up("s.other", at(5))
    assert plan.notice(transaction(VoidTable(TABLE, "DDL")))
    assert (plan.table, plan.cursors, plan.lost) == ("s.other", {"s.other": Cursor()}, {TABLE})
    assert TABLE not in str(plan.annotations)


def test_keys_that_are_too_long_to_remember_cost_their_table_a_restart() -> None:
    """The state of a shard has room for so much; the cursors that fit are kept."""
    plan = begun()
    published(plan, chunk(row(1), last=After(["k" * CURSOR_CHARS_MAX])))
    plan.begin("s.other", at(5), 1)
    plan.take_up("s.other", at(5))
    again = Plan.resume(
        ResumePoint("s", 0, 1, at(5), 1, at(1), annotations=dict(plan.annotations), descriptions={"s.other": DESCRIBED})
    )
    assert (again.cursors, len(str(plan.annotations)) < CURSOR_CHARS_MAX) == ({"s.other": Cursor()}, True)


def test_tables_come_in_order_and_unfit_ones_are_passed_over() -> None:
    """Complete tables, those without a key, read-through ones and keys that sort otherwise are not read."""
    keyed = [DescribeTable(name, DESCRIBED.columns, ("id",)) for name in ("s.c", "s.b", "s.a")]
    others = [
        DescribeTable("s.1", DESCRIBED.columns, ()),
        DescribeTable("s.2", DESCRIBED.columns, ("id",), cacheable=False, reason="no snapshots"),
        DescribeTable("s.3", (Column("id", "enum", True),), ("id",)),
    ]
    assert all(map(unfit, others))
    assert left_tables(Plan({"s.a"}), [*keyed, *others]) == ["s.b", "s.c"]
    assert left_tables(Plan({"s.a", "s.b", "s.c"}), [*keyed, *others]) == []


class Rows:
    """So many rows, which a statement returns at once."""

    def __init__(self, count: int) -> None:
        self.is_over = False
        self._count = count

    def read(self) -> list[list[bytes | None]]:
        """Their column, once."""
        found: list[bytes | None] = [b"%d" % number for number in range(self._count)]
        self._count, self.is_over = 0, True
        return [found] if found else []


@pytest.mark.parametrize(("rows", "is_end"), [(0, True), (3, True), (4, False)])
def test_a_chunk_with_as_many_rows_as_were_asked_for_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, rows: int, is_end: bool
) -> None:
    """Others may follow: a table that is called complete without them would have no such rows for ever."""
    for name, value in (("bounded", lambda _, __, wanted, *___: wanted), ("timed", lambda *_: "")):
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setattr(chunks, "select_range", lambda *_: "")
    monkeypatch.setattr(chunks, "RowPackets", lambda *_: Rows(rows))
    reader = ChunkReader(ConnectionSettings(port=1))
    reader._limit = 4
    session: Any = None
    found, last = reader._rows(session, TableInfo("d", "t", (ColumnInfo("id", "int", True),), ("id",)), None)
    assert (len(found), last is None) == (rows, is_end)


def test_rows_of_another_server_than_the_one_whose_place_is_known_are_no_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that is broken off costs the session, and its address may lead elsewhere by then."""
    reader = ChunkReader(ConnectionSettings(port=1))
    session = SimpleNamespace(query=lambda _: None, rollback=lambda: None)

    def rows(*_: Any) -> tuple[list[RowChange], None]:
        reader._server = "2"
        return [], None

    for name, value in (("_connect", lambda: session), ("_locked", lambda *_: None), ("_rows", rows)):
        monkeypatch.setattr(reader, name, value)
    monkeypatch.setattr(chunks, "committed_place", lambda _: None)
    monkeypatch.setattr(chunks, "bounds_since", lambda *_: Bounds(at(5), at(5), 1, True))
    assert reader._read(DESCRIBED, None, ()) is None
    assert reader._read(DESCRIBED, None, ()) is not None


def test_what_changed_before_a_table_is_taken_up_again_is_read_and_not_left_out() -> None:
    """Its chunks have it: left out, such rows would be missing from a table that is called complete."""
    plan = begun()
    plan.notice(transaction(row(2)))
    plan.put_aside()
    plan.take_up(TABLE, at(5))
    assert published(plan, chunk(row(2))) == [[row(2)], [BackfillTable(TABLE, complete=True)]]
