"""Thrift messages: what a server sends comes back however it is cut up, and hostile bytes are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.sources.hive.rpc import thrift
from stream.sources.hive.rpc.thrift import CALL, Reader, field, message, text
from stream.sources.hive.structs import (
    BOOL,
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    ListValue,
    MapValue,
    Struct,
    ThriftError,
)

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    BOOL: st.booleans(),
    BYTE: st.integers(-(2**7), 2**7 - 1),
    I16: st.integers(-(2**15), 2**15 - 1),
    I32: st.integers(-(2**31), 2**31 - 1),
    I64: st.integers(-(2**63), 2**63 - 1),
    DOUBLE: st.floats(allow_nan=False),
    STRING: st.binary(max_size=20),
}


def of_kind(kind: int, depth: int) -> st.SearchStrategy[Any]:
    """Values of one type."""
    if kind in SCALARS:
        return SCALARS[kind]
    if kind == STRUCT:
        return structs(depth - 1)
    if kind == MAP:
        return st.tuples(kinds(depth - 1), kinds(depth - 1)).flatmap(lambda pair: maps(*pair, depth - 1))
    return kinds(depth - 1).flatmap(
        lambda element: st.lists(of_kind(element, depth - 1), max_size=3).map(lambda found: ListValue(element, found))
    )


def maps(key: int, value: int, depth: int) -> st.SearchStrategy[Any]:
    """Maps of one type; their keys may be lists, as those of skewed values are."""
    pairs = st.lists(st.tuples(of_kind(key, depth), of_kind(value, depth)), max_size=3)
    return pairs.map(lambda found: MapValue(key, value, found))


def kinds(depth: int) -> st.SearchStrategy[int]:
    """Types that fit the depth."""
    return st.sampled_from([*SCALARS, *((STRUCT, MAP, LIST, SET) if depth > 0 else ())])


def structs(depth: int) -> st.SearchStrategy[Struct]:
    """Structs of any fields."""
    typed = kinds(depth).flatmap(lambda kind: of_kind(kind, depth).map(lambda value: (kind, value)))
    return st.dictionaries(st.integers(0, 2**15 - 1), typed, max_size=4)


def in_pieces(data: bytes, size: int) -> Callable[[], bytes]:
    """Gives ``data`` in pieces, and fails at its end."""
    pieces = iter([data[at : at + size] for at in range(0, len(data), size)])

    def more() -> bytes:
        try:
            return next(pieces)
        except StopIteration:
            raise ConnectionResetError from None

    return more


@given(structs(3), st.integers(1, 40))
def test_any_struct_comes_back_however_it_is_cut_up(value: Struct, size: int) -> None:
    """Every field of every type is decoded as it was written, also if its bytes arrive in small pieces."""
    sent = message("a_function", 7, value)
    assert Reader(in_pieces(sent, size)).message() == ("a_function", CALL, 7, value)


def test_fields_are_read_as_plain_values() -> None:
    """Strings are text that keeps bytes which are none; lists and maps are Python's; what is absent is the default."""
    value: Struct = {
        1: (STRING, b"\xff\xc3\xbc"),
        2: (LIST, ListValue(STRING, [b"a"])),
        3: (MAP, MapValue(STRING, I64, [(b"k", 5)])),
    }
    assert [field(value, number) for number in (1, 2, 3, 4)] == ["\udcffü", ["a"], {"k": 5}, None]


HEAD = b"\x80\x01\x00\x02" + b"\x00\x00\x00\x01f" + b"\x00\x00\x00\x01"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request", "no Thrift message"),
        (HEAD + b"\x0b\x00\x00\xff\xff\xff\xff", "length of -1"),
        (HEAD + b"\x0b\x00\x00\x7f\xff\xff\xff", "length of 2147483647"),
        (HEAD + b"\x0f\x00\x00\x05\x00\x00\x00\x01", "unknown type 5"),
        (HEAD + b"\x0d\x00\x00\x05\x08\x00\x00\x00\x01", "unknown types 5 and 8"),
        (HEAD + b"\x09\x00\x00", "unknown type 9"),
        (HEAD + b"\x0c\x00\x01" * 100, "nested deeper"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, reason: str) -> None:
    """A wrong port, impossible lengths, unknown types and endless nesting are errors that say what is wrong."""
    with pytest.raises(ThriftError, match=reason):
        Reader(in_pieces(data, 1000)).message()


def test_the_bound_on_an_answer_is_not_one_on_all_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that lasts for weeks would fail once they are that many bytes together."""
    monkeypatch.setattr(thrift, "BYTES_MAX", 100)
    answers = [message("f", number, {1: text("x" * 50)}) for number in range(5)]
    reader = Reader(iter(answers).__next__)
    assert [reader.message()[2] for _ in answers] == list(range(5))
    large = message("f", 1, {1: text("x" * 50), 2: text("x" * 50)})
    with pytest.raises(ThriftError, match="larger than 100 bytes"):
        Reader(iter([large]).__next__).message()
