"""The decision: fresh only if a naive model proves it, and always with a reason for people."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens import strategies as some
from tokens import Demand, Freshness, Position, Tag, ValidWriteIdList, Vector, Verdict, decide

P = Position.parse
L = ValidWriteIdList.parse

kinds = st.sampled_from([some.mysql_positions, some.mariadb_positions, some.file_positions, some.event_positions])


SHARDS = st.sampled_from(["ks/0", "ks/0", "ks/1", "other/0", "bare"])


@st.composite
def situations(draw: st.DrawFn) -> tuple[Demand, Tag]:
    """A demand and a tag from a small set of values, so that they often nearly match."""
    places = draw(kinds)
    vector = draw(st.dictionaries(SHARDS, st.tuples(st.integers(0, 1), places), max_size=2).map(Vector))
    lists = st.one_of(st.none(), some.write_id_lists(tables=("db.t", "db.t", "db.t", "db.u", None)))
    times = st.sampled_from([0, 0, 999, 1_000])
    demand = Demand(vector, draw(lists), draw(st.integers(0, 2)), draw(st.booleans()), draw(times))
    optional = st.one_of(st.none(), places)
    tag = Tag(
        draw(st.one_of(st.just(""), SHARDS)),
        draw(st.integers(0, 1)),
        draw(optional),
        draw(optional),
        draw(optional),
        draw(lists),
        draw(st.integers(0, 2)),
        draw(st.sampled_from([True, True, True, False])),
        draw(st.frozensets(SHARDS, max_size=2)),
        draw(st.dictionaries(SHARDS, st.integers(0, 1), max_size=1)),
        draw(times),
    )
    return demand, tag


@given(situations())
def test_fresh_only_if_the_naive_model_proves_it(situation: tuple[Demand, Tag]) -> None:
    """FRESH needs a known image, the same table, a covered list, and a position at or past the session's."""
    demand, tag = situation
    freshness, why = decide(demand, tag)
    assert why
    assert "\n" not in why
    assert decide(demand, tag) == (freshness, why)
    assert decide(demand, tag).may_be_served is (freshness in (Freshness.FRESH, Freshness.EVENTUAL))
    assert (freshness is Freshness.FRESH) is (_proven(demand, tag) and _asked(demand))
    if freshness is Freshness.EVENTUAL:
        assert not _asked(demand)


@given(situations(), some.positions)
def test_a_later_watermark_never_makes_an_answer_staler(situation: tuple[Demand, Tag], later: Position) -> None:
    """What is fresh stays fresh when the watermark moves on."""
    demand, tag = situation
    if tag.watermark is None or not later.at_or_past(tag.watermark):
        return
    moved = replace(tag, watermark=later)
    if decide(demand, tag)[0] is Freshness.FRESH:
        assert decide(demand, moved)[0] is Freshness.FRESH


@given(situations(), SHARDS, st.integers(0, 1), some.positions)
def test_a_further_component_never_makes_an_answer_fresher(
    situation: tuple[Demand, Tag], shard: str, epoch: int, seen: Position
) -> None:
    """A session that has seen more is not easier to satisfy."""
    demand, tag = situation
    if shard in demand.vector or not _asked(demand):
        return
    more = replace(demand, vector=demand.vector.with_component(shard, epoch, seen))
    if decide(demand, tag)[0] is not Freshness.FRESH:
        assert decide(more, tag)[0] is not Freshness.FRESH


@given(some.positions, st.integers(0, 9), st.sampled_from(["ks/renamed", "kz", "ks"]))
def test_an_unknown_shard_that_may_be_of_the_keyspace_is_never_met(seen: Position, epoch: int, shard: str) -> None:
    """A renamed, misspelt or future shard is no missing demand: nobody knows whether the key has reached it."""
    known = replace(_tag(), topology=frozenset({"ks/0", "ks/1"}), ancestors={"ks/was": 1})
    decision = decide(Demand(_vector("ks/0", 1, "MariaDB/0-1-5").with_component(shard, epoch, seen)), known)
    assert (decision.freshness, decision.verdict) == (Freshness.UNKNOWN, Verdict.SHARD_UNKNOWN)
    assert shard in decision.why


@given(some.positions, st.integers(0, 9), st.sampled_from(["hive/0", "ks/a/0", "ks/1"]))
def test_shards_that_cannot_concern_the_key_ask_for_nothing(seen: Position, epoch: int, shard: str) -> None:
    """A session over several keyspaces, or several shards of one, is served by each of them."""
    known = replace(_tag(), topology=frozenset({"ks/0", "ks/1"}))
    demand = Demand(_vector("ks/0", 1, "MariaDB/0-1-5").with_component(shard, epoch, seen))
    assert decide(demand, known)[0] is Freshness.FRESH


