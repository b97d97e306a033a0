"""Reads of a real metastore's partitions, databases, functions, constraints and statistics, as a front does them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
import pytest

from freshet.local.hive.server import HiveServer
from serving.errors import ReadError
from serving.sources import breaker
from serving.sources.hive import HiveTables
from serving.sources.hive_latest import EVENTS_MAX, latest_event
from serving.sources.hive_objects import read_objects
from serving.sources.hive_tables import position_of, read_table
from serving.sources.source import Folded, SourceObjects, WantedObjects
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings
from stream.sources.hive.objects import image_of
from stream.sources.hive.partition_names import DEFAULT
from stream.sources.hive.rpc.connection import MetastoreTimeout
from tests.patience import PATIENCE_S
from tests.servers.hive_catalog import HiveCatalog
from tokens import ValidWriteIdList

VALUES = ("a", "b/c", "ü", "100%", "x=y", "a b", "it's", "{[^]}")


@pytest.fixture
def catalog(hive: tuple[str, int]) -> Iterator[HiveCatalog]:
    """A client with a database of its own on the session's metastore."""
    with HiveCatalog(hive, f"db{uuid.uuid4().hex[:8]}") as client:
        yield client


@pytest.fixture
def read(catalog: HiveCatalog) -> Callable[..., SourceObjects]:
    """Reads objects of the table ``t``, or of none."""

    def ask(kind: str, table: str = "t", own_list: str | None = None, **wanted: Any) -> SourceObjects:
        name = f"{catalog.db}.{table}" if table else ""
        return read_objects(catalog.metastore, WantedObjects(kind, name, **wanted), own_list)

    return ask


def plain(images: Sequence[bytes | None]) -> list[Any]:
    """Images as values."""
    return [None if image is None else msgspec.json.decode(image) for image in images]


def test_partitions_are_read_by_all_their_ways(catalog: HiveCatalog, read: Callable[..., SourceObjects]) -> None:
    """All, by name, by filter, by first values, names only: what the metastore has, whatever is in a value."""
    table_id = catalog.create("t", transactional=False, partitioned=True)
    catalog.add_partitions("t", *VALUES)
    found = read("partition")
    assert (found.table_id, found.table_kind) == (table_id, "external")
    assert sorted(found.names) == sorted((value,) for value in VALUES)
    stored = {
        values: image_of(each, "Partition") for values, each in next(catalog.metastore.partitions(name_of(catalog), 99))
    }
    assert dict(zip(found.names, found.images, strict=True)) == stored
    assert read("partition", filter="p = 'b/c' or p = 'x=y'").names == [("b/c",), ("x=y",)]
    assert read("partition", prefix=("ü",)).names == [("ü",)]
    only = read("partition", names_only=True)
    assert (only.names, only.images) == (found.names, [])
    named = read("partition", names=(("zz",), ("100%",), ("two", "values")))
    assert [image is not None for image in named.images] == [False, True, False]


def test_a_partition_of_an_empty_value_is_the_default_one(
    catalog: HiveCatalog, read: Callable[..., SourceObjects]
) -> None:
    """A metastore keeps the empty value, lists it by the default one, and finds it by either."""
    catalog.create("t", transactional=False, partitioned=True)
    catalog.add_partitions("t", "a", "")
    catalog.set_statistics("t", 3, DEFAULT)
    found = read("partition")
    assert found.names == [(DEFAULT,), ("a",)]
    assert [each["values"] for each in plain(found.images)] == [[""], ["a"]]
    assert read("partition", names_only=True).names == found.names
    assert read("partition", names=((DEFAULT,),)).images == found.images[:1]
    [statistics] = plain(read("partition_statistics", names=((DEFAULT,),)).images)
    assert statistics is not None


def name_of(catalog: HiveCatalog, table: str = "t") -> str:
    """``db.table``."""
    return f"{catalog.db}.{table}"


