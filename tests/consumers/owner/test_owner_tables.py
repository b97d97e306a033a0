"""Catalog tables over the owner protocol: names to ids, lists, fills."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from consumers.fold.catalog_state import Binding, TableState, encode_binding, name_key
from consumers.fold.state import Head, Lineage, Void
from consumers.owner.client import OwnerClient
from consumers.owner.evidence import demand_of
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import MARKS_MAX, Marks, Partition
from consumers.owner.protocol import FillTable, GetTable, OwnerError, OwnerTable
from consumers.owner.tables import (
    UNMARKED,
    answer_table,
    decide_answer,
    fill_table,
    find_table,
    is_ahead,
    judge_table_fill,
    list_of,
    no_table,
    table_stamp,
    why_unservable,
)
from consumers.store.store import PartitionStore
from stream.kafka.topics import Topic
from stream.wire.codec import encode
from stream.wire.keys import Layout
from tests.consumers.histories import event, marker
from tests.consumers.owning import KEYSPACE, Owner
from tokens import Decision, Freshness, Position, Vector
from tokens.decision import Verdict

SHARD = "shop/0"
NAME = "sales.orders"


def at(number: int) -> str:
    """A position of the log."""
    return f"HiveEvent/{number}"


def catalog(kind: str, ordinal: int, fields: dict[str, Any]) -> bytes:
    """A catalog event at log position ``ordinal``."""
    place = {"shard": SHARD, "epoch": 1, "ordinal": ordinal, "gtid": at(ordinal), "timestamp": 1_700_000_000}
    return encode(kind, place | fields)


def bind(ordinal: int, table_id: int) -> bytes:
    """Binds the name to ``table_id``."""
    return catalog("NameBinding", ordinal, {"name": NAME, "table_id": table_id, "previous_name": ""})


def mark(ordinal: int) -> bytes:
    """A marker at log position ``ordinal``."""
    return marker(ordinal, position=at(ordinal), low_water=at(0))


def image(ordinal: int, change: str, content: bytes | None, **fields: Any) -> bytes:
    """An event of table 7."""
    record: dict[str, Any] = {
        "table_id": 7,
        "name": NAME,
        "kind": "transactional",
        "change": change,
        "txn": 0,
        "write_id": 0,
        "staged": False,
        "image": content,
        "write_ids": None,
        "lo": at(ordinal),
        "hi": at(ordinal),
    }
    return catalog("TableImage", ordinal, record | fields)


def token(number: int) -> str:
    """A session that has seen the log up to ``number``."""
    return str(Vector({SHARD: (1, Position.parse(at(number)))}))


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """Table 7 is there, with an image and an empty list, and the watermark at 4."""
    owner = Owner(tmp_path)
    owner.fold(
        event("EpochStart", 1, gtid=at(1), position=at(0), reason="first_start"),
        mark(1),
        bind(2, 7),
        image(3, "created", b'{"v":1}', write_ids=f"{NAME}:5:9223372036854775807::"),
        mark(4),
    )
    return owner


def test_a_covered_list_is_answered_from_the_cache(owner: Owner) -> None:
    """Name to id, list covered, watermark past the session: fresh, with the image and the list it is good for."""

    async def use(client: OwnerClient) -> None:
        found = await client.get_table(KEYSPACE, NAME, f"{NAME}:5:9223372036854775807::", 7, token(4))
        assert (found.table_id, found.served, found.freshness, found.image) == (7, True, "fresh", b'{"v":1}')
        assert found.hi == at(4), "the marker that says which list the image came with"

    owner.run(use)


def test_a_session_moves_past_what_the_list_shows(owner: Owner) -> None:
    """A COMMIT after the image: the session goes as far as the first marker after it, and no later one."""
    wanted = f"{NAME}:6:9223372036854775807::"

    def answer() -> OwnerTable:
        return answer_table(owner.partition, NAME, 7, demand_of(token(4), wanted, 7))

    owner.fold(
        catalog("AllocWriteId", 5, {"table_id": 7, "txn": 3, "write_id": 6, "reallocated": False}),
        image(6, "written", b'{"v":2}', txn=3, write_id=6),
        mark(6),
        catalog("CommitTxn", 7, {"txn": 3, "write_ids": [{"table_id": 7, "write_id": 6}]}),
    )
    found = answer()
    assert (found.served, found.needs_source, found.why, found.watermark) == (False, False, UNMARKED, "")
    owner.fold(mark(8))
    assert (answer().image, answer().hi) == (b'{"v":2}', at(8))
    owner.fold(mark(9))
    assert answer().hi == at(8)
    owner.partition.store.close(commit=False)


def test_of_many_watermarks_the_first_stays_known() -> None:
    """What happened long ago must not move sessions to where the log is now."""
    marks = Marks()
    for ordinal in range(1, 10 * MARKS_MAX):
        marks.note(SHARD, Lineage(1, ordinal, ordinal, at(ordinal), 1, ""))
    assert [marks.first_past(SHARD, 1, ordinal) for ordinal in (0, 1)] == [at(1), at(1)]
    last = 10 * MARKS_MAX - 1
    assert [marks.first_past(SHARD, 1, ordinal) for ordinal in (last, last + 1)] == [at(last), ""]
    marks.note(SHARD, Lineage(2, 5, 5, at(5), 1, ""))
    assert [marks.first_past(SHARD, epoch, 1) for epoch in (1, 2)] == ["", at(5)]


def test_a_commit_that_the_owner_has_not_seen_is_awaited(owner: Owner) -> None:
    """A list with a newer write id waits for the stream, and is served when the commit is folded."""

    async def use(client: OwnerClient) -> None:
        wanted = f"{NAME}:6:9223372036854775807::"
        found = await client.get_table(KEYSPACE, NAME, wanted, 7, token(4))
        assert (found.served, found.freshness, found.image) == (False, "stale", None)
        waiting = asyncio.create_task(client.get_table(KEYSPACE, NAME, wanted, 7, token(8), 10_000))
        while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        owner.fold(
            catalog("AllocWriteId", 5, {"table_id": 7, "txn": 3, "write_id": 6, "reallocated": False}),
            image(6, "written", None, txn=3, write_id=6),
            catalog("CommitTxn", 7, {"txn": 3, "write_ids": [{"table_id": 7, "write_id": 6}]}),
            image(8, "image", b'{"v":2}', write_ids=f"{NAME}:6:9223372036854775807::"),
            mark(8),
        )
        found = await waiting
        assert (found.served, found.freshness, found.image) == (True, "fresh", b'{"v":2}')

    owner.run(use)


def test_a_demand_without_list_or_id_is_an_error(owner: Owner) -> None:
    """A managed table can't be judged without list and id."""

    async def use(client: OwnerClient) -> None:
        for write_ids, table_id in (("", 7), (f"{NAME}:5:9223372036854775807::", 0)):
            with pytest.raises(OwnerError) as caught:
                await client.get_table(KEYSPACE, NAME, write_ids, table_id, token(4))
            assert caught.value.code == "missing_write_ids"

    owner.run(use)


