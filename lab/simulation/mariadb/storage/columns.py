"""Columns: how a value is stored, selected, and written to the binlog."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final, TypeAlias, cast

from pymysql.constants import ER, FIELD_TYPE

from lab.simulation.mariadb.sql.definitions import ColumnDefinition
from lab.simulation.mariadb.sql.syntax import UnknownStatement, Value
from lab.simulation.mariadb.storage.collations import CHARSETS, charset_of, collation_of, encoded, folded
from lab.simulation.mariadb.storage.errors import ServerError
from stream.sources.mariadb.binlog.table_map import DATETIME2, TIMESTAMP2

Stored: TypeAlias = int | float | Decimal | str | bytes | date | None
"""A value as the engine has it. TIMESTAMP and DATETIME are a `datetime`, the former in UTC."""

_INTEGERS: Final = {
    "tinyint": (FIELD_TYPE.TINY, 1, (4, 3)),
    "smallint": (FIELD_TYPE.SHORT, 2, (6, 5)),
    "int": (FIELD_TYPE.LONG, 4, (11, 10)),
    "bigint": (FIELD_TYPE.LONGLONG, 8, (20, 20)),
}
"""Type → its number, bytes, and the width that is printed, signed and unsigned."""
_TEXTS: Final = {"text": (2, 65_535), "longtext": (4, 4_294_967_295), "blob": (2, 65_535)}
_DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_SYNONYMS: Final = {"integer": "int", "numeric": "decimal", "json": "longtext"}


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    definition: ColumnDefinition
    kind: str
    charset: str = ""
    collation: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.name

    @property
    def is_json(self) -> bool:
        """Whether it was declared as JSON, which is a text with a check."""
        return self.definition.type == "json"

    @property
    def is_virtual(self) -> bool:
        """Whether its value is computed at each read."""
        return self.definition.generated is not None and not self.definition.stored

    @property
    def size(self) -> int:
        """The first number in parentheses: characters, bytes, digits of a fraction, or the precision."""
        default = {"decimal": 10}.get(self.kind, 0)
        return self.definition.sizes[0] if self.definition.sizes else default

    @property
    def scale(self) -> int:
        """Digits of a decimal after the point."""
        return self.definition.sizes[1] if len(self.definition.sizes) > 1 else 0

    @property
    def column_type(self) -> str:
        """The type as information_schema prints it."""
        if self.kind in _INTEGERS:
            width = _INTEGERS[self.kind][2][self.definition.unsigned]
            return f"{self.kind}({width})" + " unsigned" * self.definition.unsigned
        if self.kind == "decimal":
            return f"decimal({self.size},{self.scale})"
        return f"{self.kind}({self.size})" if self.size else self.kind

    @property
    def octets(self) -> int | None:
        """The most bytes of a text; None for other kinds."""
        if self.kind in _TEXTS:
            return _TEXTS[self.kind][1]
        return self.size * CHARSETS[self.charset][1] if self.kind == "varchar" else self.size or None

    @property
    def zero(self) -> Value:
        """What a column without default gets that must not be NULL, without strict mode."""
        if self.kind in ("datetime", "timestamp", "date"):
            raise UnknownStatement("a row with a zero date")
        return 0 if self.kind in _INTEGERS or self.kind in ("decimal", "double") else ""

    # -- values --------------------------------------------------------------------------------------------------------

    def store(self, value: Value | date, *, strict: bool) -> Stored:
        """``value`` as the engine stores it. Raises `ServerError` if it does not fit, in strict mode."""
        if value is None:
            if not self.definition.nullable:
                raise ServerError(ER.BAD_NULL_ERROR, f"Column '{self.name}' cannot be null", "23000")
            return None
        try:
            return _STORE[self.kind](self, value, strict)
        except (ValueError, ArithmeticError, struct.error) as error:
            raise ServerError(
                ER.TRUNCATED_WRONG_VALUE_FOR_FIELD, f"Incorrect {self.kind} value: '{value!r}' for column '{self.name}'"
            ) from error

    def select(self, value: Stored, zone: timedelta) -> bytes | None:
        """``value`` as SELECT prints it in a session whose time zone is ``zone`` ahead of UTC."""
        if value is None:
            return None
        if self.kind == "timestamp":
            value = cast("datetime", value) + zone
        if isinstance(value, datetime):
            return _moment(value, self.size)
        if isinstance(value, float):
            return repr(value).removesuffix(".0").encode()
        if isinstance(value, Decimal):
            return f"{value:f}".encode()
        return value if isinstance(value, bytes) else str(value).encode()

    def equal(self, value: Stored) -> object:
        """What all values have in common that the column's collation calls equal."""
        return folded(value, self.collation) if isinstance(value, str) else value

    # -- in the binlog -------------------------------------------------------------------------------------------------

    @property
    def log_type(self) -> tuple[int, bytes]:
        """The type's number in a table map, and its metadata."""
        match self.kind:
            case "decimal":
                return FIELD_TYPE.NEWDECIMAL, bytes([self.size, self.scale])
            case "double":
                return FIELD_TYPE.DOUBLE, b"\x08"
            case "varchar" | "varbinary":
                return FIELD_TYPE.VARCHAR, (self.octets or 0).to_bytes(2, "little")
            case "datetime":
                return DATETIME2, bytes([self.size])
            case "timestamp":
                return TIMESTAMP2, bytes([self.size])
            case "date":
                return FIELD_TYPE.DATE, b""
        if self.kind in _TEXTS:
            return FIELD_TYPE.BLOB, bytes([_TEXTS[self.kind][0]])
        return _INTEGERS[self.kind][0], b""

    @property
    def result_type(self) -> int:
        """The type's number in a result."""
        numbers = {"datetime": FIELD_TYPE.DATETIME, "timestamp": FIELD_TYPE.TIMESTAMP, "varchar": FIELD_TYPE.VAR_STRING}
        return numbers.get(self.kind) or (FIELD_TYPE.VAR_STRING if self.kind == "varbinary" else self.log_type[0])

    def log(self, value: Stored) -> bytes:
        """``value`` in a rows event; it must not be None."""
        if self.kind in _INTEGERS:
            size = _INTEGERS[self.kind][1]
            return cast("int", value).to_bytes(size, "little", signed=not self.definition.unsigned)
        return _LOG[self.kind](self, value)


