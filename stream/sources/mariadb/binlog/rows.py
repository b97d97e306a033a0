"""Decoding of the binlog's row images into canonical keys and images, column by column. Pure.

A column reader is ``(buffer, position) -> (canonical JSON, next position)``. They are built once for each table map.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import lru_cache
from operator import itemgetter

from pymysql.constants import FIELD_TYPE

from stream.sources.mariadb.binlog.decimals import decimal_reader
from stream.sources.mariadb.binlog.mysql.json_text import json_text
from stream.sources.mariadb.binlog.table_map import DATETIME2, TIME2, TIMESTAMP2, MappedColumn, TableMap
from stream.sources.mariadb.charsets import BINARY_COLLATION, Charsets, Decode
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.wire.canonical import float_json, json_of
from stream.wire.values import NULL, UndecodableValue, binary_json, inet_text, uuid_text

ColumnReader = Callable[[bytes, int], tuple[bytes, int]]

_FIXED = {
    (FIELD_TYPE.TINY, False): struct.Struct("<b"),
    (FIELD_TYPE.TINY, True): struct.Struct("<B"),
    (FIELD_TYPE.SHORT, False): struct.Struct("<h"),
    (FIELD_TYPE.SHORT, True): struct.Struct("<H"),
    (FIELD_TYPE.LONG, False): struct.Struct("<i"),
    (FIELD_TYPE.LONG, True): struct.Struct("<I"),
    (FIELD_TYPE.LONGLONG, False): struct.Struct("<q"),
    (FIELD_TYPE.LONGLONG, True): struct.Struct("<Q"),
}
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_DAY_S = 86_400
_HASH, _HASH_BYTES = "DB_ROW_HASH_", 8
"""MariaDB has a hidden column for each unique key over long values, after all others. Only the log names it."""

_ALLOWED_KINDS: dict[int, tuple[str, ...]] = {
    FIELD_TYPE.TINY: ("int",),
    FIELD_TYPE.SHORT: ("int",),
    FIELD_TYPE.INT24: ("int",),
    FIELD_TYPE.LONG: ("int",),
    FIELD_TYPE.LONGLONG: ("int",),
    FIELD_TYPE.NEWDECIMAL: ("decimal",),
    FIELD_TYPE.FLOAT: ("float",),
    FIELD_TYPE.DOUBLE: ("double",),
    FIELD_TYPE.YEAR: ("year",),
    FIELD_TYPE.DATE: ("date",),
    DATETIME2: ("datetime",),
    TIMESTAMP2: ("timestamp",),
    TIME2: ("time",),
    FIELD_TYPE.BIT: ("bit",),
    FIELD_TYPE.ENUM: ("enum",),
    FIELD_TYPE.SET: ("set",),
    FIELD_TYPE.JSON: ("json",),
}
_STRINGS = (FIELD_TYPE.STRING, FIELD_TYPE.VAR_STRING, FIELD_TYPE.VARCHAR, FIELD_TYPE.BLOB)


class SchemaDiffers(UndecodableValue):
    """The table map and information_schema describe different tables. Code ``schema_differs``."""

    code = "schema_differs"


class TableDecoder:
    """Decodes the rows of one table map. Raises `SchemaDiffers` if ``info`` doesn't match the table map."""

    __slots__ = (
        "_columns",
        "_hashes",
        "_image_form",
        "_key_form",
        "_key_values",
        "_null_bytes",
        "all_present",
        "bitmap_bytes",
        "heads",
        "info",
        "label",
        "name",
    )

    def __init__(self, table_map: TableMap, info: TableInfo, charsets: Charsets) -> None:
        mapped = table_map.columns
        if not table_map.has_names:
            raise SchemaDiffers(
                f"the binlog has no column names for {info.name}", hint="SET GLOBAL binlog_row_metadata = FULL"
            )
        names, own = [column.name for column in mapped], len(info.columns)
        are_hashes = all(each.type == FIELD_TYPE.LONGLONG and each.name.startswith(_HASH) for each in mapped[own:])
        if not are_hashes or names[:own] != [column.name for column in info.columns]:
            raise SchemaDiffers(f"{info.name} has other columns in the binlog than at the server now")
        # In a table without a primary key the log names a unique one over NOT NULL columns, if there is one.
        if info.primary_key and table_map.primary_key != info.key_indexes:
            raise SchemaDiffers(f"{info.name} has another primary key in the binlog than at the server now")
        self.info = info
        self.name, self.label = info.name, info.name.encode()
        self.bitmap_bytes = (len(mapped) + 7) // 8
        self.all_present = (1 << len(mapped)) - 1
        self.heads: dict[int, bytes] = {}
        """Kind → what stood between the number of the table and the rows, in an event that had all columns."""
        self._null_bytes = self.bitmap_bytes
        try:
            self._columns = tuple(
                (1 << index, _reader(found, column, charsets))
                for index, (found, column) in enumerate(zip(mapped, info.columns, strict=False))
            )
        except SchemaDiffers:
            raise
        except (ValueError, IndexError, OverflowError) as error:
            raise SchemaDiffers(f"{info.name} has an invalid column in the binlog: {error}") from error
        self._image_form = _form(b"{", [column.json_name for column in info.columns], b"}")
        self._key_form = _form(info.key_prefix + b"[", [b""] * len(info.key_indexes), b"]")
        self._key_values = itemgetter(*info.key_indexes) if info.key_indexes else lambda _: ()
        self._hashes = [1 << index for index in range(own, len(mapped))]

    def row(self, data: bytes, position: int) -> tuple[bytes, bytes, int]:
        """The key, the image and the position after the row. Raises `UndecodableValue`."""
        try:
            start = position + self._null_bytes
            nulls = int.from_bytes(data[position:start], "little")
            position = start
            values: list[bytes] = []
            for bit, read in self._columns:
                if nulls & bit:
                    values.append(NULL)
                else:
                    value, position = read(data, position)
                    values.append(value)
            for bit in self._hashes:
                position += 0 if nulls & bit else _HASH_BYTES
            if position > len(data):
                raise UndecodableValue("the row ends beyond its event")
            image = self._image_form % tuple(values)
            key = self._key_form % self._key_values(values)
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise UndecodableValue(f"a row of {self.info.name} cannot be decoded: {error}") from error
        return key, image, position


