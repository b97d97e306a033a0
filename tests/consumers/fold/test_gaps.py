"""Kafka may lose its end and be filled again. The chain of markers shows it, and everything becomes void."""

from __future__ import annotations

import pytest

from consumers.fold.entry import VALUE, VOID
from consumers.fold.state import Void
from consumers.owner.rows import view_row
from stream.wire.events import EVERY_TABLE
from tests.consumers.histories import SHARD, Folded, gtid, key, marker, start, value


def _view(folded: Folded, number: int) -> int:
    return view_row(folded.state.head, key(number), folded.entries[key(number)]).kind


def test_a_chain_without_a_gap_voids_nothing() -> None:
    """Each marker names the one before; the first one names none, an older version's markers neither."""
    folded = Folded(start(), value(1, b"a", 2), marker(2, continuity=7), marker(2, continuity=8, previous=7))
    folded.fold(marker(2, continuity=8, previous=7))
    folded.fold(marker(3))
    folded.fold(marker(4, continuity=9, previous=5))
    assert (folded.rejection_codes, _view(folded, 1)) == ([], VALUE)


def test_a_refilled_log_voids_its_shard() -> None:
    """The key may have changed in what was lost."""
    folded = Folded(start(), value(1, b"a", 2), marker(2, continuity=7), marker(3, continuity=9, previous=8))
    assert (folded.rejection_codes, _view(folded, 1)) == (["log_gap"], VOID)
    assert folded.state.head.voids[EVERY_TABLE, SHARD] == Void(1, 3, gtid(3))


def test_a_marker_that_is_passed_over_does_not_end_the_chain() -> None:
    """An older version's marker links nothing. With a lower number than the last it is itself a sign of a lost end."""
    folded = Folded(start(), value(1, b"a", 2), marker(3, continuity=7), marker(2))
    folded.fold(marker(4, continuity=9, previous=8))
    assert folded.rejection_codes == ["log_gap"]


def test_fills_wait_until_the_lost_numbers_are_passed() -> None:
    """The refilled log may use the lost numbers again for later changes, which would be taken for known ones."""
    folded = Folded(start(), value(1, b"a", 50), marker(50, continuity=7))
    folded.fold(marker(41, continuity=21, previous=20))
    assert folded.rejection_codes == ["log_gap"]
    assert folded.state.head.voids[EVERY_TABLE, SHARD] == Void(1, 50, "")
    folded.fold(marker(49, continuity=22, previous=21))
    assert folded.state.head.voids[EVERY_TABLE, SHARD].floor == ""
    folded.fold(marker(50, sequence=46, continuity=23, previous=22))
    assert folded.state.head.voids[EVERY_TABLE, SHARD].floor == gtid(46)
    assert folded.rejection_codes == ["log_gap"]


@pytest.mark.parametrize("whole", [True, False])
def test_only_a_marker_at_a_transactions_end_gives_the_floor(*, whole: bool) -> None:
    """In the middle of a transaction its position says nothing of the part that is out."""
    folded = Folded(start(), marker(2, continuity=7), marker(3, continuity=9, previous=8, whole=whole))
    assert bool(folded.state.head.voids[EVERY_TABLE, SHARD].floor) is whole


def test_a_marker_proves_nothing_of_an_entry_that_follows_it() -> None:
    """Right after a gap, and before its marker, an entry may lie below the watermark of the lost log."""
    folded = Folded(start(), value(1, b"a", 2), marker(50, continuity=7))
    assert view_row(folded.state.head, key(1), folded.entries[key(1)]).watermark == gtid(50)
    folded.fold(value(1, b"b", 51))
    assert view_row(folded.state.head, key(1), folded.entries[key(1)]).watermark == ""


def test_a_new_epoch_begins_a_chain_of_its_own() -> None:
    """Its first marker has no predecessor."""
    folded = Folded(start(), marker(2, continuity=7), start(epoch=2), marker(1, epoch=2, continuity=3))
    assert folded.rejection_codes == []
    assert folded.state.head.lineages[SHARD].continuity == 3
