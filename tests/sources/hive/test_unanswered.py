"""Calls about one table that a metastore never answers, or with more than can be read, while it answers others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from stream.sources.hive.live import fetching
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings
from stream.sources.hive.messages import HiveMessageError, TableObject
from stream.sources.hive.rpc.connection import (
    MetastoreConnection,
    MetastoreRefused,
    MetastoreTimeout,
    MetastoreUnreachable,
)
from stream.sources.hive.rpc.thrift import field, long, text
from stream.sources.hive.structs import LIST, STRUCT, ListValue, Struct, ThriftError
from stream.wire.events import ObjectImage
from tests.serving.stack import eventually
from tests.sources.hive.test_wrong_answers import Server, Source

LATE = MetastoreTimeout("get_all_table_constraints: the metastore at a:1 did not answer in time")
TOO_LARGE = ThriftError("the answer is larger than 536870912 bytes")
TABLES = {"d.a": 3, "d.t": 7}


class Stuck(Server):
    """A metastore with two partitioned tables. The calls of ``fails`` about one of them it does not answer."""

    opened = 1
    """Connections to it."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: dict[str, Exception] = {}
        self.goes_down = self.is_down = False
        """Whether it answers nothing at all once a call has failed, and whether that was so."""

    def reach(self, call: str, table: str) -> None:
        """It is asked this of a table."""
        if table == "d.a" and call in self.fails:
            self.is_down = self.goes_down
            raise self.fails[call]

    def last_event(self) -> int:
        """Unless it is down."""
        if self.is_down:
            raise MetastoreUnreachable("no metastore answers")
        return super().last_event()

    def table_names(self, _: str) -> list[str]:
        """Both."""
        return [*TABLES]

    def tables(self, names: Sequence[str]) -> dict[str, TableObject]:
        """Both, each with a column."""
        image = b'{"sd":{"cols":[{"name":"c"}]}}'
        return {
            name: TableObject(name, TABLES[name], False, False, image, b"", ("p",)) for name in names if name in TABLES
        }

    def table(self, name: str) -> Any:
        """One of them."""
        self.reach("table", name)
        return self.tables([name])[name]

    def constraints(self, name: str) -> dict[int, Any]:
        """None."""
        self.reach("constraints", name)
        return {}

    def first_partitions(self, name: str, _: int) -> list[Any]:
        """One."""
        self.reach("first_partitions", name)
        return [(("x",), {})]

    def partition_names(self, name: str, _: int = -1) -> list[str]:
        """One."""
        self.reach("partition_names", name)
        return ["p=x"]

    def partitions_by_names(self, name: str, _: Sequence[str]) -> list[Any]:
        """One."""
        self.reach("partitions_by_names", name)
        return [(("x",), {})]

    def partition_statistics(self, name: str, *_: object) -> list[Any]:
        """None."""
        self.reach("partition_statistics", name)
        return []

    def aggregate_statistics(self, *_: object) -> dict[int, Any]:
        """None."""
        return {}

    def caches_aggregates(self) -> bool:
        """It may."""
        return True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Stuck:
    """The metastore."""
    made = Stuck()
    monkeypatch.setattr(fetching, "Metastore", lambda _: made)
    return made


@pytest.fixture
def source(server: Stuck) -> Iterator[Source]:
    """Its source."""
    made = Source(server, {})
    yield made
    made.following.close()


def published(source: Source, kind: str) -> set[int]:
    """The tables of which something was published."""
    changes = [each for txn in source.published for each in txn.changes]
    return {each.table_id for each in changes if isinstance(each, ObjectImage) and each.kind == kind}


@pytest.mark.parametrize("error", [LATE, TOO_LARGE])
@pytest.mark.parametrize(
    "calls",
    [
        ["constraints"],
        ["first_partitions", "partition_names"],
        ["first_partitions", "partitions_by_names"],
        ["partition_statistics"],
    ],
)
def test_a_table_that_is_never_told_keeps_no_other_one_waiting(
    server: Stuck, source: Source, calls: list[str], error: Exception
) -> None:
    """It is read through, and asked for again after a while, as one that is refused is."""
    server.fails, following = dict.fromkeys(calls, error), source.following
    eventually(lambda: not following.step() and following.is_complete, what="all else")
    assert published(source, "constraints") == ({7} if "constraints" in calls else {3, 7})
    assert published(source, "partition") >= {7}
    assert {*following._details.refused, *following._partitions.refused} == {"d.a"}


@pytest.mark.parametrize("call", ["table", "partitions_by_names", "partition_statistics"])
def test_partitions_of_an_event_that_are_never_told_keep_nothing_waiting(
    server: Stuck, source: Source, call: str
) -> None:
    """As a whole table's."""
    source.complete()
    server.fails, partitions = {call: LATE}, source.following._partitions
    partitions.note(ObjectImage("partition", 3, ("x",), "written"))
    source.complete()
    assert partitions.refused == ["d.a"]


