"""The demo names each reason for which a cache does not answer a read of a row; none is left as "other"."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.fold.entry import VOID
from consumers.owner.evidence import demand_of
from consumers.owner.meaning import Meaning, why_other_meaning
from consumers.owner.protocol import UNKNOWN_KEY, Get, OwnerError
from consumers.owner.rows import answer_rows
from lab.demo.misses import TEXTS, reason_of
from serving.sources.source import RowTable
from stream.wire.events import Column
from tests.consumers.histories import event, frame, key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, schema, vector
from tests.serving.fakes import FakeOwner, FakeRowSource, items_of, owner_row, seen
from tests.serving.test_row_reads import IMAGE, SHARD, Reads, served, space_of
from tokens import Demand, Position, Tag, Vector, decide
from tokens.decision import Verdict

AT_5 = Position.parse("MariaDB/0-1-5")
TAG = Tag(SHARD, 1, AT_5, AT_5, AT_5)
NOT_OF_ROWS = {Verdict.OTHER_TABLE, Verdict.LIST_UNKNOWN, Verdict.LIST_NOT_COVERED}
"""They concern catalog tables."""
NO_MISSES = {Verdict.PROVED, Verdict.NO_DEMAND, Verdict.HISTORY_LOST}
"""The cache answers, or the read is refused."""
REFUSED = {
    Verdict.IMAGE_UNKNOWN: [(Demand(), replace(TAG, image_known=False))],
    Verdict.SHARD_UNKNOWN: [
        (Demand(seen(SHARD, "0-1-5")), replace(TAG, shard="")),
        (Demand(seen("shop/9", "0-1-5")), replace(TAG, topology=frozenset())),
    ],
    Verdict.NOT_REACHED: [
        (Demand(seen(SHARD, "0-1-6")), TAG),
        (Demand(seen(SHARD, "0-1-5", epoch=2)), TAG),
        (Demand(seen(SHARD, "0-1-5")), replace(TAG, lo=None, watermark=None)),
    ],
    Verdict.INCOMPARABLE: [(Demand(Vector({SHARD: (1, Position.parse("MariaDB/0-2-5"))})), TAG)],
    Verdict.TOO_OLD: [(Demand(not_before_ms=9), TAG), (Demand(not_before_ms=9), replace(TAG, as_of_ms=8))],
}


def is_named(why: str) -> bool:
    """Whether the reason is one of the table, and not the text itself."""
    reason = reason_of(f"read from the source at MariaDB/0-1-9: fresh; the cache: {why}", 20)
    return reason in {text.format(wait="20 ms") for text in TEXTS.values()}


def test_each_verdict_that_refuses_a_row_has_a_reason() -> None:
    """A new verdict, or a new text of one, needs a reason here."""
    assert REFUSED.keys() | NOT_OF_ROWS | NO_MISSES == set(Verdict)
    for verdict, cases in REFUSED.items():
        for demand, tag in cases:
            decision = decide(demand, tag)
            assert decision.verdict is verdict
            assert is_named(decision.why), decision.why


def test_each_state_of_a_row_that_is_not_served_has_a_reason(tmp_path: Path) -> None:
    """What a store knows of a key: nothing, only that it changed, or a row of before a void of its table."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), value(1, IMAGE, 3), frame([(key(2), VOID, b"", 4)]), marker(4))
    request = Get(1, KEYSPACE, 0, [key(2), key(7)], vector(4), 0)
    rows = answer_rows(owner.partition, request, demand_of(vector(4)))
    assert [row.kind for row in rows] == [VOID, UNKNOWN_KEY]
    owner.fold(event("TableVoid", 5, table="shop.items", reason="DDL"), marker(5))
    rows += answer_rows(owner.partition, Get(1, KEYSPACE, 0, [key(1)], vector(5), 0), demand_of(vector(5)))
    for row in rows:
        assert not row.served
        assert is_named(row.why), row.why
    assert "void" in reason_of(f"the cache: {rows[-1].why}", None)
    owner.partition.store.close(commit=False)


def test_each_way_in_which_a_key_means_something_else_has_a_reason(tmp_path: Path) -> None:
    """The description is not there, is another one, or is newer than what was read."""
    owner = Owner(tmp_path)
    owner.fold(start(), marker(2))
    head = owner.partition.store.visible
    newer = Meaning(SHARD, 1, 99, b"it", "", "", 0, ())
    whys = [why_other_meaning(head, *each) for each in ((None, b"it"), (newer, b"other"), (newer, b"it"))]
    assert len(set(whys)) == 3
    assert all(map(is_named, whys)), whys
    owner.partition.store.close(commit=False)


@pytest.mark.parametrize("case", ["never cached", "owner away", "other partition", "no times", "spelling"])
def test_each_reason_of_the_front_has_a_text(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """What the front itself says of the cache, beside the owner's reasons."""
    owner, source = FakeOwner(), FakeRowSource(IMAGE, "0-1-5")
    source.described = RowTable("shop.items", (Column("id", "int", True),), True, "", 0)
    reads, space = Reads(monkeypatch, owner), space_of(source)
    match case:
        case "never cached":
            owner.description.cacheable, owner.description.reason = False, "engine Aria has no snapshots"
        case "owner away":
            owner.failure = OwnerError("the owner at a:1 does not answer: refused", code="owner_unreachable")
        case "other partition":
            owner.failure = OwnerError("the key is kept in partition 1, not in 0", code="wrong_partition")
        case "no times":
            owner.row = owner_row(IMAGE, "0-1-5", "0-1-5")
            owner.row.as_of_ms = -1
        case "spelling":
            owner.description = items_of()
            owner.description.columns[0].exact = False
            owner.row = owner_row(IMAGE, "0-1-5", "0-1-5")
            owner.row.image = None
    answer = served(asyncio.run(reads.answer(space)))
    assert answer.served_from == "source"
    _, _, why = answer.why.rpartition("the cache: ")
    assert is_named(why), why


def test_an_unknown_reason_is_told_as_it_is() -> None:
    """It is counted as one reason, whatever numbers are in it."""
    assert reason_of("read at 5; the cache: lost on 2 shelves", 0) == "lost on # shelves"
    assert not is_named("lost on 2 shelves")
    assert "20 ms" in reason_of("the cache: shop/0 is at 4 here, the session has seen 5", 20)
