"""The rows that have given values in indexed columns, as an owner finds them among those that have or had them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from consumers.fold.entry import ABSENT, HEAD, VALUE, kind_and_image
from consumers.fold.state import Head
from consumers.owner.meaning import Meaning, fingerprint
from consumers.owner.partitions import Partition
from consumers.owner.ranges.order import KeyColumn
from consumers.store.index import Extraction, Index

LOOKED_TOGETHER: Final = 64
"""Others are answered in between. Each is a look-up of its own."""
OUTDATED_MIN: Final = 500
"""Rows that had the values, and no longer have them: if they are so many, and most, their entries are removed."""


class NotKnown(Exception):
    """The range cannot be answered from what is folded. The text says why."""


def meaning_with(key: bytes, columns: Sequence[KeyColumn], role: str = "index") -> bytes:
    """The fingerprint of a request that needs more columns than the key. ``key``: that of the table's keys.

    It differs from that of the key alone, and by the ``role`` of the columns: ``index`` or ``order``. So an owner that
    doesn't know what is asked for refuses the request.
    """
    return _meaning_with(key, tuple(columns), role)


@lru_cache(1_024)
def _meaning_with(key: bytes, columns: tuple[KeyColumn, ...], role: str) -> bytes:
    return fingerprint([(key.hex(), role, True), *columns])


def columns_named(meaning: Meaning, names: Sequence[str]) -> list[KeyColumn]:
    """The columns of a table with these names. One that is not there has no kind."""
    known = {column[0]: column for column in meaning.columns}
    return [known.get(name, (name, "", False)) for name in names]


def keys_having(partition: Partition, index: Index, values: bytes, looked_max: int) -> list[bytes]:
    """The keys of the rows that have ``values``, or had them. Raises `NotKnown`."""
    keys = partition.store.having(index, values, looked_max + 1)
    if keys is None:
        raise NotKnown(f"the index {index} is not kept, or not complete, in partition {partition.number}")
    if len(keys) > looked_max:
        partition.store.indexing.note_outdated(index, values)
        raise NotKnown(f"more than {looked_max} rows have or had these values in partition {partition.number}")
    return keys


def indexed_entries(
    partition: Partition, extraction: Extraction, equal: bytes, keys: list[bytes]
) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows of ``keys`` that have the values ``equal``, and as deletions those that had them, some together."""
    get, left = partition.store.get, 0
    for at in range(0, len(keys), LOOKED_TOGETHER):
        found: list[tuple[bytes, bytes]] = []
        for key in keys[at : at + LOOKED_TOGETHER]:
            value = get(key)
            has_left = value is None or not _has(extraction, value, equal)
            left += has_left
            if value is not None:
                found.append((key, _deleted(value) if has_left else value))
        yield found
    if left >= OUTDATED_MIN and 2 * left > len(keys):
        partition.store.indexing.note_outdated(extraction.index, equal)


def _has(extraction: Extraction, value: bytes, values: bytes) -> bool:
    """Whether a row has the values, or may have them."""
    kind, image = kind_and_image(value)
    return kind != VALUE or extraction.values(image) == values


def _deleted(value: bytes) -> bytes:
    """The entry as that of a row that is not in the answer: its place in history counts all the same."""
    return HEAD.pack(ABSENT, HEAD.unpack_from(value)[1]) + value[HEAD.size :]


def changes_known(partition: Partition, head: Head, table: str, shard: str) -> tuple[int, tuple[str, ...]]:
    """Positions from which on the rows that an index finds are the same: the last change of the table, for one.

    And the ordinal of that change, if it is one of this epoch: entries up to it are of no later position. Which values
    a row had before its newest entry is not known for certain. Raises `NotKnown`.
    """
    indexing = partition.store.indexing
    last, since = indexing.settled.get(table), indexing.changes_known_since(head, shard)
    if since is None:
        raise NotKnown("the watermark has not passed what was folded when the store was opened")
    if last is None or (last.shard == shard and last.epoch < head.lineages[shard].epoch):
        return 0, (since,)
    if (last.shard, last.epoch) != (shard, head.lineages[shard].epoch):
        raise NotKnown(f"the table was last changed by {last.shard} in epoch {last.epoch}")
    return last.ordinal, (since, last.position)
