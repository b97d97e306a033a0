"""Lists for a transaction that begins: always from the source, and judged as any other answer of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from serving.client.answers import ListsAnswer, TableList
from serving.errors import ReadError
from serving.reads import tables
from serving.reads.spaces import TableSpace
from serving.sources.source import ListedTable, SourceLists
from stream.wire.keys import Layout
from tests.serving.fakes import FakeOwner, FakeTableSource, at, demand_of, seen
from tests.serving.test_table_reads import SHARD, Reads, external

LISTED = [ListedTable("db.t", 7, "db.t:5:9223372036854775807::"), ListedTable("db.plain", 8, "")]


class Lists(FakeTableSource):
    """Lists two tables, at a position. ``hangs``: it does not answer."""

    hangs = False

    async def read_lists(self, names: Sequence[str], txn: int = 0, txns: str = "") -> SourceLists:
        assert (list(names), txn, txns) == (["db.t", "db.plain"], 4, "")
        if self.hangs:
            await asyncio.Event().wait()
        return SourceLists("4:4:4:", LISTED, at("0-1-5"))


async def lists(monkeypatch: pytest.MonkeyPatch, source: FakeTableSource, gtid: str) -> ListsAnswer:
    """For transaction 4 of a session that has seen a position."""
    reads = Reads(monkeypatch, FakeOwner(watermarks=seen(SHARD, "0-1-1")))
    space = TableSpace("hive", Layout(1), source)
    return await reads._reads.read_lists(space, ["db.t", "db.plain"], 4, "", demand_of(seen(SHARD, gtid)))


def test_a_transaction_gets_lists_that_hold_what_its_session_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads by them is no older; its session goes on from there."""
    found = asyncio.run(lists(monkeypatch, Lists(external()), "0-1-4"))
    assert (found.served_from, found.freshness, found.txns) == ("source", "fresh", "4:4:4:")
    assert found.tables == [TableList("db.t", 7, LISTED[0].write_ids), TableList("db.plain", 8, None)]
    assert found.token == str(seen(SHARD, "0-1-5"))


def test_a_source_behind_a_session_begins_no_transaction_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction would not see what its session has written, in any of its reads."""
    with pytest.raises(ReadError) as refused:
        asyncio.run(lists(monkeypatch, Lists(external()), "0-1-6"))
    assert refused.value.code == "source_behind"


@pytest.mark.parametrize("kind", [FakeTableSource, Lists])
def test_a_source_that_does_not_list_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, kind: type[FakeTableSource]
) -> None:
    """It can't, or does not answer in time."""
    monkeypatch.setattr(tables, "SOURCE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(Lists, "hangs", True)
    with pytest.raises(ReadError) as refused:
        asyncio.run(lists(monkeypatch, kind(external()), "0-1-4"))
    assert refused.value.code == "source_unreachable"
