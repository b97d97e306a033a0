"""Partitions, databases and statistics at their owner: by name, as lists, in pages, by filter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.evidence import demand_of
from consumers.owner.objects import answering
from consumers.owner.objects.answering import LOOKED_AT_ONCE, answer_few, answer_objects
from consumers.owner.objects.filter import FilterError
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Partition
from consumers.owner.protocol import PAGE_EXPIRED, GetObjects, OwnerObjects
from consumers.owner.tables import MissingWriteIds
from consumers.store.store import PartitionStore
from stream.kafka.topics import Topic
from stream.wire.keys import object_name
from tests.consumers.histories import event, marker
from tests.consumers.owner.test_owner_tables import NAME, SHARD, at, bind, catalog, image, mark
from tests.consumers.owning import KEYSPACE
from tokens import Freshness, Vector

LIST = f"{NAME}:0:9223372036854775807::"
KEYS = b'{"partitionKeys":[{"name":"ds","type":"string"},{"name":"hr","type":"int"}],"writeId":2}'


class Catalog:
    """The store of one partition, with table 7, external unless said otherwise, its partitions known and whole."""

    def __init__(self, directory: Path) -> None:
        store = PartitionStore.open(directory, keyspace=KEYSPACE, partition=0, topic_id="")
        self.partition = Partition(KEYSPACE, 0, Topic("topic", "", 1), store, Overlay(1 << 20))
        self.ordinal = 1
        self.offset = 0
        self.fold(event("EpochStart", 1, shard=SHARD, position=at(0), reason="first_start"))

    def fold(self, message: bytes) -> None:
        """The next message."""
        rejected = self.partition.store.fold([(self.offset, message)])
        assert rejected == []
        self.offset += 1

    def event(self, name: str, fields: dict[str, Any]) -> None:
        """The next event, and a marker after it."""
        self.ordinal += 1
        self.fold(catalog(name, self.ordinal, fields))
        self.fold(mark(self.ordinal))

    def table(self, change: str, content: bytes | None = KEYS, kind: str = "external", **fields: Any) -> None:
        """An event of table 7, and a marker."""
        self.ordinal += 1
        self.fold(image(self.ordinal, change, content, kind=kind, **fields))
        self.fold(mark(self.ordinal))

    def object(self, change: str, *values: str, kind: str = "partition", table_id: int = 7, **fields: Any) -> None:
        """An event of an object."""
        there = (
            json.dumps({"values": [values[0]]}, separators=(",", ":")).encode()
            if change == "image" and values
            else b"{}"
        )
        record = {"kind": kind, "table_id": table_id, "name": object_name(values), "change": change, "lo": "", "hi": ""}
        record |= {"image": there if change == "image" else None, "struct": None}
        self.event("CatalogObject", record | fields)

    def set(self, change: str, kind: str = "partition", table_id: int = 7) -> None:
        """An event of all objects of a kind."""
        self.event("CatalogSet", {"kind": kind, "table_id": table_id, "change": change, "lo": "", "reason": change})

    def fill(self, count: int = 4, kind: str = "external", **fields: Any) -> None:
        """Table 7 with ``count`` partitions, ds d0, d1, …, hr 0, 1, …, all known."""
        self.ordinal += 1
        self.fold(bind(self.ordinal, 7))
        self.table("created", kind=kind, **fields)
        self.set("begun")
        for number in range(count):
            self.object("image", f"d{number}", str(number))
        self.set("complete")

    def ask(self, kind: str = "partition", vector: str = "", **wanted: Any) -> OwnerObjects:
        """The owner's answer."""
        table_id = wanted.pop("table_id", 7)
        table = wanted.pop("table", NAME if table_id else "")
        request = GetObjects(0, KEYSPACE, kind, table, table_id, vector=vector, **wanted)
        return answer_objects(self.partition, request, table_id, demand_of(vector, request.write_ids, table_id))


def seen(number: int) -> str:
    """A session that has seen the log up to ``number``."""
    return str(Vector.parse(str(Vector())).merge(_vector(number)))