def test_a_name_bound_to_another_table_is_not_answered_by_the_old_one(owner: Owner) -> None:
    """A re-created table has the same name and list but another id."""
    owner.fold(bind(5, 8), mark(5))

    async def use(client: OwnerClient) -> None:
        found = await client.get_table(KEYSPACE, NAME, f"{NAME}:5:9223372036854775807::", 7, token(4))
        assert (found.served, found.image) == (False, None)
        assert "is bound to table id 8" in found.why
        nothing = await client.get_table(KEYSPACE, "sales.none", vector=token(4))
        assert (nothing.table_id, nothing.served, nothing.needs_source) == (0, False, True)

    owner.run(use)


def test_a_filled_table_answers_until_it_is_written(owner: Owner) -> None:
    """A fill is kept under CAS while the entry's image is missing, and is not served after the next write."""
    listed = f"{NAME}:5:9223372036854775807::"
    owner.fold(image(5, "written", None), mark(5))

    async def use(client: OwnerClient) -> None:
        missed = await client.get_table(KEYSPACE, NAME, listed, 7, token(5))
        assert (missed.served, missed.needs_source) == (False, True)
        offer = FillTable(0, KEYSPACE, 0, 7, NAME, "transactional", b'{"v":3}', listed, at(6), at(6), missed.stamp)
        filled = await client.fill_table(offer)
        assert filled.accepted, filled.why
        found = await client.get_table(KEYSPACE, NAME, listed, 7, token(6))
        assert (found.image, found.freshness, found.filled) == (b'{"v":3}', "fresh", True)
        owner.fold(image(7, "written", None), mark(7))
        found = await client.get_table(KEYSPACE, NAME, listed, 7, token(6))
        assert not found.served
        late = await client.fill_table(offer)
        assert not late.accepted
        assert "changed since it was read" in late.why

    owner.run(use)