@pytest.mark.parametrize("error", [LATE, TOO_LARGE])
def test_a_metastore_that_answers_nothing_else_either_is_away(server: Stuck, source: Source, error: Exception) -> None:
    """Else each table would be refused in turn, and wait for minutes once it is back."""
    source.complete()
    details = source.following._details
    details.want(3)
    server.fails, server.goes_down = {"constraints": error}, True
    with pytest.raises(MetastoreUnreachable):
        details.step()
    assert (details.refused, details.tables) == ([], ["d.a"])


def test_behind_a_table_that_is_not_told_in_time_no_other_one_is_asked_for(server: Stuck, source: Source) -> None:
    """The log waits for each of them. They are fetched with the next step, without it."""
    source.complete()
    source.published.clear()
    server.fails, details = {"constraints": LATE}, source.following._details
    details.want(3)
    details.want(7)
    assert details.step()
    assert (published(source, "constraints"), details.refused, details.tables) == (set(), ["d.a"], ["d.t"])
    assert details.step()
    assert (published(source, "constraints"), details.refused, details.tables) == ({7}, ["d.a"], [])


class Wide:
    """A connection to a metastore that never tells one of its tables, alone or among others. ``asked``: of how many."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked: list[int] = []
        self.is_down = False
        """Whether it answers nothing else either."""
        self.refuses = ""
        """A table with which it refuses to tell several."""

    def call(self, name: str, arguments: Struct, **_: object) -> Any:
        """The tables that are asked for, one of them, or the log's end."""
        if name == "get_table_req":
            asked = field(field(arguments, 1), 2)
            if asked == "wide":
                raise self.error
            return {1: (STRUCT, self.shown(asked))}
        if name != "get_table_objects_by_name_req":
            if self.is_down:
                raise MetastoreUnreachable("no metastore answers")
            return {1: long(5)}
        names = field(field(arguments, 1), 2)
        self.asked.append(len(names))
        if self.refuses in names:
            raise MetastoreRefused(name, 1, "MetaException")
        if "wide" in names:
            raise self.error
        return {1: (LIST, ListValue(STRUCT, [self.shown(each) for each in names]))}

    @staticmethod
    def shown(table: str) -> Struct:
        """The table."""
        return {1: text(table), 2: text("d"), 17: text("hive"), 25: long(7)}


@pytest.mark.parametrize("error", [LATE, TOO_LARGE])
def test_a_table_that_is_never_told_keeps_no_other_from_being_read(error: Exception) -> None:
    """Each sweep would ask for the same 64 tables for good, and no table of the catalog would come after them."""
    connection = Wide(error)
    metastore = Metastore(MetastoreSettings((("127.0.0.1", 1),)))
    metastore._connection = cast("MetastoreConnection", connection)
    names = [*(f"d.t{number}" for number in range(7)), "d.wide"]
    found = metastore.tables(names)
    assert {name: type(each) for name, each in found.items()} == {
        **dict.fromkeys(names, TableObject),
        "d.wide": HiveMessageError,
    }
    assert connection.asked == [8, 4, 4, 2, 2, 1, 1]
    connection.is_down = True
    with pytest.raises(MetastoreUnreachable):
        metastore.tables(names)


@pytest.mark.parametrize("error", [LATE, TOO_LARGE])
def test_a_table_that_is_never_told_beside_one_that_is_refused_keeps_no_other_from_being_read(error: Exception) -> None:
    """Each is asked for alone then, and that one is not told alone either."""
    connection = Wide(error)
    connection.refuses = "damaged"
    metastore = Metastore(MetastoreSettings((("127.0.0.1", 1),)))
    metastore._connection = cast("MetastoreConnection", connection)
    names = ["d.damaged", "d.wide", "d.t"]
    assert isinstance(metastore.tables(names)["d.wide"], HiveMessageError)
    connection.is_down = True
    with pytest.raises(MetastoreUnreachable):
        metastore.tables(names)


def test_a_table_that_could_not_be_read_is_asked_for_alone(server: Stuck, source: Source) -> None:
    """The call may be given up only after its time, and the others need not wait for each part of theirs."""
    source.complete()
    source.following._images.unreadable.note("d.a")
    asked: list[Sequence[str]] = []
    tables = server.tables

    def noted(names: Sequence[str]) -> dict[str, TableObject]:
        asked.append(names)
        return tables(names)

    server.tables = noted  # type: ignore[method-assign]
    source.following._progress.touch(["d.t", "d.a"])
    source.complete()
    assert ("d.t",) in asked
    assert ("d.a",) in asked
    assert ("d.t", "d.a") not in asked


def test_a_table_that_is_written_whenever_it_is_not_told_counts_as_refused(server: Stuck, source: Source) -> None:
    """Else it would be asked for among others each time, by halves, for as long as it is written."""
    source.complete()
    tables, images = server.tables, source.following._images

    def late(names: Sequence[str]) -> dict[str, Any]:
        images.touched["d.a"] = source.following._log.at + 1
        return tables(names) | dict.fromkeys({"d.a"}.intersection(names), HiveMessageError("not in time"))

    server.tables = late  # type: ignore[method-assign]
    source.following._progress.touch(["d.t", "d.a"])
    assert source.following._fetch_dirty()
    assert [*images.unreadable] == ["d.a"]
    assert "d.a" not in source.following._progress.dirty
