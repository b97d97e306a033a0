"""From source transactions to the records of one Kafka transaction. Pure: no I/O, no clock.

A `Framer` numbers events and routes them to partitions. For each partition it keeps columns of rows and encoded records
in source order. `Framer.take` ends the batch with one marker for each partition and the shard's `SourceState`
(docs/concepts/publishing.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from stream.shards.map import IdRange
from stream.wire.codec import Record, encode
from stream.wire.declarations import Declarations, Speaker
from stream.wire.events import (
    ABSENT,
    VALUE,
    VOID,
    AbortTransaction,
    AllocateWriteId,
    BackfillTable,
    BeginScope,
    BindName,
    Change,
    CommitTransaction,
    DescribeTable,
    KeylessRow,
    ObjectImage,
    ObjectSet,
    OpenTransaction,
    ResetWriteIds,
    ResumePoint,
    RowChange,
    RowImages,
    Rows,
    SingleRows,
    SourceTransaction,
    TableImage,
    Topology,
    VoidTable,
)
from stream.wire.frames import INT_MAX
from stream.wire.keys import SEPARATOR, KeyFormatError, Layout, split_row_key
from stream.wire.records import (
    ROW_OVERHEAD,
    RowColumns,
    before_records,
    continuity_of,
    event_record,
    marker_fields,
    state_fields,
)
from tokens.errors import FreshetError

EVENT_OVERHEAD: Final = 256
"""Bytes counted for any other event, for each partition that it goes to."""
ANNOTATIONS_MAX: Final = 48 * 1024
"""Characters of all annotations together: there is room for all that a source may say at once, each word at its own
limit, and for what its publisher says."""
PARTLY: Final = "partly"
"""The annotation of a shard of which a transaction is partly published: its `whole_words`."""
FRAME_OVERHEAD: Final = 64 * 1024
"""Bytes that a message may have in addition to its rows or its image."""


class BatchError(FreshetError, ValueError):
    """A transaction that cannot be framed, or not in this state; codes ``bad_transaction``, ``bad_limits``."""

    code = "bad_transaction"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of a batch and its frames, in rows and bytes."""

    rows_max: int = 500
    """Rows in one frame."""
    bytes_max: int = 256 * 1024
    """Bytes of keys and images after which a frame is closed."""
    batch_bytes: int = 4 * 1024 * 1024
    """Bytes of a batch. A larger transaction is split over several batches."""
    image_bytes_max: int = 900_000
    """A larger row image is published as VOID: its key is read through."""
    table_image_bytes_max: int = 4 * 1024 * 1024
    """A larger table image is published as ``written`` without image: the table is read through."""
    repeat_bytes: int = 1024 * 1024
    """Bytes of repeated declarations in a batch, over all partitions."""
    key_bytes_max: int = 64 * 1024
    """A row with a larger key voids its table."""
    open_map_every: int = 128
    """The whole map of open transactions is written in every n-th state record,"""
    open_map_small: int = 32
    """and whenever it has at most this many transactions."""

    def check(self, message_bytes_max: int) -> None:
        """Raise `BatchError` ``bad_limits`` if a frame within these limits could exceed ``message_bytes_max``."""
        largest = max(self.bytes_max + self.image_bytes_max + self.key_bytes_max, self.table_image_bytes_max)
        largest += FRAME_OVERHEAD
        if largest > message_bytes_max or min(self.rows_max, self.bytes_max, self.batch_bytes) < 1:
            raise BatchError(
                f"a frame could reach {largest} bytes, but a message holds at most {message_bytes_max}",
                hint="lower the limits of a frame",
                code="bad_limits",
            )


@dataclass(slots=True)
class Batch:
    """The records of one Kafka transaction, in the order in which they are produced."""

    records: list[tuple[int, bytes]]
    """(partition, value)"""
    resume: ResumePoint
    """The publisher's resume point once this batch is committed."""
    timestamp_max: int
    """Running maximum of source time, seconds; 0 if none is known."""
    events: int
    rows: int
    transactions: int
    """Whole transactions that end in this batch."""
    left_out: int
    """Rows that are not in it, because their keys are another shard's."""
    bytes: int


