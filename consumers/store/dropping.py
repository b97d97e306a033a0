"""The entries that a store drops, so that a whole table takes the space of its rows, not of its history.

They are its tombstones, and what it held before a void (a TRUNCATE, a new epoch) after which it is whole again.
Which ones may go is said by the head that is committed with them (`consumers.fold.backfills.Drops`). Those of the
memtable are not written. Those that lie in RocksDB already, because the table was not whole yet or no marker covered
them, are swept: each commit looks at some of the table's rows. How far the sweep has come, and the newest tombstone of
each table that was dropped, is written with the commit (docs/decisions/0025-tombstones-of-whole-tables.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from consumers.fold.backfills import (
    Drops,
    awaits_a_watermark,
    may_be_dropped,
    may_change_whole_tables,
    whole_tables,
)
from consumers.fold.entry import ABSENT, Entry
from consumers.fold.state import Backfill, Head
from consumers.store.errors import StoreCorruptError
from consumers.store.index import INDEX
from stream.wire.keys import SEPARATOR

NOTE: Final = INDEX + SEPARATOR + b"dropped"
"""Where `Dropping.note` lies: among what is no folded state."""
SWEPT_TOGETHER: Final = 50_000
"""Rows in RocksDB that one commit looks at. It is a tenth of a second or so, beside the fold."""
_END: Final = b"\x01"
"""Behind a table's name: after all of its keys."""


class LastDropped(NamedTuple):
    """The newest tombstone of a table and a shard that was dropped."""

    epoch: int
    ordinal: int
    position: str


class Sweep(NamedTuple):
    """How far the rows of a table were looked at since its backfill. ``after``: in hex, where to go on."""

    shard: str
    epoch: int
    complete: int
    after: str
    is_over: bool


class Whole(NamedTuple):
    """The whole tables of a head: each with its backfill, and their shards by name and separator."""

    head: Head
    tables: Mapping[tuple[str, str], Backfill] = {}
    shards: Mapping[bytes, set[str]] = {}
    may_grow: bool = False
    """With the next marker, though nothing else changes."""


class Scanned(Protocol):
    """The part of `consumers.store.rocks.database.Rocks` that is needed here."""

    def get(self, key: bytes) -> bytes | None: ...
    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]: ...


class Frozen(Protocol):
    """The part of `consumers.store.memtable.Memtable` that is needed here."""

    def get(self, key: bytes) -> bytes | None: ...
    def between(self, start: bytes, end: bytes) -> list[bytes]: ...
    def tombstones(self) -> list[tuple[bytes, bytes]]: ...
    def __contains__(self, key: object) -> bool: ...


