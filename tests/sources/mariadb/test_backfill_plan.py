"""Which keys a backfill notes, what ends its progress, and what it resumes from. Without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from stream.sources.mariadb.backfill import plan as plan_module
from stream.sources.mariadb.backfill.choice import Choice
from stream.sources.mariadb.backfill.plan import (
    CURSOR_CHARS_MAX,
    PIECE_BYTES,
    Chunk,
    Cursor,
    Plan,
    left_tables,
    unfit,
)
from stream.sources.mariadb.backfill.reading import AHEAD_MAX, Wanted
from stream.sources.mariadb.backfill.run import Backfill, BackfillOptions
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.connection import MariaDBError
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import TableFilter
from stream.sources.status import SourceStatus
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


def chunk(*rows: RowChange, last: list[object] | None = None) -> Chunk:
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
    assert published(plan, chunk(row(1), row(2), row(3), last=[3])) == [[row(1), row(3)]]
    assert plan.cursors == {TABLE: Cursor([3], 3)}


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
    published(plan, chunk(row(1), last=[1]))
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
    found = published(plan, chunk(*(row(number, size=3_000) for number in range(20)), last=[19]))
    assert len(found) > 4
    assert [each for piece in found for each in piece] == [row(number, size=3_000) for number in range(20)]
    sizes = [sum(len(each.image) for each in piece if isinstance(each, RowChange)) for piece in found]
    assert max(sizes) <= PIECE_BYTES


def test_too_many_changed_keys_end_the_noting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was read before may be published then."""
    monkeypatch.setattr(plan_module, "KEYS_MAX", 2)
    plan = begun()
    plan.notice(transaction(row(1), row(2)))
    assert plan.since is not None
    plan.notice(transaction(row(3)))
    assert plan.table == ""
    plan.take_up(TABLE, at(9))
    assert published(plan, chunk(row(3), last=[3])) == [[row(3)]]


def test_a_cursor_is_taken_up_in_its_epoch_and_while_its_table_is_described() -> None:
    """Another epoch's progress does not count, nor that of a table that is gone."""
    plan = Plan.resume(ResumePoint("s", 3, 1, at(1), 1, at(1), descriptions={TABLE: DESCRIBED}))
    plan.begin(TABLE, at(4), 1)
    plan.take_up(TABLE, at(4))
    published(plan, chunk(row(1), last=["ü", 7]))
    words = dict(plan.annotations)

    def resumed(epoch: int, tables: tuple[str, ...]) -> Plan:
        described = dict.fromkeys(tables, DESCRIBED)
        return Plan.resume(
            ResumePoint(
                "s", epoch, 9, at(5), 1, at(1), annotations=words, descriptions=described, complete=frozenset("x")
            )
        )

    again = resumed(3, (TABLE,))
    assert (again.cursors, again.table, again.complete) == ({TABLE: Cursor(["ü", 7], 1)}, "", {"x"})
    assert (resumed(4, (TABLE,)).cursors, resumed(3, ()).cursors) == ({}, {})


@pytest.mark.parametrize(("lo", "follows"), [("0-1-5", True), ("0-2-6", True), ("0-2-5", False), ("0-1-4", False)])
def test_a_chunk_of_a_server_that_lost_the_last_change_does_not_count(lo: str, follows: bool) -> None:
    """It has a transaction of the same number, but not the one from which on changed keys are noted."""
    read = Chunk(DESCRIBED, (), GtidPosition.parse(lo), GtidPosition.parse(lo), None)
    assert read.follows(GtidPosition.parse(at(5))) is follows


def test_a_table_put_aside_goes_on_where_it_was() -> None:
    """Meanwhile another one is read; what changes then is in the stream, so nothing is read twice."""
    plan = begun()
    published(plan, chunk(row(1), last=[1]))
    plan.put_aside()
    plan.begin("s.other", at(5), 1)
    plan.take_up("s.other", at(5))
    assert not plan.notice(transaction(row(2)))
    assert left_tables(plan, [DESCRIBED, replace(DESCRIBED, table="s.new")]) == [TABLE, "s.new"]
    plan.take_up(TABLE, at(5))
    assert published(plan, chunk(row(2), last=[2])) == [[row(2)]]
    assert plan.cursors == {TABLE: Cursor([2], 2), "s.other": Cursor()}


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
    published(plan, chunk(row(1), last=["k" * CURSOR_CHARS_MAX]))
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


