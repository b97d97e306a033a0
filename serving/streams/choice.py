"""What a reader wants of a change stream: tables, a range of keys, columns, a predicate. Pure.

What can't be told row by row (a void, a new description, a new epoch, an unreadable message) passes every choice of
rows: it may concern them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from stream.wire.events import EVERY_TABLE
from stream.wire.keys import Layout

KEY_IDS: Final = 1 << 16
"""Key ranges are written in hexadecimal digits of a number below this: the hash's bucket, scaled."""
_RANGE: Final = re.compile(r"([0-9a-f]{0,4})-([0-9a-f]{0,4})")
_image = msgspec.json.Decoder(dict[str, msgspec.Raw])


class KeyRange(NamedTuple):
    """The keys whose bucket, scaled to `KEY_IDS`, is at least ``low`` and below ``high``."""

    low: int
    high: int

    @staticmethod
    def parse(text: str) -> KeyRange:
        """``40-80``, ``-80``, ``c0-``, ``-``: digits as of a fraction, so 8, 80 and 8000 are the same bound.

        Raises ``ValueError``.
        """
        found = _RANGE.fullmatch(text.lower())
        if found is None:
            raise ValueError(f"{text!r} is no range: write it like 40-80, -80 or c0-")
        low = int(found[1].ljust(4, "0"), 16)
        high = int(found[2].ljust(4, "0"), 16) if found[2] else KEY_IDS
        if low >= high:
            raise ValueError(f"{text!r} is empty: its first bound is not below its second")
        return KeyRange(low, high)


@dataclass(frozen=True, slots=True)
class Choice:
    """``tables``: ``db.table``; None: all. ``columns``: of the images; None: all.

    ``where``: column → value as text; rows that differ come without image, as ``unmatched``.
    """

    tables: frozenset[str] | None = None
    key_range: KeyRange | None = None
    include_rows: bool = False
    columns: frozenset[str] | None = None
    where: tuple[tuple[str, str], ...] = ()
    is_sse: bool = False

    def has_table(self, table: str) -> bool:
        """Whether what is told of a table, or of `EVERY_TABLE`, concerns the reader."""
        return self.tables is None or table in self.tables or table == EVERY_TABLE

    def has_key(self, layout: Layout, key: bytes, prefix: int) -> bool:
        """Whether a row's key is in the range."""
        if self.key_range is None:
            return True
        at = layout.bucket_of(key, prefix) * KEY_IDS // layout.buckets
        return self.key_range.low <= at < self.key_range.high

    def matches(self, image: bytes) -> bool:
        """Whether an image has what ``where`` demands. A column that it lacks has no value."""
        if not self.where:
            return True
        columns = _image.decode(image)
        return all(_is_text_of(columns.get(name), text) for name, text in self.where)

    def project(self, image: bytes) -> msgspec.Raw:
        """The image as the reader wants it: with its columns only."""
        if self.columns is None:
            return msgspec.Raw(image)
        columns: Mapping[str, msgspec.Raw] = _image.decode(image)
        return msgspec.Raw(
            msgspec.json.encode({name: value for name, value in columns.items() if name in self.columns})
        )


def _is_text_of(value: msgspec.Raw | None, text: str) -> bool:
    """Whether a canonical value is what a parameter says: as it is, or as a string's text. NULL is no text."""
    if value is None:
        return False
    raw = bytes(value)
    return raw in (text.encode(), msgspec.json.encode(text)) and raw != b"null"
