"""What a backfill keeps for rows that foreign keys change, and for rows that are read again. Without a server."""

from __future__ import annotations

import pytest

from stream.sources.mariadb.backfill import rereading
from stream.sources.mariadb.backfill.plan import left_tables
from stream.sources.mariadb.backfill.reading import Wanted
from stream.sources.mariadb.backfill.rereading import REREADS
from stream.sources.mariadb.cascades.children import Knowledge
from stream.sources.mariadb.cascades.family import Family
from stream.wire.events import BackfillTable, ResumePoint, VoidTable
from stream.wire.keys import row_key
from tests.sources.mariadb.test_backfill_plan import DESCRIBED, TABLE, at, begun, chunk, published, row, transaction
from tests.sources.mariadb.test_backfill_run import (
    BEFORE,
    REACHED,
    Asking,
    Watched,
    hot,
    read_for_its_foreign_keys,
)


def test_a_table_that_is_read_for_its_foreign_keys_is_known_behind_its_last_row() -> None:
    """Else it would be read again and again, and be void where only rows are."""
    family = Family()
    watched = read_for_its_foreign_keys(family)
    watched.first = chunk(row(1), last=None)
    watched.run.step(at(9), 1, REACHED)
    assert (family.children.knowledge(TABLE), watched.said) == (Knowledge.ALL, [])


def test_a_void_takes_what_is_known_of_its_table() -> None:
    """Its rows may be others by now: a row that is not known to refer to a parent would stay in caches."""
    family = Family()
    watched = read_for_its_foreign_keys(family)
    watched.first = chunk(row(1), last=None)
    watched.run.step(at(9), 1, REACHED)
    watched.run.notice(transaction(VoidTable(TABLE, "DDL")))
    assert family.children.knowledge(TABLE) is Knowledge.NOTHING


def test_what_is_known_no_more_is_said_so_that_it_is_read_again() -> None:
    """A backfill that has nothing else to do would not look for it."""
    family = Family()
    watched = read_for_its_foreign_keys(family)
    watched.first = chunk(row(1), last=None)
    watched.run.step(at(9), 1, REACHED)
    watched.run.step(at(9), 1, REACHED)
    assert watched.run._is_idle
    family.children.forget(TABLE)
    watched.run.step(at(9), 1, BEFORE)
    assert not watched.run._is_idle


def asked(*keys: str) -> Watched:
    """A backfill that reads some rows first."""
    watched = Watched(TABLE)
    watched.run._requests = Asking(hot(*keys))
    watched.run.step(at(9), 1, BEFORE)
    assert watched.again.keys
    return watched


def test_a_row_that_changes_while_it_is_read_again_is_as_the_change_has_it() -> None:
    """What was read may be older, and would be published behind it."""
    watched = asked("[1]", "[2]")
    watched.run._family = Family()
    watched.run.notice(transaction(row(1)))
    watched.again.first = chunk(row(1), row(2), last=None)
    watched.said.clear()
    watched.run.step(at(9), 1, REACHED)
    assert [[*each.changes] for each in watched.said] == [[row(2)]]


def test_rows_that_are_read_for_an_epoch_that_ended_are_not_read_any_more() -> None:
    """All is void in the next one, and its tables are read whole."""
    watched = asked("[1]")
    watched.run.begin_epoch(ResumePoint("s", 2, 1, at(9), 1, at(9)))
    assert not watched.again.keys


def test_the_state_that_has_void_rows_says_that_they_are_to_be_read_again() -> None:
    """A source that is killed behind it would leave them to readers for good."""

    class Voids(Family):
        def commit(self) -> dict[str, list[bytes]]:
            return {TABLE: [row_key(TABLE, [7])]}

    watched = Watched(TABLE)
    watched.run._family = Voids()
    watched.annotated.clear()
    watched.run.notice(transaction(row(1, "s.parent")))
    assert ["[7]" in each.get(REREADS, "") for each in watched.annotated] == [True]


def test_no_more_rows_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many statements add to them; what is above is left to readers."""
    monkeypatch.setattr(rereading, "KEYS_MAX", 3)
    watched = Watched(TABLE)
    assert watched.run._rereading is not None
    for first in (1, 3):
        watched.run._rereading.add({TABLE: [row_key(TABLE, [first]), row_key(TABLE, [first + 1])]})
    watched.run.step(at(9), 1, BEFORE)
    assert watched.again.keys == tuple(row_key(TABLE, [number]) for number in (1, 2, 3))


def test_a_table_that_is_begun_again_is_complete_no_more() -> None:
    """It is read again because somebody asked for it: else nothing of it ever would be."""
    plan = begun()
    published(plan, chunk(row(1)))
    assert left_tables(plan, [DESCRIBED]) == []
    plan.begin(TABLE, at(6), 1)
    assert left_tables(plan, [DESCRIBED]) == [TABLE]


def test_nothing_is_read_behind_the_last_row_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the reading would begin with it again, and what comes of that would be taken for the next table's."""
    watched = Watched(TABLE)
    wanted: list[Wanted | None] = []
    monkeypatch.setattr(watched, "want", wanted.append)
    watched.first = chunk(row(1), last=None)
    watched.run.step(at(9), 1, REACHED)
    assert [*watched.said[-1].changes] == [BackfillTable(TABLE, complete=True)]
    assert wanted[-1] is None


def test_a_backfill_that_ends_lets_go_of_all_that_it_reads_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions and their threads, the file about foreign keys, and a connection to Kafka: each outage makes others."""
    closed: list[str] = []
    watched, requests, family = Watched(TABLE), Asking(), Family()
    for name, each in (
        ("chunks", watched),
        ("rows", watched.again),
        ("file", family.children),
        ("requests", requests),
    ):
        monkeypatch.setattr(each, "close", lambda name=name: closed.append(name))
    watched.run._requests, watched.run._family = requests, family
    watched.run.close()
    assert closed == ["chunks", "rows", "file", "requests"]