def _form(begin: bytes, names: Sequence[bytes], end: bytes) -> bytes:
    """What ``%`` makes an object or an array of its values with: five times as fast as to join the parts."""
    escaped = [each.replace(b"%", b"%%") for each in (begin, *names)]
    return escaped[0] + b",".join([name + b"%b" for name in escaped[1:]]) + end


def _reader(found: MappedColumn, column: ColumnInfo, charsets: Charsets) -> ColumnReader:
    kind = found.type
    if kind in _STRINGS:
        return _string_reader(found, column, charsets)
    if column.kind not in _ALLOWED_KINDS.get(kind, ()):
        raise SchemaDiffers(f"column {column.name} is {column.kind} at the server but of type {kind} in the binlog")
    fixed = _FIXED.get((kind, found.unsigned))
    if fixed is not None:
        return _integer(fixed)
    if kind in (FIELD_TYPE.ENUM, FIELD_TYPE.SET):
        decode = charsets.decoder(charsets.by_collation.get(found.collation, ""))
        if decode is None:
            raise SchemaDiffers(f"column {column.name} has a character set that cannot be decoded")
        return (_enum if kind == FIELD_TYPE.ENUM else _set)(found, decode)
    return _READERS[kind](found)


def _integer(fixed: struct.Struct) -> ColumnReader:
    unpack, size = fixed.unpack_from, fixed.size

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        return b"%d" % unpack(data, position)[0], position + size

    return read


def _medium(found: MappedColumn) -> ColumnReader:
    signed = not found.unsigned

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + 3
        return b"%d" % int.from_bytes(data[position:end], "little", signed=signed), end

    return read


