"""What a source hands to the publisher: transactions of changes, as plain values. Pure: no I/O, no clock.

Positions and GTIDs are canonical text with their flavor (``MariaDB/0-1-5``). Timestamps are source seconds since 1970.
Ordinals and epochs are assigned by the publisher, not by the source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, overload

VALUE = 1
"""Row operation: the image after the transaction is known."""
ABSENT = 2
"""Row operation: the row was deleted; it is known to be absent."""
VOID = 3
"""Row operation: the row changed, its image is unknown."""
NO_ROW = b""
"""In place of the image of before: there was no such row. No image is empty."""


EVERY_TABLE = "*"
"""Table name of a `VoidTable` for every table of the shard."""

DROPS_KEPT = 8
"""Of each set of catalog objects so many dropped ones keep an entry (`consumers.fold.objects`)."""


@dataclass(slots=True)
class RowChange:
    """The final image of one key in one transaction. ``image`` is empty unless ``operation`` is VALUE.

    ``before``: the image before the transaction; empty: there was no such row; None: it is not known, or not wanted.
    """

    key: bytes
    operation: int
    image: bytes = b""
    before: bytes | None = None


KEYLESS_OPERATIONS = ("inserted", "updated", "deleted")
"""What may happen to a `KeylessRow`."""


@dataclass(slots=True)
class KeylessRow:
    """A change of a row that no key names: all of them are told, in their order. Empty images: there is no row.

    ``operation``: one of `KEYLESS_OPERATIONS`.
    """

    table: str
    operation: str
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class RowImages(Sequence[RowChange]):
    """Rows of one table, all with their images, as two columns. A `RowChange` is made of each that is asked for."""

    table: str
    keys: list[bytes]
    images: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of all keys and images."""
        return sum(map(len, self.keys)) + sum(map(len, self.images))

    def without(self, keys: Collection[bytes]) -> RowImages:
        """All rows but those of ``keys``, a set."""
        if not keys or not any(key in keys for key in self.keys):
            return self
        left = [pair for pair in zip(self.keys, self.images, strict=True) if pair[0] not in keys]
        return RowImages(self.table, [key for key, _ in left], [image for _, image in left])

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[RowChange]:
        return (RowChange(key, VALUE, image) for key, image in zip(self.keys, self.images, strict=True))

    @overload
    def __getitem__(self, index: int) -> RowChange: ...

    @overload
    def __getitem__(self, index: slice) -> RowImages: ...

    def __getitem__(self, index: int | slice) -> RowChange | RowImages:
        if isinstance(index, slice):
            return RowImages(self.table, self.keys[index], self.images[index])
        return RowChange(self.keys[index], VALUE, self.images[index])


@dataclass(slots=True)
class VoidTable:
    """Range tombstone for a table, or for `EVERY_TABLE`. ``reason``: one line for people."""

    table: str
    reason: str


@dataclass(slots=True, frozen=True)
class BackfillTable:
    """All rows of a table follow, beside its changes; ``complete``: since that was said, all of them were published."""

    table: str
    complete: bool


@dataclass(slots=True, frozen=True)
class Column:
    """A column as `TableSchema.avsc` describes it.

    ``sql_type``: as the source has it; "": unknown. Columns that differ in nothing else are equal: their values are.
    """

    name: str
    kind: str
    exact: bool
    sql_type: str = field(default="", compare=False)


@dataclass(slots=True, frozen=True)
class DescribeTable:
    """The columns and key of a row table, valid from here on."""

    table: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    cacheable: bool = True
    reason: str = ""
    prefix: int = 0

    @property
    def sql_types(self) -> tuple[str, ...]:
        """Those of its columns, in which equal descriptions may differ."""
        return tuple(column.sql_type for column in self.columns)


@dataclass(slots=True, frozen=True)
class BeginScope:
    """From here on only tables described after it are published. ``tables``: the choice as given, for display."""

    tables: tuple[str, ...]