class Watched:
    """A backfill whose chunks a test gives, with a clock of its own."""

    def __init__(self, *tables: str, **options: float) -> None:
        self.now = 100.0
        self.takes_s = 0.0
        self.annotated: list[dict[str, str]] = []
        self.said: list[SourceTransaction] = []
        self.first: Chunk | None = None
        self.failed: MariaDBError | None = None
        self.wanted: list[str] = []
        self.estimate = 0
        catalog = Catalog()
        catalog.describe_as({name: replace(DESCRIBED, table=name) for name in tables})
        point = ResumePoint("s", 1, 1, at(1), 1, at(1))
        self.status = SourceStatus(clock=lambda: self.now)
        chosen = BackfillOptions(TableFilter(), **options)  # type: ignore[arg-type]
        self.run = Backfill(chosen, self, self, catalog, point, self.status, clock=lambda: self.now)

    def want(self, wanted: Wanted | None) -> None:
        """Whose chunks are wanted."""
        self.failed = None
        self.wanted += [wanted.described.table] if wanted else []

    def take(self) -> None:
        """The test gives the same chunk again."""

    def close(self) -> None:
        """Nothing is open."""

    def publish(self, txn: SourceTransaction) -> None:
        """Kept; a chunk takes its time."""
        self.said.append(txn)
        if not isinstance(txn.changes[0], BackfillTable):
            self.now += self.takes_s

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Kept."""
        self.annotated.append(dict(annotations))

    def point(self, annotations: dict[str, str]) -> ResumePoint:
        """From where a source goes on that finds these words."""
        return ResumePoint("s", 1, 1, at(1), 1, at(1), annotations=annotations, descriptions={TABLE: DESCRIBED})

    def begins_after(self) -> float:
        """Seconds until the table is begun again."""
        before, count = self.now, len(self.said)
        while len(self.said) == count:
            self.run.step(at(9), 1, lambda _: False)
            self.now += 0.25
        return self.now - 0.25 - before


def test_a_table_that_is_voided_again_and_again_waits_longer_each_time() -> None:
    """Else a table with cascades would be read and published for ever; one that was left alone does not wait long."""
    watched = Watched(TABLE)
    assert watched.begins_after() == 0
    waited = []
    for _ in range(5):
        watched.run.notice(transaction(VoidTable(TABLE, "cascade")))
        waited.append(watched.begins_after())
    assert waited == [0.5, 1.0, 2.0, 4.0, 8.0]
    watched.now += 1_000
    watched.run.notice(transaction(VoidTable(TABLE, "DDL")))
    assert watched.begins_after() == 0.5


def test_a_step_is_bounded_while_chunks_keep_coming() -> None:
    """The source must look at its server and be stoppable between steps, however fast chunks are read."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=[1])
    watched.run.step(at(9), 1, lambda _: True)
    begins, *chunks = watched.said
    assert list(begins.changes) == [BackfillTable(TABLE, complete=False)]
    assert len(chunks) == AHEAD_MAX


def test_a_table_that_cannot_be_read_leaves_its_turn_to_the_next() -> None:
    """It is tried again after a pause that grows with each failure, though an attempt itself may take 20 s."""
    watched = Watched("s.a", "s.b")
    tried_at = []
    for _ in range(4):
        while watched.wanted[-1:] != ["s.a"]:
            watched.run.step(at(9), 1, lambda _: False)
            watched.now += 0.25
        tried_at.append(watched.now)
        watched.now += 20
        watched.failed = MariaDBError("denied")
        watched.run.step(at(9), 1, lambda _: False)
        watched.run.step(at(9), 1, lambda _: False)
        assert watched.wanted[-1] == "s.b"
        watched.failed = MariaDBError("denied, too")
        watched.run.step(at(9), 1, lambda _: False)
    pauses = [round(later - before - 20) for before, later in pairwise(tried_at)]
    assert pauses == [5, 10, 20]
    assert [list(each.changes) for each in watched.said] == [
        [BackfillTable("s.a", complete=False)],
        [BackfillTable("s.b", complete=False)],
    ]


