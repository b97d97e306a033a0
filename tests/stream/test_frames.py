"""Packed row frames: what is written is read back, as any Avro reader reads it, and what lies is refused."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stream.wire.checks import check_frame
from stream.wire.codec import HEADER_SIZE, CodecError, current_schema, decode, encode
from stream.wire.frames import NUMBER_MAX, PREFIX_MAX, ROWS_MAX, unpack, write
from tests.consumers.histories import encode_version_1
from tests.stream.test_codec import FRAME

SCHEMA = parse_schema(json.loads(current_schema("RowFrame").text))
longs = st.integers(-(2**63), 2**63 - 1)
numbers = st.one_of(st.integers(1, 3), st.integers(1, 70_000), st.integers(1, 2**26))
gtids = st.one_of(
    st.integers(0, 2**63).map(lambda number: f"MariaDB/0-1-{number}"),
    st.sampled_from(["MariaDB/0-1-007", "MariaDB/0-1-", "MariaDB/1-1-5", "HiveEvent/190", "", "7", "x" * 200 + "1"]),
    st.text(max_size=4),
)


@st.composite
def frames(draw: st.DrawFn) -> dict[str, Any]:
    """A valid frame: few or many transactions, GTIDs with and without a common prefix, narrow and wide columns."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    rows, ordinals = sum(sizes), [0]
    for _ in range(rows):
        ordinals.append(ordinals[-1] + draw(numbers))
    first = draw(st.integers(0, 2**40))
    plain = [f"MariaDB/0-1-{first + draw(numbers)}" for _ in sizes]
    some_texts = st.lists(st.text(max_size=5), min_size=len(sizes), max_size=len(sizes))
    stamp = draw(st.integers(-(2**62), 2**62))
    return {
        "shard": draw(st.text(min_size=1, max_size=5)),
        "epoch": draw(st.integers(1, 2**63 - 1)),
        "ordinal": draw(st.integers(0, 2**62)),
        "keys": [draw(st.binary(min_size=1, max_size=draw(st.sampled_from([3, 300])))) for _ in range(rows)],
        "images": [draw(st.binary(max_size=3)) * draw(st.sampled_from([1, 1, 30_000])) for _ in range(rows)],
        "operations": draw(st.binary(min_size=rows, max_size=rows)),
        "ordinals": ordinals[1:],
        "transactions": sizes,
        "gtids": draw(st.one_of(st.just(plain), st.lists(gtids, min_size=len(sizes), max_size=len(sizes)))),
        "positions": draw(st.one_of(st.just([]), some_texts)),
        "timestamps": [stamp + draw(st.integers(0, 2 ** draw(st.sampled_from([1, 20, 40])))) for _ in sizes],
        "origins": draw(st.one_of(st.just([]), some_texts)),
    }


@given(frames())
@settings(max_examples=200, deadline=None)
@example(FRAME)
def test_a_frame_reads_back_from_both_versions_alike(frame: dict[str, Any]) -> None:
    """The columns in memory are the same, whichever version of the record holds them."""
    assert decode(encode("RowFrame", frame)) == ("RowFrame", frame)
    assert decode(encode_version_1("RowFrame", frame)) == ("RowFrame", frame)


def packed_fields(frame: dict[str, Any]) -> dict[str, Any]:
    """The fields of the record that holds a frame."""
    body = BytesIO(write(frame))
    fields: Any = schemaless_reader(body, SCHEMA, None)
    assert body.read() == b""
    return dict(fields)


@given(frames())
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_avro(frame: dict[str, Any]) -> None:
    """The hand-written encoder gives the bytes that an Avro encoder gives for the same fields."""
    out = BytesIO()
    schemaless_writer(out, SCHEMA, packed_fields(frame))
    assert out.getvalue() == write(frame)


def test_gtids_of_one_prefix_are_numbers() -> None:
    """Each GTID keeps every character, but is a few bytes of a block."""
    many = [f"MariaDB/0-1-{number}" for number in (999, 1_000, 1_001, 1_300)]
    frame = {**FRAME, "keys": [b"t\0[1]"] * 4, "images": [b"{}"] * 4, "operations": b"\1" * 4, "ordinals": [1, 2, 3, 9]}
    frame |= {"transactions": [1] * 4, "gtids": many, "positions": [], "origins": [], "timestamps": [5] * 4}
    fields = packed_fields(frame)
    assert (fields["gtids"], fields["gtid_prefix"], fields["gtid_base"]) == ([], "MariaDB/0-1-", 999)
    assert fields["gtid_numbers"] == b"".join(n.to_bytes(2, "little") for n in (0, 1, 2, 301))
    assert (fields["ordinals"], fields["sizes"], fields["timestamps"]) == (b"\0\0\0\5", b"", b"")
    assert unpack(fields)["gtids"] == many