def test_a_table_without_partitions_and_one_that_does_not_exist(
    catalog: HiveCatalog, read: Callable[..., SourceObjects]
) -> None:
    """The one has none; of the other nothing is known, not even an id."""
    table_id = catalog.create("t", transactional=False)
    assert (read("partition").names, read("partition").table_id) == ([], table_id)
    assert read("partition", names=(("a",),)).images == [None]
    missing = read("partition", table="nowhere")
    assert (missing.names, missing.table_id) == ([], 0)


def test_the_list_is_from_before_the_partitions(catalog: HiveCatalog, read: Callable[..., SourceObjects]) -> None:
    """The tag is the server's list; a reader's own open id counts as valid for it alone."""
    catalog.create("t", partitioned=True)
    txn = catalog.open()
    write_id = catalog.allocate("t", txn)
    catalog.add_partitions("t", "a")
    tag = ValidWriteIdList.parse(read("partition").write_ids)
    own = catalog.valid_for("t", write_id)
    assert not tag.covers(ValidWriteIdList.parse(own))
    assert ValidWriteIdList.parse(read("partition", own_list=own).write_ids).covers(ValidWriteIdList.parse(own))
    catalog.abort(txn)


def test_a_name_that_changes_hands_is_read_again(
    catalog: HiveCatalog, read: Callable[..., SourceObjects], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions don't tell their table. Those that were read while it was replaced are not given as the old one's."""
    catalog.create("t", transactional=False, partitioned=True)
    catalog.add_partitions("t", "old")
    names_of = Metastore.partition_names

    def replaced_meanwhile(metastore: Metastore, name: str) -> list[str]:
        monkeypatch.setattr(Metastore, "partition_names", names_of)
        catalog.drop("t")
        catalog.create("t", transactional=False, partitioned=True)
        catalog.add_partitions("t", "new")
        return names_of(metastore, name)

    monkeypatch.setattr(Metastore, "partition_names", replaced_meanwhile)
    found = read("partition")
    assert (found.names, found.table_id) == ([("new",)], catalog.table_id("t"))


def test_databases_and_functions(catalog: HiveCatalog, read: Callable[..., SourceObjects]) -> None:
    """All, by name, and those of one database."""
    assert (catalog.db,) in read("database", "").names
    assert read("database", "", names_only=True).images == []
    [missing, found] = plain(read("database", "", names=(("nowhere",), (catalog.db,))).images)
    assert (missing, found["name"]) == (None, catalog.db)
    catalog.create_function("f")
    assert read("function", "", prefix=(catalog.db,)).names == [(catalog.db, "f")]
    assert read("function", "", prefix=("nowhere",)).names == []
    [found, missing] = plain(read("function", "", names=((catalog.db, "f"), (catalog.db, "g"))).images)
    assert (found["className"], missing) == ("org.example.F", None)


def test_constraints(catalog: HiveCatalog, read: Callable[..., SourceObjects]) -> None:
    """All kinds of them in one object; a table always has it."""
    catalog.create("t", transactional=False)
    [none] = plain(read("constraints", names=((),)).images)
    assert none["primaryKeys"] == []
    catalog.add_primary_key("t", "pk_t")
    [some] = plain(read("constraints", names=((),)).images)
    assert [key["pk_name"] for key in some["primaryKeys"]] == ["pk_t"]


def test_statistics_of_table_partition_and_all_partitions(
    catalog: HiveCatalog, read: Callable[..., SourceObjects]
) -> None:
    """As the metastore has them, with what they are of, by which a front says whether they hold."""
    catalog.create("t", transactional=False, partitioned=True)
    assert read("statistics", names=((),)).images == [None]
    catalog.add_partitions("t", "a", "b/c")
    catalog.set_statistics("t", 3, "a")
    catalog.set_statistics("t", 4, "b%2Fc")
    both = read("partition_statistics", names=(("a",), ("b/c",), ("zz",)))
    assert [nulls_of(each) for each in plain(both.images)] == [3, 4, None]
    assert [each is not None and "values" in each for each in plain([each for [each] in both.statistics_of])] == [
        True,
        True,
        False,
    ]
    [aggregate] = plain(read("aggregate_statistics", names=((),)).images)
    assert (aggregate["partsFound"], aggregate["colStats"][0]["statsData"]["longStats"]["numNulls"]) == (2, 7)
    catalog.create("u", transactional=False)
    catalog.set_statistics("u", 5)
    found = read("statistics", table="u", names=((),))
    assert nulls_of(plain(found.images)[0]) == 5
    assert found.statistics_of == [[found.table_image]]


@pytest.mark.parametrize("partitions", [2, 3])
def test_whether_statistics_of_many_partitions_hold_is_not_read(
    partitions: int, catalog: HiveCatalog, read: Callable[..., SourceObjects], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All images of 20,000 partitions take longer than a reader waits: then it has the statistics without a verdict."""
    monkeypatch.setattr("serving.sources.hive_objects.FEW_MAX", 2)
    catalog.create("t", partitioned=True)
    catalog.add_partitions("t", *VALUES[:partitions])
    asked: list[Sequence[str]] = []
    by_names = Metastore.partitions_by_names

    def counted(metastore: Metastore, name: str, names: Sequence[str]) -> Any:
        asked.append(names)
        return by_names(metastore, name, names)

    monkeypatch.setattr(Metastore, "partitions_by_names", counted)
    found = read("aggregate_statistics", names=((),))
    assert found.images != [None]
    assert [len(images) for images in found.statistics_of] == ([2] if partitions == 2 else [])
    assert [len(names) for names in asked] == ([2] if partitions == 2 else [])


def nulls_of(statistics: Any) -> int | None:
    """The number of nulls in the first column's statistics."""
    return statistics["statsObj"][0]["statsData"]["longStats"]["numNulls"] if statistics else None


def test_an_answer_is_no_later_than_the_last_event_of_its_table(catalog: HiveCatalog) -> None:
    """Not the end of the log, which is beyond what any owner has folded: the session's next read would miss too."""
    catalog.create("t", transactional=False, partitioned=True)
    catalog.create("u", transactional=False)
    metastore, name = catalog.metastore, name_of(catalog)
    known = metastore.last_event()
    folded = Folded(str(position_of(known)))

    def latest() -> tuple[int, ...]:
        """The log's end, and as late as which event the table and its partitions are."""
        end, table = metastore.last_event(), read_table(metastore, name, None, folded)
        found = read_objects(metastore, WantedObjects("partition", name), None, folded)
        return end, *(int(str(each.hi).rpartition("/")[2]) for each in (table, found))

    assert latest() == (known, known, known)
    catalog.alter("u", v="1")
    catalog.abort(catalog.open())
    end, *found = latest()
    assert (end > known, found) == (True, [known, known])
    catalog.add_partitions("t", "a")
    written = metastore.last_event()
    catalog.alter("u", v="2")
    end, *found = latest()
    assert (end > written, found) == (True, [written, written])


def test_constraints_may_be_as_late_as_what_happened_to_another_table(catalog: HiveCatalog) -> None:
    """To that the foreign key may have pointed that they have no more."""
    for table in ("t", "parent"):
        catalog.create(table, transactional=False)
    catalog.add_primary_key("parent", f"pk_{catalog.db}")
    catalog.add_foreign_key("t", "parent", f"fk_{catalog.db}", f"pk_{catalog.db}")
    metastore, wanted = catalog.metastore, WantedObjects("constraints", name_of(catalog))
    known = position_of(metastore.last_event())
    catalog.create("u", transactional=False)
    assert read_objects(metastore, wanted, None, Folded(str(known))).hi == known
    catalog.drop("parent")
    found = read_objects(metastore, wanted, None, Folded(str(known)))
    assert found.hi == position_of(metastore.last_event())


def test_an_answer_may_be_as_late_as_a_rename_away_from_its_name(catalog: HiveCatalog) -> None:
    """The event is named after the new name. What was read by the name before may be another table's."""
    catalog.create("t", transactional=False)
    before = catalog.metastore.last_event()
    catalog.alter("t", rename_to="u")
    renamed = catalog.metastore.last_event()
    for table in ("t", "u"):
        assert latest_event(catalog.metastore, name_of(catalog, table), before, before) == renamed
    assert latest_event(catalog.metastore, name_of(catalog, "v"), before, before) == before


class Log:
    """The part of a metastore that tells its events, of which the first ones were deleted."""

    def __init__(self, first: int, end: int, *, is_slow: bool = False) -> None:
        self.first, self.end, self.is_slow = first, end, is_slow

    def events(self, after: int, count: int, timeout_s: float) -> list[dict[str, Any]]:
        """Of another table."""
        if self.is_slow:
            raise MetastoreTimeout(f"not within {timeout_s} s")
        ids = range(max(after + 1, self.first), self.end + 1)
        shown = {"eventTime": 1, "eventType": "INSERT", "dbName": "d", "tableName": "other", "message": "{}"}
        return [{"eventId": each, **shown} for each in ids[:count]]

    def last_event(self) -> int:
        """The log's end."""
        return self.end


@pytest.mark.parametrize(
    ("log", "lo", "known", "latest"),
    [
        (Log(1, 20), 20, 15, 15),
        (Log(1, 20), 20, 0, 0),
        (Log(1, 200), 200, 15, 200),
        (Log(1, 200), 200 - EVENTS_MAX, 15, 200),
        (Log(1, 200), 190, 0, 190),
        (Log(18, 20), 20, 15, 20),
        (Log(21, 20), 20, 15, 20),
        (Log(1, 20), 20, 25, 20),
        (Log(1, 20, is_slow=True), 20, 15, 20),
        (Log(1, 25, is_slow=True), 20, 15, 25),
    ],
    ids=[
        "known",
        "all",
        "far",
        "too many since",
        "far and some since",
        "cleaned",
        "all cleaned",
        "ahead",
        "slow",
        "slow, and changed while it was read",
    ],
)
def test_what_the_log_does_not_tell_is_as_late_as_its_end(log: Log, lo: int, known: int, latest: int) -> None:
    """An event that was deleted, or that lies too far back, may have been one of the table."""
    assert latest_event(cast("Metastore", log), "d.t", lo, known) == latest


def test_what_a_server_lacks_is_an_error_and_opens_no_circuit(catalog: HiveCatalog) -> None:
    """A filter that does not parse is the reader's mistake: other reads go on."""
    catalog.create("t", transactional=False, partitioned=True)
    source = HiveTables(MetastoreSettings((catalog.address,)), "hive/0")

    async def ask() -> None:
        for _ in range(5):
            with pytest.raises(ReadError) as caught:
                await source.read_objects(WantedObjects("partition", name_of(catalog), filter="nope = 1"))
            assert caught.value.code == "bad_filter"
        assert (await source.read_objects(WantedObjects("partition", name_of(catalog)))).names == []
        await source.close()

    asyncio.run(ask())


def test_a_metastore_that_is_down_is_left_alone(
    new_hive: Callable[..., HiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of tables and of objects share one circuit: after failures in a row both end at once."""
    monkeypatch.setattr(breaker, "REST_S", PATIENCE_S)
    server = new_hive()
    source = HiveTables(MetastoreSettings(((server.host, server.port),)), "hive/0")

    async def ask() -> None:
        assert (await source.read_objects(WantedObjects("database"))).names == [("default",)]
        server.kill()
        for _ in range(3):
            with pytest.raises(ReadError):
                await source.read_objects(WantedObjects("database"))
        with pytest.raises(ReadError, match="left alone") as caught:
            await source.read("default.t")
        assert caught.value.code == "source_unreachable"
        await source.close()

    asyncio.run(ask())
