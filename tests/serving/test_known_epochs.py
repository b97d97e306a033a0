"""Reads that no owner answers hear of a replaced history all the same, and wait for no owner to tell them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from itertools import pairwise
from typing import Any

import pytest

from consumers.owner.protocol import OwnerError, Waited
from lab.simulation.models.loop import VirtualLoop
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import RequestedRange, RequestedRow
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.owners import Owners
from serving.reads.ranges.reading import RangeReads
from serving.reads.rows import RowReads
from serving.reads.spaces import CONFIRM_EVERY_S, CONFIRM_WITHIN_S, RowSpace, TableSpace, epoch_of
from serving.reads.tables import TableReads
from stream.wire.keys import Layout, row_key
from tests.serving.fakes import AWAY, FakeOwner, FakeRowSource, Network, demand_of, owner_row, seen
from tests.serving.test_list_reads import Lists
from tests.serving.test_table_reads import external
from tokens import Vector

SHARD = "shop/0"


class Folding(FakeOwner):
    """An owner of shop.items that is never cached. It has folded ``epoch``, and says so after ``takes_s``."""

    def __init__(self, shard: str = SHARD, takes_s: float = 0.0) -> None:
        super().__init__()
        self.description.cacheable, self.description.reason = False, "engine"
        self.shard, self.takes_s, self.epoch = shard, takes_s, 1
        self.asked_at: list[float] = []

    async def wait(self, *_: object) -> Waited:
        self.asked_at.append(asyncio.get_running_loop().time())
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        return Waited(0, True, str(seen(self.shard, "0-1-50", epoch=self.epoch)))


class Busy(Folding):
    """As `Folding`, of a table that is cached, but it does not answer for rows."""

    def __init__(self, shard: str = SHARD) -> None:
        super().__init__(shard)
        self.description.cacheable = True

    async def get(self, *_: Any) -> Any:
        raise OwnerError("it answers no more for now", code="too_busy")


def row_reads(owners: Owners, _: Folding) -> Callable[[Vector], Awaitable[Any]]:
    metrics, space = FrontMetrics(), RowSpace("shop", Layout(1), source=FakeRowSource(b"{}", "0-1-120"))
    reads = RowReads(owners, Descriptions(owners), Fills(owners, metrics), metrics)

    async def read(vector: Vector) -> Any:
        [answer] = await reads.read_many(space, [RequestedRow("shop.items", b"7")], demand_of(vector))
        return answer

    return read


def range_reads(owners: Owners, _: Folding) -> Callable[[Vector], Awaitable[Any]]:
    space = RowSpace("shop", Layout(1), source=FakeRowSource(b"{}", "0-1-120"))
    reads = RangeReads(owners, Descriptions(owners), FrontMetrics())
    return lambda vector: reads.read(space, RequestedRange("shop.items", {}), demand_of(vector))


def list_reads(owners: Owners, owner: Folding) -> Callable[[Vector], Awaitable[Any]]:
    metrics, owner.shard = FrontMetrics(), "hive/0"
    reads, space = TableReads(owners, Fills(owners, metrics), metrics), TableSpace("hive", Layout(1), Lists(external()))
    return lambda vector: reads.read_lists(space, ["db.t", "db.plain"], 4, "", demand_of(vector))


@pytest.mark.parametrize(
    ("reads_of", "owner"),
    [(row_reads, Folding()), (row_reads, Busy()), (range_reads, Folding()), (list_reads, Folding())],
    ids=["row", "owner away", "range", "lists"],
)
def test_a_session_of_a_replaced_history_does_not_go_on_in_the_new_one(
    monkeypatch: pytest.MonkeyPatch, reads_of: Callable[..., Callable[[Vector], Awaitable[Any]]], owner: Folding
) -> None:
    """A position of the new one may lie past its own, and lack what it has seen: 409, once an owner has folded it."""
    loop = VirtualLoop()
    read = reads_of(Network(monkeypatch, {"a:1": owner}).owners(clock=loop.time), owner)
    session = seen(owner.shard, "0-1-4")

    async def answered() -> Any:
        try:
            return await read(session)
        except ReadError as error:
            return error

    for epoch, code in ((1, ""), (2, "history_lost")):
        owner.epoch = epoch
        reading = loop.create_task(answered())
        loop.advance(CONFIRM_EVERY_S)
        answer = reading.result()
        assert (answer.code if isinstance(answer, ReadError) else "") == code
        assert [component.epoch for _, component in Vector.parse(answer.token or "").items()] == [epoch]


def waits(loop: VirtualLoop, owners: Owners, readers: int) -> list[float]:
    """How long each of the readers waits that come in five seconds, one after the other. The front knows epoch 1."""
    space, waited = RowSpace("shop", Layout(1)), list[float]()
    space.epochs.learn(SHARD, 1)

    async def read() -> None:
        came_at = loop.time()
        assert await epoch_of(owners, space, SHARD) == 1
        waited.append(loop.time() - came_at)

    for _ in range(readers):
        loop.create_task(read())
        loop.advance(5 / readers)
    loop.advance(10)
    return waited


def test_readers_share_one_question_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on at once."""
    loop, owner = VirtualLoop(), Folding(takes_s=0.001)
    waited = waits(loop, Network(monkeypatch, {"a:1": owner}).owners(clock=loop.time), 500)
    assert len(owner.asked_at) == 5
    assert all(later - earlier >= CONFIRM_EVERY_S for earlier, later in pairwise(owner.asked_at))
    assert len([each for each in waited if each > 0]) == 5


