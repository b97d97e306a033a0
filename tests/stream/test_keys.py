"""Row keys and layouts."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stream.wire.keys import KeyFormatError, Layout, LayoutError, row_key, split_row_key

values = st.one_of(
    st.integers(-(2**70), 2**70),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.booleans(),
    st.builds(lambda text: {"base64": text}, st.text("abcXYZ019+/=", max_size=12)),
)
tables = st.text(st.characters(codec="utf-8", min_codepoint=0x20), min_size=1, max_size=20)
keys = st.lists(values, min_size=1, max_size=4)
layouts = st.builds(
    Layout,
    st.integers(1, 64),
    st.dictionaries(tables, st.integers(1, 4), max_size=4),
    buckets=st.sampled_from([0, 64, 4096]),
    extensions=st.sampled_from([(), ("x-note=1",), ("x-a", "x-b=c=d")]),
)


@given(tables, keys)
def test_a_row_key_splits_into_what_it_was_made_of(table: str, primary_key: list[Any]) -> None:
    """A key in the store contains its table name and primary key."""
    assert split_row_key(row_key(table, primary_key)) == (table, primary_key)


def test_row_keys_are_compact_json_with_utf8_kept() -> None:
    """The bytes of a key never change, because sources, stores and readers share them."""
    key = row_key("shop.orders", [7, "ü", {"base64": "AAE="}, "1.50"])
    assert key == b'shop.orders\0[7,"\xc3\xbc",{"base64":"AAE="},"1.50"]'


@pytest.mark.parametrize(
    ("table", "primary_key"),
    [
        ("t", []),
        ("t", [None]),
        ("t", [1, float("nan")]),
        ("t", [float("inf")]),
        ("t", ["\ud800"]),
        ("", [1]),
        ("a\0b", [1]),
        ("\x01", [1]),
        ("\x1f", [1]),
        ("t", ["a", float("-inf")]),
    ],
)
def test_what_names_no_row_is_refused(table: str, primary_key: list[Any]) -> None:
    """NULL, NaN and values that cannot be encoded are refused as keys."""
    with pytest.raises(KeyFormatError):
        row_key(table, primary_key)


def test_a_text_key_that_says_null_is_a_key() -> None:
    """Only the value NULL is refused, not text that looks like it."""
    assert split_row_key(row_key("t", ["null"])) == ("t", ["null"])


@pytest.mark.parametrize(
    "key", [b"", b"\0[1]", b"t[1]", b"t\0[1", b"\x01t\0[1]", b"\x1ft\0[1]", b"\xff\0[1]", b"t\0{}"]
)
def test_bytes_that_are_not_a_row_key_are_refused_with_one_error(key: bytes) -> None:
    """A damaged key raises `KeyFormatError`, not an error of a parser."""
    with pytest.raises(KeyFormatError):
        split_row_key(key)


@given(layouts)
def test_a_layout_reads_back_from_its_text(layout: Layout) -> None:
    """A layout survives its text form, which every marker repeats."""
    assert Layout.parse(str(layout)) == layout
    assert hash(Layout.parse(str(layout))) == hash(layout)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "xxh3_64",
        "crc32;partitions=4",
        "xxh3_64;partitions=x",
        "xxh3_64;buckets=0;partitions=4",
        "xxh3_64;buckets=x;partitions=4",
        "xxh3_64;buckets=4;partitions=5",
        "xxh3_64;buckets=9999999;partitions=5",
        "xxh3_64;buckets=4096",
        "xxh3_64;x-note=1;x-note=2;partitions=4",
        "xxh3_64;partitions=0",
        "xxh3_64;partitions=4;partitions=5",
        "xxh3_64;partitions=4;colour=red",
        "xxh3_64;partitions=4;prefix=t:0",
        "xxh3_64;partitions=4;prefix=",
        "xxh3_64;partitions=²",
    ],
)
def test_an_invalid_layout_text_is_refused(text: str) -> None:
    """An invalid layout is refused, because a reader would look for keys in the wrong partition."""
    with pytest.raises(LayoutError):
        Layout.parse(text)


@given(layouts, tables, keys)
def test_a_key_lies_in_one_of_the_partitions(layout: Layout, table: str, primary_key: list[Any]) -> None:
    """Every key has exactly one partition."""
    for prefix in range(3):
        assert 0 <= layout.partition_of(row_key(table, primary_key), prefix) < layout.partitions


def test_the_partition_of_a_key_is_the_named_hash_of_its_bytes() -> None:
    """The partition of a key is the hash named in the layout, and never changes."""
    key = row_key("shop.orders", [7])
    assert Layout(16).partition_of(key) == xxhash.xxh3_64_intdigest(key) % 4096 // 256
    assert Layout(1000).table_partition(42) == xxhash.xxh3_64_intdigest(b"42") % 4096 * 1000 // 4096
    assert Layout(1000).home_partition("shop/0") == xxhash.xxh3_64_intdigest(b"shop/0") % 1000


def test_a_topic_without_buckets_keeps_its_partitions() -> None:
    """A layout text of before is read as it was written, and written as it was read."""
    key, text = row_key("shop.orders", [7]), "xxh3_64;partitions=1000;prefix=shop.items:1"
    layout = Layout.parse(text)
    assert str(layout) == text
    assert layout.partition_of(key) == xxhash.xxh3_64_intdigest(key) % 1000 == 777
    assert layout.table_partition(42) == xxhash.xxh3_64_intdigest(b"42") % 1000
    assert layout.partition_of(row_key("shop.items", [7, 1])) == xxhash.xxh3_64_intdigest(b"[7]") % 1000


@given(st.integers(1, 512), st.integers(1, 8), st.binary(max_size=20))
def test_a_bucket_is_split_to_a_multiple_of_partitions_and_never_mixed(few: int, times: int, key: bytes) -> None:
    """With a multiple of the partitions each partition's keys stay together, apart from other partitions' keys."""
    many = few * times
    assert Layout(many).partition_of(key) // times in (Layout(few).partition_of(key), Layout(few).partition_of(key) + 1)
    if 4096 % many == 0:
        assert Layout(many).partition_of(key) // times == Layout(few).partition_of(key)


def test_what_a_layout_says_beyond_is_kept() -> None:
    """Names that begin with x- may be added to a layout without an older reader refusing it."""
    text = "xxh3_64;buckets=4096;partitions=4;x-region=eu"
    assert str(Layout.parse(text)) == text
    assert Layout.parse(text).partition_of(b"k") == Layout(4).partition_of(b"k")


@given(st.integers(), st.integers(), st.text(st.characters(codec="utf-8")))
def test_tables_that_share_a_declared_prefix_share_partitions(customer: int, order: int, note: str) -> None:
    """Rows with equal declared prefixes share a partition, so that composite objects are read from one."""
    old = Layout(64, {"shop.customers": 1, "shop.orders": 1}, buckets=0)
    of_customer = old.partition_of(row_key("shop.customers", [customer]))
    assert old.partition_of(row_key("shop.orders", [customer, order, note])) == of_customer
    of_customer = Layout(64).partition_of(row_key("shop.customers", [customer]), 1)
    assert Layout(64).partition_of(row_key("shop.orders", [customer, order, note]), 1) == of_customer


def test_tables_without_a_prefix_are_spread_by_their_whole_key() -> None:
    """A declared prefix of one table does not affect other tables."""
    key = row_key("shop.notes", [7, 1])
    assert Layout(64, {"shop.orders": 1}).partition_of(key) == Layout(64).partition_of(key)


def test_invalid_keys_still_have_a_partition() -> None:
    """Routing never fails on invalid keys."""
    layout = Layout(8, {"t": 1})
    assert 0 <= layout.partition_of(b"t\0[1,") < 8
    assert 0 <= layout.partition_of(b"") < 8


def test_the_first_columns_of_a_key_name_a_partition_only_if_they_decide_it() -> None:
    """Else the rows of a range lie in several, and those of one would be taken for all."""
    layout, key = Layout(64), row_key("shop.orders", [7])
    assert layout.partition_of_leading(key, 1, 2, 1) == layout.partition_of(row_key("shop.orders", [7, 1]), 1)
    assert layout.partition_of_leading(key, 1, 1) == layout.partition_of(key)
    assert layout.partition_of_leading(key, 1, 2) is None
    assert layout.partition_of_leading(key, 1, 3, 2) is None
    assert Layout(1).partition_of_leading(key, 1, 2) == 0


def test_a_prefix_of_the_layout_decides_for_the_first_columns_too() -> None:
    """A topic of before has it in its layout, and it goes before that of a description, as for whole keys."""
    layout, key, whole = Layout(64, {"shop.orders": 1}), row_key("shop.orders", [7]), row_key("shop.orders", [7, 1])
    assert layout.partition_of_leading(key, 1, 2) == layout.partition_of(whole)
    two = Layout(64, {"shop.orders": 2})
    assert two.partition_of_leading(key, 1, 3, 1) is None
    assert two.partition_of_leading(whole, 2, 3, 1) == two.partition_of(row_key("shop.orders", [7, 1, 9]), 1)
