"""States of which only a part is there yet: the head before its shard, a topology before its lineage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consumers.fold.declared import is_in_scope
from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.shards import NO_KIN, kin_of
from consumers.fold.state import Head, Lineage, Scope, Topology, head_entries, read_head
from consumers.owner.evidence import kin_at
from consumers.owner.rows import view_row
from tests.consumers.histories import SHARD, Folded, event, frame, gtid, key, marker, start, value
from tokens.decision import ENDED


def test_an_entry_whose_shard_the_head_does_not_have_yet_is_judged_by_itself() -> None:
    """The head was read before the shard's first event, the entry after it: no marker covers it."""
    folded = Folded(start(), value(1, b"a", 2))
    found = view_row(Head(), key(1), folded.entries[key(1)])
    assert (found.kind, found.image, found.shard, found.epoch) == (VALUE, b"a", SHARD, 1)
    assert (found.lo, found.watermark, found.low_water) == (gtid(2), "", "")


def test_a_topology_without_a_lineage_ends_what_it_succeeded_and_names_no_ancestor() -> None:
    """The epoch is unknown, so whether the ancestors' positions have a meaning in it is unknown too."""
    head = Head(topologies={SHARD: Topology(1, 1, (SHARD,), {"shop/old": 3}, {"shop/older": 2})})
    assert kin_of(head, SHARD).ancestors == {"shop/older": ENDED}
    assert kin_of(head, SHARD).topology == {SHARD}


def test_rows_that_come_out_of_order_keep_their_kind() -> None:
    """An absence has no image and is no error; a value without one is, and a value with one stays."""
    folded = Folded(start(), value(9, b"x", 9))
    rows = [(key(1), ABSENT, b"", 5), (key(2), VALUE, b"b", 5), (key(3), VALUE, b"", 5), (key(4), VOID, b"", 5)]
    folded.fold(frame(rows))
    kinds = {number: decode_entry(folded.entries[key(number)]).kind for number in (1, 2, 3, 4)}
    assert kinds == {1: ABSENT, 2: VALUE, 3: VOID, 4: VOID}
    assert decode_entry(folded.entries[key(2)]).image == b"b"
    assert folded.rejection_codes == ["bad_operation"]
    folded.fold(marker(9))


def test_a_description_counts_after_its_scope_only() -> None:
    """What was described before the scope began, or of the epoch before, was of other tables."""
    head = Head(scopes={SHARD: Scope(2, 5)})
    places = [(1, 9), (2, 4), (2, 5), (2, 6), (3, 1)]
    assert [is_in_scope(head, SHARD, *place) for place in places] == [False, False, False, True, True]
    assert is_in_scope(head, "shop/other", 1, 1), "a shard that declared no scope"


def test_ancestors_of_another_epoch_than_the_entrys_do_not_count() -> None:
    """The head was read before the entry: what it names belongs to the history before."""
    lineage = Lineage(1, 5, 5, gtid(5), 1, gtid(0))
    head = Head(lineages={SHARD: lineage}, topologies={SHARD: Topology(1, 1, (SHARD,), {"shop/old": 3}, {})})
    assert kin_at(head, SHARD, 1).ancestors == {"shop/old": 3}
    assert kin_at(head, SHARD, 2) == NO_KIN
    assert kin_at(Head(topologies=head.topologies), SHARD, 2) == NO_KIN


def test_an_epoch_that_begins_nowhere_is_no_epoch() -> None:
    """Its position is the low-water of all its fills; without one the message is poison."""
    folded = Folded(event("EpochStart", 1, position="nowhere", reason="first_start"))
    assert len(folded.rejection_codes) == 1
    assert folded.state.head.lineages == {}


@pytest.mark.parametrize(
    "damaged",
    [
        {"epoch": "1"},
        {"shards": [1]},
        {"shards": "ab"},
        {"ancestors": {"a": "1"}},
        {"succeeded": {"a": 1.5}},
        {"ordinal": None},
        {"ranges": [["a", "-"], "b"]},
        {"ranges": [["a", 1]]},
        {"ranges": [["a", "-80"]]},
    ],
    ids=str,
)
def test_a_head_of_other_types_is_damaged(damaged: dict[str, Any]) -> None:
    """A flipped bit in a store must not become a topology that nobody declared."""
    head = Head(topologies={SHARD: Topology(1, 1, ("a", "b"), {"x": 3}, {"y": 2})})
    items = head_entries(head)
    [key] = [each for each in items if SHARD.encode() in each]
    named = dict(
        zip(("epoch", "ordinal", "shards", "ancestors", "succeeded", "ranges"), json.loads(items[key]), strict=True)
    )
    assert read_head(items.items()).topologies == head.topologies
    with pytest.raises((ValueError, TypeError)):
        read_head({**items, key: json.dumps([*(named | damaged).values()]).encode()}.items())
    with pytest.raises((ValueError, TypeError)):
        read_head({**items, key: b'"abcde"'}.items())