@pytest.mark.parametrize(("was", "now"), [("ks/was", "ks/0"), ("ks/0", "ks/was")])
def test_a_lost_history_is_told_although_another_shard_is_only_behind(was: str, now: str) -> None:
    """Who waits for the one would never hear of the other: only a lost history comes with a token to go on with."""
    tag = replace(_tag(epoch=2, shard=now), ancestors={was: 2})
    for behind, lost in ((was, now), (now, was)):
        demand = Demand(_vector(behind, 2, "MariaDB/0-1-99").with_component(lost, 1, P("MariaDB/0-1-3")))
        assert decide(demand, tag).verdict is Verdict.HISTORY_LOST


@pytest.mark.parametrize(
    ("demand", "why"),
    [
        (Demand(), "nothing that the session has seen is of the answer's shard"),
        (Demand(not_before_ms=7), "all that the source had committed within the demanded time"),
        (Demand(write_ids=L("db.t:11:7:7,8:")), "the entry contains every write of the list"),
    ],
)
def test_the_reason_names_no_position_that_was_not_compared(demand: Demand, why: str) -> None:
    """A misspelt keyspace is another one: whoever reads the answer must see that their write was not asked for."""
    tag = replace(_tag(), as_of_ms=7, write_ids=L("db.t:11:7:7,8:"), topology=frozenset({"ks/0", "ks/1"}))
    for shard in ("hive/0", "ks/1"):
        decision = decide(replace(demand, vector=_vector(shard, 1, "MariaDB/0-1-99")), tag)
        assert (decision.freshness, decision.verdict) == (Freshness.FRESH, Verdict.PROVED)
        assert decision.why.endswith(why)
    succeeded = replace(tag, ancestors={"hive/0": 1})
    reached = decide(replace(demand, vector=_vector("hive/0", 1, "MariaDB/0-1-5")), succeeded)
    assert reached.why.endswith("at or past what the session has seen")


def _vector(shard: str, epoch: int, position: str) -> Vector:
    return Vector().with_component(shard, epoch, P(position))


def _tag(lo: str = "MariaDB/0-1-5", watermark: str = "MariaDB/0-1-8", epoch: int = 1, shard: str = "ks/0") -> Tag:
    return Tag(shard, epoch, P(lo) if lo else None, None, P(watermark) if watermark else None)


SUCCESSOR = replace(_tag(), ancestors={"was/0": 3})
LIST_TAG = Tag("hive/0", 1, P("HiveEvent/9"), None, P("HiveEvent/9"), L("db.t:12:7:7,8,12:"), 4)


