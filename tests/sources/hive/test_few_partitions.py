"""Tables with few partitions: all of them are read with one call, and published as one step if nothing wrote them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from stream.sources.hive.foreign_keys import ForeignKeys
from stream.sources.hive.live import members
from stream.sources.hive.live.details import Details
from stream.sources.hive.live.fetching import Fetcher
from stream.sources.hive.live.members import Values
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.partitions import KINDS, Partitions
from stream.sources.hive.messages import TableObject
from stream.sources.hive.progress import Progress
from stream.sources.hive.recent_drops import RecentDrops
from stream.sources.hive.rpc.connection import MetastoreRefused
from stream.sources.hive.structs import Struct
from stream.wire.events import DROPS_KEPT, Change, ObjectImage, ObjectSet

FEW, PLAIN = 7, 8
TABLES = {"d.few": FEW, "d.plain": PLAIN}
SHOWN = (*KINDS, "aggregate_statistics")
READ_AT, READ_TO = 10, 12
"""The events before and after a fetch."""


class Warehouse:
    """A metastore with a partitioned table and one without partition columns; what is swept of them, at once."""

    def __init__(self) -> None:
        self.values: list[Values] = [("a",), ("b",)]
        self.keys: tuple[str, ...] = ("p",)
        self.refuses = False
        self.has_statistics = True
        self.cannot_aggregate = False
        self.calls: list[str] = []
        self.read: list[str] = []
        """The tables that were read themselves."""
        self.late: list[Callable[[], None]] = []
        self.is_late = False
        """Whether fetches end only with `arrive`."""
        self.ends = [READ_AT, READ_TO, READ_AT, READ_TO]
        self.touched: dict[str, int] = {}
        self.published: list[list[Change]] = []
        self.drops = RecentDrops()
        self.meanwhile: Callable[[], None] = lambda: None
        """Happens when the log is read past what was fetched."""
        self.progress = Progress('{"sweeping": false, "details": "", "partitions": "", "defaults": true}')
        fetcher, names = cast("Fetcher", self), {table_id: name for name, table_id in TABLES.items()}
        self.partitions = Partitions(
            fetcher,
            self.published.append,
            lambda: READ_TO,
            lambda _: None,
            lambda each: names.get(each, ""),
            lambda _: 0,
            self.drops,
        )
        self.details = Details(
            fetcher,
            self.progress,
            self.published.append,
            lambda _: self.meanwhile(),
            lambda: TABLES,
            lambda each: names.get(each, ""),
            lambda _: 0,
            lambda name: self.touched.get(name, 0),
            self.partitions,
            ForeignKeys({}, str, bool),
            "hive/0",
        )

    def run(self, work: Callable[[Metastore], Any]) -> Future[Any]:
        """As `Fetcher.run`."""
        future: Future[Any] = Future()
        found = work(cast("Metastore", self))
        self.late.append(lambda: future.set_result(found))
        if not self.is_late:
            self.arrive()
        return future

    def arrive(self) -> None:
        """What was read is there."""
        while self.late:
            self.late.pop()()

    def last_event(self) -> int:
        """The log's end, before and after the fetch."""
        return self.ends.pop(0)

    def tables(self, names: Sequence[str]) -> dict[str, TableObject]:
        """Both tables."""
        self.read += names
        keys = {"d.few": self.keys}
        image = b'{"sd":{"cols":[{"name":"c"}]}}'
        return {name: TableObject(name, TABLES[name], False, True, image, None, keys.get(name, ())) for name in names}

    def table_of(self, name: str) -> TableObject:
        """One of them."""
        return self.tables([name])[name]

    def constraints(self, _: str) -> Struct:
        """None."""
        return {}

    def statistics(self, *_: object) -> None:
        """None."""

    def first_partitions(self, name: str, count: int) -> list[tuple[Values, Struct]]:
        """Those of the one table."""
        self.calls.append(name)
        if self.refuses:
            raise MetastoreRefused("get_partitions", 2, "more than it allows")
        return [(values, {}) for values in self.values[:count]]

    def partition_names(self, _: str, count: int) -> list[str]:
        """Those of the one table."""
        return [f"p={value}" for (value, *_) in self.values[:count]]

    def partition_statistics(self, _: str, columns: Sequence[str], names: Sequence[str]) -> list[tuple[Values, Struct]]:
        """The first one has some."""
        assert columns == ("c",)
        self.calls += names
        return [(self.values[0], {})] if names and self.has_statistics else []

    opened = 1
    """Connections to it."""

    def caches_aggregates(self) -> bool:
        """It does not."""
        return False

    def aggregate_statistics(self, _: str, columns: Sequence[str], names: Sequence[str], __: float) -> Struct:
        """Those of all together."""
        assert columns == ("c",)
        if self.cannot_aggregate:
            raise MetastoreRefused("get_aggr_stats_for", 2, "no")
        self.calls.append(f"{len(names)} together")
        return {}

    def sweep(self) -> None:
        """Everything that belongs to the tables is fetched and published."""
        while self.details.go_on_with_sweep():
            pass

    def of(self, table_id: int) -> list[list[tuple[str, str, Values]]]:
        """What was published of a table's partitions, by transaction: (kind, change, values)."""
        shown = [
            [
                (each.kind, each.change, each.name if isinstance(each, ObjectImage) else ())
                for each in changes
                if isinstance(each, ObjectImage | ObjectSet) and each.kind in SHOWN and each.table_id == table_id
            ]
            for changes in self.published
        ]
        return [each for each in shown if each]

    @property
    def due(self) -> list[str]:
        """Tables that are to have a pass."""
        return self.partitions.tables


