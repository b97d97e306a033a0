"""Debezium's values as canonical keys and images, by the schema that each message brings. Pure.

The form of a value depends on the connector's options, and its meaning on the column's type, which the schema names
(``column.propagate.source.type``). What Debezium can't carry exactly makes its row void: it is read from the server.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from stream.sources.debezium.errors import DebeziumError
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.wire.canonical import UNDECODABLE, float_json, json_of
from stream.wire.values import NULL, UndecodableValue, binary_json

ToCanonical: TypeAlias = Callable[[Any], bytes]
"""From a value of JSON, never None, to its canonical JSON. Raises `UndecodableValue`, `ValueError`, `TypeError`."""

_TYPE: Final = "__debezium.source.column.type"
_LENGTH: Final = "__debezium.source.column.length"
SCALE: Final = "__debezium.source.column.scale"
_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
"""Of the server's types of integers."""
EPOCH: Final = date(1970, 1, 1)
MIDNIGHT: Final = datetime(1970, 1, 1)  # noqa: DTZ001  (a DATETIME has no zone)
_FLOAT: Final = struct.Struct("<f")
UNAVAILABLE: Final = "__debezium_unavailable_value"
"""In place of a value that the log does not have."""
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_EXACT: Final = Context(prec=70)
"""More digits than a DECIMAL has."""
ZONED: Final = re.compile(r"(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?Z")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class SchemaDiffers(UndecodableValue):
    """The message is of another table than the server's at this position. Code ``schema_differs``."""

    code = "schema_differs"


class Field(msgspec.Struct):
    """A column in a message's schema: the form of its values, and ``parameters`` with what it is at the server."""

    field: str
    type: str
    name: str | None = None
    parameters: dict[str, str] | None = None
    fields: list[Field] | None = None


class _Envelope(msgspec.Struct):
    fields: list[Field] | None = None


_envelope = msgspec.json.Decoder(_Envelope)


class RowDecoder:
    """Decodes the rows of one schema of messages. Raises `SchemaDiffers`, `DebeziumError`.

    ``maybe_zero``: kinds whose NULL may be another value.
    """

    __slots__ = ("_columns", "_info")
    maybe_zero: ClassVar[frozenset[str]] = frozenset({"date", "datetime", "timestamp"})
    """Kinds whose zero values (``0000-00-00``) become null or 1970-01-01 in messages, and so look like these."""

    def __init__(self, schema: bytes, info: TableInfo, *, is_mysql: bool = False) -> None:
        fields = _columns_of(schema, info.name)
        if [field.field for field in fields] != [column.name for column in info.columns]:
            raise SchemaDiffers(f"{info.name} has other columns in the messages than at the server")
        self._info = info
        self._columns = [
            (column, self._reading(_told(field, info.name), column, is_mysql=is_mysql))
            for field, column in zip(fields, info.columns, strict=True)
        ]

    def _reading(self, field: Field, column: ColumnInfo, *, is_mysql: bool) -> ToCanonical | None:
        """What reads a column's values; None if the connector's options do not let it carry them exactly."""
        if column.kind == "json" and is_mysql:
            return None  # the connector writes it in another way than SELECT
        make = DECODERS.get((column.kind, field.name or field.type))
        return make(column, field.parameters or {}) if make is not None else None

    def row(self, image: bytes) -> tuple[bytes, bytes]:
        """The key of a row and its image; b"" for an image that is not known. Raises `UndecodableValue`: no key."""
        try:
            values = msgspec.json.decode(image)
        except UNDECODABLE as error:
            raise UndecodableValue(f"an unreadable row image of {self._info.name}") from error
        if not isinstance(values, dict) or len(values) != len(self._columns):
            raise UndecodableValue(f"a partial row image of {self._info.name}")
        found = [self._canonical(column, decode, values.get(column.name)) for column, decode in self._columns]
        key = [found[index] for index in self._info.key_indexes]
        if not all(key) or NULL in key:
            raise UndecodableValue(f"a key of {self._info.name} cannot be told from the message")
        row_key = self._info.key_prefix + b"[" + b",".join(key) + b"]"
        if not all(found):
            return row_key, b""
        parts = [column.json_name + value for (column, _), value in zip(self._columns, found, strict=True)]
        return row_key, b"{" + b",".join(parts) + b"}"

    def _canonical(self, column: ColumnInfo, decode: ToCanonical | None, value: Any) -> bytes:
        """The canonical JSON of a value; b"" if the message does not tell it."""
        if decode is None:
            return b""
        if value is None:
            return b"" if column.kind in self.maybe_zero else NULL
        try:
            return decode(value)
        except (ValueError, TypeError, LookupError, ArithmeticError, struct.error):
            return b""