@pytest.mark.parametrize(
    ("demand", "tag", "freshness", "why"),
    [
        (Demand(), _tag(), Freshness.EVENTUAL, "neither a token nor a write-id list"),
        (Demand(table_id=4), LIST_TAG, Freshness.EVENTUAL, "neither a token nor a write-id list"),
        (Demand(given=True), _tag(), Freshness.EVENTUAL, "nothing yet"),
        (Demand(_vector("ks/0", 1, "MariaDB/0-1-7")), _tag(), Freshness.FRESH, "at or past"),
        (Demand(_vector("ks/0", 1, "MariaDB/0-1-5")), _tag(watermark=""), Freshness.FRESH, "at or past"),
        (
            Demand(_vector("ks/0", 1, "MariaDB/0-1-9")),
            _tag(),
            Freshness.STALE,
            "ks/0 is at MariaDB/0-1-8 here, the session has seen MariaDB/0-1-9",
        ),
        (Demand(_vector("ks/0", 1, "MariaDB/0-2-8")), _tag(), Freshness.UNKNOWN, "cannot be compared"),
        (Demand(_vector("ks/0", 1, "MariaDB/0-2-7")), _tag(), Freshness.FRESH, "at or past"),
        (Demand(_vector("ks/0", 1, "MySQL56/")), _tag(), Freshness.UNKNOWN, "cannot be compared"),
        (Demand(_vector("ks/0", 1, "MariaDB/0-1-1")), _tag(lo="", watermark=""), Freshness.UNKNOWN, "is unknown"),
        (Demand(_vector("ks/0", 2, "MariaDB/0-1-1")), _tag(), Freshness.STALE, "seen epoch 2 of ks/0"),
        (Demand(_vector("ks/0", 0, "MariaDB/0-1-1")), _tag(), Freshness.UNKNOWN, "a history that epoch 1 replaced"),
        (Demand(_vector("ks/9", 1, "MariaDB/0-1-99")), _tag(), Freshness.UNKNOWN, "not in the topology of ks/0"),
        (Demand(_vector("kz/0", 1, "MariaDB/0-1-99")), _tag(), Freshness.FRESH, "nothing that the session"),
        (Demand(_vector("kz", 1, "MariaDB/0-1-9")), _tag(), Freshness.UNKNOWN, "not in the topology of ks/0"),
        (Demand(_vector("was/0", 3, "MariaDB/0-1-8")), SUCCESSOR, Freshness.FRESH, "at or past"),
        (
            Demand(_vector("was/0", 3, "MariaDB/0-1-9")),
            SUCCESSOR,
            Freshness.STALE,
            "at MariaDB/0-1-8 here, the session has seen MariaDB/0-1-9",
        ),
        (Demand(_vector("was/0", 2, "MariaDB/0-1-1")), SUCCESSOR, Freshness.UNKNOWN, "a history that epoch 3 replaced"),
        (Demand(_vector("was/0", 4, "MariaDB/0-1-1")), SUCCESSOR, Freshness.UNKNOWN, "not in the topology of ks/0"),
        (
            Demand(_vector("ks/0", 0, "MariaDB/0-1-1").with_component("ks/9", 1, P("MariaDB/0-1-1"))),
            _tag(),
            Freshness.UNKNOWN,
            "a history that epoch 1 replaced",
        ),
        (Demand(_vector("ks/0", 1, "MariaDB/0-1-1")), _tag(shard=""), Freshness.UNKNOWN, "shard is unknown"),
        (Demand(given=True), _tag(shard=""), Freshness.EVENTUAL, "nothing yet"),
        (Demand(write_ids=L("db.t:12:7:7,12:")), LIST_TAG, Freshness.STALE, "write id 8 committed since"),
        (Demand(write_ids=L("db.t:14:7:7:")), LIST_TAG, Freshness.STALE, "write id 8 and 3 more committed since"),
        (Demand(write_ids=L("db.t:11:7:7,8:")), LIST_TAG, Freshness.FRESH, "contains every write of the list"),
        (Demand(write_ids=L("[11:7,8]"), table_id=4), LIST_TAG, Freshness.FRESH, "every write"),
        (Demand(write_ids=L("db.u:11:7:7,8:")), LIST_TAG, Freshness.STALE, "of table db.t, the list is of db.u"),
        (Demand(write_ids=L("db.t:11:7:7,8:"), table_id=5), LIST_TAG, Freshness.STALE, "dropped and re-created"),
        (Demand(write_ids=L("db.t:1:7:7,8:")), _tag(), Freshness.UNKNOWN, "no write-id list"),
        (Demand(table_id=5, given=True), _tag(), Freshness.UNKNOWN, "table id is unknown"),
        (
            Demand(_vector("hive/0", 1, "HiveEvent/10"), L("db.t:11:7:7,8:")),
            LIST_TAG,
            Freshness.STALE,
            "hive/0 is at HiveEvent/9 here, the session has seen HiveEvent/10",
        ),
        (
            Demand(_vector("hive/0", 1, "HiveEvent/9"), L("db.t:11:7:7,8:")),
            LIST_TAG,
            Freshness.FRESH,
            "the entry contains every write of the list, and is at or past what the session has seen",
        ),
        (
            Demand(),
            Tag("ks/0", 1, None, None, None, image_known=False),
            Freshness.UNKNOWN,
            "only that the value changed",
        ),
    ],
)
def test_each_reason_is_one_clear_line(demand: Demand, tag: Tag, freshness: Freshness, why: str) -> None:
    """Each possible decision is explained by a clear line."""
    answer, reason = decide(demand, tag)
    assert answer is freshness
    assert why in reason


def test_a_lost_history_is_data_not_only_text() -> None:
    """Programs can act on the verdict alone; the text beside it may be reworded."""
    lost = decide(Demand(_vector("ks/0", 0, "MariaDB/0-1-1")), _tag())
    assert (lost.verdict, lost.history_lost, lost.may_be_served) == (Verdict.HISTORY_LOST, True, False)
    proved = decide(Demand(_vector("ks/0", 1, "MariaDB/0-1-7")), _tag())
    assert (proved.verdict, proved.history_lost, proved.may_be_served) == (Verdict.PROVED, False, True)
    again = pickle.loads(pickle.dumps(lost))
    assert (again, again.verdict) == (lost, Verdict.HISTORY_LOST)


