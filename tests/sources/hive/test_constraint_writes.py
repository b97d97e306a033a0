"""Which writes of constraints are news, and which constraints are too old once they are not told any more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from stream.sources.hive.foreign_keys import ConstraintWrites, ForeignKeys
from stream.sources.hive.live import fetching
from stream.sources.hive.live.fetching import CHUNK_TABLES
from stream.sources.hive.messages import TableObject
from stream.sources.hive.rpc.thrift import text
from stream.sources.hive.structs import LIST, STRUCT, ListValue
from stream.wire.events import BindName, Change, ObjectImage, ObjectSet, TableImage, VoidTable
from tests.sources.hive.test_wrong_answers import BEGIN, Server, Source


def written(table_id: int) -> ObjectImage:
    """A write of constraints."""
    return ObjectImage("constraints", table_id, (), "written")


def test_a_write_of_awaited_constraints_is_no_news_but_outdates_what_was_read() -> None:
    """A sweep may have read them between the two, and publish them after."""
    writes = ConstraintWrites()
    assert writes.is_news(7, 10)
    assert not writes.is_outdated(7, 0)
    writes.note(10, [written(7)])
    assert not writes.is_news(7, 12)
    assert [writes.is_outdated(7, lo) for lo in (10, 11, 12)] == [True, True, False]
    writes.published(7, {})
    assert writes.is_news(7, 13)


@pytest.mark.parametrize("change", [BindName("d.t", 7), TableImage(7, "d.t", "external", "dropped")])
def test_a_table_that_was_without_a_name_is_not_awaited(change: Change) -> None:
    """Nothing was fetched of it, so nobody would ask for its constraints again."""
    writes = ConstraintWrites()
    writes.note(10, [written(7)])
    writes.note(11, [change])
    assert writes.is_news(7, 12)


OTHERS = {f"d.x{number}": 100 + number for number in range(5)}


class Swapping(Server):
    """A metastore whose table ``d.t`` is replaced by renames, beside some that nobody touches."""

    table_id, opened = 7, 1

    def tables(self, names: Sequence[str]) -> dict[str, TableObject]:
        """As they are stored."""
        ids = OTHERS | {"d.t": self.table_id}
        return {name: TableObject(name, ids[name], False, False, b"{}", b"") for name in names if name in ids}

    def table_names(self, _: str) -> list[str]:
        """All."""
        return [*OTHERS, "d.t"]

    def partitions_by_names(self, *_: object) -> list[object]:
        """They have no partitions."""
        return []

    partition_statistics = partitions_by_names

    def aggregate_statistics(self, *_: object) -> dict[int, object]:
        """Of no partitions."""
        return {}

    def _event(self, kind: str, table: str, **shown: dict[str, object]) -> None:
        event = {"eventId": self.last_event() + 1, "eventTime": 1, "eventType": kind, "dbName": "d"}
        self.log.append(
            event | {"tableName": table, "message": json.dumps({k: json.dumps(v) for k, v in shown.items()})}
        )

    def swap(self) -> None:
        """A new table takes the name of the one before."""
        old, self.table_id = self.table_id, self.table_id + 1
        made, renamed = _struct("tmp", self.table_id), _struct("t", self.table_id)
        self._event("CREATE_TABLE", "tmp", tableObjJson=made)
        self._event("DROP_TABLE", "t", tableObjJson=_struct("t", old))
        self._event("ALTER_TABLE", "t", tableObjBeforeJson=made, tableObjAfterJson=renamed)


def _struct(name: str, table_id: int) -> dict[str, object]:
    return {"1": {"str": name}, "2": {"str": "d"}, "25": {"i64": table_id}}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """A source that has published a catalog."""
    server = Swapping()
    monkeypatch.setattr(fetching, "Metastore", lambda _: server)
    made = Source(server, {})
    made.complete()
    made.published.clear()
    yield made
    made.following.close()


def test_swaps_that_are_read_late_write_all_constraints_once(source: Source) -> None:
    """Of each but the last nobody can tell who points to its table: it wrote those of all tables, each time."""
    server = source.server
    assert isinstance(server, Swapping)
    assert len(OTHERS) < CHUNK_TABLES
    for _ in range(6):
        server.swap()
    source.following._drain(server.last_event())
    changes = [each for txn in source.published for each in txn.changes]
    told = [each.table_id for each in changes if isinstance(each, ObjectImage) and each == written(each.table_id)]
    assert sorted(each for each in told if each >= 100) == [*OTHERS.values()]
    source.complete()
    changes = [each for txn in source.published for each in txn.changes]
    images = {each.table_id: each.lo for each in changes if isinstance(each, ObjectImage) and each.image is not None}
    assert {images[each] for each in OTHERS.values()} == {f"HiveEvent/{BEGIN + 18}"}


def test_constraints_that_were_read_between_two_writes_are_read_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second write is not published, so the fold would take them for good."""
    following = source.following
    following._foreign_keys.writes.note(BEGIN, [written(100)])
    writes = following._foreign_keys.writes

    def constraints(_: str) -> dict[int, object]:
        if is_first.pop():
            writes.is_news(100, server.last_event() + 1)
            server.log_transaction("OPEN_TXN", fromTxnId=5, toTxnId=5)
        return {}

    server, is_first = source.server, [False, True]
    monkeypatch.setattr(server, "constraints", constraints)
    following._details.want(100)
    source.complete()
    changes = [each for txn in source.published for each in txn.changes]
    found = [each.lo for each in changes if isinstance(each, ObjectImage) and each.kind == "constraints" and each.lo]
    assert found == [f"HiveEvent/{BEGIN + 1}"]