def _vector(number: int) -> Vector:
    from tokens import Position

    return Vector({SHARD: (1, Position.parse(at(number)))})


def test_a_whole_set_is_listed_and_proves_absence(held: Catalog) -> None:
    """All partitions, one by name, and one that does not exist, are answered at the watermark."""
    held.fill()
    listed = held.ask(vector=seen(held.ordinal))
    assert (listed.served, listed.freshness, listed.count) == (True, Freshness.FRESH, 4)
    assert listed.names == [object_name((f"d{n}", str(n))) for n in range(4)]
    assert listed.images[2] == b'{"values":["d2"]}'
    found = held.ask(names=[object_name(("d1", "1")), object_name(("x", "1"))], vector=seen(held.ordinal))
    assert (found.served, found.images) == (True, [b'{"values":["d1"]}', None])
    assert held.ask(count_only=True, prefix=["", "3"]).count == 1


def test_an_image_of_the_table_that_follows_the_marker_is_not_proved_by_it(held: Catalog) -> None:
    """A marker says nothing of what follows it, also of what belongs to a table that has changed since."""
    held.fill()
    held.ordinal += 1
    held.fold(image(held.ordinal, "image", KEYS, kind="external"))
    assert not held.ask(vector=seen(held.ordinal - 1)).served
    held.fold(mark(held.ordinal))
    assert held.ask(vector=seen(held.ordinal - 1)).served


def test_a_set_that_is_not_whole_answers_only_what_was_published(held: Catalog) -> None:
    """Before all were published a list and an absence are the source's to tell; a published one is answered."""
    held.fill(0)
    held.set("void")
    held.object("image", "d0", "0")
    assert held.ask(names=[object_name(("d0", "0"))]).served
    assert not held.ask(names=[object_name(("d1", "0"))]).served
    found = held.ask()
    assert (found.served, found.needs_source) == (False, True)


def test_a_void_of_the_set_hides_what_was_published_before(held: Catalog) -> None:
    """ALTER_TABLE may have changed each partition: none is answered until it is published again."""
    held.fill()
    held.set("void")
    name = [object_name(("d0", "0"))]
    assert "is unknown here" in held.ask(names=name).why
    held.object("image", "d0", "0")
    assert held.ask(names=name).served
    assert not held.ask().served


@pytest.mark.parametrize("void", [NAME, "*"])
def test_a_void_of_the_table_hides_its_partitions(held: Catalog, void: str) -> None:
    """After an unreadable event neither table nor partition is answered; a new image of the table revives only it."""
    held.fill()
    held.event("TableVoid", {"position": at(held.ordinal + 1), "table": void, "reason": "unreadable"})
    assert not held.ask(names=[object_name(("d0", "0"))]).served
    held.table("image")
    assert not held.ask(names=[object_name(("d0", "0"))]).served
    assert not held.ask().served


def test_a_written_partition_waits_for_its_image(held: Catalog) -> None:
    """From the write to its image neither the partition nor a list is answered; others by name are."""
    held.fill()
    held.object("written", "d1", "1")
    assert "has not arrived" in held.ask(names=[object_name(("d1", "1"))]).why
    assert "has not arrived" in held.ask().why
    assert held.ask(names=[object_name(("d2", "2"))]).served
    held.object("image", "d1", "1")
    assert held.ask().served


def test_dropped_partitions_and_those_of_an_older_pass_are_gone(held: Catalog) -> None:
    """A drop takes a partition out at once; a new pass takes out those that it did not publish."""
    held.fill()
    held.object("dropped", "d0", "0")
    assert held.ask(names_only=True).names == [object_name((f"d{n}", str(n))) for n in (1, 2, 3)]
    assert held.ask(names=[object_name(("d0", "0"))]).images == [None]
    held.set("begun")
    held.object("image", "d3", "3")
    assert held.ask(count_only=True).count == 3
    held.set("complete")
    assert held.ask(names_only=True).names == [object_name(("d3", "3"))]
    assert held.ask(names=[object_name(("d1", "1"))]).images == [None]


