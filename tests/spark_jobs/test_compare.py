"""Comparing two states: equality, counts and first differences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumers.fold.catalog_state import name_key
from consumers.fold.entry import HEAD as ENTRY_HEAD
from consumers.fold.entry import VALUE, encode_transaction_tag
from consumers.fold.state import CATALOG, OBJECT, SET, schema_key
from consumers.store.digest import digest_items
from spark_jobs.auditing.compare import RANGE_ITEMS, compare_items
from spark_jobs.auditing.describe import describe_key, describe_value
from spark_jobs.auditing.tracing import EVENTS_MAX, events_of
from stream.wire.codec import PartitionReader
from stream.wire.events import VALUE as ROW
from tests.consumers.histories import SHARD, Folded, encode_version_1, event, frame, key, of_tomorrow, value
from tests.consumers.owning import schema
from tests.data_at_rest.history import messages

states = st.dictionaries(st.binary(max_size=3), st.binary(max_size=2), max_size=20)


def items(state: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return sorted(state.items())


@given(states, states, st.integers(1, 4))
def test_a_comparison_counts_what_a_naive_one_counts(
    left: dict[bytes, bytes], right: dict[bytes, bytes], together: int
) -> None:
    """The merge agrees with set arithmetic, for any two states and ranges, and the digests are the states'."""
    found = compare_items(items(left), items(right), keep=100, range_items=together)
    assert (found.left_digest, found.right_digest) == (digest_items(items(left))[0], digest_items(items(right))[0])
    assert (found.unequal_ranges > 0) == (left != right)
    assert found.ranges >= -(-len(left) // together)
    changed = {key for key in left.keys() & right.keys() if left[key] != right[key]}
    assert (found.only_left, found.only_right) == (len(left.keys() - right.keys()), len(right.keys() - left.keys()))
    assert found.changed == len(changed)
    assert (found.left_items, found.right_items) == (len(left), len(right))
    assert found.equal == (left == right)
    assert [difference.key for difference in found.first] == sorted(changed | (left.keys() ^ right.keys()))


def test_one_flipped_byte_far_inside_is_found_and_named() -> None:
    """A difference after several equal chunks is reported with its key, the byte's place and both values decoded."""
    head = ENTRY_HEAD.pack(VALUE, 7) + encode_transaction_tag("shop/0", 1, "MariaDB/0-1-7", 1_700_000_000)
    state = {b"shop.items\0[%06d]" % number: head + b'{"n":1}' for number in range(3 * RANGE_ITEMS)}
    other = dict(state)
    flipped = b"shop.items\0[%06d]" % (2 * RANGE_ITEMS + 5)
    other[flipped] = head + b'{"n":3}'
    found = compare_items(items(state), items(other))
    assert (found.changed, found.only_left, found.only_right) == (1, 0, 0)
    said = found.first[0].as_json()
    assert said["key"] == f"shop.items [{2 * RANGE_ITEMS + 5:06d}]"
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


def test_catalog_entries_are_described_by_what_they_are_of() -> None:
    """Tables, partitions, sets and bindings of a kept history are shown as values, none in hex, each with its tag."""
    folded = Folded()
    for message in messages():
        folded.fold(message)
    said = {describe_key(each): describe_value(each, entry) for each, entry in folded.entries.items()}
    catalog = {name: value for name, value in said.items() if name.startswith("catalog: ")}
    assert catalog['catalog: partition ["2024","ü"] of table 7']["image"] == '{"values":["2024"]}'
    table = catalog["catalog: table 7"]
    assert (table["name"], table["shard"], table["ordinal"] > 0, table["write_position"]) == (
        *("d.t", "shop/0", True), "MariaDB/0-1-52",
    )  # fmt: skip
    assert "catalog: all of kind function" in catalog
    assert "catalog: dropped function" in catalog
    assert said["head: name/d.t"]["table_id"] == 7
    assert not [name for name, value in said.items() if "unreadable" in value]
    assert describe_key(CATALOG + OBJECT + b'database\x000\x00["d"]') == 'catalog: database ["d"]'
    assert describe_key(CATALOG + SET + b"partition\x007") == "catalog: all of kind partition of table 7"


def test_the_events_that_made_an_entry_are_found() -> None:
    """Rows, voids of the table, the objects of a catalog, and messages that may have been about anything."""
    kept = list(enumerate(messages()))
    row, table = key(4), CATALOG + b"t7"
    found = events_of([row, table, key(98)], kept, PartitionReader())
    changes = [each for each in found[row] if each["event"] == "row"]
    assert [each["ordinal"] for each in changes] == [4, 21, 38]
    assert changes[-1]["gtid"] == "MariaDB/0-1-38"
    assert [each["event"] for each in found[key(98)]] == ["EpochStart", "unreadable"]
    assert [each["event"] for each in found[table] if each["event"] not in ("EpochStart", "unreadable")] == [
        *("NameBinding", "TableImage", "AllocWriteId", "TableImage", "CommitTxn", "AllocWriteId", "AbortTxn"),
        "TableImage",
    ]
    rows = enumerate(value(1, b"{}", number) for number in range(2, 2 + 2 * EVENTS_MAX))
    many = events_of([key(1)], rows, PartitionReader())
    assert [each["ordinal"] for each in many[key(1)]] == list(range(2 + EVENTS_MAX, 2 + 2 * EVENTS_MAX))
    two = frame([(key(1), ROW, b"{}", 5), (key(2), ROW, b"{}", 6)], transactions=[2], gtids=["MariaDB/0-1-6"],
                timestamps=[1])  # fmt: skip
    [told] = events_of([key(2)], [(3, two)], PartitionReader())[key(2)]
    assert (told["offset"], told["ordinal"], told["gtid"]) == (3, 6, "MariaDB/0-1-6")


def test_the_events_of_a_rename_and_of_a_description_are_found() -> None:
    """The name of before is bound anew by the same event, and each shard's description of a table is an entry."""
    renamed = event("NameBinding", 5, name="d.new", table_id=7, previous_name="d.old")
    kept = enumerate([renamed, schema(6), schema(6, shard="shop/1")])
    keys = [*map(name_key, ("d.old", "d.new", "d.other")), schema_key("shop.items", SHARD)]
    found = events_of(keys, kept, PartitionReader())
    assert [[each["offset"] for each in found[key]] for key in keys] == [[0], [0], [], [1]]


def test_the_events_that_a_newer_publisher_wrote_are_found_too() -> None:
    """They are read by what was announced before the place from which on it is looked."""
    later, announced = of_tomorrow(value(1, b"{}", 5))
    earlier = PartitionReader()
    earlier.decode(announced)
    [told] = events_of([key(1)], [(7, later)], PartitionReader(earlier=[earlier.texts]))[key(1)]
    assert (told["event"], told["ordinal"]) == ("row", 5)


def test_a_frame_that_the_fold_rejects_is_told_of_each_key() -> None:
    """It may have been about any of them; and whoever looks for the events of a difference must not fail for it."""
    rows = {"keys": [key(1)], "images": [b"{}"], "operations": bytes([ROW]), "ordinals": [1]}
    fields = {"shard": "shop/0", "epoch": 1, "ordinal": 2, "transactions": [1], "timestamps": [1]}
    empty: dict[str, object] = {"gtids": [], "positions": [], "origins": []}
    for damage in ({}, {"gtids": ["MariaDB/0-1-3"], "operations": b""}):
        bad = encode_version_1("RowFrame", rows | fields | empty | damage)
        found = events_of([key(1), key(2)], [(3, bad), (4, value(1, b"{}", 5))], PartitionReader())
        assert [[each["event"] for each in told] for told in found.values()] == [["unreadable", "row"], ["unreadable"]]
