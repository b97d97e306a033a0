"""Keys are the same bytes in every language: canonical numbers and strings, and the kept test vectors."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from stream.wire.canonical import float_json, json_of
from stream.wire.keys import BUCKETS, Layout, row_key, split_row_key

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "schemas" / "key-vectors.json").read_text())
finite = st.floats(allow_nan=False, allow_infinity=False)


def ecmascript(value: float) -> str:
    """Number::toString of ECMA-262, step by step, from the decimal digits alone."""
    if value == 0:
        return "0"
    if value < 0:
        return "-" + ecmascript(-value)
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    s = "".join(map(str, digits)).rstrip("0")
    k, n = len(s), len(digits) + exponent
    if k <= n <= 21:
        return s + "0" * (n - k)
    if 0 < n <= 21:
        return s[:n] + "." + s[n:]
    if -6 < n <= 0:
        return "0." + "0" * -n + s
    sign = "+" if n - 1 > 0 else "-"
    mantissa = s if k == 1 else s[0] + "." + s[1:]
    return f"{mantissa}e{sign}{abs(n - 1)}"


@given(finite)
@example(-0.0)
@example(5e-324)
@example(1e21)
@example(999999999999999900000.0)
@example(1e-6)
@example(9.999999999999999e-7)
@example(2.0**60)
def test_a_float_is_written_as_ecmascript_writes_it(value: float) -> None:
    """Every finite float has the text that RFC 8785 gives it, and reads back as the same float."""
    assert float_json(value).decode() == ecmascript(value)
    assert float(float_json(value)) == value


@given(st.one_of(finite, st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])))
def test_a_key_of_a_float_reads_back_and_encodes_to_itself(value: float) -> None:
    """Encoding and decoding agree for every float, also where the text is that of an integer."""
    if float_json(value) == b"null":
        return
    key = row_key("t", [value])
    [decoded] = split_row_key(key)[1]
    assert float(decoded) == value
    assert row_key("t", [decoded]) == key == row_key("t", [float(decoded)])


@given(st.text(st.characters(codec="utf-8"), max_size=30))
@example("".join(map(chr, range(0x80))))
@example("\u2028\u2029\ufeff\U0001f600")
def test_a_string_is_written_with_the_shortest_escapes(value: str) -> None:
    """Only what RFC 8785 escapes is escaped, and as it does."""
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    wanted = "".join(short.get(each, each if each >= " " else f"\\u{ord(each):04x}") for each in value)
    assert json_of(value) == f'"{wanted}"'.encode()


def canonical(column: dict[str, Any]) -> Any:
    """The canonical value that a vector's column describes, as `schemas/key-vectors.json` explains."""
    match column:
        case {"int": text}:
            return int(text)
        case {"double": bits}:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case {"bytes": encoded}:
            return {"base64": b64encode(bytes.fromhex(encoded)).decode()}
        case {"text": text}:
            return text
    raise ValueError(column)


def bucket_and_partitions(hashed: bytes) -> tuple[str, int, dict[str, int]]:
    """Hash, bucket, and partition for each count of the vectors, computed from the definition."""
    found = xxhash.xxh3_64_intdigest(hashed)
    bucket = found % 4096
    return f"{found:016x}", bucket, {str(count): bucket * count // 4096 for count in VECTORS["partition_counts"]}


@pytest.mark.parametrize("vector", VECTORS["keys"], ids=lambda vector: vector["says"])
def test_a_kept_vector_has_its_key_and_partition(vector: dict[str, Any]) -> None:
    """A producer in another language that agrees with the vectors hits the same entries: they never change."""
    key = row_key(vector["table"], [canonical(column) for column in vector["columns"]])
    assert key.hex() == vector["key"]
    columns = key.partition(b"\0")[2]
    prefix = msgspec.json.encode(msgspec.json.decode(columns, type=list[msgspec.Raw])[: vector["prefix"]])
    hashed = prefix if vector["prefix"] else key
    assert (vector["xxh3_64"], vector["bucket"], vector["partitions"]) == bucket_and_partitions(hashed)
    for count, partition in vector["partitions"].items():
        assert Layout(int(count)).partition_of(key, vector["prefix"]) == partition


def test_there_are_vectors_for_each_kind_of_key() -> None:
    """The vectors say the number of buckets, differ, and are many enough to find a wrong encoder."""
    assert VECTORS["buckets"] == BUCKETS
    assert len({vector["says"] for vector in VECTORS["keys"]}) == len(VECTORS["keys"]) >= 60
    assert {kind for vector in VECTORS["keys"] for column in vector["columns"] for kind in column} == {
        "int",
        "double",
        "text",
        "bytes",
    }
    assert any(vector["prefix"] for vector in VECTORS["keys"])
