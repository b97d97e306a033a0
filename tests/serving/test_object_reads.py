"""Catalog objects over HTTP: publisher, fold, owner, front and client, each the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from consumers.owner import connection as owner_connection
from serving.client import BadRequest, Conflict, NotFoundError, Session, Unavailable
from serving.client.sending.requests import arguments
from serving.client.wire import HttpRequest
from serving.errors import ReadError
from serving.http.app import make_app
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand
from serving.reads.objects import ObjectLookup, ObjectReads, RequestedObjects, _of_source
from serving.reads.proof import Proof
from serving.reads.spaces import TableSpace
from serving.sources.source import NOTHING, Folded, SourceObjects, SourceTable, WantedObjects
from stream.wire.batch import Framer
from stream.wire.events import (
    AllocateWriteId,
    BindName,
    Change,
    CommitTransaction,
    ObjectImage,
    ObjectSet,
    SourceTransaction,
    TableImage,
)
from stream.wire.keys import Layout
from tests.consumers.owning import KEYSPACE, Owner
from tests.serving.test_flight import settle
from tokens import Position, Vector

SHARD = "shop/0"
KEYS = b'{"tableName":"t","partitionKeys":[{"name":"ds","type":"string"},{"name":"hr","type":"int"}]}'


class HiveSource:
    """A source of truth that answers for one table what it is told."""

    shard = SHARD

    def __init__(self) -> None:
        self.answer = SourceObjects([], [], Position.parse("HiveEvent/1"))
        self.asked: list[WantedObjects] = []
        self.own: SourceObjects | None = None
        """What a reader is told that brings its own list; None: as any other."""
        self.down = False

    async def read(self, _: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:  # noqa: ARG002 - `TableSource`'s
        return SourceTable(0, "", None, "", self.answer.position)

    async def read_objects(
        self,
        wanted: WantedObjects,
        own_list: str | None = None,
        known: Folded = NOTHING,  # noqa: ARG002 - `ObjectSource`'s
    ) -> SourceObjects:
        self.asked.append(wanted)
        if self.down:
            raise ReadError("source_unreachable", "it is down")
        return self.own if own_list is not None and self.own is not None else self.answer

    async def close(self) -> None:
        return


class Installation:
    """Publisher, fold, owner, front and client of a catalog in one process."""

    def __init__(self, directory: Path, source: HiveSource | None = None, *, stale_if_down: bool = False) -> None:
        self.stale_if_down = stale_if_down
        self.owner = Owner(directory)
        self.source = source
        self.session = Session(self._send, Vector())
        self._framer = Framer(SHARD, Layout(1), nonce=7)
        self._framer.start_epoch("HiveEvent/0", 1_700_000_000, "first_start")
        self.position = 0
        self.clock_ms = 0
        """That the markers tell; 0: none."""

    def publish(self, *changes: Change) -> None:
        """One event through publisher and fold; the session has seen it."""
        self.position += 1
        at = f"HiveEvent/{self.position}"
        self._framer.add(SourceTransaction(at, at, 1_700_000_000, list(changes)), 0, len(changes))
        self._framer.stamp(self.clock_ms)
        self.owner.fold(*(value for _, value in self._framer.take().records))
        self.session.observe(SHARD, at)

    def table(self, change: str = "created", kind: str = "external", **fields: Any) -> None:
        """An event of table 7, ``sales.t``."""
        at = f"HiveEvent/{self.position + 1}"
        image = None if change == "written" else KEYS
        bound = [BindName("sales.t", 7)] if change == "created" else []
        self.publish(*bound, TableImage(7, "sales.t", kind, change, image=image, lo=at, hi=at, **fields))

    def objects(self, kind: str, table_id: int, *names: tuple[str, ...]) -> None:
        """All objects of a kind, published as a whole."""
        images = [ObjectImage(kind, table_id, name, "image", b'{"name":"%d"}' % n) for n, name in enumerate(names)]
        self.publish(ObjectSet(kind, table_id, "begun"), *images, ObjectSet(kind, table_id, "complete"))

    def _send(self, request: HttpRequest) -> tuple[int, bytes]:
        return asyncio.run(self._serve(request))

    async def _serve(self, request: HttpRequest) -> tuple[int, bytes]:
        host, port = await self.owner.server.start()
        space = TableSpace(KEYSPACE, Layout(1), self.source)
        front = make_front(
            [space], Locations(fixed={(KEYSPACE, 0): f"{host}:{port}"}), stale_if_down=self.stale_if_down
        )
        transport = httpx2.ASGITransport(make_app(front))
        try:
            async with httpx2.AsyncClient(transport=transport, base_url="http://front") as http:
                response = await asyncio.wait_for(http.request(**arguments("http://front", request)), 20)
        finally:
            for close in front.closers:
                await close()
            await self.owner.server.stop()
        return response.status_code, response.content


@pytest.fixture
def running(tmp_path: Path) -> Installation:
    """An external table with the partitions (d0, 0) to (d4, 4)."""
    found = Installation(tmp_path)
    found.table()
    found.objects("partition", 7, *((f"d{n}", str(n)) for n in range(5)))
    return found


def test_partitions_are_read_by_all_their_ways(running: Installation) -> None:
    """All, names only, by name, by first values, by filter, counted: fresh, from the cache."""
    read: Callable[..., Any] = running.session.get_partitions
    found = read("Sales", "T", catalog=KEYSPACE)
    assert (found.freshness, found.served_from, found.count) == ("fresh", "cache", 5)
    assert found.names == [[f"d{n}", str(n)] for n in range(5)]
    assert found.objects[3] == {"name": "3"}
    assert read("sales", "t", catalog=KEYSPACE, names_only=True).objects == []
    assert read("sales", "t", catalog=KEYSPACE, names=[("d1", "1")]).objects == [{"name": "1"}]
    assert read("sales", "t", catalog=KEYSPACE, values=["d2"]).names == [["d2", "2"]]
    assert read("sales", "t", catalog=KEYSPACE, filter="hr > 1 and ds <> 'd3'").names == [["d2", "2"], ["d4", "4"]]
    assert read("sales", "t", catalog=KEYSPACE, count=True).count == 5


def test_a_partition_that_does_not_exist_is_an_answer(running: Installation) -> None:
    """Its absence is proved as its presence would be."""
    found = running.session.get_partitions("sales", "t", catalog=KEYSPACE, names=[("x", "9")])
    assert (found.freshness, found.count, found.objects) == ("fresh", 0, [None])


def test_a_filter_that_does_not_parse_is_the_readers_mistake(running: Installation) -> None:
    """400 with the character."""
    with pytest.raises(BadRequest, match="character 6 ") as refused:
        running.session.get_partitions("sales", "t", catalog=KEYSPACE, filter="hr = 'x'")
    assert refused.value.code == "bad_filter"


def test_pages_end_with_a_conflict_where_the_partitions_changed(running: Installation) -> None:
    """Two pages are of one moment; after a drop the next one is refused."""
    first = running.session.get_partitions("sales", "t", catalog=KEYSPACE, limit=2)
    assert (first.names, bool(first.next_page)) == ([["d0", "0"], ["d1", "1"]], True)
    second = running.session.get_partitions("sales", "t", catalog=KEYSPACE, limit=2, page=first.next_page)
    assert second.names == [["d2", "2"], ["d3", "3"]]
    running.publish(ObjectImage("partition", 7, ("d4", "4"), "dropped"))
    with pytest.raises(Conflict) as torn:
        running.session.get_partitions("sales", "t", catalog=KEYSPACE, limit=2, page=second.next_page)
    assert torn.value.code == "page_expired"
    with pytest.raises(BadRequest):
        running.session.get_partitions("sales", "t", catalog=KEYSPACE, page="rubbish")


def test_no_page_is_gone_on_with_by_the_source(tmp_path: Path) -> None:
    """Its answer is whole, and of another moment: what came with the pages before would come once more."""
    running = Installation(tmp_path, source := HiveSource())
    running.table()
    running.objects("partition", 7, ("d0", "0"), ("d1", "1"), ("d2", "2"))
    first = running.session.get_partitions("sales", "t", catalog=KEYSPACE, limit=2)
    running.publish(ObjectSet("partition", 7, "void", reason="altered"))
    with pytest.raises(Conflict) as torn:
        running.session.get_partitions("sales", "t", catalog=KEYSPACE, limit=2, page=first.next_page)
    assert (torn.value.code, source.asked) == ("page_expired", [])


def test_a_transactional_tables_partitions_are_decided_by_its_list(tmp_path: Path) -> None:
    """Without a list 400; while a writer is open only the source could tell; after the COMMIT the cache does again."""
    running = Installation(tmp_path)
    running.table(kind="transactional", write_ids="sales.t:1:9223372036854775807::")
    running.objects("partition", 7, ("d0", "0"))
    ask: dict[str, Any] = {"catalog": KEYSPACE, "valid_write_ids": "sales.t:1:9223372036854775807::", "table_id": 7}
    with pytest.raises(BadRequest) as missing:
        running.session.get_partitions("sales", "t", catalog=KEYSPACE)
    assert missing.value.code == "missing_write_ids"
    assert running.session.get_partitions("sales", "t", **ask).count == 1
    running.publish(AllocateWriteId(7, 5, 2))
    running.table("written", "transactional", txn=5, write_id=2)
    running.publish(ObjectImage("partition", 7, ("d0", "0"), "dropped"))
    running.table("image", "transactional")
    with pytest.raises(Unavailable, match="pending"):
        running.session.get_partitions("sales", "t", **ask)
    running.publish(CommitTransaction(5, ((7, 2),)))
    ask["valid_write_ids"] = "sales.t:2:9223372036854775807::"
    assert running.session.get_partitions("sales", "t", **ask).count == 0


def test_a_managed_table_that_is_not_transactional_is_as_an_external_one(running: Installation) -> None:
    """It has no list, and its position decides. A list with write ids tells that it has been converted since."""
    found = running.session.get_partitions("sales", "t", "sales.t:0:9223372036854775807::", 7, catalog=KEYSPACE)
    assert (found.freshness, found.count) == ("fresh", 5)
    with pytest.raises(Unavailable, match="converted"):
        running.session.get_partitions("sales", "t", "sales.t:9:9223372036854775807::", 7, catalog=KEYSPACE)


def test_databases_functions_constraints_and_statistics_are_read(running: Installation) -> None:
    """Each by its path, names folded as Hive does; a function of another database is not among them."""
    running.objects("database", 0, ("sales",), ("a.b'ü",))
    running.objects("function", 0, ("sales", "f"), ("other", "g"))
    running.objects("constraints", 7, ())
    running.objects("statistics", 7, ())
    running.objects("partition_statistics", 7, ("d1", "1"))
    session = running.session
    database = session.get_databases("SALES", catalog=KEYSPACE)
    assert (database.objects, database.freshness) == ([{"name": "0"}], "eventual"), "its location changes unlogged"
    assert session.get_databases("a.b'Ü", catalog=KEYSPACE).names == [["a.b'ü"]]
    assert session.get_databases(catalog=KEYSPACE).count == 2
    assert session.get_databases("nope", catalog=KEYSPACE).count == 0
    functions = session.get_functions("Sales", catalog=KEYSPACE)
    assert (functions.names, functions.freshness) == ([["sales", "f"]], "eventual"), "an ALTER FUNCTION is not logged"
    assert session.get_functions("sales", "F", catalog=KEYSPACE).objects == [{"name": "0"}]
    assert session.get_constraints("sales", "t", catalog=KEYSPACE).objects == [{"name": "0"}]
    assert session.get_statistics("sales", "t", catalog=KEYSPACE).objects == [{"name": "0"}]
    assert session.get_statistics("sales", "t", partition=["d1", "1"], catalog=KEYSPACE).count == 1
    with pytest.raises(Unavailable):
        session.get_statistics("sales", "t", aggregate=True, catalog=KEYSPACE)


def test_what_the_cache_cannot_prove_is_read_from_the_source(tmp_path: Path) -> None:
    """Selected as the owner would, judged by the session's position; a page of the cache's is not continued there."""
    source = HiveSource()
    running = Installation(tmp_path, source)
    running.table()
    source.answer = SourceObjects(
        [("d0", "0"), ("d1", "1")], [b"{}", b'{"n":1}'], Position.parse("HiveEvent/9"), None, 7, "external", "", KEYS
    )
    found = running.session.get_partitions("sales", "t", catalog=KEYSPACE, filter="hr = 1")
    assert (found.served_from, found.freshness, found.names) == ("source", "fresh", [["d1", "1"]])
    assert source.asked == [WantedObjects("partition", "sales.t", filter="hr = 1")]
    source.answer = source.answer._replace(position=Position.parse("HiveEvent/0"))
    with pytest.raises(Unavailable) as behind:
        running.session.get_partitions("sales", "t", catalog=KEYSPACE, filter="")
    assert behind.value.code == "source_behind"
    source.answer = source.answer._replace(position=Position.parse("HiveEvent/9"))
    with pytest.raises(BadRequest):
        running.session.get_partitions("sales", "t", catalog=KEYSPACE, filter="nope = 1")


def test_a_readers_own_write_is_read_with_its_list(tmp_path: Path) -> None:
    """The source's own list has the reader's id as open. Asked with the reader's list, it counts."""
    source = HiveSource()
    running = Installation(tmp_path, source)
    running.table(kind="transactional", write_ids="sales.t:1:9223372036854775807::")
    at = Position.parse("HiveEvent/9")
    source.answer = SourceObjects([("d0",)], [b"{}"], at, None, 7, "transactional", "sales.t:2:2:2:", KEYS)
    source.own = source.answer._replace(write_ids="sales.t:2:9223372036854775807::")
    ask: dict[str, Any] = {"catalog": KEYSPACE, "valid_write_ids": "sales.t:2:9223372036854775807::", "table_id": 7}
    found = running.session.get_partitions("sales", "t", **ask)
    assert (found.served_from, found.freshness, found.names) == ("source", "fresh", [["d0"]])
    source.own = None
    with pytest.raises(Unavailable) as behind:
        running.session.get_partitions("sales", "t", **ask)
    assert behind.value.code == "source_behind"


