"""How a front joins what the partitions say of a range: one position, one order, and pages that say when they moved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from consumers.fold.shards import Kin
from consumers.owner.protocol import GetRange, RangeRows
from consumers.owner.ranges import answering
from consumers.store.index import Index
from serving.answers import RawRangeAnswer
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import RequestedRange
from serving.reads.descriptions import Descriptions
from serving.reads.owners import OwnerAway
from serving.reads.ranges.pages import Page, Stretch
from serving.reads.ranges.reading import RangeReads
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable, SourceRange
from stream.shards.map import ShardMap
from stream.sources.key_range import KeyRange
from stream.wire.events import Column
from stream.wire.keys import Layout, row_key, split_row_key
from tests.serving.fakes import FakeRowSource, demand_of
from tokens import Position, Vector

TABLE = RowTable("shop.orders", (Column("customer", "int", True), Column("id", "int", True)), True)
AT = "MariaDB/0-1-"


def part(*ids: int, hi: int, watermark: int, more: bool = False, **fields: Any) -> RangeRows:
    """What a partition says: rows of customer 7 that stand from ``hi`` to ``watermark``."""
    keys = [row_key(TABLE.name, [7, number]) for number in ids]
    images = [b'{"id":%d}' % number for number in ids]
    said = RangeRows(
        0, keys, images, len(ids), more, "fresh", "proved", True, False, "shop/0", 1, f"{AT}{hi}", f"{AT}{watermark}"
    )
    for name, value in fields.items():
        setattr(said, name, value)
    return said


class Partitions:
    """Owners of partitions that say what the test wants, one answer after the other; the last one stays."""

    def __init__(self, *says: list[RangeRows] | OwnerAway) -> None:
        self.says = says
        self.asked: list[GetRange] = []

    async def read_each(self, _: str, requests: Sequence[GetRange], *__: Any, **___: Any) -> list[RangeRows]:
        """As `serving.reads.owners.Owners.read_each`."""
        return [self._answer(request) for request in requests]

    async def ask_any(self, *_: Any, **__: Any) -> Any:
        """As `serving.reads.owners.Owners` does: they say nothing beyond their answers."""
        raise OwnerAway("nobody")

    read = ask_any

    def address_of(self, *_: Any) -> None:
        """Nobody's."""

    def _answer(self, request: GetRange) -> RangeRows:
        self.asked.append(request)
        says = self.says[request.partition]
        if isinstance(says, OwnerAway):
            raise says
        return says.pop(0) if len(says) > 1 else says[0]


def read(
    partitions: Partitions,
    source: FakeRowSource | None = None,
    *,
    wait_ms: int = 1_000,
    table: RowTable = TABLE,
    indexes: Sequence[Index] = (),
    columns: Mapping[str, str] = {"customer": "7"},
    sources: Sequence[FakeRowSource] = (),
    shards: ShardMap | None = None,
    **wanted: Any,
) -> RawRangeAnswer:
    """The answer to a session that has seen 0-1-5, for the orders of customer 7."""
    layout = Layout(len(partitions.says))
    space = RowSpace("shop", layout, source=source, sources=sources, map=shards, indexes=indexes)
    for shard in shards.shards if shards is not None else ("shop/0",):
        space.epochs.learn_kin(shard, 1, Kin(frozenset(shards.shards if shards is not None else ())))
    demand = demand_of(Vector({"shop/0": (1, Position.parse(f"{AT}5"))}))._replace(max_wait_ms=wait_ms)
    owners = cast("Any", partitions)

    async def main() -> RawRangeAnswer:
        descriptions = Descriptions(owners, clock=lambda: 100.0)
        descriptions._known["shop", table.name] = (100.0, table)
        descriptions._renewed["shop", table.name] = 100.0
        reads = RangeReads(owners, descriptions, FrontMetrics())
        return await reads.read(space, RequestedRange(table.name, columns, **wanted), demand)

    return asyncio.run(main())


def ids(answer: RawRangeAnswer) -> list[int]:
    """The rows of an answer."""
    return [msgspec.json.decode(bytes(row))["id"] for row in answer.rows]