@pytest.mark.parametrize(("mine", "others"), [("ks/a", "ks/b"), ("ks/b", "ks/a")])
def test_a_lost_history_is_told_before_what_is_only_not_reached(mine: str, others: str) -> None:
    """In whatever order the shards are: else the session waits for what never comes, and keeps its token."""
    vector = Vector({mine: (1, P("MariaDB/0-1-5")), others: (1, P("MariaDB/0-1-5"))})
    at = P("MariaDB/0-1-3")
    tag = Tag(mine, 1, at, at, None, topology=frozenset({mine}), ancestors={others: 2})
    assert decide(Demand(vector), tag).verdict is Verdict.HISTORY_LOST


@pytest.mark.parametrize(("mine", "strange"), [("ks/a", "ks/b"), ("ks/b", "ks/a")])
def test_a_lost_history_is_told_before_a_shard_that_nobody_knows(mine: str, strange: str) -> None:
    """The shard may become known by waiting; what is lost never comes, and the session has to give up its token."""
    vector = Vector({mine: (1, P("MariaDB/0-1-5")), strange: (1, P("MariaDB/0-1-5"))})
    at = P("MariaDB/0-1-9")
    tag = Tag(mine, 2, at, at, at, topology=frozenset({mine}))
    assert decide(Demand(vector), tag).verdict is Verdict.HISTORY_LOST
    assert decide(Demand(vector), replace(tag, epoch=1)).verdict is Verdict.SHARD_UNKNOWN


def _asked(demand: Demand) -> bool:
    return bool(demand.vector or demand.write_ids is not None or demand.not_before_ms)


def _proven(demand: Demand, tag: Tag) -> bool:
    if not tag.image_known or demand.table_id not in (0, tag.table_id):
        return False
    if demand.not_before_ms and not tag.as_of_ms >= demand.not_before_ms:
        return False
    wanted, held = demand.write_ids, tag.write_ids
    if wanted is not None:
        if held is None or (wanted.table != held.table and None not in (wanted.table, held.table)):
            return False
        aborted = {write_id for write_id in held.aborted_ids if write_id <= held.hwm}
        if not some.valid_ids(wanted) <= some.valid_ids(held) | aborted:
            return False
    if not demand.vector:
        return True
    if not tag.shard:
        return False
    places = [place for place in (tag.lo, tag.watermark) if place is not None]
    for shard, (epoch, seen) in demand.vector.items():
        if shard == tag.shard or shard in tag.ancestors:
            current = tag.epoch if shard == tag.shard else tag.ancestors[shard]
            if epoch != current or not any(_reaches(place, seen) for place in places):
                return False
        elif tag.topology is not None and not tag.topology:
            return False
        elif tag.topology is None or shard not in tag.topology:
            keyspaces = [name.rpartition("/")[0] for name in (shard, tag.shard)]
            if "" in keyspaces or keyspaces[0] == keyspaces[1]:
                return False
    return True


def _reaches(place: Position, seen: Position) -> bool:
    """Whether ``place`` provably contains ``seen``, computed from the texts alone."""
    if place.flavor != seen.flavor:
        return False
    here, there = (str(position).partition("/")[2] for position in (place, seen))
    if place.flavor == "MySQL56":
        return some.mysql_numbers(str(place)) >= some.mysql_numbers(str(seen))
    if place.flavor == "HiveEvent":
        return int(here) >= int(there)
    if place.flavor == "FilePos":
        return here == there or _file_place(here) > _file_place(there) > (here.split(".")[0],)
    if place.flavor == "Postgres":
        mine, other = (_wal_place(text) for text in (here, there))
        return here == there or (mine[0] == other[0] != "4294967295" and mine[1:] >= other[1:])
    ours, theirs = ({gtid.split("-")[0]: gtid for gtid in text.split(",") if gtid} for text in (here, there))
    ties = [domain for domain in ours.keys() & theirs.keys() if _sequence(ours[domain]) == _sequence(theirs[domain])]
    return (
        theirs.keys() <= ours.keys()
        and all(_sequence(ours[domain]) >= _sequence(theirs[domain]) for domain in theirs)
        and all(ours[domain] == theirs[domain] for domain in ties)
    )


def _sequence(gtid: str) -> int:
    return int(gtid.split("-")[2])


def _wal_place(text: str) -> tuple[str, int, int]:
    timeline, _, lsn = text.rpartition(":")
    high, _, low = lsn.partition("/")
    return timeline, int(high, 16), int(low, 16)


def _file_place(text: str) -> tuple[str, int, int]:
    file, _, offset = text.partition(":")
    base, _, number = file.partition(".")
    return base, int(number or 0), int(offset)
