"""What a front makes of a source's answers, decided without a server: scripted readers and metastores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumers.owner.objects.filter import FilterError
from serving.errors import ReadError
from serving.sources.breaker import FAILURES_MAX
from serving.sources.hive import TIMEOUT_S, HiveTables
from serving.sources.hive_latest import latest_event
from serving.sources.hive_objects import read_objects
from serving.sources.hive_tables import event_of, position_of, read_lists, read_table, seen_table
from serving.sources.mariadb import MariaDBRows, row_table
from serving.sources.source import Folded, SchemaChanged, SourceKey, SourceRange, WantedObjects
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings, ServerList, Transactions
from stream.sources.hive.messages import TableObject
from stream.sources.hive.rpc.connection import MetastoreRefused, MetastoreTimeUp, MetastoreUnreachable
from stream.sources.hive.structs import Struct
from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_range import SelectedRange
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.sources.mariadb.snapshot import SnapshotRead
from tokens import ValidWriteIdList
from tokens.errors import FreshetError

ITEMS = TableInfo("shop", "items", (ColumnInfo("id", "int", True),), ("id",))
ALL = KeyRange(limit=10)
KEYLESS = MariaDBError("shop.items has no primary key", code="no_primary_key")


class Reader:
    """A `SnapshotReader` that gives the same answer each time. ``answer``: of each table."""

    def __init__(self, answer: object) -> None:
        self.answer, self.is_closed = answer, False

    def read(self, keys: dict[str, object], _: float) -> dict[str, object]:
        """Of keys."""
        return dict.fromkeys(keys, self.answer)

    def read_range(self, *_: object) -> object:
        """Of a range."""
        return self.answer

    def close(self) -> None:
        """Gives its sessions back."""
        self.is_closed = True


def rows_over(reader: Reader, waiter: Reader | None = None) -> MariaDBRows:
    """The source of shop.items over readers; its clock stands at the second 100."""
    rows = MariaDBRows(ConnectionSettings("127.0.0.1", 1, "u", ""), "shop/0", TableFilter(("shop",)), lambda: 100.0)
    rows._reader, rows._waiter = cast("Any", reader), cast("Any", waiter or Reader(None))
    return rows


def range_of(reader: Reader, table: TableInfo = ITEMS, wanted: KeyRange = ALL) -> SourceRange:
    """The answer for rows of shop.items, which the front knows as ``table``."""
    rows = rows_over(reader)

    async def story() -> SourceRange:
        try:
            return await rows.read_range(row_table(table), wanted)
        finally:
            await rows.close()

    return asyncio.run(story())


@pytest.mark.parametrize(("is_primary", "as_of_ms"), [(True, 100_000), (False, 0)])
def test_a_replicas_range_tells_no_time(is_primary: bool, as_of_ms: int) -> None:
    """It may lack what was committed before it was asked, however it was asked."""
    at = "MariaDB/0-1-5"
    found = range_of(Reader(SnapshotRead(SelectedRange(), at, at, 1, ITEMS, is_primary)))
    assert found.as_of_ms == as_of_ms


@pytest.mark.parametrize("wanted", [ALL, KeyRange(limit=1, order=("a",)), KeyRange(limit=1, where=(("a", 1),))])
def test_a_range_by_a_column_that_is_another_by_now_is_described_again(wanted: KeyRange) -> None:
    """Its values are compared in another way, so the rows would be others, or in another order."""
    at = "MariaDB/0-1-5"
    known, now = (
        TableInfo("shop", "items", (*ITEMS.columns, ColumnInfo("a", kind, True)), ("id",)) for kind in ("int", "text")
    )
    reader = Reader(SnapshotRead(SelectedRange(), at, at, 1, now))
    assert range_of(reader, now, wanted).rows == []
    if wanted is ALL:
        assert range_of(reader, known, wanted).rows == []
    else:
        with pytest.raises(SchemaChanged):
            range_of(reader, known, wanted)


def test_a_table_that_has_lost_its_primary_key_is_described_again() -> None:
    """Whether rows or a range were asked for: what the front knows of the table is of before."""
    with pytest.raises(SchemaChanged):
        range_of(Reader(KEYLESS))
    rows = rows_over(Reader(KEYLESS))

    async def story() -> object:
        [found] = await rows.read([SourceKey(row_table(ITEMS), (1,))])
        await rows.close()
        return found

    assert isinstance(asyncio.run(story()), SchemaChanged)


def test_a_source_that_is_closed_gives_all_its_sessions_back() -> None:
    """Those that read, and those that wait for a replica."""
    readers = Reader(None), Reader(None)
    asyncio.run(rows_over(*readers).close())
    assert all(each.is_closed for each in readers)


class Catalog:
    """The parts of a metastore that the reads here ask for. ``events``: (type, database, table), the first has id 1."""

    catalog = "hive"

    def __init__(self, *events: tuple[str, str, str]) -> None:
        self.told = events
        self.limits: list[float] = []
        self.open: frozenset[int] = frozenset()

    def limit(self, seconds: float) -> None:
        """Of the calls that follow."""
        self.limits.append(seconds)

    def events(self, after: int, count: int, _: float) -> list[dict[str, Any]]:
        """Those after one."""
        names = ("eventType", "dbName", "tableName")
        rows: list[dict[str, Any]] = [
            {"eventId": number, "eventTime": 1, "message": "{}", **dict(zip(names, each, strict=True))}
            for number, each in enumerate(self.told, 1)
        ]
        return [row for row in rows if row["eventId"] > after][:count]

    def last_event(self) -> int:
        """The log's end."""
        return len(self.told)

    def databases(self) -> list[str]:
        """Their names."""
        return ["kept", "dropped"]

    def database(self, name: str) -> Struct | None:
        """One of them; the other was dropped after the names were told."""
        return {1: (11, name.encode())} if name == "kept" else None

    def transactions(self) -> Transactions:
        """Up to 9."""
        return Transactions(9, self.open, frozenset())

    def write_ids(self, names: Sequence[str], txns: str = "") -> dict[str, ServerList]:
        """None has any."""
        assert txns
        return {name: ServerList(0, (), ()) for name in names}

    def tables(self, _: Sequence[str]) -> dict[str, TableObject]:
        """There is none."""
        return {}


