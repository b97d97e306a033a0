"""Ranges of keyspace ids, and the map of a keyspace's shards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.shards.map import IDS, IdRange, ShardMap, ShardMapError
from stream.wire.keys import Layout, row_key

ids = st.integers(0, IDS - 1)


@st.composite
def ranges(draw: Any) -> IdRange:
    """Any range that is not empty, with short bounds as often as long ones."""
    bounds = st.one_of(st.integers(0, IDS), st.integers(0, 256).map(lambda byte: byte << 56))
    start, end = sorted(draw(st.lists(bounds, min_size=2, max_size=2, unique=True)))
    return IdRange(start, end)


@st.composite
def maps(draw: Any) -> ShardMap:
    """Any map: the ids are cut at random places, and the shards named at random."""
    cuts = sorted(draw(st.lists(st.integers(1, IDS - 1), max_size=8, unique=True)))
    pieces = list(zip([0, *cuts], [*cuts, IDS], strict=True))
    names = draw(st.permutations([f"shop/{number}" for number in range(len(pieces))]))
    return ShardMap((name, IdRange(*piece)) for name, piece in zip(names, pieces, strict=True))


@given(ranges())
def test_a_range_is_read_as_it_is_written(some: IdRange) -> None:
    """What settings and topics hold of a range says which ids are in it."""
    assert IdRange.parse(str(some)) == some


@pytest.mark.parametrize(
    ("text", "start", "end", "printed"),
    [
        ("-", 0, IDS, "-"),
        ("-40", 0, 0x40 << 56, "-40"),
        ("40-80", 0x40 << 56, 0x80 << 56, "40-80"),
        ("80-", 0x80 << 56, IDS, "80-"),
        ("8000-A0", 0x80 << 56, 0xA0 << 56, "80-a0"),
        ("00-0001", 0, 1 << 48, "-0001"),
        ("fffffffffffffffe-ffffffffffffffff", IDS - 2, IDS - 1, "fffffffffffffffe-ffffffffffffffff"),
    ],
)
def test_ranges_are_written_as_in_vitess(text: str, start: int, end: int, printed: str) -> None:
    """People who know Vitess can read and write them; two texts of one range are the same range."""
    assert IdRange.parse(text) == (start, end)
    assert str(IdRange.parse(text)) == printed


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("", "two hexadecimal numbers"),
        ("40", "two hexadecimal numbers"),
        ("40-80-c0", "two hexadecimal numbers"),
        ("x-80", "two hexadecimal numbers"),
        ("-4", "'4' has an odd number"),
        ("400-80", "'400' has an odd number"),
        ("-800000000000000000", "more than 16 digits"),
        ("80-40", "no ids"),
        ("40-40", "no ids"),
        ("-00", "no ids"),
        (" -40", "two hexadecimal numbers"),
        ("-4٠", "two hexadecimal numbers"),
    ],
)
def test_a_malformed_range_says_what_is_wrong(text: str, offending: str) -> None:
    """A slip in the settings is found where they are read, and named."""
    with pytest.raises(ShardMapError, match=offending) as raised:
        IdRange.parse(text)
    assert raised.value.code == "bad_key_range"
    assert repr(text) in str(raised.value)


@given(ranges(), ranges(), ids)
def test_ranges_compare_as_sets_of_ids(one: IdRange, other: IdRange, keyspace_id: int) -> None:
    """Covering and overlapping mean what they mean of the ids."""
    edges = [each for side in (one, other) for each in (side.start, side.end - 1)]
    for each in (keyspace_id, *edges):
        if one.covers(other):
            assert each in one or each not in other
        if each in one and each in other:
            assert one.overlaps(other)
    assert one.overlaps(other) == other.overlaps(one) == any(each in one and each in other for each in edges)
    assert one.covers(other) == all(each in one for each in (other.start, other.end - 1))
    assert IdRange.parse("-").covers(one)


@given(maps(), ids)
def test_each_id_has_one_shard(found: ShardMap, keyspace_id: int) -> None:
    """A key's shard follows from the key, and it is the only one with a range that has its id."""
    for each in (keyspace_id, 0, IDS - 1, *(some.start for _, some in found.ranges)):
        assert [shard for shard, some in found.ranges if each in some] == [found.shard_of(each)]