@pytest.mark.parametrize("is_away", [True, False])
def test_an_owner_that_does_not_answer_holds_up_no_reader_for_long(
    monkeypatch: pytest.MonkeyPatch, *, is_away: bool
) -> None:
    """The known epoch is used; those who come later do not wait for the same question again."""
    loop, owner = VirtualLoop(), Folding(takes_s=0.0 if is_away else 2.5)
    owner.failure = AWAY if is_away else None
    waited = waits(loop, Network(monkeypatch, {"a:1": owner}).owners(clock=loop.time), 500)
    assert len(waited) == 500
    assert max(waited) <= (0 if is_away else CONFIRM_WITHIN_S + 1e-9)
    assert sum(each > 0 for each in waited) <= (0 if is_away else 2 * 100 * CONFIRM_WITHIN_S + 2)


class Answering(Folding):
    """As `Folding`, of a table that is cached, but it can't prove its rows: it is behind, paused, or made anew."""

    def __init__(self, *, image: bytes | None = None) -> None:
        super().__init__()
        self.description.cacheable, self.row = True, owner_row(image, "0-1-9", "0-1-9")


@pytest.mark.parametrize("image", [None, b"{}"])
def test_an_answer_of_an_owner_says_nothing_of_what_others_have_folded(
    monkeypatch: pytest.MonkeyPatch, image: bytes | None
) -> None:
    """They are asked where it was not served, so a session hears of the new history. Else nobody is asked."""
    loop, own, other = VirtualLoop(), Answering(image=image), Folding()
    other.epoch = 2
    network = Network(monkeypatch, {"a:1": own, "b:1": other})
    network.announced = {0: ["a:1"], 1: ["b:1"]}
    owners, metrics, space = network.owners(clock=loop.time), FrontMetrics(), RowSpace("shop", Layout(2))
    space.source = FakeRowSource(b"{}", "0-1-120")
    reads = RowReads(owners, Descriptions(owners), Fills(owners, metrics), metrics)
    number = next(each for each in range(20) if space.layout.partition_of(row_key("shop.items", [each])) == 0)
    wanted = [RequestedRow("shop.items", str(number).encode())]
    reading = loop.create_task(reads.read_many(space, wanted, demand_of(seen(SHARD, "0-1-4"))))
    loop.advance(CONFIRM_EVERY_S)
    [answer] = reading.result()
    assert (answer.code if isinstance(answer, ReadError) else "") == ("history_lost" if image is None else "")
    assert (len(own.asked_at), len(other.asked_at)) == ((1, 1) if image is None else (0, 0))


class Partitioned(Folding):
    """An owner of partitions, of which those in ``ahead`` have folded epoch 2, and ``left`` is no longer its own."""

    def __init__(self, ahead: Collection[int] = (), *, left: int = -1, takes_s: float = 0.0) -> None:
        super().__init__(takes_s=takes_s)
        self.ahead, self.left = ahead, left

    async def wait(self, *args: object) -> Waited:
        _, partition, *_ = args
        self.epoch = 2 if partition in self.ahead else 1
        self.failure = OwnerError("another has it", code="not_owner") if partition == self.left else None
        return await super().wait(*args)


@pytest.mark.parametrize("ahead", range(1, 8))
@pytest.mark.parametrize("is_hanging", [True, False])
def test_the_first_question_hears_of_an_epoch_that_one_partition_has_folded(
    monkeypatch: pytest.MonkeyPatch, ahead: int, *, is_hanging: bool
) -> None:
    """Whichever it is, and whatever others of its owner say, or another owner that does not answer."""
    loop, owners_of = VirtualLoop(), {"a:1": Partitioned(takes_s=60 if is_hanging else 0), "b:1": Partitioned([ahead])}
    network = Network(monkeypatch, owners_of)
    network.announced = {partition: ["b:1" if partition else "a:1"] for partition in range(8)}
    owners_of["b:1"].left = 1 if ahead > 1 else 2
    owners, space = network.owners(clock=loop.time), RowSpace("shop", Layout(8))
    space.epochs.learn(SHARD, 1)
    reading = loop.create_task(epoch_of(owners, space, SHARD))
    loop.advance(CONFIRM_WITHIN_S)
    assert reading.result() == 2
    assert [len(owner.asked_at) for owner in owners_of.values()] == [1, 7]
