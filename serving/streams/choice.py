"""What a reader wants of a change stream: tables, one key or a range of keys, columns, a predicate. Pure.

What can't be told row by row (a void, a new description, a new epoch, an unreadable message) passes every choice of
rows: it may concern them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import msgspec

from stream.shards.map import IdRange
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import Layout

_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?")
_image = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Choice:
    """``tables``: ``db.table``; None: all. ``key``: of the only row; None: all. ``columns``: of the images; None: all.

    ``where``: column → value as text; rows that differ come without image, as ``unmatched``. ``numbers``: those of its
    columns that are equal as numbers are. ``reads_void``: rows whose image the log has not are read.
    ``include_before``: what rows were before is told, too.
    ``include_keyless``: and rows of tables without a primary key.
    """

    tables: frozenset[str] | None = None
    key_range: IdRange | None = None
    include_rows: bool = False
    columns: frozenset[str] | None = None
    where: tuple[tuple[str, str], ...] = ()
    is_sse: bool = False
    key: bytes | None = None
    reads_void: bool = False
    include_before: bool = False
    include_keyless: bool = False
    numbers: frozenset[str] = frozenset()

    def has_table(self, table: str) -> bool:
        """Whether what is told of a table, or of `EVERY_TABLE`, concerns the reader."""
        return self.tables is None or table in self.tables or table == EVERY_TABLE

    def has_key(self, layout: Layout, key: bytes, prefix: int) -> bool:
        """Whether a row's key is the one that is wanted, and in the range."""
        if self.key is not None and key != self.key:
            return False
        return self.key_range is None or layout.keyspace_id(key, prefix) in self.key_range

    def matches(self, image: bytes) -> bool:
        """Whether an image has what ``where`` demands. A column that it lacks has no value."""
        if not self.where:
            return True
        columns = _image.decode(image)
        return all(_is_text_of(columns.get(name), text, name in self.numbers) for name, text in self.where)

    def project(self, image: bytes) -> msgspec.Raw:
        """The image as the reader wants it: with its columns only."""
        if self.columns is None:
            return msgspec.Raw(image)
        columns: Mapping[str, msgspec.Raw] = _image.decode(image)
        return msgspec.Raw(
            msgspec.json.encode({name: value for name, value in columns.items() if name in self.columns})
        )


def as_number(text: str) -> Decimal | None:
    """None: the text is no number."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _is_text_of(value: msgspec.Raw | None, text: str, is_number: bool) -> bool:
    """Whether a canonical value is what a parameter says: as it is, or as a string's text. NULL is no text."""
    if value is None:
        return False
    raw = bytes(value)
    if raw in (text.encode(), msgspec.json.encode(text)):
        return raw != b"null"
    number = as_number(raw.strip(b'"').decode()) if is_number else None
    return number is not None and number == as_number(text)
