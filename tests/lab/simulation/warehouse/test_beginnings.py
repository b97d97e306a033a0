"""What a transaction fetches when it begins: the judge finds what it is for, and the world asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.simulation.engine import History, run_one
from lab.simulation.warehouse.beginnings import Begun, ListedTable, TransactionJudge
from lab.simulation.warehouse.metastore import Warehouse
from lab.simulation.warehouse.world import WarehouseWorld

NONE_OPEN = 2**63 - 1
LISTED: dict[str, Any] = {"own": 0, "txns": "3:2:2:3", "table_id": 1, "write_ids": "s.a:3:2:2:3", "given": ""}


class Story:
    """A table with the write ids 1 (committed), 2 (open) and 3 (aborted), of the transactions of these numbers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.broken: list[str] = []
        self.warehouse = Warehouse(lambda: self.now)
        self.judge = TransactionJudge(self.warehouse, lambda rule, _: self.broken.append(rule), lambda: False)
        self.warehouse.create_table("s.a", "full", partitioned=False)
        self.warehouse.allocate("s.a", self.warehouse.open_txns(3))
        self.warehouse.end(1, commit=True)
        self.warehouse.end(3, commit=False)
        self.passes()

    def passes(self) -> None:
        """The catalog is as it is now, and time passes."""
        self.warehouse.record()
        self.now += 1

    def begun(self, meanwhile: Callable[[], object] = lambda: None, **said: Any) -> list[str]:
        """The rules that are broken by an answer to a request during which something happened."""
        asked = self.judge.asked("s", self.now)
        meanwhile()
        self.passes()
        told = LISTED | said
        tables = [ListedTable("s.a", told["table_id"], told["write_ids"])]
        served_from = told.get("served_from", "source")
        why = "read from the source at HiveEvent/9" if served_from == "source" else "folded"
        begun = Begun(told["own"], told["given"], False, told["txns"], tables, served_from, "eventual", why)
        self.judge.began("s", asked, self.now, begun)
        return self.broken


def test_an_answer_of_the_moment_breaks_no_rule() -> None:
    """To a reader, to the writer of the open id, and to one that had its list of transactions already."""
    assert Story().begun() == []
    assert Story().begun(own=2, txns=f"2:{NONE_OPEN}::", write_ids=f"s.a:3:{NONE_OPEN}:3:") == []
    story = Story()
    story.warehouse.end(2, commit=True)
    story.passes()
    assert story.begun(given="3:2:2:3") == []


def test_lists_and_ids_may_be_of_any_moment_of_the_request_in_this_order() -> None:
    """A table that is dropped while it is asked for has a list, and no id; or it is still there."""
    for table_id in (0, 1):
        story = Story()
        assert story.begun(lambda: story.warehouse.drop("s.a"), table_id=table_id) == []  # noqa: B023
    story = Story()
    assert story.begun(lambda: story.warehouse.end(2, commit=True)) == []


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ({"txns": f"3:{NONE_OPEN}::3", "write_ids": f"s.a:3:{NONE_OPEN}::3"}, "no stale answer"),
        ({"txns": "4:2:2:3"}, "no stale answer"),
        ({"given": "2:2:2:"}, "no stale answer"),
        ({"table_id": 2}, "no stale answer"),
        ({"table_id": 0}, "no stale answer"),
        ({"write_ids": None}, "no stale answer"),
        ({"own": 2}, "no stale answer"),
        ({"write_ids": f"s.a:3:{NONE_OPEN}::3"}, "nothing uncommitted"),
        ({"write_ids": "s.a:4:2:2:3"}, "nothing uncommitted"),
        ({"write_ids": "s.a:3:1:1,2:3"}, "the list is covered"),
        ({"served_from": "cache"}, "explanation true"),
    ],
)
def test_the_judge_finds(said: dict[str, Any], rule: str) -> None:
    """Transactions, lists and ids that the metastore did not have since it was asked."""
    assert rule in Story().begun(**said)


def test_a_writers_list_counts_its_own_id_and_none_below_it() -> None:
    """Its own write is committed for it; what others hold below that is open."""
    story = Story()
    [own] = story.warehouse.open_txns(1)
    story.warehouse.allocate("s.a", [own])
    story.passes()
    told: list[tuple[str, list[str]]] = [
        ("s.a:4:2:2:3", []),
        ("s.a:3:2:2:3", ["the list is covered"]),
        (f"s.a:4:{NONE_OPEN}::3", ["nothing uncommitted"]),
    ]
    for text, expected in told:
        story.broken.clear()
        story.judge.has_written("s", ListedTable("s.a", 1, text), "4:2:2:3", own, 4)
        assert story.broken == expected
    story.broken.clear()
    story.judge.has_written("s", ListedTable("s.a", 1, "s.a:3:2:2:3"), "4:2:2:3", own, 0)
    assert story.broken == [], "the metastore has not given it to the session"


def test_a_writer_is_told_the_id_that_it_was_given() -> None:
    """What it writes carries that id."""
    story = Story()
    story.judge.has_advanced("s", "s.a", 4, 4)
    assert story.broken == []
    story.judge.has_advanced("s", "s.a", 3, 4)
    assert story.broken == ["the list is covered"]


def test_a_transaction_writes_and_reads_what_it_wrote() -> None:
    """Lists at its beginning, a write id, its own write before it is committed, and a table that it had not named."""
    begin: History = [("world", 1, 0, 0, 0, 0), ("create", 0, 4), ("create", 1, 0), ("open", 0), ("let", 3)]
    within: History = [("within", 0, 0, what, 0, 0, 3) for what in range(5)]
    outcome = run_one(WarehouseWorld(), [*begin, ("begin", 0, 0, 0, 1, 1, 3), *within, ("within", 0, 1, 1, 0, 0, 3)])
    assert outcome.violations == []
    assert outcome.answers["lists"] == 2
    assert outcome.answers["fresh from the source"] >= 5, "nobody else may see it yet"


def test_a_transaction_reads_what_it_wrote_to_an_external_table() -> None:
    """It has no write id there: the client asks for what the metastore has logged by then, at each read."""
    begin: History = [("world", 1, 0, 0, 0, 0), ("create", 0, 2), ("open", 0), ("let", 3), ("begin", 0, 0, 0, 1, 1, 3)]
    outcome = run_one(WarehouseWorld(), [*begin, *[("within", 0, 0, what, 0, 0, 3) for what in (0, 1)]])
    assert outcome.violations == []
    assert outcome.answers["lists"] == 3
