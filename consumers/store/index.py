"""Indexes of row tables: from values in some columns to the keys of rows that have them, or had them. Pure.

An entry of an index is a hint. It is made of each image that is folded, and removed late if at all, so it may be of an
image of before: who looks must read the row (docs/decisions/0023-index-entries-are-hints.md). Entries lie in the store
beside the folded state::

    02 | table | 00 | JSON array of the columns | 00 | JSON array of the values | 00 | primary key

``02`` alone says how far the indexes are built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

import msgspec

from consumers.fold.columns import Kinds
from stream.wire.canonical import json_of
from stream.wire.events import ABSENT, VALUE
from stream.wire.keys import SEPARATOR

INDEX: Final = b"\x02"
"""The kind of an entry of an index, and the key of what is known of all of them."""
INDEX_END: Final = b"\x03"
UNKNOWN: Final = b"?"
"""In place of the values: the image is not known, or has not these columns. Each look-up takes these, too."""
NULL: Final = msgspec.Raw(b"null")
CACHED_MAX: Final = 1_024
"""Columns come from requests, too. An index that is kept holds what it needs itself."""
_TEXT: Final = re.compile(r"([^()]+)\(([^()]+)\)")


class Index(NamedTuple):
    """An index of a table (``db.table``) by equality of all ``columns``."""

    table: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.table}({', '.join(self.columns)})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The index in ``db.table(column, column)``. Raises ``ValueError``."""
        found = _TEXT.fullmatch(text.strip())
        columns = tuple(name.strip() for name in found[2].split(",")) if found is not None else ()
        if found is None or "" in columns or len(set(columns)) != len(columns):
            raise ValueError(f"{text!r} is not an index: write it like shop.orders(customer_id)")
        return cls(found[1].strip(), columns)

    def entries_of(self, values: bytes) -> bytes:
        """How the keys of all entries of ``values`` begin; the primary key follows."""
        return _prefix(self) + values + SEPARATOR


@lru_cache(CACHED_MAX)
def _prefix(index: Index) -> bytes:
    return SEPARATOR.join((INDEX + index.table.encode(), json_of(list(index.columns)), b""))


@lru_cache(CACHED_MAX)
def _reader(columns: tuple[str, ...]) -> tuple[Any, Any]:
    """What decodes an image, and takes the columns of what is decoded. Making it takes longer than many a fold."""
    names = [f"c{number}" for number in range(len(columns))]
    fields: list[Any] = [(name, msgspec.Raw) for name in names]
    made = msgspec.defstruct("Indexed", fields, rename=dict(zip(names, columns, strict=True)), gc=False)
    return msgspec.json.Decoder(made).decode, attrgetter(*names)


def values_of(values: Iterable[object]) -> bytes:
    """Canonical values as entries have them. Raises ``TypeError``, ``ValueError``."""
    return json_of(list(values))


class Extraction:
    """Makes entries of one index from images."""

    __slots__ = ("_columns", "_decode", "_prefix", "index", "table", "unknown")

    def __init__(self, index: Index) -> None:
        self.index = index
        self.table = index.table.encode() + SEPARATOR
        """How the keys of the table's rows begin."""
        self.unknown = index.entries_of(UNKNOWN)
        self._prefix = _prefix(index)
        self._decode, self._columns = _reader(index.columns)

    def begin_of(self, values: bytes) -> bytes:
        """As `Index.entries_of`."""
        return b"%b%b\0" % (self._prefix, values)

    def values(self, image: bytes) -> bytes:
        """The JSON array of the columns' values; b"" if one is NULL; `UNKNOWN` if the image has not these columns."""
        try:
            found = self._columns(self._decode(image))
        except (ValueError, RecursionError):
            return UNKNOWN
        if type(found) is msgspec.Raw:
            return b"[%b]" % found if found != NULL else b""
        return b"[%b]" % b",".join(found) if NULL not in found else b""

    def begins_of(self, kinds: Kinds, images: Sequence[bytes]) -> list[bytes]:
        """As `entries_of` for several rows; b"" for one that has no entry."""
        if kinds is None and len(self.index.columns) == 1:
            found = [NULL]
            with suppress(ValueError, RecursionError):
                found = list(map(self._columns, map(self._decode, images)))
            if NULL not in found:
                return list(map(b"".join, zip(repeat(self._prefix + b"["), found, repeat(b"]\0"))))
        kinds = kinds or [VALUE] * len(images)
        return [self.begin_of_row(kind, image) for kind, image in zip(kinds, images, strict=True)]

    def begin_of_row(self, kind: int, image: bytes) -> bytes:
        """As `begins_of`, for one row."""
        return b"" if kind == ABSENT else self.entries_of(image) if kind == VALUE else self.unknown

    def keys_of(self, keys: Sequence[bytes], kinds: Kinds, images: Sequence[bytes]) -> list[bytes]:
        """The keys of the entries of several rows of the table."""
        size = len(self.table)
        return [begin + key[size:] for begin, key in zip(self.begins_of(kinds, images), keys, strict=True) if begin]

    def entries_of(self, image: bytes) -> bytes:
        """How the key of the image's entry begins (`Index.entries_of`); b"" if it has none, as with NULL."""
        values = self.values(image)
        return self.begin_of(values) if values else b""
