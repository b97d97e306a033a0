"""Comparing two states: equality, counts and first differences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumers.fold.entry import HEAD as ENTRY_HEAD
from consumers.fold.entry import VALUE, encode_transaction_tag
from spark_jobs.compare import CHUNK_ITEMS, compare_items

states = st.dictionaries(st.binary(max_size=3), st.binary(max_size=2), max_size=20)


def items(state: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return sorted(state.items())


@given(states, states)
def test_a_comparison_counts_what_a_naive_one_counts(left: dict[bytes, bytes], right: dict[bytes, bytes]) -> None:
    """The merge agrees with set arithmetic, for any two states."""
    found = compare_items(items(left), items(right), keep=100)
    changed = {key for key in left.keys() & right.keys() if left[key] != right[key]}
    assert (found.only_left, found.only_right) == (len(left.keys() - right.keys()), len(right.keys() - left.keys()))
    assert found.changed == len(changed)
    assert (found.left_items, found.right_items) == (len(left), len(right))
    assert found.equal == (left == right)
    assert [difference.key for difference in found.first] == sorted(changed | (left.keys() ^ right.keys()))


def test_one_flipped_byte_far_inside_is_found_and_named() -> None:
    """A difference after several equal chunks is reported with its key, the byte's place and both values decoded."""
    head = ENTRY_HEAD.pack(VALUE, 7) + encode_transaction_tag("shop/0", 1, "MariaDB/0-1-7", 1_700_000_000)
    state = {b"shop.items\0[%06d]" % number: head + b'{"n":1}' for number in range(3 * CHUNK_ITEMS)}
    other = dict(state)
    flipped = b"shop.items\0[%06d]" % (2 * CHUNK_ITEMS + 5)
    other[flipped] = head + b'{"n":3}'
    found = compare_items(items(state), items(other))
    assert (found.changed, found.only_left, found.only_right) == (1, 0, 0)
    said = found.first[0].as_json()
    assert said["key"] == f"shop.items [{2 * CHUNK_ITEMS + 5:06d}]"
    assert said["first_differing_byte"] == len(head) + 5
    assert said["left"] == {
        "kind": "value",
        "shard": "shop/0",
        "epoch": 1,
        "ordinal": 7,
        "position": "MariaDB/0-1-7",
        "timestamp": 1_700_000_000,
        "image": '{"n":1}',
    }


def test_unreadable_bytes_are_shown_not_raised() -> None:
    """A comparison of damaged entries shows their bytes instead of failing."""
    found = compare_items([(b"shop.items\0[1]", b"\x01")], [(b"\x00offset", b"7"), (b"junk", b"")])
    said = [difference.as_json() for difference in found.first]
    assert [each["key"] for each in said] == ["head: offset", "unreadable key 6a756e6b", "shop.items [1]"]
    assert said[0]["left"] == {"missing": True}
    assert said[0]["right"] == {"text": "7"}
    assert "unreadable" in str(said[2]["left"])
