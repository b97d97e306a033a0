"""The state of one partition: a small head, kept in memory, and entries looked up by key. Pure values.

The store keeps both as key → bytes (docs/internals/architecture.md, "State of a partition"), so that the whole state
can be compared byte for byte. `head_entries` encodes the head, `read_head` decodes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from stream.shards.map import map_of

FOLD_VERSION = 13
"""Incremented whenever the same log folds to other bytes. A store of another version is rebuilt."""

META = b"\x00"
CATALOG = b"\x01"
"""The kind of a catalog object. The second byte says which: `TABLE`, `OBJECT`, `SET` or `DROPS`. Kinds up to
`stream.wire.keys.RESERVED` have no other meaning yet; from there on a key is a row's."""
TABLE = b"t"
OBJECT = b"o"
SET = b"s"
DROPS = b"d"
OFFSET_KEY = META + b"offset"
BEGIN_KEY = META + b"begin"
LAYOUT_KEY = META + b"layout"
FOLD_KEY = META + b"fold"
LINEAGE_PREFIX = META + b"lineage/"
VOID_PREFIX = META + b"void/"
SCHEMA_PREFIX = META + b"schema/"
NAME_PREFIX = META + b"name/"
TEXT_PREFIX = META + b"text/"
TOPOLOGY_PREFIX = META + b"topology/"
SCOPE_PREFIX = META + b"scope/"
BACKFILL_PREFIX = META + b"backfill/"
DROPPED_PREFIX = META + b"dropped/"

K = TypeVar("K")
V = TypeVar("V")
Lookup = Callable[[bytes], bytes | None]


class Lineage(NamedTuple):
    """How far one shard is folded in this partition. Only markers move ``watermark``; "": no marker yet.

    ``low_water``: nothing from below it may be filled; "": unknown. ``continuity``: of the last marker folded, which
    the next one must name. ``as_of_ms``: the source's clock of the watermark; 0: unknown.
    """

    epoch: int
    ordinal: int
    watermark_ordinal: int
    watermark: str
    watermark_timestamp: int
    low_water: str
    continuity: int = 0
    as_of_ms: int = 0


class Void(NamedTuple):
    """A range tombstone: entries of (shard, epoch) up to ``ordinal`` read as VOID.

    ``floor`` is the position that a fill must have reached; "": no fill before the next marker at a transaction
    boundary.
    """

    epoch: int
    ordinal: int
    floor: str


class Topology(NamedTuple):
    """What a shard declares of the shards around it: all of its keyspace, and its own ancestors (shard → epoch).

    ``succeeded``: the ancestors of its earlier epochs. They are over for good, but their positions are no longer its.
    ``ranges``: (shard, range) of the map that it declares, if any.
    """

    epoch: int
    ordinal: int
    shards: tuple[str, ...]
    ancestors: dict[str, int]
    succeeded: dict[str, int]
    ranges: tuple[tuple[str, str], ...] = ()

    def range_of(self, shard: str) -> str:
        """The range of a shard by this map; "" if there is no map, or it is not in it."""
        return dict(self.ranges).get(shard, "")


class Scope(NamedTuple):
    """Descriptions of a shard's tables at or before this place are forgotten."""

    epoch: int
    ordinal: int


class Backfill(NamedTuple):
    """A backfill of a table: the ordinals at which it began and was complete (0: it is not), and where that was."""

    epoch: int
    begun: int
    complete: int
    position: str
    timestamp: int


class Dropped(NamedTuple):
    """Up to where tombstones of a table are dropped: a key of it without an entry counts as deleted there.

    ``void_epoch``, ``void_ordinal``: the newest void before, up to which all entries are dropped; 0: there is none.
    """

    epoch: int
    ordinal: int
    position: str
    void_epoch: int = 0
    void_ordinal: int = 0


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
    topologies: dict[str, Topology] = field(default_factory=dict)
    scopes: dict[str, Scope] = field(default_factory=dict)
    begin: int = 0
    """The offset at which this state began: nothing is known of what was before it."""
    backfills: dict[tuple[str, str], Backfill] = field(default_factory=dict)
    """(table, shard) → its newest backfill."""
    dropped: dict[tuple[str, str], Dropped] = field(default_factory=dict)
    """(table, shard) → the watermark up to which the table was last known to be whole."""
    _waiting: dict[tuple[str, str], None] | None = field(default=None, repr=False, compare=False)

    @property
    def waiting(self) -> Collection[tuple[str, str]]:
        """Of which voids the floor is awaited: few of all, since those of dropped tables stay for ever."""
        if self._waiting is None:
            self._waiting = {scope: None for scope, void in self.voids.items() if not void.floor}
        return self._waiting

    def void(self, voids: Mapping[tuple[str, str], Void]) -> None:
        """Adds voids, in place of earlier ones."""
        self.voids.update(voids)
        if self._waiting is not None:
            for scope, void in voids.items():
                if void.floor:
                    self._waiting.pop(scope, None)
                else:
                    self._waiting[scope] = None

    def copy(self) -> Head:
        """A copy that later changes of this head don't reach."""
        return Head(
            self.offset,
            self.layout,
            dict(self.lineages),
            dict(self.voids),
            dict(self.topologies),
            dict(self.scopes),
            self.begin,
            dict(self.backfills),
            dict(self.dropped),
            dict(self._waiting) if self._waiting is not None else None,
        )


