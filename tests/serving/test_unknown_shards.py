"""A token that names a shard which nobody knows: refused once, with a token to continue with."""

from __future__ import annotations

import asyncio

import pytest

from consumers.fold.shards import NO_KIN, Kin
from consumers.owner.evidence import may_catch_up
from serving.errors import ReadError
from tests.serving.fakes import FakeOwner, FakeRowSource, owner_row, seen
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


def test_an_owner_waits_for_a_shard_that_may_be_declared() -> None:
    """A session may come from a shard that was added a moment ago: it is waited for like a position."""
    place = seen(SHARD, "0-1-9").get(SHARD)
    assert place is not None
    tag = Tag(SHARD, 1, place.position, place.position, place.position, topology=frozenset({SHARD}))
    assert may_catch_up(decide(Demand(seen("shop/1", "0-9-9")), tag), "MariaDB/0-1-9")