@pytest.mark.parametrize("late", ["dropped", "image"])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_what_was_read_too_early_does_not_list_a_partition_again(held: Catalog, late: str, is_awaited: bool) -> None:
    """A pass did not find it, so it is gone: a late answer from before its last write tells nothing of it."""
    held.fill(1)
    name = object_name(("d0", "0"))
    read_at = at(held.ordinal)
    held.object("written", "d0", "0")
    if not is_awaited:
        held.object("image", "d0", "0")
    held.set("begun")
    held.set("complete")
    held.object(late, "d0", "0", lo=read_at)
    listed, named = held.ask(), held.ask(names=[name])
    assert (listed.served, listed.names) == (True, [])
    assert (named.served, named.images) == (True, [None])


def test_a_list_is_unservable_from_the_first_write_to_the_commit(held: Catalog) -> None:
    """What an open transaction did to the partitions is shown to nobody by the cache."""
    held.fill(kind="transactional")
    wanted = {"write_ids": LIST, "vector": seen(2)}
    assert held.ask(**wanted).served
    held.event("AllocWriteId", {"table_id": 7, "txn": 5, "write_id": 1, "reallocated": False})
    held.table("written", None, kind="transactional", txn=5, write_id=1)
    held.object("dropped", "d0", "0")
    held.table("image", kind="transactional")
    assert "still pending" in held.ask(**wanted).why
    held.event("CommitTxn", {"txn": 5, "write_ids": [{"table_id": 7, "write_id": 1}]})
    found = held.ask(**wanted)
    assert (found.served, found.count) == (True, 3)
    own = held.ask(write_ids=f"{NAME}:2:9223372036854775807::", vector=seen(2))
    assert (own.served, own.freshness) == (False, Freshness.STALE)


def test_a_transactional_table_needs_a_list_for_its_partitions(held: Catalog) -> None:
    """As for the table itself, once it has reached the session; and another table's id or name is not answered."""
    held.fill(kind="transactional")
    for reached in ("", seen(held.ordinal)):
        with pytest.raises(MissingWriteIds):
            held.ask(vector=reached)
    behind = held.ask(vector=seen(held.ordinal + 1))
    assert (behind.served, behind.needs_source) == (False, False), "it may have been converted since"
    assert not held.ask(write_ids=LIST, table="sales.other").served


def test_pages_are_of_one_moment_or_refused(held: Catalog) -> None:
    """Pages put together are the set as it was at the first; a change between two of them is said."""
    held.fill(5)
    first = held.ask(limit=2)
    second = held.ask(limit=2, after=first.after, version=first.version)
    third = held.ask(limit=2, after=second.after, version=second.version)
    assert [*first.names, *second.names, *third.names] == held.ask().names
    assert third.after == ""
    held.object("dropped", "d4", "4")
    torn = held.ask(limit=2, after=first.after, version=first.version)
    assert (torn.served, torn.code, torn.names) == (False, PAGE_EXPIRED, [])


def test_a_filter_compares_by_the_types_of_the_tables_keys(held: Catalog) -> None:
    """The keys come from the table's own image; a filter that does not parse is the reader's mistake."""
    held.fill(12)
    assert held.ask(filter="hr >= 9 and ds <> 'd10'", names_only=True).names == [
        object_name(("d11", "11")),
        object_name(("d9", "9")),
    ]
    with pytest.raises(FilterError, match="character 7"):
        held.ask(filter="hr >= ")


def test_databases_have_no_list_and_lie_together(held: Catalog) -> None:
    """A database is decided by position alone, and all of them are one list. Some changes and drops leave no event."""
    held.set("begun", "database", 0)
    held.object("image", "sales", kind="database", table_id=0)
    held.object("image", "ü.'x", kind="database", table_id=0)
    held.set("complete", "database", 0)
    for names_only in (False, True):
        found = held.ask("database", vector=seen(held.ordinal), table_id=0, names_only=names_only)
        assert (found.freshness, found.names) == (Freshness.EVENTUAL, ['["sales"]', '["ü.\'x"]'])
    absent = held.ask("database", vector=seen(held.ordinal), table_id=0, names=['["nope"]'])
    assert (absent.freshness, absent.images) == (Freshness.FRESH, [None]), "no database is made without an event"
    assert held.ask("database", vector=seen(held.ordinal + 1), table_id=0).freshness == Freshness.STALE
    held.object("written", "sales", kind="database", table_id=0)
    assert not held.ask("database", table_id=0, names=['["sales"]']).served
    assert held.ask("database", table_id=0, names=['["ü.\'x"]']).served