class Changes(NamedTuple):
    """What ``messages`` messages, folded together, change. ``offset`` is the next to fold.

    ``gone``: keys whose entries go if they are not in ``entries``; one that ends in a zero byte stands for all that
    begin with it. ``lineages``, ``voids``, ``topologies``, ``scopes``, ``backfills`` and ``dropped`` hold only those
    that change.
    """

    offset: int
    entries: Mapping[bytes, bytes]
    lineages: dict[str, Lineage] = {}  # noqa: RUF012 - never mutated: Changes are read-only values
    voids: dict[tuple[str, str], Void] = {}  # noqa: RUF012
    layout: str = ""
    rejections: tuple[Rejection, ...] = ()
    messages: int = 1
    topologies: dict[str, Topology] = {}  # noqa: RUF012
    scopes: dict[str, Scope] = {}  # noqa: RUF012
    backfills: dict[tuple[str, str], Backfill] = {}  # noqa: RUF012
    dropped: dict[tuple[str, str], Dropped] = {}  # noqa: RUF012
    gone: tuple[bytes, ...] = ()

    def put_into(self, entries: dict[bytes, bytes]) -> None:
        """Changes ``entries``, which has all of them."""
        for each in self.gone:
            under = [key for key in entries if key.startswith(each)] if each.endswith(b"\0") else [each]
            for key in under:
                entries.pop(key, None)
        entries.update(self.entries)


WRITERS_MAX = 1 << 16
"""Keys of a partition whose writer is kept in memory: about 10 MB."""
WRITTEN_KEY_MAX = 256
"""Bytes of such a key. Longer ones are looked up each time."""


class Writers:
    """Which shard alone may have an entry of a key, of the keys seen last. It saves looking them up for each run."""

    def __init__(self) -> None:
        self._keys: dict[bytes, dict[bytes, None]] = {}
        """By shard; each key is of one shard at most."""

    def unknown(self, keys: set[bytes], shard: bytes) -> set[bytes] | None:
        """The keys of which nothing is known; None if another shard is known to have one of them."""
        unknown = keys.difference(self._keys.get(shard, {}))
        others = (known for name, known in self._keys.items() if name != shard)
        return unknown if all(known.keys().isdisjoint(unknown) for known in others) else None

    def learn(self, keys: Iterable[bytes], shard: bytes) -> None:
        """Each of ``keys`` has an entry of ``shard`` or none. Of the shard with most keys the oldest make room."""
        own = self._keys.setdefault(shard, {})
        own.update((key, None) for key in keys if len(key) <= WRITTEN_KEY_MAX)
        while (over := sum(map(len, self._keys.values())) - WRITERS_MAX) > 0:
            most = max(self._keys.values(), key=len)
            for key in list(islice(most, over)):
                del most[key]

    def clear(self) -> None:
        """Any key may be any shard's now."""
        self._keys.clear()

    def forget(self, keys: Iterable[bytes]) -> None:
        """The entries of ``keys`` may be any shard's now."""
        for key in keys if self._keys else ():
            for known in self._keys.values():
                known.pop(key, None)


@dataclass(slots=True)
class PartitionState:
    """The state of one partition as the fold sees it: its head, and a look-up of entries."""

    head: Head
    lookup: Lookup
    look_up_begins: Callable[[list[bytes]], list[bytes | None]] | None = None
    writers: Writers = field(default_factory=Writers)

    def begins(self, keys: list[bytes]) -> list[bytes | None]:
        """How the entry of each row key begins, at least up to its shard; None if it has none."""
        return self.look_up_begins(keys) if self.look_up_begins is not None else list(map(self.lookup, keys))

    def apply(self, changes: Changes) -> None:
        """Applies the changes to the head. The caller must have made the entries visible to ``lookup`` before."""
        head = self.head
        if isinstance(changes.entries, dict):  # of the plain fold: by column, each key stays its shard's
            self.writers.forget(changes.entries)
        if changes.voids:
            head.void(changes.voids)
        if changes.layout:
            head.layout = changes.layout
        if changes.lineages:
            head.lineages.update(changes.lineages)
        if changes.topologies:
            head.topologies.update(changes.topologies)
            self.writers.clear()  # by a map nobody learns who writes a key
        if changes.scopes:
            head.scopes.update(changes.scopes)
        if changes.backfills:
            head.backfills.update(changes.backfills)
        if changes.dropped:
            head.dropped.update(changes.dropped)
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


def schema_key(table: str, shard: str) -> bytes:
    """Store key of what a shard says of a row table."""
    return SCHEMA_PREFIX + table.encode() + b"\0" + shard.encode()