def as_metastore(catalog: Catalog) -> Metastore:
    """For the reads."""
    return cast("Metastore", catalog)


@pytest.mark.parametrize("kind", ["DROP_DATABASE", "ALTER_DATABASE"])
def test_an_event_that_names_no_table_may_be_of_any(kind: str) -> None:
    """What was read of a table may be as late as what happened to its whole database."""
    log = as_metastore(Catalog(("INSERT", "d", "other"), (kind, "d", ""), ("INSERT", "d", "other")))
    assert latest_event(log, "d.t", 3, 1) == 2


@pytest.mark.parametrize("kind", ["ALTER_TABLE", "DROP_PARTITION", "ALTER_PARTITION", "ADD_PARTITION"])
def test_a_key_of_another_table_may_change_with_its_partitions(kind: str) -> None:
    """A foreign key is shown with the columns of the key that it points to."""
    log = as_metastore(Catalog(("INSERT", "d", "t"), (kind, "d", "other")))
    latest = latest_event(log, "d.t", 2, 1, of_keys=True)
    assert latest == (1 if kind == "ADD_PARTITION" else 2)


@pytest.mark.parametrize("kind", ["COMMIT_TXN", "ABORT_TXN", "OPEN_TXN"])
def test_a_commit_may_change_a_table_that_takes_what_it_sets(kind: str) -> None:
    """It names no table. No other event of a transaction does that, and it does it to few tables."""
    log = as_metastore(Catalog(("INSERT", "d", "t"), (kind, "", "")))
    assert latest_event(log, "d.t", 2, 1, of_commits=True) == (2 if kind == "COMMIT_TXN" else 1)
    assert latest_event(log, "d.t", 2, 1) == 1


def test_a_database_that_is_dropped_while_all_are_read_is_left_out() -> None:
    """Where it was asked for by its name, it is told not to be there."""
    catalog = as_metastore(Catalog())
    assert read_objects(catalog, WantedObjects("database"), None).names == [("kept",)]
    named = read_objects(catalog, WantedObjects("database", names=(("dropped",),)), None)
    assert (named.names, named.images) == ([("dropped",)], [None])


def test_the_newest_transaction_is_open_for_others_and_committed_for_itself() -> None:
    """A reader's list ends with the last transaction that there is, whatever became of it."""
    catalog = Catalog()
    catalog.open = frozenset({4, 9})
    assert read_lists(as_metastore(catalog), (), 0, "").txns == "9:4:4,9:"
    assert read_lists(as_metastore(catalog), (), 9, "").txns == "9:4:4:"
    assert read_lists(as_metastore(catalog), (), 4, "").txns.startswith("4:")


