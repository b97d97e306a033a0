"""A map of the shards: a key's shard follows from the key, so that shards that share a partition need no look-up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest

from consumers.fold.backfills import backfilled_tables, whole_shards
from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.messages import fold_message, fold_messages
from consumers.fold.shards import kin_of, lineage_of_key, shard_map
from consumers.fold.state import Head, PartitionState, head_entries, read_head
from consumers.owner.protocol import UNKNOWN_KEY, OwnerRow
from consumers.owner.rows import judge_fill, view_row
from stream.shards.map import ShardMap
from stream.wire.keys import Layout
from tests.consumers.fold.test_fold_together import by_column, one_by_one
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import LAYOUT, SHARD, Folded, event, frame, gtid, key, marker, start

OTHER = "shop/1"
RANGES = {SHARD: "-80", OTHER: "80-"}
MAP = ShardMap.parse(RANGES)
TABLE = "shop.items"


def shard_of(number: int, prefix: int = 0) -> str:
    """The shard of row ``number`` by the map."""
    return MAP.shard_of(Layout.parse(LAYOUT).keyspace_id(key(number), prefix))


OWN = [number for number in range(40) if shard_of(number) == SHARD]
OTHERS = [number for number in range(40) if shard_of(number) == OTHER]


def beginning(*more: bytes, ranges: dict[str, str] | None = None) -> list[bytes]:
    """Both shards declare the map, and begin."""
    said = RANGES if ranges is None else ranges
    named = [topology(SHARD, OTHER, shard=shard, ordinal=0, ranges=said) for shard in (SHARD, OTHER)]
    return [named[0], start(), marker(1), named[1], start(shard=OTHER), marker(1, shard=OTHER), *more]


def row(number: int, ordinal: int, shard: str, image: bytes = b"{}") -> bytes:
    """A frame of one row."""
    return frame([(key(number), VALUE, image, ordinal)], shard=shard)


def whole(shard: str) -> list[bytes]:
    """A backfill of the table without rows, from beginning to end."""
    said = [event("TableBackfill", 2 + done, shard=shard, table=TABLE, complete=bool(done)) for done in (0, 1)]
    return [*said, marker(3, shard=shard)]


def view(folded: Folded, number: int, prefix: int | None = 0) -> OwnerRow:
    """How a key reads."""
    return view_row(folded.state.head, key(number), folded.entries.get(key(number)), prefix=prefix)


def test_rows_of_a_map_are_folded_without_a_look_up() -> None:
    """Four shards in a partition fold as one does: nobody asks whose entry a key has."""

    def never(_: bytes) -> bytes | None:
        raise AssertionError("a key was looked up")

    state = PartitionState(Head(), lambda _: None)
    for offset, message in enumerate(beginning()):
        state.apply(fold_message(state, offset, message))
    state.lookup = never
    messages = [row(number, 2 + at, shard_of(number)) for at, number in enumerate((*OWN[:5], *OTHERS[:5], *OWN[:5]))]
    for changes in fold_messages(state, list(enumerate(messages, state.head.offset))):
        state.apply(changes)
    rows = [(key(number), VALUE, b"{}", 40 + at) for at, number in enumerate(OWN[:8])]
    state.apply(fold_message(state, state.head.offset, frame(rows)))
    assert state.head.lineages[SHARD].ordinal == 47


def test_a_row_that_never_changed_has_the_shard_of_its_key() -> None:
    """So its fill can be kept, and what the watermark of its shard proves is proved of it."""
    folded = Folded(*beginning(marker(7), marker(9, shard=OTHER)))
    for number, shard, at in ((OWN[0], SHARD, 7), (OTHERS[0], OTHER, 9)):
        found = view(folded, number)
        assert (found.kind, found.shard, found.watermark) == (UNKNOWN_KEY, shard, gtid(at))
        assert judge_fill(folded.state.head, key(number), found, gtid(at)).accepted
        assert not judge_fill(folded.state.head, key(number), found, gtid(at - 1)).accepted


def test_an_absence_is_proved_by_the_shard_of_the_key_alone() -> None:
    """A table that is whole in one shard says nothing of keys of another."""
    folded = Folded(*beginning(*whole(SHARD)))
    assert [*whole_shards(folded.state.head, TABLE)] == [SHARD]
    assert (view(folded, OWN[0]).kind, view(folded, OTHERS[0]).kind) == (ABSENT, UNKNOWN_KEY)
    assert backfilled_tables(folded.state.head) == {TABLE: False}
    for message in whole(OTHER):
        folded.fold(message)
    found = view(folded, OTHERS[0])
    assert (found.kind, found.shard, found.watermark) == (ABSENT, OTHER, gtid(3))
    assert backfilled_tables(folded.state.head) == {TABLE: True}
    folded.fold(event("TableVoid", 5, table=TABLE, reason="DDL"))
    assert (view(folded, OWN[0]).kind, view(folded, OTHERS[0]).kind) == (UNKNOWN_KEY, ABSENT)


def test_a_shard_that_has_not_come_yet_takes_nothing_from_the_others() -> None:
    """Its server may be down since before the keyspace began: its own keys are unknown, and of its shard."""
    declared = topology(SHARD, OTHER, ordinal=0, ranges=RANGES)
    folded = Folded(declared, start(), marker(1), *whole(SHARD))
    assert (view(folded, OWN[0]).kind, view(folded, OTHERS[0]).kind) == (ABSENT, UNKNOWN_KEY)
    assert lineage_of_key(folded.state.head, key(OTHERS[0]), 0) == (OTHER, None)
    assert (view(folded, OTHERS[0]).shard, view(folded, OTHERS[0]).epoch) == ("", 0), "no token may name epoch 0"
    folded.fold(topology(SHARD, OTHER, shard=OTHER, ordinal=0, ranges=RANGES))
    folded.fold(start(shard=OTHER))
    assert folded.rejection_codes == []
    assert view(folded, OWN[0]).kind == ABSENT


@pytest.mark.parametrize(
    "declared",
    [
        pytest.param(topology(SHARD, OTHER, shard=OTHER, ordinal=2), id="one has none"),
        pytest.param(topology(SHARD, OTHER, shard=OTHER, ordinal=2, ranges={SHARD: "-40", OTHER: "40-"}), id="another"),
        pytest.param(topology(SHARD, OTHER, shard=OTHER, ordinal=2, ranges={OTHER: "-80", SHARD: "80-"}), id="swapped"),
        pytest.param(topology(SHARD, OTHER, shard=OTHER, ordinal=2, ranges={OTHER: "-"}), id="without the other"),
    ],
)
def test_no_map_holds_while_the_shards_declare_different_ones(declared: bytes) -> None:
    """A key might have two shards, or none: nothing is proved of keys without an entry."""
    folded = Folded(*beginning(*whole(SHARD), *whole(OTHER)))
    folded.fold(declared)
    assert shard_map(folded.state.head) is None
    for number in (OWN[0], OTHERS[0]):
        assert (view(folded, number).kind, view(folded, number).shard) == (UNKNOWN_KEY, "")
    assert backfilled_tables(folded.state.head) == {TABLE: False}


def test_a_shard_whose_own_range_changes_is_void() -> None:
    """What it left out until here is its own from here on: neither its entries nor its completions stand."""
    folded = Folded(*beginning(row(OWN[0], 4, SHARD), *whole(SHARD), *whole(OTHER)))
    for shard in (SHARD, OTHER):
        folded.fold(topology(SHARD, OTHER, shard=shard, ordinal=4, ranges={SHARD: "-40", OTHER: "40-"}))
    assert shard_map(folded.state.head) == ShardMap.parse({SHARD: "-40", OTHER: "40-"})
    assert whole_shards(folded.state.head, TABLE) == {}
    assert all(view(folded, number).kind in (VOID, UNKNOWN_KEY) for number in (*OWN, *OTHERS))


def test_a_repeated_map_voids_nothing() -> None:
    """It is said again every few minutes, and by shards whose own range is what it was."""
    folded = Folded(*beginning(row(OWN[0], 4, SHARD), *whole(SHARD)))
    folded.fold(topology(SHARD, OTHER, ordinal=0, ranges=RANGES))
    three = {SHARD: "-80", OTHER: "80-c0", "shop/2": "c0-"}
    folded.fold(topology(*three, ordinal=4, ranges=three))
    assert folded.state.head.voids == {}
    assert view(folded, OWN[0]).kind == VALUE


def test_an_entry_of_a_shard_that_has_not_the_key_is_neither_given_nor_filled_over() -> None:
    """A publisher that broke its promise took the place of what the key's own shard had said. Only the source knows."""
    folded = Folded(*beginning(*whole(SHARD), *whole(OTHER), row(OWN[0], 4, OTHER), marker(4, shard=OTHER)))
    found = view(folded, OWN[0])
    assert (found.kind, found.image, found.shard) == (VOID, None, OTHER)
    assert not judge_fill(folded.state.head, key(OWN[0]), found, gtid(9)).accepted
    folded.fold(row(OWN[0], 4, SHARD, b'{"id":1}'))
    assert (view(folded, OWN[0]).kind, view(folded, OWN[0]).image) == (VALUE, b'{"id":1}')


