"""Debezium's values become the same canonical keys and images as those of the binlog and of SELECT, or no image."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from stream.sources.debezium.errors import DebeziumError
from stream.sources.debezium.values import RowDecoder, SchemaDiffers
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.wire.values import UndecodableValue
from tests.sources.debezium.samples import SERVERS, typed

_KINDS = (
    "id:int ti:int tu:int b1:int si:int su:int mi:int mu:int i:int iu:int bi:int bu:int zf:int d1:decimal d2:decimal"
    " d0:decimal f:float db:double c:text cb:binary v:text vl:text vb:binary bin:binary t:text tt:text lt:text"
    " bl:binary tb:binary bt1:bit bt13:bit bt64:bit dt:date dtm:datetime dtm3:datetime dtm6:datetime ts:timestamp"
    " ts6:timestamp tm:time tm6:time y:year e:enum s:set j:json"
)
_LENGTHS = {"cb": 4, "bin": 8}
_EDGES = (
    '{"id":2,"ti":-128,"tu":255,"b1":1,"si":-32768,"su":65535,"mi":-8388608,"mu":16777215,"i":-2147483648,'
    '"iu":4294967295,"bi":-9223372036854775808,"bu":18446744073709551615,"zf":42,"d1":"-12345678.90",'
    '"d2":"12345678901234567890123456789012345.123456789012345678901234567890","d0":"99999999999999999999",'
    '"f":1.100000023841858,"db":1.1,"c":"ab","v":"naïve ☃ 😀","vl":"café","vb":{"base64":"AP8Q"},'
    '"bin":{"base64":"AQIAAAAAAAA="},"t":"text","tt":"","lt":"long","bl":{"base64":"AP8="},"tb":{"base64":""},'
    '"bt1":1,"bt13":5461,"bt64":18446744073709551615,"dt":"9999-12-31","dtm":"9999-12-31 23:59:59",'
    '"dtm3":"2020-02-29 12:34:56.789","dtm6":"1000-01-01 00:00:00.000001","ts":"1970-01-01 00:00:01",'
    '"ts6":"2038-01-19 03:14:07.999999","tm":"-838:59:59","tm6":"838:59:58.999999","y":2155,"e":"ü","s":"x,z"'
)
"""What SELECT says of the row with the limits of all types, without ``cb`` and ``j``."""


def table(kinds: str = _KINDS, key: tuple[str, ...] = ("id",)) -> TableInfo:
    """A table of columns ``name:kind``."""
    columns = [each.split(":") for each in kinds.split()]
    return TableInfo("shop", "typed", tuple(ColumnInfo(n, k, True, _LENGTHS.get(n, 0)) for n, k in columns), key)


def without(names: set[str], schema: bytes, row: bytes) -> tuple[bytes, bytes]:
    """A schema and a row without some columns."""
    envelope, values = json.loads(schema), json.loads(row)
    fields = envelope["fields"][0]["fields"]
    envelope["fields"][0]["fields"] = [field for field in fields if field["field"] not in names]
    kept = {name: value for name, value in values.items() if name not in names}
    return json.dumps(envelope).encode(), json.dumps(kept).encode()


@pytest.mark.parametrize("kind", SERVERS)
def test_the_limits_of_all_types_are_what_select_says(kind: str) -> None:
    """A cached row must be byte for byte what a read of the server would give."""
    schema, rows = typed(kind)
    left_out = {"cb", "j"} if kind == "mysql" else {"cb"}
    schema, row = without(left_out, schema, rows[2])
    kinds = " ".join(each for each in _KINDS.split() if each.split(":")[0] not in left_out)
    key, image = RowDecoder(schema, table(kinds), is_mysql=kind == "mysql").row(row)
    document = r"{\"a\": [1, 1.5, \"ü\", null, true], \"b\": 12345678901234567890}"
    end = "}" if kind == "mysql" else f',"j":"{document}"}}'
    assert (key, image.decode()) == (b"shop.typed\0[2]", _EDGES + end)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("row", [1, 5, 6])
def test_what_may_be_a_zero_date_is_no_image(kind: str, row: int) -> None:
    """Debezium writes null, or 1970, where a row has 0000-00-00: the cache would say something else than the server."""
    schema, rows = typed(kind)
    decoder = RowDecoder(schema, table(), is_mysql=kind == "mysql")
    assert decoder.row(rows[row]) == (b"shop.typed\0[%d]" % row, b"")


def test_json_of_mysql_and_binary_text_are_no_image() -> None:
    """Their text is another one than SELECT's."""
    schema, rows = typed("mysql")
    for name, kind in (("j", "json"), ("cb", "binary")):
        every = {each.split(":")[0] for each in _KINDS.split()}
        small, row = without(every - {"id", name}, schema, rows[2])
        assert RowDecoder(small, table(f"id:int {name}:{kind}"), is_mysql=True).row(row)[1] == b""