class Busy(Catalog):
    """Its table ``d.t`` is written once more while each answer is on its way: what tells of it is a number."""

    writes = 0

    def last_event(self) -> int:
        """That of the last write."""
        self.writes += 1
        return self.writes

    def write_ids(self, names: Sequence[str], _: str = "") -> dict[str, ServerList]:
        """With the id of the last write."""
        return {name: ServerList(self.last_event(), (), ()) for name in names}

    def table(self, name: str) -> TableObject:
        """As the last write has left it."""
        return TableObject(name, 7, True, True, b"%d" % self.last_event())

    def tables(self, names: Sequence[str]) -> dict[str, TableObject]:
        """The same."""
        return {name: self.table(name) for name in names}


def test_the_position_of_lists_is_from_before_them() -> None:
    """A later one would have a write that the lists lack, and prove them to the session that wrote it."""
    found = read_lists(as_metastore(Busy()), ["d.t"], 0, "")
    [listed] = found.tables
    assert event_of(str(found.position)) < ValidWriteIdList.parse(listed.write_ids).hwm


def test_a_list_is_never_later_than_its_table() -> None:
    """It would prove to a reader that the image has a write which came after it."""
    lo, seen = seen_table(as_metastore(Busy()), "d.t", None)
    assert lo < ValidWriteIdList.parse(seen.write_ids).hwm < int(seen.image or b"0")


@pytest.mark.parametrize(("transactional", "is_materialized"), [(True, True), (False, True), (True, False)])
def test_a_materialized_view_is_read_and_not_to_be_kept(transactional: bool, is_materialized: bool) -> None:
    """A REBUILD changes its creation metadata, and no event says so."""

    class View(Busy):
        def table(self, name: str) -> TableObject:
            return TableObject(name, 7, transactional, False, b"{}", is_materialized=is_materialized)

    _, seen = seen_table(as_metastore(View()), "d.v", None)
    assert (seen.image, seen.is_logged) == (b"{}", not is_materialized)


@pytest.mark.parametrize("takes_commits", [False, True])
def test_what_a_commit_may_have_set_is_as_late_as_the_commit(takes_commits: bool) -> None:
    """A session that has read it must not be given the table of before by a cache."""

    class Streamed(Catalog):
        def write_ids(self, names: Sequence[str], _: str = "") -> dict[str, ServerList]:
            return {name: ServerList(0, (), ()) for name in names}

        def table(self, name: str) -> TableObject:
            return TableObject(name, 7, True, True, b"{}", takes_commits=takes_commits)

    log = as_metastore(Streamed(("INSERT", "d", "t"), ("COMMIT_TXN", "", "")))
    assert read_table(log, "d.t", None, Folded("HiveEvent/1")).latest == f"HiveEvent/{2 if takes_commits else 1}"


@pytest.mark.parametrize(
    ("folded", "latest"),
    [
        (Folded("HiveEvent/1", "d.t:2:2:2:"), 3),
        (Folded("HiveEvent/1", "d.t:2:1:1,2:"), 3),
        (Folded("HiveEvent/1"), 3),
        (Folded(), 3),
        (Folded("HiveEvent/1", "d.t:2:9223372036854775807::"), 1),
        (Folded("HiveEvent/1", "d.t:2:9223372036854775807::1,2"), 1),
    ],
)
def test_a_list_that_shows_more_than_is_folded_is_as_late_as_the_log(folded: Folded, latest: int) -> None:
    """The COMMIT that it shows names no table. What its transaction did to another one must not be missed after it.

    What is folded already moves nobody on, nor does what the reader alone counts as committed.
    """

    class Committed(Catalog):
        def write_ids(self, names: Sequence[str], _: str = "") -> dict[str, ServerList]:
            return {name: ServerList(3, (3,), (), 3) for name in names}

        def without_collapse(self, lists: dict[str, ServerList], _: Transactions) -> dict[str, ServerList]:
            return lists

        def table(self, name: str) -> TableObject:
            return TableObject(name, 7, True, True, b"{}")

    log = as_metastore(Committed(("INSERT", "d", "t"), ("INSERT", "d", "u"), ("COMMIT_TXN", "", "")))
    found = read_table(log, "d.t", None, folded)
    assert found.latest == f"HiveEvent/{latest}"
    assert (found.written or found.hi) == position_of(1), "the table itself was written before"
    assert read_table(log, "d.t", "d.t:3:9223372036854775807::", folded).latest == f"HiveEvent/{latest}"
    partitions = WantedObjects("partition", "d.t")
    assert read_objects(log, partitions, None, folded).hi == position_of(latest)


