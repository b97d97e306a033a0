"""Debezium's values of PostgreSQL as canonical keys and images. Pure."""

from __future__ import annotations

import math
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import ClassVar, Final

from stream.sources.debezium.values import (
    DECODERS,
    EPOCH,
    MIDNIGHT,
    SCALE,
    UNAVAILABLE,
    ZONED,
    Field,
    RowDecoder,
    ToCanonical,
    fraction,
)
from stream.sources.mariadb.schema import ColumnInfo
from stream.wire.canonical import float_json, json_of
from stream.wire.values import binary_json

_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_UNAVAILABLE_BYTES: Final = UNAVAILABLE.encode()


class PostgresRowDecoder(RowDecoder):
    """As `RowDecoder`. NULL is NULL."""

    __slots__ = ()
    maybe_zero: ClassVar[frozenset[str]] = frozenset()

    def _reading(self, field: Field, column: ColumnInfo, *, is_mysql: bool = False) -> ToCanonical | None:  # noqa: ARG002
        form, said = (column.kind, field.name or field.type), field.parameters or {}
        if form in _TAKEN_OVER:
            return DECODERS[form](column, said)
        make = _OWN.get(form)
        return make(said) if make is not None else None


def _digits(said: Mapping[str, str]) -> int:
    return int(said.get(SCALE, "6"))


def _float(_said: Mapping[str, str]) -> ToCanonical:
    def read(value: float) -> bytes:
        if isinstance(value, str) or not math.isfinite(value):
            raise ValueError
        return float_json(float(value))

    return read


def _decimal_text(_said: Mapping[str, str]) -> ToCanonical:
    def read(value: str) -> bytes:
        if _NUMBER.fullmatch(value) is None:
            raise ValueError
        return f'"{value}"'.encode()

    return read


def _decimal_bytes(said: Mapping[str, str]) -> ToCanonical:
    scale = int(said["scale"])
    return lambda value: _scaled(value, scale)


def _decimal_struct(_said: Mapping[str, str]) -> ToCanonical:
    return lambda value: _scaled(value["value"], value["scale"])


def _scaled(value: str, scale: int) -> bytes:
    """The digits of a number; Python's decimals have fewer than PostgreSQL's."""
    number = int.from_bytes(b64decode(value), "big", signed=True)
    if scale < 0:
        raise ValueError
    digits = str(abs(number)).rjust(scale + 1, "0")
    whole = f"{'-' if number < 0 else ''}{digits[: len(digits) - scale]}"
    return f'"{whole}.{digits[-scale:]}"'.encode() if scale else f'"{whole}"'.encode()


def _text(_said: Mapping[str, str]) -> ToCanonical:
    def read(value: str) -> bytes:
        if type(value) is not str or value == UNAVAILABLE:
            raise ValueError
        return json_of(value)

    return read


def _binary(_said: Mapping[str, str]) -> ToCanonical:
    def read(value: str) -> bytes:
        found = b64decode(value, validate=True)
        if found == _UNAVAILABLE_BYTES:
            raise ValueError
        return binary_json(found)

    return read


def _date(_said: Mapping[str, str]) -> ToCanonical:
    return lambda value: f'"{(EPOCH + timedelta(days=value)).isoformat()}"'.encode()


def _datetime(unit_us: int) -> Callable[[Mapping[str, str]], ToCanonical]:
    def make(said: Mapping[str, str]) -> ToCanonical:
        digits = _digits(said)

        def read(value: int) -> bytes:
            moment = MIDNIGHT + timedelta(microseconds=value * unit_us)
            return f'"{moment.isoformat(" ", "seconds")}{fraction(moment.microsecond, digits)}"'.encode()

        return read

    return make


def _timestamp(said: Mapping[str, str]) -> ToCanonical:
    digits = _digits(said)

    def read(value: str) -> bytes:
        found = ZONED.fullmatch(value)
        if found is None:
            raise ValueError
        micros = int((found[3] or "")[:6].ljust(6, "0"))
        return f'"{found[1]} {found[2]}{fraction(micros, digits)}"'.encode()

    return read


def _time(said: Mapping[str, str]) -> ToCanonical:
    digits = _digits(said)

    def read(value: int) -> bytes:
        seconds, micros = divmod(value, 1_000_000)
        hours, rest = divmod(seconds, 3_600)
        return f'"{hours:02}:{rest // 60:02}:{rest % 60:02}{fraction(micros, digits)}"'.encode()

    return read


_TAKEN_OVER: Final = frozenset(
    {*(("int", form) for form in ("int16", "int32", "int64")), ("bit", "boolean"), ("float", "float")}
)
"""Kind and form of what is as MySQL's and MariaDB's."""
_OWN: Final[dict[tuple[str, str], Callable[[Mapping[str, str]], ToCanonical]]] = {
    ("double", "double"): _float,
    ("decimal", "string"): _decimal_text,
    ("decimal", "org.apache.kafka.connect.data.Decimal"): _decimal_bytes,
    ("decimal", "io.debezium.data.VariableScaleDecimal"): _decimal_struct,
    ("text", "string"): _text,
    ("json", "io.debezium.data.Json"): _text,
    ("enum", "io.debezium.data.Enum"): _text,
    ("uuid", "io.debezium.data.Uuid"): _text,
    ("binary", "bytes"): _binary,
    ("date", "io.debezium.time.Date"): _date,
    ("datetime", "io.debezium.time.Timestamp"): _datetime(1_000),
    ("datetime", "io.debezium.time.MicroTimestamp"): _datetime(1),
    ("timestamp", "io.debezium.time.ZonedTimestamp"): _timestamp,
    ("time", "io.debezium.time.MicroTime"): _time,
}
