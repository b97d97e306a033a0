"""Bounded staleness at the front: what a source's answer proves of a time, and an owner that knows nothing of times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from serving.answers import RawRowAnswer
from serving.errors import ReadError
from serving.http.limits import RequestLimits
from serving.http.query import demand_of
from serving.metrics import FrontMetrics
from serving.reads.demands import NO_OPTIONS, ReadDemand, RequestedRow
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace
from serving.sources.source import SourceKey, SourceRange
from stream.wire.keys import Layout
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, at, owner_row, seen
from tests.serving.test_ranges import Partitions, part
from tests.serving.test_ranges import read as read_range_of

IMAGE = b'{"id":7}'
NOON = 1_700_000_000_000


class TimedSource(FakeRowSource):
    """Its rows hold what was committed until ``as_of_ms``; 0: a replica. A wait brings it to ``ahead``."""

    def __init__(self, position: str, as_of_ms: int, ahead: str = "") -> None:
        super().__init__(IMAGE, position)
        self.as_of_ms, self.ahead = as_of_ms, ahead
        self.waited_for: object = None

    async def read(self, wanted: Sequence[SourceKey]) -> list[Any]:
        as_of_ms = self.as_of_ms
        return [row._replace(as_of_ms=as_of_ms) for row in await super().read(wanted)]

    async def wait(self, *wanted: object) -> bool:
        self.waited_for = wanted[0]
        if self.ahead:
            self.position = self.hi = at(self.ahead)
        return bool(self.ahead)


def reads_of(monkeypatch: pytest.MonkeyPatch, owner: FakeOwner) -> RowReads:
    owners, metrics = Network(monkeypatch, {"a:1": owner}).owners(), FrontMetrics()
    return RowReads(owners, Descriptions(owners), Fills(owners, metrics), metrics)


async def read(reads: RowReads, source: FakeRowSource, demand: ReadDemand) -> RawRowAnswer | ReadError:
    space = RowSpace("shop", Layout(1), source=source)
    [answer] = await reads.read_many(space, [RequestedRow("shop.items", b"7")], demand, NO_OPTIONS)
    return answer


def answer_of(
    monkeypatch: pytest.MonkeyPatch, source: FakeRowSource, owner: FakeOwner, demand: ReadDemand
) -> RawRowAnswer | ReadError:
    return asyncio.run(read(reads_of(monkeypatch, owner), source, demand))


def test_a_staleness_is_counted_back_from_the_request() -> None:
    """Also 0, and one from before 1970; what is not given demands nothing."""
    limits = RequestLimits()
    asked = [demand_of("", None, limits, staleness, NOON).not_before_ms for staleness in (None, 0, 500, NOON + 1)]
    assert asked == [0, NOON, NOON - 500, 0]
    assert demand_of(str(seen("shop/0", "0-1-5")), None, limits, 500, NOON).not_before_ms == NOON - 500


@pytest.mark.parametrize(("asked", "waits"), [(None, 70), (0, 0), (60, 60), (10**6, 900)])
def test_a_request_that_says_no_wait_has_the_fronts(asked: int | None, waits: int) -> None:
    """A wait of 0 is a wait that was said, and the limit holds for all."""
    limits = RequestLimits(wait_ms_max=900, wait_ms_default=70)
    for token in ("", str(seen("shop/0", "0-1-5"))):
        assert demand_of(token, asked, limits).max_wait_ms == waits
    assert demand_of("", None, RequestLimits(wait_ms_max=5, wait_ms_default=70)).max_wait_ms == 5


def test_a_primary_proves_the_time_at_which_its_read_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is fresh without a token; a read that began before the demanded time is not used."""
    for as_of_ms, is_proved in ((NOON, True), (NOON - 1, False)):
        found = answer_of(monkeypatch, TimedSource("0-1-5", as_of_ms), FakeOwner(), ReadDemand(not_before_ms=NOON))
        if is_proved:
            assert not isinstance(found, ReadError)
            assert (found.served_from, found.freshness) == ("source", "fresh")
        else:
            assert isinstance(found, ReadError)
            assert found.code == "source_behind"


@pytest.mark.parametrize(
    ("position", "ahead", "as_of_ms", "is_proved"),
    [
        ("0-1-9", "", NOON, True),
        ("0-1-8", "", NOON, False),
        ("0-1-8", "0-1-9", NOON, True),
        ("0-1-9", "", NOON - 1, False),
    ],
)
def test_a_replica_proves_a_time_by_an_owners_marker(
    monkeypatch: pytest.MonkeyPatch, position: str, ahead: str, as_of_ms: int, is_proved: bool
) -> None:
    """Where the owner knows a position of that time, the replica must have reached it, and is waited for."""
    owner = FakeOwner()
    owner.row.watermark, owner.row.as_of_ms = str(at("0-1-9")), as_of_ms
    found = answer_of(monkeypatch, TimedSource(position, 0, ahead), owner, ReadDemand(not_before_ms=NOON))
    assert isinstance(found, ReadError) is not is_proved


