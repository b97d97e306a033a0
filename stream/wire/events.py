"""What a source hands to the publisher: transactions of changes, as plain fast values.

Pure: no I/O, no clock. Positions and GTIDs are canonical text with their flavor (``MariaDB/0-1-5``);
timestamps are source seconds since 1970. Ordinals and epochs are the publisher's, not the source's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

VALUE = 1
"""Row operation: the image after the transaction is known."""
ABSENT = 2
"""Row operation: the row was deleted; it is known to be absent."""
VOID = 3
"""Row operation: the row changed, its image is not known."""


@dataclass(slots=True)
class RowChange:
    """The final image of one key in one transaction. ``image`` is empty unless ``operation`` is VALUE."""

    key: bytes
    operation: int
    image: bytes = b""


@dataclass(slots=True)
class VoidTable:
    """Range tombstone for a table (``*``: for every table of the shard)."""

    table: str
    reason: str


@dataclass(slots=True, frozen=True)
class Column:
    """A column as `TableSchema.avsc` describes it."""

    name: str
    kind: str
    exact: bool


@dataclass(slots=True, frozen=True)
class DescribeTable:
    """The columns and key of a row table, valid from here on."""

    table: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    cacheable: bool = True
    reason: str = ""


@dataclass(slots=True)
class AllocateWriteId:
    """A write id was given to a transaction."""

    table_id: int
    txn: int
    write_id: int
    reallocated: bool = False


@dataclass(slots=True)
class TableImage:
    """A table as stored at the source, or the news that it was written; fields as in `TableImage.avsc`."""

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
    """Which id a table name stands for; 0 for none."""

    name: str
    table_id: int
    previous_name: str = ""


Change: TypeAlias = (
    RowChange
    | VoidTable
    | DescribeTable
    | AllocateWriteId
    | TableImage
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
    """One whole transaction of the source, in source order, coalesced: at most one RowChange a key.

    ``gtid`` is its own, ``position`` the set after it. ``changes`` may be empty (the position still
    moves). ``opened`` / ``closed`` change the map of open catalog transactions that the publisher keeps
    for the source across restarts. ``table_choice`` is the fingerprint of the tables that the transaction describes;
    0: it is what it was.
    """

    gtid: str
    position: str
    timestamp: int
    changes: list[Change] = field(default_factory=list)
    origin: str = ""
    opened: tuple[OpenTransaction, ...] = ()
    closed: tuple[int, ...] = ()
    table_choice: int = 0


@dataclass(slots=True)
class ResumePoint:
    """What the topic says about a shard when its publisher starts.

    The source must continue right after ``position``; of the transaction ``partial_gtid`` the first
    ``partial_events`` events are already out and the publisher skips them: ask the source for the whole
    transaction. ``ordinal`` is the last one given out. ``table_choice`` as last published, 0 for none.
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

    def copy(self) -> ResumePoint:
        """The same point, with a map of its own."""
        return ResumePoint(
            self.shard,
            self.epoch,
            self.ordinal,
            self.position,
            self.timestamp,
            self.low_water,
            self.partial_gtid,
            self.partial_events,
            self.sequence,
            dict(self.open_transactions),
            self.table_choice,
        )
