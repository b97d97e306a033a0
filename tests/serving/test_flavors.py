"""A token whose position cannot belong to the shard that it names: refused with a code, whatever is asked."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from consumers.owner.evidence import demand_of, may_catch_up
from serving.errors import ReadError
from serving.http.limits import RequestLimits
from serving.http.query import demand_of as demand_of_text
from serving.reads.demands import ReadDemand
from serving.reads.proof import Proof
from tests.serving.fakes import FakeOwner, FakeRowSource
from tests.serving.test_row_reads import SHARD, Reads, space_of
from tokens import Demand, Freshness, Position, Tag, TokenError, Vector, decide

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
PLACES = [
    Position.parse(text)
    for text in (
        "MariaDB/0-1-5",
        "MariaDB/0-2-5",
        "MariaDB/",
        f"MySQL56/{UUID}:1-5",
        f"MySQL56/{UUID}:blue:2",
        "FilePos/bin.000001:4",
        "FilePos/relay.000001:4",
        "FilePos/odd:4",
        "HiveEvent/190",
    )
]
PAIRS = list(product(PLACES, PLACES))


@pytest.mark.parametrize(("seen", "here"), PAIRS, ids=str)
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_every_pair_of_flavors_is_decided(seen: Position, here: Position, epoch: int) -> None:
    """Deciding never raises, and positions of two flavors are never called fresh in one epoch."""
    vector = Vector({SHARD: (epoch, seen)})
    for lo, mark in ((here, None), (None, here), (here, here)):
        decision = decide(Demand(vector, given=True), Tag(SHARD, 1, lo, lo, mark))
        may_catch_up(decision, str(mark or ""))
        if seen.flavor != here.flavor:
            assert decision.freshness is not Freshness.FRESH
    assert decide(demand_of(str(vector)), Tag(SHARD, 1, here, here, here)) == decision


@pytest.mark.parametrize(("seen", "here"), PAIRS, ids=str)
def test_every_pair_of_flavors_is_merged_or_refused(seen: Position, here: Position) -> None:
    """A merge in the front is a token or 400 `bad_token`, also of several tokens in one request."""
    one, other = Vector({SHARD: (1, seen)}), Vector({SHARD: (1, here)})
    try:
        merged = one.merge(other)
    except TokenError:
        for text in (f"{one},{other}", f"{other},time=1;shard={SHARD};epoch=1;position={seen}"):
            with pytest.raises(ReadError) as refused:
                demand_of_text(text, 0, RequestLimits())
            assert refused.value.code == "bad_token"
        return
    assert demand_of_text(f"{one},{other}", 0, RequestLimits()).vector == merged == other.merge(one)


@pytest.mark.parametrize(("seen", "here"), PAIRS, ids=str)
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_every_pair_of_flavors_is_proved_or_refused(seen: Position, here: Position, epoch: int) -> None:
    """A source is not waited for in vain, and a position of another flavor is the reader's mistake."""
    proof = Proof(ReadDemand(Vector({SHARD: (epoch, seen)}), given=True), SHARD, 1)
    decision = proof.judge(here)
    if decision.may_be_served:
        assert Vector.parse(proof.token_after(str(here))).get(SHARD)
        return
    code = proof.refusal(decision, here).code
    if decision.history_lost:
        assert code == "history_lost"
    elif seen.flavor != here.flavor:
        assert (code, proof.is_behind(here)) == ("bad_token", False)
    else:
        assert (code, proof.is_behind(here)) == ("source_behind", True)


class StrictSource(FakeRowSource):
    """It can only wait for positions of its own flavor, as MariaDB."""

    async def wait(self, position: Position, *_: object) -> bool:  # type: ignore[override]
        if position.flavor != "MariaDB":
            raise ZeroDivisionError(f"MASTER_GTID_WAIT({position})")
        return False


@pytest.mark.parametrize("seen", [place for place in PLACES if place.flavor != "MariaDB"], ids=str)
def test_a_position_of_another_server_is_the_readers_mistake(monkeypatch: pytest.MonkeyPatch, seen: Position) -> None:
    """400 `bad_token` that names both positions; the source is not asked to wait for one that it cannot reach."""
    source = StrictSource(b'{"id":7}', "0-1-5")
    reads = Reads(monkeypatch, FakeOwner())
    answer = asyncio.run(reads.answer(space_of(source), Vector({SHARD: (1, seen)}), max_wait_ms=50))
    assert isinstance(answer, ReadError)
    assert (answer.code, answer.status) == ("bad_token", 400)
    assert "MariaDB/0-1-5" in str(answer)
    assert str(seen) in str(answer)
