"""The token that a session gets: it holds what was demanded and what was answered, and nothing of a lost history."""

from __future__ import annotations

import weakref
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.fold.catalog_state import TRANSACTIONAL
from consumers.fold.shards import Kin
from serving.errors import ReadError
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.proof import (
    Proof,
    Reached,
    history_lost_error,
    merged_tokens,
    reached_by,
    token_after,
    unknown_shards_error,
)
from serving.reads.tables import judge_table
from serving.sources.source import SourceTable
from tests.serving.fakes import at, owner_row, seen
from tests.serving.test_ranges import part
from tests.tokens import strategies as some
from tokens import Freshness, Position, ValidWriteIdList, Vector
from tokens.vector import CACHED_LONG_TEXT_MAX

SHARDS = ("ks/0", "ks/1", "ks/old", "bank/0")
vectors = st.dictionaries(
    st.sampled_from(SHARDS), st.tuples(st.integers(0, 3), some.mariadb_positions), max_size=4
).map(Vector)


@given(vectors, st.sampled_from(["", *SHARDS]), st.integers(0, 3), st.sampled_from(["", "0-1-4", "1-1-1"]))
def test_a_token_after_an_answer_is_the_join_of_both(vector: Vector, shard: str, epoch: int, gtid: str) -> None:
    """An answer without a shard or a position adds nothing, and takes nothing away."""
    position = str(at(gtid)) if gtid else ""
    expected = vector.merge(Vector({shard: (epoch, at(gtid))})) if shard and gtid else vector
    assert token_after(str(vector), shard, epoch, position) == str(expected)
    assert token_after("", shard, epoch, position) == token_after(str(Vector()), shard, epoch, position)


@given(vectors, st.sampled_from(SHARDS), st.integers(0, 3), st.sampled_from(["0-1-4", "1-1-1"]), st.booleans())
@example(Vector({"ks/0": (1, at("0-1-5"))}), "ks/0", 1, "0-1-4", True)
@example(Vector({"ks/0": (1, at("0-1-5"))}), "ks/0", 2, "0-1-4", True)
def test_what_a_demand_has_passed_adds_nothing_to_its_token(
    vector: Vector, shard: str, epoch: int, gtid: str, given_one: bool
) -> None:
    """Most answers are older than the demand; those of another epoch or shard are not, whatever their numbers."""
    demand = ReadDemand(vector if given_one else Vector(), given_one)
    if demand.has_passed(shard, epoch, str(at(gtid))):
        assert token_after(demand.token, shard, epoch, str(at(gtid))) == demand.token
        known = demand.vector.get(shard)
        assert known is not None
        assert known.epoch == epoch


def test_two_kinds_of_positions_in_one_epoch_are_a_bad_token() -> None:
    """A session that comes from another installation is told so, not served."""
    with pytest.raises(ReadError) as caught:
        token_after(str(seen("ks/0", "0-1-5")), "ks/0", 1, "HiveEvent/7")
    assert caught.value.code == "bad_token"


@given(vectors, st.integers(0, 3), st.dictionaries(st.just("ks/old"), st.integers(0, 3)), st.booleans())
@example(Vector({"bank/0": (0, at("0-1-5")), "ks/0": (1, at("0-1-5"))}), 2, {}, True)
@example(Vector({"ks/old": (1, at("0-1-5")), "ks/0": (2, at("0-1-5"))}), 2, {"ks/old": 2}, True)
def test_a_lost_history_leaves_only_the_token_that_was_in_it(
    vector: Vector, epoch: int, ancestors: dict[str, int], has_position: bool
) -> None:
    """The shard's own component and its ancestors' go if their epoch is over; every other shard's stays as it is."""
    position = at("0-1-3")
    error = history_lost_error(
        vector, "ks/0", epoch, str(position) if has_position else "", "why", Kin(frozenset(), ancestors)
    )
    ends = {"ks/0": epoch, **ancestors}
    expected = {name: each for name, each in vector.items() if each.epoch >= ends.get(name, 0)}
    if has_position and "ks/0" not in expected:
        expected |= dict(Vector({"ks/0": (epoch, position)}).items())
    assert (error.code, error.token) == ("history_lost", str(Vector(expected)))


