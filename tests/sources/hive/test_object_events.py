"""Which partitions an event touches, in each form in which servers name them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream.sources.hive.messages import Notification, TableObject
from stream.sources.hive.object_events import ObjectEvents
from stream.wire.events import ObjectImage, ObjectSet

TABLE = TableObject("d.t", 7, False, False, b"{}", partition_keys=("p", "q"))


@pytest.mark.parametrize("field", ["partVals", "partValues"])
@pytest.mark.parametrize("kind", ["UPDATE_PART_COL_STAT_EVENT", "DELETE_PART_COL_STAT_EVENT"])
def test_statistics_of_one_partition_leave_the_others(kind: str, field: str) -> None:
    """Messages of an update and of a deletion name its values by different words."""
    event = Notification(1, 1, kind, "hive", "d", "t", {field: ["a", "b"]})
    changes = ObjectEvents("hive", with_images=False).of_write(event, TABLE)
    assert not [each for each in changes if isinstance(each, ObjectSet)]
    assert ObjectImage("partition_statistics", 7, ("a", "b"), "written") in changes


@pytest.mark.parametrize("kind", ["INSERT", "ACID_WRITE_EVENT", "ALTER_PARTITIONS", "DROP_PARTITION", "RELOAD"])
@pytest.mark.parametrize(
    ("table", "voids"),
    [
        (replace(TABLE, struct=b""), True),
        (replace(TABLE, struct=b"", partition_keys=()), False),
        (replace(TABLE, struct=None, partition_keys=()), True),
    ],
    ids=["partitioned", "not partitioned", "not shown"],
)
def test_an_event_that_names_no_partition_voids_all_of_a_table_that_may_have_some(
    kind: str, table: TableObject, voids: bool
) -> None:
    """An event that only names its table does not tell whether it is partitioned."""
    event = Notification(1, 1, kind, "hive", "d", "t", {})
    changes = ObjectEvents("hive", with_images=False).of_write(event, table)
    kinds = {each.kind for each in changes if isinstance(each, ObjectSet) and each.change == "void"}
    assert kinds == ({"partition", "partition_statistics"} if voids else set())
    assert (ObjectImage("aggregate_statistics", 7, (), "written") in changes) is voids


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("COMMIT_COMPACTION_EVENT", {"partName": "p=a/q=b%2Fc"}),
        ("RELOAD", {"ptnObjJson": '{"1":{"lst":["str",2,"a","b/c"]}}'}),
    ],
)
def test_a_compaction_or_a_reload_of_one_partition_leaves_the_others(kind: str, message: dict[str, str]) -> None:
    """Large tables are compacted all the time: the list of their partitions would never come from the cache."""
    changes = ObjectEvents("hive", with_images=False).of_write(
        Notification(1, 1, kind, "hive", "d", "t", message), TABLE
    )
    assert ObjectImage("partition", 7, ("a", "b/c"), "written") in changes
    assert not [each for each in changes if isinstance(each, ObjectSet)]


def test_a_dropped_partition_counts_no_more_in_the_statistics_of_all_together() -> None:
    """They would be answered from the cache as they were with its rows, until the table is analyzed again."""
    event = Notification(1, 1, "DROP_PARTITION", "hive", "d", "t", {"partitions": [{"p": "a", "q": "b"}]})
    assert ObjectEvents("hive", with_images=False).of_write(event, TABLE) == [
        ObjectImage("partition", 7, ("a", "b"), "dropped"),
        ObjectImage("partition_statistics", 7, ("a", "b"), "dropped"),
        ObjectImage("aggregate_statistics", 7, (), "written"),
    ]
