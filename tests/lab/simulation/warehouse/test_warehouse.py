"""The world of a live catalog: what its model of a metastore says, and that its judge finds what it is for."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from lab.simulation.engine import History, run_one
from lab.simulation.hive.judging import read_list
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.warehouse import judging, thrift
from lab.simulation.warehouse.judging import Answer, CatalogJudge, Listed
from lab.simulation.warehouse.metastore import Warehouse
from lab.simulation.warehouse.serving import MetastoreServer
from lab.simulation.warehouse.world import WarehouseWorld
from stream.sources.hive.messages import table_of
from stream.sources.hive.rpc.thrift import Reader, message, record, text, texts

WORLD = WarehouseWorld()
MADE: History = [("world", 1, 0, 0, 0, 0), ("create", 0, 4), ("partition", 0, 4, 0, 0), ("let", 3)]


def test_a_table_and_its_partitions_come_from_the_cache() -> None:
    """Metastore, source, fold, front and session: what was made is read, first and last."""
    outcome = run_one(WORLD, [*MADE, ("table", 0, 0, 0, 0, 3), ("partitions", 0, 0, 0, 0, 0, 3)])
    assert outcome.violations == []
    assert outcome.answers["fresh from the cache"] >= 4
    assert outcome.answers["eventual from the cache"] >= 2  # databases have no list
    assert outcome.answers["stores compared"] == 1


def test_a_front_answers_without_the_metastore_if_it_may() -> None:
    """What it has is marked as stale, and taken for no more than that."""
    away: History = [("metastore", 1, 0), ("alter", 0, 0), ("observe", 0)]
    reads: History = [("table", 0, 0, 0, 0, 3), ("partitions", 0, 0, 0, 0, 0, 3)]
    for may_be_stale, said in ((1, "stale from the cache"), (0, "refused: source_unreachable")):
        begin: History = [("world", 1, 0, 0, 0, 0, may_be_stale), *MADE[1:], reads[0]]
        outcome = run_one(WORLD, [*begin, *away, *reads])
        assert outcome.violations == []
        assert outcome.answers[said] == 2


def test_a_writer_of_a_table_that_is_made_later_ends_after_a_restart_of_the_source() -> None:
    """Its ALLOC came before the CREATE, and the topic did not know of which table. Its COMMIT ended nothing."""
    ops: History = [("open", 0), ("allocate", 3, 0, 0), ("break", 3, 0), ("create", 3, 1), ("kill", 0, 0)]
    assert run_one(WORLD, [("let", 1), *ops[:4], ("table", 0, 0, 0, 0, 3), *ops[4:]]).violations == []


def test_partitions_that_are_dropped_while_they_are_read_are_known_again() -> None:
    """The source says that two are not there; the second one waited for an image for ever, and the list with it."""
    ops: History = [("create", 2, 1), ("let", 1), ("partition", 2, 0, 1, 0), ("partition", 2, 0, 5, 0)]
    dropped: History = [("partition", 2, 0, 1, 0), ("slow", 2, 3), ("partition", 2, 0, 5, 0)]
    assert run_one(WORLD, [*ops, *dropped]).violations == []


@pytest.mark.parametrize("kind", [0, 1])
def test_a_materialized_view_comes_from_the_metastore(kind: int) -> None:
    """It is rebuilt without an event: a reader that knows of the rebuild must get what it was made from."""
    read, view = ("table", 0, 1, 0, 0, 3), ("view", 1, kind)
    outcome = run_one(WORLD, [*MADE, view, ("let", 3), read, view, ("let", 3), ("observe", 0), read])
    assert outcome.violations == []
    assert outcome.answers["fresh from the source"] >= 2
    assert {fault for fault, _ in outcome.met} >= {"rebuilt without an event"}


def test_what_is_dropped_without_an_event_is_shown_no_more_in_the_end() -> None:
    """A remote database, and functions that go with theirs; also behind a source that was away meanwhile."""
    remote: History = [("vanish", 2), ("function", 0), ("let", 3)]
    away: History = [("kill", 0, 0), ("vanish", 2), ("vanish", 0), ("start", 0)]
    for gone in ([("vanish", 2), ("vanish", 0)], away):
        outcome = run_one(WORLD, [*MADE, *remote, *gone])
        assert outcome.violations == []
        assert {fault for fault, _ in outcome.met} >= {"dropped without an event"}


def test_the_naive_thrift_is_what_the_product_reads() -> None:
    """A table that the model writes is the table that the product parses."""
    warehouse = Warehouse(lambda: 0.0)
    warehouse.create_table("s.a", "full", partitioned=True)
    server = MetastoreServer(Kernel(Random(1)), warehouse, 0)
    asked = message("get_table_req", 7, {1: record({1: text("s"), 2: text("a"), 8: texts(["HIVESQL"])})})
    answered = [server.answer(asked)]
    name, kind, sequence, result = Reader(answered.pop).message()
    assert (name, kind, sequence) == ("get_table_req", thrift.REPLY, 7)
    shown = table_of(result[0][1][1][1], "table")
    assert (shown.name, shown.table_id, shown.transactional) == ("s.a", 1, True)
    assert shown.partition_keys == ("ds", "hr")


def test_a_reader_of_another_moment_sees_other_ids() -> None:
    """The server's list is computed from the reader's transactions, not from its own."""
    warehouse = Warehouse(lambda: 0.0)
    warehouse.create_table("s.a", "full", partitioned=False)
    one, two = warehouse.open_txns(2)
    warehouse.allocate("s.a", [one, two])
    warehouse.end(one, commit=True)
    assert warehouse.lists_for("s.a", two, {two}, set()) == (2, [2], [], 2)
    assert warehouse.lists_for("s.a", two, {one}, set()) == (2, [1], [], 1)
    assert warehouse.lists_for("s.a", two, {one}, {two}) == (1, [1], [], 1)
    assert warehouse.lists_for("s.a", two, {two}, {one}) == (1, [1], [1], 2)
    assert read_list(warehouse.valid_write_ids("s.a")) == (2, {2}, set())


class Story:
    """A warehouse with one table, a judge, and a reader."""

    def __init__(self) -> None:
        self.now = 0.0
        self.broken: list[str] = []
        self.warehouse = Warehouse(lambda: self.now)
        self.judge = CatalogJudge(self.warehouse, lambda rule, _: self.broken.append(rule), lambda: False)
        self.warehouse.create_table("s.a", "full", partitioned=False)
        self.changed(0)

    def changed(self, txn: int) -> None:
        """The table was written; then time passes."""
        self.warehouse.wrote("s.a", txn)
        self.warehouse.record()
        self.now += 1

    def alter(self, txn: int = 0) -> None:
        """An ALTER TABLE."""
        self.warehouse.alter("s.a", txn)
        self.changed(txn)

    def listed(self) -> Listed:
        """The list of the moment."""
        return Listed("s.a", 1, self.warehouse.valid_write_ids("s.a"), len(self.warehouse.states) - 1)

    def read(self, version: int, listed: Listed | None = None, session: str = "s", **said: Any) -> None:
        """The table in this version is the answer."""
        parameters = self.warehouse.parameters("s.a") | {"version": str(version)}
        image = {"dbName": "s", "tableName": "a", "id": 1, "parameters": parameters}
        made = SimpleNamespace(
            **{"served_from": "cache", "freshness": "fresh", "why": "folded", "write_ids": "", **said}
        )
        answer = Answer(
            "s.a", judging.is_table("s.a", 1, image), made.served_from, made.freshness, made.why, "s.a", made.write_ids
        )
        self.judge.answered(session, self.judge.asked(session, self.now), self.now, answer, listed)


def stale(story: Story) -> None:
    """The list counts a write as committed, and the image is from before it."""
    [txn] = story.warehouse.open_txns(1)
    story.warehouse.allocate("s.a", [txn])
    story.alter(txn)
    story.warehouse.end(txn, commit=True)
    story.warehouse.record()
    story.read(0, story.listed())


def own_write_missing(story: Story) -> None:
    """A session does not see its own change."""
    story.alter()
    story.judge.wrote("s")
    story.read(0)


def write_without_a_list_missing(story: Story) -> None:
    """A transaction does not see what it has written to a table that has no list."""
    story.alter()
    story.read(0, Listed("s.a", 1, "", len(story.warehouse.states) - 1))


def back_in_time(story: Story) -> None:
    """A session sees a version, and then the one before."""
    story.alter()
    story.read(1, story.listed())
    story.read(0)


def pending(story: Story) -> None:
    """The cache gives what an open transaction has written."""
    [txn] = story.warehouse.open_txns(1)
    story.warehouse.allocate("s.a", [txn])
    story.alter(txn)
    story.read(1, story.listed())


def never_so(story: Story) -> None:
    """A version that the table never had."""
    story.read(7, story.listed())


def uncovered(story: Story) -> None:
    """The answer's list lacks an id that the reader's has."""
    [txn] = story.warehouse.open_txns(1)
    story.warehouse.allocate("s.a", [txn])
    before = story.warehouse.valid_write_ids("s.a")
    story.warehouse.end(txn, commit=True)
    story.warehouse.record()
    story.read(0, story.listed(), write_ids=before)


def unexplained(story: Story) -> None:
    """A reader without a demand is told that its answer is fresh."""
    story.read(0)


def lost_for_nothing(story: Story) -> None:
    """A session is told that history is lost, and none is."""
    story.judge.refused("s", "history_lost")


def refused_wrongly(story: Story) -> None:
    """A reader who does nothing wrong gets an error of the front."""
    story.judge.refused("s", "internal")


@pytest.mark.parametrize(
    ("tell", "rule"),
    [
        (stale, judging.STALE),
        (own_write_missing, judging.OWN_WRITES),
        (write_without_a_list_missing, judging.OWN_WRITES),
        (back_in_time, judging.MONOTONIC),
        (pending, judging.UNCOMMITTED),
        (never_so, judging.UNCOMMITTED),
        (uncovered, judging.COVERED),
        (unexplained, "explanation true"),
        (lost_for_nothing, "explanation true"),
        (refused_wrongly, "never raises"),
    ],
)
def test_each_rule_is_broken_by_a_story(tell: Callable[[Story], None], rule: str) -> None:
    """The judge finds what somebody wrote by hand, and names the rule."""
    story = Story()
    tell(story)
    assert story.broken == [rule]


def test_what_is_right_breaks_no_rule() -> None:
    """The same reads, of the versions that are demanded."""
    story = Story()
    [txn] = story.warehouse.open_txns(1)
    story.warehouse.allocate("s.a", [txn])
    story.read(0, story.listed())
    story.alter(txn)
    story.warehouse.end(txn, commit=True)
    story.warehouse.record()
    story.judge.wrote("s")
    story.read(1, story.listed(), write_ids=story.warehouse.valid_write_ids("s.a"))
    assert story.broken == []