def test_a_reader_with_a_transaction_gets_the_ids_that_a_short_list_hides() -> None:
    """Where nothing is committed a metastore lists the lowest id alone: the reader would not see its own write."""

    class Short(Busy):
        def write_ids(self, names: Sequence[str], _: str = "") -> dict[str, ServerList]:
            return {name: ServerList(3, (3,), ()) for name in names}

        def without_collapse(self, lists: dict[str, ServerList], _: Transactions) -> dict[str, ServerList]:
            return dict.fromkeys(lists, ServerList(4, (3, 4), ()))

    own = "d.t:4:3:3:"
    for own_list, hwm in ((None, 3), (own, 4)):
        found = ValidWriteIdList.parse(seen_table(as_metastore(Short()), "d.t", own_list)[1].write_ids)
        assert (found.hwm, found.open_ids) == (hwm, (3,))


def test_an_open_id_that_a_short_list_hides_behind_an_aborted_one_is_told() -> None:
    """Its transaction may have written what the image shows: the list does not say that none is open."""

    class Short(Busy):
        def write_ids(self, names: Sequence[str], _: str = "") -> dict[str, ServerList]:
            return {name: ServerList(1, (), (1,), 2) for name in names}

    _, seen = seen_table(as_metastore(Short()), "d.t", None)
    assert seen.write_ids == "d.t:1:2::1"


def test_what_belongs_to_a_table_whose_name_was_given_away_meanwhile_is_read_again() -> None:
    """It is asked for by the name: it may be the other table's, under the id of the first."""
    ids, ends = [7, 8, 8], [1, 2]

    class GivenAway(Busy):
        def last_event(self) -> int:
            return ends.pop(0)

        def write_ids(self, names: Sequence[str], _: str = "") -> dict[str, ServerList]:
            return {name: ServerList(0, (), ()) for name in names}

        def table(self, name: str) -> TableObject:
            return TableObject(name, ids.pop(0), False, False, b"{}")

        def constraints(self, _: str) -> Struct:
            return {}

    catalog = GivenAway(("INSERT", "d", "t"), ("ALTER_TABLE", "d", "t"))
    found = read_objects(as_metastore(catalog), WantedObjects("constraints", "d.t"), None)
    assert (found.table_id, str(found.position)) == (8, "HiveEvent/2")


def test_a_catalog_that_is_closed_closes_its_connections() -> None:
    """Each thread that has read has one, of tables or of lists."""
    closed: list[str] = []
    source: Any = HiveTables(MetastoreSettings((("127.0.0.1", 1),)), "hive/0")
    source._opened += [SimpleNamespace(close=lambda name=name: closed.append(name)) for name in ("tables", "lists")]
    asyncio.run(source.close())
    assert closed == ["tables", "lists"]


def test_all_calls_of_a_read_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a read of many calls may take longer than its front waits, each time, and holds its connection."""
    catalog, source = Catalog(), HiveTables(MetastoreSettings((("127.0.0.1", 1),)), "hive/0")
    monkeypatch.setattr(source, "_metastore", lambda: as_metastore(catalog))

    async def story() -> None:
        assert (await source.read_lists((), 0, "1:1::")).txns == "1:1::"
        with pytest.raises(ReadError):
            await source.read_objects(WantedObjects("nothing of a metastore"))
        await source.close()

    asyncio.run(story())
    assert catalog.limits == [TIMEOUT_S, TIMEOUT_S]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (MetastoreRefused("get_table", 0, "it does not know the call"), "source_failed"),
        (FilterError(1, "no such column"), "bad_filter"),
        (ReadError("source_failed", "its name is given away each time"), "source_failed"),
        (MetastoreTimeUp("get_table_req: after other calls were answered"), "source_unreachable"),
    ],
)
def test_an_answer_that_is_an_error_is_no_failure_in_a_row(
    monkeypatch: pytest.MonkeyPatch, answer: FreshetError, code: str
) -> None:
    """A metastore that answers is not left alone, however often it did not before and does not after that."""
    away = [MetastoreUnreachable("nobody is there")] * (FAILURES_MAX - 1)
    told: list[FreshetError] = [*away, answer, *away]

    class Unsteady(Catalog):
        def last_event(self) -> int:
            if told:
                raise told.pop(0)
            return 7

    source = HiveTables(MetastoreSettings((("127.0.0.1", 1),)), "hive/0")
    monkeypatch.setattr(source, "_metastore", lambda: as_metastore(Unsteady()))

    async def story() -> list[str]:
        codes = []
        while told:
            with pytest.raises(ReadError) as failed:
                await source.read_lists((), 0, "1:1::")
            codes.append(failed.value.code)
        assert event_of(str((await source.read_lists((), 0, "1:1::")).position)) == 7
        await source.close()
        return codes

    assert asyncio.run(story()) == [*["source_unreachable"] * len(away), code, *["source_unreachable"] * len(away)]
