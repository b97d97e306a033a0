"""Which tables' constraints and statistics a source fetches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from stream.sources.hive.foreign_keys import ForeignKeys
from stream.sources.hive.live.details import FOREIGN_KEYS, Details
from stream.sources.hive.live.fetching import CHUNK_TABLES, Fetcher
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.partitions import Partitions
from stream.sources.hive.messages import HiveMessageError, TableObject
from stream.sources.hive.progress import Progress
from stream.sources.hive.refusals import RETRY_MAX_S
from stream.sources.hive.rpc.connection import MetastoreRefused
from stream.sources.hive.rpc.thrift import text
from stream.sources.hive.structs import LIST, STRUCT, ListValue
from stream.wire.events import Change, ObjectImage, VoidTable

HERE = CHUNK_TABLES + 1


class Warehouse:
    """A metastore with one table, ``HERE``. Its calls are answered at once, in the caller's thread."""

    def __init__(self) -> None:
        def name_of(table_id: int) -> str:
            return "d.t" if table_id == HERE else ""

        self.published: list[Change] = []
        self.found: dict[int, Any] = {}
        """Its constraints."""
        self.foreign_keys = ForeignKeys({}, name_of, lambda name: name == "d.parent")
        self.details = Details(
            cast("Fetcher", self),
            Progress(),
            self.published.extend,
            lambda _: None,
            lambda: {"d.t": HERE},
            name_of,
            lambda _: 0,
            lambda _: 0,
            cast("Partitions", None),
            self.foreign_keys,
            "hive/0",
            clock=lambda: self.now_s,
        )
        self.now_s = 0.0
        self.end, self.logged_meanwhile = 10, 0
        """The log's end, and how many events come while the constraints are read."""
        self.refuses: set[str] = set()
        """The calls that are refused."""

    def run(self, work: Callable[[Metastore], Any]) -> Future[Any]:
        """As `Fetcher.run`."""
        future: Future[Any] = Future()
        future.set_result(work(cast("Metastore", self)))
        return future

    def last_event(self) -> int:
        """The log's end."""
        return self.end

    def tables(self, names: Sequence[str]) -> dict[str, TableObject | HiveMessageError]:
        """The table."""
        if "tables" in self.refuses:
            return {name: HiveMessageError("MetaException") for name in names}
        return {name: TableObject(name, HERE, True, True, b"{}") for name in names}

    def constraints(self, _: str) -> dict[int, Any]:
        """Those of the table."""
        if "constraints" in self.refuses:
            raise MetastoreRefused("get_all_table_constraints", 1, "MetaException")
        self.end += self.logged_meanwhile
        return self.found

    def statistics(self, *_: object) -> None:
        """None."""


def test_a_table_is_fetched_although_many_before_it_are_gone() -> None:
    """They are not fetched; it is, or it would stay unknown until its next event."""
    warehouse = Warehouse()
    for table_id in range(1, HERE + 1):
        warehouse.details.want(table_id)
    while warehouse.details.step():
        pass
    assert {each.table_id for each in warehouse.published if isinstance(each, ObjectImage)} == {HERE}
    assert warehouse.details.tables == []


def test_what_was_read_before_a_void_is_not_published_after_it() -> None:
    """The fold would take it for newer than the void. It is fetched again."""
    warehouse = Warehouse()
    details = warehouse.details
    details._drain = lambda _: details.void()
    details.want(HERE)
    assert details.step()
    assert (warehouse.published, details.tables) == ([], ["d.t"])
    details._drain = lambda _: None
    assert details.step()
    assert {each.table_id for each in warehouse.published if isinstance(each, ObjectImage)} == {HERE}


@pytest.mark.parametrize("call", ["tables", "constraints"])
def test_what_is_refused_for_a_moment_is_asked_for_again(call: str) -> None:
    """Its next event may be far, and until then every reader would ask the metastore. A restart asks at once."""
    warehouse = Warehouse()
    details = warehouse.details
    warehouse.refuses = {call}
    details.want(HERE)
    for _ in range(3):
        assert details.step()
        assert not details.step(), "not at once"
        assert (warehouse.published, details.tables, details.refused) == ([], [], ["d.t"])
        warehouse.now_s += RETRY_MAX_S
    warehouse.refuses.clear()
    assert details.step()
    assert {each.kind for each in warehouse.published if isinstance(each, ObjectImage)} == {"constraints", "statistics"}
    warehouse.now_s += RETRY_MAX_S
    assert not details.step(), "once"
    assert details.refused == []


@pytest.mark.parametrize("meanwhile", [0, 1])
@pytest.mark.parametrize("parent", ["parent", "unknown"])
def test_constraints_that_change_with_another_table_are_published_if_its_events_are_followed(
    parent: str, meanwhile: int
) -> None:
    """They are read again if it changed during the fetch or behind it. Where nobody would tell, they are read through.

    ``meanwhile``: whether it was during the fetch.
    """
    warehouse = Warehouse()
    warehouse.logged_meanwhile = meanwhile
    keys = [{1: text("d"), 2: text(parent), 3: text("a"), 4: text("d"), 5: text("t"), 6: text("a")}]
    warehouse.found = {FOREIGN_KEYS: (LIST, ListValue(STRUCT, keys))}
    details, changes = warehouse.details, [VoidTable(f"d.{parent}", "")]

    def drain(_: int) -> None:
        warehouse.foreign_keys.changed_with(11, changes)

    details._drain = drain
    details.want(HERE)
    assert details.step()
    assert (warehouse.published, details.tables) == ([], ["d.t"])
    details._drain = lambda _: None
    warehouse.foreign_keys.settled()
    assert details.step()
    published = {each.kind for each in warehouse.published if isinstance(each, ObjectImage)}
    assert published == {"statistics"} | ({"constraints"} if parent == "parent" else set())