def test_statistics_say_whether_they_hold_for_the_reader(held: Catalog) -> None:
    """The write that set them must be valid for the reader's list, and the basic statistics accurate."""
    accurate = b'{"writeId":1,"parameters":{"COLUMN_STATS_ACCURATE":"{\\"BASIC_STATS\\":\\"true\\"}"}}'
    listed = f"{NAME}:1:9223372036854775807::"
    held.fill(kind="transactional", write_ids=listed)
    held.table("image", accurate, kind="transactional", write_ids=listed)
    held.object("image", kind="statistics")
    found = held.ask("statistics", names=["[]"], write_ids=listed, vector=seen(2))
    assert (found.served, found.images, found.compliant) == (True, [b"{}"], [True])
    found = held.ask("statistics", names=["[]"], write_ids=f"{NAME}:1:1:1:", vector=seen(2))
    assert (found.served, found.compliant) == (True, [False])


@pytest.mark.parametrize("write_ids", [(1, 1), (1, 2)])
def test_statistics_of_all_partitions_together_hold_if_those_of_each_do(held: Catalog, write_ids: list[int]) -> None:
    """One whose last write the reader does not see is enough. While they are not all known, the source is asked."""
    listed = f"{NAME}:2:9223372036854775807::"
    held.fill(0, kind="transactional", write_ids=listed)
    held.table("image", KEYS, kind="transactional", write_ids=listed)
    for number, write_id in enumerate(write_ids):
        accurate = f'{{"writeId":{write_id},"parameters":{{"COLUMN_STATS_ACCURATE":"TRUE"}}}}'
        held.object("image", f"d{number}", "1", image=accurate.encode())
    held.object("image", kind="aggregate_statistics")

    def ask(list_text: str) -> OwnerObjects:
        return held.ask("aggregate_statistics", names=["[]"], write_ids=list_text, vector=seen(2))

    assert (ask(listed).served, ask(listed).compliant) == (True, [True])
    assert ask(f"{NAME}:2:2:2:").compliant == [2 not in write_ids]
    for change in ("void", "begun"):
        held.set(change)
        assert (ask(listed).served, ask(listed).needs_source, ask(listed).compliant) == (False, True, [])
        assert "not all partitions are known" in ask(listed).why


