"""The backfill of a shard's tables, beside its binlog: what `MariaDBSource` does for it between two transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from stream.sources.mariadb.backfill.chunks import TableDiffers
from stream.sources.mariadb.backfill.plan import Chunk, Plan, left_tables, unfit
from stream.sources.mariadb.backfill.reading import AHEAD_MAX, Wanted
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import TableFilter
from stream.sources.status import SourceStatus
from stream.wire.events import ResumePoint, RowChange, SourceTransaction

log = structlog.get_logger(__name__)

REPORT_EVERY_S: Final = 10.0
RETRY_S: Final = 5.0
"""When a table that differed from its description is tried again."""
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 600.0
"""How long a table waits that is voided again and again, as by cascades: it would be read and published for ever."""
CALM: Final = 10
"""A table that was left alone for this many of its pauses begins with the first one again."""


class BackfillPublisher(Protocol):
    """What a backfill needs of `stream.publish.publisher.Publisher`."""

    def publish(self, txn: SourceTransaction) -> None: ...

    def annotate(self, annotations: Mapping[str, str]) -> None: ...


class Reading(Protocol):
    """What a backfill needs of `stream.sources.mariadb.backfill.reading.ChunkReading`."""

    differs: TableDiffers | None
    estimate: int

    @property
    def first(self) -> Chunk | None: ...

    def want(self, wanted: Wanted | None) -> None: ...

    def take(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """Which tables are read from the beginning, and how fast. ``rows_per_s`` 0: as fast as the server answers."""

    tables: TableFilter
    rows_per_s: int = 0


class Backfill:
    """Reads tables one after the other and publishes their rows between the source's transactions.

    Call `notice` before a transaction is published, `step` after it. Use it in the source's thread.
    """

    def __init__(
        self,
        options: BackfillOptions,
        reading: Reading,
        publisher: BackfillPublisher,
        catalog: Catalog,
        point: ResumePoint,
        status: SourceStatus,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._publisher = publisher
        self._catalog = catalog
        self._plan = Plan.resume(point)
        if self._plan.table and self._plan.table not in options.tables:
            self._plan.give_up()
            publisher.annotate({})  # a void of it will not be noticed while it is not read
        self._reading = reading
        self._status = status
        self._clock = clock
        self._is_idle = False
        """Whether every table is complete, or can't be."""
        self._skipped: set[str] = set()
        self._began_at, self._report_at, self._began_with = 0.0, 0.0, 0
        self._retry_at: float | None = None
        self._pauses: dict[str, tuple[float, float]] = {}
        """Table → its last pause in seconds, and when that ends."""
        self._look_at = 0.0
        """When a table's pause is over, if all that are left have one."""

    def begin_epoch(self, point: ResumePoint) -> None:
        """Nothing that was published before counts in a new epoch."""
        self._reading.want(None)
        self._plan = Plan.resume(point)
        self._publisher.annotate({})
        self._is_idle = False

    def reconnect(self) -> None:
        """The binlog is read with a new connection, perhaps of another server: what was read ahead does not count."""
        self._reading.want(None)
        self._plan.since = None

    def notice(self, transaction: SourceTransaction) -> None:
        """Take note of a transaction that is about to be published.

        If it voids the table whose rows are read, its progress is forgotten first: a cursor must not outlive a void.
        """
        changes = transaction.changes
        if not len(changes) or type(changes[len(changes) - 1]) is RowChange:
            if self._is_idle:
                return
        else:
            self._is_idle, self._look_at = False, 0.0
        is_lost = self._plan.notice(transaction)
        self._pause(self._plan.lost)
        self._plan.lost.clear()
        if is_lost:
            self._reading.want(None)
            self._publisher.annotate(self._plan.annotations)

    def step(self, position: str, timestamp: int, has_reached: Callable[[GtidPosition], bool]) -> None:
        """Publish what may be published at ``position``, up to which everything is given to the publisher."""
        if self._is_idle:
            return
        if not self._plan.table:
            self._begin_next(position, timestamp)
        elif self._plan.since is None:
            self._read_on(position)
        for _ in range(AHEAD_MAX):  # not until the table ends: the source has a server to watch, and may be stopped
            chunk = self._reading.first
            if chunk is None or self._plan.since is None or not has_reached(chunk.hi):
                break
            for transaction in self._plan.publish(chunk, position, timestamp):
                self._publisher.publish(transaction)
            self._publisher.annotate(self._plan.annotations)  # not before: a cursor ahead of its rows would lose them
            self._reading.take()
            if not self._plan.table:
                self._reading.want(None)  # else it would begin again
            self._note(chunk.described.table, len(chunk.rows))
        if self._reading.differs is not None:
            self._differs()

    def close(self) -> None:
        """End the reading of chunks."""
        self._reading.close()

    def _pause(self, tables: Iterable[str]) -> None:
        now = self._clock()
        for table in tables:
            pause_s, until = self._pauses.get(table, (0.0, now))
            pause_s = min(pause_s * 2, PAUSE_MAX_S) if now < until + CALM * pause_s else PAUSE_S
            self._pauses[table] = pause_s, now + pause_s

    def _begin_next(self, position: str, timestamp: int) -> None:
        now = self._clock()
        if now < self._look_at:
            return
        described = [self._catalog.description(name) for name in self._catalog.names if name in self._options.tables]
        ends = {table: self._pauses.get(table, (0.0, 0.0))[1] for table in left_tables(self._plan, described)}
        table = next((each for each, end in ends.items() if end <= now), "")
        self._look_at = 0.0 if table else min(ends.values(), default=0.0)
        for each in described:
            if unfit(each) and each.table not in self._skipped:
                self._skipped.add(each.table)
                log.info("table is not backfilled", table=each.table, reason=unfit(each))
        self._status.tables_complete = len(self._plan.complete)
        self._is_idle = not ends
        if not table:
            return
        self._publisher.publish(self._plan.begin(table, position, timestamp))
        self._publisher.annotate(self._plan.annotations)
        self._want()
        log.info("backfill begins", table=table, position=position)

    def _read_on(self, position: str) -> None:
        """Read on behind what is published: after a restart, or when too many keys have changed."""
        if self._retry_at is not None and self._clock() < self._retry_at:
            return
        self._retry_at = None
        if unfit(self._catalog.description(self._plan.table)):
            self._plan.give_up()
            self._publisher.annotate({})
            return
        self._plan.note_from(position)
        self._want()

    def _want(self) -> None:
        plan = self._plan
        assert plan.since is not None
        self._began_at = self._clock()
        self._report_at, self._began_with = self._began_at + REPORT_EVERY_S, plan.rows
        self._reading.want(Wanted(self._catalog.description(plan.table), plan.after, plan.since))

    def _differs(self) -> None:
        """The table has changed: a void is on its way, or its description. Try again in a while, in any case."""
        log.info("a table is read later", table=self._plan.table, reason=str(self._reading.differs))
        self._reading.want(None)
        self._plan.since, self._retry_at = None, self._clock() + RETRY_S

    def _note(self, table: str, rows: int) -> None:
        plan, now = self._plan, self._clock()
        self._status.backfilled_rows += rows
        if not plan.table:
            log.info("table is complete", table=table, rows=plan.rows)
        elif now >= self._report_at:
            self._report_at = now + REPORT_EVERY_S
            rate = (plan.rows - self._began_with) / max(now - self._began_at, 0.001)
            left = max(self._reading.estimate - plan.rows, 0)
            eta_s = round(left / rate) if rate and self._reading.estimate else None
            log.info("backfill", table=table, rows=plan.rows, rows_per_s=round(rate), eta_s=eta_s)
