"""Thrift structs lose nothing: what a metastore answered is what is put back, also fields of newer versions."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.sources.hive.objects import image_of, plain_struct, with_binary_fields
from stream.sources.hive.rpc.thrift import Reader
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
    ThriftError,
    decode_struct,
    encode_struct,
    struct_of_json,
)
from tests.conformance.samples import rows

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    BOOL: st.booleans(),
    BYTE: st.integers(-128, 127),
    DOUBLE: st.floats(allow_nan=False),
    I16: st.integers(-(2**15), 2**15 - 1),
    I32: st.integers(-(2**31), 2**31 - 1),
    I64: st.integers(-(2**63), 2**63 - 1),
    STRING: st.binary(max_size=20),
}


def _values(kind: int, depth: int) -> st.SearchStrategy[Any]:
    if kind in _SCALARS:
        return _SCALARS[kind]
    kinds = st.sampled_from([*_SCALARS, *((STRUCT, LIST, MAP, SET) if depth else ())])
    if kind == STRUCT:
        return st.dictionaries(
            st.integers(1, 99), kinds.flatmap(lambda k: st.tuples(st.just(k), _values(k, depth - 1))), max_size=4
        )
    if kind == MAP:
        return st.tuples(kinds, kinds).flatmap(
            lambda of: st.lists(st.tuples(_values(of[0], depth - 1), _values(of[1], depth - 1)), max_size=3).map(
                lambda pairs: MapValue(*of, pairs)
            )
        )
    return kinds.flatmap(lambda k: st.lists(_values(k, depth - 1), max_size=3).map(lambda values: ListValue(k, values)))


@given(_values(STRUCT, 3))
def test_any_struct_is_read_as_it_was_written(found: Any) -> None:
    """Every type, nested, with fields that no version knows, comes back with the same bytes."""
    data = encode_struct(found)
    assert decode_struct(data) == found
    assert encode_struct(decode_struct(data)) == data
    json.loads(image_of(found, "Table"))


@given(_values(STRUCT, 2), st.data())
def test_damaged_bytes_are_refused(found: Any, data: st.DataObject) -> None:
    """Bytes that are no struct raise `ThriftError` only, and never ask for more memory than they have bytes."""
    damaged = bytearray(encode_struct(found))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ThriftError):
        assert encode_struct(decode_struct(bytes(damaged)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0b\x00\x01",
        b"\x00\x00",
        b"\x0f\x00\x01\x0c\xff\xff\xff\xff\x00",
        b"\x0d\x00\x01\x02\x02\x7f\xff\xff\xff\x00",
        b"\x01\x00\x01\x00\x00",
        b"\x0c\x00\x01" * 100,
        b"\x0d\x00\x01" + b"\x03\x0d\x00\x00\x00\x01\x01" * 100 + b"\x03\x03\x00\x00\x00\x00\x00",
        b"\x02\x00\x01\x01\x02\x00\x01\x01\x00",
    ],
)
def test_what_is_no_struct_is_refused(data: bytes) -> None:
    """Cut off, followed by something, of a length that lies, of an unknown type, too deep, or with a field twice."""
    with pytest.raises(ThriftError):
        decode_struct(data)


def _logged() -> Iterator[tuple[str, str]]:
    names = {"tableObj": "Table", "partitionObj": "Partition", "dbJson": "Database", "colStats": "ColumnStatistics"}
    for row in rows("hive_log"):
        message = row["message"]
        for field, value in message.items():
            for begin, name in names.items():
                if field.startswith(begin) and isinstance(value, str):
                    yield name, value
        yield from (("Partition", text) for text in message.get("partitionListJson") or ())


def test_objects_of_a_real_log_keep_every_field() -> None:
    """Each object of a recorded log, of each kind, is the same after binary and back; each field has a name."""
    seen = set()
    for name, text in _logged():
        fields = json.loads(text)
        found = with_binary_fields(struct_of_json(fields), name)
        assert decode_struct(encode_struct(found)) == found
        assert {str(number) for number in found} == set(fields)
        plain = plain_struct(found, name)
        assert not any(key.isdigit() for key in plain)
        assert json.loads(image_of(found, name)) == plain
        seen.add(name)
    assert seen == {"Table", "Partition", "Database", "ColumnStatistics"}


def test_a_table_has_the_names_of_the_metastores_thrift_file() -> None:
    """Readers of the JSON image find Thrift's own names, and fields of newer versions under their numbers."""
    text = next(text for name, text in _logged() if name == "Table")
    found = struct_of_json(json.loads(text)) | {77: (I64, 5), 78: (STRING, b"\xff")}
    plain = plain_struct(found, "Table")
    assert (plain["tableName"], plain["dbName"], plain["owner"], plain["id"]) == ("mmp", "s1", "me", 1)
    assert [column["name"] for column in plain["sd"]["cols"]] == ["a", "b"]
    assert plain["partitionKeys"] == [{"name": "p", "type": "string", "comment": ""}]
    assert plain["sd"]["serdeInfo"]["serializationLib"].endswith("OrcSerde")
    assert (plain["77"], plain["78"]) == (5, {"base64": "/w=="})


