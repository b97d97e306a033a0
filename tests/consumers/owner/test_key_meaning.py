"""What a key means is a part of the proof: partitions, descriptions and their fingerprints. No socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.fold.entry import ABSENT, VALUE
from consumers.owner.evidence import demand_of
from consumers.owner.meaning import fingerprint, folded_meaning, settled_meaning
from consumers.owner.protocol import SCHEMA_CHANGED, Describe, Fill, FillTable, Get, OwnerError, OwnerRow
from consumers.owner.reporting import describe_table
from consumers.owner.rows import answer_row, answer_rows, fill_row
from consumers.owner.tables import fill_table
from stream.wire.keys import Layout
from tests.consumers.histories import SHARD, event, frame, gtid, key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, schema, vector

TWO = "xxh3_64;partitions=2"
BY_ID = fingerprint([("id", "int", True)])


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """A partition with row 1 at 3."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), value(1, b'{"v":1}', 3), marker(3))
    yield owner
    owner.partition.store.close(commit=False)


def ask(owner: Owner, *keys: bytes, meaning: bytes = BY_ID) -> list[OwnerRow]:
    """What the owner answers to a front that believes ``meaning``."""
    request = Get(1, KEYSPACE, 0, list(keys), vector(3), 0, {"shop.items": meaning})
    return answer_rows(owner.partition, request, demand_of(vector(3)))


def test_keys_that_mean_the_same_on_both_sides_are_answered(owner: Owner) -> None:
    """The fingerprint of the folded description is the one that the front computes from what it was told."""
    [row] = ask(owner, key(1))
    assert (row.served, row.image, row.code) == (True, b'{"v":1}', "")


@pytest.mark.parametrize(
    "believed",
    [
        fingerprint([("id", "int", False)]),
        fingerprint([("id", "text", True)]),
        fingerprint([("id", "int", True), ("id", "int", True)]),
        fingerprint([("other", "int", True)]),
        b"",
    ],
)
def test_neither_a_value_nor_an_absence_is_given_to_a_front_that_means_another_key(
    owner: Owner, believed: bytes
) -> None:
    """Column, kind and exactness are parts of what a key means."""
    owner.fold(frame([(key(2), ABSENT, b"", 4)]), marker(4))
    for row in ask(owner, key(1), key(2), meaning=believed):
        assert (row.served, row.image, row.code, row.needs_source) == (False, None, SCHEMA_CHANGED, True)


def test_rows_of_a_table_without_a_description_are_not_served(owner: Owner) -> None:
    """A store may know rows of a table before it knows what their keys mean."""
    other = key(1, "shop.other")
    owner.fold(frame([(other, VALUE, b"{}", 4)]), marker(4))
    request = Get(1, KEYSPACE, 0, [other, key(1)], vector(3), 0, {"shop.other": BY_ID, "shop.items": BY_ID})
    unknown, known = answer_rows(owner.partition, request, demand_of(vector(3)))
    assert (unknown.served, unknown.code) == (False, SCHEMA_CHANGED)
    assert known.served


def test_a_description_that_is_ahead_of_the_head_proves_nothing(owner: Owner) -> None:
    """Entries become visible before the head: the void that belongs to the new description may be missing from it."""
    head = owner.partition.store.visible
    owner.fold(schema(5, primary_key=["id"], columns=[{"name": "id", "kind": "int", "exact": True}]))
    owner.partition.store.visible = head
    [row] = ask(owner, key(1))
    assert (row.served, row.code) == (False, SCHEMA_CHANGED)


def test_a_fill_is_refused_if_its_key_means_something_else_here(owner: Owner) -> None:
    """Its row was read under another description."""
    stamp = answer_row(owner.partition, key(7), demand_of(vector(3))).stamp

    def fill(meaning: bytes) -> Any:
        return fill_row(owner.partition, Fill(1, KEYSPACE, 0, key(7), b"{}", gtid(5), gtid(5), 0, stamp, meaning))

    assert "mean something else" in fill(fingerprint([("id", "text", True)])).why
    assert fill(BY_ID).accepted


def test_a_partition_that_is_behind_does_not_describe_what_left_the_scope(owner: Owner, tmp_path: Path) -> None:
    """A scope that one partition has folded counts for the descriptions that the others still hold."""
    ahead = Owner(tmp_path / "ahead", number=1)
    ahead.fold(start(), schema(2), event("Scope", 4, tables=["shop.other"]), marker(4))
    assert describe_table(owner.ownership.of(KEYSPACE), Describe(1, KEYSPACE, "shop.items")).found
    owner.ownership.add(ahead.partition)
    assert not describe_table(owner.ownership.of(KEYSPACE), Describe(1, KEYSPACE, "shop.items")).found
    ahead.partition.store.close(commit=False)


def test_a_catalog_tables_answer_is_kept_only_where_its_id_hashes_to(tmp_path: Path) -> None:
    """Else a table's fill would stand in a partition that gets none of its events."""
    owner = Owner(tmp_path)
    owner.fold(start(), marker(4, layout=TWO))
    number = next(n for n in range(1, 99) if Layout.parse(TWO).table_partition(n) == 1)
    offer = FillTable(1, KEYSPACE, 0, number, "shop.t", "EXTERNAL", b"{}", "", gtid(4), gtid(4), b"")
    with pytest.raises(OwnerError, match="kept in partition 1") as refused:
        fill_table(owner.partition, offer)
    assert refused.value.code == "wrong_partition"
    owner.partition.store.close(commit=False)