@dataclass(slots=True)
class AllocateWriteId:
    """A write id was given to a transaction."""

    table_id: int
    txn: int
    write_id: int
    reallocated: bool = False


@dataclass(slots=True)
class TableImage:
    """A table as stored at the source, or the notice that it was written; fields as in `TableImage.avsc`."""

    table_id: int
    name: str
    kind: str
    change: str
    txn: int = 0
    write_id: int = 0
    staged: bool = False
    image: bytes | None = None
    write_ids: str | None = None
    lo: str = ""
    hi: str = ""
    struct: bytes | None = None


@dataclass(slots=True)
class ObjectImage:
    """A catalog object other than a table; fields as in `CatalogObject.avsc`, ``name`` in parts."""

    kind: str
    table_id: int
    name: tuple[str, ...]
    change: str
    image: bytes | None = None
    struct: bytes | None = None
    lo: str = ""
    hi: str = ""


@dataclass(slots=True)
class ObjectSet:
    """What is known of all objects of a kind; fields as in `CatalogSet.avsc`."""

    kind: str
    table_id: int
    change: str
    lo: str = ""
    reason: str = ""


@dataclass(slots=True)
class CommitTransaction:
    """A catalog transaction committed; ``write_ids`` are (table id, write id) pairs."""

    txn: int
    write_ids: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class AbortTransaction:
    """A catalog transaction aborted; ``write_ids`` are (table id, write id) pairs."""

    txn: int
    write_ids: tuple[tuple[int, int], ...]
    reconciled: bool = False


@dataclass(slots=True)
class ResetWriteIds:
    """The server's own list replaces the folded one; ``committed`` as in `WriteIdsReset.avsc`."""

    table_id: int
    write_ids: str
    committed: bool | None = None


@dataclass(slots=True)
class BindName:
    """Binds a table name to a table id; 0: the name has no table."""

    name: str
    table_id: int
    previous_name: str = ""


Change: TypeAlias = (
    RowChange
    | KeylessRow
    | VoidTable
    | BackfillTable
    | DescribeTable
    | BeginScope
    | AllocateWriteId
    | TableImage
    | ObjectImage
    | ObjectSet
    | CommitTransaction
    | AbortTransaction
    | ResetWriteIds
    | BindName
)


@dataclass(slots=True)
class OpenTransaction:
    """A source transaction that is open: what it allocated and wrote so far."""

    txn: int
    write_ids: tuple[tuple[int, int], ...] = ()
    seen_open: bool = True
    wrote: tuple[int, ...] = ()


@dataclass(slots=True)
class SourceTransaction:
    """One whole transaction of the source, coalesced: at most one RowChange for each key.

    ``gtid`` is its own, ``position`` the set after it. ``changes`` may be empty; the position still moves. ``opened``
    and ``closed`` update the map of open catalog transactions, which the publisher keeps across restarts.
    ``table_choice`` is the fingerprint of the choice of tables that the transaction describes; 0: unchanged.
    ``checksum`` of its changes and ``cursor`` (where to read it again) are the source's own; 0 and "": unknown.
    """

    gtid: str
    position: str
    timestamp: int
    changes: Sequence[Change] = field(default_factory=list)
    origin: str = ""
    opened: tuple[OpenTransaction, ...] = ()
    closed: tuple[int, ...] = ()
    table_choice: int = 0
    checksum: int = 0
    cursor: str = ""

    @property
    def count(self) -> int:
        """How many transactions it is: one, if it is no run of them."""
        return 1


@dataclass(frozen=True, slots=True)
class Rows(Sequence[RowChange]):
    """Rows as columns. A `RowChange` is made of each that is asked for."""

    keys: list[bytes]
    operations: bytearray
    images: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> RowChange: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: int | slice) -> RowChange | Rows:
        if isinstance(index, slice):
            return Rows(self.keys[index], self.operations[index], self.images[index])
        return RowChange(self.keys[index], self.operations[index], self.images[index])