def test_the_key_of_the_map_is_the_prefix_of_the_description() -> None:
    """Who does not know the prefix does not know the shard: then nothing is proved."""
    number = next(each for each in range(99) if shard_of(each, 1) != shard_of(each))
    folded = Folded(*beginning(*whole(SHARD), *whole(OTHER)))
    assert view(folded, number, 1).shard == shard_of(number, 1)
    assert view(folded, number, 0).shard == shard_of(number)
    assert (view(folded, number, None).kind, view(folded, number, None).shard) == (UNKNOWN_KEY, "")


def test_a_shard_that_takes_over_the_range_of_its_ancestor_is_no_stranger() -> None:
    """A split beside a shard that goes on: the others' keys are none of its own, so nothing of theirs is in doubt."""
    new = {"shop/a": "-40", "shop/b": "40-80", OTHER: "80-"}
    folded = Folded(*beginning(row(OTHERS[0], 2, OTHER), *whole(OTHER)))
    for name in ("shop/a", "shop/b"):
        folded.fold(topology(*new, shard=name, ordinal=0, ancestors={SHARD: 1}, ranges=new))
        folded.fold(start(shard=name))
    assert folded.rejection_codes == []
    assert shard_map(folded.state.head) is None, "the one that goes on has not declared it yet"
    folded.fold(topology(*new, shard=OTHER, ordinal=3, ranges=new))
    assert shard_map(folded.state.head) == ShardMap.parse(new)
    assert (view(folded, OTHERS[0]).kind, view(folded, OTHERS[1]).kind) == (VALUE, ABSENT)
    assert view(folded, OWN[0]).shard in ("shop/a", "shop/b")
    assert kin_of(folded.state.head, "shop/a").ancestors == {SHARD: 1}