def test_a_void_ends_what_is_said_of_the_table_that_is_read() -> None:
    """Metrics and the command must not show a table as being read that waits, or is gone."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=[1])
    watched.run.step(at(9), 1, lambda _: True)
    assert (watched.status.backfill.table, watched.status.backfill.rows) == (TABLE, AHEAD_MAX)
    watched.run.notice(transaction(VoidTable(TABLE, "DDL")))
    assert watched.status.backfill.table == ""
    said = {name for name, text in watched.annotated[-1].items() if text}
    assert {"backfills", "backfill_progress"}.isdisjoint(said)


class Asking:
    """Requests that a test makes."""

    def __init__(self, *values: bytes) -> None:
        self.left = list(enumerate(values, 1))

    def new(self, offset: int) -> list[tuple[int, bytes]]:
        """Those that are left."""
        found, self.left = [each for each in self.left if each[0] > offset], []
        return found

    def close(self) -> None:
        """Nothing is open."""


def test_a_request_is_done_and_remembered_in_one_batch() -> None:
    """A complete table that is named begins again before the request counts as read: no kill in between loses it."""
    watched = Watched(TABLE)
    watched.run.step(at(9), 1, lambda _: False)
    watched.first = chunk(row(1))
    watched.run.step(at(9), 1, lambda _: True)
    assert list(watched.said[-1].changes) == [BackfillTable(TABLE, complete=True)]
    watched.run._requests = Asking(b'{"start": true, "table": "s.t"}', b"garbage")
    watched.annotated.clear()
    watched.run.step(at(9), 1, lambda _: False)
    assert list(watched.said[-1].changes) == [BackfillTable(TABLE, complete=False)]
    assert Choice.told(watched.annotated[0]).offset == 2
    assert Plan.resume(watched.point(watched.annotated[0])).cursors == {TABLE: Cursor()}


def test_a_cancelled_table_is_put_aside_and_goes_on_when_it_is_started() -> None:
    """Its cursor is kept meanwhile, and voids still end it."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=[1])
    watched.run._requests = Asking()
    watched.run.step(at(9), 1, lambda _: True)
    said = len(watched.said)
    for value in (b'{"start": false}', b'{"start": true, "table": "s.t"}'):
        watched.run._requests = Asking(*[b""] * len(watched.annotated), value)
        watched.now += 1
        watched.run.step(at(9), 1, lambda _: True)
        if b"false" in value:
            assert len(watched.said) == said
            watched.run.step(at(9), 1, lambda _: True)
            assert len(watched.said) == said
    assert len(watched.said) > said
    assert [each for each in watched.said if list(each.changes) == [BackfillTable(TABLE, complete=False)]] == [
        watched.said[0]
    ]


def test_chunks_wait_while_the_source_is_behind() -> None:
    """Other changes come first; the state says why nothing is published."""
    watched = Watched(TABLE, lag_max_s=2.0)
    watched.first = chunk(row(1), last=[1])
    watched.status.caught_up(1)
    watched.now += 3
    watched.run.step(at(9), 1, lambda _: True)
    assert len(watched.said) == 1
    assert "3.0 s behind" in watched.status.backfill.paused
    assert "behind" in watched.annotated[-1]["backfill_progress"]
    watched.status.caught_up(1)
    watched.run.step(at(9), 1, lambda _: True)
    assert len(watched.said) == 1 + AHEAD_MAX
    assert not watched.status.backfill.paused


def test_chunks_take_no_more_than_their_share_of_the_time() -> None:
    """After a second of publishing, three seconds belong to other work, if the share is a quarter."""
    watched = Watched(TABLE, share=0.25)
    watched.first = chunk(row(1), last=[1])
    watched.takes_s = 1 / AHEAD_MAX
    watched.run.step(at(9), 1, lambda _: True)
    said, ended = len(watched.said), watched.now
    while len(watched.said) == said:
        watched.now += 0.125
        watched.run.step(at(9), 1, lambda _: True)
    assert watched.now - ended - 1 == 3.0