def field(name: str, form: str, kind: str, column_type: str, **more: str) -> dict[str, object]:
    """A field of a message's schema."""
    parameters = {"__debezium.source.column.type": column_type, **more}
    return {"field": name, "type": form, "name": kind or None, "parameters": parameters}


def schema_of(*fields: Mapping[str, object]) -> bytes:
    """The schema of a message with these columns."""
    return json.dumps({"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}).encode()


@pytest.mark.parametrize(
    ("kind", "of", "value", "image"),
    [
        ("int", field("a", "int64", "", "BIGINT"), -1, b"-1"),
        ("int", field("a", "int32", "", "INT"), 1.0, b""),
        ("decimal", field("a", "string", "", "DECIMAL", **{"__debezium.source.column.scale": "3"}), "0E-3", b'"0.000"'),
        ("decimal", field("a", "string", "", "DECIMAL"), "1E+2", b'"100"'),
        ("decimal", field("a", "double", "", "DECIMAL"), 1.5, b""),
        ("text", field("a", "string", "", "VARCHAR"), "a\ufffd", b""),
        ("text", field("a", "string", "", "VARCHAR"), "__debezium_unavailable_value", b""),
        ("binary", field("a", "bytes", "", "BLOB"), "no base64!", b""),
        ("binary", field("a", "string", "", "BLOB"), "AA==", b""),
        ("enum", field("a", "string", "io.debezium.data.Enum", "ENUM", allowed="x,y"), "x", b'"x"'),
        ("enum", field("a", "string", "io.debezium.data.Enum", "ENUM", allowed="x'',y"), "x'", b""),
        ("year", field("a", "int32", "io.debezium.time.Year", "YEAR"), 1900, b""),
        ("date", field("a", "int32", "io.debezium.time.Date", "DATE"), 0, b""),
        ("date", field("a", "int32", "org.apache.kafka.connect.data.Date", "DATE"), 5, b""),
        ("datetime", field("a", "int64", "io.debezium.time.Timestamp", "DATETIME"), -1_000, b'"1969-12-31 23:59:59"'),
        (
            "timestamp",
            field("a", "string", "io.debezium.time.ZonedTimestamp", "TIMESTAMP"),
            "2024-01-01T00:00:00+01:00",
            b"",
        ),
        ("time", field("a", "int64", "io.debezium.time.MicroTime", "TIME"), -1_000_000, b'"-00:00:01"'),
        ("double", field("a", "double", "", "DOUBLE"), "NaN", b"null"),
        ("text", field("a", "string", "", "VARCHAR"), None, b"null"),
        ("text", field("a", "int32", "", "INT"), None, b""),
        ("uuid", field("a", "string", "", "UUID"), "0AAAAAAA-0000-0000-0000-000000000000", b""),
    ],
)
def test_a_value_that_is_not_exact_has_no_image(kind: str, of: dict[str, object], value: object, image: bytes) -> None:
    """Each form that a connector may write is either carried to the last digit, or not at all."""
    decoder = RowDecoder(schema_of(field("id", "int32", "", "INT"), of), table(f"id:int a:{kind}"), is_mysql=True)
    row = decoder.row(json.dumps({"id": 7, "a": value}).encode())
    assert row == (b"shop.typed\0[7]", b'{"id":7,"a":%b}' % image if image else b"")


@pytest.mark.parametrize(
    ("at_the_server", "said", "value", "is_read_as"),
    [
        ("tinyint(3) unsigned zerofill", "TINYINT ZEROFILL", -56, 200),
        ("smallint unsigned", "INT2 UNSIGNED", -1, 65_535),
        ("mediumint(8) unsigned", "INT3 UNSIGNED", -1, 16_777_215),
        ("int(10) unsigned", "INTEGER UNSIGNED", -1_294_967_296, 3_000_000_000),
        ("int unsigned", "INT UNSIGNED", 3_000_000_000, 3_000_000_000),
        ("bigint(20) unsigned", "INT8 UNSIGNED", -1, 18_446_744_073_709_551_615),
        ("bigint", "BIGINT", -1, -1),
        ("int(11)", "INT", -1, -1),
    ],
)
def test_an_integer_that_is_unsigned_at_the_server_is_never_negative(
    at_the_server: str, said: str, value: int, is_read_as: int
) -> None:
    """The connector takes some types for signed. Under a key of its own a row would never be found stale."""
    info = TableInfo("shop", "typed", (ColumnInfo("id", "int", True, sql_type=at_the_server),), ("id",))
    decoder = RowDecoder(schema_of(field("id", "int64", "", said)), info)
    assert decoder.row(b'{"id":%d}' % value) == (b"shop.typed\0[%d]" % is_read_as, b'{"id":%d}' % is_read_as)


def test_a_row_without_a_certain_key_is_refused() -> None:
    """Its table is void then: nobody knows which row changed."""
    day = field("id", "int32", "io.debezium.time.Date", "DATE")
    decoder = RowDecoder(schema_of(day), table("id:date"), is_mysql=True)
    for row in (b'{"id":0}', b'{"id":null}', b"{}"):
        with pytest.raises(UndecodableValue):
            decoder.row(row)
    columns = schema_of(day, field("a", "int32", "", "INT"))
    decoder = RowDecoder(columns, table("id:date a:int", ("id", "a")), is_mysql=True)
    assert decoder.row(b'{"id":1,"a":2}')[0] == b'shop.typed\0["1970-01-02",2]'
    for row in (b'{"id":0,"a":2}', b'{"id":1,"a":2.5}', b'{"id":1,"a":null}'):
        with pytest.raises(UndecodableValue):
            decoder.row(row)


def test_a_message_of_another_table_is_told_apart() -> None:
    """A column that came or went says that the schema at the server is not that of the message."""
    with pytest.raises(SchemaDiffers):
        RowDecoder(schema_of(field("id", "int32", "", "INT")), table("id:int more:int"), is_mysql=True)


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("row", [b'{"id":1,"\xff":2}', b'{"id":"\xff"}', b'{"id":' + DEEP + b"}"])
def test_a_row_that_is_no_text_is_refused(row: bytes) -> None:
    """It voids its table. A source that died of it would read it again at each start."""
    decoder = RowDecoder(schema_of(field("id", "int32", "", "INT")), table("id:int"), is_mysql=True)
    with pytest.raises(UndecodableValue):
        decoder.row(row)


@pytest.mark.parametrize("name", [b'"\xff"', b'"id", "later": ' + DEEP])
def test_a_schema_that_is_no_text_is_that_of_another_table(name: bytes) -> None:
    """As one with other columns: the table is void, and messages with a schema go on."""
    schema = schema_of(field("id", "int32", "", "INT")).replace(b'"id"', name)
    with pytest.raises(SchemaDiffers):
        RowDecoder(schema, table("id:int"), is_mysql=True)


def test_a_schema_without_types_is_refused() -> None:
    """BIGINT UNSIGNED, and the digits of a fraction, can't be told without them."""
    bare = {"field": "id", "type": "int64"}
    with pytest.raises(DebeziumError, match="types of its columns") as refused:
        RowDecoder(schema_of(bare), table("id:int"), is_mysql=True)
    assert refused.value.code == "debezium_bad_connector"
    with pytest.raises(DebeziumError, match="no schema of its columns"):
        RowDecoder(b'{"type":"struct"}', table("id:int"), is_mysql=True)
