"""Which rows of a chunk may be published where. Pure.

A chunk lies between two positions: it has every change up to ``lo`` and none after ``hi``. The keys that the binlog
changes are noted from a position on that ``lo`` covers. So where the source has read past ``hi``, a row of the chunk
whose key was not noted is the row as it is there, and is published there. The others are left out: their changes were
published (docs/decisions/0017).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, Final, NamedTuple, cast

from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.status import CURSORS
from stream.wire.events import (
    EVERY_TABLE,
    BackfillTable,
    BeginScope,
    Change,
    DescribeTable,
    ResumePoint,
    RowChange,
    RowImages,
    SourceTransaction,
    VoidTable,
)
from stream.wire.records import ROW_OVERHEAD

KEYS_MAX: Final = 100_000
"""Changed keys that are noted. Above, the chunks that were read ahead are dropped, and read again."""
CURSOR_CHARS_MAX: Final = 4_000
"""Of all cursors together."""
PIECE_BYTES: Final = 12 * 1024
"""Bytes of rows in one transaction: fewer than in the smallest batch, so that none is split over two of them."""
PIECE_BYTES_MAX: Final = 128 * 1024
"""The same where batches are large. A change waits for the piece before it."""


def piece_bytes(batch_bytes: int) -> int:
    """Bytes of rows in one transaction, where batches have so many."""
    return max(PIECE_BYTES, min(batch_bytes // 2, PIECE_BYTES_MAX))


_UNORDERED: Final = frozenset({"enum", "set"})
"""Kinds whose values compare with a text in another order than they are sorted in."""


class After(NamedTuple):
    """A key, canonical values, after which the next rows come.

    ``turned``: the columns whose greatest values come first. They are those of the index with which a table's first
    chunk was read. A table that gets another index is read in the same order to its end, or rows would be left out.
    """

    key: Sequence[object]
    turned: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a table in the order of its key, as one snapshot has them.

    ``last``: the last row's key, after which the next chunk begins; None if the table ends here, or if only some keys
    were read. ``held``: who keeps it from having more, as long as somebody else does not end that.
    """

    described: DescribeTable
    rows: Sequence[RowChange]
    lo: GtidPosition
    hi: GtidPosition
    last: After | None
    held: str = ""

    def follows(self, since: GtidPosition) -> bool:
        """Whether it has everything up to ``since``, from where on the changed keys are noted."""
        return self.lo.covers(since)


class Cursor(NamedTuple):
    """How far a table is: the key up to which its rows are published (None: none is), and how many were read."""

    after: After | None = None
    rows: int = 0

    @classmethod
    def told(cls, words: Sequence[Any]) -> Cursor:
        """The cursor of `words`."""
        key, rows, *other = words
        after = After(*other) if other else None if key is None else After(key)
        return cls(after, rows)

    @property
    def words(self) -> Sequence[object]:
        """As the source's state has it. A source that knows of no columns in another direction begins anew there."""
        if self.after is None or not self.after.turned:
            return self.after and self.after.key, self.rows
        return None, self.rows, *self.after


