"""The rules that rows and catalog tables share: what a fill must have reached, and when waiting can help."""

from __future__ import annotations

from itertools import permutations

import pytest

from consumers.fold.shards import NO_KIN, kin_of
from consumers.fold.state import Backfill, Head, Lineage, Topology, Void
from consumers.owner.evidence import fill_refusal, kin_at, may_catch_up, tag_of
from consumers.owner.protocol import OwnerRow
from consumers.owner.rows import judge_fill, table_of, view_row
from consumers.store.dropping import LastDropped
from stream.wire.events import ABSENT, VOID
from tests.consumers.histories import SHARD, Folded, frame, gtid, key, marker, start
from tokens import Decision, Freshness, Position
from tokens.decision import Verdict

EARLIER = Void(1, 90, "")
EARLIER_FLOOR = Void(1, 90, gtid(99))
REACHED = Void(2, 3, gtid(3))
WAITING = Void(2, 4, "")
AHEAD = Void(2, 4, gtid(8))


def refusal(number: int, *voids: Void, low_water: int = 0, watermark: int = 0) -> str:
    """The refusal of a fill at ``number`` in epoch 2; bounds of 0 bind no fill."""
    lineage = Lineage(2, 9, 9, gtid(watermark) if watermark else "", 1_700_000_000, gtid(low_water))
    return fill_refusal(Position.parse(gtid(number)), lineage, voids)


@pytest.mark.parametrize("voids", list(permutations((EARLIER, REACHED, WAITING))))
def test_a_void_without_its_marker_refuses_every_fill(voids: tuple[Void, ...]) -> None:
    """Neither an earlier epoch's void nor a reached one hides a void that still waits for its marker."""
    assert "the marker that follows has not arrived" in refusal(50, *voids)


@pytest.mark.parametrize("voids", list(permutations((EARLIER_FLOOR, REACHED, AHEAD))))
def test_a_fill_must_have_reached_the_floor_of_every_void(voids: tuple[Void, ...]) -> None:
    """The highest floor of the current epoch counts, wherever it stands among the voids."""
    assert f"below {gtid(8)}" in refusal(7, *voids)
    assert refusal(8, *voids) == ""


@pytest.mark.parametrize("void", [EARLIER, EARLIER_FLOOR])
def test_a_void_of_an_earlier_epoch_refuses_nothing(void: Void) -> None:
    """Positions of a lost history say nothing about the current one."""
    assert refusal(1, void) == ""


@pytest.mark.parametrize(("epoch", "hi"), [(1, 3), (2, 9)])
def test_a_tombstone_that_was_dropped_in_an_epoch_before_is_at_no_position_of_this_one(epoch: int, hi: int) -> None:
    """The session that gets it would demand what this history may never reach."""
    head = Head(lineages={SHARD: Lineage(2, 9, 9, gtid(9), 1, gtid(1))}, layout="")
    head.topologies[SHARD] = Topology(2, 1, (SHARD,), {}, {}, ())
    head.backfills[table_of(key(1)), SHARD] = Backfill(2, 2, 3, gtid(3), 1)
    row = view_row(head, key(1), None, lambda _, __: LastDropped(epoch, 9, gtid(9)))
    assert (row.kind, row.lo, row.hi) == (ABSENT, gtid(3), gtid(hi))


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ({"low_water": 5}, "below the low-water"),
        ({"watermark": 5}, "behind the watermark"),
        ({"low_water": 2, "watermark": 5}, "behind the watermark"),
    ],
)
def test_low_water_and_watermark_bound_a_fill_inclusively(bounds: dict[str, int], why: str) -> None:
    """A value read exactly at a bound contains all that the bound stands for."""
    assert why in refusal(4, **bounds)
    assert refusal(5, **bounds) == ""
    assert refusal(6, **bounds) == ""


