"""The token of a 409 `history_lost`: what a session wrote in the new history, before it was told, is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from consumers.fold.catalog_state import EXTERNAL
from consumers.owner.protocol import HISTORY_LOST, OwnerObjects, Waited
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.objects import ObjectReads, RequestedObjects
from serving.reads.proof import lost_at_the_source
from serving.reads.spaces import TableSpace
from serving.sources.source import NOTHING, Folded, SourceObjects, SourceTable, WantedObjects
from stream.wire.keys import Layout
from tests.serving import test_ranges, test_row_reads, test_table_reads
from tests.serving.fakes import FakeOwner, FakeRowSource, FakeTableSource, at, demand_of, owner_row, owner_table, seen
from tokens import Position, Vector

FOLDED = "0-2-89"
"""Where the cache is in the new history. The session has seen 0-1-100 of the one before, and has written 0-2-90."""


def row(monkeypatch: pytest.MonkeyPatch, gtid: str | None) -> object:
    """A row's."""
    owner = FakeOwner()
    owner.row = owner_row(None, FOLDED, FOLDED, epoch=2)
    owner.row.code, owner.row.watermark = HISTORY_LOST, str(at(FOLDED))
    reads = test_row_reads.Reads(monkeypatch, owner)
    return asyncio.run(reads.answer(test_row_reads.space_of(source_of(gtid)), seen("shop/0", "0-1-100")))


class Down(FakeRowSource):
    """A source that does not answer."""

    async def read(self, *_: object) -> list[Any]:
        raise ReadError("source_unreachable", "it is down")

    async def read_range(self, *_: object) -> Any:
        raise ReadError("source_unreachable", "it is down")


def source_of(gtid: str | None) -> FakeRowSource:
    """A source that is there; None: that does not answer."""
    return Down(None, FOLDED) if gtid is None else FakeRowSource(b'{"id":7}', gtid)


def rows_of_a_range(_: pytest.MonkeyPatch, gtid: str | None) -> object:
    """A range's."""
    lost = test_ranges.part(hi=5, watermark=9, served=False, code=HISTORY_LOST, epoch=2)
    lost.watermark = str(at(FOLDED))
    with pytest.raises(ReadError) as refused:
        test_ranges.read(test_ranges.Partitions([lost]), source_of(gtid))
    return refused.value


def table(monkeypatch: pytest.MonkeyPatch, gtid: str | None) -> object:
    """A catalog table's."""
    owner = FakeOwner()
    owner.table = owner_table(None, epoch=2)
    owner.table.code, owner.table.watermark = HISTORY_LOST, str(at(FOLDED))
    source = Tables(SourceTable(7, EXTERNAL, b"{}", "", at(gtid or FOLDED)), gtid is None)
    return asyncio.run(test_table_reads.Reads(monkeypatch, owner).answer(source, vector=seen("hive/0", "0-1-100")))


class Tables(FakeTableSource):
    """A catalog's source of tables and objects."""

    def __init__(self, shared: SourceTable, is_down: bool) -> None:
        super().__init__(shared)
        self.position, self.is_down = shared.position, is_down

    async def read(self, name: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:
        if self.is_down:
            raise ReadError("source_unreachable", "it is down")
        return await super().read(name, own_list, known)

    async def read_objects(self, *_: WantedObjects, **__: object) -> SourceObjects:
        if self.is_down:
            raise ReadError("source_unreachable", "it is down")
        return SourceObjects([], [], self.position)


class ObjectOwners:
    """Owners that call the history lost."""

    async def ask_any(self, *_: object) -> OwnerObjects:
        """Their answer."""
        places = ("hive/0", 2, "", "", str(at(FOLDED)))
        return OwnerObjects(0, 0, 0, "unknown", "why", False, True, *places, [], [], code=HISTORY_LOST)

    async def read(self, *_: object) -> Waited:
        """Nothing beyond it."""
        return Waited(0, True, "")

    def address_of(self, *_: object) -> str:
        """Of the only one."""
        return "a:1"


def objects(_: pytest.MonkeyPatch, gtid: str | None) -> object:
    """Those of a catalog's objects."""
    source = Tables(SourceTable(7, EXTERNAL, b"{}", "", at(gtid or FOLDED)), gtid is None)
    space = TableSpace("hive", Layout(1), source)
    space.epochs.learn("hive/0", 2)
    reads = ObjectReads(cast("Any", ObjectOwners()), FrontMetrics())
    wanted = RequestedObjects("database")
    with pytest.raises(ReadError) as refused:
        asyncio.run(reads.read(space, wanted, demand_of(seen("hive/0", "0-1-100"))))
    return refused.value


@pytest.mark.parametrize("ask", [row, rows_of_a_range, table, objects])
@pytest.mark.parametrize(("gtid", "told"), [("0-2-95", "0-2-95"), ("0-2-80", FOLDED), (None, FOLDED)])
def test_the_token_is_where_the_cache_is_and_where_the_source_is(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[pytest.MonkeyPatch, str | None], object],
    gtid: str | None,
    told: str,
) -> None:
    """Where the cache is may be before the session's own write; a source that does not answer adds nothing."""
    error = ask(monkeypatch, gtid)
    assert isinstance(error, ReadError)
    assert error.code == "history_lost"
    [(_, component)] = Vector.parse(error.token or "").items()
    assert component == (2, at(told))


def test_a_source_of_another_kind_adds_nothing() -> None:
    """Its place can't be joined with the cache's."""
    lost = ReadError("history_lost", "why", token=str(seen("shop/0", FOLDED)))
    mysql = Position.parse("MySQL56/3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9")
    other = ReadError("history_lost", "why", token=str(Vector({"shop/0": (1, mysql)})))
    assert lost_at_the_source(lost, other) is lost