def test_only_a_transactional_table_whose_ids_are_known_has_a_list() -> None:
    """An external table has none, whatever was folded of it before it was converted."""
    external = TableState(7, SHARD, 1, 3, name=NAME, kind="external", exists=True)
    transactional = TableState(7, SHARD, 1, 3, name=NAME, exists=True)
    assert list_of(external) is None
    assert list_of(transactional) is not None
    transactional.ids.known = False
    assert list_of(transactional) is None


def test_a_table_that_is_asked_by_id_has_the_name_that_it_has_now(owner: Owner) -> None:
    """A name of before it was dropped is none: another table may have it."""

    def name(table_id: int, asked: str = "") -> str:
        listed = f"{NAME}:5:9223372036854775807::"
        return answer_table(owner.partition, asked, table_id, demand_of("", listed, table_id)).name

    assert (name(7), name(7, NAME), name(7, "sales.old"), name(9)) == (NAME, NAME, "sales.old", "")
    owner.fold(image(5, "dropped", None), mark(6))
    assert name(7) == ""
    owner.partition.store.close(commit=False)


@pytest.mark.parametrize(
    "event_",
    [
        pytest.param(event("TableVoid", 7, gtid=at(7), position=at(7), table="sales.new", reason="lost"), id="void"),
        pytest.param(event("EpochStart", 1, epoch=2, gtid=at(1), position=at(0), reason="history_lost"), id="epoch"),
    ],
)
def test_a_filled_table_is_not_served_after_a_void_or_a_new_epoch(owner: Owner, event_: bytes) -> None:
    """A fill of a table of which nothing was folded ends with the history that it was made over."""
    owner.fold(catalog("NameBinding", 5, {"name": "sales.new", "table_id": 9, "previous_name": ""}), mark(5))
    listed = "sales.new:5:9223372036854775807::"
    demand = demand_of("", listed, 9)

    def found() -> OwnerTable:
        return answer_table(owner.partition, "sales.new", 9, demand)

    stamp = found().stamp
    offer = FillTable(0, KEYSPACE, 0, 9, "sales.new", "transactional", b"{}", listed, at(6), at(6), stamp)
    assert fill_table(owner.partition, offer).accepted
    assert (found().served, found().filled) == (True, True)
    owner.fold(event_)
    assert (found().served, found().image) == (False, None)
    assert "changed since it was read" in fill_table(owner.partition, offer).why
    owner.partition.store.close(commit=False)


def test_the_stamp_of_a_table_names_all_that_a_fill_was_made_over() -> None:
    """Each of entry, epoch and voids gives another stamp; progress within the epoch gives the same one."""
    lineage = Lineage(1, 5, 4, at(4), 1_700_000_000, at(0))
    void = Void(1, 3, "")

    def stamp(state: bytes | None, epoch: int, **voids: Void) -> bytes:
        head = Head(
            lineages={SHARD: lineage._replace(epoch=epoch)}, voids={(of, SHARD): each for of, each in voids.items()}
        )
        return table_stamp(state, head)

    stamps = [
        stamp(None, 1),
        stamp(b"", 1),
        stamp(b"x", 1),
        stamp(b"x", 2),
        stamp(b"x", 1, a=void),
        stamp(b"x", 1, b=void),
        stamp(b"x", 1, a=void._replace(ordinal=4)),
        stamp(b"x", 1, a=void._replace(floor=at(3))),
    ]
    assert len(set(stamps)) == len(stamps)
    later = Head(lineages={SHARD: lineage._replace(ordinal=9, watermark_ordinal=9, watermark=at(9))}, offset=20)
    assert table_stamp(b"x", later) == stamp(b"x", 1)