def test_partitions_are_joined_where_all_of_them_stand() -> None:
    """Each has changed before the other's watermark. The session gets the last change, not the watermark."""
    answer = read(Partitions([part(10, 2, hi=3, watermark=20)], [part(9, hi=8, watermark=15)]))
    assert (ids(answer), answer.served_from, answer.freshness) == ([2, 9, 10], "cache", "fresh")
    assert "0-1-15" in answer.why
    assert Vector.parse(answer.token).get("shop/0") == (1, Position.parse(f"{AT}8"))


def test_a_partition_behind_the_last_change_of_another_is_asked_for_it() -> None:
    """Only that one, and with the position that it must have reached."""
    partitions = Partitions([part(1, hi=9, watermark=9)], [part(2, hi=3, watermark=8), part(hi=9, watermark=9)])
    answer = read(partitions)
    assert (ids(answer), answer.served_from) == ([1], "cache")
    assert [each.partition for each in partitions.asked] == [0, 1, 1]
    assert Vector.parse(partitions.asked[-1].vector).get("shop/0") == (1, Position.parse(f"{AT}9"))


@pytest.mark.parametrize(
    "other",
    [
        [part(2, hi=3, watermark=8)],
        [part(hi=3, watermark=20, served=False, why="not complete")],
        OwnerAway("nobody"),
    ],
    ids=["behind", "unproved", "away"],
)
def test_one_partition_that_proves_nothing_is_enough_for_the_source(other: list[RangeRows] | OwnerAway) -> None:
    """Its rows are not made up for; the source proves all of them, or there is no answer."""
    partitions = Partitions([part(1, hi=9, watermark=9)], other)
    source = FakeRowSource(b'{"id":77}', "0-1-9", "0-1-12")
    answer = read(partitions, source, wait_ms=20)
    assert (ids(answer), answer.served_from, answer.freshness) == ([77], "source", "fresh")
    assert Vector.parse(answer.token).get("shop/0") == (1, Position.parse(f"{AT}12"))
    with pytest.raises(ReadError) as refused:
        read(Partitions([part(1, hi=9, watermark=9)], other), wait_ms=20)
    assert refused.value.code in ("source_unreachable", "no_owner")


def test_rows_behind_the_last_one_of_a_partition_with_more_wait_for_the_next_page() -> None:
    """Another row of that partition may come before them."""
    first = Partitions([part(1, 5, hi=3, watermark=9, more=True)], [part(2, 8, hi=3, watermark=9)])
    answer = read(first, limit=10)
    assert ids(answer) == [1, 2, 5]
    assert Page.parse(answer.page).last == row_key(TABLE.name, [7, 5])
    for more in (False, True):
        up = Partitions([part(1, 5, hi=3, watermark=9, more=True)], [part(2, 8, hi=3, watermark=9, more=more)])
        assert ids(read(up, limit=10)) == [1, 2, 5]
        down = Partitions([part(9, 5, hi=3, watermark=9, more=True)], [part(8, 2, hi=3, watermark=9, more=more)])
        assert ids(read(down, limit=10, order_by=["-id"])) == [9, 8, 5]


@pytest.mark.parametrize("order_by", [["id"], ["-id"]])
def test_a_page_of_many_partitions_has_the_bytes_of_one(monkeypatch: pytest.MonkeyPatch, order_by: list[str]) -> None:
    """Each of eight gives as many as a page may have. The pages go on where they were cut, and have each row once."""
    monkeypatch.setattr(answering, "IMAGES_BYTES_MAX", 100)
    down = order_by == ["-id"]

    class Eight(Partitions):
        def _answer(self, request: GetRange) -> RangeRows:
            last = split_row_key(request.after)[1][1] if request.after else -1
            left = [
                number
                for number in sorted(range(80), reverse=down)
                if number % 8 == request.partition and (not request.after or (number < last if down else number > last))
            ]
            said = part(*left[:6], hi=3, watermark=9, more=len(left) > 6)
            said.images = [b'{"id":%d,"v":"x"}' % number for number in left[:6]]
            return said

    found, page, lengths = list[int](), "", list[int]()
    while page or not found:
        answer = read(Eight(*[[]] * 8), order_by=order_by, page=page)
        lengths.append(sum(len(bytes(row)) for row in answer.rows))
        found += ids(answer)
        page = answer.page
    assert found == sorted(range(80), reverse=down)
    assert max(lengths) <= 100


