"""Why the cache did not answer is counted, once for each read, by a reason of a few."""

from __future__ import annotations

import asyncio
import re
from typing import cast

import pytest

from consumers.fold.entry import VALUE, VOID
from consumers.owner.protocol import SCHEMA_CHANGED, UNKNOWN_KEY, OwnerError, OwnerRow
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.misses import (
    BEHIND,
    NO_LIST,
    NO_OWNER,
    NOT_FOLDED,
    OTHER_MEANING,
    REASONS,
    UNPROVED,
    VOIDED,
    miss_reason,
)
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.fills import Fills
from serving.reads.objects import ObjectReads, RequestedObjects
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import TableSpace
from serving.reads.tables import TableReads
from stream.wire.keys import Layout
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


class Refusing:
    """Owners that refuse, or that are away."""

    def __init__(self, error: ReadError) -> None:
        self.error = error

    async def ask_any(self, *_: object, **__: object) -> None:
        raise self.error


AWAY = OwnerAway("it does not answer")
NEEDS_LIST = ReadError("missing_write_ids", "db.t is transactional")


@pytest.mark.parametrize(("error", "reason"), [(NEEDS_LIST, NO_LIST), (AWAY, NO_OWNER)])
def test_an_owner_that_needs_a_list_is_not_away(error: ReadError, reason: str) -> None:
    """An engine's call without a list has a reason of its own, and its front is told."""
    metrics, space = FrontMetrics(), TableSpace("hive", Layout(1))
    owners, wanted = cast("Owners", Refusing(error)), RequestedTable("hive", "db", "t")
    tables, objects = TableReads(owners, cast("Fills", None), metrics), ObjectReads(owners, metrics)

    async def read_both() -> list[object]:
        partitions = RequestedObjects("partition", wanted)
        reads = (
            tables.read_struct(space, wanted, ReadDemand()),
            objects.read_structs(space, partitions, ReadDemand()),
        )
        return [*await asyncio.gather(*reads, return_exceptions=True)]

    assert asyncio.run(read_both()) == [error if reason == NO_LIST else None] * 2
    assert metrics.misses() == {reason: 2}
    assert reason in REASONS
