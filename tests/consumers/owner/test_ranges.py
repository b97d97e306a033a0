"""Ranges of keys: what an owner answers for all rows whose keys begin with given values, and when it may."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.meaning import fingerprint
from consumers.owner.protocol import SCHEMA_CHANGED, GetRange, OwnerError, RangeRows
from consumers.owner.ranges import answering as ranges
from consumers.owner.rows import NO_DEMAND
from consumers.owner.server import _next_step
from consumers.store.memtable import Memtable
from stream.wire.events import ABSENT, VALUE, VOID
from stream.wire.keys import row_key
from tests.consumers.fold.test_backfills import begun, complete, topology
from tests.consumers.fold.test_shards import topology as folded_topology
from tests.consumers.histories import event, frame, gtid, marker, start
from tests.consumers.owning import Owner, schema, vector

TABLE = "shop.orders"
COLUMNS = [{"name": name, "kind": "int", "exact": True} for name in ("customer", "id", "total")]
KEY = ("customer", "id")
MEANING = fingerprint([(name, "int", True) for name in KEY])


def order(customer: object, number: int) -> bytes:
    """The key of an order."""
    return row_key(TABLE, [customer, number])


def rows(ordinal: int, *keys: bytes, kind: int = VALUE) -> bytes:
    """One frame; each row is a transaction, the image says which."""
    each = [(key, kind, key.partition(b"\0")[2] if kind == VALUE else b"", at) for at, key in enumerate(keys, ordinal)]
    return frame(each)


def whole_owner(directory: Path, *keys: bytes, **described: Any) -> Owner:
    """An owner with a table that is whole at 0-1-100, with ``keys`` (at most 90)."""
    owner = Owner(directory)
    about = schema(2, TABLE, **({"columns": COLUMNS, "primary_key": list(KEY)} | described))
    owner.fold(start(), topology("shop/0"), about, begun(3, TABLE))
    if keys:
        owner.fold(rows(4, *keys))
    owner.fold(complete(100, TABLE), marker(100))
    return owner


def asked(*leading: object, **more: Any) -> GetRange:
    """A request for the first ten rows."""
    key = row_key(TABLE, leading) if leading else TABLE.encode() + b"\0"
    request = GetRange(0, "shop", 0, 1, key, len(leading), limit=10, meaning=MEANING)
    for name, value in more.items():
        setattr(request, name, value)
    return request


def answered(owner: Owner, request: GetRange) -> RangeRows:
    """The answer of the real server."""
    found: list[RangeRows] = []

    async def use(client: OwnerClient) -> None:
        found.append(await client.answer(request, RangeRows))

    owner.run(use)
    return found[0]


def test_rows_come_in_the_order_of_the_table_and_not_of_the_bytes(tmp_path: Path) -> None:
    """10 is after 9, and 70 is not below 7. All of them are as old as the completion, and proved at the watermark."""
    owner = whole_owner(tmp_path, *(order(7, number) for number in (9, 100, 10, -3)), order(70, 1), order(6, 5))
    found = answered(owner, asked(7, vector=vector(100)))
    assert found.served
    assert found.keys == [order(7, -3), order(7, 9), order(7, 10), order(7, 100)]
    assert found.images == [b"[7,-3]", b"[7,9]", b"[7,10]", b"[7,100]"]
    assert (found.freshness, found.hi, found.watermark, found.more) == ("fresh", gtid(100), gtid(100), False)


def test_the_whole_table_and_a_single_row_are_ranges_too(tmp_path: Path) -> None:
    """No leading column: all rows. All of them: one row, whose key no other key begins with."""
    keys = [order(customer, 1) for customer in (10, 9, 100)]
    assert answered(whole_owner(tmp_path / "1", *keys), asked()).keys == [keys[1], keys[0], keys[2]]
    assert answered(whole_owner(tmp_path / "2", *keys), asked(10, 1)).keys == [keys[0]]
    assert answered(whole_owner(tmp_path / "3", *keys), asked(10, 2, vector=vector(100))).served


def test_pages_go_on_behind_a_row_in_both_directions(tmp_path: Path) -> None:
    """The row itself need not exist any more."""
    keys = [order(7, number) for number in range(12)]
    first = answered(whole_owner(tmp_path / "1", *keys), asked(7, limit=5))
    assert (first.keys, first.more) == (keys[:5], True)
    rest = answered(whole_owner(tmp_path / "2", *keys), asked(7, limit=10, after=keys[4]))
    assert (rest.keys, rest.more) == (keys[5:], False)
    down = answered(whole_owner(tmp_path / "3", *keys[:5]), asked(7, limit=2, after=keys[5], descending=True))
    assert (down.keys, down.more) == ([keys[4], keys[3]], True)


@pytest.mark.parametrize(("not_before_ms", "is_served"), [(5_000, True), (5_001, False)])
def test_a_range_proves_the_time_of_its_marker(tmp_path: Path, not_before_ms: int, is_served: bool) -> None:
    """All that the source had committed by then is in it, and of later commits nobody knows."""
    owner = whole_owner(tmp_path, order(1, 1))
    owner.fold(marker(100, as_of_ms=5_000))
    assert answered(owner, asked(1, not_before_ms=not_before_ms)).served is is_served
    owner.partition.store.close(commit=False)


def test_deleted_rows_are_left_out_and_move_the_answer(tmp_path: Path) -> None:
    """The deletion is the newest change of the range: the session takes its position away."""
    owner = whole_owner(tmp_path, order(7, 1), order(7, 2))
    owner.fold(rows(101, order(7, 1), kind=ABSENT), rows(102, order(8, 1)), marker(110))
    found = answered(owner, asked(7, vector=vector(105)))
    assert found.keys == [order(7, 2)]
    assert (found.freshness, found.hi, found.watermark) == ("fresh", gtid(101), gtid(110))


def test_a_range_that_changed_after_the_last_marker_waits_for_the_next(tmp_path: Path) -> None:
    """Entries are visible before the watermark. Without the marker, half of a transaction could be seen."""
    owner = whole_owner(tmp_path, order(7, 1))
    owner.fold(rows(101, order(7, 2)))

    async def use(client: OwnerClient) -> None:
        unproved = await client.answer(asked(7), RangeRows)
        assert (unproved.served, unproved.needs_source) == (False, False)
        assert "marker" in unproved.why
        elsewhere = await client.answer(asked(8), RangeRows)
        assert elsewhere.served
        waiting = asyncio.create_task(client.answer(asked(7, max_wait_ms=10_000), RangeRows))
        while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        owner.fold(marker(101))
        found = await waiting
        assert (found.served, found.keys) == (True, [order(7, 1), order(7, 2)])

    owner.run(use)


def test_half_of_a_transaction_is_not_served_although_a_marker_covers_it(tmp_path: Path) -> None:
    """A marker inside a long transaction names the position before it."""
    owner = whole_owner(tmp_path, order(7, 1))
    owner.fold(rows(101, order(7, 2)), marker(101, sequence=100, whole=False))
    found = answered(owner, asked(7))
    assert (found.served, found.needs_source) == (False, False)


def test_a_demand_beyond_the_watermark_waits(tmp_path: Path) -> None:
    """A quiet range is proved by the watermark alone."""
    owner = whole_owner(tmp_path, order(7, 1))

    async def use(client: OwnerClient) -> None:
        behind = await client.answer(asked(7, vector=vector(105)), RangeRows)
        assert (behind.served, behind.needs_source, behind.freshness) == (False, False, "stale")
        waiting = asyncio.create_task(client.answer(asked(7, vector=vector(105), max_wait_ms=10_000), RangeRows))
        while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        owner.fold(rows(101, order(8, 1)), marker(105))
        found = await waiting
        assert (found.freshness, found.hi) == ("fresh", gtid(100))

    owner.run(use)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (event("TableVoid", 101, table=TABLE, reason="ddl"), "complete"),
        (rows(101, order(7, 2), kind=VOID), "image"),
        (schema(101, TABLE, columns=COLUMNS, primary_key=list(KEY), cacheable=False, reason="it has a blob"), "blob"),
        (begun(101, TABLE), "complete"),
    ],
    ids=["void", "unknown image", "never cached", "another backfill"],
)
def test_what_is_not_known_goes_to_the_source(tmp_path: Path, what: bytes, why: str) -> None:
    """Without waiting, and with the reason."""
    owner = whole_owner(tmp_path, order(7, 1))
    owner.fold(what, marker(101))
    found = answered(owner, asked(7, vector=vector(100), max_wait_ms=5_000))
    assert (found.served, found.needs_source, found.keys) == (False, True, [])
    assert why in found.why


def test_entries_from_before_a_void_are_no_rows(tmp_path: Path) -> None:
    """The table is whole again: what the second backfill has not found is gone."""
    owner = whole_owner(tmp_path, order(7, 1), order(7, 2))
    owner.fold(event("TableVoid", 101, table=TABLE, reason="ddl"), begun(102, TABLE), rows(103, order(7, 2)))
    owner.fold(complete(104, TABLE), marker(104))
    found = answered(owner, asked(7))
    assert (found.keys, found.hi) == ([order(7, 2)], gtid(104))


def test_rows_are_counted_up_to_a_bound(tmp_path: Path) -> None:
    """Without their images; a bound of one says whether there are any."""
    keys = [order(7, number) for number in range(12)]
    for directory, count_max, number in (("all", 0, 12), ("some", 5, 5), ("any", 1, 1)):
        found = answered(whole_owner(tmp_path / directory, *keys), asked(7, limit=0, count_max=count_max))
        assert (found.count, found.images) == (number, [])
    assert answered(whole_owner(tmp_path / "none", *keys), asked(8, limit=0)).count == 0


def test_only_the_source_knows_the_order_of_a_text(tmp_path: Path) -> None:
    """A collation orders it. The rows can be counted all the same."""
    columns = [COLUMNS[0], {"name": "id", "kind": "text", "exact": True}, COLUMNS[2]]
    meaning = fingerprint([("customer", "int", True), ("id", "text", True)])
    for directory, limit, served in (("rows", 10, False), ("count", 0, True)):
        owner = whole_owner(tmp_path / directory, row_key(TABLE, [7, "é"]), columns=columns)
        found = answered(owner, asked(7, limit=limit, meaning=meaning))
        assert found.served is served
        assert served or "order of id" in found.why


def test_a_range_is_read_from_memory_and_disk_together(tmp_path: Path) -> None:
    """Rows that are committed, being committed and only folded; the newest of each key counts."""
    keys = [order(7, number) for number in range(6)]
    owner = whole_owner(tmp_path, *keys)
    store = owner.partition.store
    store.commit()
    owner.fold(rows(101, keys[0], order(7, 10), kind=ABSENT), marker(102))
    assert store.freeze()
    owner.fold(rows(103, order(7, 20)), rows(104, keys[1], kind=ABSENT), marker(104))
    found = answered(owner, asked(7))
    assert found.keys == [*keys[2:], order(7, 20)]
    assert found.hi == gtid(104)


def test_a_large_range_is_looked_at_in_parts_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the source, which has the index, answers."""
    monkeypatch.setattr(ranges, "LOOKED_TOGETHER", 4)
    keys = [order(7, number) for number in range(80)]
    assert answered(whole_owner(tmp_path / "1", *keys), asked(7, limit=100)).keys == keys
    monkeypatch.setattr(ranges, "LOOKED_MAX", 79)
    refused = answered(whole_owner(tmp_path / "2", *keys), asked(7))
    assert (refused.served, refused.needs_source) == (False, True)
    monkeypatch.setattr(ranges, "LOOKED_MAX", 10_000)
    monkeypatch.setattr(ranges, "IMAGES_BYTES_MAX", 20)
    some = answered(whole_owner(tmp_path / "3", *keys), asked(7))
    assert (some.more, 0 < len(some.keys) < 10) == (True, True)


