"""Why the cache did not answer is counted, once for each read, by a reason of a few."""

from __future__ import annotations

import asyncio
import re

import pytest

from consumers.fold.entry import VALUE, VOID
from consumers.owner.protocol import SCHEMA_CHANGED, UNKNOWN_KEY, OwnerError, OwnerRow
from serving.metrics import FrontMetrics
from serving.misses import BEHIND, NO_OWNER, NOT_FOLDED, OTHER_MEANING, REASONS, UNPROVED, VOIDED, miss_reason
from tests.serving.fakes import FakeOwner, FakeRowSource, owner_row, owner_table
from tests.serving.test_row_reads import IMAGE, Reads, served, space_of


def refused_row(kind: int, freshness: str, code: str = "") -> OwnerRow:
    """An owner's answer that may not be given."""
    row = owner_row(None, "0-1-5", "0-1-5")
    row.kind, row.freshness, row.code = kind, freshness, code
    return row


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (None, NO_OWNER),
        (refused_row(VALUE, "stale"), BEHIND),
        (refused_row(VALUE, "unknown"), UNPROVED),
        (refused_row(VOID, "unknown"), VOIDED),
        (refused_row(UNKNOWN_KEY, "unknown"), NOT_FOLDED),
        (refused_row(VOID, "unknown", SCHEMA_CHANGED), OTHER_MEANING),
    ],
)
def test_each_answer_of_an_owner_has_one_reason(row: OwnerRow | None, reason: str) -> None:
    """By what the owner knows of the key, not by the words of its answer; people are told what the reason means."""
    assert miss_reason(row) == reason
    assert reason in REASONS


def test_a_table_has_a_reason_too() -> None:
    """A table that the owner can't prove yet is behind."""
    table = owner_table(None)
    assert miss_reason(table) == UNPROVED
    table.freshness = "stale"
    assert miss_reason(table) == BEHIND


def test_a_miss_is_counted_once_and_a_hit_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read through the source is one miss, whatever it takes."""
    metrics, owner = FrontMetrics(), FakeOwner()
    monkeypatch.setattr("tests.serving.test_row_reads.FrontMetrics", lambda: metrics)
    reads, space = Reads(monkeypatch, owner), space_of(FakeRowSource(IMAGE, "0-1-5", "0-1-9"))

    async def story() -> None:
        assert served(await reads.answer(space)).served_from == "source"
        assert metrics.misses() == {NOT_FOLDED: 1}
        owner.row = owner_row(IMAGE, "0-1-5", "0-1-9")
        assert served(await reads.answer(space)).served_from == "cache"
        assert metrics.misses() == {NOT_FOLDED: 1}
        owner.failure = OwnerError("away", code="owner_unreachable")
        assert served(await reads.answer(space)).served_from == "source"
        assert metrics.misses() == {NOT_FOLDED: 1, NO_OWNER: 1}

    asyncio.run(story())
    counted = re.findall(r"^freshet_serve_misses_total\{(.*)\} 1\.0$", metrics.exposition().decode(), re.M)
    assert sorted(counted) == [f'kind="row",reason="{NO_OWNER}"', f'kind="row",reason="{NOT_FOLDED}"']