@dataclass(slots=True)
class Plan:
    """How far the backfill of a shard's tables is, and which keys changed meanwhile."""

    complete: set[str] = field(default_factory=set)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    """The tables that have begun and are not complete."""
    table: str = ""
    """The one whose rows are read now; "": none."""
    since: GtidPosition | None = None
    """Where the noting of its changed keys began."""
    lost: set[str] = field(default_factory=set)
    """Tables of which what was published does not count any more. Whoever reads it clears it."""
    piece_bytes: int = PIECE_BYTES
    """Bytes of rows in one transaction, at most."""
    _epoch: int = 0
    _prefix: bytes = b""
    _changed: set[bytes] = field(default_factory=set)

    @classmethod
    def resume(cls, point: ResumePoint, piece_bytes: int = PIECE_BYTES) -> Plan:
        """What the topic says."""
        plan = cls(set(point.complete), piece_bytes=piece_bytes, _epoch=point.epoch)
        epoch, cursors, *_ = json.loads(point.annotations.get(CURSORS, "[0, {}]"))
        if epoch == point.epoch:
            plan.cursors = {table: Cursor.told(at) for table, at in cursors.items() if table in point.descriptions}
        return plan

    @property
    def annotations(self) -> Mapping[str, str]:
        """The words that `resume` takes up. A restart begins a table anew that they have no room for."""
        kept, left = {}, CURSOR_CHARS_MAX
        for table, cursor in self.cursors.items():
            size = len(json.dumps([table, cursor.words], ensure_ascii=False))
            if size <= left:
                kept[table] = cursor.words
                left -= size
        return {CURSORS: json.dumps([self._epoch, kept], ensure_ascii=False) if kept else ""}

    def begin(self, table: str, position: str, timestamp: int) -> SourceTransaction:
        """Begin with a table, perhaps once more. Returns the transaction that says so."""
        self.complete.discard(table)
        self.cursors[table] = Cursor()
        return SourceTransaction(position, position, timestamp, [BackfillTable(table, complete=False)])

    def empty(self, table: str, position: str, timestamp: int) -> Iterator[SourceTransaction]:
        """Begin with a table that is not there at ``position``, and complete it: it has no rows."""
        yield self.begin(table, position, timestamp)
        yield SourceTransaction(position, position, timestamp, [BackfillTable(table, complete=True)])
        self.complete.add(table)
        del self.cursors[table]

    def take_up(self, table: str, position: str) -> None:
        """Go on with a table that has begun. Its rows may be read from this position on."""
        self.table, self.since, self._prefix = table, GtidPosition.parse(position), table.encode() + b"\0"
        self._changed.clear()

    def put_aside(self) -> None:
        """Read nothing for now. What was read and is not published does not count."""
        self.table, self.since = "", None

    def notice(self, transaction: SourceTransaction) -> bool:
        """Note what is about to be published. Returns whether the progress of a table is lost by it."""
        begun = len(self.cursors)
        count, names = rows_and_tables(transaction.changes)
        if names:
            self._notice_tables(names)
        if self.since is not None and count:
            self._note_keys(cast("Sequence[RowChange]", transaction.changes), count)
        return len(self.cursors) < begun

    def _notice_tables(self, names: set[str]) -> None:
        known = {*self.cursors, *self.complete}
        lost = known if EVERY_TABLE in names else known & names
        self.lost |= lost
        self.complete -= lost
        if self.table in lost:
            self.put_aside()
        for table in lost & self.cursors.keys():
            del self.cursors[table]

    def _note_keys(self, changes: Sequence[RowChange], count: int) -> None:
        if len(self._changed) + count > KEYS_MAX:
            self.put_aside()
            return
        prefix, changed = self._prefix, self._changed
        for at in range(count):
            key = changes[at].key
            if key.startswith(prefix):
                changed.add(key)

    def unchanged(self, chunk: Chunk) -> Sequence[RowChange]:
        """The rows of a chunk that did not change since it was read."""
        if isinstance(chunk.rows, RowImages):
            return chunk.rows.without(self._changed)
        return [row for row in chunk.rows if row.key not in self._changed]

    def publish(self, chunk: Chunk, position: str, timestamp: int) -> Iterator[SourceTransaction]:
        """The transactions that publish a chunk at ``position``, which is at or past its ``hi``."""
        pieces = in_pieces(self.unchanged(chunk), self.piece_bytes)
        if chunk.last is None:
            pieces.append([BackfillTable(self.table, complete=True)])
        yield from (SourceTransaction(position, position, timestamp, piece) for piece in pieces)
        if chunk.last is None:
            self.complete.add(self.table)
            del self.cursors[self.table]
            self.put_aside()
        else:
            self.cursors[self.table] = Cursor(chunk.last, self.cursors[self.table].rows + len(chunk.rows))


def rows_and_tables(changes: Sequence[Change]) -> tuple[int, set[str]]:
    """How many rows a transaction has, which come first; and the tables that it voids or describes behind them."""
    count, tables = len(changes), set()
    while count and type(changes[count - 1]) is not RowChange:
        count -= 1
        match changes[count]:
            case VoidTable(table, _) | DescribeTable(table=table):
                tables.add(table)
            case BeginScope():
                tables.add(EVERY_TABLE)
    return count, tables


def in_pieces(rows: Sequence[RowChange], most: int = PIECE_BYTES) -> list[Sequence[Change]]:
    """Rows as the changes of transactions of ``most`` bytes, or of one row."""
    if isinstance(rows, RowImages):
        sizes = list(map(add, map(len, rows.keys), map(len, rows.images)))
    else:
        sizes = [len(row.key) + len(row.image) for row in rows]
    pieces: list[Sequence[Change]] = []
    start = taken = 0
    for at, size in enumerate(sizes):
        if at > start and taken + size + ROW_OVERHEAD > most:
            pieces.append(rows[start:at])
            start, taken = at, 0
        taken += size + ROW_OVERHEAD
    return [*pieces, rows[start:]] if sizes else pieces


def unfit(described: DescribeTable) -> str:
    """Why a table can't be read in chunks; "" if it can."""
    if not described.cacheable:
        return described.reason or "it may not be cached"
    if not described.primary_key:
        return "it has no primary key"
    kinds = {column.name: column.kind for column in described.columns}
    unordered = [name for name in described.primary_key if kinds.get(name) in _UNORDERED]
    return f"its key column {unordered[0]} is of kind {kinds[unordered[0]]}" if unordered else ""


def left_tables(plan: Plan, described: Iterable[DescribeTable]) -> list[str]:
    """The tables that are still to be read, out of those that are wanted, in order: first those that have begun."""
    left = [each.table for each in described if each.table not in plan.complete and not unfit(each)]
    return sorted(left, key=lambda table: (table not in plan.cursors, table))