@given(maps(), ranges())
def test_any_range_may_be_asked_for(found: ShardMap, wanted: IdRange) -> None:
    """The shards of a range are those that have ids of it, whether or not it ends where a shard ends."""
    named = found.within(wanted)
    assert found.shard_of(wanted.start) == named[0]
    assert found.shard_of(wanted.end - 1) == named[-1]
    for shard, each in found.ranges:
        assert (shard in named) == each.overlaps(wanted)


@given(maps())
def test_a_map_is_read_as_it_is_written(found: ShardMap) -> None:
    """A declaration in the topic says the map of the settings, in whichever order."""
    texts = found.texts()
    again = ShardMap.parse(dict(reversed(texts.items())))
    assert again == found
    assert hash(again) == hash(found)
    assert again.shards == found.shards


@given(maps(), st.data())
def test_a_map_with_a_hole_or_two_shards_for_a_key_is_refused(found: ShardMap, data: Any) -> None:
    """No key may be without a shard, and none may have two."""
    pieces = list(found.ranges)
    place = data.draw(st.integers(0, len(pieces) - 1))
    shard, each = pieces.pop(place)
    with pytest.raises(ShardMapError, match="no shard has the range") as raised:
        ShardMap(pieces)
    assert raised.value.code == "bad_shard_map"
    start, end = data.draw(st.sampled_from([(each.start, each.end), (each.start - 1, each.end), (0, each.end + 1)]))
    if IdRange(max(start, 0), min(end, IDS)) != each:
        with pytest.raises(ShardMapError, match="overlap"):
            ShardMap([*pieces, (shard, IdRange(max(start, 0), min(end, IDS)))])


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"a": "-40", "b": "80-"}, "no shard has the range 40-80"),
        ({"a": "40-80", "b": "80-"}, "no shard has the range -40"),
        ({"a": "-80"}, "no shard has the range 80-"),
        ({"a": "-80", "b": "40-"}, "a and b overlap: both have 40-80"),
        ({"a": "-", "b": "40-50"}, "a and b overlap: both have 40-50"),
        ({}, "no shard has the range -"),
    ],
)
def test_what_is_wrong_with_a_map_is_named(texts: dict[str, str], problem: str) -> None:
    """Missing and overlapping shards are named with the range that is in doubt."""
    with pytest.raises(ShardMapError, match=problem):
        ShardMap.parse(texts)


def test_a_shard_has_one_range() -> None:
    """Two ranges of one name would be two histories under one name."""
    with pytest.raises(ShardMapError, match="a has two ranges"):
        ShardMap([("a", IdRange.parse("-80")), ("a", IdRange.parse("80-"))])


def test_keys_with_one_prefix_share_a_shard() -> None:
    """Rows of a customer are in one shard, as they are in one partition."""
    layout = Layout(4)
    customer, order = row_key("shop.customers", [7]), row_key("shop.orders", [7, 12])
    assert layout.keyspace_id(customer, 1) == layout.keyspace_id(order, 1)
    assert layout.keyspace_id(customer) != layout.keyspace_id(order)
    assert layout.partition_at(layout.keyspace_id(order, 1)) == layout.partition_of(order, 1)


def test_each_partition_has_keys_of_each_shard() -> None:
    """Shard and partition come from other bits of the hash: no partition waits for the shard that is down alone."""
    layout, found = Layout(4), ShardMap.parse({"a": "-40", "b": "40-80", "c": "80-c0", "d": "c0-"})
    keys = [row_key("shop.orders", [number]) for number in range(2_000)]
    seen = {(layout.partition_of(key), found.shard_of(layout.keyspace_id(key))) for key in keys}
    assert len(seen) == 16
