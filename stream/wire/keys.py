"""Keys on the wire and in the store, and which partition they belong to.

Pure. A row key is ``table 0x00 canonical-primary-key``, where the canonical primary key is a compact JSON array of the
key columns' canonical values (`stream.wire.canonical`), non-ASCII kept as UTF-8: ``shop.orders\\0[7,"ü"]``. The layout
(partitioner, buckets, partition count) belongs to the topic and never changes (docs/concepts/rows.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import xxhash

from stream.wire.canonical import UNDECODABLE, float_json, json_of
from tokens.errors import FreshetError

PARTITIONER = "xxh3_64"
"""The only partitioner. Each layout names it, so that another one could be added."""

SEPARATOR = b"\0"
"""Ends the table name in a row key."""

_DIGITS_MAX = 9

FIRST_TABLE_BYTE = 0x20
"""The first byte of a store key is its kind: 0x00 the store's own, 0x01 a catalog object, from here on a row's table
name. Those between are reserved."""

BUCKETS = 4096
"""Virtual buckets of a new topic. A bucket never moves to another key, only to another partition."""

_BUCKETS_MAX = 1 << 20

_decode = msgspec.json.decode
_hash = xxhash.xxh3_64_intdigest
_parts = msgspec.json.Decoder(list[str]).decode
_columns = msgspec.json.Decoder(list[msgspec.Raw])
_PARTS = frozenset({"buckets", "partitions", "prefix"})


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
        if float in map(type, primary_key):
            primary_key = [msgspec.Raw(float_json(each)) if type(each) is float else each for each in primary_key]
        columns = json_of(primary_key)
        name = table.encode()
    except (TypeError, ValueError, OverflowError) as error:
        raise KeyFormatError(f"primary key of {table!r} cannot be encoded: {error}") from error
    if b"null" in columns:
        _refuse_null(table, columns)
    if len(columns) < 3 or columns[0] != 0x5B:
        raise KeyFormatError(f"primary key of {table!r} has no columns: {primary_key!r}")
    if not name or name[0] < FIRST_TABLE_BYTE or SEPARATOR in name:
        raise KeyFormatError(f"{table!r} is not a table name")
    return name + SEPARATOR + columns


def integer_row_key(table: str, value: int) -> bytes:
    """As `row_key` of one integer. Raises `KeyFormatError` for a bad table name only."""
    return b"%b[%d]" % (_beginning(table), value)


@lru_cache(maxsize=1024)
def _beginning(table: str) -> bytes:
    """What all row keys of ``table`` begin with: its name, 0x00."""
    return row_key(table, [0])[: -len(b"[0]")]


def object_name(parts: Sequence[str]) -> str:
    """The name of a catalog object: the compact JSON array of its parts. Raises `KeyFormatError`."""
    try:
        return json_of(list(parts)).decode()
    except (TypeError, ValueError) as error:
        raise KeyFormatError(f"{parts!r} names no object: {error}") from error


def object_parts(name: str) -> list[str]:
    """The parts of an object's name; inverse of `object_name`. Raises `KeyFormatError`."""
    try:
        return _parts(name)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise KeyFormatError(f"{name!r} names no object: {error}") from error


def split_row_key(key: bytes) -> tuple[str, list[Any]]:
    """Table and canonical key values of a row key; raises `KeyFormatError`."""
    name, separator, columns = key.partition(SEPARATOR)
    if not separator or not name or name[0] < FIRST_TABLE_BYTE:
        raise KeyFormatError(f"{key!r} is not a row key: it has no table name before a 0x00")
    try:
        return name.decode(), _decode(columns, type=list[Any])
    except UNDECODABLE as error:
        raise KeyFormatError(f"{key!r} is not a row key: {error}") from error


def is_row_key(key: bytes) -> bool:
    """Whether ``key`` begins with a table name and 0x00. The rest is not checked."""
    return key.find(SEPARATOR) > 0 and key[0] >= FIRST_TABLE_BYTE


def _refuse_null(table: str, columns: bytes) -> None:
    """Refuse NULL, and NaN and infinity, which are written as null."""
    if None in _decode(columns):
        raise KeyFormatError(f"primary key of {table!r} contains NULL, NaN or an infinity, which cannot identify a row")


