"""What is to be fetched of partitions, while others of the table are dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stream.sources.hive.foreign_keys import ForeignKeys
from stream.sources.hive.live.details import Details, FetchedDetails, Shape, TableDetails
from stream.sources.hive.live.fetching import Fetcher
from stream.sources.hive.live.members import Values
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.partitions import KINDS, WHOLE, Partitions
from stream.sources.hive.messages import TableObject
from stream.sources.hive.progress import Progress
from stream.sources.hive.recent_drops import RecentDrops
from stream.sources.hive.refusals import RETRY_MAX_S, RETRY_S
from stream.sources.hive.rpc.connection import (
    MetastoreError,
    MetastoreRefused,
    MetastoreTimeout,
    MetastoreUnreachable,
)
from stream.sources.hive.structs import Struct
from stream.wire.events import DROPS_KEPT, Change, ObjectImage, ObjectSet
from tokens.errors import FreshetError

TABLE = 7
NAMES = ["p=a", "p=b"]


class Warehouse:
    """A metastore with one table of two partitions. Its calls are answered at once, in the caller's thread."""

    def __init__(self) -> None:
        self.end = 10
        self.dropped_meanwhile = 0
        """Other partitions that are dropped while the next chunk is read."""
        self.written_meanwhile = 0
        """Other partitions that are written while each chunk is read."""
        self.published: list[Change] = []
        self.due: list[list[str]] = []
        """What each transaction says of the tables that are to be fetched."""
        self.drops = RecentDrops()
        self.fetches = 0
        self.fails_in = 0
        """It goes away at the next call but so many, and is back after it; 0: it stays."""
        self.aggregating_fails: Exception | None = None
        self.caches = False
        """Whether the metastore has a cache of its own for the statistics of all together."""
        self.opened = 0
        """Connections to the metastore."""
        self.moves_meanwhile = False
        """Whether another metastore answers than the one that was asked for its settings."""
        self.pending: list[Callable[[], None]] | None = None
        """What was asked for, if it is not answered at once."""
        self.aggregated = 0
        """How many times these were asked for."""
        self.refuses = 0
        """So many next fetches of partitions."""
        self.partitions = Partitions(
            cast("Fetcher", self),
            self.publish,
            self.position,
            self.drain,
            lambda table_id: "d.t" if table_id == TABLE else "",
            lambda _: 0,
            self.drops,
            clock=lambda: self.now_s,
        )
        self.now_s = 0.0

    def run(self, work: Callable[[Metastore], Any]) -> Future[Any]:
        """As `Fetcher.run`."""
        future: Future[Any] = Future()

        def answer() -> None:
            try:
                future.set_result(work(cast("Metastore", self)))
            except FreshetError as error:
                future.set_exception(error)

        if self.pending is None:
            answer()
        else:
            self.pending.append(answer)
        return future

    def publish(self, changes: list[Change]) -> None:
        """Takes what is published."""
        self.drops.note(self.end, changes)
        self.published += changes
        self.due.append(self.partitions.tables)

    def reached(self) -> None:
        """It is called."""
        self.fails_in -= 1
        if not self.fails_in:
            raise MetastoreUnreachable("no metastore answers")

    def position(self) -> int:
        """The log's end."""
        self.reached()
        return self.end

    last_event = position

    def drain(self, _: int) -> None:
        """The log is read: it tells of the drops."""
        self.reached()
        dropped, self.dropped_meanwhile = self.dropped_meanwhile, 0
        self.publish([ObjectImage("partition", TABLE, (f"gone{each}",), "dropped") for each in range(dropped)])
        for each in range(self.written_meanwhile):
            self.partitions.note(written(f"new{each}"))

    def table(self, _: str) -> TableObject:
        """The table."""
        return TableObject("d.t", TABLE, True, True, b'{"sd":{"cols":[{"name":"c"}]}}', None, ("p",))

    def partition_names(self, _: str, count: int = -1) -> list[str]:
        """All of them."""
        return NAMES[:count] if count >= 0 else list(NAMES)

    def caches_aggregates(self) -> bool:
        """As `Metastore` says."""
        return self.caches

    def aggregate_statistics(self, *_: object) -> Struct:
        """Those of all together."""
        self.aggregated += 1
        self.opened += self.moves_meanwhile
        if self.aggregating_fails is not None:
            raise self.aggregating_fails
        return {}

    def ask_for_a(self, *, is_pass: bool) -> None:
        """The partition a is to be published: with all of the table, or because it was written."""
        if is_pass:
            self.partitions.want(TABLE)
        else:
            self.partitions.note(written("a"))

    def work(self) -> None:
        """All that is to be done is done."""
        while self.partitions.step() or self.partitions.go_on() or self.partitions.ask_again():
            pass

    def partitions_by_names(self, _: str, names: Sequence[str]) -> list[tuple[Values, Struct]]:
        """Those that exist. Meanwhile the log goes on."""
        self.fetches += 1
        self.reached()
        if self.refuses:
            self.refuses -= 1
            raise MetastoreRefused("get_partitions_by_names", 1, "no")
        self.end += bool(self.dropped_meanwhile or self.written_meanwhile)
        return [((name.partition("=")[2],), {}) for name in names]

    def partition_statistics(self, *_: object) -> list[tuple[Values, Struct]]:
        """None has any."""
        return []

    def images(self) -> list[tuple[Values, str]]:
        """The partitions that were published, and as of which event."""
        shown = [each for each in self.published if isinstance(each, ObjectImage) and each.change == "image"]
        return [(each.name, each.lo) for each in shown if each.kind == "partition"]

    def together(self) -> list[str]:
        """As of which events the statistics of all together were published."""
        shown = [each for each in self.published if isinstance(each, ObjectImage)]
        return [each.lo for each in shown if each.kind == "aggregate_statistics" and each.change == "image"]