def column_of(definition: ColumnDefinition, table_charset: str) -> Column:
    """The column that is declared, in a table of a character set."""
    kind = _SYNONYMS.get(definition.type, definition.type)
    if kind not in _STORE:
        raise UnknownStatement(f"a column of type {definition.type}")
    if kind in ("varbinary", "blob"):
        return Column(definition, kind)
    if kind not in ("varchar", "text", "longtext"):
        return Column(definition, kind)
    if definition.type == "json":
        return Column(definition, kind, "utf8mb4", "utf8mb4_bin")
    if definition.collation:
        return Column(definition, kind, collation_of(definition.collation).charset, definition.collation)
    charset = charset_of(definition.charset or table_charset)
    return Column(definition, kind, charset, CHARSETS[charset][0])


def _integer(column: Column, value: Any, strict: bool) -> int:
    found: int = int(Decimal(value).to_integral_value(ROUND_HALF_UP))
    bits = 8 * _INTEGERS[column.kind][1]
    low, high = (0, (1 << bits) - 1) if column.definition.unsigned else (-1 << bits - 1, (1 << bits - 1) - 1)
    if strict and not low <= found <= high:
        raise ServerError(ER.WARN_DATA_OUT_OF_RANGE, f"Out of range value for column '{column.name}' at row 1", "22003")
    return min(max(found, low), high)


def _decimal(column: Column, value: Any, _strict: bool) -> Decimal:
    return Decimal(value).quantize(Decimal(1).scaleb(-column.scale), ROUND_HALF_UP)