class FakeStore:
    """The part of a partition's store that `find_table` reads."""

    def __init__(self, layout: str, bound: int = 0, ordinal: int = 1, *, epoch: int = 1) -> None:
        self.visible = Head(layout=layout)
        self._entries = {name_key(NAME): encode_binding(Binding(bound, SHARD, epoch, ordinal))} if bound else {}

    def get(self, key: bytes) -> bytes | None:
        """An entry."""
        return self._entries.get(key)


def partition_of(number: int, store: FakeStore) -> Partition:
    """A partition over ``store``."""
    topic = Topic(f"freshet.{KEYSPACE}.events", "t", 4)
    return Partition(KEYSPACE, number, topic, cast(PartitionStore, store), Overlay(0))


@pytest.mark.parametrize("first", ["", "md5;partitions=4", "xxh3_64;partitions=0"])
def test_a_table_is_found_although_the_first_partition_has_no_layout(first: str) -> None:
    """A partition without a marker, or with an unreadable layout, leaves the question to the next one."""
    layout = Layout(4)
    partitions = [partition_of(0, FakeStore(first, 5)), partition_of(1, FakeStore(str(layout), 7))]
    assert find_table(partitions, NAME, 0) == (7, layout.table_partition(7))
    assert find_table(partitions, NAME, 8) == (8, layout.table_partition(8))
    assert find_table(partitions, "sales.none", 0) == (0, -1)
    assert find_table(partitions[:1], NAME, 7) == (0, -1)


def test_a_partition_that_is_behind_does_not_hide_a_tables_name() -> None:
    """Names are bound in every partition; the newest binding of a shard counts, wherever it is."""
    layout = Layout(4)
    stores = [
        FakeStore(str(layout)),
        FakeStore(str(layout), 5, 2),
        FakeStore(str(layout), 7, 9),
        FakeStore(str(layout)),
    ]
    partitions = [partition_of(number, store) for number, store in enumerate(stores)]
    assert find_table(partitions, NAME, 0) == (7, layout.table_partition(7))
    assert find_table(partitions[:2], NAME, 0) == (5, layout.table_partition(5))


def test_a_table_in_another_processs_partition_is_answered_elsewhere(tmp_path: Path) -> None:
    """The front is told the partition to ask instead, whether it asks by name or by id."""
    owner = Owner(tmp_path)
    layout = Layout(4)
    here, there = (
        next(n for n in range(1, 99) if (layout.table_partition(n) == 0) is is_here) for is_here in (True, False)
    )
    started = event("EpochStart", 1, gtid=at(1), position=at(0), reason="first_start")
    owner.fold(started, bind(2, there), marker(3, position=at(3), low_water=at(0), layout=str(layout)))
    for table_id in (0, there):
        found = owner.server.answer(GetTable(5, KEYSPACE, NAME, "", table_id))
        assert isinstance(found, OwnerTable)
        assert (found.id, found.table_id, found.elsewhere) == (5, there, True)
        assert found.partition == layout.table_partition(there) > 0
        assert (found.served, found.needs_source) == (False, False)
    found = owner.server.answer(GetTable(5, KEYSPACE, NAME, "", here))
    assert isinstance(found, OwnerTable)
    assert (found.partition, found.elsewhere, found.needs_source) == (0, False, True)
    owner.partition.store.close(commit=False)


