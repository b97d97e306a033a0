"""A state that begins in the middle of the topic: what was before is unknown, and nothing is proved from it."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.fold.catalog_state import decode_table, table_key
from consumers.fold.declared import table_descriptions
from consumers.fold.state import Scope
from consumers.owner.protocol import UNKNOWN_KEY
from consumers.owner.rows import judge_fill, view_row
from stream.wire.codec import Record
from stream.wire.events import EVERY_TABLE
from tests.consumers.histories import SHARD, Folded, event, gtid, key, marker, start, value

COLUMNS = [{"name": "id", "kind": "int", "exact": True}]
TABLE: dict[str, Any] = {
    "table_id": 7,
    "name": "d.t",
    "kind": "transactional",
    "txn": 0,
    "write_id": 0,
    "staged": False,
}
IMAGE: dict[str, Any] = TABLE | {
    "change": "image",
    "image": b"{}",
    "write_ids": "d.t:5:9223372036854775807::",
    "lo": "",
    "hi": "",
}


def begun(*messages: bytes, at: int = 100) -> Folded:
    """A partition that begins at an offset above 0."""
    folded = Folded()
    folded.state.head.begin = folded.state.head.offset = at
    for message in messages:
        folded.fold(message)
    return folded


def schema(ordinal: int, *, table: str = "shop.items", **more: Any) -> bytes:
    """A description of a table."""
    fields: dict[str, Any] = {
        "columns": COLUMNS,
        "primary_key": ["id"],
        "cacheable": True,
        "reason": "",
        "prefix": 0,
        **more,
    }
    return event("TableSchema", ordinal, table=table, **fields)


def described(folded: Folded, table: str = "shop.items") -> list[Record]:
    """What is said of a table, by each shard."""
    return table_descriptions(folded.state.head, folded.entries.get, table)


def describing(folded: Folded) -> list[str]:
    """The shards that describe the table."""
    return [each["shard"] for each in described(folded)]


def scope(ordinal: int) -> bytes:
    """From here on only what is described after it is published."""
    return event("Scope", ordinal, tables=["shop.*"])


def _refusal(folded: Folded, lo: str) -> str:
    view = view_row(folded.state.head, key(1), folded.entries.get(key(1)))
    assert view.kind == UNKNOWN_KEY
    verdict = judge_fill(folded.state.head, key(1), view, lo)
    return "" if verdict.accepted else verdict.why


def test_no_fill_before_the_first_marker_at_a_transactions_end() -> None:
    """A transaction that began before the state did may have changed the key, and is not in the marker's position."""
    folded = begun(value(2, b"x", 60))
    assert "low-water (unknown)" in _refusal(folded, gtid(70))
    folded.fold(marker(50, whole=False))
    assert "low-water (unknown)" in _refusal(folded, gtid(70))
    folded.fold(marker(60))
    assert folded.state.head.lineages[SHARD].low_water == gtid(60)
    assert "low-water" in _refusal(folded, gtid(59))
    assert _refusal(folded, gtid(60)) == ""


def test_the_low_water_only_rises() -> None:
    """Later markers raise it, and never set it back."""
    folded = begun(marker(60), marker(70, low_water=gtid(65)), marker(80, low_water=gtid(1)))
    assert folded.state.head.lineages[SHARD].low_water == gtid(65)


def test_a_state_from_the_start_takes_the_publishers_low_water() -> None:
    """It has folded everything since then."""
    folded = Folded(marker(60, low_water=gtid(3)))
    assert folded.state.head.lineages[SHARD].low_water == gtid(3)


def test_an_epoch_that_begins_later_brings_its_own_low_water() -> None:
    """Everything of it is folded."""
    folded = begun(marker(60), start(epoch=2, sequence=40))
    assert folded.state.head.lineages[SHARD].low_water == gtid(40)


def test_a_repeated_description_is_adopted_and_is_no_old_event() -> None:
    """It carries its original place, far below what is folded."""
    folded = begun(value(2, b"x", 60), schema(5))
    assert described(folded, "shop.items")
    assert folded.state.head.lineages[SHARD].ordinal == 60
    folded.fold(schema(61, cacheable=False, reason="no key"))
    folded.fold(schema(5))
    [found] = described(folded)
    assert (found["reason"], folded.rejection_codes) == ("no key", [])


def test_a_repeat_does_not_displace_what_another_shard_has_described() -> None:
    """A table moved to another shard; the first one's publisher still says what it said before."""
    folded = Folded(start(), schema(2), value(1, b"a", 3), start(shard="shop/1"))
    folded.fold(schema(2, shard="shop/1", cacheable=False, reason="moved"))
    folded.fold(schema(2))
    assert {each["shard"]: each["reason"] for each in described(folded)} == {SHARD: "", "shop/1": "moved"}