def test_rows_of_partitions_are_joined_in_the_order_of_a_column() -> None:
    """By its values, then by the key; and the page names the values of its last row."""
    table = RowTable(TABLE.name, TABLE.key, True, columns=(*TABLE.key, Column("v", "int", True)))

    def said(*rows: tuple[int, int | None], more: bool = False) -> list[RangeRows]:
        made = part(*(number for number, _ in rows), hi=3, watermark=9, more=more)
        made.images = [msgspec.json.encode({"id": number, "v": value}) for number, value in rows]
        return [made]

    partitions = Partitions(said((4, None), (1, 7), (3, 8), more=True), said((2, 7), (5, 7), (6, 9)))
    answer = read(partitions, table=table, order_by=["v"])
    assert ids(answer) == [4, 1, 2, 5, 3]
    assert {(tuple(each.order), each.meaning == table.meaning) for each in partitions.asked} == {(("v",), False)}
    assert Page.parse(answer.page).values == b"[8]"
    following = Partitions(said((7, 8)), said())
    assert ids(read(following, table=table, order_by=["v"], page=answer.page)) == [7]
    assert following.asked[0].after_values == b"[8]"
    with pytest.raises(ReadError, match="another order"):
        read(following, table=table, order_by=["-v"], page=answer.page)


def test_a_page_says_when_it_is_of_another_position_than_those_before_it() -> None:
    """They stood from 3 to 9. What stands from 4 on is of the same position, what changed at 10 is not."""
    page = read(Partitions([part(1, hi=3, watermark=9, more=True)]), limit=1).page
    assert not read(Partitions([part(2, hi=4, watermark=30)]), page=page).moved
    moved = read(Partitions([part(2, hi=10, watermark=30, more=True)]), page=page)
    assert moved.moved
    assert not read(Partitions([part(3, hi=11, watermark=30)]), page=moved.page).moved


def test_a_page_is_compared_with_all_pages_before_it() -> None:
    """The first one stood up to 9, the second one is of before 9 too. A third one that changed at 10 is of later."""
    first = read(Partitions([part(1, hi=3, watermark=9, more=True)]), limit=1)
    second = read(Partitions([part(2, hi=4, watermark=30, more=True)]), limit=1, page=first.page)
    assert not second.moved
    assert read(Partitions([part(3, hi=10, watermark=30)]), page=second.page).moved


def test_counts_of_all_partitions_are_added_up_to_the_limit() -> None:
    """Each counts up to it."""
    parts = [part(hi=3, watermark=9, count=4)], [part(hi=3, watermark=9, count=5)]
    assert read(Partitions(*map(list, parts)), counted=True).count == 9
    assert read(Partitions(*map(list, parts)), counted=True, limit=5).count == 5


@pytest.mark.parametrize("order_by", [["-"], ["v", "-"], ["--id"]])
def test_an_order_without_a_column_is_refused(order_by: list[str]) -> None:
    """A minus alone names the column "", which no table has."""
    with pytest.raises(ReadError) as refused:
        read(Partitions([part(hi=3, watermark=9)]), order_by=order_by)
    assert refused.value.code == "no_index"


@pytest.mark.parametrize("kind", ["json", "enum", "set"])
def test_an_order_that_no_value_continues_is_refused(kind: str) -> None:
    """The next page begins behind the last row's value, which a server compares in another way than it orders."""
    table = RowTable(TABLE.name, TABLE.key, True, columns=(*TABLE.key, Column("v", kind, False)))
    with pytest.raises(ReadError, match="cannot be ordered by column v: ") as refused:
        read(Partitions([part(hi=3, watermark=9)]), table=table, order_by=["v"])
    assert refused.value.code == "no_index"


