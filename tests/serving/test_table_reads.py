"""Reads of catalog tables over owners and sources that the test sets: lists, table ids, positions and flights."""

from __future__ import annotations

import asyncio

import pytest

from consumers.fold.catalog_state import EXTERNAL, TRANSACTIONAL
from consumers.fold.shards import Kin
from consumers.owner.protocol import FillTable, OwnerTable
from serving.answers import RawTableAnswer
from serving.errors import ReadError
from serving.http.query import requested_list
from serving.metrics import FrontMetrics
from serving.reads import tables
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.fills import Fills
from serving.reads.spaces import TableSpace
from serving.reads.tables import TableReads
from serving.sources.source import NOTHING, Folded, SourceTable
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


def external(gtid: str = "0-1-5", table_id: int = 7, image: bytes = IMAGE, *, logged: bool = True) -> SourceTable:
    return SourceTable(table_id, EXTERNAL, image, "", at(gtid), is_logged=logged)


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


@pytest.mark.parametrize("listed", ["DB.T", "db.t", "db.other", "other.t"])
def test_a_list_is_of_the_table_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    """In whatever case the engine writes the name: to Hive it is the same table."""
    is_served = listed.lower() == "db.t"
    wanted = managed()._replace(write_ids=requested_list(LIST.replace("db.t", listed)))
    answer = asyncio.run(Reads(monkeypatch, FakeOwner()).answer(FakeTableSource(transactional(5)), wanted))
    assert is_served is not isinstance(answer, ReadError)
    assert is_served or (isinstance(answer, ReadError) and answer.code == "bad_write_ids")


def test_a_read_with_the_readers_own_list_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shared read does not cover the list, the reader's own read answers and only the shared one fills."""
    source, owner = FakeTableSource(transactional(4), transactional(5, b'{"own":1}')), FakeOwner()
    answer = asyncio.run(Reads(monkeypatch, owner).answer(source, managed()))
    assert bytes(served(answer).value) == b'{"own":1}'
    assert source.lists == [None, LIST]
    assert [fill.image for fill in owner.fills] == [IMAGE]


def test_the_position_of_the_read_proves_and_the_latest_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fill that stood for its latest position would be called fresh for what it may lack."""
    source, owner = FakeTableSource(external("0-1-5")._replace(hi=at("0-1-9"))), FakeOwner()
    answer = asyncio.run(Reads(monkeypatch, owner).answer(source, vector=seen(SHARD, "0-1-5")))
    assert served(answer).token == str(seen(SHARD, "0-1-9"))
    [fill] = owner.fills
    assert isinstance(fill, FillTable)
    assert (fill.lo, fill.hi, fill.written) == (str(at("0-1-5")), str(at("0-1-9")), "")


def test_a_fill_tells_the_last_write_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that is behind the log's end, which a session takes away, would refuse it for other tables' events."""
    found, owner = transactional(5)._replace(hi=at("0-1-9"), written=at("0-1-5")), FakeOwner()
    assert served(asyncio.run(Reads(monkeypatch, owner).answer(FakeTableSource(found), managed()))).value
    [fill] = owner.fills
    assert isinstance(fill, FillTable)
    assert (fill.hi, fill.written) == (str(at("0-1-9")), str(at("0-1-5")))


@pytest.mark.parametrize("is_filled", [False, True])
def test_the_list_of_a_fill_is_not_taken_for_folded(monkeypatch: pytest.MonkeyPatch, *, is_filled: bool) -> None:
    """It may be later than the watermark: a session would take away too little with a COMMIT that the list shows."""
    owner, source = FakeOwner(), FakeTableSource(transactional(5))
    owner.table.watermark, owner.table.write_ids, owner.table.filled = str(at("0-1-3")), LIST, is_filled
    asyncio.run(Reads(monkeypatch, owner).answer(source, managed()))
    assert source.known == [Folded(str(at("0-1-3")), "" if is_filled else LIST)]


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


@pytest.mark.parametrize(("found", "fills"), [(external(), 1), (external(table_id=8), 0), (external(logged=False), 0)])
def test_what_cannot_be_proved_fills_nothing(monkeypatch: pytest.MonkeyPatch, found: SourceTable, fills: int) -> None:
    """A table that has been created again is no fill of the old one, nor is one that changes without an event."""
    owner = FakeOwner()
    answer = served(asyncio.run(Reads(monkeypatch, owner).answer(FakeTableSource(found))))
    assert (answer.served_from, answer.table_id) == ("source", found.table_id)
    assert [fill.table_id for fill in owner.fills if isinstance(fill, FillTable)] == [7] * fills


