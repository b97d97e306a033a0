"""Each shard describes its tables for itself: what another one says of a table of the same name does not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumers.fold.declared import table_descriptions
from consumers.fold.entry import VOID
from consumers.owner.evidence import demand_of
from consumers.owner.meaning import folded_meaning
from consumers.owner.protocol import SCHEMA_CHANGED, Fill, Get
from consumers.owner.rows import answer_row, answer_rows, fill_row
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import SHARD, Folded, event, frame, gtid, key, marker, start, value
from tests.consumers.owning import Owner, schema, vector

OTHER = "shop/1"
BOTH = (SHARD, OTHER)


def two(tmp_path: Path, *more: bytes) -> Owner:
    """An owner of a partition that two shards share."""
    owner = Owner(tmp_path)
    owner.fold(start(), topology(*BOTH), start(shard=OTHER), topology(*BOTH, shard=OTHER), *more)
    return owner


def described(ordinal: int, shard: str, **more: Any) -> bytes:
    """A description by one of them."""
    return schema(ordinal, shard=shard, **more)


def test_a_table_that_its_own_shard_says_may_not_be_cached_is_not_filled(tmp_path: Path) -> None:
    """OTHER's table has a column NOW(), or another engine; SHARD's has not, and is described later."""
    owner = two(
        tmp_path,
        described(2, OTHER, cacheable=False, reason="engine MyISAM"),
        described(2, SHARD),
        frame([(key(1), VOID, b"", 3)], shard=OTHER),
        marker(3),
        marker(3, shard=OTHER),
    )
    row = answer_row(owner.partition, key(1), demand_of(""))
    assert row.shard == OTHER
    verdict = fill_row(owner.partition, Fill(0, "shop", 0, key(1), b'{"id":1}', gtid(5), gtid(5), 0, row.stamp))
    owner.fold(marker(9, shard=OTHER))
    found = answer_row(owner.partition, key(1), demand_of(vector(8, shard=OTHER)))
    owner.partition.store.close(commit=False)
    assert (verdict.accepted, found.served) == (False, False)


def test_absence_is_not_filled_if_a_collation_compares_the_shards_own_key(tmp_path: Path) -> None:
    """Of `abc` and `ABC` the shard's own server says whether they are one key."""
    text = [{"name": "id", "kind": "text", "exact": False}]
    exact = [{"name": "id", "kind": "text", "exact": True}]
    k = b'shop.items\0["abc"]'
    owner = two(
        tmp_path,
        described(2, OTHER, columns=text),
        described(2, SHARD, columns=exact),
        frame([(k, VOID, b"", 3)], shard=OTHER),
        marker(3),
        marker(3, shard=OTHER),
    )
    row = answer_row(owner.partition, k, demand_of(""))
    verdict = fill_row(owner.partition, Fill(0, "shop", 0, k, None, gtid(5), gtid(5), 0, row.stamp))
    owner.partition.store.close(commit=False)
    assert not verdict.accepted, verdict


def test_each_row_of_a_request_is_judged_by_its_own_shards_description(tmp_path: Path) -> None:
    """The table's key means something else at OTHER, behind a row of SHARD that is as the front believes."""
    owner = two(
        tmp_path,
        described(2, SHARD),
        described(2, OTHER, columns=[{"name": "id", "kind": "text", "exact": False}]),
        value(1, b'{"id":1}', 3),
        value(2, b'{"id":2}', 3, shard=OTHER),
        marker(3),
        marker(3, shard=OTHER),
    )
    meaning = folded_meaning(owner.partition, "shop.items", SHARD)
    assert meaning is not None
    ask = Get(0, "shop", 0, [key(1), key(2)], meanings={"shop.items": meaning.fingerprint})
    mine, others = answer_rows(owner.partition, ask, demand_of(""))
    owner.partition.store.close(commit=False)
    assert (mine.served, others.served, others.code) == (True, False, SCHEMA_CHANGED)


@pytest.mark.parametrize("end", ["scope", "drop"])
def test_what_another_shard_ends_does_not_end_this_ones_table_for_ever(tmp_path: Path, end: str) -> None:
    """SHARD publishes the table no more (narrower `tables`, or DROP TABLE there). OTHER still does, and repeats it."""
    mine, marks = described(2, OTHER), (marker(3), marker(3, shard=OTHER))
    owner = two(tmp_path, mine, described(2, SHARD), value(1, b'{"id":1}', 3, shard=OTHER), *marks)
    meaning = folded_meaning(owner.partition, "shop.items", OTHER)
    assert meaning is not None
    ask = Get(0, "shop", 0, [key(1)], meanings={"shop.items": meaning.fingerprint})
    [before] = answer_rows(owner.partition, ask, demand_of(vector(3, shard=OTHER)))
    assert before.served
    if end == "scope":
        owner.fold(event("Scope", 4, tables=[]), marker(4))
    else:
        owner.fold(described(4, SHARD, columns=[], primary_key=[], cacheable=False, reason="dropped"), marker(4))
    for number in range(4, 40):
        owner.fold(mine, marker(number, shard=OTHER))  # what a publisher repeats
    [after] = answer_rows(owner.partition, ask, demand_of(vector(3, shard=OTHER)))
    owner.partition.store.close(commit=False)
    assert after.served, after.why


def test_a_succeeded_shards_description_does_not_count() -> None:
    """Nor does it where a store begins in the middle, and the old source still repeats itself."""
    folded = Folded()
    folded.state.head.offset = folded.state.head.begin = 100
    ancestors = [{"shard": "shop/old", "epoch": 1}]
    taken_over = event("Topology", 1, shards=[SHARD], ancestors=ancestors, succeeded=[])
    for message in (schema(2, shard="shop/old"), taken_over, marker(50), schema(40), schema(2, shard="shop/old")):
        folded.fold(message)
    found = table_descriptions(folded.state.head, folded.entries.get, "shop.items")
    assert [each["shard"] for each in found] == [SHARD]


def test_absence_at_one_shard_is_no_absence_of_a_row_of_another(tmp_path: Path) -> None:
    """A declared shard that has published nothing here yet may have the row. A fill would hide its first write."""
    owner = Owner(tmp_path)
    owner.fold(start(), topology(SHARD, OTHER), schema(2), marker(3))
    row = answer_row(owner.partition, key(1), demand_of(""))
    verdict = fill_row(owner.partition, Fill(0, "shop", 0, key(1), None, gtid(5), gtid(5), 0, row.stamp))
    own_write = vector(7, shard=OTHER)
    found = answer_row(owner.partition, key(1), demand_of(own_write))
    owner.partition.store.close(commit=False)
    assert not found.served, (verdict, found.freshness, found.image, found.why)