@given(vectors, st.frozensets(st.sampled_from(SHARDS)), st.booleans())
def test_only_shards_of_the_keyspace_that_nobody_knows_are_given_up(
    vector: Vector, topology: frozenset[str], is_ancestor: bool
) -> None:
    """Another keyspace's stay; without a topology nothing is given up, for it may only not be known yet."""
    kin = Kin(topology, {"ks/old": 5} if is_ancestor else {})
    error = unknown_shards_error(vector, "ks/0", 1, kin)
    given_up = {name for name in vector if name.startswith("ks/") and name not in {"ks/0", *topology, *kin.ancestors}}
    if not topology or not given_up:
        assert error is None
        return
    assert error is not None
    assert error.token == str(Vector({name: each for name, each in vector.items() if name not in given_up}))
    assert all(name in str(error) for name in given_up)
    assert unknown_shards_error(vector, "", 1, kin) is None


@given(vectors, st.one_of(st.none(), st.integers(0, 3)), some.mariadb_positions)
def test_the_sources_answer_is_in_the_highest_epoch_that_anybody_named(
    vector: Vector, known: int | None, position: object
) -> None:
    """An owner may be behind the session, or ahead; where nobody named one, the position goes into no token."""
    proof = Proof(ReadDemand(vector, True), "ks/0", known)
    component = vector.get("ks/0")
    epochs = [epoch for epoch in (known, component and component.epoch) if epoch is not None]
    assert proof.epoch == (max(epochs) if epochs else None)
    assert proof.demanded_position == (component.position if component is not None else None)
    if not epochs:
        assert proof.token_after(str(position)) == ReadDemand(vector, True).token
        assert not proof.is_behind(at("0-1-1"))


@pytest.mark.parametrize(
    ("known", "token", "position", "is_behind"),
    [
        (1, seen("ks/0", "0-1-5"), "MariaDB/0-1-4", True),
        (1, seen("ks/0", "0-1-5"), "MariaDB/0-1-5", False),
        (2, seen("ks/0", "0-1-5"), "MariaDB/0-1-4", False),
        (1, seen("ks/0", "0-1-5"), "HiveEvent/4", False),
        (1, seen("ks/0", "0-1-5", epoch=2), "MariaDB/0-1-4", True),
    ],
)
def test_a_source_is_waited_for_only_where_that_can_help(
    known: int, token: Vector, position: str, is_behind: bool
) -> None:
    """A lost history doesn't come back, and positions of another kind are never reached."""
    assert Proof(ReadDemand(token, True), "ks/0", known).is_behind(Position.parse(position)) is is_behind


@pytest.mark.parametrize(("given", "why"), [(True, "the session has seen nothing yet"), (False, "has neither a token")])
def test_an_empty_token_is_told_from_none(given: bool, why: str) -> None:
    """Neither demands anything, and the reader is told which of both it was."""
    decision = Proof(ReadDemand(Vector(), given), "ks/0", 1).judge(at("0-1-4"))
    assert (decision.freshness, why in decision.why) == (Freshness.EVENTUAL, True)


@pytest.mark.parametrize(
    ("known_ms", "as_of_ms", "position", "is_proved"),
    [
        (1_000, 900, "0-1-5", True),
        (1_000, 1_200, "0-1-5", True),
        (900, 1_200, "0-1-5", True),
        (900, 900, "0-1-5", False),
        (1_000, 1_200, "0-1-4", False),
        (1_000, 900, "0-1-4", False),
    ],
)
def test_a_time_is_proved_by_the_later_of_what_is_known_of_it(
    known_ms: int, as_of_ms: int, position: str, is_proved: bool
) -> None:
    """A replica at or past an owner's position has all of the owner's time; one that is behind it proves none."""
    for epoch in (None, 1):
        proof = Proof(ReadDemand(not_before_ms=1_000), "ks/0", epoch)
        proof.reached = Reached(at("0-1-5"), known_ms)
        assert proof.judge(at(position), as_of_ms).may_be_served is is_proved