@pytest.mark.parametrize(
    "lie",
    [
        {"transactions": 0},
        {"transactions": -1},
        {"transactions": 4},
        {"transactions": 2**31 - 1},
        {"operations": b""},
        {"operations": b"\1" * (ROWS_MAX + 1)},
        {"lengths": b"\1"},
        {"lengths": b""},
        {"lengths": b"\xff" * 48},
        {"lengths": b"\xff" * 6},
        {"lengths": b"\0" * 3 + b"\x30" * 3},
        {"rows": b""},
        {"rows": b"x" * 1000},
        {"sizes": b"\5\5"},
        {"sizes": b"\0\0"},
        {"sizes": b"\xff" * 16},
        {"sizes": b"abc"},
        {"ordinals": b"\xff" * 24},
        {"ordinals": b"\xff" * 12},
        {"ordinals": b"ab"},
        {"timestamp": 2**63 - 1},
        {"timestamps": b"\xff" * 16},
        {"timestamps": b"abc"},
        {"gtid_prefix": "x"},
        {"gtids": [], "gtid_prefix": "x\0"},
        {"gtids": [], "gtid_prefix": "x" * (PREFIX_MAX + 1)},
        {"gtids": [], "gtid_prefix": "x", "gtid_base": -1},
        {"gtids": [], "gtid_prefix": "x", "gtid_numbers": b"abc"},
        {"gtids": []},
        {"gtids": ["a", "b", "c"]},
        {"positions": ["a"]},
    ],
    ids="-".join,
)
def test_columns_that_contradict_each_other_are_refused(lie: dict[str, Any]) -> None:
    """Lengths that do not add up, counts that lie and numbers out of range are an error, at no cost in memory."""
    fields = packed_fields(FRAME) | {"timestamps": b"\0\1"} | lie
    out = BytesIO()
    schemaless_writer(out, SCHEMA, fields)
    with pytest.raises(CodecError) as refused:
        check_frame(decode(current_schema("RowFrame").header + out.getvalue())[1])
    assert refused.value.code == "bad_field"


@given(frames(), st.data())
@settings(max_examples=200, deadline=None)
def test_any_changed_byte_gives_an_error_or_another_frame(frame: dict[str, Any], data: st.DataObject) -> None:
    """A frame that is decoded after damage has columns of one length, and can be checked."""
    message = bytearray(encode("RowFrame", frame))
    at = data.draw(st.integers(HEADER_SIZE, len(message) - 1))
    message[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(message))[1]
        check_frame(found)
    except CodecError:
        return
    rows, transactions = len(found["operations"]), len(found["transactions"])
    assert {len(found[name]) for name in ("keys", "images", "ordinals")} == {rows}
    assert {len(found[name]) for name in ("gtids", "timestamps")} == {transactions}
    assert decode(encode("RowFrame", found))[1] == found


@pytest.mark.parametrize(
    "changes",
    [
        {"ordinals": [1, 1, 2]},
        {"ordinals": [0, 1, 2]},
        {"transactions": [3, 0]},
        {"transactions": [1, 1]},
        {"gtids": ["a"]},
        {"timestamps": []},
        {"positions": ["a"]},
        {"keys": []},
        {"ordinal": 2**63},
        {"epoch": "1"},
        {"images": [1, 2, 3]},
        {"shard": "\ud800"},
    ],
)
def test_a_frame_that_cannot_be_packed_is_an_error_at_the_writer(changes: dict[str, Any]) -> None:
    """Not a poison message for its readers."""
    with pytest.raises(CodecError):
        encode("RowFrame", FRAME | changes)


@pytest.mark.parametrize("number", [NUMBER_MAX - 1, NUMBER_MAX])
def test_a_number_that_no_reader_takes_stays_text(number: int) -> None:
    """The writer's bound is the reader's: else a source with such numbers would publish what nobody can read."""
    frame = {**FRAME, "keys": [b"t\0[1]"] * 4, "images": [b"{}"] * 4, "operations": b"\1" * 4, "ordinals": [1, 2, 3, 9]}
    frame |= {"transactions": [1] * 4, "gtids": [f"MariaDB/0-1-{number}"] * 4, "timestamps": [5] * 4}
    frame |= {"positions": [], "origins": []}
    assert (packed_fields(frame)["gtid_prefix"] == "") == (number == NUMBER_MAX)
    assert decode(encode("RowFrame", frame)) == ("RowFrame", frame)
