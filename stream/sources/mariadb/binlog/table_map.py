"""TABLE_MAP events: the columns of a table as the binlog describes them (``binlog_row_metadata=FULL``). Pure.

Sizes, signs and character sets are taken only from here: information_schema may be later than the event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pymysql.constants import FIELD_TYPE

from tokens.errors import FreshetError

SIGNEDNESS = 1
DEFAULT_CHARSET = 2
COLUMN_CHARSET = 3
COLUMN_NAME = 4
SET_STR_VALUE = 5
ENUM_STR_VALUE = 6
SIMPLE_PRIMARY_KEY = 8
PRIMARY_KEY_WITH_PREFIX = 9
ENUM_AND_SET_DEFAULT_CHARSET = 10
ENUM_AND_SET_COLUMN_CHARSET = 11

BLOB_COMPRESSED = 140
VARCHAR_COMPRESSED = 141
TIMESTAMP2 = 17
DATETIME2 = 18
TIME2 = 19

_NUMERIC = frozenset(
    {
        FIELD_TYPE.TINY,
        FIELD_TYPE.SHORT,
        FIELD_TYPE.INT24,
        FIELD_TYPE.LONG,
        FIELD_TYPE.LONGLONG,
        FIELD_TYPE.NEWDECIMAL,
        FIELD_TYPE.FLOAT,
        FIELD_TYPE.DOUBLE,
        FIELD_TYPE.YEAR,
    }
)
_CHARACTER = frozenset(
    {
        FIELD_TYPE.STRING,
        FIELD_TYPE.VAR_STRING,
        FIELD_TYPE.VARCHAR,
        FIELD_TYPE.BLOB,
        FIELD_TYPE.GEOMETRY,
        BLOB_COMPRESSED,
        VARCHAR_COMPRESSED,
    }
)
_TWO_BYTE_META = frozenset({FIELD_TYPE.VARCHAR, FIELD_TYPE.BIT, VARCHAR_COMPRESSED})
_STRING_META = frozenset({FIELD_TYPE.STRING, FIELD_TYPE.VAR_STRING, FIELD_TYPE.NEWDECIMAL})
_ONE_BYTE_META = frozenset(
    {
        FIELD_TYPE.FLOAT,
        FIELD_TYPE.DOUBLE,
        FIELD_TYPE.BLOB,
        FIELD_TYPE.GEOMETRY,
        FIELD_TYPE.JSON,
        TIMESTAMP2,
        DATETIME2,
        TIME2,
        BLOB_COMPRESSED,
    }
)


class BinlogFormatError(FreshetError, ValueError):
    """Bytes of the binlog that can't be parsed. Codes ``bad_binlog_event``, ``binlog_corrupt``."""

    code = "bad_binlog_event"


@dataclass(slots=True)
class MappedColumn:
    """A column as the table map describes it. ``meta``: 16 bits. ``collation``: an id, 0 for none."""

    type: int
    meta: int
    name: str = ""
    unsigned: bool = False
    collation: int = 0
    values: tuple[bytes, ...] = ()


@dataclass(slots=True)
class TableMap:
    """One parsed table map. ``primary_key``: column indexes, empty without a key."""

    database: str
    table: str
    columns: list[MappedColumn]
    primary_key: tuple[int, ...] = ()
    has_names: bool = False
    flags: int = 0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"{self.database}.{self.table}"


class _Bytes:
    """A cursor over a slice that refuses to read past its end."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data, self.position, self.end = data, position, end

    def take(self, size: int) -> bytes:
        start = self.position
        self.position += size
        if size < 0 or self.position > self.end:
            raise BinlogFormatError("a table map is truncated")
        return self.data[start : self.position]

    def byte(self) -> int:
        return self.take(1)[0]

    def packed(self) -> int:
        first = self.byte()
        if first < 251:
            return first
        if first == 251:
            raise BinlogFormatError("a table map has NULL as a length")
        return int.from_bytes(self.take({252: 2, 253: 3, 254: 8}.get(first, -1)), "little")

    def all_packed(self) -> list[int]:
        found = []
        while self.position < self.end:
            found.append(self.packed())
        return found


def parse_table_map(body: bytes) -> TableMap:
    """The table map in an event's body without its first 6 bytes (the table id). Raises `BinlogFormatError`."""
    try:
        return _parse(_Bytes(body, 0, len(body)))
    except BinlogFormatError:
        raise
    except (IndexError, ValueError) as error:
        raise BinlogFormatError(f"invalid table map: {error}") from error