def test_a_replica_is_waited_for_until_it_proves_token_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later of both positions is waited for, whichever it is."""
    for token, marked in (("0-1-7", "0-1-9"), ("0-1-9", "0-1-7")):
        owner, source = FakeOwner(), TimedSource("0-1-8", 0, "0-1-9")
        owner.row.watermark, owner.row.as_of_ms = str(at(marked)), NOON
        demand = ReadDemand(seen("shop/0", token), given=True, not_before_ms=NOON)
        assert not isinstance(answer_of(monkeypatch, source, owner, demand), ReadError)
        assert source.waited_for == at("0-1-9")


def test_the_time_of_another_epoch_or_shard_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of a replaced history, or of another shard, are no positions of the source."""
    for shard, epoch in (("shop/1", 1), ("shop/0", 0)):
        owner = FakeOwner()
        owner.row = owner_row(None, "0-1-1", "0-1-1", shard=shard, epoch=epoch)
        owner.row.watermark, owner.row.as_of_ms = str(at("0-1-4")), NOON
        demand = ReadDemand(seen("shop/0", "0-1-4"), given=True, not_before_ms=NOON)
        assert isinstance(answer_of(monkeypatch, TimedSource("0-1-5", 0), owner, demand), ReadError)


def test_an_owner_that_knows_no_times_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an older version calls its answer eventual or fresh without having seen the demanded time."""
    owner = FakeOwner()
    owner.row = owner_row(b'{"id":0}', "0-1-5", "0-1-5")
    found = answer_of(monkeypatch, TimedSource("0-1-6", NOON), owner, ReadDemand(not_before_ms=NOON))
    assert not isinstance(found, ReadError)
    assert (found.served_from, bytes(found.value)) == ("source", IMAGE)
    assert "older" in found.why


def test_a_read_that_began_too_early_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joined read must have begun after the demanded time; else the source is read again."""

    async def main() -> tuple[int, str]:
        reads, source = reads_of(monkeypatch, FakeOwner()), TimedSource("0-1-5", NOON)
        source.gate.clear()
        first = asyncio.create_task(read(reads, source, ReadDemand(not_before_ms=NOON)))
        while not source.reads:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        source.as_of_ms = NOON + 2
        second = asyncio.create_task(read(reads, source, ReadDemand(not_before_ms=NOON + 1)))
        for _ in range(20):
            await asyncio.sleep(0)
        source.gate.set()
        answers = [await first, await second]
        assert not any(isinstance(answer, ReadError) for answer in answers)
        return source.reads, str(answers)

    assert asyncio.run(main())[0] == 2


@pytest.mark.parametrize(
    ("watermark", "as_of_ms"), [("0-1-9", NOON), ("0-1-9", NOON - 1), ("", 0)], ids=["marked", "earlier", "unmarked"]
)
def test_a_server_that_is_behind_an_owner_is_no_primary(
    monkeypatch: pytest.MonkeyPatch, watermark: str, as_of_ms: int
) -> None:
    """Whatever it says, and whatever time the owner's position is of: after a failover it may not know that it is one
    no more. An entry that no marker follows yet counts, too."""
    owner, source = FakeOwner(), TimedSource("0-1-8", NOON, "0-1-9")
    owner.row = owner_row(None, "0-1-9", "0-1-9")
    owner.row.watermark, owner.row.as_of_ms = str(at(watermark)) if watermark else "", as_of_ms
    found = answer_of(monkeypatch, source, owner, ReadDemand(not_before_ms=NOON))
    assert not isinstance(found, ReadError)
    assert source.waited_for == at("0-1-9")
    found = answer_of(monkeypatch, TimedSource("0-1-8", NOON), owner, ReadDemand(not_before_ms=NOON))
    assert isinstance(found, ReadError)
    assert found.code == "source_behind"


@pytest.mark.parametrize(("position", "is_proved"), [("0-1-8", False), ("0-1-9", True)])
@pytest.mark.parametrize("why", ["unproved", "apart"])
def test_a_server_that_is_behind_an_owners_part_of_a_range_is_no_primary(
    monkeypatch: pytest.MonkeyPatch, why: str, position: str, is_proved: bool
) -> None:
    """Also where each partition proves its own part, and they do not come to one position."""

    async def read_range(self: FakeRowSource, *_: object) -> SourceRange:
        return SourceRange([], 0, False, self.position, self.hi, as_of_ms=NOON)

    monkeypatch.setattr(FakeRowSource, "read_range", read_range)
    monkeypatch.setattr("tests.serving.test_ranges.demand_of", lambda _: ReadDemand(not_before_ms=NOON))
    early: dict[str, Any] = {"served": why == "apart", "as_of_ms": NOON - 1}
    partitions = Partitions([part(1, hi=9, watermark=9)], [part(2, hi=3, watermark=8, **early)])
    source = FakeRowSource(None, position)
    if is_proved:
        assert read_range_of(partitions, source, wait_ms=20).freshness == "fresh"
    else:
        with pytest.raises(ReadError) as refused:
            read_range_of(partitions, source, wait_ms=20)
        assert refused.value.code == "source_behind"


@pytest.mark.parametrize(("as_of_ms", "is_answered"), [(NOON, True), (0, False)])
def test_a_time_is_proved_or_refused_before_any_epoch_is_known(
    monkeypatch: pytest.MonkeyPatch, as_of_ms: int, is_answered: bool
) -> None:
    """A front whose owners have folded nothing yet answers by a primary's clock, and by no replica's."""
    owner = FakeOwner()
    owner.row = owner_row(None, "0-1-1", "0-1-1", shard="", epoch=0)
    found = answer_of(monkeypatch, TimedSource("0-1-5", as_of_ms), owner, ReadDemand(not_before_ms=NOON))
    assert isinstance(found, ReadError) is not is_answered
    if isinstance(found, ReadError):
        assert found.code == "source_behind"