def test_a_repeat_of_an_epoch_that_is_over_is_no_dead_letter() -> None:
    """The publisher may still say it; what is newer stays."""
    folded = Folded(start(), schema(2), start(epoch=2), schema(2))
    assert folded.rejection_codes == []
    assert described(folded, "shop.items")


def test_a_scope_forgets_what_was_described_before_it_and_voids_what_was_folded() -> None:
    """A table that left the choice gets no events any more, so nothing folded of it may be served."""
    folded = Folded(start(), schema(2), schema(3, table="shop.old"), value(1, b"a", 4), marker(4), scope(5), schema(6))
    head = folded.state.head
    assert described(folded, "shop.items")
    assert not described(folded, "shop.old")
    assert head.scopes == {SHARD: Scope(1, 5)}
    assert head.voids[EVERY_TABLE, SHARD].ordinal == 5
    assert view_row(head, key(1), folded.entries[key(1)]).image is None


def test_what_a_shard_publishes_is_not_what_another_one_describes() -> None:
    """After a scope of its own only what the shard itself described again is published by it."""
    of_other = schema(3, table="shop.items", shard="shop/1")
    folded = Folded(start(), schema(2), start(shard="shop/1"), of_other, scope(4))
    assert describing(folded) == ["shop/1"]
    folded.fold(schema(2))
    assert describing(folded) == ["shop/1"], "a repeat from before the scope"
    folded.fold(schema(5))
    assert sorted(describing(folded)) == [SHARD, "shop/1"]


def test_repeats_in_any_order_leave_the_newest_scope() -> None:
    """Descriptions from before it stay forgotten, wherever their repeat comes."""
    folded = begun(schema(3, table="shop.old"), scope(5), schema(6), scope(4), schema(3, table="shop.old"))
    assert folded.state.head.scopes == {SHARD: Scope(1, 5)}
    assert not described(folded, "shop.old")
    assert described(folded, "shop.items")


def test_a_new_epoch_begins_a_scope_of_its_own_below_the_old_ordinals() -> None:
    """Its ordinals begin anew: what only the ended history had described is forgotten all the same."""
    folded = Folded(start(), scope(50), schema(51), schema(52, table="shop.old"), start(epoch=2))
    folded.fold(event("Scope", 2, epoch=2, tables=["shop.items"]))
    folded.fold(schema(3, epoch=2))
    assert folded.state.head.scopes == {SHARD: Scope(2, 2)}
    assert not described(folded, "shop.old")
    assert described(folded, "shop.items")


def test_a_repeated_binding_does_not_bind_a_name_that_was_left() -> None:
    """The rename was folded although nothing was bound here yet."""
    renamed = event("NameBinding", 61, name="d.new", table_id=7, previous_name="d.t")
    folded = begun(renamed, event("NameBinding", 5, name="d.t", table_id=7, previous_name=""))
    from consumers.fold.catalog_state import decode_binding, name_key

    assert decode_binding(folded.entries[name_key("d.t")]).table_id == 0
    assert decode_binding(folded.entries[name_key("d.new")]).table_id == 7


def _waits(folded: Folded) -> str:
    return decode_table(folded.entries[table_key(7)]).waits_for()


def test_a_table_from_the_middle_waits_for_an_image_with_the_servers_list() -> None:
    """A transaction may have staged its write before the state began, and its commit would be taken for the image's."""
    at = gtid(62)
    folded = begun(event("TableImage", 59, **(IMAGE | {"lo": gtid(59), "hi": gtid(59)})), marker(60))
    assert "from the middle" in _waits(folded)
    folded.fold(event("TableImage", 61, **(IMAGE | {"write_ids": None, "lo": at, "hi": at})))
    assert "from the middle" in _waits(folded)
    folded.fold(event("TableImage", 62, **(IMAGE | {"lo": at, "hi": at})))
    assert _waits(folded) == ""


@pytest.mark.parametrize("seen", [True, False])
def test_an_open_id_from_before_keeps_it_waiting(*, seen: bool) -> None:
    """Only of a writer whose ALLOC was folded is it known that it staged nothing before."""
    at = gtid(62)
    folded = begun(marker(60))
    if seen:
        folded.fold(event("AllocWriteId", 61, table_id=7, txn=3, write_id=5, reallocated=False))
    folded.fold(event("TableImage", 62, **(IMAGE | {"write_ids": "d.t:5:5:5:", "lo": at, "hi": at})))
    assert ("from the middle" in _waits(folded)) is not seen


def test_a_created_table_is_whole_wherever_the_state_began() -> None:
    """Everything about it follows its CREATE."""
    folded = begun(event("TableImage", 61, **(IMAGE | {"change": "created", "write_ids": None})))
    assert "from the middle" not in _waits(folded)