def test_statistics_of_more_partitions_than_are_looked_at_are_the_sources(
    held: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the first ones say nothing of the others."""
    monkeypatch.setattr(answering, "PAGE_MAX", 2)
    listed = f"{NAME}:2:9223372036854775807::"
    held.fill(0, kind="transactional", write_ids=listed)
    held.table("image", KEYS, kind="transactional", write_ids=listed)
    held.object("image", kind="aggregate_statistics")
    for number, is_served in enumerate((True, True, False)):
        held.object("image", f"d{number}", "1", image=b'{"writeId":1}')
        found = held.ask("aggregate_statistics", names=["[]"], write_ids=listed, vector=seen(2))
        assert found.served is is_served


@pytest.mark.parametrize("change", ["void", "written", "unpublished"])
def test_statistics_of_a_partition_are_not_served_while_it_is_unknown(held: Catalog, change: str) -> None:
    """Its image says which write set them. One of before a void or a write, or none, says nothing."""
    listed = f"{NAME}:2:9223372036854775807::"
    held.fill(1, kind="transactional", write_ids=listed)
    held.table("image", KEYS, kind="transactional", write_ids=listed)
    held.set("void")
    if change != "unpublished":
        held.object("image", "d0", "1", image=b'{"writeId":2,"parameters":{"COLUMN_STATS_ACCURATE":"TRUE"}}')
    held.object("image", "d0", "1", kind="partition_statistics")

    def ask() -> OwnerObjects:
        names = [object_name(("d0", "1"))]
        return held.ask("partition_statistics", names=names, write_ids=listed, vector=seen(2))

    assert ask().compliant == ([] if change == "unpublished" else [True])
    if change == "void":
        held.set("void")
    elif change == "written":
        held.object("written", "d0", "1")
    assert (ask().served, ask().needs_source, ask().compliant) == (False, True, [])


def test_nothing_of_an_earlier_epoch_is_answered(held: Catalog) -> None:
    """A new epoch is another history: its objects are published anew."""
    held.fill()
    held.fold(event("EpochStart", 1, shard=SHARD, epoch=2, position=at(50), reason="lost"))
    assert not held.ask(names=[object_name(("d0", "0"))]).served
    assert not held.ask().served


def test_a_partition_that_has_not_caught_up_says_so(held: Catalog) -> None:
    """As for rows and ranges: its topology may be of long ago."""
    held.fill(1)
    held.fold(event("Topology", 1, shard=SHARD, shards=[SHARD], ancestors=[], succeeded=[]))
    held.partition.ready = False
    assert not held.ask(vector=seen(2)).kin.caught_up


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_few_objects_are_answered_at_once_and_many_left_to_a_thread(held: Catalog, beyond: int) -> None:
    """What is answered while others wait has a bound, by names and in lists, and is the same answer."""
    held.fill(LOOKED_AT_ONCE + beyond)
    names = [object_name((f"d{n}", str(n))) for n in range(LOOKED_AT_ONCE + beyond)]
    for wanted in ([], names):
        request = GetObjects(0, KEYSPACE, "partition", NAME, 7, vector=seen(held.ordinal), names=wanted)
        at_once = answer_few(held.partition, request, 7, demand_of(request.vector, "", 7))
        whole = answer_objects(held.partition, request, 7, demand_of(request.vector, "", 7))
        assert (whole.served, whole.count) == (True, LOOKED_AT_ONCE + beyond)
        is_left = beyond >= (1 if wanted else 0)  # of a list one more would have to be read, to see that it ends
        assert at_once == (None if is_left else whole)


@pytest.mark.parametrize("void", [NAME, "*"])
def test_a_void_while_the_partitions_are_published_leaves_them_unknown(held: Catalog, void: str) -> None:
    """What was published of them before it may have changed with it: the end of that pass makes nothing whole."""
    held.fill(0)
    held.set("begun")
    held.event("TableVoid", {"position": at(held.ordinal + 1), "table": void, "reason": "unreadable"})
    held.table("image")
    held.set("complete")
    assert not held.ask().served
    assert not held.ask(names=[object_name(("d0", "0"))]).served
    held.set("begun")
    held.set("complete")
    assert held.ask().served


def test_a_void_of_a_history_that_has_ended_hides_no_object_of_this_one(held: Catalog) -> None:
    """It stays in the head, with an ordinal that the new epoch's events have not reached yet."""
    held.ordinal = 50
    held.event("TableVoid", {"position": at(51), "table": NAME, "reason": "unreadable"})
    anew = {"epoch": 2}
    of_set = {"kind": "partition", "table_id": 7, "lo": "", "reason": ""} | anew
    there = {
        "kind": "partition",
        "table_id": 7,
        "name": object_name(("d0", "0")),
        "change": "image",
        "lo": "",
        "hi": "",
    }
    for message in (
        event("EpochStart", 1, shard=SHARD, epoch=2, position=at(0), reason="history_lost"),
        catalog("NameBinding", 2, {"name": NAME, "table_id": 7, "previous_name": ""} | anew),
        image(3, "created", KEYS, kind="external", epoch=2),
        catalog("CatalogSet", 4, of_set | {"change": "begun"}),
        catalog("CatalogObject", 5, there | {"image": b"{}", "struct": None} | anew),
        catalog("CatalogSet", 6, of_set | {"change": "complete"}),
        marker(6, epoch=2, position=at(6), low_water=at(0)),
    ):
        held.fold(message)
    found = held.ask()
    assert (found.served, found.names) == (True, [object_name(("d0", "0"))])
