"""Debezium's values of PostgreSQL are canonical to the last digit, or no image."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from stream.sources.postgres.values import PostgresRowDecoder
from tests.sources.debezium.test_values import field, schema_of, table

SCALE = "__debezium.source.column.scale"
LONG = "9" * 100


def bytes_of(number: int) -> str:
    """A number as Connect's Decimal has it."""
    return b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


@pytest.mark.parametrize(
    ("kind", "of", "value", "image"),
    [
        ("int", field("a", "int16", "", "INT2"), -1, "-1"),
        ("bit", field("a", "boolean", "", "BOOL"), True, "1"),
        ("double", field("a", "double", "", "FLOAT8"), 1e21, "1e+21"),
        ("double", field("a", "double", "", "FLOAT8"), "NaN", ""),
        ("float", field("a", "float", "", "FLOAT4"), "Infinity", ""),
        ("decimal", field("a", "string", "", "NUMERIC"), "1.50", '"1.50"'),
        ("decimal", field("a", "string", "", "NUMERIC"), "NaN", ""),
        ("decimal", field("a", "string", "", "NUMERIC"), "1E+2", ""),
        (
            "decimal",
            field("a", "bytes", "org.apache.kafka.connect.data.Decimal", "NUMERIC", scale="2"),
            bytes_of(-5),
            '"-0.05"',
        ),
        (
            "decimal",
            field("a", "struct", "io.debezium.data.VariableScaleDecimal", "NUMERIC"),
            {"scale": 3, "value": bytes_of(int(LONG))},
            f'"{LONG[:97]}.999"',
        ),
        (
            "decimal",
            field("a", "struct", "io.debezium.data.VariableScaleDecimal", "NUMERIC"),
            {"scale": -2, "value": bytes_of(5)},
            "",
        ),
        ("text", field("a", "string", "", "TEXT"), "\ufffd", '"\ufffd"'),
        ("text", field("a", "string", "", "TEXT"), "__debezium_unavailable_value", ""),
        ("binary", field("a", "bytes", "", "BYTEA"), b64encode(b"__debezium_unavailable_value").decode(), ""),
        ("date", field("a", "int32", "io.debezium.time.Date", "DATE"), 0, '"1970-01-01"'),
        ("date", field("a", "int32", "io.debezium.time.Date", "DATE"), None, "null"),
        ("date", field("a", "int32", "io.debezium.time.Date", "DATE"), -735_160, ""),
        ("datetime", field("a", "int64", "io.debezium.time.MicroTimestamp", "TIMESTAMP"), 9223372036825200000, ""),
        (
            "datetime",
            field("a", "int64", "io.debezium.time.Timestamp", "TIMESTAMP", **{SCALE: "3"}),
            -1,
            '"1969-12-31 23:59:59.999"',
        ),
        ("timestamp", field("a", "string", "io.debezium.time.ZonedTimestamp", "TIMESTAMPTZ"), "-infinity", ""),
        ("time", field("a", "int64", "io.debezium.time.MicroTime", "TIME"), 86_400_000_000, '"24:00:00.000000"'),
        ("uuid", field("a", "string", "", "UUID"), "x", ""),
    ],
)
def test_a_value_is_exact_or_has_no_image(kind: str, of: dict[str, object], value: object, image: str) -> None:
    """What a form may stand for besides the value is not carried: the row is read from the server."""
    decoder = PostgresRowDecoder(schema_of(field("id", "int32", "", "INT4"), of), table(f"id:int a:{kind}"))
    row = decoder.row(json.dumps({"id": 7, "a": value}).encode())
    assert row == (b"shop.typed\0[7]", f'{{"id":7,"a":{image}}}'.encode() if image else b"")
