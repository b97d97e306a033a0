"""Which keys a backfill notes, what ends its progress, and what it resumes from. Without a server."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stream.sources.mariadb.backfill import plan as plan_module
from stream.sources.mariadb.backfill.plan import PIECE_BYTES, Chunk, Plan, left_tables, unfit
from stream.sources.mariadb.backfill.reading import ChunkReading, Wanted
from stream.sources.mariadb.backfill.run import Backfill, BackfillOptions
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.connection import ConnectionSettings
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
    return plan


def published(plan: Plan, read: Chunk) -> list[list[Change]]:
    """The changes of the transactions that publish a chunk."""
    return [list(each.changes) for each in plan.publish(read, at(6), 1)]


def test_what_changed_meanwhile_is_left_out() -> None:
    """Keys of the same table that the stream has said since are not said again; other tables' keys don't matter."""
    plan = begun()
    assert not plan.notice(transaction(row(2), row(3, "s.other")))
    assert published(plan, chunk(row(1), row(2), row(3), last=[3])) == [[row(1), row(3)]]
    assert (plan.after, plan.rows) == ([3], 3)


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
    assert (plan.table, plan.annotations, plan.since) == ("", {}, None)
    plan.begin(TABLE, at(6), 1)
    published(plan, chunk(row(1)))
    assert plan.complete == {TABLE}
    plan.notice(transaction(change))
    assert (plan.complete, plan.lost) == (set(), {TABLE})


def test_the_last_chunk_makes_a_table_complete() -> None:
    """The completion comes after the rows, by itself, and takes the cursor away."""
    plan = begun()
    assert published(plan, chunk(row(1))) == [[row(1)], [BackfillTable(TABLE, complete=True)]]
    assert (plan.complete, plan.table, plan.annotations) == ({TABLE}, "", {})


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
    assert plan.since is None
    plan.note_from(at(9))
    assert published(plan, chunk(row(3), last=[3])) == [[row(3)]]


def test_a_cursor_is_taken_up_in_its_epoch_and_while_its_table_is_described() -> None:
    """Another epoch's progress does not count, nor that of a table that is gone."""
    plan = Plan.resume(ResumePoint("s", 3, 1, at(1), 1, at(1), descriptions={TABLE: DESCRIBED}))
    plan.begin(TABLE, at(4), 1)
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
    assert (again.table, again.after, again.rows, again.since, again.complete) == (TABLE, ["ü", 7], 1, None, {"x"})
    assert (resumed(4, (TABLE,)).table, resumed(3, ()).table) == ("", "")


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
    """A backfill of one table whose chunks nobody reads, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[SourceTransaction] = []
        catalog = Catalog()
        catalog.describe_as({TABLE: DESCRIBED})
        point = ResumePoint("s", 1, 1, at(1), 1, at(1))
        reading = ChunkReading(ConnectionSettings(port=1))
        reading.want = self._want  # type: ignore[method-assign]
        options = BackfillOptions(TableFilter())
        self.run = Backfill(options, reading, self, catalog, point, SourceStatus(), clock=lambda: self.now)

    def _want(self, wanted: Wanted | None) -> None:
        """Nobody reads it."""

    def publish(self, txn: SourceTransaction) -> None:
        """Kept."""
        self.said.append(txn)

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Not looked at."""

    def begins_after(self) -> float:
        """Seconds until the table is begun again."""
        before, count = self.now, len(self.said)
        while len(self.said) == count:
            self.run.step(at(9), 1, lambda _: False)
            self.now += 0.25
        return self.now - 0.25 - before


def test_a_table_that_is_voided_again_and_again_waits_longer_each_time() -> None:
    """Else a table with cascades would be read and published for ever; one that was left alone does not wait long."""
    watched = Watched()
    assert watched.begins_after() == 0
    waited = []
    for _ in range(5):
        watched.run.notice(transaction(VoidTable(TABLE, "cascade")))
        waited.append(watched.begins_after())
    assert waited == [0.5, 1.0, 2.0, 4.0, 8.0]
    watched.now += 1_000
    watched.run.notice(transaction(VoidTable(TABLE, "DDL")))
    assert watched.begins_after() == 0.5
