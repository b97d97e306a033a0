"""Reads of catalog tables over owners and sources that the test sets: lists, table ids, positions and flights."""

from __future__ import annotations

import asyncio

import pytest

from consumers.fold.catalog_state import EXTERNAL, TRANSACTIONAL
from consumers.fold.shards import Kin
from consumers.owner.protocol import FillTable, OwnerTable
from serving.answers import RawTableAnswer
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads import tables
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.fills import Fills
from serving.reads.spaces import TableSpace
from serving.reads.tables import TableReads
from serving.sources.source import SourceTable
from stream.wire.keys import Layout
from tests.serving.fakes import FakeOwner, FakeTableSource, Network, at, demand_of, owner_table, seen
from tests.serving.test_flight import settle
from tokens import ValidWriteIdList, Vector

SHARD = "hive/0"
IMAGE = b'{"name":"t"}'
LIST = "db.t:5:9223372036854775807::"


class Reads:
    """`TableReads` over one owner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: FakeOwner) -> None:
        owners, metrics = Network(monkeypatch, {"a:1": owner}).owners(), FrontMetrics()
        self._reads = TableReads(owners, Fills(owners, metrics), metrics)

    async def answer(
        self, source: FakeTableSource, wanted: RequestedTable | None = None, vector: Vector | None = None
    ) -> RawTableAnswer | ReadError:
        """The answer for db.t, after the fills that it caused."""
        demand = ReadDemand() if vector is None else demand_of(vector)
        return await self.read(
            TableSpace("hive", Layout(1), source), wanted or RequestedTable("hive", "db", "t"), demand
        )

    async def read(self, space: TableSpace, wanted: RequestedTable, demand: ReadDemand) -> RawTableAnswer | ReadError:
        [answer] = await self._reads.read_many([(space, wanted)], demand)
        await settle()
        return answer


def served(answer: RawTableAnswer | ReadError) -> RawTableAnswer:
    assert not isinstance(answer, ReadError), answer
    return answer


def external(gtid: str = "0-1-5", table_id: int = 7, image: bytes = IMAGE) -> SourceTable:
    return SourceTable(table_id, EXTERNAL, image, "", at(gtid))


def transactional(hwm: int, image: bytes = IMAGE) -> SourceTable:
    return SourceTable(7, TRANSACTIONAL, image, f"db.t:{hwm}:9223372036854775807::", at("0-1-5"))


def managed() -> RequestedTable:
    """Asks for a transactional table with the reader's own list."""
    return RequestedTable("hive", "db", "t", ValidWriteIdList.parse(LIST), 7)


def test_a_shared_read_has_no_list_of_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read that others share, and that fills the cache, never sees a reader's uncommitted writes."""
    source, owner = FakeTableSource(transactional(5)), FakeOwner()
    assert served(asyncio.run(Reads(monkeypatch, owner).answer(source, managed()))).value
    assert source.lists == [None]
    assert len(owner.fills) == 1


def test_a_read_with_the_readers_own_list_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shared read does not cover the list, the reader's own read answers and only the shared one fills."""
    source, owner = FakeTableSource(transactional(4), transactional(5, b'{"own":1}')), FakeOwner()
    answer = asyncio.run(Reads(monkeypatch, owner).answer(source, managed()))
    assert bytes(served(answer).value) == b'{"own":1}'
    assert source.lists == [None, LIST]
    assert [fill.image for fill in owner.fills] == [IMAGE]


def test_a_source_behind_the_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that has not reached what the session has seen gives ``source_behind``, not an old table."""
    reads = Reads(monkeypatch, FakeOwner())
    answer = asyncio.run(reads.answer(FakeTableSource(external("0-1-5")), vector=seen(SHARD, "0-1-6")))
    assert isinstance(answer, ReadError)
    assert answer.code == "source_behind"
    answer = asyncio.run(reads.answer(FakeTableSource(external("0-1-6")), vector=seen(SHARD, "0-1-6")))
    assert served(answer).token == str(seen(SHARD, "0-1-6"))


@pytest.mark.parametrize(("image", "gtid"), [(IMAGE, "0-1-9"), (None, "0-1-6")])
def test_a_session_without_a_token_learns_the_position(
    monkeypatch: pytest.MonkeyPatch, image: bytes | None, gtid: str
) -> None:
    """The token holds the latest position in the owner's answer, else the source's under the epoch an owner names."""
    owner = FakeOwner(watermarks=seen(SHARD, "0-1-1", epoch=2))
    owner.table = owner_table(image, epoch=2)
    answer = served(asyncio.run(Reads(monkeypatch, owner).answer(FakeTableSource(external("0-1-6")))))
    assert answer.served_from == ("cache" if image else "source")
    assert answer.token == str(seen(SHARD, gtid, epoch=2))


@pytest.mark.parametrize(("table_id", "fills"), [(7, 1), (8, 0)])
def test_a_table_of_another_id_fills_nothing(monkeypatch: pytest.MonkeyPatch, table_id: int, fills: int) -> None:
    """A source's table that has been created again is not offered as a fill of the old one."""
    owner = FakeOwner()
    answer = served(asyncio.run(Reads(monkeypatch, owner).answer(FakeTableSource(external(table_id=table_id)))))
    assert (answer.served_from, answer.table_id) == ("source", table_id)
    assert [fill.table_id for fill in owner.fills if isinstance(fill, FillTable)] == [7] * fills