@pytest.mark.parametrize(("of_the_time", "awaited"), [("0-1-3", "0-1-5"), ("0-1-7", "0-1-7")])
def test_a_source_is_waited_for_until_it_has_both_token_and_time(of_the_time: str, awaited: str) -> None:
    """A replica that is read as soon as it has one of them is refused for the other."""
    proof = Proof(ReadDemand(seen("ks/0", "0-1-5"), True, not_before_ms=1_000), "ks/0", 1)
    proof.reached = Reached(at(of_the_time), 1_000)
    assert proof.demanded_position == at(awaited)


def test_a_lost_history_is_told_with_the_epoch_that_took_its_place() -> None:
    """The token that it comes with is a position of the new epoch: with another one the session would be lost again."""
    proof = Proof(ReadDemand(seen("ks/0", "0-1-9"), True), "ks/0", 2)
    refused = proof.refusal(proof.judge(at("0-1-4")), at("0-1-4"))
    assert refused.code == "history_lost"
    assert Vector.parse(str(refused.token)) == seen("ks/0", "0-1-4", epoch=2)


@pytest.mark.parametrize(("epoch", "freshness"), [(None, Freshness.EVENTUAL), (2, Freshness.FRESH)])
def test_a_table_that_no_token_can_include_is_not_called_fresh(epoch: int | None, freshness: Freshness) -> None:
    """No owner has named the epoch yet. What the reader's list or table id refuses is refused all the same."""
    lists = [f"db.t:{hwm}:9223372036854775807::" for hwm in (5, 6)]
    found = SourceTable(7, TRANSACTIONAL, b"{}", lists[0], at("0-1-5"))
    proof = Proof(ReadDemand(), "hive/0", epoch)
    wanted = RequestedTable("hive", "db", "t", ValidWriteIdList.parse(lists[0]), 7)
    assert judge_table(proof, wanted, found).freshness is freshness
    for other in (wanted._replace(write_ids=ValidWriteIdList.parse(lists[1])), wanted._replace(table_id=8)):
        assert not judge_table(proof, other, found).may_be_served


@pytest.mark.parametrize(
    ("shard", "epoch", "as_of_ms", "hi", "known"),
    [
        ("ks/0", 2, 100, 3, ("0-1-8", 100)),
        ("ks/0", 2, 99, 3, ("0-1-8", 99)),
        ("ks/0", 2, 100, 9, ("0-1-9", 100)),
        ("ks/0", 1, 100, 3, ("0-1-7", 0)),
        ("ks/1", 2, 100, 3, ("0-1-7", 0)),
    ],
    ids=["it", "an earlier time", "changed since the marker", "another epoch", "another shard"],
)
def test_the_latest_that_owners_of_the_same_history_have_is_known(
    shard: str, epoch: int, as_of_ms: int, hi: int, known: tuple[str, int]
) -> None:
    """Of rows and of ranges. Positions of a replaced history, or of another shard, are no positions of the source."""
    row = owner_row(None, "0-1-7", "0-1-7", shard="ks/0", epoch=2)
    of_range = part(1, hi=hi, watermark=8, shard=shard, epoch=epoch, as_of_ms=as_of_ms)
    expected = Reached(at(known[0]), known[1])
    assert reached_by(Proof(ReadDemand(not_before_ms=100), "ks/0", 2), [row, of_range]) == expected
    assert reached_by(Proof(ReadDemand(), "ks/0", 2), [row, of_range]) is None


class Text(str):
    """A text of which a test sees whether it is kept."""


def test_few_long_tokens_are_kept() -> None:
    """A token of a thousand shards is nearly a megabyte, and so is the one after an answer: kept by the thousand, those
    of a few clients would fill the memory."""
    kept = list[weakref.ref[Text]]()
    for number in range(40):
        names = [Random(100 * number + shard).randbytes(200).hex() for shard in range(100)]  # nothing to compress
        shards = {name: (1, at("0-1-5")) for name in names}
        token = Text(Vector(shards))
        assert len(token) > CACHED_LONG_TEXT_MAX
        kept.append(weakref.ref(token))
        answered = token_after(token, "ks/0", 1, str(at("0-1-9")))
        assert Vector.parse(answered) == Vector({**shards, "ks/0": (1, at("0-1-9"))})
        assert merged_tokens(token, answered) == answered
    del token
    assert sum(each() is not None for each in kept) < 10
