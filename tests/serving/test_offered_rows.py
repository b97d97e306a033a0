"""What a front offers to the owner of a row, and when it asks to be the one who does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from consumers.owner.protocol import OwnerRow
from serving.client.answers import RowAnswer
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand, RequestedRow
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace
from serving.sources.source import SourceKey
from stream.wire.keys import Layout, row_key
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, at, seen
from tests.serving.test_flight import settle


class Leasing(FakeOwner):
    """Keeps who would hold a lease; "": nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: list[object] = []

    async def get(self, _: str, __: int, keys: list[bytes], *asked: object) -> list[OwnerRow]:
        self.holders.append(asked[4])
        return await super().get(_, __, keys, *asked)


def reads_of(monkeypatch: pytest.MonkeyPatch, owner: FakeOwner) -> RowReads:
    """The reads of a front over one owner."""
    owners, metrics = Network(monkeypatch, {"a:1": owner}).owners(), FrontMetrics()
    return RowReads(owners, Descriptions(owners), Fills(owners, metrics), metrics)


@pytest.mark.parametrize("has_source", [True, False])
def test_only_a_front_that_can_fill_takes_a_lease(monkeypatch: pytest.MonkeyPatch, has_source: bool) -> None:
    """Others wait for the fill of who has one: without a source none would ever come."""
    owner = Leasing()
    reads = reads_of(monkeypatch, owner)
    space = RowSpace("shop", Layout(1), source=FakeRowSource(b"{}", "0-1-5") if has_source else None)

    async def story() -> None:
        for _ in range(2):
            await reads.read_many(space, [RequestedRow("shop.items", b"7")], ReadDemand())

    asyncio.run(story())
    first, second = owner.holders
    assert first == second
    assert bool(first) is has_source


class Losing(FakeRowSource):
    """A source that may lose in a crash what is beyond a position."""

    async def read(self, wanted: Sequence[SourceKey]) -> list[Any]:
        return [row._replace(kept=at("0-1-3")) for row in await super().read(wanted)]


def test_a_row_is_offered_as_of_what_its_source_does_not_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache would else hold, and prove, what the source has not after a crash. Its reader is told all the same."""
    owner = FakeOwner()
    reads = reads_of(monkeypatch, owner)
    space = RowSpace("shop", Layout(1), source=Losing(b'{"id":7}', "0-1-5"))

    async def story() -> str:
        [answer] = await reads.read_many(space, [RequestedRow("shop.items", b"7")], ReadDemand())
        await settle()
        assert not isinstance(answer, ReadError)
        return answer.token

    assert asyncio.run(story()) == str(seen("shop/0", "0-1-5"))
    [fill] = owner.fills
    assert (fill.lo, fill.hi) == (str(at("0-1-3")), str(at("0-1-5")))


class Spelling(FakeRowSource):
    """A source whose server finds the row of another spelling of the key."""

    async def read(self, wanted: Sequence[SourceKey]) -> list[Any]:
        return [row._replace(key=row_key("shop.items", [8])) for row in await super().read(wanted)]


def test_a_row_of_another_spelling_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event names it by the key that was asked for: it would stay there as it is, and count as fresh."""
    owner = FakeOwner()
    reads = reads_of(monkeypatch, owner)
    space = RowSpace("shop", Layout(1), source=Spelling(b'{"id":8}', "0-1-5"))

    async def story() -> None:
        [answer] = await reads.read_many(space, [RequestedRow("shop.items", b"7")], ReadDemand())
        await settle()
        assert isinstance(answer, RowAnswer)
        assert answer.found

    asyncio.run(story())
    assert not owner.fills