def table_name_of(body: bytes) -> tuple[str, str]:
    """Database and table of a table map's body (as `parse_table_map` takes it). Raises `BinlogFormatError`."""
    names = _Bytes(body, 2, len(body))
    try:
        database = names.take(names.byte()).decode()
        names.take(1)
        return database, names.take(names.byte()).decode()
    except UnicodeDecodeError as error:
        raise BinlogFormatError(f"a name in a table map is not UTF-8: {error}") from error


def _parse(found: _Bytes) -> TableMap:
    flags = int.from_bytes(found.take(2), "little")
    database = found.take(found.byte()).decode()
    found.take(1)
    table = found.take(found.byte()).decode()
    found.take(1)
    types = found.take(found.packed())
    metas = _Bytes(found.data, 0, 0)
    size = found.packed()
    metas.position, metas.end = found.position, found.position + size
    found.take(size)
    columns = [_column(kind, metas) for kind in types]
    found.take((len(types) + 7) // 8)
    parsed = TableMap(database, table, columns, flags=flags)
    while found.position < found.end:
        kind = found.byte()
        length = found.packed()
        start = found.position
        found.take(length)
        _optional(parsed, kind, _Bytes(found.data, start, start + length))
    return parsed


def _column(kind: int, metas: _Bytes) -> MappedColumn:
    if kind in _STRING_META:
        high, low = metas.take(2)
        if kind != FIELD_TYPE.NEWDECIMAL and high in (FIELD_TYPE.ENUM, FIELD_TYPE.SET):
            return MappedColumn(high, low)
        return MappedColumn(kind, high << 8 | low)
    if kind in _TWO_BYTE_META:
        return MappedColumn(kind, int.from_bytes(metas.take(2), "little"))
    if kind in _ONE_BYTE_META:
        return MappedColumn(kind, metas.byte())
    return MappedColumn(kind, 0)


def _optional(parsed: TableMap, kind: int, found: _Bytes) -> None:
    columns = parsed.columns
    if kind == SIGNEDNESS:
        numeric = [column for column in columns if column.type in _NUMERIC]
        bits = found.take(found.end - found.position)
        for index, column in enumerate(numeric):
            column.unsigned = bool(bits[index >> 3] & (0x80 >> (index & 7)))
    elif kind in (DEFAULT_CHARSET, COLUMN_CHARSET):
        _collations([c for c in columns if c.type in _CHARACTER], found.all_packed(), kind == DEFAULT_CHARSET)
    elif kind in (ENUM_AND_SET_DEFAULT_CHARSET, ENUM_AND_SET_COLUMN_CHARSET):
        chosen = [c for c in columns if c.type in (FIELD_TYPE.ENUM, FIELD_TYPE.SET)]
        _collations(chosen, found.all_packed(), kind == ENUM_AND_SET_DEFAULT_CHARSET)
    elif kind == COLUMN_NAME:
        for column in columns:
            column.name = found.take(found.packed()).decode()
        parsed.has_names = True
    elif kind in (SET_STR_VALUE, ENUM_STR_VALUE):
        wanted = FIELD_TYPE.SET if kind == SET_STR_VALUE else FIELD_TYPE.ENUM
        for column in columns:
            if column.type == wanted:
                column.values = tuple(found.take(found.packed()) for _ in range(found.packed()))
    elif kind == SIMPLE_PRIMARY_KEY:
        parsed.primary_key = tuple(found.all_packed())
    elif kind == PRIMARY_KEY_WITH_PREFIX:
        parsed.primary_key = tuple(found.all_packed()[::2])


def _collations(columns: list[MappedColumn], numbers: list[int], with_default: bool) -> None:
    if not with_default:
        if len(numbers) != len(columns):
            raise BinlogFormatError(f"{len(numbers)} collations for {len(columns)} character columns")
        for column, collation in zip(columns, numbers, strict=True):
            column.collation = collation
        return
    for column in columns:
        column.collation = numbers[0]
    for index, collation in zip(numbers[1::2], numbers[2::2], strict=True):
        columns[index].collation = collation
