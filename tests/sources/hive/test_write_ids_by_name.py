"""A metastore keeps write ids by name: what ends with a name, a database, or a transaction that no event has ended."""

from __future__ import annotations

import pytest

from lab.simulation.hive.metastore import Metastore
from stream.sources.hive import write_id_registry
from stream.sources.hive.messages import TableObject
from stream.sources.hive.translator import HiveTranslator
from stream.sources.hive.write_id_registry import Allocation, WriteIdChange, WriteIdRegistry
from stream.wire.events import AllocateWriteId, ResetWriteIds


@pytest.mark.parametrize("with_database", [False, True])
def test_ids_that_may_outlive_a_drop_end_with_the_database(with_database: bool) -> None:
    """A table that is made anew in a database that is made anew begins with none."""
    ids = WriteIdRegistry()
    ids.allocate("s.a", 1, 1)
    ids.drop("s.a")
    if with_database:
        ids.drop_database("s")
    assert ids.allocate("s.a", 2, 2).survived_drop is not with_database


def test_ids_of_dropped_tables_are_remembered_for_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are made for an hour have ever new names. A name whose ids were forgotten has its list fetched."""
    monkeypatch.setattr(write_id_registry, "DOUBTFUL_MAX", 2)
    ids = WriteIdRegistry()
    for txn, name in enumerate(["s.a", "s.b", "s.c"], 1):
        ids.allocate(name, txn, 1)
        ids.drop(name)
    assert [ids.allocate(name, 9, 2) for name in ("s.a", "s.b", "s.c")] == [
        Allocation(reallocated=False, survived_drop=False, skipped=True),
        *[Allocation(reallocated=False, survived_drop=True)] * 2,
    ]


def test_who_writes_a_table_that_is_renamed_ends_under_its_new_name() -> None:
    """Looked up under the old one it has no ids: its commit would be published without them, and stay pending."""
    ids = WriteIdRegistry()
    ids.allocate("s.a", 1, 1)
    assert ids.rename("s.a", "s.b")
    assert ids.end(1, committed=True) == [("s.b", 1)]


@pytest.mark.parametrize("with_rivals", [False, True])
def test_ids_that_may_outlive_a_drop_go_along_with_a_rename(with_rivals: bool) -> None:
    """The server moves what it keeps under a name. Left behind, its ids are taken for those of an unknown writer.

    If both names may have kept ids, those of the wrong one would call valid what is open.
    """
    ids = WriteIdRegistry()
    ids.allocate("s.a", 1, 1)
    ids.drop("s.a")
    if with_rivals:
        ids.allocate("s.b", 2, 1)
        ids.drop("s.b")
    assert not ids.rename("s.a", "s.b")
    assert not ids.end(1, committed=True)
    assert ids.allocate("s.b", 3, 2).survived_drop is not with_rivals
    found = ids.get("s.b")
    assert found is not None
    assert found.open == ([(1, 0), (2, 3)] if with_rivals else [(2, 3)])


def test_an_abort_without_an_event_changes_nothing_else(server: Metastore) -> None:
    """What the last event did would be brought forward over later lists once more, as if it had come now."""
    translator = HiveTranslator()
    for row in server.log:
        translator.translate(row)
    translator.abort_unlogged(2)
    assert translator.write_id_changes == [WriteIdChange("s.a", 2, 2, "aborted")]


def test_a_name_that_was_left_unseen_leaves_no_ids_to_the_next_table(server: Metastore) -> None:
    """The server shows the table under another name: a table that takes the old one has none of its ids."""
    translator = HiveTranslator()
    for row in server.log:
        translator.translate(row)
    translator.bind(TableObject("s.b", 1, True, True, b"{}"))
    server.create("s.a", "full")
    made = translator.translate(server.log[-1])
    assert made is not None
    assert not [each for each in made.changes if isinstance(each, AllocateWriteId | ResetWriteIds)]