def test_a_table_flight_is_shared_within_catalog_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's read that is under way is not shared with another epoch or catalog."""

    async def story() -> None:
        owner = FakeOwner()
        reads, tasks = Reads(monkeypatch, owner), []
        sources = FakeTableSource(external()), FakeTableSource(external(image=b'{"name":"other"}'))
        spaces = [TableSpace(name, Layout(1), source) for name, source in zip(("hive", "lake"), sources, strict=True)]
        wanted = RequestedTable("", "db", "t")
        for source, space in zip(sources, spaces, strict=True):
            source.gate.clear()
            tasks.append(asyncio.create_task(reads.read(space, wanted, ReadDemand())))
        await settle()
        owner.table = owner_table(None, epoch=2)
        demand = demand_of(seen(SHARD, "0-1-4", epoch=2))
        tasks.append(asyncio.create_task(reads.read(spaces[0], wanted, demand)))
        await settle()
        assert [source.lists for source in sources] == [[None, None], [None]]
        for source in sources:
            source.gate.set()
        images = [bytes(served(answer).value) for answer in await asyncio.gather(*tasks)]
        assert images == [IMAGE, b'{"name":"other"}', IMAGE]

    asyncio.run(story())


@pytest.mark.parametrize("image", [IMAGE, None])
def test_a_table_answer_of_an_owner_raises_the_known_epoch(
    monkeypatch: pytest.MonkeyPatch, image: bytes | None
) -> None:
    """Each answer of an owner about a table makes its epoch known, whether it is served or not."""
    owner, space = FakeOwner(), TableSpace("hive", Layout(1))
    owner.table = owner_table(image, epoch=3)
    asyncio.run(Reads(monkeypatch, owner).read(space, RequestedTable("hive", "db", "t"), ReadDemand()))
    assert space.epochs.known == {SHARD: 3}


def test_an_image_that_was_not_served_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that sends an image with its refusal has refused it all the same; one without image has none."""
    owner = FakeOwner()
    for image, is_served in ((b'{"old":1}', False), (None, True)):
        owner.table = owner_table(image)
        owner.table.served, owner.table.freshness = is_served, "stale"
        answer = asyncio.run(Reads(monkeypatch, owner).answer(FakeTableSource(external("0-1-9"))))
        assert (served(answer).served_from, bytes(served(answer).value)) == ("source", IMAGE)


def test_what_an_owner_knows_of_the_shards_around_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that has seen an ancestor can be judged by it, although this answer is the source's."""
    owner = FakeOwner()
    owner.table.kin = Kin(frozenset({"hive/0"}), {"hive/old": 4})
    space = TableSpace("hive", Layout(1), FakeTableSource(external("0-1-9")))
    asyncio.run(Reads(monkeypatch, owner).read(space, RequestedTable("hive", "db", "t"), ReadDemand()))
    assert space.epochs.kin_of("hive/0", Vector()) == owner.table.kin


@pytest.mark.parametrize("max_wait_ms", [0, 60_000])
def test_an_owner_may_wait_for_as_long_as_the_reader(monkeypatch: pytest.MonkeyPatch, max_wait_ms: int) -> None:
    """It waits for the stream for what is left of the time, and not at all if there is none."""
    waits: list[int] = []

    class Waiting(FakeOwner):
        async def get_table(self, *given: object) -> OwnerTable:
            waits.append(int(str(given[-1])))
            return await super().get_table()

    reads, space = Reads(monkeypatch, Waiting()), TableSpace("hive", Layout(1), FakeTableSource(external("0-1-9")))
    demand = ReadDemand(max_wait_ms=max_wait_ms)
    asyncio.run(reads.read(space, RequestedTable("hive", "db", "t"), demand))
    assert [0 < each <= max_wait_ms for each in waits] == [bool(max_wait_ms)]


def test_an_error_of_the_owner_is_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demand that the owner can't judge is answered with its code, and the source is not asked."""
    owner, source = FakeOwner(), FakeTableSource(external("0-1-9"))
    owner.table.code, owner.table.why = "missing_write_ids", "the request has no list"
    answer = asyncio.run(Reads(monkeypatch, owner).answer(source))
    assert isinstance(answer, ReadError)
    assert (answer.code, str(answer)) == ("missing_write_ids", "the request has no list")
    assert source.lists == []


def test_a_source_that_does_not_answer_in_time_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked table must not hold its readers for ever; the next read asks again."""
    monkeypatch.setattr(tables, "SOURCE_TIMEOUT_S", 0.01)
    source = FakeTableSource(external("0-1-9"))
    source.gate.clear()
    reads = Reads(monkeypatch, FakeOwner())
    answer = asyncio.run(reads.answer(source))
    assert isinstance(answer, ReadError)
    assert answer.code == "source_unreachable"
    source.gate.set()
    assert served(asyncio.run(reads.answer(source))).served_from == "source"