def written(name: str) -> ObjectImage:
    """An event wrote a partition."""
    return ObjectImage("partition", TABLE, (name,), "written")


@pytest.mark.parametrize("dropped", [DROPS_KEPT, DROPS_KEPT + 1])
def test_a_written_partition_is_read_again_after_too_many_drops(dropped: int) -> None:
    """The fold could not tell its image from one of a dropped partition, and it would wait for another for good."""
    warehouse = Warehouse()
    warehouse.partitions.note(written("a"))
    warehouse.dropped_meanwhile = dropped
    while warehouse.partitions.step():
        pass
    again = dropped > DROPS_KEPT
    assert warehouse.fetches == 1 + again
    assert warehouse.images() == [(("a",), "HiveEvent/11" if again else "HiveEvent/10")]


def test_only_the_chunk_of_a_pass_is_read_again() -> None:
    """A pass over 100,000 partitions must not begin anew with each few drops, or it would never end."""
    warehouse = Warehouse()
    warehouse.partitions.want(TABLE)
    warehouse.dropped_meanwhile = DROPS_KEPT + 1
    while warehouse.partitions.go_on():
        pass
    sets = [each.change for each in warehouse.published if isinstance(each, ObjectSet) and each.kind == "partition"]
    assert sets == ["begun", "complete"]
    assert [name for name, _ in warehouse.images()] == [("a",), ("b",)]


def test_a_pass_ends_while_partitions_without_statistics_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """That they have none is said when the pass is over: it is no drop that its chunks must be read again for."""
    monkeypatch.setattr("stream.sources.hive.live.partitions.CHUNK", 1)
    warehouse = Warehouse()
    warehouse.partitions.want(TABLE)
    warehouse.partitions.go_on()
    warehouse.written_meanwhile = DROPS_KEPT + 1
    for _ in range(20):
        warehouse.partitions.step()
        warehouse.partitions.go_on()
    sets = [(each.kind, each.change) for each in warehouse.published if isinstance(each, ObjectSet)]
    assert sets[:4] == [(kind, change) for change in WHOLE for kind in KINDS]
    complete = warehouse.published.index(ObjectSet(KINDS[1], TABLE, "complete", lo="HiveEvent/10"))
    without = [isinstance(each, ObjectImage) and each.change == "dropped" for each in warehouse.published]
    assert not any(without[:complete])
    assert any(without[complete:])


def test_those_that_are_there_are_published_before_those_that_are_not() -> None:
    """Many partitions without statistics would else push out what their own images are judged by."""
    warehouse = Warehouse()
    for name in ("a", "b"):
        warehouse.partitions.note(written(name))
    warehouse.partitions.step()
    changes = [(each.name, each.change) for each in warehouse.published if isinstance(each, ObjectImage)]
    there = [(("a",), "image"), (("b",), "image"), ((), "image")]
    assert changes == [*there, (("a",), "dropped"), (("b",), "dropped")]