def test_a_shard_that_arrives_in_a_range_of_another_is_a_stranger() -> None:
    """It succeeds nobody who has its keys, and nobody has named it."""
    three = {SHARD: "-80", OTHER: "80-c0", "shop/2": "c0-"}
    folded = Folded(*beginning(), topology(*three, shard="shop/2", ordinal=0, ranges=three), start(shard="shop/2"))
    assert folded.rejection_codes == ["second_shard"]


def test_a_map_is_durable() -> None:
    """After a restart a key has the shard that it had."""
    head = Folded(*beginning()).state.head
    assert shard_map(read_head(head_entries(head).items())) == MAP


@pytest.mark.parametrize("shards", list(permutations((SHARD, OTHER, OTHER))))
def test_of_two_shards_that_write_a_key_the_later_counts_however_they_are_folded(shards: Sequence[str]) -> None:
    """By the map one of them has no right to it: a mistake of a source, which must not depend on how messages come."""
    at = {SHARD: 1, OTHER: 1}
    messages = []
    for image, shard in zip((b"a", b"b", b"c"), shards, strict=True):
        at[shard] += 1
        messages.append(row(OWN[0], at[shard], shard, image))
    records: list[tuple[int, bytes | None]] = list(enumerate(beginning(*messages)))
    entries = one_by_one(records)
    assert by_column(records, set()) == entries
    assert decode_entry(entries[0][key(OWN[0])]).image == b"c"


@pytest.mark.parametrize("seed", range(60))
def test_together_or_one_by_one_the_map_gives_the_same_state(seed: int) -> None:
    """Whatever the shards write: their own keys mostly, at times others', out of order, and twice."""
    rng = Random(seed)
    at = dict.fromkeys((SHARD, OTHER), 1)
    messages = beginning()
    for _ in range(rng.randint(10, 40)):
        shard = rng.choice((SHARD, OTHER))
        numbers = rng.choice((OWN, OTHERS)) if rng.random() < 0.1 else (OWN if shard == SHARD else OTHERS)
        count = rng.choice((1, 1, 2, 5))
        rows: list[tuple[bytes, int, bytes, int]] = []
        for number in rng.sample(numbers, count):
            at[shard] += 1
            operation = rng.choice((VALUE, VALUE, ABSENT, VOID))
            rows.append((key(number), operation, b"%d" % at[shard] if operation == VALUE else b"", at[shard]))
        again: list[bytes] = [frame(rows, shard=shard)] * rng.choice((1, 1, 1, 2))
        messages += again
        if rng.random() < 0.3:
            messages.append(marker(at[shard], shard=shard))
        if rng.random() < 0.03:
            ranges: Any = rng.choice((RANGES, {}, {SHARD: "-40", OTHER: "40-"}))
            messages.append(topology(SHARD, OTHER, shard=shard, ordinal=at[shard], ranges=ranges))
    records: list[tuple[int, bytes | None]] = list(enumerate(messages))
    cuts = {rng.randrange(len(records)) for _ in range(rng.randint(0, 4))}
    assert by_column(records, cuts) == one_by_one(records)
