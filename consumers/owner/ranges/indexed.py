"""The rows that have given values in indexed columns, as an owner finds them among those that have or had them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Final

from consumers.fold.entry import ABSENT, HEAD, VALUE, decode_entry
from consumers.fold.state import Head
from consumers.owner.meaning import Meaning, fingerprint
from consumers.owner.partitions import Partition
from consumers.owner.protocol import GetRange
from consumers.owner.ranges.order import KeyColumn
from consumers.store.index import Extraction, Index

LOOKED_TOGETHER: Final = 64
"""Others are answered in between. Each is a look-up of its own."""


class NotKnown(Exception):
    """The range cannot be answered from what is folded. The text says why."""


def meaning_with(key: bytes, columns: list[KeyColumn]) -> bytes:
    """The fingerprint of a request by indexed columns. ``key``: that of the table's keys.

    It differs from that of the key alone. So an owner that doesn't know of indexes refuses the request.
    """
    return _meaning_with(key, tuple(columns))


@lru_cache(1_024)
def _meaning_with(key: bytes, columns: tuple[KeyColumn, ...]) -> bytes:
    return fingerprint([(key.hex(), "index", True), *columns])


def expected_meaning(meaning: Meaning, request: GetRange) -> bytes:
    """The fingerprint of the keys that a request believes in; of one by an index only if it means the same columns."""
    if not request.index:
        return request.meaning
    known = {column[0]: column for column in meaning.columns}
    columns = [known.get(name, (name, "", False)) for name in request.index]
    return meaning.fingerprint if request.meaning == meaning_with(meaning.fingerprint, columns) else b""


def keys_having(partition: Partition, table: str, request: GetRange, looked_max: int) -> list[bytes]:
    """The keys of the rows that have the values of ``request``, or had them. Raises `NotKnown`."""
    index = Index(table, tuple(request.index))
    keys = partition.store.having(index, request.equal, looked_max + 1)
    if keys is None:
        raise NotKnown(f"the index {index} is not kept, or not complete, in partition {partition.number}")
    if len(keys) > looked_max:
        raise NotKnown(f"more than {looked_max} rows have or had these values in partition {partition.number}")
    return keys


async def indexed_entries(
    partition: Partition, table: str, request: GetRange, keys: list[bytes]
) -> AsyncIterator[tuple[bytes, bytes]]:
    """The rows of ``keys`` that have the values of ``request``, and as deletions those that had them."""
    store, extraction = partition.store, extraction_of(Index(table, tuple(request.index)))
    for number, key in enumerate(keys, 1):
        value = store.get(key)
        if value is not None:
            yield key, value if _has(extraction, value, request.equal) else _deleted(value)
        if not number % LOOKED_TOGETHER:
            await asyncio.sleep(0)


extraction_of: Final = lru_cache(1_024)(Extraction)
"""Making one takes longer than a look-up."""


def _has(extraction: Extraction, value: bytes, values: bytes) -> bool:
    """Whether a row has the values, or may have them."""
    entry = decode_entry(value)
    return entry.kind != VALUE or extraction.values(entry.image) == values


def _deleted(value: bytes) -> bytes:
    """The entry as that of a row that is not in the answer: its place in history counts all the same."""
    return HEAD.pack(ABSENT, HEAD.unpack_from(value)[1]) + value[HEAD.size :]


def changes_known(partition: Partition, head: Head, table: str, shard: str) -> list[str]:
    """Positions from which on the rows that an index finds are the same: the last change of the table, for one.

    Which values a row had before its newest entry is not known for certain. Raises `NotKnown`.
    """
    indexing = partition.store.indexing
    last, since = indexing.settled.get(table), indexing.changes_known_since(head, shard)
    if since is None:
        raise NotKnown("the watermark has not passed what was folded when the store was opened")
    if last is None or (last.shard == shard and last.epoch < head.lineages[shard].epoch):
        return [since]
    if (last.shard, last.epoch) != (shard, head.lineages[shard].epoch):
        raise NotKnown(f"the table was last changed by {last.shard} in epoch {last.epoch}")
    return [since, last.position]