@pytest.mark.parametrize("is_pass", [False, True])
def test_statistics_of_all_partitions_together_are_published_if_they_are_few(
    is_pass: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was written, with a pass, and after a drop, which makes nothing else due; never of many."""

    def publish() -> Warehouse:
        warehouse = Warehouse()
        if is_pass:
            warehouse.partitions.want(TABLE)
        else:
            warehouse.partitions.note(ObjectImage("partition", TABLE, ("a",), "dropped"))
            warehouse.partitions.note(ObjectImage("aggregate_statistics", TABLE, (), "written"))
        while warehouse.partitions.step() or warehouse.partitions.go_on():
            pass
        assert warehouse.partitions.tables == []
        return warehouse

    assert publish().together() == ["HiveEvent/10"]
    monkeypatch.setattr("stream.sources.hive.live.members.FEW_MAX", 1)
    assert publish().together() == []


UNTOLD = (
    MetastoreRefused("get_aggr_stats_for", 2, "no"),
    MetastoreTimeout("get_aggr_stats_for did not answer in time"),
    MetastoreError("get_aggr_stats_for: an internal error"),
)


@pytest.mark.parametrize("why", UNTOLD, ids=lambda each: each.code)
@pytest.mark.parametrize("is_pass", [False, True])
def test_partitions_are_published_although_nobody_tells_their_statistics_together(
    why: MetastoreError, is_pass: bool
) -> None:
    """A metastore may lack that call, or fail in it, or take too long: that is read through, and nothing else is."""
    warehouse = Warehouse()
    warehouse.aggregating_fails = why
    warehouse.ask_for_a(is_pass=is_pass)
    warehouse.work()
    assert [name for name, _ in warehouse.images()] == ([("a",), ("b",)] if is_pass else [("a",)])
    assert (warehouse.together(), warehouse.partitions.tables) == ([], [])
    sets = [each.change for each in warehouse.published if isinstance(each, ObjectSet) and each.kind == "partition"]
    assert sets == (["begun", "complete"] if is_pass else [])


@pytest.mark.parametrize("is_pass", [False, True])
def test_statistics_together_that_nobody_told_are_asked_for_again_after_a_while(is_pass: bool) -> None:
    """Also of a table that nobody writes. Until then no write has them asked for, and a restart knows of them."""
    warehouse = Warehouse()
    warehouse.aggregating_fails = UNTOLD[0]
    warehouse.ask_for_a(is_pass=is_pass)
    warehouse.work()
    assert (warehouse.aggregated, warehouse.partitions.untold) == (1, ["d.t"])
    for wait_s in (RETRY_S, 2 * RETRY_S):
        asked = warehouse.aggregated
        warehouse.now_s += wait_s - 1
        warehouse.partitions.note(written("b"))
        warehouse.partitions.want(TABLE)
        warehouse.work()
        assert (warehouse.aggregated, warehouse.together()) == (asked, [])
        warehouse.now_s += 1
        if wait_s > RETRY_S:
            warehouse.aggregating_fails = None
        warehouse.work()
        assert warehouse.aggregated == asked + 1
    assert (warehouse.together(), warehouse.partitions.untold) == (["HiveEvent/10"], [])
    warehouse.partitions.note(written("a"))
    warehouse.work()
    assert len(warehouse.together()) == 2, "nothing is left of the refusal"


def test_a_refusal_outlasts_the_first_chunk_that_is_read_again() -> None:
    """After too many drops. That chunk asks for nothing, which must not read as if it had been told."""
    warehouse = Warehouse()
    warehouse.aggregating_fails = UNTOLD[0]
    warehouse.partitions.want(TABLE)
    warehouse.dropped_meanwhile = DROPS_KEPT + 1
    warehouse.work()
    assert (warehouse.partitions.untold, warehouse.together()) == (["d.t"], [])
    warehouse.aggregating_fails = None
    warehouse.now_s += RETRY_S
    warehouse.work()
    assert len(warehouse.together()) == 1


def test_a_dropped_table_is_not_asked_for_its_statistics_again() -> None:
    """Else each table that was ever refused would be asked for until the source ends."""
    warehouse = Warehouse()
    warehouse.aggregating_fails = UNTOLD[0]
    warehouse.partitions.note(written("a"))
    warehouse.work()
    warehouse.partitions.forget(TABLE)
    warehouse.now_s += RETRY_MAX_S
    warehouse.work()
    assert (warehouse.aggregated, warehouse.partitions.untold) == (1, [])


def untold_warehouse() -> Warehouse:
    """One that could not tell statistics together, and is due to be asked for them again."""
    warehouse = Warehouse()
    warehouse.aggregating_fails = UNTOLD[1]
    warehouse.ask_for_a(is_pass=False)
    warehouse.work()
    warehouse.now_s += RETRY_S
    return warehouse


def test_a_metastore_that_is_slow_to_tell_statistics_together_holds_nothing_up() -> None:
    """It is asked for those of one table at a time, and what is written meanwhile is published."""
    warehouse = untold_warehouse()
    warehouse.aggregating_fails, warehouse.pending = None, []
    assert warehouse.partitions.ask_again()
    assert not warehouse.partitions.ask_again(), "nothing has arrived, and no other call is made"
    (late,) = warehouse.pending
    assert (warehouse.partitions.is_under_way, warehouse.partitions.untold) == (True, ["d.t"])
    warehouse.pending = None
    before = len(warehouse.images())
    warehouse.partitions.note(written("b"))
    assert warehouse.partitions.step()
    assert len(warehouse.images()) == before + 1
    assert (warehouse.together(), warehouse.partitions.is_under_way) == (["HiveEvent/10"], False)
    late()
    warehouse.work()
    assert warehouse.together() == ["HiveEvent/10"], "the write had them told, and later"


@pytest.mark.parametrize("is_pass", [False, True])
def test_statistics_together_that_were_asked_for_before_a_write_do_not_count_as_told_after_it(is_pass: bool) -> None:
    """The fold refuses them, and if they ended the wait nobody would ask again. Nor after a pass that began since."""
    warehouse = untold_warehouse()
    warehouse.pending = []
    assert warehouse.partitions.ask_again()
    (late,) = warehouse.pending
    warehouse.pending = None
    warehouse.ask_for_a(is_pass=is_pass)
    warehouse.work()
    warehouse.aggregating_fails = None
    late()
    warehouse.work()
    assert (warehouse.together(), warehouse.partitions.untold) == ([], ["d.t"])


def test_statistics_together_that_were_told_are_not_lost_when_the_metastore_goes_away() -> None:
    """The answer was there, and the log could not be read up to it: it is asked for again."""
    warehouse = untold_warehouse()
    warehouse.aggregating_fails, warehouse.pending = None, []
    assert warehouse.partitions.ask_again()
    (late,) = warehouse.pending
    warehouse.pending = None
    late()
    warehouse.fails_in = 1
    with pytest.raises(MetastoreUnreachable):
        warehouse.partitions.ask_again()
    assert warehouse.together() == []
    warehouse.work()
    assert warehouse.together() == ["HiveEvent/10"]


def test_a_restart_asks_for_statistics_together_that_nobody_told() -> None:
    """Alone: neither the table nor its partitions are read again for them."""
    warehouse = Warehouse()
    warehouse.partitions.note_untold([TABLE])
    warehouse.work()
    assert (warehouse.aggregated, warehouse.partitions.untold, warehouse.partitions.tables) == (0, ["d.t"], [])
    warehouse.now_s += RETRY_S
    warehouse.work()
    assert (warehouse.together(), warehouse.images(), warehouse.partitions.untold) == (["HiveEvent/10"], [], [])


def test_statistics_together_that_another_metastore_may_have_told_are_not_published() -> None:
    """The one that was asked has no cache of its own; the one that answered may have one."""
    warehouse = Warehouse()
    warehouse.moves_meanwhile = True
    warehouse.ask_for_a(is_pass=False)
    warehouse.work()
    assert (warehouse.aggregated, warehouse.together(), warehouse.partitions.untold) == (1, [], ["d.t"])
    assert warehouse.images() != []


@pytest.mark.parametrize("is_pass", [False, True])
def test_statistics_together_from_the_metastores_own_cache_are_not_published(is_pass: bool) -> None:
    """No write invalidates that cache: they would be `fresh` and old. They are not asked for, now or later."""
    warehouse = Warehouse()
    warehouse.caches = True
    warehouse.ask_for_a(is_pass=is_pass)
    warehouse.work()
    assert (warehouse.aggregated, warehouse.together(), warehouse.partitions.untold) == (0, [], [])
    assert warehouse.images() != []


@pytest.mark.parametrize("refuses", [0, 1])
@pytest.mark.parametrize("is_pass", [False, True])
@pytest.mark.parametrize("fails_in", range(1, 10))
def test_no_partition_is_forgotten_when_the_metastore_goes_away(fails_in: int, is_pass: bool, refuses: int) -> None:
    """At whichever call it does: all is fetched later, and no set is whole without its members.

    What the metastore refuses is read through, so it is in no whole set.
    """
    warehouse = Warehouse()
    warehouse.fails_in, warehouse.refuses = fails_in, refuses
    if is_pass:
        warehouse.partitions.want(TABLE)
    else:
        for name in ("a", "b"):
            warehouse.partitions.note(written(name))
    worked = True
    while worked:
        try:
            worked = warehouse.partitions.step() or warehouse.partitions.go_on()
        except MetastoreUnreachable:
            continue
    shown = [each for each in warehouse.published if isinstance(each, ObjectImage | ObjectSet)]
    told = [each.change for each in shown if each.kind == "partition"]
    for at, change in enumerate(told):
        assert change != "complete" or told[at - 3 : at] == ["begun", "image", "image"]
    assert refuses or {name for name, _ in warehouse.images()} == {("a",), ("b",)}


def test_details_are_due_again_when_the_metastore_goes_away_behind_them() -> None:
    """Constraints and statistics were fetched, and the log could not be read past them: nobody has published them.

    What is published before them says that they are due.
    """
    drained: list[int] = []
    told: list[list[str]] = []

    def publish(changes: list[Change]) -> None:
        told.append(details.tables)
        published.extend(changes)

    def drain(upto: int) -> None:
        drained.append(upto)
        told.append(details.tables)
        if len(drained) == 1:
            raise MetastoreUnreachable("no metastore answers")

    published: list[Change] = []
    fetched: Future[FetchedDetails] = Future()
    found = TableDetails(Shape(TABLE, (), (), 1), {}, {})
    fetched.set_result(FetchedDetails(("d.t",), 1, 2, {"d.t": found}))
    fetcher = cast("Fetcher", SimpleNamespace(run=lambda _: fetched))
    details = Details(
        fetcher,
        Progress(""),
        publish,
        drain,
        lambda: {"d.t": TABLE},
        lambda _: "d.t",
        lambda _: 0,
        lambda _: 0,
        Warehouse().partitions,
        ForeignKeys({}, str, bool),
        "hive/0",
    )
    details.want(TABLE)
    with pytest.raises(MetastoreUnreachable):
        details.step()
    assert details.tables == ["d.t"]
    assert details.step()
    assert {each.kind for each in published if isinstance(each, ObjectImage)} == {"constraints", "statistics"}
    assert told == [["d.t"], ["d.t"], []]


@pytest.mark.parametrize("is_pass", [False, True])
def test_what_is_published_during_a_fetch_says_that_it_is_due(is_pass: bool) -> None:
    """A source that is killed behind an event that came meanwhile fetches again; behind the last image it need not."""
    warehouse = Warehouse()
    warehouse.ask_for_a(is_pass=is_pass)
    while warehouse.partitions.step() or warehouse.partitions.go_on():
        pass
    *meanwhile, last = warehouse.due
    assert len(meanwhile) > 0
    assert all(each == ["d.t"] for each in meanwhile)
    assert last == []


class Renamed(Warehouse):
    """Its table takes another name, and another table its old one, when the log is read for the n-th time."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.name, self.asked = "d.t", list[str]()
        self.left = at
        self.partitions._name_of = lambda table_id: self.name if table_id == TABLE else ""

    def reached(self) -> None:
        """The log is read, or something is asked for."""
        super().reached()
        self.left -= 1
        if not self.left:
            self.name = "d.new"

    def table(self, name: str) -> TableObject:
        """The table that has the name."""
        self.asked.append(name)
        return super().table(name)


def test_a_written_partition_is_fetched_under_the_name_that_its_table_has() -> None:
    """A rename that is read just before the fetch would have another table's partition published, or none."""
    warehouse = Renamed(at=1)
    warehouse.partitions.note(written("a"))
    warehouse.partitions.step()
    assert warehouse.asked == ["d.new"]
    assert [name for name, _ in warehouse.images()] == [("a",)]


def test_what_was_fetched_under_a_name_that_is_another_tables_now_is_fetched_again() -> None:
    """The log tells of the rename only after the fetch."""
    warehouse = Renamed(at=4)
    warehouse.partitions.note(written("a"))
    warehouse.partitions.step()
    assert (warehouse.asked, warehouse.images(), warehouse.partitions.tables) == (["d.t"], [], ["d.new"])


class Voided(Warehouse):
    """Everything of its table is voided once, after the partitions were read and before the log is."""

    def __init__(self, table_id: int) -> None:
        super().__init__()
        self.voids, self.table_id = 1, table_id

    def drain(self, event: int) -> None:
        """The log is read: it tells of the void."""
        super().drain(event)
        if self.fetches and self.voids:
            self.voids -= 1
            self.end += 1
            self.partitions.void(self.table_id)


@pytest.mark.parametrize("table_id", [TABLE, 0])
def test_what_was_read_before_a_void_is_never_published_after_it(table_id: int) -> None:
    """The fold takes what comes after a void for newer than it. Neither in a pass nor of a written partition."""
    warehouse = Voided(table_id)
    warehouse.partitions.want(TABLE)
    while warehouse.partitions.tables:
        warehouse.partitions.go_on()
    assert [(name, lo) for name, lo in warehouse.images()] == [(("a",), "HiveEvent/11"), (("b",), "HiveEvent/11")]
    kinds = [(each.kind, each.change) for each in warehouse.published if isinstance(each, ObjectSet)]
    assert kinds == [*((kind, "begun") for kind in KINDS)] * 2 + [(kind, "complete") for kind in KINDS]

    warehouse = Voided(table_id)
    warehouse.partitions.note(written("a"))
    warehouse.partitions.step()
    assert (warehouse.images(), warehouse.partitions.tables) == ([], ["d.t"])
    warehouse.partitions.step()
    assert warehouse.images() == [(("a",), "HiveEvent/11")]


def test_a_table_that_is_altered_all_the_time_is_not_read_all_the_time() -> None:
    """A pass cut short rests as long as it had lasted: at most half of the time is spent on reading for nothing."""
    warehouse = Warehouse()
    warehouse.pending = []
    partitions, void = warehouse.partitions, ObjectSet("partition", TABLE, "void", reason="the table was altered")
    begun = []
    partitions.want(TABLE)
    for second in range(60):
        warehouse.now_s = second
        partitions.go_on()
        begun += [second] * len(warehouse.pending)
        warehouse.pending.clear()
        if second % 5 == 4:
            partitions.note(void)
    assert begun == [0, 8, 10, 18, 20, 28, 30, 38, 40, 48, 50, 58]

    warehouse.pending = None
    partitions.note(void)
    partitions.go_on()
    assert (warehouse.images(), partitions.tables) == ([], ["d.t"]), "it is due, and rests"
    warehouse.now_s += 60
    while partitions.go_on():
        pass
    assert [name for name, _ in warehouse.images()] == [("a",), ("b",)]
    partitions.note(void)
    while partitions.go_on():
        pass
    assert len(warehouse.images()) == 4, "a void between two passes is followed by one at once"


def test_a_pass_that_is_refused_while_its_table_is_voided_begins_again() -> None:
    """The log that is read then tells of the void, after which the refused fetch means nothing."""
    warehouse = Warehouse()
    warehouse.partitions.want(TABLE)
    warehouse.refuses = 1
    position = warehouse.position

    def voided() -> int:
        if warehouse.fetches == 1:
            warehouse.fetches += 1
            warehouse.partitions.void(TABLE)
        return position()

    warehouse.partitions._position = voided
    while warehouse.partitions.tables:
        warehouse.partitions.go_on()
    assert [name for name, _ in warehouse.images()] == [("a",), ("b",)]


@pytest.mark.parametrize("first", ["a pass", "by name"])
def test_partitions_that_are_refused_for_a_moment_are_read_again(first: str) -> None:
    """Their next event may be far, and until then every reader would ask the metastore. A restart asks at once."""
    warehouse = Warehouse()
    partitions = warehouse.partitions
    if first == "a pass":
        partitions.want(TABLE)
    else:
        partitions.note(written("a"))
    for _ in range(3):
        warehouse.refuses = 1
        while partitions.step() or partitions.go_on():
            pass
        assert not partitions.go_on(), "not at once"
        assert (warehouse.images(), partitions.tables, partitions.refused) == ([], [], ["d.t"])
        warehouse.now_s += RETRY_MAX_S
    while partitions.go_on() or partitions.tables:
        pass
    assert [name for name, _ in warehouse.images()] == [("a",), ("b",)]
    assert [each.change for each in warehouse.published if isinstance(each, ObjectSet)][-2:] == ["complete"] * 2
    warehouse.now_s += RETRY_MAX_S
    assert not partitions.go_on(), "once"
    assert partitions.refused == []
