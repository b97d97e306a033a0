"""From the topics of a connector that does not tell where transactions end: which rows have changed, and no more.

How far everything is told comes from elsewhere: ``told``. Whatever was read by then is void at that position. A row may
be of a transaction that is not told to its end, or (XA) not even committed. So it is void again with each further
position, until that is past all that was logged by the time the row was known to be committed (decision 0172).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from stream.sources.debezium.messages import RowMessage, Statement
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.schema import Settled
from stream.sources.debezium.transactions import Place
from stream.sources.mariadb.binlog.coalesce import TransactionRows
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtidSet
from stream.wire.events import RowChange, SourceTransaction, VoidTable

_KEY_OVERHEAD_BYTES: Final = 100


class _Keys(TransactionRows):
    """Which rows changed, each once, and not to what: nothing of them goes to disk. ``bytes_max``: see `is_full`."""

    __slots__ = ("_bytes_max",)

    def __init__(self, bytes_max: int) -> None:
        super().__init__(sys.maxsize)
        self._bytes_max = bytes_max

    def put(self, key: bytes, image: bytes | None, before: bytes | None = None) -> None:  # noqa: ARG002 - not needed
        """Note that the row of ``key`` changed."""
        if key not in self._images:
            super().put(key, b"")

    @property
    def is_full(self) -> bool:
        """Whether there are more than may be held."""
        return self._bytes >= self._bytes_max


@dataclass(slots=True)
class _Read:
    """What was read between two positions.

    ``rows``: those that changed, as they were read. ``unread``: the tables whose schema was not known. ``starts``:
    topic and partition → its first message there. ``last``: the transactions that it has something of. ``keys`` and
    ``voids``: what is void by it, once it is over. ``settled_at``: it has nothing behind there, which is known later.
    """

    rows: OpenTransaction
    last: GtidPosition
    unread: set[str] = field(default_factory=set)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)
    voids: dict[str, str] = field(default_factory=dict)
    settled_at: GtidPosition | None = None


class InvalidatingReader(DebeziumReader):
    """As `DebeziumReader`. ``told``: up to where everything is in the topics; None if nobody knows now."""

    tells_ends = False

    def __init__(self, told: Callable[[], GtidPosition | None], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"keeps_before": False})
        self._told_to = told
        self._now = self._new_read()
        self._held: list[_Read] = []
        """What was void, and may be again."""

    @property
    def _too_many(self) -> str:
        return f"more than {self._bytes_max} bytes of keys are void"

    @property
    def has_more(self) -> bool:
        """Whether there is more than was yielded."""
        return bool(self._now.starts)

    def transactions(self) -> Iterator[SourceTransaction | None]:
        """Yield what is void at each position, and None whenever nothing is."""
        try:
            while not self._stopping:
                self._feed()
                if time.monotonic() < self._look_at:
                    yield self._settled_alone()
                    continue
                told = self._asked_position()
                self._sample = None  # the look notices tagged GTIDs
                self._look()
                if told is None or self._position.covers(told):
                    yield self._settled_alone()
                else:
                    yield from self._up_to(told)
        finally:
            self._topics.close()

    def _asked_position(self) -> GtidPosition | None:
        """Up to where everything is told. Asked first: that much is in topics that are there now."""
        told = self._told_to()
        if told is None or not self._schema.end_of_log().covers(told):  # the server was restored, the connector not yet
            return None
        return told

    def _up_to(self, told: GtidPosition) -> Iterator[SourceTransaction | None]:
        ends = self._topics.ends()
        while not self._topics.has_reached(ends):
            if self._stopping:
                return
            if not self._feed():
                yield None
        self._note_changes()
        if self._held or self._now.starts:
            self._settle_held(self._schema.settled())
        if self._now.starts:
            self._held.append(self._ended(self._now))
            self._now = self._new_read()
        self._position.advance(told)
        yield self._invalidation()
        self._held = [each for each in self._held if self._held_on(each)]

    def _held_on(self, each: _Read) -> bool:
        """Whether what was void may have to be void again."""
        return each.settled_at is None or not self._position.covers(each.settled_at)

    def _settle_held(self, now: Settled) -> None:
        """What was read since the last position waits for the next look, and until no session owns a GTID of it.

        A row of XA is in the log, and told, before its transaction is named among those that are prepared: while the
        session flushes it, or waits for semi-synchronous replicas. What MySQL rolls back, after it had a GTID, never
        comes.
        """
        end = now.end
        for each in self._held:
            if each.settled_at is None:
                if isinstance(each.last, MysqlGtidSet) and now.owned and not each.last.within(now.owned).is_empty:
                    continue
                each.settled_at = self._position.nothing()
                each.settled_at.advance(end)
                each.settled_at.advance(each.last)
            elif isinstance(each.settled_at, MysqlGtidSet) and isinstance(end, MysqlGtidSet):
                each.settled_at = each.settled_at.within(end)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _new_read(self) -> _Read:
        return _Read(self._nobodys(), self._position.nothing())

    def _nobodys(self) -> OpenTransaction:
        """A transaction of which only the keys are kept: nobody knows how long nothing is told, or how much is read."""
        made = OpenTransaction.of_nobody(self._bytes_max)
        made.rows = _Keys(self._bytes_max)
        return made

    def _add(self, row: RowMessage, place: Place) -> None:
        self._note(row, place)
        rows, name = self._now.rows, row.table
        was_touched = name in rows.touched
        rows.touched.discard(name)
        self._put(row, rows)
        if name in self._schema.include and name not in rows.touched:
            self._now.unread.add(name)
        if was_touched:
            rows.touched.add(name)
        keys = rows.rows
        if isinstance(keys, _Keys) and keys.is_full:
            rows.void_touched(self._too_many)
            rows.rows = _Keys(self._bytes_max)

    def _see(self, statement: Statement, place: Place) -> None:
        self._note(statement, place)
        self._now.rows.voids |= self._applied(statement).voids

    def _note(self, found: RowMessage | Statement, place: Place) -> None:
        gtid = found.transaction if isinstance(found, RowMessage) else found.gtid
        self._now.last.add(gtid)
        self._now.starts.setdefault((place.topic, place.partition), place.offset)
        self._timestamp = max(found.timestamp, self._timestamp)

    def _ended(self, read: _Read) -> _Read:
        """Keep what is void of it. What needs more memory than it may have voids its tables."""
        left = self._bytes_max - sum(len(key) + _KEY_OVERHEAD_BYTES for each in self._held for key in each.keys)
        for change in read.rows.changes(self._schema.catalog):
            if isinstance(change, VoidTable):
                read.voids.setdefault(change.table, change.reason)
            elif isinstance(change, RowChange):
                left -= len(change.key) + _KEY_OVERHEAD_BYTES
                if left >= 0:
                    read.keys.append(change.key)
                else:
                    table = change.key.partition(b"\0")[0].decode()
                    read.voids.setdefault(table, self._too_many)
        read.rows = self._nobodys()
        return read

    def _starts(self) -> dict[tuple[str, int], int]:
        found = dict(self._topics.reached)
        for each in (*self._held, self._now):
            for at, offset in each.starts.items():
                found[at] = min(offset, found.get(at, offset))
        return found

    # -- publishing --------------------------------------------------------------------------------------------------

    def _invalidation(self) -> SourceTransaction:
        """Everything that is held, at the present position."""
        void = self._nobodys()
        void.described |= self._described
        self._described.clear()
        void.announce(self._maps.announced)
        if not self._schema.catalog.is_settled:
            self._settle(void)
        for each in self._held:
            for key in each.keys:
                void.rows.void(key)
            for table, why in each.voids.items():
                void.voids.setdefault(table, why)
            for table in each.unread:
                info = self._schema.get(table)
                if info is not None and info.cacheable:
                    void.voids.setdefault(table, "rows changed while its schema was not known")
        position = str(self._position)
        return SourceTransaction(position, position, self._timestamp, void.changes(self._schema.catalog))
