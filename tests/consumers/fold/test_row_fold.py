"""The row fold: which event wins, what a void hides, what bad input does."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumers.fold.entry import decode_entry
from consumers.owner.protocol import UNKNOWN_KEY, OwnerRow
from consumers.owner.rows import judge_fill, view_row
from stream.wire.events import ABSENT, VALUE, VOID
from tests.consumers.histories import LAYOUT, SHARD, Folded, event, frame, gtid, key, marker, start, value


def _view(folded: Folded, number: int) -> OwnerRow:
    return view_row(folded.state.head, key(number), folded.entries.get(key(number)))


def _may_fill(folded: Folded, number: int, lo: str) -> bool:
    return judge_fill(folded.state.head, key(number), _view(folded, number), lo).accepted


def test_a_newer_ordinal_replaces_and_carries_the_transactions_position() -> None:
    """The last event of a key in its lineage is what the key stands for."""
    folded = Folded(start(), value(1, b"old", 2), value(1, b"new", 3))
    entry = decode_entry(folded.entries[key(1)])
    assert (entry.image, entry.ordinal, entry.position) == (b"new", 3, gtid(3))


def test_a_duplicate_or_late_event_of_the_lineage_is_discarded() -> None:
    """A redelivered or reordered event never takes an entry back."""
    folded = Folded(start(), value(1, b"new", 5), value(1, b"old", 4), value(1, b"new", 5))
    assert decode_entry(folded.entries[key(1)]).image == b"new"


def test_a_late_event_of_a_key_not_seen_yet_is_kept() -> None:
    """An event below the lineage's last ordinal is compared with its own key's entry, not dropped."""
    folded = Folded(start(), value(1, b"one", 5), value(2, b"two", 4))
    assert _view(folded, 2).image == b"two"


def test_a_delete_is_a_tombstone_that_knows_the_row_is_absent() -> None:
    """A deleted row is known absent; a void one is only known to have changed."""
    folded = Folded(start(), value(1, b"x", 2), frame([(key(1), ABSENT, b"", 3)]), frame([(key(2), VOID, b"", 4)]))
    assert (_view(folded, 1).kind, _view(folded, 2).kind) == (ABSENT, VOID)


def test_an_event_of_another_shard_that_cannot_be_ordered_leaves_a_tombstone() -> None:
    """Unknown order is never resolved by guessing: the key becomes a tombstone with the event's token."""
    folded = Folded(start(), start(shard="shop/1"), value(1, b"a", 2), value(1, b"b", 7, shard="shop/1"))
    entry = decode_entry(folded.entries[key(1)])
    assert (entry.kind, entry.shard, entry.ordinal) == (VOID, "shop/1", 7)


def test_an_event_whose_origin_is_the_entrys_shard_is_ordered_by_it() -> None:
    """Filtered replication keeps the source's coordinate, and that orders events across shards."""
    folded = Folded(start(), start(shard="shop/1"), value(1, b"a", 5))
    folded.fold(value(1, b"older", 2, shard="shop/1", origins=[f"{SHARD} 1 {gtid(4)}"]))
    assert _view(folded, 1).image == b"a"
    folded.fold(value(1, b"newer", 3, shard="shop/1", origins=[f"{SHARD} 1 {gtid(6)}"]))
    assert _view(folded, 1).image == b"newer"


def test_the_watermark_moves_only_by_markers() -> None:
    """Folding events proves nothing about the rest of the partition."""
    folded = Folded(start(), value(1, b"a", 2))
    assert folded.state.head.lineages[SHARD].watermark == ""
    folded.fold(marker(2))
    assert folded.state.head.lineages[SHARD].watermark == gtid(2)
    folded.fold(marker(1))
    assert folded.state.head.lineages[SHARD].watermark == gtid(2)


def test_a_table_void_hides_older_entries_and_not_newer_ones() -> None:
    """A range tombstone voids what was before it, of its table and shard only."""
    folded = Folded(start(), value(1, b"a", 2), frame([(key(1, "shop.other"), VALUE, b"o", 3)]))
    folded.fold(event("TableVoid", 4, table="shop.items", reason="DDL"))
    assert _view(folded, 1).kind == VOID
    other = key(1, "shop.other")
    assert view_row(folded.state.head, other, folded.entries[other]).kind == VALUE
    folded.fold(value(1, b"b", 5))
    assert _view(folded, 1).image == b"b"


def test_a_new_epoch_voids_every_entry_of_the_old_one() -> None:
    """After lost history nothing of the old history is served."""
    folded = Folded(start(), value(1, b"a", 2), marker(2), start(epoch=2, sequence=9))
    view = _view(folded, 1)
    assert (view.kind, view.epoch, view.watermark) == (VOID, 2, "")
    assert folded.fold(value(2, b"late", 8)).rejections[0].code == "older_epoch"


