"""The state of one partition: a small head, kept in memory, and entries looked up by key. Pure values.

The store keeps both as key → bytes (docs/internals/architecture.md, "State of a partition"), so that the whole state
can be compared byte for byte. `head_entries` encodes the head, `read_head` decodes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

FOLD_VERSION = 4
"""Incremented whenever the same log folds to other bytes. A store of another version is rebuilt."""

META = b"\x00"
CATALOG = b"\x01"
OFFSET_KEY = META + b"offset"
LAYOUT_KEY = META + b"layout"
FOLD_KEY = META + b"fold"
LINEAGE_PREFIX = META + b"lineage/"
VOID_PREFIX = META + b"void/"
SCHEMA_PREFIX = META + b"schema/"
NAME_PREFIX = META + b"name/"

Lookup = Callable[[bytes], bytes | None]


class Lineage(NamedTuple):
    """How far one shard is folded in this partition. Only markers move ``watermark``; "": no marker yet."""

    epoch: int
    ordinal: int
    watermark_ordinal: int
    watermark: str
    watermark_timestamp: int
    low_water: str


class Void(NamedTuple):
    """A range tombstone: entries of (shard, epoch) up to ``ordinal`` read as VOID.

    ``floor`` is the position that a fill must have reached; "": no fill before the next marker at a transaction
    boundary.
    """

    epoch: int
    ordinal: int
    floor: str


class Kin(msgspec.Struct, array_like=True, frozen=True):
    """What a partition knows of the shards around a key's own: the topology, and ancestors with their epochs.

    See `tokens.Tag`. It goes into answers, so it is a struct that may get more fields.
    """

    topology: frozenset[str] = frozenset()
    ancestors: dict[str, int] = {}


NO_KIN = Kin()


class Rejection(NamedTuple):
    """A message, or a part of one, that could not be folded. ``place`` names the part."""

    code: str
    reason: str
    place: str


@dataclass(slots=True)
class Head:
    """The part of a partition's state that every read and every fold needs."""

    offset: int = 0
    layout: str = ""
    lineages: dict[str, Lineage] = field(default_factory=dict)
    voids: dict[tuple[str, str], Void] = field(default_factory=dict)
    """(table or ``*``, shard) → its newest void."""


class Changes(NamedTuple):
    """What ``messages`` messages, folded together, change. ``offset`` is the next to fold.

    ``lineages`` and ``voids`` hold only those that change.
    """

    offset: int
    entries: dict[bytes, bytes]
    lineages: dict[str, Lineage] = {}  # noqa: RUF012 - never mutated: Changes are read-only values
    voids: dict[tuple[str, str], Void] = {}  # noqa: RUF012
    layout: str = ""
    rejections: tuple[Rejection, ...] = ()
    messages: int = 1


def kin_of(head: Head) -> Kin:
    """What the partition knows of the shards of its keyspace."""
    return Kin(frozenset(head.lineages))


@dataclass(slots=True)
class PartitionState:
    """The state of one partition as the fold sees it: its head, and a look-up of entries."""

    head: Head
    lookup: Lookup

    def apply(self, changes: Changes) -> None:
        """Applies the changes to the head. The caller must have made the entries visible to ``lookup`` before."""
        head = self.head
        if changes.voids:
            head.voids.update(changes.voids)
        if changes.layout:
            head.layout = changes.layout
        if changes.lineages:
            head.lineages.update(changes.lineages)
        head.offset = changes.offset


_json_text = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _json(value: Any) -> bytes:
    return _json_text(value).encode()


def lineage_key(shard: str) -> bytes:
    """Store key of a shard's lineage."""
    return LINEAGE_PREFIX + shard.encode()


def void_key(table: str, shard: str) -> bytes:
    """Store key of the newest void of (table or ``*``, shard)."""
    return VOID_PREFIX + table.encode() + b"\0" + shard.encode()


def schema_key(table: str) -> bytes:
    """Store key of a row table's description."""
    return SCHEMA_PREFIX + table.encode()


def head_entries(head: Head) -> dict[bytes, bytes]:
    """The head as store entries."""
    entries = {OFFSET_KEY: _json(head.offset), LAYOUT_KEY: head.layout.encode(), FOLD_KEY: _json(FOLD_VERSION)}
    for shard, lineage in head.lineages.items():
        entries[lineage_key(shard)] = _json(lineage)
    for (table, shard), void in head.voids.items():
        entries[void_key(table, shard)] = _json(void)
    return entries


def is_head_key(key: bytes) -> bool:
    """Whether `head_entries` writes this key. Schemas and names are not in the head; they are looked up like rows."""
    return key in (OFFSET_KEY, LAYOUT_KEY, FOLD_KEY) or key.startswith((LINEAGE_PREFIX, VOID_PREFIX))


_LINEAGE = (int, int, int, str, int, str)


def _loads(value: bytes) -> Any:
    try:
        return json.loads(value)
    except RecursionError as error:
        raise ValueError("a head value is nested too deeply") from error


def _typed(values: Any, types: tuple[type, ...]) -> Any:
    if not isinstance(values, list) or tuple(map(type, values)) != types:
        raise ValueError(f"a head value does not have the types {types}")
    "".join(value for value in values if isinstance(value, str)).encode()
    return values


def read_head(items: Iterable[tuple[bytes, bytes]]) -> Head:
    """The head in a store's META entries. Raises ``ValueError`` or ``TypeError`` if they are damaged."""
    head = Head()
    for key, value in items:
        if key == OFFSET_KEY:
            [head.offset] = _typed([_loads(value)], (int,))
        elif key == LAYOUT_KEY:
            head.layout = value.decode()
        elif key.startswith(LINEAGE_PREFIX):
            head.lineages[key[len(LINEAGE_PREFIX) :].decode()] = Lineage(*_typed(_loads(value), _LINEAGE))
        elif key.startswith(VOID_PREFIX):
            table, _, shard = key[len(VOID_PREFIX) :].partition(b"\0")
            head.voids[table.decode(), shard.decode()] = Void(*_typed(_loads(value), (int, int, str)))
    return head