@pytest.mark.parametrize("low_water", [0, 90])
def test_a_range_over_dropped_tombstones_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, low_water: int
) -> None:
    """While it is looked at part by part a commit may drop them: a row that was deleted would be one that never was."""
    monkeypatch.setattr(ranges, "LOOKED_TOGETHER", 2)
    owner = whole_owner(tmp_path, *(order(7, number) for number in range(5)))
    steps = ranges.answer_range(owner.partition, asked(7), NO_DEMAND)
    found = _next_step(steps)
    assert found is None
    owner.fold(marker(101, low_water=gtid(low_water)))
    while found is None:
        found = _next_step(steps)
    assert found.served is (low_water == 0)
    owner.partition.store.close(commit=False)


@pytest.mark.parametrize("limit", [1, 0])
def test_images_that_are_looked_at_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Rows of a megabyte each would take all memory, also for a page of one: all are held until the order is known."""
    monkeypatch.setattr(ranges, "LOOKED_TOGETHER", 4)
    monkeypatch.setattr(ranges, "LOOKED_BYTES_MAX", 200)
    owner = whole_owner(tmp_path, *(order(7, number) for number in range(20)))
    refused = answered(owner, asked(7, limit=limit))
    assert (refused.served, refused.needs_source) == (False, True)
    assert "too large" in refused.why


def test_a_front_that_asks_too_few_partitions_is_refused(tmp_path: Path) -> None:
    """Else the rows of the others would be missing, and the answer called fresh."""
    owner = whole_owner(tmp_path, order(7, 1))
    layout = "xxh3_64;buckets=4096;partitions=4"
    owner.partition.store.state.head.layout = layout
    owner.fold(marker(101, layout=layout))

    async def use(client: OwnerClient) -> None:
        for asked_for, leading in ((1, (7,)), (2, (7,)), (1, ())):
            with pytest.raises(OwnerError) as refused:
                await client.answer(asked(*leading, asked=asked_for), RangeRows)
            assert refused.value.code == "wrong_partition"
        assert (await client.answer(asked(7, asked=4), RangeRows)).served

    owner.run(use)


def test_another_meaning_of_the_key_is_refused(tmp_path: Path) -> None:
    """The front describes the table again."""
    found = answered(whole_owner(tmp_path, order(7, 1)), asked(7, meaning=b"12345678"))
    assert (found.served, found.code) == (False, SCHEMA_CHANGED)


@pytest.mark.parametrize("after", [b"x", order(7, 1)[:-1], row_key(TABLE, [7, "x"]), row_key(TABLE, [7])])
def test_a_page_that_is_no_key_is_refused_as_unknown(tmp_path: Path, after: bytes) -> None:
    """Bytes of another front's making end no request in a defect."""
    found = answered(whole_owner(tmp_path, order(7, 1)), asked(7, after=after))
    assert (found.served, found.needs_source) == (False, True)


