"""The head is read before the entry: an entry is never judged by a watermark that moved after it was read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.fold.catalog_state import decode_table, name_key, table_key
from consumers.owner.evidence import demand_of
from consumers.owner.objects import answering as objects
from consumers.owner.protocol import Fill, Get
from consumers.owner.rows import answer_row, answer_rows, fill_row, view_row
from consumers.owner.tables import CHANGING, answer_table, view_table
from stream.wire.events import VOID
from tests.consumers.histories import event, frame, gtid, key, marker, start, value
from tests.consumers.owner.test_owner_tables import NAME, at, bind, image, mark, token
from tests.consumers.owning import KEYSPACE, Owner, schema, vector
from tokens import Freshness

LISTED = f"{NAME}:5:9223372036854775807::"


def owner_of_table(directory: Path) -> Owner:
    """An owner of one table with an image, all of it before the watermark."""
    owner = Owner(directory)
    owner.fold(
        event("EpochStart", 1, gtid=at(1), position=at(0), reason="first_start"),
        bind(2, 7),
        image(3, "created", b"old", write_ids=LISTED),
        mark(4),
    )
    return owner


def fold_after_reading(owner: Owner, wanted: bytes, *messages: bytes) -> None:
    """Lets the fold thread fold ``messages`` right after a reader has got the entry ``wanted``."""
    store = owner.partition.store
    get: Callable[[bytes], bytes | None] = store.get
    waiting = list(messages)

    def get_and_fold(key: bytes) -> bytes | None:
        found = get(key)
        if key == wanted and waiting:
            folded, waiting[:] = list(waiting), []
            owner.fold(*folded)
        return found

    store.get = get_and_fold  # type: ignore[method-assign]


def test_a_row_that_changes_after_it_was_read_is_not_fresh_for_its_change(tmp_path: Path) -> None:
    """The watermark that covers the change must not be taken with the value from before it."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), value(1, b"old", 3), marker(3))
    fold_after_reading(owner, key(1), value(1, b"new", 4), marker(4))
    [row] = answer_rows(owner.partition, Get(1, KEYSPACE, 0, [key(1)], vector(4)), demand_of(vector(4)))
    assert (row.served, row.image, row.watermark) == (False, None, gtid(3))
    assert row.freshness == Freshness.STALE.value
    again = answer_row(owner.partition, key(1), demand_of(vector(4)))
    assert (again.served, again.image) == (True, b"new")
    owner.partition.store.close(commit=False)


def test_a_table_that_changes_after_it_was_read_is_not_fresh_for_its_change(tmp_path: Path) -> None:
    """As for rows: its image from before a write is not served to who has seen the write."""
    owner = owner_of_table(tmp_path)
    written = catalog_image(5)
    fold_after_reading(owner, table_key(7), *written)
    found = answer_table(owner.partition, NAME, 7, demand_of(token(6), LISTED, 7))
    assert (found.served, found.image, found.watermark) == (False, None, at(4))
    again = answer_table(owner.partition, NAME, 7, demand_of(token(6), LISTED, 7))
    assert (again.served, again.image) == (True, b"new")
    owner.partition.store.close(commit=False)


def catalog_image(ordinal: int) -> tuple[bytes, ...]:
    """A write of the table, its new image, and the marker past both."""
    return image(ordinal, "written", b"new", lo=at(ordinal), hi=at(ordinal)), mark(ordinal + 1)


def test_a_fill_is_judged_by_the_voids_from_before_its_entry(tmp_path: Path) -> None:
    """A void between the two looks changes the stamp, so the fill never counts, whatever is answered."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), frame([(key(1), VOID, b"", 3)]), marker(3))
    stamp = answer_row(owner.partition, key(1), demand_of(vector(3))).stamp
    void = event("TableVoid", 4, table="shop.items", reason="lost")
    fold_after_reading(owner, key(1), void)
    fill_row(owner.partition, Fill(1, KEYSPACE, 0, key(1), b"late", gtid(3), gtid(3), 0, stamp))
    row = answer_row(owner.partition, key(1), demand_of(vector(3)))
    assert (row.served, row.image, row.filled) == (False, None, False)
    owner.partition.store.close(commit=False)


@pytest.mark.parametrize("table", ["shop.items", "*"])
def test_the_stamp_of_a_row_names_the_voids_of_its_table_and_of_everything(tmp_path: Path, table: str) -> None:
    """What is filled before a void is not served after it, and a fill over the state from before is refused."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), marker(3))
    before = answer_row(owner.partition, key(1), demand_of(vector(3)))
    owner.fold(event("TableVoid", 4, table=table, reason="lost"))
    after = answer_row(owner.partition, key(1), demand_of(vector(3)))
    assert before.stamp != after.stamp
    owner.fold(event("TableVoid", 5, table="shop.others", reason="lost"))
    assert answer_row(owner.partition, key(1), demand_of(vector(3))).stamp == after.stamp, "not one of its own"
    late = Fill(1, KEYSPACE, 0, key(1), b"late", gtid(5), gtid(5), 0, before.stamp)
    assert "changed since it was read" in fill_row(owner.partition, late).why
    owner.partition.store.close(commit=False)


def test_the_head_that_a_reader_holds_does_not_move(tmp_path: Path) -> None:
    """The head for readers is replaced, never changed: what they have read is judged by what they had read before."""
    owner = Owner(tmp_path)
    owner.fold(start(), value(1, b"a", 2), marker(2))
    store = owner.partition.store
    head = store.visible
    owner.fold(value(1, b"b", 3), marker(3), event("TableVoid", 4, table="*", reason="lost"))
    assert head.lineages["shop/0"].watermark == gtid(2)
    assert not head.voids
    assert store.visible.lineages["shop/0"].watermark == gtid(3)
    assert store.visible.voids
    store.close(commit=False)


def test_an_entry_of_an_epoch_that_the_head_has_not_is_of_that_epoch(tmp_path: Path) -> None:
    """A new history began after the head was read: by the epoch of before, its sessions would take it for theirs."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), value(1, b"old", 3), marker(3))
    store = owner.partition.store
    head = store.visible
    owner.fold(start(epoch=2), value(1, b"new", 2, epoch=2), marker(2, epoch=2))
    row = view_row(head, key(1), store.get(key(1)))
    assert (row.image, row.epoch, row.watermark, row.low_water) == (b"new", 2, "", "")
    store.close(commit=False)


def test_a_table_that_was_written_since_the_head_was_read_is_changing(tmp_path: Path) -> None:
    """A void between the two looks would not be seen: whatever is folded by now, the image may be of before it."""
    owner = owner_of_table(tmp_path)
    fold_after_reading(owner, name_key(NAME), *catalog_image(5))
    found = answer_table(owner.partition, NAME, 7, demand_of(token(4), LISTED, 7))
    assert (found.served, found.image, found.why) == (False, None, CHANGING)
    owner.partition.store.close(commit=False)


def test_a_table_and_its_objects_name_no_shard_that_the_head_does_not_know(tmp_path: Path) -> None:
    """It was folded after the head was read: a name without an epoch would be in epoch 0 for a front."""
    head = Owner(tmp_path / "before").partition.store.visible
    owner = owner_of_table(tmp_path / "after")
    store = owner.partition.store
    state = decode_table(store.get(table_key(7)) or b"")
    assert view_table(head, state, 7, b"").shard == ""
    assert view_table(store.visible, state, 7, b"").shard == state.shard
    place = objects._place(owner.partition, "partition", 7)
    assert objects._undecided(owner.partition, place._replace(head=head), 7).shard == ""
    assert objects._undecided(owner.partition, place, 7).shard == state.shard
    store.close(commit=False)
