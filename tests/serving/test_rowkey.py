"""Keys as readers write them in paths."""

from __future__ import annotations

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.client import ClientError
from serving.client.keys import format_key
from serving.errors import ReadError
from serving.reads.rowkey import KEY_BYTES_MAX, parse_row_key
from serving.sources.source import RowTable
from stream.wire.events import Column
from stream.wire.keys import split_row_key

INT = Column("id", "int", True)
TEXT = Column("name", "text", False)
BINARY = Column("digest", "binary", True)


def table(*key: Column) -> RowTable:
    return RowTable("shop.orders", key, True)


@pytest.mark.parametrize("text", ["7", "007", "+7", "%37"])
def test_spellings_of_an_integer_are_one_key(text: str) -> None:
    """All spellings of an integer are one cache entry."""
    found = parse_row_key(table(INT), text.encode())
    assert found.key == b"shop.orders\0[7]"
    assert found.exact


@pytest.mark.parametrize("text", ["", "x", "7.0", "1_000", " 7", "٧", "0x7", "7" * 30])
def test_a_key_that_is_not_an_integer_is_refused_and_the_column_named(text: str) -> None:
    """The error for a value of the wrong type names the column."""
    with pytest.raises(ReadError, match=r"shop\.orders\.id") as caught:
        parse_row_key(table(INT), text.encode())
    assert (caught.value.code, caught.value.status) == ("bad_key", 400)


@pytest.mark.parametrize("text", ["7", "7,a,b", ""])
def test_a_wrong_number_of_columns_is_refused_and_the_key_named(text: str) -> None:
    """The error for a wrong number of columns names the key's columns."""
    with pytest.raises(ReadError, match=r"\(id, name\)"):
        parse_row_key(table(INT, TEXT), text.encode())


def test_a_table_without_a_primary_key_has_no_rows_to_name() -> None:
    """The error says that the primary key is missing, not that the number of columns is wrong."""
    with pytest.raises(ReadError, match=r"shop.log has no primary key"):
        parse_row_key(RowTable("shop.log", (), False, "it has no primary key"), b"7")


def test_an_encoded_comma_is_part_of_the_value() -> None:
    """Only a bare comma separates columns."""
    assert parse_row_key(table(INT, TEXT), b"7,a%2Cb%2F%C3%BC").values == (7, "a,b/ü")


def test_text_that_is_not_utf8_is_refused() -> None:
    """Bytes that are not UTF-8 are refused as a text key."""
    with pytest.raises(ReadError, match=r"shop\.orders\.name: %FF"):
        parse_row_key(table(TEXT), b"%ff")


def test_binary_columns_take_any_bytes() -> None:
    """A binary key is the percent-encoded bytes themselves."""
    found = parse_row_key(table(BINARY), b"%00%ff")
    assert found.key == b'shop.orders\0[{"base64":"AP8="}]'
    assert found.exact


@pytest.mark.parametrize("column", [TEXT, Column("price", "decimal", True), Column("ratio", "double", True)])
def test_a_key_with_other_spellings_is_not_exact(column: Column) -> None:
    """A key that has other spellings is not exact, so its absence is not cached."""
    assert not parse_row_key(table(column), b"1.5").exact


def test_a_two_digit_year_is_not_exact() -> None:
    """MariaDB reads year 24 as 2024: the key on the path is not the row's."""
    assert not parse_row_key(table(Column("y", "year", True)), b"24").exact
    assert parse_row_key(table(Column("y", "year", True)), b"2024").exact


def test_a_key_beyond_the_limit_is_refused() -> None:
    """A key longer than `KEY_BYTES_MAX` is refused."""
    with pytest.raises(ReadError, match="longer"):
        parse_row_key(table(TEXT), b"a" * (KEY_BYTES_MAX + 1))
    assert parse_row_key(table(TEXT), b"a" * KEY_BYTES_MAX).values == ("a" * KEY_BYTES_MAX,)


@given(st.integers(-(2**63), 2**64 - 1), st.text(max_size=50), st.binary(max_size=50))
def test_the_clients_key_reads_back(number: int, text: str, raw: bytes) -> None:
    """What the client writes, the server reads as the same values."""
    segment = format_key((number, text, raw)).encode()
    found = parse_row_key(table(INT, TEXT, BINARY), segment)
    assert found.values[:2] == (number, text)
    assert split_row_key(found.key)[1] == list(found.values)


@pytest.mark.parametrize("key", [(".",), ("..",), (b".",), (".", "..")])
def test_a_key_of_dots_reaches_the_front(key: tuple[str | bytes, ...]) -> None:
    """A segment of a path that is one or two dots would be removed with the one before it."""
    path = httpx2.URL(f"http://front/v1/rows/shop/orders/{format_key(key)}").raw_path
    segment = path.removeprefix(b"/v1/rows/shop/orders/")
    columns = [BINARY if isinstance(each, bytes) else TEXT for each in key]
    values = [each if isinstance(each, str) else {"base64": "Lg=="} for each in key]
    assert list(parse_row_key(table(*columns), segment).values) == values


def test_null_is_refused_as_a_key() -> None:
    """None is refused by the client before anything is sent."""
    with pytest.raises(ClientError, match="None"):
        format_key((None,))


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("date", "20%00", "is not a date value"),
        ("decimal", "1x", "is not a number"),
        ("text", "%ff", "is not UTF-8"),
        ("int", "1.5", "is not an integer"),
    ],
)
def test_a_value_of_another_kind_is_refused_and_the_column_named(kind: str, text: str, said: str) -> None:
    """A reader's mistake is a 400 that names the column, not an error of the front."""
    with pytest.raises(ReadError, match=said) as caught:
        parse_row_key(table(Column("c", kind, True)), text.encode())
    assert (caught.value.code, caught.value.status) == ("bad_key", 400)
    assert "shop.orders.c" in str(caught.value)


def test_a_text_may_hold_any_character() -> None:
    """A NUL is one of them; it is written so that the key stays one."""
    found = parse_row_key(table(TEXT), b"a%00b")
    assert found.values == ("a\0b",)
    assert found.key.count(b"\0") == 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [("inet", "1.2.3"), ("double", "1e999"), ("float", "-1e999"), ("uuid", "%00"), ("int", "1%00"), ("enum", "a%00")],
)
def test_a_value_without_a_canonical_form_is_a_bad_key(kind: str, text: str) -> None:
    """Whoever notices it, the reader gets a 400."""
    with pytest.raises(ReadError) as caught:
        parse_row_key(table(Column("c", kind, True)), text.encode())
    assert (caught.value.code, caught.value.status) == ("bad_key", 400)


@pytest.mark.parametrize("inexact", [(0,), (1,), (0, 1), ()])
def test_a_composite_key_is_exact_if_every_column_is(inexact: tuple[int, ...]) -> None:
    """One column with other spellings is enough for the row to have another key."""
    columns = [Column(f"c{index}", "int", index not in inexact) for index in range(2)]
    assert parse_row_key(table(*columns), b"7,8").exact is (not inexact)