class Dropping:
    """What a store has dropped, and what it drops next. For the thread that commits; others may ask for `last`."""

    def __init__(self, rocks: Scanned) -> None:
        self._rocks = rocks
        self._last: dict[tuple[str, str], LastDropped] = {}
        self._sweeps: dict[tuple[str, str], Sweep] = {}
        """(table, shard) → how far it is. Each looks at the rows of all shards."""
        self._left: set[bytes] = set()
        """Keys whose tombstones are in RocksDB and not covered by a marker yet."""
        self._next = self._sweeps, self._left
        self._whole = Whole(Head())
        """Of the last head. Tables are many, and the same ones are whole for long."""
        self._swept: tuple[Whole, dict[tuple[str, str], Sweep]] | None = None
        """Whole tables, and sweeps that are over, and of no others."""
        self._noted: tuple[dict[tuple[str, str], Sweep], set[str]] | None = None
        """What the note in RocksDB says of sweeps; None: perhaps another one is there."""
        self._next_noted: tuple[dict[tuple[str, str], Sweep], set[str]] | None = None
        self._read()

    def last(self, table: str, shard: str) -> LastDropped | None:
        """The newest tombstone of ``table`` that was dropped. Ask after a look at an entry: it is told before."""
        return self._last.get((table, shard))

    def to_drop(self, head: Head, frozen: Frozen) -> set[bytes]:
        """The keys that a commit of ``frozen``, with ``head``, leaves without an entry."""
        whole = self._whole_in(head)
        drops, due, sweeps = Drops(head), list[tuple[str, str]](), self._sweeps
        if self._swept is None or self._swept[0] is not whole or self._swept[1] is not sweeps:
            sweeps = {scope: sweep for scope, sweep in sweeps.items() if scope in whole.tables}
            due = [scope for scope, backfill in whole.tables.items() if not self._sweep_of(scope, backfill).is_over]
            self._swept = None if due else (whole, sweeps)
        left = set[bytes]()
        self._next = sweeps, left
        if not (drops and (whole.tables or head.dropped)):
            return set()
        gone: dict[bytes, Entry] = {}
        for key, value in self._candidates(whole.tables, due, frozen, sweeps):
            entry = drops.entry(key, value)
            if entry is not None:
                gone[key] = entry
            elif value[0] == ABSENT and may_be_dropped(value, whole.shards.get(key[: key.find(SEPARATOR) + 1], ())):
                left.add(key)
        self._note_last(gone)
        return set(gone)

    def _whole_in(self, head: Head) -> Whole:
        """The same as of the head before if no other tables are whole."""
        if self._whole.may_grow or may_change_whole_tables(head, self._whole.head):
            shards: dict[bytes, set[str]] = {}
            tables = whole_tables(head)
            for table, shard in tables:
                shards.setdefault(table.encode() + SEPARATOR, set()).add(shard)
            self._whole = Whole(head, tables, shards, awaits_a_watermark(head))
        return self._whole

    def _candidates(
        self,
        whole: Mapping[tuple[str, str], Backfill],
        due: Sequence[tuple[str, str]],
        frozen: Frozen,
        sweeps: dict[tuple[str, str], Sweep],
    ) -> Iterator[tuple[bytes, bytes]]:
        """Tombstones of the memtable; those that a commit before it left; and the next rows of a sweep.

        A sweep begins with the memtable's rows, since what it looks at in RocksDB is without them.
        """
        yield from frozen.tombstones()
        for key in self._left:
            entry = self._rocks.get(key) if key not in frozen else None
            if entry is not None and entry[0] == ABSENT:
                yield key, entry
        for scope in due:
            table, sweep = scope[0], self._sweep_of(scope, whole[scope])
            start, end = bytes.fromhex(sweep.after), table.encode() + _END
            if start == table.encode() + SEPARATOR:
                for key in frozen.between(start, end):
                    if (entry := frozen.get(key)) and entry[0] != ABSENT:
                        yield key, entry
            looked, key = 0, b""
            for key, entry in islice(self._rocks.scan(start, end), SWEPT_TOGETHER):
                looked += 1
                if key not in frozen:
                    yield key, entry
            sweep = sweep._replace(is_over=looked < SWEPT_TOGETHER, after=(key + SEPARATOR).hex())
            sweeps[scope] = sweep
            if not sweep.is_over:
                return

    def _sweep_of(self, scope: tuple[str, str], backfill: Backfill) -> Sweep:
        """Where the sweep of a whole table goes on: it begins when the table becomes whole."""
        table, shard = scope
        sweep = Sweep(shard, backfill.epoch, backfill.complete, (table.encode() + SEPARATOR).hex(), is_over=False)
        held = self._sweeps.get(scope)
        return held if held is not None and held[:3] == sweep[:3] else sweep

    def _note_last(self, gone: Mapping[bytes, Entry]) -> None:
        """Tells of the newest tombstones before they go."""
        newest: dict[tuple[bytes, str], Entry] = {}
        for key, entry in gone.items():
            if entry.kind != ABSENT:
                continue  # the void says as much
            scope = key[: key.find(SEPARATOR)], entry.shard
            held = newest.get(scope)
            if held is None or (held.epoch, held.ordinal) < (entry.epoch, entry.ordinal):
                newest[scope] = entry
        for (table, shard), entry in newest.items():
            last = LastDropped(entry.epoch, entry.ordinal, entry.position)
            self._last[table.decode(), shard] = max(last, self._last.get((table.decode(), shard), last))
            self._noted = None

    def note(self) -> dict[bytes, bytes]:
        """What goes with the commit. Tables of which tombstones are left are swept again if the process dies.

        Nothing if the note in RocksDB says the same.
        """
        sweeps, left = self._next
        unfinished = {key[: key.find(SEPARATOR)].decode() for key in left}
        noted, self._noted = self._noted, None  # until it is written nobody knows which one is there
        self._next_noted = sweeps, unfinished
        if (not sweeps and not self._last) or noted == self._next_noted:
            return {}
        told = {
            "last": [[*scope, *last] for scope, last in self._last.items()],
            "sweeps": [[table, sweep] for (table, _), sweep in sweeps.items() if table not in unfinished],
        }
        return {NOTE: json.dumps(told, ensure_ascii=False).encode()}

    def written(self) -> None:
        """What `to_drop` and `note` gave is durable."""
        self._sweeps, self._left = self._next
        self._noted = self._next_noted

    def _read(self) -> None:
        told = self._rocks.get(NOTE)
        if told is None:
            return
        try:
            known = json.loads(told)
            for table, shard, epoch, ordinal, position in known["last"]:
                self._last[table, shard] = LastDropped(epoch, ordinal, position)
            sweeps = [(table, Sweep(*sweep)) for table, sweep in known["sweeps"]]
            self._sweeps = {(table, sweep.shard): sweep for table, sweep in sweeps}
        except (KeyError, TypeError, ValueError) as error:
            raise StoreCorruptError(
                f"the note of dropped tombstones is damaged: {error}", hint="the store is rebuilt"
            ) from error


def note_to_sweep_again(rocks: Scanned) -> dict[bytes, bytes]:
    """What goes with a commit of others, such as a rebuild's: whoever drops next does not know of its tombstones."""
    told = rocks.get(NOTE)
    if told is None:
        return {}
    return {NOTE: json.dumps(json.loads(told) | {"sweeps": []}, ensure_ascii=False).encode()}