def test_a_floor_bounds_a_fill_inclusively() -> None:
    """A value read exactly where the table was voided is from after the change."""
    assert "where the table was voided" in refusal(2, REACHED)
    assert refusal(3, REACHED) == ""


def test_without_a_low_water_nothing_is_kept() -> None:
    """Before the first marker no position is known to be past the events that were dropped."""
    lineage = Lineage(2, 9, 0, "", 0, "")
    assert "(unknown)" in fill_refusal(Position.parse(gtid(50)), lineage, ())


@pytest.mark.parametrize("operation", [VOID, ABSENT])
def test_a_tombstone_with_an_unreadable_position_takes_fills_only_after_its_marker(operation: int) -> None:
    """Without a position to compare with, only a marker at or past the event proves that a value contains it."""
    folded = Folded(start(), marker(1), frame([(key(1), operation, b"", 3)], gtids=["nonsense"]))

    def view() -> OwnerRow:
        return view_row(folded.state.head, key(1), folded.entries[key(1)])

    assert (view().kind, view().lo) == (VOID, "")
    assert "unreadable position" in judge_fill(folded.state.head, key(1), view(), gtid(50)).why
    folded.fold(marker(2))
    assert "unreadable position" in judge_fill(folded.state.head, key(1), view(), gtid(50)).why
    folded.fold(marker(3))
    assert judge_fill(folded.state.head, key(1), view(), gtid(3)).accepted
    assert not judge_fill(folded.state.head, key(1), view(), gtid(2)).accepted


@pytest.mark.parametrize(
    ("freshness", "verdict", "watermark", "expected"),
    [
        (Freshness.STALE, Verdict.NOT_REACHED, gtid(3), True),
        (Freshness.STALE, Verdict.NOT_REACHED, "", True),
        (Freshness.UNKNOWN, Verdict.NOT_REACHED, "", True),
        (Freshness.UNKNOWN, Verdict.INCOMPARABLE, gtid(3), False),
        (Freshness.UNKNOWN, Verdict.HISTORY_LOST, "", False),
        (Freshness.UNKNOWN, Verdict.HISTORY_LOST, gtid(3), False),
        (Freshness.FRESH, Verdict.PROVED, "", False),
        (Freshness.EVENTUAL, Verdict.NO_DEMAND, "", False),
    ],
)
def test_waiting_helps_only_a_partition_that_is_behind(
    freshness: Freshness, verdict: Verdict, watermark: str, expected: bool
) -> None:
    """A stale answer, or an unknown one before the first marker, may catch up; a lost history never returns."""
    assert may_catch_up(Decision(freshness, "why", verdict), watermark) is expected


@pytest.mark.parametrize("lo", ["", gtid(5)])
@pytest.mark.parametrize("hi", ["", gtid(5), gtid(9)])
@pytest.mark.parametrize("watermark", ["", gtid(7)])
def test_each_position_of_the_evidence_is_judged_as_itself(lo: str, hi: str, watermark: str) -> None:
    """What a value may hold is not what it is proved by, and an unknown position stands for no other."""
    tag = tag_of(OwnerRow(VOID, None, "", "", False, False, SHARD, 2, lo, hi, 0, watermark, "", b""))
    assert [str(each or "") for each in (tag.lo, tag.hi, tag.watermark)] == [lo, hi, watermark]


def test_a_head_of_another_epoch_says_nothing_of_an_entrys_ancestors() -> None:
    """It was read before the entry: what it calls the shard's ancestors belongs to a history that is over."""
    topology = Topology(2, 1, (SHARD,), {"shop/old": 1}, {})
    head = Head(lineages={SHARD: Lineage(2, 5, 5, gtid(5), 0, gtid(1))}, topologies={SHARD: topology})
    assert kin_at(head, SHARD, 2) == kin_of(head, SHARD) != NO_KIN
    assert (kin_at(head, SHARD, 1), kin_at(head, "shop/9", 1)) == (NO_KIN, NO_KIN)