def _float(_: MappedColumn) -> ColumnReader:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        return float_json(_FLOAT.unpack_from(data, position)[0]), position + 4

    return read


def _double(_: MappedColumn) -> ColumnReader:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        return float_json(_DOUBLE.unpack_from(data, position)[0]), position + 8

    return read


def _year(_: MappedColumn) -> ColumnReader:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        year = data[position]
        return b"%d" % (year + 1900 if year else 0), position + 1

    return read


def _bit(found: MappedColumn) -> ColumnReader:
    size = (found.meta >> 8) + (1 if found.meta & 0xFF else 0)

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        return b"%d" % int.from_bytes(data[position:end], "big"), end

    return read


def _decimal(found: MappedColumn) -> ColumnReader:
    text_of = decimal_reader(found.meta >> 8, found.meta & 0xFF)

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        text, end = text_of(data, position)
        return f'"{text}"'.encode(), end

    return read


def _json(found: MappedColumn) -> ColumnReader:
    length_bytes = found.meta

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        start = position + length_bytes
        end = start + int.from_bytes(data[position:start], "little")
        return json_of(json_text(data[start:end])), end

    return read


def _date(_: MappedColumn) -> ColumnReader:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + 3
        value = int.from_bytes(data[position:end], "little")
        return b'"%04d-%02d-%02d"' % (value >> 9, value >> 5 & 15, value & 31), end

    return read


def _fraction(fsp: int) -> tuple[int, int, bytes]:
    """The stored bytes, the divisor and the text format of a fraction of ``fsp`` digits."""
    if not 0 <= fsp <= 6:
        raise SchemaDiffers(f"a column has {fsp} fractional digits; at most 6 are possible")
    size = (fsp + 1) // 2
    return size, 10 ** (2 * size - fsp), b".%%0%dd" % fsp if fsp else b""


