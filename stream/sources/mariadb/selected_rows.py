"""Rows as SELECT returns them, as keys and images in the same canonical form as the binlog's rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from stream.wire.canonical import float_json, json_of
from stream.wire.values import NULL, UndecodableValue, binary_json, inet_text

if TYPE_CHECKING:
    from stream.sources.mariadb.schema import ColumnInfo, TableInfo


def _int_from_select(value: bytes) -> bytes:
    return b"%d" % int(value)


def _decimal_from_select(value: bytes) -> bytes:
    negative = value[:1] == b"-"
    digits = value[negative:].lstrip(b"0")
    if digits[:1] in (b"", b"."):
        digits = b"0" + digits
    return b'"' + (b"-" if negative else b"") + digits + b'"'


def _float_from_select(value: bytes) -> bytes:
    return float_json(float(value))


def _text_from_select(value: bytes) -> bytes:
    return json_of(value.decode("utf-8"))


def _plain_from_select(value: bytes) -> bytes:
    return b'"' + value + b'"'


def _bit_from_select(value: bytes) -> bytes:
    return b"%d" % int.from_bytes(value, "big")


def _inet_from_select(value: bytes) -> bytes:
    return json_of(inet_text(value))


_FROM_SELECT: dict[str, Callable[[bytes], bytes]] = {
    "int": _int_from_select,
    "year": _int_from_select,
    "decimal": _decimal_from_select,
    "float": _float_from_select,
    "double": _float_from_select,
    "text": _text_from_select,
    "json": _text_from_select,
    "enum": _text_from_select,
    "set": _text_from_select,
    "date": _plain_from_select,
    "datetime": _plain_from_select,
    "timestamp": _plain_from_select,
    "time": _plain_from_select,
    "uuid": _plain_from_select,
    "inet": _inet_from_select,
    "bit": _bit_from_select,
    "binary": binary_json,
    "opaque": binary_json,
}


_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
"""What JSON escapes in a text. All else stands for itself."""
_DIGITS: Final = b"0123456789-,"
_PADDED: Final = re.compile(rb"(?:^|,)-?0[0-9]")
"""An integer among others, between commas, that has a zero in front."""
_BARE: Final = re.compile(rb"(?:^|,)-?(?:0[0-9]|[.,]|$)")
"""A decimal that has one, or no digit before its point."""


def _ints_are_canonical(joined: bytes) -> bool:
    return not joined.translate(None, _DIGITS) and _PADDED.search(joined) is None


def _decimals_are_canonical(joined: bytes) -> bool:
    return _BARE.search(joined) is None


def _texts_are_canonical(joined: bytes) -> bool:
    """Raises ``UnicodeDecodeError``: a comma ends each character, so texts are valid together iff each is."""
    joined.decode("utf-8")
    return len(joined.translate(None, _ESCAPED)) == len(joined)


_ARE_CANONICAL: Final[dict[str, tuple[Callable[[bytes], bool], bytes]]] = {
    **dict.fromkeys(("int", "year"), (_ints_are_canonical, b"")),
    "decimal": (_decimals_are_canonical, b'"'),
    **dict.fromkeys(("text", "json", "enum", "set"), (_texts_are_canonical, b'"')),
    **dict.fromkeys(("date", "datetime", "timestamp", "time", "uuid"), (lambda _: True, b'"')),
}
"""Kind → whether values, joined by commas, are in canonical form but for the quotes; and these."""


def quoted(name: str) -> str:
    """An SQL identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def select_columns_sql(table: TableInfo) -> str:
    """The select list of all columns in table order, as `canonical_row` needs it.

    FLOAT is read as DOUBLE, because its own text has only six digits. INET is read as bytes.
    """
    return ", ".join(_select_expression(column) for column in table.columns)


def _select_expression(column: ColumnInfo) -> str:
    name = quoted(column.name)
    if column.kind in ("float", "double"):
        return f"CAST({name} AS DOUBLE)"
    if column.kind == "inet":
        return f"CAST({name} AS BINARY({column.length}))"
    return name


def canonical_row(table: TableInfo, values: Sequence[bytes | None]) -> bytes:
    """The image of a row as SELECT returned it (raw bytes, in the order of `select_columns_sql`).

    Raises `UndecodableValue`.
    """
    try:
        parts = [
            column.json_name + (NULL if value is None else _FROM_SELECT[column.kind](value))
            for column, value in zip(table.columns, values, strict=True)
        ]
    except (ValueError, OverflowError) as error:
        raise UndecodableValue(f"a value of {table.name} has no canonical form: {error}") from error
    return b"{" + b",".join(parts) + b"}"


def canonical_key(table: TableInfo, values: Sequence[bytes | None]) -> bytes:
    """The key (``table 0x00 JSON array``) of a row as SELECT returned it. Raises `UndecodableValue`.

    ``values``: those of all columns, in the order of `select_columns_sql`.
    """
    parts = []
    try:
        for index in table.key_indexes:
            value = values[index]
            if value is None:
                raise UndecodableValue(f"a key column of {table.name} is NULL")
            parts.append(_FROM_SELECT[table.columns[index].kind](value))
    except (ValueError, OverflowError) as error:
        raise UndecodableValue(f"a key value of {table.name} has no canonical form: {error}") from error
    return table.key_prefix + b"[" + b",".join(parts) + b"]"


def canonical_rows(table: TableInfo, columns: Sequence[Sequence[bytes | None]]) -> tuple[list[bytes], list[bytes]]:
    """`canonical_key` and `canonical_row` of several rows. Raises `UndecodableValue` if one of them does.

    ``columns``: of each column the values of all rows.
    """
    pieces = []
    try:
        for column, values in zip(table.columns, columns, strict=True):
            pieces.append(_canonical_values(column.kind, values))
    except (ValueError, OverflowError) as error:
        raise UndecodableValue(f"a value of {table.name} has no canonical form: {error}") from error
    of_key = [pieces[index] for index in table.key_indexes]
    if any(None in columns[index] for index in table.key_indexes):
        raise UndecodableValue(f"a key column of {table.name} is NULL")
    names = [b"," + column.json_name for column in table.columns]
    names[0] = b"{" + table.columns[0].json_name
    images = _interleaved([*zip(names, pieces, strict=True)], b"}")
    begins = [table.key_prefix + b"[", *repeat(b",", len(of_key) - 1)]
    return _interleaved([*zip(begins, of_key, strict=True)], b"]"), images


def _interleaved(parts: Sequence[tuple[bytes, Iterable[bytes]]], end: bytes) -> list[bytes]:
    """Of each row what is before its piece of a column, and the piece, one column after the other."""
    both = chain.from_iterable((repeat(before), pieces) for before, pieces in parts)
    return list(map(b"".join, zip(*both, repeat(end))))


def _canonical_values(kind: str, values: Sequence[bytes | None]) -> Sequence[bytes]:
    """As `_FROM_SELECT` of each."""
    known = [value for value in values if value is not None]
    found = _canonical_known(kind, known)
    if len(known) == len(values):
        return found
    left = iter(found)
    return [NULL if value is None else next(left) for value in values]


def _canonical_known(kind: str, values: list[bytes]) -> list[bytes]:
    """Values without NULL. Mostly one look at all of them shows that they are canonical already, but for quotes."""
    are_canonical, quote = _ARE_CANONICAL.get(kind, (None, b""))
    if are_canonical is None or not are_canonical(b",".join(values)):
        return [*map(_FROM_SELECT[kind], values)]
    return [quote + value + quote for value in values] if quote else values
