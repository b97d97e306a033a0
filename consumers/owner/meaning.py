"""What a key of a row table means: which columns it has, how they compare, and where it is kept.

Front and owner must mean the same by the bytes of a key, or one would answer for a row that the other did not ask
for. So a request carries a fingerprint of what the front believes, and the owner compares it with what it has folded.
The number of columns that choose the partition is no part of it: whoever believes another number asks another
partition, which refuses the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import xxhash

from consumers.fold.declared import is_in_scope
from consumers.fold.shards import shard_map
from consumers.fold.state import Head, schema_key
from consumers.owner.partitions import Partition
from consumers.owner.protocol import SCHEMA_CHANGED, OwnerError, OwnerRow
from consumers.owner.ranges.order import KeyColumn
from stream.wire.codec import decode
from stream.wire.keys import Layout
from tokens import Freshness

CACHED_MAX = 4_096


class Meaning(NamedTuple):
    """A folded description of a table, as far as its keys are concerned. ``reason``: why it may not be cached.

    ``inexact``: the first key column that a collation compares, "" if none does. ``prefix``: how many leading key
    columns choose the partition; 0: the whole key. ``key``: its columns, in key order.
    """

    shard: str
    epoch: int
    ordinal: int
    fingerprint: bytes
    reason: str
    inexact: str
    prefix: int
    key: tuple[KeyColumn, ...]
    columns: tuple[KeyColumn, ...] = ()
    """All columns of the table."""


def fingerprint(key: Iterable[KeyColumn]) -> bytes:
    """Of the key's columns (name, kind, exact) in key order."""
    text = json.dumps([*map(list, key)], separators=(",", ":"))
    return xxhash.xxh3_64_digest(text.encode())


def columns_of(schema: Mapping[str, Any]) -> list[KeyColumn]:
    """The key's columns in a ``TableSchema`` record, as `fingerprint` takes them."""
    columns = {each["name"]: (each["name"], each["kind"], each["exact"]) for each in schema["columns"]}
    return [columns.get(name, (name, "", False)) for name in schema["primary_key"]]


@lru_cache(CACHED_MAX)
def meaning_of(described: bytes) -> Meaning:
    """What a folded ``TableSchema`` says."""
    _, schema = decode(described)
    key = columns_of(schema)
    reason = "" if schema["cacheable"] else schema["reason"] or "it may not be cached"
    inexact = next((name for name, _, exact in key if not exact), "")
    return Meaning(
        schema["shard"],
        schema["epoch"],
        schema["ordinal"],
        fingerprint(key),
        reason,
        inexact,
        schema["prefix"],
        tuple(key),
        tuple((each["name"], each["kind"], each["exact"]) for each in schema["columns"]),
    )


def folded_meaning(partition: Partition, table: str, shard: str) -> Meaning | None:
    """What the keys of ``table`` mean in ``shard``; None if it does not describe it, or publishes it no more.

    ``shard`` "": of a key that nobody knows the shard of. By any shard's description it is kept in the same partition.
    """
    store = partition.store
    shards = (shard,) if shard else tuple(store.visible.lineages)
    values = [value for each in shards if (value := store.get(schema_key(table, each))) is not None]
    head = store.visible
    found = [each for each in map(meaning_of, values) if is_in_scope(head, each.shard, each.epoch, each.ordinal)]
    return max(found, key=lambda each: (each.epoch, each.ordinal)) if found else None


def settled_meaning(partition: Partition, head: Head, table: str, shard: str) -> Meaning | None:
    """`folded_meaning`, which need not be looked up while ``head`` is all that was folded since it was compared."""
    store = partition.store
    if store.visible is head and partition.meanings_of is head and not store.is_folding:
        known: Meaning | None = partition.meanings.get((table, shard))
        if known is not None:
            return known
    return folded_meaning(partition, table, shard)


def still_means(partition: Partition, head: Head, table: str, shard: str, meaning: Meaning) -> bool:
    """Whether ``meaning``, of before entries were read, holds after them: nothing was folded meanwhile.

    False says nothing: `compare_meaning` knows.
    """
    store = partition.store
    if partition.meanings_of is not head or partition.meanings.get((table, shard)) is not meaning:
        return False
    return store.visible is head and not store.is_folding


def prefix_of(partition: Partition, head: Head, table: str) -> int | None:
    """How many leading key columns choose partition and shard of the table's keys; 0: all, or it is not described.

    None: there is no map that needs it. Who answers by it compares it with the description that is there after the
    entries were read.
    """
    if shard_map(head) is None:
        return None
    found = folded_meaning(partition, table, "")
    return found.prefix if found is not None else 0


def compare_meaning(
    partition: Partition, head: Head, table: str, shard: str, expected: bytes | None
) -> tuple[str, int]:
    """`why_other_meaning` of entries that were read after ``head``, and before this call; and the table's prefix.

    ``expected`` None: it is not compared. A meaning that holds is looked up once for each head. While a fold puts
    entries that no head covers yet, it is looked up anew: an entry that has just been read may follow a newer
    description.
    """
    store = partition.store
    is_settled = store.visible is head and not store.is_folding
    if is_settled and partition.meanings_of is head:
        known: Meaning | None = partition.meanings.get((table, shard))
        if known is not None and known.fingerprint == expected:
            return "", known.prefix
    found = folded_meaning(partition, table, shard)
    why = why_other_meaning(head, found, expected) if expected is not None else ""
    if expected is not None and not why and is_settled and store.visible is head and not store.is_folding:
        if partition.meanings_of is not head:
            partition.meanings_of, partition.meanings = head, {}
        partition.meanings[table, shard] = found
    return why, found.prefix if found is not None else 0


def check_partition(head: Head, number: int, key: bytes, prefix: int) -> None:
    """Raises `OwnerError` ``wrong_partition`` if ``key`` is kept in another partition than ``number``.

    ``prefix``: of the table's description.
    """
    if head.layout:
        home = Layout.parse(head.layout).partition_of(key, prefix)
        if home != number:
            raise _kept_elsewhere(home, number)


def check_table_partition(head: Head, number: int, table_id: int) -> None:
    """As `check_partition`, for a catalog table."""
    if head.layout:
        home = Layout.parse(head.layout).table_partition(table_id)
        if home != number:
            raise _kept_elsewhere(home, number)


def _kept_elsewhere(home: int, number: int) -> OwnerError:
    return OwnerError(
        f"the key is kept in partition {home}, not in {number}",
        hint="ask for the keyspace's layout and the table's description again",
        code="wrong_partition",
    )


def why_other_meaning(head: Head, found: Meaning | None, expected: bytes) -> str:
    """Why keys that mean ``expected`` may not be answered by what was folded; "" if they may.

    ``head`` was read before the entries, ``found`` after them. A description that is newer than the head may be
    followed by a void that the head does not have yet.
    """
    if found is None:
        return "the table's description has not been folded here"
    if found.fingerprint != expected:
        return "the keys of the table mean something else here than in the request: its description has changed"
    lineage = head.lineages.get(found.shard)
    if lineage is None or (found.epoch, found.ordinal) > (lineage.epoch, lineage.ordinal):
        return "the table's description is changing"
    return ""


def refuse_row(row: OwnerRow, why: str) -> None:
    """Takes back what was decided for ``row``."""
    row.image, row.served, row.needs_source, row.filled = None, False, True, False
    row.freshness, row.why, row.code = Freshness.UNKNOWN.value, why, SCHEMA_CHANGED
