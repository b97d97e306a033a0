"""What two folds say, as plain facts that can be compared: the bytes of the product's state, and the naive fold's.

The product's bytes are read by their documented layout (docs/internals/architecture.md), not by its code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from lab.simulation.naive.messages import read_message
from lab.simulation.naive.partition import NaivePartition
from lab.simulation.naive.tables import NaiveTable

Facts = dict[tuple[str, ...] | bytes, Any]
"""(kind, name) or a row's key → what is known."""

_ENTRY: Final = struct.Struct(">BQqI")
FOLD_VERSION: Final = 13


def facts_of_bytes(entries: Mapping[bytes, bytes]) -> Facts:
    """The facts in the product's state."""
    facts: Facts = {}
    for key, value in entries.items():
        if key[0] >= 0x20:
            facts[key] = _row(value)
        elif key[0] == 1:
            names = key[2:].decode().split("\0", 2)
            what = {"t": "table", "o": "object", "s": "set", "d": "drops"}[key[1:2].decode()]
            facts[what, *names] = _table(value) if what == "table" else _object(value)
        else:
            kind, _, name = key[1:].partition(b"/")
            facts[kind.decode(), *_names(kind, name)] = _known(kind.decode(), value)
    return facts


def _object(value: bytes) -> tuple[Any, ...]:
    return tuple(tuple(each) if isinstance(each, list) else each for each in msgspec.msgpack.decode(value))


def _names(kind: bytes, name: bytes) -> list[str]:
    return [name.hex()] if kind == b"text" else name.decode().split("\0") if name else []


@lru_cache(maxsize=16_384)
def _row(value: bytes) -> tuple[Any, ...]:
    kind, ordinal, timestamp, size = _ENTRY.unpack_from(value)
    end = _ENTRY.size + size
    shard, epoch, position = value[_ENTRY.size : end].decode().split("\0")
    return kind, shard, (int(epoch), ordinal), timestamp, position, value[end:]


@lru_cache(maxsize=16_384)
def _known(kind: str, value: bytes) -> Any:
    if kind == "schema":
        return read_message(value, {})[1]
    if kind == "name":
        return tuple(msgspec.msgpack.decode(value))
    return value.decode() if kind == "layout" else json.loads(value)


@lru_cache(maxsize=16_384)
def _table(value: bytes) -> tuple[Any, ...]:
    fields = msgspec.msgpack.decode(value)
    _, shard, epoch, ordinal, name, kind, exists, created, ids, image, lo, hi, *rest = fields
    image_ordinal, write_ordinal, write_position, pending, staged, void, list_ordinal, partial, *rest = rest
    struct, objects_void = rest
    hwm, still_open, runs, committed, known = ids
    aborted = [each for first, last in runs for each in range(first, last + 1)]
    return (
        (shard, epoch, ordinal, name, kind, exists, created),
        (hwm, [*map(tuple, still_open)], aborted, committed, known),
        (image, lo, hi, image_ordinal, write_ordinal, write_position, list_ordinal),
        ([*map(tuple, pending)], [*map(tuple, staged)], bool(void), partial, struct, objects_void),
    )


def facts_of_naive(fold: NaivePartition, offset: int) -> Facts:
    """The facts in the naive fold's state before ``offset``."""
    facts: Facts = {("offset",): offset, ("begin",): fold.begin, ("layout",): fold.layout, ("fold",): FOLD_VERSION}
    for key, row in fold.rows.items():
        if not fold.is_forgotten(key, row):
            facts[key] = row
    for (table, name), line in fold.dropped.items():
        facts["dropped", table, name] = [*line]
    for name, shard in fold.shards.items():
        progress = [shard.epoch, shard.ordinal, shard.mark, shard.watermark, shard.timestamp]
        facts["lineage", name] = [*progress, shard.low_water, shard.link, shard.as_of_ms]
    for (table, name), ((epoch, ordinal), floor) in fold.voids.items():
        facts["void", table, name] = [epoch, ordinal, floor]
    for name, said in fold.topologies.items():
        ranges = [[each["shard"], each["range"]] for each in said["ranges"]]
        facts["topology", name] = [said["epoch"], said["ordinal"], sorted(said["shards"]), {}, {}, ranges]
    for name, place in fold.scopes.items():
        facts["scope", name] = [*place]
    for (table, name), backfill in fold.backfills.items():
        facts["backfill", table, name] = [*backfill]
    for (table, name), schema in fold.schemas.items():
        facts["schema", table, name] = schema
    for number, text in fold.texts.items():
        facts["text", number.hex()] = [text["name"], text["text"], text["skippable"]]
    for name, bound in fold.tables.names.items():
        facts["name", name] = bound
    for table_id, state in fold.tables.by_id.items():
        facts["table", str(table_id)] = _naive_table(state)
    for (kind, table_id, name), each in fold.tables.others.objects.items():
        image, struct_bytes = each.value or (None, None)
        at = (each.shard, each.epoch, each.ordinal)
        known = (each.value is not None, image, struct_bytes, each.lo, each.hi, each.known_at)
        facts["object", kind, str(table_id), name] = (*at, *known, *each.write)
    for (kind, table_id), drops in fold.tables.others.drops.items():
        facts["drops", kind, str(table_id)] = (drops.shard, drops.epoch, *drops.forgotten, tuple(drops.recent))
    for (kind, table_id), group in fold.tables.others.sets.items():
        passes = (group.shard, group.epoch, group.ordinal, group.begun, *group.whole)
        facts["set", kind, str(table_id)] = (*passes, group.void[0], group.lo, group.latest, group.void[1])
    return facts


def _naive_table(state: NaiveTable) -> tuple[Any, ...]:
    staged = [(txn, *each) for txn, each in sorted(state.staged.items())]
    return (
        (state.shard, state.epoch, state.ordinal, state.name, state.kind, state.exists, state.created),
        (state.hwm, sorted(state.open.items()), sorted(state.aborted), state.committed, state.known),
        (state.image, state.lo, state.hi, state.image_ordinal, state.write_ordinal, state.write_position,
         state.list_ordinal),
        (sorted(state.pending), staged, state.is_void, state.partial, state.struct, state.objects_void),
    )  # fmt: skip


def first_difference(found: Facts, expected: Facts) -> str:
    """The first fact in which they differ, in words; "" if there is none."""
    if found == expected:
        return ""
    names = sorted(found.keys() | expected.keys(), key=repr)
    name = next(each for each in names if found.get(each) != expected.get(each))
    return f"{name!r} is {found.get(name)!r}, the naive fold says {expected.get(name)!r}"
