"""Keys on the wire and in the store, and which partition they belong to.

Pure. A row key is ``table 0x00 canonical-primary-key``, where the canonical primary key is a compact JSON array of the
key columns' canonical values, non-ASCII kept as UTF-8: ``shop.orders\\0[7,"ü"]``. The layout (partitioner, partition
count, key prefixes) belongs to the topic and never changes (docs/concepts/rows.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import xxhash

from tokens.errors import FreshetError

PARTITIONER = "xxh3_64"
"""The only partitioner. Each layout names it, so that another one could be added."""

SEPARATOR = b"\0"
"""Ends the table name in a row key."""

_DIGITS_MAX = 9

RESERVED = 1
"""The first byte of a table name is above this: store keys that start with 0x00 or 0x01 are not rows."""

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_hash = xxhash.xxh3_64_intdigest
_columns = msgspec.json.Decoder(list[msgspec.Raw])


class KeyFormatError(FreshetError, ValueError):
    """A key that cannot be encoded, or bytes that are not a key; code ``bad_key``."""

    code = "bad_key"


class LayoutError(FreshetError, ValueError):
    """A layout that cannot be parsed or is invalid; code ``bad_layout``."""

    code = "bad_layout"


def row_key(table: str, primary_key: Sequence[Any]) -> bytes:
    """The key of a row: ``table`` (``db.table``), 0x00, JSON array of the canonical key values in key order.

    Raises `KeyFormatError` for an empty key, NULL, a non-finite number, or a value without a JSON form.
    """
    try:
        columns = _encode(primary_key)
        name = table.encode()
    except (TypeError, ValueError, OverflowError) as error:
        raise KeyFormatError(f"primary key of {table!r} cannot be encoded: {error}") from error
    if b"null" in columns:
        _refuse_null(table, primary_key)
    if len(columns) < 3 or columns[0] != 0x5B:
        raise KeyFormatError(f"primary key of {table!r} has no columns: {primary_key!r}")
    if not name or name[0] <= RESERVED or SEPARATOR in name:
        raise KeyFormatError(f"{table!r} is not a table name")
    return name + SEPARATOR + columns


def split_row_key(key: bytes) -> tuple[str, list[Any]]:
    """Table and canonical key values of a row key; raises `KeyFormatError`."""
    name, separator, columns = key.partition(SEPARATOR)
    if not separator or not name or name[0] <= RESERVED:
        raise KeyFormatError(f"{key!r} is not a row key: it has no table name before a 0x00")
    try:
        return name.decode(), _decode(columns, type=list[Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KeyFormatError(f"{key!r} is not a row key: {error}") from error


def is_row_key(key: bytes) -> bool:
    """Whether ``key`` begins with a table name and 0x00. The rest is not checked."""
    return key.find(SEPARATOR) > 0 and key[0] > RESERVED


def _refuse_null(table: str, primary_key: Sequence[Any]) -> None:
    """Refuse NULL, and NaN and infinity, which JSON would write as null."""
    for value in primary_key:
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            raise KeyFormatError(f"primary key of {table!r} contains {value!r}, which cannot identify a row")


@dataclass(frozen=True)
class Layout:
    """How keys are distributed over a topic's partitions. It can't change once a topic holds events.

    ``prefixes`` maps a table to the number of leading key columns that determine its partition (default: the whole key
    with the table name). With a declared prefix only the JSON array of those columns is hashed, without the table name.
    So rows with equal leading columns (``customers[7]`` and ``orders[7,12]``, both with prefix 1) share a partition, as
    composite objects need.
    """

    partitions: int
    prefixes: Mapping[str, int] = field(default_factory=dict)
    partitioner: str = PARTITIONER
    _by_table: dict[bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.partitioner != PARTITIONER:
            raise LayoutError(
                f"unknown partitioner {self.partitioner!r}", hint=f"the only partitioner is {PARTITIONER}"
            )
        if not 1 <= self.partitions <= 100_000:
            raise LayoutError(f"invalid partition count {self.partitions}", hint="it must be 1 to 100000")
        for table, columns in self.prefixes.items():
            if not table or columns < 1:
                raise LayoutError(
                    f"invalid key prefix of {columns} columns for table {table!r}",
                    hint="give a table name and 1 or more",
                )
        try:
            by_table = {table.encode(): n for table, n in self.prefixes.items()}
        except UnicodeEncodeError as error:
            raise LayoutError(f"a table name of the layout cannot be encoded: {error}") from error
        object.__setattr__(self, "_by_table", by_table)

    def __hash__(self) -> int:
        return hash((self.partitions, self.partitioner, tuple(sorted(self.prefixes.items()))))

    def __str__(self) -> str:
        """``xxh3_64;partitions=4;prefix=db.orders:1,db.users:2``: tables sorted, percent-encoded."""
        text = f"{self.partitioner};partitions={self.partitions}"
        if not self.prefixes:
            return text
        prefixes = (f"{quote(table, safe='.')}:{n}" for table, n in sorted(self.prefixes.items()))
        return f"{text};prefix={','.join(prefixes)}"

    @staticmethod
    @lru_cache(maxsize=64)
    def parse(text: str) -> Layout:
        """The layout that ``text`` (as `__str__` writes it) describes; raises `LayoutError`."""
        partitioner, *parts = text.split(";")
        found = dict(part.partition("=")[::2] for part in parts)
        unknown = found.keys() - {"partitions", "prefix"}
        if unknown or len(found) != len(parts) or "partitions" not in found:
            raise LayoutError(
                f"{text!r} is not a layout",
                hint="write it like xxh3_64;partitions=4;prefix=db.orders:1",
            )
        prefixes = _parse_prefixes(text, found["prefix"].split(",")) if "prefix" in found else {}
        return Layout(_number(text, found["partitions"]), prefixes, partitioner)

    def partition_of(self, key: bytes) -> int:
        """The partition of a row key. Never raises: any other bytes are hashed as a whole."""
        if not self._by_table:
            return _hash(key) % self.partitions
        return self._partition_by_prefix(key)

    def _partition_by_prefix(self, key: bytes) -> int:
        name, _, columns = key.partition(SEPARATOR)
        prefix = self._by_table.get(name)
        if prefix is None:
            return _hash(key) % self.partitions
        try:
            values = _columns.decode(columns)
        except (msgspec.DecodeError, RecursionError):
            return _hash(key) % self.partitions
        return _hash(b"[" + b",".join(map(bytes, values[:prefix])) + b"]") % self.partitions

    def table_partition(self, table_id: int) -> int:
        """The partition of a catalog object: by id, so that a renamed object stays in its partition."""
        return _hash(str(table_id).encode()) % self.partitions

    def home_partition(self, shard: str) -> int:
        """The partition that holds a shard's `SourceState` records."""
        return _hash(shard.encode()) % self.partitions


def _number(text: str, digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        raise LayoutError(f"{text!r} is not a layout: {digits!r} is not a number or too large")
    return int(digits)


def _parse_prefixes(text: str, items: Iterable[str]) -> dict[str, int]:
    prefixes: dict[str, int] = {}
    for item in items:
        table, _, columns = item.rpartition(":")
        prefixes[unquote(table)] = _number(text, columns)
    return prefixes