def test_an_external_table_is_not_judged_by_a_list() -> None:
    """A list proves nothing about an external table: without a token it is eventual, whatever the list says."""
    evidence = no_table(0, 7, "")
    listed = f"{NAME}:5:9223372036854775807::"

    def decided(token_: str, table_id: int) -> Decision:
        return decide_answer(evidence, NAME, "external", "", 7, demand_of(token_, listed, table_id))

    assert decided("", 7).verdict is Verdict.NO_DEMAND
    assert decided("", 7).freshness is Freshness.EVENTUAL
    assert decided("", 0).freshness is Freshness.EVENTUAL
    for token_ in ("", token(4)):
        assert decided(token_, 8).verdict is Verdict.OTHER_TABLE
        assert not decided(token_, 8).may_be_served
    assert not decided(token(4), 7).may_be_served


def test_of_bindings_by_two_shards_the_first_one_counts() -> None:
    """Their ordinals are of two histories, so the higher one says nothing."""
    layout = Layout(4)
    stores = [FakeStore(str(layout), 5, 2), FakeStore(str(layout), 7, 9)]
    stores[1]._entries = {name_key(NAME): encode_binding(Binding(7, "shop/1", 1, 9))}
    partitions = [partition_of(number, store) for number, store in enumerate(stores)]
    assert find_table(partitions, NAME, 0)[0] == 5
    assert find_table(partitions[::-1], NAME, 0)[0] == 7


def test_a_state_of_an_ended_history_stands_in_no_fills_way() -> None:
    """Its table was dropped in another epoch, or by another shard; in this one it is refused."""
    dropped = TableState(7, SHARD, 1, 3, name=NAME, kind="transactional", created=3)
    listed = f"{NAME}:5:9223372036854775807::"
    offer = FillTable(0, KEYSPACE, 0, 7, NAME, "transactional", b"{}", listed, at(6), at(6), b"")
    lineage = Lineage(1, 5, 4, at(4), 1_700_000_000, at(0))
    assert judge_table_fill(dropped, offer, SHARD, lineage).why == "the table was dropped"
    assert judge_table_fill(dropped, offer, SHARD, lineage._replace(epoch=2)).accepted
    assert judge_table_fill(dropped, offer, "shop/1", lineage).accepted
    assert judge_table_fill(None, offer, SHARD, lineage).accepted


def test_a_binding_of_a_later_epoch_is_newer_than_any_of_before() -> None:
    """Its ordinals begin anew: a partition that is behind holds a higher one, of the history that has ended."""
    layout = str(Layout(4))
    behind, ahead = FakeStore(layout, 5, 90), FakeStore(layout, 7, 2, epoch=2)
    for stores in ((behind, ahead), (ahead, behind)):
        partitions = [partition_of(number, store) for number, store in enumerate(stores)]
        assert find_table(partitions, NAME, 0)[0] == 7


def test_a_state_of_a_later_epoch_is_ahead_of_the_head() -> None:
    """Its ordinal is low, because ordinals begin anew; the void of all that was before may be missing from the head."""
    head = Head(lineages={SHARD: Lineage(1, 9, 9, at(9), 1_700_000_000, at(0))})
    places = ((1, 9), (1, 10), (2, 1))
    assert [is_ahead(head, TableState(7, SHARD, *each)) for each in places] == [False, True, True]


def test_a_void_counts_for_images_of_its_epoch_and_those_of_before() -> None:
    """Ordinals begin anew with an epoch: a void of the history that has ended stays, and hides nothing that follows."""
    state = TableState(7, SHARD, 2, 3, name=NAME, exists=True, image=b"{}", image_ordinal=3)

    def is_hidden(epoch: int, ordinal: int) -> bool:
        return bool(why_unservable(state, {(NAME, SHARD): Void(epoch, ordinal, at(9))}))

    assert [is_hidden(*each) for each in ((1, 9), (2, 2), (2, 3), (3, 1))] == [False, False, True, True]


def test_an_event_after_a_void_makes_no_earlier_image_servable() -> None:
    """What happened to the table could not be read: an allocation or a commit that follows says nothing of it."""
    state = TableState(7, SHARD, 2, 9, name=NAME, exists=True, image=b"{}", image_ordinal=3)
    assert why_unservable(state, {(NAME, SHARD): Void(2, 5, at(9))})
