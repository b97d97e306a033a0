"""Where a message ends is known however it arrives, and what is none is refused before it costs anything."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.thrift.messages import (
    DEPTH_MAX,
    NAME_BYTES_MAX,
    STOP,
    Head,
    Scanner,
    failure,
    field_bytes,
    head_of,
    list_bytes,
    reply,
)
from stream.sources.hive.rpc.thrift import BYTES_MAX, CALL, EXCEPTION, REPLY, message
from stream.sources.hive.structs import (
    I32,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    ListValue,
    Struct,
    ThriftError,
    encode_struct,
)
from tests.serving.thrift.structs import values

NAMED = message("get_table", -7, {})


@given(values(STRUCT, 3), st.binary(max_size=9), st.lists(st.integers(1, 40), max_size=8))
def test_the_end_is_found_however_a_struct_is_cut_up(found: Any, after: bytes, sizes: list[int]) -> None:
    """Every type, nested and empty: neither a byte too few nor one of the next message."""
    data = encode_struct(found)
    scanner, at = Scanner(), 0
    for size in sizes:
        if at + size >= len(data):
            break
        assert scanner.feed(data[at : at + size]) is None
        at += size
    assert scanner.feed(data[at:] + after) == len(data) - at


@given(values(STRUCT, 2))
def test_the_end_is_found_byte_by_byte(found: Any) -> None:
    """The last byte, and no other one, ends it."""
    scanner = Scanner()
    *seen, last = [scanner.feed(bytes([each])) for each in encode_struct(found)]
    assert (set(seen) <= {None}, last) == (True, 1)


def nested(kind: int, depth: int) -> bytes:
    """A struct whose field has ``depth`` values of a type, each in the other."""
    heads = {
        STRUCT: b"\x0c\x00\x01",
        LIST: struct.pack(">bI", LIST, 1),
        SET: struct.pack(">bI", SET, 1),
        MAP: struct.pack(">bbI", MAP, MAP, 1),
    }
    return struct.pack(">bh", kind, 1) + heads[kind] * depth


@pytest.mark.parametrize("kind", [STRUCT, LIST, SET, MAP])
def test_what_is_nested_too_deep_is_refused(kind: int) -> None:
    """Of any kind: each level takes memory until it ends."""
    assert Scanner().feed(nested(kind, DEPTH_MAX // 2 - 1)) is None
    with pytest.raises(ThriftError, match="nested"):
        Scanner().feed(nested(kind, DEPTH_MAX + 1))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x11\x00\x01", "unknown type 17"),
        (b"\x01\x00\x01", "unknown type 1"),
        (b"\x0f\x00\x01" + struct.pack(">bI", 99, 1), "unknown type 99"),
        (b"\x0b\x00\x01" + struct.pack(">i", -1), "a length of"),
        (b"\x0f\x00\x01" + struct.pack(">bI", STRING, BYTES_MAX + 1), "a length of"),
        (b"\x0d\x00\x01" + struct.pack(">bbI", STRING, I32, BYTES_MAX + 1), "a length of"),
    ],
)
def test_what_is_no_struct_is_refused(data: bytes, why: str) -> None:
    """At the byte that says so, not when all that it announces has arrived."""
    with pytest.raises(ThriftError, match=why):
        Scanner().feed(data)


def test_a_message_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all its bytes: one of many short values is as large as one of a long one."""
    monkeypatch.setattr("serving.thrift.messages.BYTES_MAX", 100)
    scanner = Scanner()
    assert scanner.feed(b"\x02\x00\x01\x01" * 25) is None
    with pytest.raises(ThriftError, match="larger than 100"):
        scanner.feed(STOP)


def test_a_head_is_read_once_it_is_there() -> None:
    """No earlier, and whatever follows it."""
    whole = len(NAMED) - 1
    assert {head_of(NAMED[:size]) for size in range(whole)} == {None}
    assert head_of(NAMED[:whole]) == head_of(NAMED + b"more") == Head("get_table", CALL, -7, whole)


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",
        b"\x80\x02",
        b"\x00\x00\x00\x20\x80\x01",
        b"\x80\x01\x00\x01" + b"\xff" * 4,
        b"\x80\x01\x00\x01\x01\x00\x00\x04",
    ],
)
def test_what_begins_otherwise_is_no_message(data: bytes) -> None:
    """SASL, frames and hostile lengths are told from a call by their first bytes."""
    with pytest.raises(ThriftError):
        head_of(data)
    assert head_of(b"\x80\x01\x00\x01" + struct.pack(">I", NAME_BYTES_MAX)) is None


def test_replies_are_written_as_structs_are() -> None:
    """Bytes put together here are those of the struct itself."""
    one: Struct = {1: (STRING, b"a")}
    two: Struct = {2: (I32, 5)}
    listed = list_bytes(STRUCT, [encode_struct(one), encode_struct(two)])
    result = field_bytes(0, LIST, listed) + STOP
    assert result == encode_struct({0: (LIST, ListValue(STRUCT, [one, two]))})
    written = reply("get_table", -7, result)
    assert head_of(written) == Head("get_table", REPLY, -7, len(written) - len(result))
    refused = failure("get_table", 3, "why")
    head = head_of(refused)
    assert head is not None
    assert (head.kind, head.sequence, refused[head.size :]) == (
        EXCEPTION,
        3,
        encode_struct({1: (STRING, b"why"), 2: (I32, 6)}),
    )
