"""A token that names a shard which nobody knows: refused once, with a token to continue with."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from consumers.fold.shards import NO_KIN, Kin
from consumers.owner.evidence import may_catch_up
from serving.errors import ReadError
from stream.shards.map import ShardMap
from stream.wire.keys import Layout, row_key
from tests.serving.fakes import FakeOwner, FakeRowSource, demand_of, owner_row, seen
from tests.serving.test_ranges import TABLE, Partitions, part
from tests.serving.test_ranges import read as read_range
from tests.serving.test_row_reads import IMAGE, SHARD, Reads, served, space_of
from tokens import Demand, Tag, Vector, decide

KIN = Kin(frozenset({SHARD, "shop/1"}))
OTHERS = seen("shop/1", "0-9-9").merge(seen("bank/0", "0-2-9"))
RENAMED = seen("shop/old", "0-1-3")


def answered(monkeypatch: pytest.MonkeyPatch, vector: Vector, kin: Kin, *, source: bool) -> object:
    """What a reader with ``vector`` gets while the cache cannot prove the row."""
    owner = FakeOwner()
    owner.row = owner_row(None, "0-1-5", "0-1-5")
    owner.row.kin = kin
    space = space_of(FakeRowSource(IMAGE, "0-1-5") if source else None)
    return asyncio.run(Reads(monkeypatch, owner).answer(space, vector))


@pytest.mark.parametrize("source", [True, False])
def test_an_unknown_shard_is_lost_history(monkeypatch: pytest.MonkeyPatch, *, source: bool) -> None:
    """The new token has all but that shard; with it the next read is answered, so the session does not end here."""
    error = answered(monkeypatch, RENAMED.merge(OTHERS), KIN, source=source)
    assert isinstance(error, ReadError)
    assert (error.code, error.status) == ("history_lost", 409)
    assert "shop/old" in str(error)
    assert Vector.parse(error.token or "") == OTHERS
    if source:
        next_answer = answered(monkeypatch, OTHERS, KIN, source=True)
        assert isinstance(next_answer, object)
        assert served(next_answer).freshness == "fresh"  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [True, False])
def test_nothing_is_given_up_before_an_owner_has_said_which_shards_there_are(
    monkeypatch: pytest.MonkeyPatch, *, source: bool
) -> None:
    """A front that knows no topology cannot call a shard lost: it might only not have heard of it."""
    error = answered(monkeypatch, RENAMED.merge(OTHERS), NO_KIN, source=source)
    assert isinstance(error, ReadError)
    assert (error.status, error.token) == (503, None)


@pytest.mark.parametrize("source", [True, False])
def test_a_shard_of_the_map_is_not_lost(monkeypatch: pytest.MonkeyPatch, *, source: bool) -> None:
    """Amid a split, a shard that stays declares the old topology until its source is restarted. A session that has seen
    the new shard gets none of its rows until then, and keeps its token."""
    shards = ShardMap.parse({"shop/-80": "-80", "shop/80-": "80-"})
    own = shards.shard_of(Layout(1).keyspace_id(row_key("shop.items", [7])))
    [new] = set(shards.shards) - {own}
    owner, space = FakeOwner(), space_of()
    owner.row = owner_row(None, "0-1-5", "0-1-5", shard=own)
    owner.row.kin = Kin(frozenset({own}))
    space.map, space.sources = shards, [FakeRowSource(IMAGE, "0-1-5", shard=own)] if source else []
    reads, session = Reads(monkeypatch, owner), seen(own, "0-1-4").merge(seen(new, "0-9-9"))

    def answered(vector: Vector) -> ReadError:
        error = asyncio.run(reads.answer(space, vector))
        assert isinstance(error, ReadError)
        return error

    assert (answered(session).status, answered(session).token) == (503, None)
    lost = answered(session.merge(RENAMED))
    assert (lost.code, lost.token) == ("history_lost", str(session)), "what is not of the map is lost all the same"


def test_a_range_of_a_shard_that_stays_is_no_lost_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a row."""
    shards = ShardMap.parse({"shop/0": "-80", "shop/1": "80-"})
    assert shards.shard_of(Layout(1).keyspace_id(row_key(TABLE.name, [7]), 1)) == "shop/0"
    monkeypatch.setattr("tests.serving.test_ranges.Kin", lambda _: Kin(frozenset({"shop/0"})))
    sources = [FakeRowSource(None, "0-1-9", shard=name) for name in shards.shards]
    for also, code in ((Vector(), "source_behind"), (RENAMED, "history_lost")):
        session = seen("shop/1", "0-9-9").merge(also)
        monkeypatch.setattr("tests.serving.test_ranges.demand_of", lambda _, session=session: demand_of(session))
        unproved = Partitions([part(hi=3, watermark=9, served=False, why="unproved")])
        with pytest.raises(ReadError) as refused:
            read_range(unproved, sources[0], table=replace(TABLE, prefix=1), sources=sources, shards=shards, wait_ms=20)
        assert refused.value.code == code


def test_an_owner_waits_for_a_shard_that_may_be_declared() -> None:
    """A session may come from a shard that was added a moment ago: it is waited for like a position."""
    place = seen(SHARD, "0-1-9").get(SHARD)
    assert place is not None
    tag = Tag(SHARD, 1, place.position, place.position, place.position, topology=frozenset({SHARD}))
    assert may_catch_up(decide(Demand(seen("shop/1", "0-9-9")), tag), "MariaDB/0-1-9")