def test_an_unannounced_epoch_voids_too_and_waits_for_its_marker() -> None:
    """A lost EpochStart doesn't let entries of the lost history answer, nor fills below an unknown start."""
    folded = Folded(start(), value(1, b"a", 2), marker(2), value(3, b"c", 2, epoch=2))
    assert _view(folded, 1).kind == VOID
    assert not _may_fill(folded, 1, gtid(99))
    folded.fold(marker(2, epoch=2))
    assert _may_fill(folded, 1, gtid(99))


def test_garbage_voids_the_partition_until_the_marker_that_follows() -> None:
    """An unreadable message may have changed anything, so nothing older is served or filled."""
    folded = Folded(start(), value(1, b"a", 2), marker(2), b"\x01garbage")
    assert len(folded.rejection_codes) == 1
    assert _view(folded, 1).kind == VOID
    assert _view(folded, 2).kind == UNKNOWN_KEY
    assert not _may_fill(folded, 2, gtid(50))
    folded.fold(marker(2, whole=False))
    assert not _may_fill(folded, 2, gtid(50))
    folded.fold(marker(3))
    assert _may_fill(folded, 2, gtid(50))
    assert not _may_fill(folded, 2, gtid(2))


def test_a_row_with_an_unknown_operation_voids_its_key_only() -> None:
    """Bad input voids as little as it can: here one key."""
    folded = Folded(start(), value(1, b"a", 2), frame([(key(1), 9, b"", 3), (key(2), VALUE, b"b", 4)]))
    assert folded.rejection_codes == ["bad_operation"]
    assert (_view(folded, 1).kind, _view(folded, 2).image) == (VOID, b"b")


def test_a_frame_whose_columns_disagree_voids_the_partition_and_the_stream_goes_on() -> None:
    """An inconsistent frame is a dead letter, not a crash."""
    folded = Folded(start(), value(1, b"a", 2), frame([(key(1), VALUE, b"x", 3)], transactions=[2]))
    assert len(folded.rejection_codes) == 1
    assert _view(folded, 1).kind == VOID
    folded.fold(value(2, b"b", 4))
    assert _view(folded, 2).image == b"b"


def test_a_marker_of_another_layout_is_refused() -> None:
    """A topic whose partitioner or partition count differs can't move the watermark."""
    folded = Folded(start(), marker(1), marker(2, layout=LAYOUT.replace("=1", "=2")))
    assert folded.rejection_codes == ["layout_changed"]
    assert folded.state.head.lineages[SHARD].watermark == gtid(1)


def test_fills_obey_the_low_water_and_tombstones() -> None:
    """No fill is kept over a value, over a newer tombstone, below the low-water or behind the watermark."""
    folded = Folded(start(sequence=10), marker(1, sequence=10, low_water=gtid(10)))
    assert not _may_fill(folded, 1, gtid(9))
    assert _may_fill(folded, 1, gtid(10))
    folded.fold(frame([(key(1), ABSENT, b"", 20)]))
    assert not _may_fill(folded, 1, gtid(19))
    assert _may_fill(folded, 1, gtid(20))
    folded.fold(value(2, b"v", 21))
    assert not _may_fill(folded, 2, gtid(30))
    folded.fold(marker(25, low_water=gtid(10)))
    assert not _may_fill(folded, 3, gtid(24))


_rows = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([VALUE, ABSENT, VOID]), st.binary(min_size=1, max_size=4)),
    min_size=1,
    max_size=30,
)


@given(_rows, st.data())
def test_framing_and_redelivery_do_not_change_the_state(
    rows: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    """The state does not depend on how rows are framed or how often a suffix is redelivered."""
    numbered = [(key(number), op, image if op == VALUE else b"", at) for at, (number, op, image) in enumerate(rows, 2)]
    one_by_one = Folded(start(), *(frame([row]) for row in numbered))
    grouped = Folded(start())
    at = 0
    while at < len(numbered):
        size = data.draw(st.integers(1, 6))
        grouped.fold(frame(numbered[at : at + size]))
        again = data.draw(st.integers(0, at))
        grouped.fold(frame(numbered[again : at + size]))
        at += size
    assert one_by_one.entries == grouped.entries
    assert one_by_one.state.head.lineages == grouped.state.head.lineages


@given(st.binary(max_size=200))
def test_no_bytes_stop_the_fold(message: bytes) -> None:
    """For any bytes the fold returns changes, and the next message folds."""
    folded = Folded(start(), message, b"\xc3\x01" + message)
    folded.fold(value(1, b"after", 900))
    assert _view(folded, 1).image == b"after"


def test_a_transaction_without_rows_takes_no_other_ones_place() -> None:
    """Old frames may hold one; the rows after it keep their own transaction's position."""
    rows = [(key(1), VALUE, b"a", 2), (key(2), VALUE, b"b", 4)]
    columns: dict[str, Any] = {
        "transactions": [1, 0, 1],
        "gtids": [gtid(2), gtid(3), gtid(4)],
        "timestamps": [1_700_000_000] * 3,
    }
    folded = Folded(start(), marker(1), frame(rows, **columns))
    assert [decode_entry(folded.entries[key(number)]).position for number in (1, 2)] == [gtid(2), gtid(4)]