def _columns_of(schema: bytes, table: str) -> Sequence[Field]:
    try:
        envelope = _envelope.decode(schema)
    except msgspec.DecodeError:
        envelope = _Envelope()
    except (UnicodeDecodeError, RecursionError) as error:
        raise SchemaDiffers(f"the schema in a message of {table} is unreadable: {error}") from error
    for field in envelope.fields or ():
        if field.field == "after" and field.fields:
            return field.fields
    raise DebeziumError(f"a message of {table} has no schema of its columns")


def _told(field: Field, table: str) -> Field:
    if _TYPE not in (field.parameters or {}):
        raise DebeziumError(
            f"the schema of {table} does not name the types of its columns",
            hint="set column.propagate.source.type = .* in the connector's configuration",
            code="debezium_bad_connector",
        )
    return field


def _digits(said: Mapping[str, str]) -> int:
    """The digits of a temporal column's fraction."""
    return int(said.get(_LENGTH, "0"))


def _int(column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    size = _unsigned_size(column.sql_type)

    def read(value: int) -> bytes:
        if type(value) is not int:
            raise TypeError
        return b"%d" % (value + size if value < 0 else value)  # the connector gives large ones as negative

    return read


def _unsigned_size(sql_type: str) -> int:
    """How many values a type has that the server has as unsigned, else 0.

    The connector takes some for signed that it reads in DDL: INTEGER UNSIGNED, INT8 UNSIGNED.
    """
    kind, *rest = sql_type.lower().replace("(", " ").split() or [""]
    return 1 << _BITS[kind] if kind in _BITS and "unsigned" in rest else 0


def _big(_column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    return lambda value: b"%d" % int.from_bytes(b64decode(value), "big", signed=True)


def _year(_column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    def read(value: int) -> bytes:
        if value < 1901:
            raise ValueError
        return b"%d" % value

    return read


def _bit(_column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    return lambda value: b"%d" % (value if type(value) is bool else int.from_bytes(b64decode(value), "little"))


def _float(_column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    return lambda value: float_json(_FLOAT.unpack(_FLOAT.pack(value))[0])


def _double(_column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    return lambda value: float_json(float(value))


def _decimal_text(_column: ColumnInfo, said: Mapping[str, str]) -> ToCanonical:
    scale = int(said.get(SCALE, "0"))
    return lambda value: _scaled(Decimal(value), scale)


def _decimal_bytes(_column: ColumnInfo, said: Mapping[str, str]) -> ToCanonical:
    scale = int(said["scale"])
    return lambda value: _scaled(
        Decimal(int.from_bytes(b64decode(value), "big", signed=True)).scaleb(-scale, _EXACT), scale
    )


def _scaled(value: Decimal, scale: int) -> bytes:
    return f'"{value:.{scale}f}"'.encode()


def _text(_column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    def read(value: str) -> bytes:
        if type(value) is not str or _REPLACEMENT in value or value == UNAVAILABLE:
            raise ValueError  # bytes that the connector's character set lacks
        return json_of(value)

    return read


def _enum(_column: ColumnInfo, said: Mapping[str, str]) -> ToCanonical | None:
    if set("'\"\\") & set(said.get("allowed", "'")):  # the connector reads them from the text of the DDL
        return None
    return _text(_column, said)


def _binary(column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    return lambda value: binary_json(b64decode(value, validate=True).ljust(column.length, b"\0"))


def _date(_column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    def read(value: int) -> bytes:
        if value == 0:
            raise ValueError
        return b'"' + (EPOCH + timedelta(days=value)).isoformat().encode() + b'"'

    return read


def _datetime(unit_us: int) -> Callable[[ColumnInfo, Mapping[str, str]], ToCanonical]:
    def make(_column: ColumnInfo, said: Mapping[str, str]) -> ToCanonical:
        digits = _digits(said)

        def read(value: int) -> bytes:
            if value == 0:
                raise ValueError
            moment = MIDNIGHT + timedelta(microseconds=value * unit_us)
            text = moment.isoformat(" ", "seconds")
            return f'"{text}{fraction(moment.microsecond, digits)}"'.encode()

        return read

    return make


def _timestamp(_column: ColumnInfo, said: Mapping[str, str]) -> ToCanonical:
    digits = _digits(said)

    def read(value: str) -> bytes:
        found = ZONED.fullmatch(value)
        if found is None or value.startswith("1970-01-01T00:00:00"):
            raise ValueError
        micros = int((found[3] or "")[:6].ljust(6, "0"))
        return f'"{found[1]} {found[2]}{fraction(micros, digits)}"'.encode()

    return read


def _time(_column: ColumnInfo, said: Mapping[str, str]) -> ToCanonical:
    digits = _digits(said)

    def read(value: int) -> bytes:
        seconds, micros = divmod(abs(value), 1_000_000)
        hours, rest = divmod(seconds, 3_600)
        sign = "-" if value < 0 else ""
        return f'"{sign}{hours:02}:{rest // 60:02}:{rest % 60:02}{fraction(micros, digits)}"'.encode()

    return read


def fraction(micros: int, digits: int) -> str:
    """The fraction of a second, with its point."""
    return f".{micros:06}"[: digits + 1] if digits else ""


def _uuid(_column: ColumnInfo, _said: Mapping[str, str]) -> ToCanonical:
    def read(value: str) -> bytes:
        if _UUID.fullmatch(value) is None:
            raise ValueError
        return json_of(value)

    return read


_INTS: Final = ("int8", "int16", "int32", "int64")
DECODERS: Final[dict[tuple[str, str], Callable[[ColumnInfo, Mapping[str, str]], ToCanonical | None]]] = {
    **{("int", form): _int for form in _INTS},
    ("int", "org.apache.kafka.connect.data.Decimal"): _big,
    ("year", "io.debezium.time.Year"): _year,
    ("bit", "boolean"): _bit,
    ("bit", "io.debezium.data.Bits"): _bit,
    ("float", "float"): _float,
    ("float", "double"): _float,
    ("double", "double"): _double,
    ("decimal", "string"): _decimal_text,
    ("decimal", "org.apache.kafka.connect.data.Decimal"): _decimal_bytes,
    ("text", "string"): _text,
    ("json", "io.debezium.data.Json"): _text,
    ("json", "string"): _text,
    ("enum", "io.debezium.data.Enum"): _enum,
    ("set", "io.debezium.data.EnumSet"): _enum,
    ("binary", "bytes"): _binary,
    ("date", "io.debezium.time.Date"): _date,
    ("datetime", "io.debezium.time.Timestamp"): _datetime(1_000),
    ("datetime", "io.debezium.time.MicroTimestamp"): _datetime(1),
    ("timestamp", "io.debezium.time.ZonedTimestamp"): _timestamp,
    ("time", "io.debezium.time.MicroTime"): _time,
    ("uuid", "string"): _uuid,
}
"""Kind of the column and form of its values → what makes the reader. What is not here is not carried.

What loses digits is not: ``decimal.handling.mode = double``, ``time.precision.mode = connect``.
"""