def head_entries(head: Head, since: Head | None = None) -> dict[bytes, bytes]:
    """The head as store entries. ``since``: an earlier head, without what is there as it is now."""
    before = since or Head()
    entries = {
        OFFSET_KEY: _json(head.offset),
        BEGIN_KEY: _json(head.begin),
        LAYOUT_KEY: head.layout.encode(),
        FOLD_KEY: _json(FOLD_VERSION),
    }
    for shard, lineage in _changed(head.lineages, before.lineages):
        entries[lineage_key(shard)] = _json(lineage)
    for (table, shard), void in _changed(head.voids, before.voids):
        entries[void_key(table, shard)] = _json(void)
    for shard, topology in _changed(head.topologies, before.topologies):
        entries[TOPOLOGY_PREFIX + shard.encode()] = _json(topology)
    for shard, scope in _changed(head.scopes, before.scopes):
        entries[SCOPE_PREFIX + shard.encode()] = _json(scope)
    for (table, shard), backfill in _changed(head.backfills, before.backfills):
        entries[BACKFILL_PREFIX + table.encode() + b"\0" + shard.encode()] = _json(backfill)
    for (table, shard), line in _changed(head.dropped, before.dropped):
        entries[DROPPED_PREFIX + table.encode() + b"\0" + shard.encode()] = _json(line)
    return entries


def moving_entries(head: Head) -> int:
    """How many entries of a head are written by nearly each commit."""
    return len(_SINGLE) + len(head.lineages)


def lasting_entries(head: Head) -> int:
    """How many others it has."""
    return len(head.voids) + len(head.topologies) + len(head.scopes) + len(head.backfills) + len(head.dropped)


def _changed(now: dict[K, V], before: dict[K, V]) -> Iterable[tuple[K, V]]:
    """Values are replaced, never changed, and none is ever removed."""
    return [each for each in now.items() if before.get(each[0]) is not each[1]] if before else now.items()


def is_head_key(key: bytes) -> bool:
    """Whether `head_entries` writes this key. Descriptions, names and schema texts are looked up like rows."""
    return key in _SINGLE or key.startswith(_IN_HEAD)


_SINGLE = frozenset({OFFSET_KEY, BEGIN_KEY, LAYOUT_KEY, FOLD_KEY})
_IN_HEAD = (LINEAGE_PREFIX, VOID_PREFIX, TOPOLOGY_PREFIX, SCOPE_PREFIX, BACKFILL_PREFIX, DROPPED_PREFIX)
_LINEAGE = (int, int, int, str, int, str, int, int)
_BACKFILL = (int, int, int, str, int)
_DROPPED = (int, int, str, int, int)


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


def _read_topology(values: Any) -> Topology:
    epoch, ordinal, shards, ancestors, succeeded, ranges = _typed(values, (int, int, list, dict, dict, list))
    _typed(shards, (str,) * len(shards))
    for each in ranges:
        _typed(each, (str, str))
    found = tuple((shard, text) for shard, text in ranges)
    if found:
        map_of(found)
    for epochs in (ancestors, succeeded):
        _typed(list(epochs.values()), (int,) * len(epochs))
    return Topology(epoch, ordinal, tuple(shards), ancestors, succeeded, found)


def read_head(items: Iterable[tuple[bytes, bytes]]) -> Head:
    """The head in a store's META entries. Raises ``ValueError`` or ``TypeError`` if they are damaged."""
    head = Head()
    for key, value in items:
        if key == OFFSET_KEY:
            [head.offset] = _typed([_loads(value)], (int,))
        elif key == BEGIN_KEY:
            [head.begin] = _typed([_loads(value)], (int,))
        elif key == LAYOUT_KEY:
            head.layout = value.decode()
        elif key.startswith(LINEAGE_PREFIX):
            head.lineages[key[len(LINEAGE_PREFIX) :].decode()] = Lineage(*_typed(_loads(value), _LINEAGE))
        elif key.startswith(VOID_PREFIX):
            table, _, shard = key[len(VOID_PREFIX) :].partition(b"\0")
            head.voids[table.decode(), shard.decode()] = Void(*_typed(_loads(value), (int, int, str)))
        elif key.startswith(TOPOLOGY_PREFIX):
            head.topologies[key[len(TOPOLOGY_PREFIX) :].decode()] = _read_topology(_loads(value))
        elif key.startswith(SCOPE_PREFIX):
            head.scopes[key[len(SCOPE_PREFIX) :].decode()] = Scope(*_typed(_loads(value), (int, int)))
        elif key.startswith(BACKFILL_PREFIX):
            table, _, shard = key[len(BACKFILL_PREFIX) :].partition(b"\0")
            head.backfills[table.decode(), shard.decode()] = Backfill(*_typed(_loads(value), _BACKFILL))
        elif key.startswith(DROPPED_PREFIX):
            table, _, shard = key[len(DROPPED_PREFIX) :].partition(b"\0")
            head.dropped[table.decode(), shard.decode()] = Dropped(*_typed(_loads(value), _DROPPED))
    return head