@dataclass(slots=True)
class SingleRows(SourceTransaction):
    """A run of transactions that each change one row, given at once.

    What it says as a whole is that of the last one, and ``changes``, a `Rows`, are those of all. ``before``: the
    position before the first. ``checksum_of``: by the number of a transaction, from 0 on.
    """

    gtids: list[str] = field(default_factory=list)
    positions: list[str] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    before: str = ""
    checksum_of: Callable[[int], int] = field(default=lambda _: 0, compare=False)

    @property
    def count(self) -> int:
        return len(self.gtids)

    @property
    def rows(self) -> Rows:
        """The changes."""
        assert type(self.changes) is Rows
        return self.changes

    def each(self) -> Iterator[SourceTransaction]:
        """The transactions, one after the other."""
        cursor, columns = self.before, zip(self.gtids, self.positions, self.timestamps, self.rows, strict=True)
        for number, (gtid, position, timestamp, change) in enumerate(columns):
            checksum = self.checksum_of(number)
            yield SourceTransaction(gtid, position, timestamp, [change], checksum=checksum, cursor=cursor)
            cursor = position


@dataclass(slots=True, frozen=True)
class Topology:
    """The shards of the keyspace, and the ancestors (shard, epoch) whose positions are positions of this shard.

    ``succeeded``: ancestors of earlier epochs. They are over, but their positions have no meaning in this epoch.
    ``ranges``: (shard, text of its range) of the keyspace's map (`stream.shards.map`); empty: it has none.
    """

    shards: tuple[str, ...]
    ancestors: tuple[tuple[str, int], ...] = ()
    succeeded: tuple[tuple[str, int], ...] = ()
    ranges: tuple[tuple[str, str], ...] = ()

    def fields(self) -> dict[str, Any]:
        """The fields of a `Topology` record."""
        return {
            "shards": sorted(self.shards),
            "ancestors": [{"shard": shard, "epoch": epoch} for shard, epoch in self.ancestors],
            "succeeded": [{"shard": shard, "epoch": epoch} for shard, epoch in self.succeeded],
            "ranges": [{"shard": shard, "range": text} for shard, text in self.ranges],
        }

    def in_a_new_epoch(self) -> Topology:
        """The topology of the epoch that replaces this one's: its ancestors stay over."""
        over: dict[str, int] = {}
        for shard, epoch in (*self.succeeded, *self.ancestors):
            over[shard] = max(epoch, over.get(shard, 0))
        return Topology(self.shards, (), tuple(sorted(over.items())), self.ranges)


@dataclass(slots=True)
class ResumePoint:
    """Where the publisher of a shard resumes, as read from the topic.

    The source must continue right after ``position``. If ``partial_gtid`` is set, the first ``partial_events`` events
    of that transaction are already published: the source must still send all of it, and the publisher skips them.
    ``ordinal`` is the last one assigned. ``table_choice`` is the last one published, or 0. ``checksum`` and ``cursor``
    are of the last whole transaction. ``declared_at``: from which offset of the home partition everything is declared.
    """

    shard: str
    epoch: int
    ordinal: int
    position: str
    timestamp: int
    low_water: str
    partial_gtid: str = ""
    partial_events: int = 0
    sequence: int = 0
    open_transactions: dict[int, OpenTransaction] = field(default_factory=dict)
    table_choice: int = 0
    cursor: str = ""
    annotations: dict[str, str] = field(default_factory=dict)
    checksum: int = 0
    declared_at: int = -1
    continuity: int = 0
    descriptions: dict[str, DescribeTable] = field(default_factory=dict)
    """Table → its last description, of a point that `Publisher.open` returned: what is next is read with these."""
    complete: frozenset[str] = frozenset()
    """The tables whose backfill is complete, of a point that `Publisher.open` returned."""
    names: dict[str, int] = field(default_factory=dict)
    """Name of a catalog table → its id, of a point that `Publisher.open` returned."""

    def copy(self) -> ResumePoint:
        """A copy with its own map of open transactions."""
        return replace(self, open_transactions=dict(self.open_transactions), annotations=dict(self.annotations))