KEYS: dict[int, Any] = {1: (LIST, ListValue(STRUCT, [{3: text("a")}]))}
DROPPED: tuple[Change, ...] = (ObjectImage("partition", 7, ("1",), "dropped"),)


@pytest.mark.parametrize("constraints", [None, {}, {1: (LIST, ListValue(STRUCT, []))}, KEYS])
@pytest.mark.parametrize("kind", ["DROP_PARTITION", "ADD_PARTITION"])
def test_a_dropped_partition_writes_the_constraints_of_a_table_that_has_some(
    kind: str, constraints: dict[int, Any] | None
) -> None:
    """Its columns may have been those that they belonged to. Of a table without any nothing is read each time."""
    writes = ConstraintWrites()
    writes.published(7, constraints)
    has_some = constraints is KEYS and kind == "DROP_PARTITION"
    assert writes.freed_with(kind, DROPPED) == ([written(7)] if has_some else [])


@pytest.mark.parametrize("change", [written(7), BindName("d.t", 7), VoidTable("d.u", "unreadable")])
def test_a_table_without_constraints_may_have_got_some(change: Change) -> None:
    """After a restart, too: nobody knows who has none."""
    writes = ConstraintWrites()
    assert writes.freed_with("DROP_PARTITION", DROPPED) == [written(7)]
    writes.published(7, None)
    writes.note(10, [change])
    writes.published(8, None)
    assert writes.freed_with("DROP_PARTITION", DROPPED) == [written(7)]
    writes.published(7, KEYS)
    assert writes.freed_with("DROP_PARTITION", DROPPED) == [written(7)]


def test_what_points_to_a_table_is_outdated_by_each_of_its_dropped_partitions() -> None:
    """Both are read after the first one, and the second one comes before that is published."""
    keys = ForeignKeys({}, {7: "d.t", 100: "d.c"}.__getitem__, lambda _: True)
    keys.note(100, {"d.t"})
    for table_id in (7, 100):
        keys.writes.published(table_id, KEYS)
    for event_id in (10, 11):
        freed = keys.writes.freed_with("DROP_PARTITION", DROPPED)
        changes = [*DROPPED, *freed, *keys.changed_with(event_id, [*DROPPED, *freed])]
        keys.writes.note(event_id, changes)
        assert changes[1:] == [written(7), written(100)]
    assert [keys.writes.is_outdated(table_id, 10) for table_id in (7, 100)] == [True, True]


def test_a_cascade_writes_constraints_once() -> None:
    """An ALTER_TABLE that changes no columns of the table may change those of its partitions."""
    writes = ConstraintWrites()
    void = ObjectSet("partition", 7, "void", reason="the table was altered")
    assert writes.freed_with("ALTER_TABLE", [void]) == [written(7)]
    assert writes.freed_with("ALTER_TABLE", [void, written(7)]) == []


def test_the_constraints_of_a_table_are_read_after_its_partition_was_dropped(source: Source) -> None:
    """Those of the table that points to it are written as well."""
    server, keys = source.server, source.following._foreign_keys
    assert isinstance(server, Swapping)
    keys.writes.published(7, KEYS)
    keys.note(100, {"d.t"})
    server._event("DROP_PARTITION", "t", tableObjJson=_struct("t", 7))
    server.log[-1]["message"] = json.dumps(json.loads(server.log[-1]["message"]) | {"partitions": [{"p": "1"}]})
    source.complete()
    changes = [each for txn in source.published for each in txn.changes]
    assert written(7) in changes
    assert written(100) in changes
    images = [each for each in changes if isinstance(each, ObjectImage) and each.kind == "constraints" and each.lo]
    assert {each.table_id for each in images} == {7, 100}