def test_the_binary_protocol_is_thrifts() -> None:
    """Bytes as Thrift's own libraries write them: type, field number big-endian, value; 0 ends the struct."""
    found = {1: (STRING, b"t"), 25: (I64, 7), 14: (BOOL, True), 8: (LIST, ListValue(STRUCT, [{}]))}
    expected = b"\x0b" + struct.pack(">hI", 1, 1) + b"t" + b"\x0a" + struct.pack(">hq", 25, 7)
    expected += b"\x02" + struct.pack(">h", 14) + b"\x01" + b"\x0f" + struct.pack(">hbI", 8, 12, 1) + b"\0" + b"\0"
    assert encode_struct(found) == expected


def test_binary_fields_of_a_log_are_base64() -> None:
    """TJSON writes binary fields as base64 without saying so; the struct holds the bytes."""
    fields = {"1": {"str": "YWI"}, "3": {"i16": 2}}
    found = with_binary_fields(struct_of_json(fields), "Decimal")
    assert found[1] == (STRING, b"ab")
    assert plain_struct(found, "Decimal") == {"unscaled": {"base64": "YWI="}, "scale": 2}
    with pytest.raises(ThriftError, match="unscaled"):
        with_binary_fields(struct_of_json({"1": {"str": "%"}}), "Decimal")


@pytest.mark.parametrize("bad", [{"x": {"str": ""}}, {"1": {}}, {"1": {"nope": 1}}, {"1": {"i32": "x"}}, {"1": 5}])
def test_json_that_is_no_struct_is_refused(bad: dict[str, Any]) -> None:
    """Whatever a log holds, it is a struct or a `ThriftError`."""
    with pytest.raises(ThriftError):
        struct_of_json(bad)
    with pytest.raises(ThriftError):
        encode_struct({1: (I32, "text")})


@given(_values(STRUCT, 3))
def test_what_a_metastore_answered_is_what_is_kept(found: Any) -> None:
    """Through the client's own reader to the stored struct: the bytes of the answer, whatever is in them."""
    data = encode_struct(found)
    pieces = iter([b"\x80\x01\x00\x02" + b"\0" * 8 + data])
    _, _, _, answered = Reader(lambda: next(pieces)).message()
    assert encode_struct(answered) == data


@pytest.mark.parametrize("name", ["Longs", "Doubles", "Decimals", "Dates", "Timestamps"])
def test_sketches_of_statistics_are_bytes(name: str) -> None:
    """Both of them: as their text they would be other statistics than the metastore's."""
    fields = {"5": {"str": "AP8"}, "6": {"str": "/wA"}}
    found = with_binary_fields(struct_of_json(fields), name)
    assert found == {5: (STRING, b"\x00\xff"), 6: (STRING, b"\xff\x00")}
    assert plain_struct(found, name) == {"bitVectors": {"base64": "AP8="}, "histogram": {"base64": "/wA="}}


@pytest.mark.parametrize(("value", "shown"), [(inf, b'"inf"'), (-inf, b'"-inf"'), (nan, b'"nan"'), (1.5, b"1.5")])
def test_a_number_that_json_does_not_have_is_text(value: float, shown: bytes) -> None:
    """The encoder would write null: statistics would say that nobody knows the highest value."""
    assert image_of({2: (DOUBLE, value)}, "Doubles") == b'{"highValue":%b}' % shown