@dataclass(frozen=True)
class Layout:
    """How keys are distributed over a topic's partitions. It can't change once a topic holds events.

    A key's hash gives one of ``buckets`` buckets, and the buckets are dealt to the partitions in equal ranges. Topics
    of before have no buckets (0): the hash modulo ``partitions`` is the partition.

    With a prefix of n only the JSON array of the first n key columns is hashed, without the table name. So rows with
    equal leading columns (``customers[7]`` and ``orders[7,12]``, both with prefix 1) share a partition, as composite
    objects need. A table's description says its prefix; ``prefixes`` are those of topics of before, and go first.

    ``extensions``: what else the text says, in names that begin with ``x-``. It has no meaning here.
    """

    partitions: int
    prefixes: Mapping[str, int] = field(default_factory=dict)
    partitioner: str = PARTITIONER
    buckets: int = BUCKETS
    extensions: tuple[str, ...] = ()
    _by_table: dict[bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.partitioner != PARTITIONER:
            raise LayoutError(
                f"unknown partitioner {self.partitioner!r}", hint=f"the only partitioner is {PARTITIONER}"
            )
        most = self.buckets or 100_000
        if not 1 <= self.partitions <= most or self.buckets > _BUCKETS_MAX:
            raise LayoutError(
                f"invalid partition count {self.partitions} with {self.buckets} buckets", hint=f"it must be 1 to {most}"
            )
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
        return hash(str(self))

    def __str__(self) -> str:
        """``xxh3_64;buckets=4096;partitions=4;prefix=db.orders:1,db.users:2``: tables sorted, percent-encoded."""
        parts = [self.partitioner]
        if self.buckets:
            parts.append(f"buckets={self.buckets}")
        parts.append(f"partitions={self.partitions}")
        if self.prefixes:
            prefixes = (f"{quote(table, safe='.')}:{n}" for table, n in sorted(self.prefixes.items()))
            parts.append(f"prefix={','.join(prefixes)}")
        return ";".join((*parts, *self.extensions))

    @staticmethod
    @lru_cache(maxsize=64)
    def parse(text: str) -> Layout:
        """The layout that ``text`` (as `__str__` writes it) describes; raises `LayoutError`."""
        partitioner, *parts = text.split(";")
        found = dict(part.partition("=")[::2] for part in parts)
        extensions = tuple(part for part in parts if part.startswith("x-"))
        known = len(found) - len(extensions)
        if len(found) != len(parts) or "partitions" not in found or known != len(found.keys() & _PARTS):
            raise LayoutError(
                f"{text!r} is not a layout",
                hint="write it like xxh3_64;buckets=4096;partitions=4; names of extensions begin with x-",
            )
        prefixes = _parse_prefixes(text, found["prefix"].split(",")) if "prefix" in found else {}
        buckets = _number(text, found["buckets"]) if "buckets" in found else 0
        if "buckets" in found and not buckets:
            raise LayoutError(f"{text!r} is not a layout: it has no buckets")
        return Layout(_number(text, found["partitions"]), prefixes, partitioner, buckets, extensions)

    def keyspace_id(self, key: bytes, prefix: int = 0) -> int:
        """The 64-bit hash of a row key; ``prefix`` is that of its table's description.

        Its partition follows from it, and its shard (`stream.shards.map`): the one from the last bits, the other
        from the first ones. Never raises: any other bytes are hashed as a whole.
        """
        if prefix or self._by_table:
            return _hash(self._hashed(key, prefix))
        return _hash(key)

    def partition_of(self, key: bytes, prefix: int = 0) -> int:
        """The partition of a row key; ``prefix``: as for `keyspace_id`."""
        return self.partition_at(self.keyspace_id(key, prefix))

    def partition_at(self, keyspace_id: int) -> int:
        """The partition of all keys with an id."""
        buckets = self.buckets
        return keyspace_id % buckets * self.partitions // buckets if buckets else keyspace_id % self.partitions

    def places(self, keys: Sequence[bytes], prefix: int = 0) -> list[list[int]]:
        """Of each partition the indexes of its keys. ``prefix``: as for `keyspace_id`."""
        found: list[list[int]] = [[] for _ in range(self.partitions)]
        for index, key in enumerate(keys):
            found[self.partition_of(key, prefix)].append(index)
        return found

    def id_of_leading(self, key: bytes, columns: int, of: int, prefix: int = 0) -> int | None:
        """The id of all row keys that begin with the ``columns`` values of ``key``; None if there are several.

        ``key``: a row key of these values alone; ``of``: how many the table's keys have; ``prefix``: as described.
        """
        prefix = self._by_table.get(key.partition(SEPARATOR)[0], prefix)
        return self.keyspace_id(key, prefix) if columns == of or 0 < prefix <= columns else None

    def partition_of_leading(self, key: bytes, columns: int, of: int, prefix: int = 0) -> int | None:
        """The partition of the keys of `id_of_leading`; None if there may be several."""
        if self.partitions == 1:
            return 0
        keyspace_id = self.id_of_leading(key, columns, of, prefix)
        return None if keyspace_id is None else self.partition_at(keyspace_id)

    def table_partition(self, table_id: int) -> int:
        """The partition of a table and of all that belongs to it: by id, so that a rename moves nothing.

        Objects of no table (id 0: catalogs, databases, functions) lie together, so that lists of them are of one place.
        """
        return self.partition_at(_hash(str(table_id).encode()))

    def home_partition(self, shard: str) -> int:
        """The partition that holds a shard's `SourceState` records. It doesn't depend on the buckets, so that it can
        be read in a topic whose layout is not known yet."""
        return _hash(shard.encode()) % self.partitions

    def _hashed(self, key: bytes, prefix: int) -> bytes:
        """The bytes of a row key that are hashed."""
        name, _, columns = key.partition(SEPARATOR)
        prefix = self._by_table.get(name, prefix)
        if not prefix:
            return key
        try:
            values = _columns.decode(columns)
        except UNDECODABLE:
            return key
        return b"[" + b",".join(map(bytes, values[:prefix])) + b"]"


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