def test_another_table_of_the_name_at_the_source(tmp_path: Path) -> None:
    """The reader's id is not the source's: its partitions are not those that were meant. No table at all is 404."""
    source = HiveSource()
    running = Installation(tmp_path, source)
    running.table()
    at = Position.parse("HiveEvent/9")
    source.answer = SourceObjects([], [], at, None, 8, "transactional", "sales.t:1:9223372036854775807::", KEYS)
    listed = "sales.t:1:9223372036854775807::"
    with pytest.raises(Conflict) as other:
        running.session.get_partitions("sales", "t", listed, 7, catalog=KEYSPACE)
    assert other.value.code == "table_id_changed"
    source.answer = SourceObjects([], [], at)
    with pytest.raises(NotFoundError) as gone:
        running.session.get_partitions("sales", "t", catalog=KEYSPACE)
    assert gone.value.code == "unknown_table"


def test_statistics_from_the_source_say_whether_they_hold(tmp_path: Path) -> None:
    """As Hive's isStatsCompliant, by the reader's own list."""
    source = HiveSource()
    running = Installation(tmp_path, source)
    running.table()
    accurate = b'{"writeId":2,"parameters":{"COLUMN_STATS_ACCURATE":"{\\"BASIC_STATS\\":\\"true\\"}"}}'
    at, listed = Position.parse("HiveEvent/9"), "sales.t:2:9223372036854775807::"
    source.answer = SourceObjects([()], [b"{}"], at, None, 7, "transactional", listed, KEYS, statistics_of=[[accurate]])
    read: Callable[..., Any] = running.session.get_statistics
    assert read("sales", "t", listed, 7, catalog=KEYSPACE).stats_compliant == [True]
    assert read("sales", "t", "sales.t:1:9223372036854775807::", 7, catalog=KEYSPACE).stats_compliant == [False]
    source.answer = source.answer._replace(statistics_of=())
    untold = read("sales", "t", listed, 7, catalog=KEYSPACE, aggregate=True).stats_compliant
    assert untold is None, "an empty list would read as one of which all hold"