def test_a_table_flight_is_shared_within_catalog_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's read that is under way is not shared with another epoch, catalog or database."""

    async def story() -> None:
        owner = FakeOwner()
        reads, tasks = Reads(monkeypatch, owner), []
        sources = FakeTableSource(external()), FakeTableSource(external(image=b'{"name":"other"}'))
        spaces = [TableSpace(name, Layout(1), source) for name, source in zip(("hive", "lake"), sources, strict=True)]
        wanted, other = (RequestedTable("", db, "t") for db in ("db", "other"))
        for source, space in zip(sources, spaces, strict=True):
            source.gate.clear()
            tasks.append(asyncio.create_task(reads.read(space, wanted, ReadDemand())))
        await settle()
        owner.table = owner_table(None, epoch=2)
        demand = demand_of(seen(SHARD, "0-1-4", epoch=2))
        tasks += [asyncio.create_task(reads.read(spaces[0], each, demand)) for each in (wanted, other)]
        await settle()
        assert [source.lists for source in sources] == [[None, None, None], [None]]
        for source in sources:
            source.gate.set()
        images = [bytes(served(answer).value) for answer in await asyncio.gather(*tasks)]
        assert images == [IMAGE, b'{"name":"other"}', IMAGE, IMAGE]

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
        async def get_table(self, *given: object, **_: object) -> OwnerTable:
            waits.append(int(str(given[-2])))
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