def test_a_page_means_nothing_to_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner counts all rows of the range. So does the source, and not those behind the page."""
    asked: list[KeyRange] = []

    async def read_range(self: FakeRowSource, _: RowTable, wanted: KeyRange) -> SourceRange:
        asked.append(wanted)
        return SourceRange([], 9, False, self.position, self.hi)

    monkeypatch.setattr(FakeRowSource, "read_range", read_range)
    page = read(Partitions([part(1, hi=3, watermark=9, more=True)]), limit=1).page
    unknown = Partitions([part(hi=3, watermark=20, served=False, why="not complete")])
    answer = read(unknown, FakeRowSource(None, "0-1-9"), counted=True, page=page, wait_ms=20)
    assert (answer.count, answer.served_from, [each.after for each in asked]) == (9, "source", [None])


LABELS = RowTable(
    "shop.labels",
    (Column("id", "text", False),),
    True,
    columns=(Column("id", "text", False), Column("label", "text", True), Column("n", "int", True)),
)
BY_LABEL = Index(LABELS.name, ("label", "n"))


def labelled(*ids: str, hi: int = 3, **fields: Any) -> RangeRows:
    """What a partition says of labels: rows with a key that only the source can order."""
    said = part(hi=hi, watermark=20, **fields)
    said.keys = [row_key(LABELS.name, [each]) for each in ids]
    said.images = [b'{"id":"%s"}' % each.encode() for each in ids]
    said.count = len(ids)
    return said


def read_labels(partitions: Partitions, source: FakeRowSource | None = None, **wanted: Any) -> RawRangeAnswer:
    """The answer for the labels ``x`` with n 7."""
    columns = wanted.pop("columns", {"n": "7", "label": "x"})
    return read(partitions, source, table=LABELS, indexes=[BY_LABEL], columns=columns, **wanted)


def test_a_request_by_an_index_names_it_to_every_partition() -> None:
    """Columns in the index's order, whatever the request's; a meaning that an owner without indexes does not have."""
    partitions = Partitions([labelled("a")], [labelled()])
    answer = read_labels(partitions)
    assert ([bytes(row) for row in answer.rows], answer.served_from) == ([b'{"id":"a"}'], "cache")
    assert {each.partition for each in partitions.asked} == {0, 1}
    asked = partitions.asked[0]
    assert (asked.index, asked.equal, asked.columns, asked.asked) == (["label", "n"], b'["x",7]', 0, 2)
    assert asked.meaning not in (b"", LABELS.meaning)


def test_a_page_by_an_index_does_not_go_on_with_other_values() -> None:
    """It would leave out the rows of the other values that come before its last one."""
    page = read_labels(Partitions([labelled("a", more=True)], [labelled()]), limit=1).page
    assert read_labels(Partitions([labelled()]), page=page).rows == []
    with pytest.raises(ReadError) as refused:
        read_labels(Partitions([labelled()]), columns={"n": "8", "label": "x"}, page=page)
    assert refused.value.code == "bad_page"


def test_rows_of_two_partitions_whose_order_is_unknown_come_from_the_source() -> None:
    """One alone needs no order, and a number neither."""
    source = FakeRowSource(b"{}", "0-1-9")
    assert read_labels(Partitions([labelled("a")], [labelled("b")]), source).served_from == "source"
    counted = labelled()
    counted.count = 1
    assert read_labels(Partitions([counted], [counted]), source, counted=True).count == 2


def test_an_index_of_another_table_or_of_a_column_that_is_gone_is_refused() -> None:
    """The answer names the indexes that there are."""
    for columns, said in (({"n": "7"}, r"only PRIMARY \(id\), \(label, n\)"), ({"x": "1"}, r"no index on \(x\)")):
        with pytest.raises(ReadError, match=said) as refused:
            read_labels(Partitions([labelled()]), columns=columns)
        assert refused.value.code == "no_index"


def test_an_owner_that_answers_for_another_shard_is_not_believed() -> None:
    """One of before shards had ranges takes no notice of the one that is named, and gives what it has of another."""
    shards = ShardMap.parse({"shop/0": "-80", "shop/1": "80-"})
    [own] = {shards.shard_of(Layout(1).keyspace_id(row_key(TABLE.name, [7]), 1))}
    [other] = set(shards.shards) - {own}
    table = replace(TABLE, prefix=1)
    sources = [FakeRowSource(b'{"id":77}', "0-1-9", "0-1-12", shard=name) for name in shards.shards]
    for shard, expected in ((other, ("source", [77])), (own, ("cache", [1]))):
        partitions = Partitions([part(1, hi=9, watermark=9, shard=shard)])
        answer = read(partitions, sources[0], table=table, sources=sources, shards=shards)
        assert (answer.served_from, ids(answer)) == expected
        assert partitions.asked[0].shard == own


def test_a_range_by_another_spelling_is_read_from_every_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows lie where their own spelling says. If one shard has all of them, they come in its order."""
    shards = ShardMap.parse({"shop/0": "-80", "shop/1": "80-"})
    sources = [FakeRowSource(None, "0-1-9", shard=name) for name in shards.shards]
    of = {shards.shard_of(Layout(1).keyspace_id(row_key(TABLE.name, [each, 1]), 1)): each for each in range(8, 40)}

    async def read_range(*_: object) -> SourceRange:
        sources[1].reads += 1
        rows = [(row_key(TABLE.name, [of["shop/1"], number]), b'{"id":%d}' % number) for number in (5, 3)]
        return SourceRange(rows, 2, False, sources[1].position, sources[1].hi)

    monkeypatch.setattr(sources[1], "read_range", read_range)
    table = replace(TABLE, key=(Column("customer", "int", False), Column("id", "text", False)), prefix=1)
    answer = read(Partitions([]), sources[0], table=table, sources=sources, shards=shards)
    assert (answer.served_from, ids(answer), [each.reads for each in sources]) == ("source", [5, 3], [1, 1])


