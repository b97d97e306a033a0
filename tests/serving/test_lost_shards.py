"""Demands that name a shard which nobody knows, or an ancestor's lost epoch: what the front answers in the end."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from consumers.fold.shards import Kin
from consumers.owner.protocol import ShardKin, Waited
from serving.answers import RawRangeAnswer, RawRowAnswer
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand, RequestedRow
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.proof import history_lost_error
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace
from stream.wire.keys import Layout
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, at, owner_row, seen
from tests.serving.test_ranges import Partitions, part
from tests.serving.test_ranges import read as read_range
from tokens import Vector

SHARD = "shop/0"
IMAGE = b'{"id":7}'


class KnowingOwner(FakeOwner):
    """An owner that names the keyspace's shards after ``silent`` questions."""

    def __init__(self, kin: Kin, silent: int = 0) -> None:
        super().__init__(watermarks=seen(SHARD, "0-1-1"))
        self.kin, self.silent = kin, silent

    async def wait(self, *_: object) -> Waited:
        self._ask("wait")
        self.silent -= 1
        return Waited(0, True, self.watermarks, [ShardKin(SHARD, 1, self.kin)] if self.silent < 0 else [])


async def read(
    monkeypatch: pytest.MonkeyPatch, owner: FakeOwner, vector: Vector, max_wait_ms: int = 0
) -> RawRowAnswer | ReadError:
    """Row 7 of a keyspace whose source has reached 0-1-9."""
    owners, metrics = Network(monkeypatch, {"a:1": owner}).owners(), FrontMetrics()
    reads = RowReads(owners, Descriptions(owners), Fills(owners, metrics), metrics)
    space = RowSpace("shop", Layout(1), source=FakeRowSource(IMAGE, "0-1-9"))
    [answer] = await reads.read_many(space, [RequestedRow("shop.items", b"7")], ReadDemand(vector, True, max_wait_ms))
    return answer


def both(shard: str) -> Vector:
    return seen(SHARD, "0-1-5").merge(seen(shard, "0-1-3"))


@pytest.mark.parametrize("max_wait_ms", [0, 120])
def test_a_shard_that_nobody_knows_leaves_the_token_after_the_wait(
    monkeypatch: pytest.MonkeyPatch, max_wait_ms: int
) -> None:
    """No owner will ever prove it, so the session must not miss for ever: 409, and a token without it."""
    began = monotonic()
    owner = KnowingOwner(Kin(frozenset({SHARD})))
    answer = asyncio.run(read(monkeypatch, owner, both("shop/renamed"), max_wait_ms))
    assert isinstance(answer, ReadError)
    assert (answer.code, answer.token) == ("history_lost", str(seen(SHARD, "0-1-5")))
    assert "shop/renamed" in str(answer)
    assert max_wait_ms / 1000 <= monotonic() - began < 5


def test_a_shard_that_an_owner_names_meanwhile_is_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topology may be on its way: the front asks until the time is up."""
    owner = KnowingOwner(Kin(frozenset({SHARD, "shop/1"})), silent=3)
    answer = asyncio.run(read(monkeypatch, owner, both("shop/1"), 5_000))
    assert not isinstance(answer, ReadError), answer
    assert (answer.served_from, answer.freshness, answer.token) == (
        "source",
        "fresh",
        str(both("shop/1").merge(seen(SHARD, "0-1-9"))),
    )


def test_shards_of_other_keyspaces_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session over several keyspaces reads each of them."""
    owner = KnowingOwner(Kin(frozenset({SHARD})))
    owner.row = owner_row(None, "0-1-1", "0-1-1")
    answer = asyncio.run(read(monkeypatch, owner, both("hive/0"), 5_000))
    assert not isinstance(answer, ReadError), answer
    assert answer.freshness == "fresh"


def test_only_what_lies_in_a_lost_history_leaves_the_token() -> None:
    """Of an ancestor an epoch before the one that was handed over; the shard's own component stays if it is current."""
    kin = Kin(frozenset({SHARD}), {"old/0": 3})
    vector = both("hive/0").merge(seen("old/0", "0-1-2", epoch=2))
    lost = history_lost_error(vector, SHARD, 1, str(at("0-1-9")), "why", kin)
    assert lost.token == str(both("hive/0"))
    lost = history_lost_error(vector, SHARD, 2, str(at("0-1-9")), "why", kin)
    assert lost.token == str(seen(SHARD, "0-1-9", epoch=2).merge(seen("hive/0", "0-1-3")))
    kept = both("hive/0").merge(seen("old/0", "0-1-2", epoch=3))
    assert history_lost_error(kept, SHARD, 2, "", "why", kin).token == str(kept.without(SHARD))


def test_a_partition_in_a_new_epoch_is_no_lost_history_to_a_session_that_has_seen_nothing_of_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a range whose partitions are in different epochs: the position of one is demanded of the other, not by the
    session. The source answers."""

    def answered(session: Vector) -> RawRangeAnswer:
        monkeypatch.setattr("tests.serving.test_ranges.demand_of", lambda _: ReadDemand(session, bool(session)))
        lost = part(hi=0, watermark=5, served=False, code="history_lost", epoch=2, why="the session has seen 0-1-8")
        partitions = Partitions([part(10, hi=3, watermark=4), lost], [part(9, hi=8, watermark=15)])
        return read_range(partitions, FakeRowSource(IMAGE, "0-1-9"))

    answer = answered(Vector())
    assert (answer.served_from, Vector.parse(answer.token)) == ("source", seen(SHARD, "0-1-9", epoch=2))
    assert "different epochs" in answer.why
    with pytest.raises(ReadError) as refused:
        answered(seen(SHARD, "0-1-1"))
    assert refused.value.code == "history_lost"
