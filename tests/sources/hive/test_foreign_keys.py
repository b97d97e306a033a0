"""Which tables' constraints are written when another table changes, to which a foreign key of theirs points."""

from __future__ import annotations

import pytest

from stream.sources.hive.foreign_keys import PAIRS_MAX, ForeignKeys
from stream.sources.hive.progress import DIRTY_MAX, Progress
from stream.wire.events import BindName, Change, ObjectImage, TableImage, VoidTable

NAMES = {1: "d.parent", 2: "d.child", 3: "d.other"}


def keys_of(told: dict[str, tuple[int, ...]]) -> ForeignKeys:
    """Of a source that has begun with these."""
    return ForeignKeys(told, lambda table_id: NAMES.get(table_id, ""), {*NAMES.values()}.__contains__)


def written(table_id: int) -> ObjectImage:
    """A write of constraints."""
    return ObjectImage("constraints", table_id, (), "written")


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        (written(1), True),
        (BindName("d.new", 1, "d.parent"), True),
        (BindName("d.parent", 3, "d.other"), True),
        (BindName("d.parent", 0), True),
        (TableImage(1, "d.parent", "external", "dropped"), True),
        (VoidTable("d.parent", ""), True),
        (TableImage(1, "d.parent", "external", "written"), False),
        (ObjectImage("statistics", 1, (), "written"), False),
        (ObjectImage("constraints", 1, (), "image"), False),
        (written(3), False),
    ],
)
def test_what_may_change_a_tables_keys_writes_those_that_point_to_it(change: Change, is_one: bool) -> None:
    """Its constraints, its name, its end, or nobody knows what; nothing else. So it is after a restart, too."""
    keys = keys_of({})
    assert keys.note(2, {"d.parent"})
    for each in (keys, keys_of({parent: tuple(children) for parent, children in keys.told.items()})):
        assert each.changed_with(7, [change]) == ([written(2)] if is_one else [])
        assert each.touched_at(["d.parent"]) == (7 if is_one else 0)


def test_a_table_that_is_gone_or_has_no_keys_any_more_is_written_by_nothing() -> None:
    """What was written by the same event anyway is not written twice."""
    keys = keys_of({"d.parent": (2, 3)})
    assert keys.changed_with(7, [written(1), written(3)]) == [written(2)]
    assert keys.note(2, set())
    assert keys.changed_with(8, [written(1)]) == [written(3)]
    assert keys.changed_with(9, [TableImage(3, "d.other", "external", "dropped"), written(1)]) == []
    assert keys.told == {}


def test_what_could_not_be_told_after_a_restart_is_not_published() -> None:
    """Keys to a table of which no event tells, and more of them than a cursor holds. They are looked at again too."""
    keys = keys_of({"d.parent": tuple(range(10, 9 + PAIRS_MAX))})
    assert not keys.note(2, {"d.parent", "d.other"})
    assert not keys.note(3, {"d.elsewhere"})
    assert keys.told == {"d.parent": list(range(10, 9 + PAIRS_MAX))}
    assert written(2) in keys.changed_with(7, [written(1)])
    assert keys.note(2, {"d.parent"})
    assert keys.note(2, {"d.other"}), "in the place of the one before"
    assert keys.told["d.other"] == [2]


@pytest.mark.parametrize("dirty", [0, DIRTY_MAX + 1])
def test_keys_come_back_from_the_cursor(dirty: int) -> None:
    """Also from one of which everything is fetched again: until then what was published is served."""
    progress = Progress()
    progress.touch(f"d.t{number}" for number in range(dirty))
    assert Progress(progress.cursor((), (), {"d.parent": [2, 3]})).keys == {"d.parent": (2, 3)}
    assert Progress(progress.cursor()).keys == {}


def test_the_last_change_of_a_parent_counts_until_nothing_is_fetched() -> None:
    """What was read before it would be published, if the first one counted."""
    keys = keys_of({"d.parent": (2,)})
    for event_id in (7, 9):
        assert keys.changed_with(event_id, [written(1)]) == [written(2)]
    assert keys.touched_at(["d.other", "d.parent"]) == 9
    keys.settled()
    assert keys.touched_at(["d.parent"]) == 0