class Server(FakeRowSource):
    """One of a shard, with orders of ten customers, some of which may be another shard's."""

    customers: Sequence[int] = range(10)

    async def read_range(self, table: RowTable, wanted: KeyRange) -> SourceRange:
        """Counts what it has."""
        keys = [row_key(table.name, [each, 1]) for each in self.customers]
        stranger = next((key for key in keys if wanted.owns is not None and not wanted.owns(key)), None)
        rows = [(stranger, b"")] if stranger is not None else []
        return SourceRange(rows, len(rows) or len(keys), False, self.position, self.hi)


def test_a_count_at_servers_that_have_rows_of_others_is_refused() -> None:
    """As after a split: it would count such a row twice. One of a range that lies in one shard can meet none."""
    shards = ShardMap.parse({"shop/0": "-80", "shop/1": "80-"})
    table, sources = replace(TABLE, prefix=1), [Server(None, "0-1-9", shard=name) for name in shards.shards]

    def count(columns: Mapping[str, str]) -> int | None:
        unknown = Partitions([part(hi=3, watermark=9, served=False, why="not complete", shard="shop/0")])
        options: Any = {"wait_ms": 20, "table": table, "sources": sources, "shards": shards, "counted": True}
        return read(unknown, sources[0], columns=columns, **options).count

    with pytest.raises(ReadError, match="whose key is another shard's") as refused:
        count({})
    assert refused.value.code == "source_failed"
    assert count({"customer": "7"}) == 10
    for source in sources:
        owned = [row_key(TABLE.name, [each]) for each in range(10)]
        source.customers = [n for n, key in enumerate(owned) if source.shard == shards.shard_of(id_of(key))]
    assert count({}) == 10


def id_of(key: bytes) -> int:
    """The keyspace id of an order by its customer."""
    return Layout(1).keyspace_id(key, 1)


def test_pages_have_moved_if_nothing_says_which_one_ends_first() -> None:
    """A replica may have applied a later transaction of one domain, and an earlier one of another."""

    def stretch(since: str, until: str) -> Stretch:
        return Stretch("shop/0", 1, Position.parse(f"MariaDB/{since}"), Position.parse(f"MariaDB/{until}"))

    one, other = stretch("0-1-2,1-1-2", "0-1-4,1-1-7"), stretch("0-1-5,1-1-2", "0-1-5,1-1-3")
    assert (one.joined(other), other.joined(one)) == (None, None)
    later = stretch("0-1-2,1-1-3", "0-1-5,1-1-7")
    assert one.joined(later) == later.joined(one) == stretch("0-1-2,1-1-3", "0-1-4,1-1-7")
