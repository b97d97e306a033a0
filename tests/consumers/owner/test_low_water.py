"""Fills and the low-water: what dropped a tombstone must not bring back. No socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.fold.entry import ABSENT
from consumers.owner.evidence import demand_of
from consumers.owner.protocol import Fill
from consumers.owner.rows import answer_row, fill_row
from tests.consumers.fold.test_backfills import begun, complete, topology
from tests.consumers.histories import SHARD, frame, gtid, key, marker, start
from tests.consumers.owning import KEYSPACE, Owner, schema, vector


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """A partition whose key 7 was filled at 5, and whose low-water is at 1."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), marker(5, low_water=gtid(1)))
    row = answer_row(owner.partition, key(7), demand_of(vector(5)))
    assert fill_row(owner.partition, Fill(1, KEYSPACE, 0, key(7), b'{"v":1}', gtid(5), gtid(5), 0, row.stamp)).accepted
    yield owner
    owner.partition.store.close(commit=False)


def drop(owner: Owner, number: int) -> None:
    """Drops a key's tombstone, as a fold does below the low-water."""
    assert owner.partition.store._active.entries.pop(key(number))


def test_a_dropped_tombstone_does_not_bring_a_forgotten_fill_back(owner: Owner) -> None:
    """A key whose tombstone is dropped has the stamp again that it had before, so the low-water must tell."""
    owner.fold(frame([(key(7), ABSENT, b"", 6)]), marker(6, low_water=gtid(1)))
    drop(owner, 7)
    owner.fold(marker(7, low_water=gtid(6)))
    row = answer_row(owner.partition, key(7), demand_of(vector(6)))
    assert (row.served, row.image, row.filled) == (False, None, False)


def test_a_fill_past_the_low_water_is_kept_when_the_low_water_rises(owner: Owner) -> None:
    """Its value contains everything below the low-water, so no dropped tombstone can be missing from it."""
    owner.fold(marker(7, low_water=gtid(5)))
    row = answer_row(owner.partition, key(7), demand_of(vector(6)))
    assert (row.served, row.image, row.freshness) == (True, b'{"v":1}', "fresh")
    owner.fold(marker(8, low_water=gtid(6)))
    assert not answer_row(owner.partition, key(7), demand_of(vector(6))).served
    assert len(owner.partition.overlay) == 0


def test_a_fill_that_began_before_a_tombstone_was_dropped_is_refused(owner: Owner) -> None:
    """A late fill has the stamp of the key before its tombstone; the low-water refuses it."""
    stamp = answer_row(owner.partition, key(8), demand_of(vector(5))).stamp
    owner.fold(frame([(key(8), ABSENT, b"", 6)]), marker(6, low_water=gtid(1)))
    drop(owner, 8)
    owner.fold(marker(7, low_water=gtid(6)))
    late = Fill(1, KEYSPACE, 0, key(8), b'{"v":1}', gtid(5), gtid(5), 0, stamp)
    assert "below the low-water" in fill_row(owner.partition, late).why


def test_a_fill_from_before_a_deletion_stays_forgotten_when_its_table_is_whole_no_more(owner: Owner) -> None:
    """Nothing is left of the deletion, and no void tells that anything happened: the table is only read anew."""
    owner.fold(topology(SHARD), begun(6), frame([(key(7), ABSENT, b"", 7)]), complete(8), marker(8))
    assert answer_row(owner.partition, key(7), demand_of(vector(8))).served
    owner.partition.store.commit()
    assert owner.partition.store.get(key(7)) is None
    row = answer_row(owner.partition, key(7), demand_of(vector(8)))
    assert (row.served, row.image, row.hi) == (True, None, gtid(8))
    owner.fold(begun(9), marker(9))
    row = answer_row(owner.partition, key(7), demand_of(vector(8)))
    assert (row.served, row.image, row.filled, row.low_water) == (False, None, False, gtid(7))
    late = Fill(1, KEYSPACE, 0, key(7), b'{"v":1}', gtid(6), gtid(6), 0, row.stamp)
    assert "below the low-water" in fill_row(owner.partition, late).why
