"""The measured history: single-row transactions over a fixed set of keys, the same for the same seed.

There are 200,000 keys by default. Images are compact JSON of 150 to 200 bytes and all differ, because a repeated
payload would favour caches and codecs.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from stream.wire.events import ABSENT, VALUE, Column, DescribeTable, RowChange, SourceTransaction
from stream.wire.keys import row_key

TABLE: Final = "bench.accounts"
KEYS: Final = 200_000
PARTITIONS: Final = 4
START_SECONDS: Final = 1_700_000_000
FIRST: Final = 2
"""The first transaction that changes rows; the one before it describes the table."""
START_POSITION: Final = "MariaDB/0-1-0"
VERSIONS: Final = 100_000_000
"""Added to versions, so that all have nine digits."""
SKEW: Final = 4
"""A skewed key is drawn as the number of keys times a uniform number to this power: half of the changes go to 6 %."""
DELETES: Final = 0.1
"""Share of deletes in a skewed history."""
_PAD: Final = (
    "The quick brown fox jumps over the lazy dog while the small cat sleeps in the warm sun by the old well wall."
)


def gtid(number: int) -> str:
    """The position, and also the GTID, of transaction ``number``."""
    return f"MariaDB/0-1-{number}"


def number_of(position: str) -> int:
    """The number of the transaction at ``position``; the inverse of `gtid`."""
    return int(position.rpartition("-")[2])


def image(key: int, version: int, size: int) -> bytes:
    """A row image of 150 to 200 bytes for ``size`` 0 to 50."""
    balance = f"{version % 99_991:08d}.00"
    text = f'{{"id":{key},"version":{VERSIONS + version},"owner":"owner no. {key:07d}","balance":"{balance}"'
    return f'{text},"note":"{_PAD[: 55 + size]}"}}'.encode()


def describe_table() -> SourceTransaction:
    """Transaction 1: the description of the table."""
    names = (("id", "int"), ("version", "int"), ("owner", "text"), ("balance", "decimal"), ("note", "text"))
    columns = tuple(Column(name, kind, kind == "int") for name, kind in names)
    return SourceTransaction(gtid(1), gtid(1), START_SECONDS, [DescribeTable(TABLE, columns, ("id",))])


def transactions(
    count: int, keys: int = KEYS, seed: int = 1, first: int = FIRST, *, shards: int = 1, skewed: bool = False
) -> Iterator[SourceTransaction]:
    """``count`` single-row transactions on random keys, numbered from ``first``.

    ``shards``: transaction n is of shard n modulo ``shards``, and so is its key. ``skewed``: few keys have most
    changes, and one in ten is a delete.
    """
    draw = Random(seed)
    for number in range(first, first + count):
        key = int(keys * draw.random() ** SKEW) if skewed else draw.randrange(keys // shards) * shards + number % shards
        size = draw.randrange(51)
        yield transaction(number, key, size, is_delete=skewed and draw.random() < DELETES)


def each_key_once(keys: int, first: int = FIRST) -> Iterator[SourceTransaction]:
    """One transaction per key, in shuffled order."""
    order = list(range(keys))
    Random(7).shuffle(order)
    for number, key in enumerate(order, first):
        yield transaction(number, key, 40)


def transaction(number: int, key: int, size: int, *, is_delete: bool = False) -> SourceTransaction:
    """Transaction ``number``, which changes one row."""
    body = b"" if is_delete else image(key, number, size)
    change = RowChange(row_key(TABLE, [key]), ABSENT if is_delete else VALUE, body)
    return SourceTransaction(gtid(number), gtid(number), START_SECONDS + number // 5_000, [change])