class Moving(FakeTableSource):
    """A source that is one further at each read. ``delay_s``: how long a read takes."""

    delay_s = 0.0

    def __init__(self, *answers: SourceTable) -> None:
        super().__init__(answers[-1])
        self.answers = list(answers)

    async def read(self, name: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:
        await super().read(name, own_list, known)
        await asyncio.sleep(self.delay_s)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_a_source_that_lags_is_asked_again_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the reader's time is up it may get there; without time it is asked once; and never in a busy loop."""
    reads = Reads(monkeypatch, FakeOwner())
    demand = demand_of(seen(SHARD, "0-1-7"))

    def read(source: FakeTableSource, max_wait_ms: int) -> RawTableAnswer | ReadError:
        space, wanted = TableSpace("hive", Layout(1), source), RequestedTable("hive", "db", "t")
        return asyncio.run(reads.read(space, wanted, demand._replace(max_wait_ms=max_wait_ms)))

    source = Moving(external("0-1-5"), external("0-1-6"), external("0-1-7"))
    assert served(read(source, 60_000)).token == str(seen(SHARD, "0-1-7"))
    assert source.lists == [None] * 3
    for max_wait_ms, most in ((0, 1), (4 * round(1000 * tables.POLL_S), 6)):
        source = Moving(external("0-1-5"))
        answer = read(source, max_wait_ms)
        assert isinstance(answer, ReadError)
        assert answer.code == "source_behind"
        assert 1 <= len(source.lists) <= most


@pytest.mark.parametrize("own", [False, True])
def test_what_waiting_cannot_mend_is_answered_at_once(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """A lost history does not come back, and a table that was made again keeps its new id."""
    owner = FakeOwner()
    if own:
        source, wanted, code = FakeTableSource(external(table_id=8)), managed(), "table_id_changed"
        vector = seen(SHARD, "0-1-4")
    else:
        source, wanted, code = FakeTableSource(external()), RequestedTable("hive", "db", "t"), "history_lost"
        vector = seen(SHARD, "0-1-9", epoch=1)
        owner.table = owner_table(None, epoch=2)
    reads, space = Reads(monkeypatch, owner), TableSpace("hive", Layout(1), source)
    answer = asyncio.run(
        asyncio.wait_for(reads.read(space, wanted, demand_of(vector)._replace(max_wait_ms=60_000)), 20)
    )
    assert isinstance(answer, ReadError)
    assert answer.code == code
    assert source.lists == [None]


def test_a_table_that_is_not_there_has_no_other_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its absence is the answer, if the source has reached what the session has seen; else the source is behind."""
    for gtid, code in (("0-1-9", ""), ("0-1-5", "source_behind")):
        absent = SourceTable(0, "", None, "", at(gtid))
        wanted = RequestedTable("hive", "db", "t", None, 7)
        answer = asyncio.run(
            Reads(monkeypatch, FakeOwner()).answer(FakeTableSource(absent), wanted, seen(SHARD, "0-1-7"))
        )
        if code:
            assert isinstance(answer, ReadError)
            assert answer.code == code
        else:
            assert (served(answer).found, served(answer).token) == (False, str(seen(SHARD, "0-1-9")))
            assert "catalog hive has no table db.t" in str(answer)


def test_reads_of_the_source_and_its_failures_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators see how often the cache did not suffice, and how often nobody could answer."""
    metrics = FrontMetrics()
    owners = Network(monkeypatch, {"a:1": FakeOwner()}).owners()
    reads = TableReads(owners, Fills(owners, metrics), metrics)
    source = FakeTableSource(external())

    async def fail(*_: object) -> SourceTable:
        raise ReadError("source_unreachable", "away")

    async def read() -> RawTableAnswer | ReadError:
        space = TableSpace("hive", Layout(1), source)
        [answer] = await reads.read_many([(space, RequestedTable("hive", "db", "t"))], ReadDemand())
        await settle()
        return answer

    assert served(asyncio.run(read())).served_from == "source"
    monkeypatch.setattr(source, "read", fail)
    answer = asyncio.run(read())
    assert isinstance(answer, ReadError)
    assert answer.code == "source_unreachable"
    assert [each._value.get() for each in (metrics.source_reads, metrics.source_failures)] == [2, 1]


@pytest.mark.parametrize("vector", [None, seen(SHARD, "0-1-4")])
def test_a_managed_table_at_the_source_needs_a_list_too(monkeypatch: pytest.MonkeyPatch, vector: Vector | None) -> None:
    """Without the reader's list nobody can say what it may see; whoever answers says so, and how to ask."""
    wanted = RequestedTable("hive", "db", "t")
    answer = asyncio.run(Reads(monkeypatch, FakeOwner()).answer(FakeTableSource(transactional(5)), wanted, vector))
    assert isinstance(answer, ReadError)
    assert (answer.code, bool(answer.hint)) == ("missing_write_ids", True)


def test_a_tables_partition_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any owner knows where a table is kept. The next reader asks there first, which is one request instead of two."""
    guide, keeper = FakeOwner(), FakeOwner()
    guide.table, keeper.table = owner_table(None), owner_table(IMAGE)
    guide.table.elsewhere, guide.table.partition, keeper.table.partition = True, 1, 1
    network, metrics = Network(monkeypatch, {"a:1": guide, "b:1": keeper}), FrontMetrics()
    network.announced = {0: ["a:1"], 1: ["b:1"]}
    owners = network.owners()
    reads, space = TableReads(owners, Fills(owners, metrics), metrics), TableSpace("hive", Layout(2))

    async def run() -> list[RawTableAnswer | ReadError]:
        wanted = [[(space, RequestedTable("hive", "db", "t"))], [(space, RequestedTable("hive", "db", "u"))]]
        return [(await reads.read_many(wanted[other], ReadDemand()))[0] for other in (0, 0, 0, 1)]

    assert [bytes(served(answer).value) for answer in asyncio.run(run())] == [IMAGE] * 4
    assert (len(guide.asked), len(keeper.asked)) == (2, 4)


class DownSource(FakeTableSource):
    """A source that does not answer."""

    async def read(self, _: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:  # noqa: ARG002
        raise ReadError("source_unreachable", "no metastore answers")


class BehindOwner(FakeOwner):
    """Has the table as of another list than the reader's, and answers who asks by that list."""

    def __init__(self, *, is_servable: bool = True) -> None:
        super().__init__()
        self.is_servable = is_servable

    async def get_table(self, *given: object, **_: object) -> OwnerTable:
        found = owner_table(b'{"old":1}')
        found.table_id, found.write_ids = 7, "db.t:4:9223372036854775807::"
        found.served = self.is_servable and given[2] == found.write_ids
        found.freshness, found.why = ("fresh", "") if found.served else ("stale", "write id 5 committed since")
        return found


@pytest.mark.parametrize("wanted_id", [7, 8])
@pytest.mark.parametrize("is_servable", [True, False])
@pytest.mark.parametrize("is_on", [True, False])
def test_a_stale_answer_is_given_only_if_that_is_set_and_says_so(
    monkeypatch: pytest.MonkeyPatch, is_on: bool, is_servable: bool, wanted_id: int
) -> None:
    """With the source down: the cached image of the same table, marked; never one that waits for a writer."""
    owner = BehindOwner(is_servable=is_servable)
    owners, metrics = Network(monkeypatch, {"a:1": owner}).owners(), FrontMetrics()
    reads = TableReads(owners, Fills(owners, metrics), metrics, stale_if_down=is_on)
    space = TableSpace("hive", Layout(1), DownSource(external()))
    wanted = RequestedTable("hive", "db", "t", ValidWriteIdList.parse(LIST), wanted_id)
    [answer] = asyncio.run(reads.read_many([(space, wanted)], ReadDemand()))
    if is_on and is_servable and wanted_id == 7:
        found = served(answer)
        assert (found.served_from, found.freshness, bytes(found.value)) == ("cache", "stale", b'{"old":1}')
        assert "no metastore answers" in found.why
        assert "write id 5" in found.why
    else:
        assert isinstance(answer, ReadError)
        assert answer.code == "source_unreachable"