PARTITIONS = [
    ("partition", "begun", ()),
    ("partition", "image", ("a",)),
    ("partition", "image", ("b",)),
    ("partition", "complete", ()),
]
STATISTICS = [
    ("partition_statistics", "begun", ()),
    ("partition_statistics", "image", ("a",)),
    ("aggregate_statistics", "image", ()),
    ("partition_statistics", "complete", ()),
]
WHOLE = [PARTITIONS, STATISTICS]
NONE = [[(kind, each, ()) for each in ("begun", "complete") for kind in KINDS]]


def test_few_partitions_are_read_with_one_call_and_published_as_one_step() -> None:
    """One call, where a pass needs three; then three for their statistics. The sets are whole with their members."""
    warehouse = Warehouse()
    warehouse.sweep()
    assert warehouse.calls == ["d.few", "p=a", "p=b", "2 together"]
    assert warehouse.of(FEW) == WHOLE
    images = [each for changes in warehouse.published for each in changes if isinstance(each, ObjectImage)]
    assert {(each.lo, each.hi) for each in images} == {("HiveEvent/10", "HiveEvent/12")}
    sets = [each for changes in warehouse.published for each in changes if isinstance(each, ObjectSet)]
    assert {each.lo for each in sets} == {"HiveEvent/10"}
    assert warehouse.due == []


def test_the_partitions_of_all_tables_come_before_what_costs_the_metastore_most() -> None:
    """Whoever asks for partitions is answered from the cache in half the time. The cursor says which of both it was."""
    warehouse = Warehouse()
    warehouse.sweep()
    kinds = [each.kind for changes in warehouse.published for each in changes if isinstance(each, ObjectImage)]
    of_partitions = ["partition_statistics", "aggregate_statistics"]
    assert kinds == ["partition"] * 2 + ["statistics", "constraints"] * 2 + of_partitions
    assert (warehouse.progress.parted, warehouse.progress.detailed) == (None, None)
    again = Warehouse()
    again.progress.__init__('{"sweeping": false, "details": "", "partitions": null, "defaults": true}')  # type: ignore[misc]
    again.sweep()
    assert again.of(FEW) == [STATISTICS], "a restart goes on with the second of both"


def test_partitions_without_statistics_are_not_asked_for_those_of_all_together() -> None:
    """That there are none is known without a call."""
    warehouse = Warehouse()
    warehouse.has_statistics = False
    warehouse.sweep()
    assert warehouse.calls == ["d.few", "p=a", "p=b", "0 together"]
    assert warehouse.of(FEW)[1] == [each for each in STATISTICS if each[2] != ("a",)]


