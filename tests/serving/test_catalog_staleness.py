"""Bounded staleness of a catalog at the front: what an owner, an older one and a metastore prove of a time."""

from __future__ import annotations

import asyncio
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.owner.protocol import OwnerError
from serving.client import BadRequest, Conflict, Unavailable
from serving.errors import ReadError
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.spaces import TableSpace
from serving.sources import hive
from serving.sources.hive import HiveTables
from serving.sources.source import SourceObjects, SourceTable, WantedObjects
from stream.sources.hive.live.metastore import MetastoreSettings
from stream.wire.keys import Layout
from tests.consumers.owning import KEYSPACE
from tests.serving.fakes import FakeOwner, FakeTableSource, at, owner_table
from tests.serving.test_object_reads import HiveSource, Installation
from tests.serving.test_table_reads import IMAGE, Reads, external
from tokens import Position

NOON = 1_700_000_000_000
WANTED = RequestedTable("hive", "db", "t")


def answer(monkeypatch: pytest.MonkeyPatch, owner: FakeOwner, as_of_ms: int, gtid: str = "0-1-5") -> Any:
    """What a request gets that demands noon, of a source whose read began at ``as_of_ms``."""
    source = FakeTableSource(external(gtid)._replace(as_of_ms=as_of_ms))
    space = TableSpace("hive", Layout(1), source)
    return asyncio.run(Reads(monkeypatch, owner).read(space, WANTED, ReadDemand(not_before_ms=NOON)))


def test_a_metastore_proves_the_time_at_which_its_read_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token; also that there is no such table."""
    found = answer(monkeypatch, FakeOwner(), NOON)
    assert (found.served_from, found.freshness) == ("source", "fresh")
    for as_of_ms in (NOON - 1, 0):
        found = answer(monkeypatch, FakeOwner(), as_of_ms)
        assert isinstance(found, ReadError)
        assert found.code == "source_behind"


def test_an_owner_that_knows_no_times_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an older version calls its answer fresh without having seen the demanded time."""
    owner = FakeOwner()
    owner.table = owner_table(b"{}")
    found = answer(monkeypatch, owner, NOON)
    assert (found.served_from, bytes(found.value)) == ("source", IMAGE)
    owner.table = owner_table(b"{}")
    owner.table.as_of_ms = NOON
    assert answer(monkeypatch, owner, 0).served_from == "cache"


@pytest.mark.parametrize(("gtid", "is_proved"), [("0-1-8", False), ("0-1-9", True)])
@pytest.mark.parametrize("as_of_ms", [NOON, NOON - 1, 0])
def test_a_metastore_that_is_behind_an_owner_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, as_of_ms: int, gtid: str, is_proved: bool
) -> None:
    """As one over a replica of the database, whatever the time of the owner's marker: it lacks what is committed."""
    owner = FakeOwner()
    owner.table.watermark, owner.table.as_of_ms = str(at("0-1-9")), as_of_ms
    assert isinstance(answer(monkeypatch, owner, NOON + 5, gtid), ReadError) is not is_proved
    owner.table.watermark, owner.table.lo, owner.table.as_of_ms = "", str(at("0-1-9")), 0
    assert isinstance(answer(monkeypatch, owner, NOON + 5, gtid), ReadError) is not is_proved


def test_what_changes_without_an_event_is_the_metastores_if_a_time_is_demanded(tmp_path: Path) -> None:
    """A database's location may be another one since: no marker tells. The metastore can."""
    source = HiveSource()
    running = Installation(tmp_path, source)
    running.clock_ms = int(time.time() * 1000)
    running.objects("database", 0, ("sales",))
    position = Position.parse(f"HiveEvent/{running.position}")
    source.answer = SourceObjects([("sales",)], [b"{}"], position, as_of_ms=2**62)
    found = running.session.get_databases("sales", catalog=KEYSPACE)
    assert (found.served_from, found.freshness) == ("cache", "eventual")
    found = running.session.get_databases("sales", catalog=KEYSPACE, max_staleness_ms=600_000)
    assert (found.served_from, found.freshness) == ("source", "fresh")


def test_a_front_whose_owners_are_away_asks_the_metastore(monkeypatch: pytest.MonkeyPatch) -> None:
    """No epoch is known then, and the time is proved all the same."""
    away = FakeOwner(failure=OwnerError("nobody", code="not_owner"))
    assert answer(monkeypatch, away, NOON).served_from == "source"
    assert isinstance(answer(monkeypatch, away, NOON - 1), ReadError)