def test_a_range_of_a_memtable_has_each_key_once() -> None:
    """Also those that were put since it was sorted, and those that were replaced."""
    memtable = Memtable()
    expected = set[bytes]()
    for begin in (0, 3_000, 3_010, 9_000):
        keys = [b"t\0[%d]" % number for number in range(begin, begin + 3_000)]
        memtable.put(dict.fromkeys([*keys, b"a", b"z"], b"x"))
        expected.update(keys)
        found = memtable.between(b"t\0[", b"t\0\\")
        assert len(found) == len(expected)
        assert set(found) == expected


def test_a_row_that_follows_the_marker_is_not_proved_by_it(tmp_path: Path) -> None:
    """Whatever its position says: Kafka lost its tail, and the publisher numbers an old transaction anew."""
    owner = whole_owner(tmp_path, order(7, 1))
    key = order(7, 1)
    owner.fold(frame([(key, VALUE, b'"old"', 150)]), frame([(key, VALUE, b'"new"', 160)]), marker(170))
    owner.fold(frame([(key, VALUE, b'"old"', 171)], gtids=[gtid(150)]))
    found = answered(owner, asked(7, vector=vector(165)))
    assert (found.served, found.needs_source) == (False, False)
    owner.partition.store.close(commit=False)


def test_a_partition_that_has_not_caught_up_says_so(tmp_path: Path) -> None:
    """A shard that its old topology does not name may be a new one, and no lost history."""
    owner = whole_owner(tmp_path, order(7, 1))
    owner.partition.ready = False
    assert not answered(owner, asked(7, vector=vector(100, shard="shop/1"))).kin.caught_up
    owner.partition.store.close(commit=False)