def test_keys_of_another_partition_are_refused(tmp_path: Path) -> None:
    """An owner of partition 0 knows nothing of a key of partition 1: its watermark proves nothing about it."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), marker(3, layout=TWO))
    layout = Layout.parse(TWO)
    here, elsewhere = (next(k for k in map(key, range(100)) if layout.partition_of(k) == n) for n in (0, 1))
    assert len(ask(owner, here)) == 1
    with pytest.raises(OwnerError, match="in partition 1") as refused:
        ask(owner, here, elsewhere)
    assert refused.value.code == "wrong_partition"
    stamp = answer_row(owner.partition, elsewhere, demand_of(vector(3))).stamp
    with pytest.raises(OwnerError, match="in partition 1"):
        fill_row(owner.partition, Fill(1, KEYSPACE, 0, elsewhere, b"{}", gtid(5), gtid(5), 0, stamp))
    owner.partition.store.close(commit=False)


def test_a_meaning_is_looked_up_anew_when_the_head_has_moved(owner: Owner) -> None:
    """What was looked up before the DDL must not answer a front that still means the old key."""
    [row] = ask(owner, key(1))
    assert (row.served, row.code) == (True, "")
    [row] = ask(owner, key(1))
    assert row.served
    owner.fold(schema(4, columns=[{"name": "id", "kind": "text", "exact": True}]), marker(5))
    [row] = ask(owner, key(1))
    assert (row.served, row.code) == (False, SCHEMA_CHANGED)
    [row] = ask(owner, key(1), meaning=fingerprint([("id", "text", True)]))
    assert row.code == ""


@pytest.mark.parametrize("is_folding", [False, True])
def test_a_meaning_is_looked_up_anew_while_a_batch_is_folded(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, is_folding: bool
) -> None:
    """Descriptions become visible before the head that covers them: the rows that are read may be of the new ones."""
    partition, head = owner.partition, owner.partition.store.visible
    kept = folded_meaning(partition, "shop.items", SHARD)
    assert kept is not None
    partition.meanings_of, partition.meanings = head, {("shop.items", SHARD): kept._replace(reason="of before")}
    monkeypatch.setattr(type(partition.store), "is_folding", is_folding)
    found = settled_meaning(partition, head, "shop.items", SHARD)
    assert found == (kept if is_folding else kept._replace(reason="of before"))


def test_without_a_description_the_whole_key_chooses_the_partition(tmp_path: Path) -> None:
    """A front that knows no prefix of the table asks by the whole key, and is not sent away."""
    layout = Layout.parse(TWO)
    keys = [b"shop.none\0[%d,%d]" % (n, m) for n in range(9) for m in range(9)]
    chosen = next(each for each in keys if layout.partition_of(each, 0) == 0 and layout.partition_of(each, 1) == 1)
    owner = Owner(tmp_path)
    owner.fold(start(), marker(2, layout=TWO))
    [row] = answer_rows(owner.partition, Get(1, KEYSPACE, 0, [chosen], vector(2)), demand_of(vector(2)))
    assert not row.served
    other = next(each for each in keys if layout.partition_of(each, 0) == 1)
    with pytest.raises(OwnerError):
        answer_rows(owner.partition, Get(1, KEYSPACE, 0, [other], vector(2)), demand_of(vector(2)))
    owner.partition.store.close(commit=False)


def test_a_description_of_a_later_epoch_is_newer_than_any_of_before(owner: Owner, tmp_path: Path) -> None:
    """Its ordinals begin anew: a partition that is behind holds a higher one, of the history that has ended."""
    ahead = Owner(tmp_path / "ahead", number=1)
    ahead.fold(start(epoch=2), schema(2, epoch=2, primary_key=["name"]), marker(2, epoch=2))
    owner.fold(schema(9), marker(9))
    for owned in ([owner.partition, ahead.partition], [ahead.partition, owner.partition]):
        assert describe_table(owned, Describe(1, KEYSPACE, "shop.items")).primary_key == ["name"]
    ahead.partition.store.close(commit=False)


def test_a_meaning_is_looked_up_anew_after_another_tables_was(owner: Owner) -> None:
    """All that was looked up for an earlier head is over with the first look-up for a later one."""
    other = key(1, "shop.others")
    owner.fold(schema(4, "shop.others"), frame([(other, VALUE, b"{}", 5)]), marker(5))

    def code(each: bytes) -> str:
        meanings = {"shop.items": BY_ID, "shop.others": BY_ID}
        [row] = answer_rows(owner.partition, Get(1, KEYSPACE, 0, [each], meanings=meanings), demand_of(""))
        return row.code

    assert [code(each) for each in (key(1), other)] == ["", ""]
    owner.fold(schema(6, columns=[{"name": "id", "kind": "text", "exact": True}]), marker(6))
    assert [code(each) for each in (other, key(1))] == ["", SCHEMA_CHANGED]


def test_a_description_of_an_epoch_that_the_head_has_not_is_ahead_of_it(owner: Owner) -> None:
    """Its ordinal is low, because ordinals begin anew; the void of all that was before may be missing from the head."""
    head = owner.partition.store.visible
    owner.fold(start(epoch=2), schema(2, epoch=2))
    owner.partition.store.visible = head
    [row] = ask(owner, key(1))
    assert (row.served, row.code) == (False, SCHEMA_CHANGED)