@pytest.mark.parametrize("stale_if_down", [False, True])
def test_what_is_cached_is_given_while_the_source_is_down(tmp_path: Path, *, stale_if_down: bool) -> None:
    """Only where that is set, marked as stale; a set that is not whole is not given."""
    source = HiveSource()
    running = Installation(tmp_path, source, stale_if_down=stale_if_down)
    running.table(kind="transactional", write_ids="sales.t:1:9223372036854775807::")
    running.objects("partition", 7, ("d0", "0"))
    source.down = True
    ask: dict[str, Any] = {"catalog": KEYSPACE, "valid_write_ids": "sales.t:2:9223372036854775807::", "table_id": 7}
    if not stale_if_down:
        with pytest.raises(Unavailable):
            running.session.get_partitions("sales", "t", **ask)
        return
    found = running.session.get_partitions("sales", "t", **ask)
    assert (found.served_from, found.freshness, found.names) == ("cache", "stale", [["d0", "0"]])
    running.publish(ObjectSet("partition", 7, "void", reason="altered"))
    with pytest.raises(Unavailable):
        running.session.get_partitions("sales", "t", **ask)


def test_an_owner_of_before_is_not_asked_for_objects(running: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would refuse the request. Tables go on to be answered by it."""
    monkeypatch.setattr(owner_connection, "VERSION", 2)
    with pytest.raises(Unavailable, match="version 2"):
        running.session.get_partitions("sales", "t", catalog=KEYSPACE)
    assert running.session.get_table("sales", "t", catalog=KEYSPACE).served_from == "cache"


def test_a_table_is_found_by_its_id_after_a_rename(running: Installation) -> None:
    """Whatever it is called by now."""
    running.publish(BindName("sales.u", 7, "sales.t"))
    status, body = running._send(HttpRequest("GET", "/v1/table-ids/7", {"catalog": KEYSPACE}))
    assert (status, b'"served_from":"cache"' in body, b'"tableName":"t"' in body) == (200, True, True)
    status, _ = running._send(HttpRequest("GET", "/v1/table-ids/8", {"catalog": KEYSPACE}))
    assert status == 404
    status, body = running._send(HttpRequest("GET", f"/v1/table-ids/{2**64}", {"catalog": KEYSPACE}))
    assert (status, b"bad_parameter" in body) == (400, True)


@pytest.mark.parametrize(("hi", "seen"), [(None, "HiveEvent/9"), ("HiveEvent/12", "HiveEvent/12")])
def test_a_session_has_seen_what_it_got_of_objects(tmp_path: Path, hi: str | None, seen: str) -> None:
    """Of the cache the latest that the objects may hold, of the source its position, or the latest after it."""
    running = Installation(tmp_path, source := HiveSource())
    running.table()
    running.objects("partition", 7, ("d0", "0"))
    reader = Session(running._send, Vector())
    assert reader.get_partitions("sales", "t", catalog=KEYSPACE).served_from == "cache"
    assert reader.vector.get(SHARD) == (1, Position.parse(f"HiveEvent/{running.position}"))
    at, until = Position.parse("HiveEvent/9"), Position.parse(hi) if hi else None
    source.answer = SourceObjects([("f",)], [b"{}"], at, until)
    assert reader.get_functions("sales", catalog=KEYSPACE).served_from == "source"
    assert reader.vector.get(SHARD) == (1, Position.parse(seen))


def test_a_flight_of_objects_is_shared_within_one_epoch() -> None:
    """A read that is under way is not shared with a session of another epoch: it may be of another history."""

    async def story() -> None:
        source, gate = HiveSource(), asyncio.Event()
        answer = source.read_objects

        async def slow(wanted: WantedObjects, own_list: str | None = None, known: Folded = NOTHING) -> SourceObjects:
            found = await answer(wanted, own_list, known)
            await gate.wait()
            return found

        source.read_objects = slow  # type: ignore[method-assign]
        reads = ObjectReads(cast("Any", None), FrontMetrics())
        lookup = ObjectLookup(TableSpace(KEYSPACE, Layout(1), source), RequestedObjects("function"), ReadDemand(), 0.0)
        proofs = [Proof(ReadDemand(), SHARD, epoch) for epoch in (1, 1, 2)]
        tasks = [asyncio.create_task(reads._prove(lookup, source, proof, NOTHING)) for proof in proofs]
        await settle()
        assert len(source.asked) == 2
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(story())


@pytest.mark.parametrize(("image", "count"), [(None, 0), (b"{}", 1)])
def test_an_object_that_the_source_has_not_is_not_counted(image: bytes | None, count: int) -> None:
    """Its name is in the answer without an object: by the count a request for it alone is 404."""
    wanted = RequestedObjects("database", names=(("nope",),))
    found = _of_source(wanted, SourceObjects([("nope",)], [image], Position.parse("HiveEvent/5")), "hive/0", 1)
    assert (found.count, found.images) == (count, [image])