def test_a_range_that_several_markers_do_not_prove_waits_for_the_next(tmp_path: Path) -> None:
    """One that looks again and again, without waiting for another marker, keeps the owner from everybody else."""
    owner = whole_owner(tmp_path, order(7, 1))

    async def use(client: OwnerClient) -> None:
        asked_for = asked(7, vector=vector(120), max_wait_ms=10_000)
        waiting = asyncio.create_task(client.answer(asked_for, RangeRows))
        for sequence in (105, 110, 120):
            while not (owner.partition.waiters or waiting.done()):  # noqa: ASYNC110 - it is in this thread
                await asyncio.sleep(0)
            owner.fold(marker(sequence))
        assert (await waiting).served

    owner.run(use)


def test_a_void_of_a_history_that_has_ended_hides_no_row_of_a_range(tmp_path: Path) -> None:
    """It stays in the head, with an ordinal that the new epoch's rows have not reached yet."""
    owner = Owner(tmp_path)
    about: dict[str, Any] = {"columns": COLUMNS, "primary_key": list(KEY)}
    owner.fold(start(), topology("shop/0"), event("TableVoid", 90, table=TABLE, reason="ddl"), marker(90))
    owner.fold(start(epoch=2), schema(2, TABLE, epoch=2, **about), begun(3, TABLE, epoch=2))
    owner.fold(frame([(order(7, 1), VALUE, b"{}", 4)], epoch=2), complete(5, TABLE, epoch=2), marker(5, epoch=2))
    assert answered(owner, asked(7)).keys == [order(7, 1)]


@pytest.mark.parametrize(("shard", "named"), [("shop/0", ("shop/0", 1)), ("shop/1", ("", 0))])
def test_a_range_of_a_shard_that_has_not_begun_names_no_shard(
    tmp_path: Path, shard: str, named: tuple[str, int]
) -> None:
    """Else a front would take 0 for its epoch: it proves no row of it then, and its token is lost once it begins."""
    owner, shares = Owner(tmp_path), {"shop/0": "-80", "shop/1": "80-"}
    owner.fold(start(), folded_topology(*shares, ranges=shares), schema(2, TABLE), marker(3))
    answer = answered(owner, asked(shard=shard))
    assert (answer.served, answer.shard, answer.epoch) == (False, *named)
