"""The tables of the world: their types, in the three forms that values have, and what operators make of them."""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, TypeAlias

Value: TypeAlias = Any
Row: TypeAlias = Mapping[str, Value]
"""Column → value; None is NULL."""
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001  (a timestamp has no zone)
_TYPE: Final = "__debezium.source.column.type"
_SCALE: Final = "__debezium.source.column.scale"


def _same(value: Value) -> Value:
    return value


@dataclass(frozen=True, slots=True)
class Type:
    """``name``: of `pg_type`; ``shown``: with its modifiers. ``form``: of its values in messages.

    ``text``: as SELECT has a value; ``told``: as a message; ``canonical``: as docs/concepts/rows.md has it.
    """

    name: str
    shown: str
    form: Mapping[str, object]
    text: Callable[[Value], str] = str
    told: Callable[[Value], Any] = _same
    canonical: Callable[[Value], Any] = _same
    labels: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)

    def schema(self, name: str) -> dict[str, object]:
        """A column of the type in a message's schema."""
        return {"field": name, "optional": True, **self.form, "parameters": {_TYPE: self.name.upper(), **self.said}}


def _bytes_of(number: Decimal, scale: int) -> str:
    unscaled = int(number.scaleb(scale))
    return b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


def _scale(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return -exponent


def _shown(moment: dt.datetime | dt.time) -> str:
    """As PostgreSQL prints it: without zeros at the end."""
    text = moment.strftime("%Y-%m-%d %H:%M:%S" if isinstance(moment, dt.datetime) else "%H:%M:%S")
    fraction = f"{moment.microsecond:06d}".rstrip("0")
    return f"{text}.{fraction}" if fraction else text


def _exact(moment: dt.datetime | dt.time) -> str:
    return f"{_shown(moment.replace(microsecond=0))}.{moment.microsecond:06d}"


def _micros(moment: dt.time) -> int:
    return ((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1_000_000 + moment.microsecond


_STRING: Final = {"type": "string"}
INT4: Final = Type("int4", "integer", {"type": "int32"})
INT8: Final = Type("int8", "bigint", {"type": "int64"})
TEXT: Final = Type("text", "text", _STRING)
_NUMERIC: Final = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
_STRUCT: Final = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
GOODS_TYPES: Final[Mapping[str, Type]] = {
    "id": INT4,
    "version": INT8,
    "name": TEXT,
    "price": Type(
        "numeric", "numeric(10,2)", _NUMERIC, told=lambda value: _bytes_of(value, 2), canonical=str, said={"scale": "2"}
    ),
    "weight": Type(
        "numeric",
        "numeric",
        _STRUCT,
        told=lambda value: {"scale": _scale(value), "value": _bytes_of(value, _scale(value))},
        canonical=str,
    ),
    "placed": Type(
        "timestamptz",
        "timestamp with time zone",
        {**_STRING, "name": "io.debezium.time.ZonedTimestamp"},
        text=lambda value: f"{_shown(value)}+00",
        told=lambda value: f"{_exact(value).replace(' ', 'T')}Z",
        canonical=_exact,
    ),
    "begun": Type(
        "timestamp",
        "timestamp(3) without time zone",
        {"type": "int64", "name": "io.debezium.time.Timestamp"},
        text=_shown,
        told=lambda value: (value - _EPOCH) // dt.timedelta(milliseconds=1),
        canonical=lambda value: _exact(value)[:-3],
        said={_SCALE: "3"},
    ),
    "hour": Type(
        "time",
        "time without time zone",
        {"type": "int64", "name": "io.debezium.time.MicroTime"},
        text=_shown,
        told=_micros,
        canonical=_exact,
    ),
    "day": Type(
        "date",
        "date",
        {"type": "int32", "name": "io.debezium.time.Date"},
        told=lambda value: (value - _EPOCH.date()).days,
        canonical=str,
    ),
    "share": Type("float8", "double precision", {"type": "double"}, text=repr),
    "part": Type("float4", "real", {"type": "float"}, text=repr),
    "sold": Type("bool", "boolean", {"type": "boolean"}, text=lambda value: "t" if value else "f", canonical=int),
    "code": Type("uuid", "uuid", {**_STRING, "name": "io.debezium.data.Uuid"}),
    "doc": Type("jsonb", "jsonb", {**_STRING, "name": "io.debezium.data.Json"}),
    "raw": Type(
        "bytea",
        "bytea",
        {"type": "bytes"},
        text=lambda value: "\\x" + value.hex(),
        told=lambda value: b64encode(value).decode(),
        canonical=lambda value: {"base64": b64encode(value).decode()},
    ),
    "mood": Type("mood", "mood", {**_STRING, "name": "io.debezium.data.Enum"}, labels=("sad", "ok")),
}


@dataclass(frozen=True, slots=True)
class Definition:
    """A table of the schema ``shop``. ``identity``: of its replicas; ``file``: the number of its file."""

    table: str
    columns: tuple[tuple[str, Type], ...]
    key: tuple[str, ...]
    identity: str = "d"
    file: int = 1

    @property
    def name(self) -> str:
        """With its schema."""
        return f"shop.{self.table}"

    def key_of(self, row: Row) -> tuple[Value, ...]:
        """The key of a row."""
        return tuple(row[name] for name in self.key)

    def image(self, row: Row | None) -> dict[str, Any] | None:
        """As an answer must have it."""
        if row is None:
            return None
        return {name: None if row[name] is None else kind.canonical(row[name]) for name, kind in self.columns}


GOODS: Final = Definition("goods", (*GOODS_TYPES.items(),), ("id",))
PARTS: Final = Definition("parts", (("a", TEXT), ("b", INT4), ("version", INT4)), ("a", "b"), "f", 2)
_MOMENT: Final = dt.datetime(2026, 3, 29, 2, 30, 0, 125_000)  # noqa: DTZ001


def goods(row: int, version: int) -> Row:
    """A row of `GOODS`; every fifth version has few values."""
    has_all = version % 5 > 0
    values: dict[str, Value] = dict.fromkeys(GOODS_TYPES)
    values |= {"id": row, "version": version << 40, "name": f"a name {version}", "price": Decimal("-7.25")}
    if has_all:
        values |= {
            "weight": Decimal(version) / 8,
            "placed": _MOMENT,
            "begun": _MOMENT,
            "hour": _MOMENT.time(),
            "day": _MOMENT.date(),
            "share": version / 4,
            "part": 0.5,
            "sold": version % 2 == 0,
            "code": f"00000000-0000-4000-8000-{version:012d}",
            "doc": f'{{"v": {version}}}',
            "raw": bytes([version % 256, 0, 255]),
            "mood": "ok",
        }
    return values


def parts(number: int, version: int) -> Row:
    """A row of `PARTS`."""
    return {"a": "x", "b": number, "version": version}


class Alteration:
    """What somebody makes of a table: its definition, and each of its rows, which the log does not tell."""

    fault = "DDL"

    def definition(self, before: Definition) -> Definition | None:
        """None: the table is dropped."""
        raise NotImplementedError

    def row(self, row: Row) -> Row | None:
        """A row as it is then."""
        return row


class _AddColumn(Alteration):
    def definition(self, before: Definition) -> Definition:
        names = [name for name, _ in before.columns]
        more = () if "more" in names else (("more", INT4),)
        return replace(before, columns=(*(each for each in before.columns if each[0] != "more"), *more))

    def row(self, row: Row) -> Row:
        return {name: row[name] for name in row if name != "more"} if "more" in row else {**row, "more": None}


class _Rewrite(Alteration):
    """``ALTER TABLE … ALTER version TYPE … USING version + 1``: same columns, or another type."""

    fault = "table rewritten"

    def __init__(self, kind: Type) -> None:
        self._kind = kind

    def definition(self, before: Definition) -> Definition:
        columns = tuple((name, self._kind if name == "version" else kind) for name, kind in before.columns)
        return replace(before, columns=columns, file=before.file + 10)

    def row(self, row: Row) -> Row:
        return {**row, "version": row["version"] + 1}


class _Identity(Alteration):
    def definition(self, before: Definition) -> Definition:
        return replace(before, identity="f" if before.identity == "d" else "d")


class _MakeAnew(Alteration):
    """DROP TABLE and CREATE TABLE in one transaction."""

    fault = "table made anew"

    def definition(self, before: Definition) -> Definition:
        return replace(before, file=before.file + 100)

    def row(self, row: Row) -> None:  # noqa: ARG002
        return None


ALTERATIONS: Final = (
    (PARTS.name, _AddColumn()),
    (PARTS.name, _Rewrite(INT4)),
    (PARTS.name, _Rewrite(INT8)),
    (GOODS.name, _Identity()),
    (PARTS.name, _MakeAnew()),
)
"""Table, and what somebody makes of it."""