def test_a_metastore_is_read_after_the_time_that_its_answer_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is of before the first call, by the front's clock: what is committed meanwhile need not be in it."""
    began: list[float] = []

    def read_objects(*_: object, **__: object) -> SourceObjects:
        began.append(time.time())
        return SourceObjects([], [], Position.parse("HiveEvent/1"))

    def read_table(*_: object, **__: object) -> SourceTable:
        began.append(time.time())
        return external()

    monkeypatch.setattr(hive, "read_objects", read_objects)
    monkeypatch.setattr(hive, "read_table", read_table)
    tables = HiveTables(MetastoreSettings((("127.0.0.1", 1),)), "hive/0")

    async def main() -> None:
        before = int(time.time() * 1000)
        table, objects = await tables.read("d.t"), await tables.read_objects(WantedObjects("database"))
        told = table.as_of_ms, objects.as_of_ms
        assert all(before <= each <= 1000 * at_s for each, at_s in zip(told, began, strict=True))
        await tables.close()

    asyncio.run(main())


def test_objects_that_nobody_proves_by_the_clock_are_the_sources(tmp_path: Path) -> None:
    """Every kind of read says the time to the owner; markers without a clock prove none."""
    source = HiveSource()
    running = Installation(tmp_path, source)
    running.table()
    running.objects("partition", 7, ("d0", "0"))
    source.answer = SourceObjects(
        [("d0", "0")],
        [b"{}"],
        Position.parse(f"HiveEvent/{running.position}"),
        table_id=7,
        table_kind="external",
        table_image=b"{}",
        as_of_ms=2**62,
    )
    read = running.session.get_partitions
    assert read("sales", "t", catalog=KEYSPACE).served_from == "cache"
    found = read("sales", "t", catalog=KEYSPACE, max_staleness_ms=60_000)
    assert (found.served_from, found.freshness) == ("source", "fresh")
    source.answer = source.answer._replace(as_of_ms=0)
    with pytest.raises(Unavailable):
        read("sales", "t", catalog=KEYSPACE, max_staleness_ms=60_000, max_wait_ms=0)
    running.clock_ms = int(time.time() * 1000)
    running.publish()
    found = read("sales", "t", catalog=KEYSPACE, max_staleness_ms=600_000)
    assert (found.served_from, found.freshness) == ("cache", "fresh")


PROVED_MS, LATER_MS = 600_000, 60_000
"""What the cache of `pages_of` proves, and what it would have to prove some minutes later to a request like it."""


def pages_of(directory: Path) -> Any:
    """A call that reads pages of two of five partitions, of which the cache knows all as of five minutes ago."""
    running = Installation(directory, HiveSource())
    running.table()
    running.objects("partition", 7, *((f"d{n}", str(n)) for n in range(5)))
    running.clock_ms = int(time.time() * 1000) - 300_000
    running.publish()

    def read(staleness_ms: int | None, page: str = "") -> Any:
        options: dict[str, Any] = {"page": page, "max_staleness_ms": staleness_ms, "max_wait_ms": 0}
        return running.session.get_partitions("sales", "t", catalog=KEYSPACE, limit=2, **options)

    return read


def test_later_pages_are_as_new_as_the_first_one_had_to_be(tmp_path: Path) -> None:
    """They are of one version, so its proof holds for all: the list fails only where something changed."""
    read = pages_of(tmp_path)
    pages = [read(PROVED_MS)]
    for _ in range(2):
        pages.append(read(LATER_MS, pages[-1].next_page))
    assert [len(each.names) for each in pages] == [2, 2, 1]
    assert {(each.served_from, each.freshness) for each in pages} == {("cache", "fresh")}


def test_a_page_that_was_read_without_a_time_proves_none(tmp_path: Path) -> None:
    """So the next one has to prove what its own request demands."""
    read = pages_of(tmp_path)
    pages = [read(None).next_page, read(None, read(PROVED_MS).next_page).next_page]
    for page in pages:
        assert read(PROVED_MS, page).served_from == "cache"
        with pytest.raises(Conflict) as torn:
            read(LATER_MS, page)
        assert torn.value.code == "page_expired"


def test_a_page_that_demands_all_by_now_has_to_prove_it(tmp_path: Path) -> None:
    """As a session demands it that doubts whether it has committed something since the first page."""
    read = pages_of(tmp_path)
    with pytest.raises(Conflict) as torn:
        read(0, read(PROVED_MS).next_page)
    assert torn.value.code == "page_expired"


@pytest.mark.parametrize("proved", [[-1], [None], ["1"], [1.5], [True], [1, 1]])
def test_a_page_of_no_time_is_refused(tmp_path: Path, proved: list[Any]) -> None:
    """Before an owner is asked for it."""
    text = msgspec.json.encode(["1.1", '["d1","1"]', *proved])
    with pytest.raises(BadRequest):
        pages_of(tmp_path)(PROVED_MS, urlsafe_b64encode(text).decode().rstrip("="))


def test_a_page_demands_no_later_time_than_its_request(tmp_path: Path) -> None:
    """Whatever time is in it."""
    read = pages_of(tmp_path)
    version, after = msgspec.json.decode(urlsafe_b64decode(read(None).next_page + "=="))
    text = msgspec.json.encode([version, after, 2**70])
    assert read(PROVED_MS, urlsafe_b64encode(text).decode().rstrip("=")).names == [["d2", "2"], ["d3", "3"]]