class Framer:
    """Collects transactions of one shard into batches.

    Use: ``end = room(txn, start)``. If ``end`` is negative, call `take` and retry. Else call ``add(txn, start, end)``,
    and continue from ``end`` until it is ``len(txn.changes)``. Not thread-safe.
    """

    def __init__(
        self,
        shard: str,
        layout: Layout,
        resume: ResumePoint | None = None,
        limits: BatchLimits | None = None,
        *,
        declared: Declarations | None = None,
        nonce: int = 0,
        invalidated: Collection[str] = (),
    ) -> None:
        """``resume`` is the point read from the topic. Without it, call `start_epoch` first.

        ``declared``: what the topic says of the epoch at that point. ``nonce``: a number that no other opening of the
        shard's publisher has, so that equal positions of two of them are told apart.
        ``invalidated``: tables, each ``db.table``, whose rows are told to have changed, without images.
        """
        self.shard = shard
        self.layout = layout
        self.limits = limits or BatchLimits()
        at = resume or ResumePoint(shard, 0, 0, "", 0, "")
        self._at = at.copy()
        self._home = layout.home_partition(shard)
        self._timestamp_max = at.timestamp
        self._speaker = Speaker(declared or Declarations(shard, at.epoch))
        self._prefixes: dict[bytes, int] = {}
        for table, described in self._speaker.declared.descriptions().items():
            self._route_rows(table, described.prefix)
        self._invalidated = frozenset(table.encode() for table in invalidated)
        self._own: IdRange | None = None
        """The keys of the shard, if the keyspace has a map."""
        self._nonce = nonce
        self._as_of_ms = 0
        self._serial = 0
        self._map_due = True
        self._reset()

    def _reset(self) -> None:
        self._rows: list[RowColumns | None] = [None] * self.layout.partitions
        self._records: list[list[bytes]] = [[] for _ in range(self.layout.partitions)]
        self._befores: dict[int, list[tuple[int, bytes]]] = {}
        """Partition → ordinal and image of before, of rows of which that is known."""
        self._opened: dict[int, OpenTransaction] = {}
        self._closed: set[int] = set()
        self._size = self._events = self._row_count = self._transactions = self._left_out = 0
        self._split = self._dirty = False

    @property
    def size(self) -> int:
        """Bytes collected since the last `take`."""
        return self._size

    @property
    def is_empty(self) -> bool:
        """Whether nothing was collected since the last `take`, not even a position."""
        return not self._dirty

    @property
    def partial_gtid(self) -> str:
        """The GTID of the transaction that is partly published, or empty."""
        return self._at.partial_gtid

    @property
    def resume(self) -> ResumePoint:
        """The publisher's resume point once everything collected is published."""
        return self._at.copy()

    # --- collecting ---

    def room(self, txn: SourceTransaction, start: int = 0) -> int:
        """The end of the changes of ``txn`` from ``start`` on that fit this batch; -1: `take` the batch first."""
        if self._split:
            return -1
        changes = txn.changes
        limit, partitions = self.limits.batch_bytes, self.layout.partitions
        size = len(txn.position) + ROW_OVERHEAD
        if type(changes) is RowImages and not start:
            whole = size + changes.size + len(changes) * ROW_OVERHEAD
            if whole <= limit:
                return -1 if self._size + whole > limit and not self.is_empty else len(changes)
        for index in range(start, len(changes)):
            size += _size_of(changes[index], self.limits, partitions)
            if size > limit and index > start:
                return -1 if not self.is_empty else index
        return -1 if self._size + size > limit and not self.is_empty else len(changes)

    def add(self, txn: SourceTransaction, start: int, end: int) -> None:
        """Number and route ``txn.changes[start:end]``, with ``end`` from `room`. After the last one the position moves.

        Raises `BatchError` for an invalid change, or if ``start`` does not continue the part already published.
        """
        at = self._at
        if at.partial_gtid and (txn.gtid != at.partial_gtid or start != at.partial_events):
            raise BatchError(
                f"{at.partial_events} events of {at.partial_gtid} are published, {txn.gtid} from {start} cannot follow",
                hint="the source must continue the partly published transaction",
            )
        self._serial += 1
        self._dirty = True
        self._size += len(txn.position) + ROW_OVERHEAD
        ordinal, changes = at.ordinal, txn.changes[start:end]
        if type(changes) is RowImages and self._are_plain(changes):
            self._add_images(changes, txn, ordinal)
        else:
            for number, change in enumerate(changes, ordinal + 1):
                if type(change) is RowChange:
                    self._add_row(change, txn, number)
                else:
                    self._add_event(change, txn, number)
        at.ordinal = ordinal + len(changes)
        self._events += end - start
        self._timestamp_max = max(self._timestamp_max, txn.timestamp)
        if end < len(txn.changes):
            at.partial_gtid, at.partial_events, self._split = txn.gtid, end, True
            self.annotate({PARTLY: whole_words(txn)})
        else:
            self._end(txn)

    def takes(self, run: SingleRows) -> bool:
        """Whether all of a run fits this batch, and may be given to `add_run`. Else give its transactions to `add`."""
        rows, limits = run.rows, self.limits
        if self._at.partial_gtid or self._invalidated or max(map(len, rows.keys)) > limits.key_bytes_max:
            return False
        size = sum(map(len, rows.keys)) + sum(map(len, rows.images)) + sum(map(len, run.positions))
        fits = self._size + size + 2 * ROW_OVERHEAD * run.count <= limits.batch_bytes
        return fits and max(map(len, rows.images)) <= limits.image_bytes_max

    def add_run(self, run: SingleRows) -> None:
        """As `add` of each transaction of a run that it `takes`, with one step for each partition and frame."""
        at, limits = self._at, self.limits
        self._serial += 1
        self._dirty = True
        self._size += sum(map(len, run.positions)) + ROW_OVERHEAD * run.count
        for partition, places in enumerate(self._places(run.rows)):
            taken = 0
            while taken < len(places):
                columns = self._rows[partition]
                if columns is None or at.ordinal + run.count - columns.base > INT_MAX:
                    columns = self._open_frame(partition, at.ordinal + places[taken])
                some, size = columns.add_run(run, places[taken:], at.ordinal + 1, limits.rows_max, limits.bytes_max)
                taken += some
                self._size += size
                if len(columns.keys) >= limits.rows_max or columns.size >= limits.bytes_max:
                    self._seal(partition)
            self._row_count += len(places)
        at.ordinal += run.count
        self._events += run.count
        self._timestamp_max = max(self._timestamp_max, *run.timestamps)
        self._end(run)

    def _places(self, rows: Rows) -> list[list[int]]:
        """Of each partition the indexes of its rows, without those that are another shard's."""
        layout, own, prefixes = self.layout, self._own, self._prefixes
        ids: Iterable[int] = map(layout.keyspace_id, rows.keys)
        if prefixes:
            ids = (layout.keyspace_id(key, prefixes.get(key[: key.find(SEPARATOR)], 0)) for key in rows.keys)
        found: list[list[int]] = [[] for _ in range(layout.partitions)]
        for index, keyspace_id in enumerate(ids):
            if own is None or own.start <= keyspace_id < own.end:
                found[layout.partition_at(keyspace_id)].append(index)
            else:
                self._left_out += 1
        return found

    def advance(self, position: str, timestamp: int) -> None:
        """Move to ``position`` without a change. Raises `BatchError` inside a partly published transaction."""
        if self._at.partial_gtid:
            raise BatchError(f"{self._at.partial_gtid} is partly published, the position cannot pass it")
        self._at.position, self._at.timestamp = position, timestamp
        self._timestamp_max = max(self._timestamp_max, timestamp)
        self._dirty = True

    def start_epoch(self, position: str, timestamp: int, reason: str, epoch: int | None = None) -> None:
        """Start a new history: ordinals from 1, earlier epochs void, low-water at ``position``.

        ``epoch`` None: the next one. Raises `BatchError` if the batch is not empty, or the epoch does not rise.
        """
        if not self.is_empty:
            raise BatchError("an epoch can only start in an empty batch")
        number = self._at.epoch + 1 if epoch is None else epoch
        if number <= self._at.epoch:
            raise BatchError(f"epoch {number} is not above the current epoch {self._at.epoch}")
        annotations = self._at.annotations
        self._at = ResumePoint(self.shard, number, 1, position, timestamp, position, annotations=annotations)
        self._speaker.begin_epoch(number)
        self._prefixes.clear()
        self._as_of_ms = 0
        # The topology, too, stands before the first event: so a shard that succeeds another is no stranger.
        self._say(self._speaker.introductions(0))
        self._timestamp_max = max(self._timestamp_max, timestamp)
        self._map_due = True
        event = self._head(1, position, timestamp) | {"position": position, "reason": reason}
        self._broadcast(encode("EpochStart", event))
        self._events, self._dirty = 1, True

    def _end(self, txn: SourceTransaction) -> None:
        at = self._at
        for opened in txn.opened:
            at.open_transactions[opened.txn] = self._opened[opened.txn] = opened
            self._closed.discard(opened.txn)
        for closed in txn.closed:
            at.open_transactions.pop(closed, None)
            self._opened.pop(closed, None)
            self._closed.add(closed)
        at.table_choice = txn.table_choice or at.table_choice
        if txn.position != at.position or txn.cursor:  # a description at the same position is no transaction
            at.checksum, at.cursor = txn.checksum, txn.cursor
        at.position, at.timestamp = txn.position, txn.timestamp
        at.partial_gtid, at.partial_events = "", 0
        if PARTLY in at.annotations:
            self.annotate({PARTLY: ""})
        self._transactions += txn.count

    def _add_row(self, change: RowChange, txn: SourceTransaction, ordinal: int) -> None:
        key, operation, image = change.key, change.operation, change.image
        ends = key.find(b"\0")
        if ends < 1:
            raise KeyFormatError(f"{key[:40]!r} of {txn.gtid} is not a row key")
        table = key[:ends]
        if operation == VALUE:
            if not image or len(image) > self.limits.image_bytes_max or table in self._invalidated:
                operation, image = VOID, b""
        elif operation in (ABSENT, VOID):
            image = b""
        else:
            raise BatchError(f"invalid row operation {operation} of {txn.gtid}")
        if len(key) > self.limits.key_bytes_max:
            self._add_event(VoidTable(split_row_key(key)[0], f"a key of {len(key)} bytes"), txn, ordinal)
            return
        prefix = self._prefixes.get(table, 0) if self._prefixes else 0
        keyspace_id = self.layout.keyspace_id(key, prefix)
        if self._own is not None and not self._own.start <= keyspace_id < self._own.end:
            self._left_out += 1  # a row of the key is another shard's
            return
        partition = self.layout.partition_at(keyspace_id)
        rows = self._rows[partition]
        if rows is None or ordinal - rows.base > INT_MAX:
            rows = self._open_frame(partition, ordinal - 1)
        if rows.serial != self._serial:
            rows.begin(self._serial, txn)
        rows.keys.append(key)
        rows.images.append(image)
        rows.operations.append(operation)
        rows.ordinals.append(ordinal - rows.base)
        rows.transactions[-1] += 1
        size = len(key) + len(image) + ROW_OVERHEAD
        rows.size += size
        self._size += size
        self._row_count += 1
        if change.before is not None:
            self._add_before(partition, table, ordinal, change.before)
        if len(rows.keys) >= self.limits.rows_max or rows.size >= self.limits.bytes_max:
            self._seal(partition)

    def _are_plain(self, rows: RowImages) -> bool:
        """Whether each of the rows is published as it is, and a frame has room for as many bytes as all have."""
        return (
            self._own is None
            and rows.table.encode() not in self._invalidated
            and all(rows.images)
            and rows.size <= self.limits.image_bytes_max
            and max(map(len, rows.keys), default=0) <= self.limits.key_bytes_max
        )

    def _add_images(self, rows: RowImages, txn: SourceTransaction, ordinal: int) -> None:
        """As `_add_row` of each row, whose ordinals follow ``ordinal``, with one step for each partition and frame."""
        prefix = self._prefixes.get(rows.table.encode(), 0)
        for partition, places in enumerate(self.layout.places(rows.keys, prefix)):
            taken = 0
            while taken < len(places):
                columns = self._rows[partition]
                if columns is None or ordinal + len(rows) - columns.base > INT_MAX:
                    columns = self._open_frame(partition, ordinal)
                if columns.serial != self._serial:
                    columns.begin(self._serial, txn)
                some = places[taken : taken + self.limits.rows_max - len(columns.keys)]
                taken += len(some)
                self._size += columns.add_images(rows, some, ordinal + 1)
                if len(columns.keys) >= self.limits.rows_max or columns.size >= self.limits.bytes_max:
                    self._seal(partition)
        self._row_count += len(rows)

    def _add_before(self, partition: int, table: bytes, ordinal: int, image: bytes) -> None:
        """Keep what a row was, for a record behind the frames: those are then read in runs as without it."""
        if len(image) <= self.limits.image_bytes_max and table not in self._invalidated:
            self._befores.setdefault(partition, []).append((ordinal, image))
            self._size += len(image)

    def _open_frame(self, partition: int, base: int) -> RowColumns:
        """Seal the open frame of the partition, and open one whose ordinals are counted from ``base``."""
        self._seal(partition)
        rows = self._rows[partition] = RowColumns(base)
        return rows

    def _seal(self, partition: int) -> None:
        rows = self._rows[partition]
        if rows is not None:
            self._records[partition].append(rows.encode(self.shard, self._at.epoch))
            self._rows[partition] = None

    def _put(self, partition: int, value: bytes) -> None:
        self._seal(partition)
        self._records[partition].append(value)
        self._size += len(value)

    def _broadcast(self, value: bytes) -> None:
        for partition in range(self.layout.partitions):
            self._put(partition, value)

    # --- catalog and table events ---

    def _head(self, ordinal: int, gtid: str, timestamp: int) -> Record:
        at = self._at
        return {"shard": at.shard, "epoch": at.epoch, "ordinal": ordinal, "gtid": gtid, "timestamp": timestamp}

    def _add_event(self, change: Change, txn: SourceTransaction, ordinal: int) -> None:
        name, fields = event_record(change, txn.position, self.limits.table_image_bytes_max)
        record = self._head(ordinal, txn.gtid, txn.timestamp) | fields
        value = encode(name, record)
        self._speaker.declared.note(name, record, value)
        if type(change) is DescribeTable:
            self._route_rows(change.table, change.prefix)
        elif type(change) is BeginScope:
            self._prefixes.clear()
        for partition in self._route(change, txn):
            self._put(partition, value)

    def _route_rows(self, table: str, prefix: int) -> None:
        """From here on a table's rows go where ``prefix`` says."""
        if prefix:
            self._prefixes[table.encode()] = prefix
        else:
            self._prefixes.pop(table.encode(), None)

    def _route(self, change: Change, txn: SourceTransaction) -> Iterable[int]:
        """The partitions that an event other than a row goes to."""
        match change:
            case VoidTable() | BackfillTable() | DescribeTable() | BeginScope() | BindName():
                return range(self.layout.partitions)
            case AllocateWriteId() | TableImage() | ResetWriteIds() | ObjectImage() | ObjectSet():
                return (self.layout.table_partition(change.table_id),)
            case KeylessRow():
                return (self._home,)
            case CommitTransaction() | AbortTransaction():
                return self._touched(change.txn, change.write_ids, txn)
        raise BatchError(f"{type(change).__name__} is not an event")

    def _touched(self, number: int, pairs: Iterable[tuple[int, int]], txn: SourceTransaction) -> list[int]:
        """The partitions of all objects that the transaction allocated on or wrote, else the shard's home partition."""
        tables = {table for table, _ in pairs}
        for known in (self._at.open_transactions.get(number), *(each for each in txn.opened if each.txn == number)):
            if known is not None:
                tables.update(table for table, _ in known.write_ids)
                tables.update(known.wrote)
        return sorted({self.layout.table_partition(table) for table in tables}) or [self._home]

    # --- what is said besides events ---

    def announce(self, topology: Topology | None = None) -> None:
        """Say the schemas of all records that this version may write, and the topology, unless the epoch has them.

        Each later epoch says them by itself. Its topology has no ancestors: their positions belong to the history
        that ended. From here on rows of keys that are another shard's by its map are left out: what a read of such a
        key finds is the other shard's row, or none.
        """
        self._speaker.introduce(topology)
        text = dict(topology.ranges).get(self.shard) if topology is not None else None
        self._own = IdRange.parse(text) if text is not None else None
        if self._at.epoch:
            self._say(self._speaker.introductions(self._at.ordinal))

    def begin_repeat(self, offset: int) -> None:
        """Say every declaration again, in this batch and the next ones.

        ``offset``, in the home partition, is that of the last state record: whoever reads from there gets all of it.
        """
        self._speaker.begin_repeat(offset)

    @property
    def is_repeating(self) -> bool:
        """Whether some declarations are still to be said again."""
        return self._speaker.is_repeating

    def _say(self, values: Iterable[bytes]) -> None:
        for value in values:
            self._broadcast(value)

    def _repeat(self) -> None:
        if not self._speaker.is_repeating or self._at.partial_gtid:
            return
        self._say(self._speaker.repeats(self.limits.repeat_bytes // self.layout.partitions))
        if not self._speaker.is_repeating:
            self._at.declared_at = self._speaker.repeated_from

    def stamp(self, as_of_ms: int) -> None:
        """Whatever the source committed before ``as_of_ms``, by its own clock, is collected or published."""
        self._as_of_ms = as_of_ms

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Keep ``annotations``, in place of those of these names, in the shard's state. Raises `BatchError`.

        An empty text is not kept.
        """
        self._at.annotations = _kept_annotations(self._at.annotations, annotations)

    # --- the end of a batch ---

    def take(self) -> Batch:
        """End the batch with markers and state, and return it. Raises `BatchError` if no epoch has started.

        An empty batch has markers with the unchanged position, and a state with the next sequence number.
        """
        at = self._at
        if at.epoch < 1:
            raise BatchError("no epoch has started")
        for partition in range(self.layout.partitions):
            self._seal(partition)
        for partition, rows in self._befores.items():
            self._records[partition] += before_records(self.shard, at.epoch, rows, self.limits.bytes_max)
        self._repeat()
        at.sequence += 1
        previous, at.continuity = at.continuity, continuity_of(at, self._nonce)
        marker = encode("Marker", marker_fields(at, self.layout, previous, self._as_of_ms))
        records = [(partition, value) for partition, values in enumerate(self._records) for value in (*values, marker)]
        records.append((self._home, encode("SourceState", self._state())))
        batch = Batch(
            records=records,
            resume=self.resume,
            timestamp_max=self._timestamp_max,
            events=self._events,
            rows=self._row_count,
            transactions=self._transactions,
            left_out=self._left_out,
            bytes=sum(len(value) for _, value in records),
        )
        self._reset()
        return batch

    def _state(self) -> Record:
        at, limits = self._at, self.limits
        known = at.open_transactions
        is_snapshot = self._map_due or len(known) <= limits.open_map_small or at.sequence % limits.open_map_every == 0
        self._map_due = False
        opened = known if is_snapshot else self._opened
        return state_fields(at, self.layout, opened.values(), () if is_snapshot else self._closed, whole=is_snapshot)


def _size_of(change: Change, limits: BatchLimits, partitions: int) -> int:
    """Estimated bytes of a change: exact for rows with a published image, else about what `Framer.add` counts.

    All tables are described in one transaction, in every partition: hundreds of wide ones would fill the producer's
    queue if only their number counted.
    """
    if type(change) is RowChange:
        image = len(change.image)
        before = len(change.before) if change.before else 0
        limit = limits.image_bytes_max
        return len(change.key) + ROW_OVERHEAD + (image if image <= limit else 0) + (before if before <= limit else 0)
    if type(change) is TableImage:
        return EVENT_OVERHEAD + len(change.image or b"") + len(change.struct or b"") + len(change.write_ids or "")
    if type(change) is KeylessRow:
        return EVENT_OVERHEAD + len(change.before) + len(change.after)
    if type(change) is ObjectImage:
        return EVENT_OVERHEAD + len(change.image or b"") + len(change.struct or b"")
    words = sum(len(each.name) + len(each.sql_type) for each in change.columns) if type(change) is DescribeTable else 0
    return (EVENT_OVERHEAD + words) * partitions


def whole_words(txn: SourceTransaction) -> str:
    """What a transaction must still be when it is read again, so that its events may be skipped by number.

    Its checksum is that of what the source's log has; how many changes are made of that may depend on more.
    """
    return f"{txn.checksum} {len(txn.changes)}"


def _kept_annotations(before: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The annotations of ``before`` and ``more``, whose texts count; an empty one is not kept. Raises `BatchError`."""
    kept = {name: text for name, text in (dict(before) | dict(more)).items() if text}
    size = sum(len(name) + len(text) for name, text in kept.items())
    if size > ANNOTATIONS_MAX:
        raise BatchError(f"annotations of {size} characters: at most {ANNOTATIONS_MAX}")
    return kept