def _datetime(found: MappedColumn) -> ColumnReader:
    size, divisor, form = _fraction(found.meta)

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + 5
        value = int.from_bytes(data[position:end], "big") - 0x8000000000
        year, month = divmod(value >> 22, 13)
        text = b'"%04d-%02d-%02d %02d:%02d:%02d' % (
            year,
            month,
            value >> 17 & 31,
            value >> 12 & 31,
            value >> 6 & 63,
            value & 63,
        )
        if size:
            fraction = int.from_bytes(data[end : end + size], "big")
            return text + form % (fraction // divisor) + b'"', end + size
        return text + b'"', end

    return read


@lru_cache(maxsize=4096)
def _day(days: int) -> bytes:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat().encode()


def _timestamp(found: MappedColumn) -> ColumnReader:
    size, divisor, form = _fraction(found.meta)

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + 4
        seconds = int.from_bytes(data[position:end], "big")
        fraction = int.from_bytes(data[end : end + size], "big")
        if seconds or fraction:
            days, rest = divmod(seconds, _DAY_S)
            text = b'"%s %02d:%02d:%02d' % (_day(days), rest // 3600, rest // 60 % 60, rest % 60)
        else:
            text = b'"0000-00-00 00:00:00'
        if size:
            text += form % (fraction // divisor)
        return text + b'"', end + size

    return read


def _time(found: MappedColumn) -> ColumnReader:
    size, divisor, form = _fraction(found.meta)
    width = 3 + size
    half = 1 << (8 * width - 1)

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + width
        value = int.from_bytes(data[position:end], "big") - half
        sign, value = (b"-", -value) if value < 0 else (b"", value)
        whole = value >> (8 * size)
        text = b'"%s%02d:%02d:%02d' % (sign, whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63)
        if size:
            text += form % ((value & ((1 << (8 * size)) - 1)) // divisor)
        return text + b'"', end

    return read


def _enum(found: MappedColumn, decode: Decode) -> ColumnReader:
    size = found.meta & 0xFF
    texts = [json_of(""), *(json_of(decode(value)) for value in found.values)]

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        return texts[int.from_bytes(data[position:end], "little")], end

    return read


def _set(found: MappedColumn, decode: Decode) -> ColumnReader:
    size = found.meta & 0xFF
    texts = [decode(value) for value in found.values]

    @lru_cache(maxsize=1024)
    def canonical(mask: int) -> bytes:
        if mask >> len(texts):
            raise UndecodableValue("a SET value has a bit without a name in its column")
        return json_of(",".join(text for index, text in enumerate(texts) if mask >> index & 1))

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        return canonical(int.from_bytes(data[position:end], "little")), end

    return read


def _string_reader(found: MappedColumn, column: ColumnInfo, charsets: Charsets) -> ColumnReader:
    fixed_size = 0
    if found.type == FIELD_TYPE.BLOB:
        length_bytes = found.meta
    elif found.type == FIELD_TYPE.VARCHAR:
        length_bytes = 2 if found.meta > 255 else 1
    else:
        fixed_size = ((found.meta >> 4 & 0x300) ^ 0x300) + (found.meta & 0xFF)
        length_bytes = 2 if fixed_size > 255 else 1
    if column.kind == "text" and column.exact is not (found.collation in charsets.exact):
        raise SchemaDiffers(f"column {column.name} compares in another way in the binlog than at the server")
    if found.collation == BINARY_COLLATION:
        return _binary_reader(length_bytes, fixed_size, column)
    if column.kind not in ("text", "json"):
        raise SchemaDiffers(f"column {column.name} is {column.kind} at the server but text in the binlog")
    decode = charsets.decoder(charsets.by_collation.get(found.collation, ""))
    if decode is None:
        raise SchemaDiffers(f"column {column.name} has a character set that cannot be decoded")
    return _text(length_bytes, decode)


def _text(length_bytes: int, decode: Decode) -> ColumnReader:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        start = position + length_bytes
        end = start + int.from_bytes(data[position:start], "little")
        return json_of(decode(data[start:end])), end

    return read


def _binary_reader(length_bytes: int, fixed_size: int, column: ColumnInfo) -> ColumnReader:
    fixed = bool(fixed_size)
    if column.kind == "uuid" and fixed_size == 16:
        form: Callable[[bytes], bytes] = _uuid
    elif column.kind == "inet" and fixed_size in ((column.length,) if column.length else (4, 16)):
        form = _inet
    elif column.kind == "binary" and (not fixed or column.length in (0, fixed_size)):
        form = binary_json
    else:
        raise SchemaDiffers(f"column {column.name} is {column.kind} at the server but binary in the binlog")

    def read(data: bytes, position: int) -> tuple[bytes, int]:
        start = position + length_bytes
        end = start + int.from_bytes(data[position:start], "little")
        value = data[start:end]
        return form(value.ljust(fixed_size, b"\0") if fixed else value), end

    return read


def _inet(value: bytes) -> bytes:
    return json_of(inet_text(value))


def _uuid(value: bytes) -> bytes:
    """Decode a stored UUID. MariaDB reverses the groups of versions 1 to 5, so that they sort by time."""
    if value[6] & 0x80 and 0 < value[8] < 0x60:
        value = value[12:16] + value[10:12] + value[8:10] + value[6:8] + value[0:6]
    return b'"' + uuid_text(value).encode() + b'"'


_READERS: dict[int, Callable[[MappedColumn], ColumnReader]] = {
    FIELD_TYPE.INT24: _medium,
    FIELD_TYPE.FLOAT: _float,
    FIELD_TYPE.DOUBLE: _double,
    FIELD_TYPE.YEAR: _year,
    FIELD_TYPE.BIT: _bit,
    FIELD_TYPE.NEWDECIMAL: _decimal,
    FIELD_TYPE.JSON: _json,
    FIELD_TYPE.DATE: _date,
    DATETIME2: _datetime,
    TIMESTAMP2: _timestamp,
    TIME2: _time,
}