def _text(column: Column, value: Any, strict: bool) -> str:
    found = value.decode() if isinstance(value, bytes) else str(value)
    limit = column.size if column.kind == "varchar" else len(found)
    if strict and len(found) > limit:
        raise ServerError(ER.DATA_TOO_LONG, f"Data too long for column '{column.name}' at row 1", "22001")
    encoded(found, column.charset)
    return found[:limit]


def _bytes(column: Column, value: Any, strict: bool) -> bytes:
    found = value if isinstance(value, bytes) else str(value).encode()
    limit = column.size if column.kind == "varbinary" else len(found)
    if strict and len(found) > limit:
        raise ServerError(ER.DATA_TOO_LONG, f"Data too long for column '{column.name}' at row 1", "22001")
    return found[:limit]


def _time(column: Column, value: Any, _strict: bool) -> datetime:
    found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    step = 10 ** (6 - column.size)
    return found.replace(microsecond=found.microsecond // step * step)


def _day(_column: Column, value: Any, _strict: bool) -> date:
    return date.fromisoformat(str(value)[:10])


_STORE: Final[dict[str, Callable[[Column, Any, bool], Stored]]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    "decimal": _decimal,
    "double": lambda _column, value, _strict: float(value),
    **dict.fromkeys(("varchar", "text", "longtext"), _text),
    **dict.fromkeys(("varbinary", "blob"), _bytes),
    **dict.fromkeys(("datetime", "timestamp"), _time),
    "date": _day,
}


def _moment(value: datetime, digits: int) -> bytes:
    text = value.strftime("%Y-%m-%d %H:%M:%S")
    return (f"{text}.{value.microsecond:06d}"[: 20 + digits] if digits else text).encode()


def _log_decimal(column: Column, value: Any) -> bytes:
    whole, scale = column.size - column.scale, column.scale
    digits = f"{abs(value):0{column.size + bool(scale)}.{scale}f}".replace(".", "").rjust(column.size, "0")
    groups, at = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9], 0
    found = b""
    for count in groups:
        found += int(digits[at : at + count] or 0).to_bytes(_DIGIT_BYTES[count], "big")
        at += count
    number = int.from_bytes(found, "big") ^ (1 << (8 * len(found) - 1))
    return (~number & ((1 << 8 * len(found)) - 1) if value < 0 else number).to_bytes(len(found), "big")


def _log_bytes(column: Column, value: Any) -> bytes:
    raw = value if isinstance(value, bytes) else encoded(value, column.charset)
    if column.kind in _TEXTS:
        return len(raw).to_bytes(_TEXTS[column.kind][0], "little") + raw
    return len(raw).to_bytes(2 if (column.octets or 0) > 255 else 1, "little") + raw


def _fraction(value: datetime, digits: int) -> bytes:
    size = (digits + 1) // 2
    return int(value.microsecond // 10 ** (6 - 2 * size)).to_bytes(size, "big")


def _log_datetime(column: Column, value: Any) -> bytes:
    days = (value.year * 13 + value.month) << 5 | value.day
    packed = days << 17 | value.hour << 12 | value.minute << 6 | value.second
    return cast("int", packed + 0x8000000000).to_bytes(5, "big") + _fraction(value, column.size)


def _log_timestamp(column: Column, value: Any) -> bytes:
    seconds = (value - datetime(1970, 1, 1)) // timedelta(seconds=1)  # noqa: DTZ001  (UTC, as the engine has it)
    return cast("int", seconds).to_bytes(4, "big") + _fraction(value, column.size)


def _log_date(_column: Column, value: Any) -> bytes:
    return cast("int", value.year << 9 | value.month << 5 | value.day).to_bytes(3, "little")


_LOG: Final[dict[str, Callable[[Column, Any], bytes]]] = {
    "decimal": _log_decimal,
    "double": lambda _column, value: struct.pack("<d", value),
    **dict.fromkeys(("varchar", "text", "longtext", "varbinary", "blob"), _log_bytes),
    "datetime": _log_datetime,
    "timestamp": _log_timestamp,
    "date": _log_date,
}