def test_a_pass_asks_again_where_nobody_told_the_statistics_together() -> None:
    """It remembers that they were refused, so they are asked for after a while although nobody writes the table."""
    warehouse = Warehouse()
    warehouse.cannot_aggregate = True
    warehouse.sweep()
    assert (warehouse.of(FEW), warehouse.due) == ([PARTITIONS], ["d.few"])


@pytest.mark.parametrize("is_upgrade", [False, True])
def test_an_upgrade_reads_the_partitions_of_no_large_table_again(
    is_upgrade: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have been published, and the statistics of so many together are read through."""
    monkeypatch.setattr("stream.sources.hive.live.members.FEW_MAX", 1)
    warehouse = Warehouse()
    told = '"defaults": true' if is_upgrade else '"defaults": true, "together": true'
    done = "null" if is_upgrade else '""'
    warehouse.progress.__init__(f'{{"sweeping": false, "details": {done}, "partitions": null, {told}}}')  # type: ignore[misc]
    warehouse.sweep()
    assert (warehouse.of(FEW), warehouse.due) == ([], [] if is_upgrade else ["d.few"])


def test_a_table_without_partition_columns_has_no_partitions() -> None:
    """It is not asked for any, and that it has none is published."""
    warehouse = Warehouse()
    warehouse.sweep()
    assert "d.plain" not in warehouse.calls
    assert warehouse.of(PLAIN) == NONE


@pytest.mark.parametrize("touched", [READ_AT, READ_AT + 1])
def test_what_was_written_after_it_was_read_is_read_again(touched: int) -> None:
    """One step would hide the write: what is made after the listing counts as from before it. A pass follows."""
    warehouse = Warehouse()
    warehouse.meanwhile = lambda: warehouse.touched.update({"d.few": touched})
    warehouse.sweep()
    assert (warehouse.of(FEW), warehouse.due) == (([], ["d.few"]) if touched > READ_AT else (WHOLE, []))
    assert warehouse.of(PLAIN) != []


@pytest.mark.parametrize("dropped", [DROPS_KEPT, DROPS_KEPT + 1])
def test_what_was_read_before_too_many_drops_is_read_again(dropped: int) -> None:
    """The fold could not tell its images from those of dropped partitions."""
    warehouse = Warehouse()
    warehouse.drops.note(
        READ_AT + 1, [ObjectImage("partition", FEW, (f"x{each}",), "dropped") for each in range(dropped)]
    )
    warehouse.sweep()
    assert warehouse.due == (["d.few"] if dropped > DROPS_KEPT else [])
    assert warehouse.of(FEW) == ([] if dropped > DROPS_KEPT else WHOLE)


def test_a_table_that_is_to_have_a_pass_has_one() -> None:
    """A void asked for it: two ways to make a set whole must not meet."""
    warehouse = Warehouse()
    warehouse.meanwhile = lambda: warehouse.partitions.want(FEW)
    warehouse.sweep()
    assert (warehouse.of(FEW), warehouse.due) == ([], ["d.few"])


def test_partitions_that_an_event_wrote_are_among_them() -> None:
    """All were read after that event. They are fetched by name all the same, with their statistics."""
    warehouse = Warehouse()
    warehouse.meanwhile = lambda: warehouse.partitions.note(ObjectImage("partition", FEW, ("a",), "written"))
    warehouse.sweep()
    assert (warehouse.of(FEW), warehouse.due) == (WHOLE, ["d.few"])


@pytest.mark.parametrize("why", ["many", "refused", "other values"])
def test_what_is_not_given_at_once_is_fetched_in_a_pass(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many, a server that limits what a call may ask for, and partitions that do not fit the keys."""
    warehouse = Warehouse()
    if why == "many":
        monkeypatch.setattr(members, "FEW_MAX", 1)
    warehouse.refuses = why == "refused"
    if why == "other values":
        warehouse.keys = ("p", "q")
    warehouse.sweep()
    assert (warehouse.of(FEW), warehouse.due) == ([], ["d.few"])
    assert warehouse.of(PLAIN) != [], "the others go on"


def test_as_many_as_there_may_be_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is asked for, so that it is known that there are no more."""
    monkeypatch.setattr(members, "FEW_MAX", 2)
    warehouse = Warehouse()
    warehouse.sweep()
    assert warehouse.of(FEW) == WHOLE


def test_a_table_that_the_first_sweep_has_read_is_not_read_again() -> None:
    """Its id, its columns and its partition columns are known."""
    warehouse = Warehouse()
    warehouse.details.keep([warehouse.table_of(name) for name in TABLES], READ_AT - 5)
    warehouse.read.clear()
    warehouse.sweep()
    assert warehouse.read == []
    assert warehouse.of(FEW) == WHOLE


@pytest.mark.parametrize("touched", [READ_AT - 5, READ_AT - 4])
def test_a_table_that_was_written_since_the_first_sweep_is_read_again(touched: int) -> None:
    """An ALTER_TABLE may have changed the columns, or the name is another table's."""
    warehouse = Warehouse()
    warehouse.details.keep([warehouse.table_of(name) for name in TABLES], READ_AT - 5)
    warehouse.read.clear()
    warehouse.touched["d.few"] = touched
    warehouse.sweep()
    assert warehouse.read == (["d.few"] if touched > READ_AT - 5 else [])
    assert (warehouse.of(FEW), warehouse.due, warehouse.details.tables) == (WHOLE, [], [])


@pytest.mark.parametrize("touched", [READ_AT - 5, READ_AT - 4])
def test_what_was_asked_with_columns_of_before_a_write_is_not_published(touched: int) -> None:
    """The write is heard of when what was asked for is there: the table has its details, and a pass, again."""
    warehouse = Warehouse()
    warehouse.details.keep([warehouse.table_of(name) for name in TABLES], READ_AT - 5)

    def write() -> None:
        if warehouse.progress.parted is None:
            warehouse.touched["d.few"] = touched

    warehouse.meanwhile = write
    warehouse.sweep()
    details = {
        each.table_id
        for changes in warehouse.published
        for each in changes
        if isinstance(each, ObjectImage) and each.kind in ("constraints", "statistics")
    }
    if touched > READ_AT - 5:
        due = ["d.few"]
        assert (details, warehouse.of(FEW), warehouse.details.tables) == ({PLAIN}, [PARTITIONS], due)
        assert warehouse.due == due
    else:
        assert (details, warehouse.of(FEW), warehouse.details.tables) == ({PLAIN, FEW}, WHOLE, [])


def test_a_table_that_has_a_pass_is_not_asked_for_statistics_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass brings them: of a table with many partitions that is half of its cost. A restart does not know."""
    monkeypatch.setattr(members, "FEW_MAX", 1)
    warehouse = Warehouse()
    warehouse.sweep()
    assert (warehouse.calls, warehouse.due) == (["d.few"], ["d.few"])
    again = Warehouse()
    again.progress.note_belongings(None)
    again.sweep()
    assert (again.calls, again.due) == ([], ["d.few"])


@pytest.mark.parametrize("sweep", ["partitions", "all else"])
@pytest.mark.parametrize("when", ["before it is asked for", "before it has arrived", "while the log is read past it"])
def test_what_was_read_before_a_void_is_not_published_after_it(when: str, sweep: str) -> None:
    """The fold would take it for newer than the void, and than what was fetched after the void."""
    warehouse = Warehouse()
    if sweep == "all else":
        warehouse.progress.note_belongings(None)
    warehouse.is_late = True
    void = warehouse.details.void
    warehouse.details.keep([warehouse.table_of(name) for name in TABLES], READ_AT - 5)
    warehouse.read.clear()
    if when == "before it is asked for":
        void()
    assert not warehouse.details.go_on_with_sweep()
    if when == "before it has arrived":
        void()
    if when == "while the log is read past it":
        warehouse.meanwhile = void
    warehouse.arrive()
    assert warehouse.details.go_on_with_sweep()
    images = [each for changes in warehouse.published for each in changes if isinstance(each, ObjectImage)]
    if when == "before it is asked for":
        assert warehouse.read == [*TABLES], "what was kept from before the void is not used"
        assert images != []
    elif sweep == "partitions":
        assert (images, warehouse.due) == ([], [*TABLES])
    else:
        assert (images, warehouse.details.tables, warehouse.due) == ([], [*TABLES], ["d.few"])
