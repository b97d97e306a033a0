"""The backfill of a shard's tables, beside its binlog: what `MariaDBSource` does for it between two transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Protocol, cast

import structlog

from stream.kafka.requests import HotKeys, read_hot_keys
from stream.sources.mariadb.backfill.choice import CHOICE, BackfillRequest, Choice, read_request
from stream.sources.mariadb.backfill.plan import PIECE_BYTES, After, Chunk, Plan, left_tables, rows_and_tables, unfit
from stream.sources.mariadb.backfill.progress import progress_annotations
from stream.sources.mariadb.backfill.reading import AHEAD_MAX, TableHeld, Wanted
from stream.sources.mariadb.backfill.rereading import REREADS, KeysReading, Rereading, row_keys
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.cascades.children import Knowledge
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.connection import MariaDBError
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import TableFilter, is_missing
from stream.sources.status import CURSORS, HOLDERS, PROGRESS, SourceStatus, TableReading
from stream.wire.events import EVERY_TABLE, Change, ResumePoint, RowChange, SourceTransaction

log = structlog.get_logger(__name__)

ASK_EVERY_S: Final = 0.5
"""How often requests are looked for."""
NO_BACKFILL: Final[Mapping[str, str]] = dict.fromkeys((CURSORS, CHOICE, PROGRESS, HOLDERS, REREADS), "")
"""The annotations of a source without a backfill."""
REPORT_EVERY_S: Final = 10.0
VOIDED_S: Final = 0.125
UNREADABLE_S: Final = 5.0
"""How long a table first waits that was voided, or could not be read. Meanwhile others are read."""
HELD_S: Final = 1.0
"""How long one waits that somebody holds up."""
PAUSE_MAX_S: Final = 600.0
"""How long one waits at most that is voided again and again, as by cascades: it would be published for ever."""
REREAD_ROWS_PER_S: Final = 100
"""Unless it is small: so many of its rows may be published again a second, on average. A topic grows by them."""
BEHIND_EVERY_S: Final = 0.25
"""How often a chunk is published while the server has more to say, or the batch is full: changes come first."""
IDLE_S: Final = 0.25
"""How long chunks are published one after the other while the server has nothing to say; then it is looked after."""
CHUNK_S: Final = 0.01
"""How long to wait for a chunk meanwhile: a change of the server waits as long."""
CALM: Final = 10
"""A table that was left alone for this many of its pauses, and `CALM_S`, begins with the first one again."""
CALM_S: Final = 5.0


class BackfillPublisher(Protocol):
    """What a backfill needs of `stream.publish.publisher.Publisher`."""

    def publish(self, txn: SourceTransaction) -> None: ...

    def annotate(self, annotations: Mapping[str, str]) -> None: ...

    def has_room(self, wait_s: float = 0.0, /) -> bool: ...


class Binlog(Protocol):
    """What a backfill needs of `stream.sources.mariadb.binlog.reader.BinlogReader`."""

    @property
    def has_more(self) -> bool: ...

    def has_reached(self, position: GtidPosition) -> bool: ...


class Reading(KeysReading, Protocol):
    """What a backfill needs of `stream.sources.mariadb.backfill.reading.ChunkReading`."""

    estimate: int

    def wait(self, seconds: float) -> bool: ...

    def take(self) -> None: ...


class Requests(Protocol):
    """What a backfill needs of `stream.kafka.requests.RequestsReader`."""

    def new(self, offset: int) -> list[tuple[int, bytes]]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """Which tables are read from the beginning (None: those that are asked for), and how fast.

    ``rows_per_s`` 0: as fast as the server answers. ``share``: of the source's time, at most. ``lag_max_s``: while the
    source is further behind its server, nothing is published; 0: always. ``piece_bytes``: of rows in one transaction,
    less than in a batch, so that none is split over two.
    """

    tables: TableFilter | None = None
    rows_per_s: int = 0
    share: float = 1.0
    lag_max_s: float = 0.0
    piece_bytes: int = PIECE_BYTES


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
        requests: Requests | None = None,
        words: Mapping[str, str] | None = None,
        family: Family | None = None,
        rereading: Rereading | None = None,
    ) -> None:
        """``words``: what else the source's state is to say. ``family``: what is told of each table's rows, too.

        ``rereading``: reads what foreign keys changed.
        """
        self._options = options
        self._choice = Choice.resume(options.tables, point.annotations)
        self._requests = requests
        self._words = words or {}
        self._ask_at, self._publish_at, self._give_way_until = 0.0, 0.0, 0.0
        self._publisher = publisher
        self._catalog = catalog
        self._plan = Plan.resume(point, self._options.piece_bytes)
        self._reading = reading
        self._status = status
        self._clock = clock
        self._family, self._rereading = family, rereading
        if rereading is not None:
            rereading.resume(point)
        self._learnt: dict[str, After | None] = {}
        """Complete tables that are read for the family alone, and the key up to which they are."""
        self._is_idle = False
        """Whether every table is complete, or can't be."""
        self._skipped: set[str] = set()
        self._began_at, self._report_at, self._began_with = 0.0, 0.0, 0
        self._pauses: dict[str, tuple[float, float]] = {}
        """Table → its last pause in seconds, and when that ends."""
        self._sizes: dict[str, int] = {}
        """Table → rows when it was last complete, or more by now."""
        self._look_at = 0.0
        """When a table's pause is over, if all that are left have one."""
        self._gone_at = 0.0
        """When to look whether a table is gone of which that was not said; `inf`: not before something is voided."""
        self._annotate()

    def begin_epoch(self, point: ResumePoint) -> None:
        """Nothing that was published before counts in a new epoch."""
        self._put_aside()
        self._plan = Plan.resume(point, self._options.piece_bytes)
        if self._family is not None:
            self._family.children.forget_all()
            self._learnt.clear()
        if self._rereading is not None:
            self._rereading.begin_epoch(point)
        self._annotate()
        self._is_idle, self._gone_at = False, 0.0

    def reconnect(self) -> None:
        """The binlog is read with a new connection, perhaps of another server: what was read ahead does not count."""
        self._put_aside()
        if self._rereading is not None:
            self._rereading.again()

    def notice(self, transaction: SourceTransaction) -> None:
        """Take note of a transaction that is about to be published.

        If it voids a table that has begun, its progress is forgotten first: a cursor must not outlive a void.
        """
        changes = transaction.changes
        if self._family is not None:
            self._tell_family(self._family, changes)
        if not len(changes) or type(changes[len(changes) - 1]) is RowChange:
            if self._is_idle:
                return
        else:
            self._is_idle, self._look_at, self._gone_at = False, 0.0, 0.0
        is_lost = self._plan.notice(transaction)
        self._pause(self._plan.lost, VOIDED_S)
        self._plan.lost.clear()
        if is_lost:
            if not self._plan.table:
                self._put_aside()
            self._annotate()

    def _tell_family(self, family: Family, changes: Sequence[Change]) -> None:
        voided = family.commit()
        _, void = rows_and_tables(changes)
        if EVERY_TABLE in void:
            family.children.forget_all()
            self._learnt.clear()
            voided = {}
        for table in void:
            family.children.forget(table)
            self._learnt.pop(table, None)  # else its backfill would be taken for learning
        if self._rereading is not None:
            self._rereading.notice(changes)
            self._rereading.add({table: keys for table, keys in voided.items() if table not in void})
            if voided:  # not later: a state with the void rows must have these words
                self._publisher.annotate(self._rereading.new_words())

    def step(self, position: str, timestamp: int, binlog: Binlog) -> bool:
        """Publish what may be published at ``position``, up to which everything is given to the publisher.

        Returns whether rows of a table were, or could be if they did not give way.
        """
        if self._requests is not None:
            self._take_requests(self._requests, position, timestamp)
        if self._rereading is not None:
            for transaction in self._rereading.step(position, timestamp, binlog.has_reached):
                if self._family is not None:
                    self._family.read_again(cast("Sequence[RowChange]", transaction.changes))
                self._publisher.publish(transaction)
            words = self._rereading.new_words()  # not before: a state without a key must have its row
            if words:
                self._publisher.annotate(words)
        if self._family is not None and self._family.children.is_changed:
            self._family.children.is_changed = self._is_idle = False
            self._look_at = 0.0
        if self._gone_at < inf and self._gone_at <= self._clock():
            self._empty(position, timestamp)
        if self._is_idle:
            return False
        if not self._plan.table:
            self._begin_next(position, timestamp)
        if self._reading.failed is not None:
            self._failed(self._reading.failed)
        if not self._plan.table or self._waits():
            return False
        goes_on = False
        began = self._clock() if self._options.share < 1 else 0.0
        for _ in range(AHEAD_MAX):  # not until the table ends: the source has a server to watch, and may be stopped
            chunk = self._reading.first
            if chunk is None or not self._plan.table or not binlog.has_reached(chunk.hi):
                break
            goes_on = True
            if self._gives_way(binlog):
                break
            if self._family is not None:
                self._family.fill(self._plan.table, self._plan.unchanged(chunk))
            if self._plan.table in self._learnt:
                self._learn(chunk)
                continue
            for transaction in self._plan.publish(chunk, position, timestamp):
                self._publisher.publish(transaction)
            self._annotate()  # not before: a cursor ahead of its rows would lose them
            if chunk.last is None and self._family is not None:
                self._family.children.complete(chunk.described.table)
            self._reading.take()
            if not self._plan.table:
                self._reading.want(None)  # else it would begin again
            self._note(chunk)
        if self._options.share < 1:
            now = self._clock()
            self._publish_at = now + (now - began) * (1 / self._options.share - 1)
        return goes_on

    def step_while_idle(self, position: str, timestamp: int, binlog: Binlog) -> None:
        """As `step`, again and again for a short time, while the server has nothing to say."""
        ends = self._clock() + IDLE_S
        goes_on = self.step(position, timestamp, binlog)
        while goes_on and self._plan.table and not binlog.has_more and self._clock() < ends:
            if self._publisher.has_room(CHUNK_S) and self._reading.wait(CHUNK_S):
                goes_on = self.step(position, timestamp, binlog)

    def close(self) -> None:
        """End the reading of chunks and of requests."""
        self._reading.close()
        if self._rereading is not None:
            self._rereading.close()
        if self._family is not None:
            self._family.children.close()
        if self._requests is not None:
            self._requests.close()

    def _annotate(self) -> None:
        """Have the source's state say how far everything is."""
        words = {
            **self._plan.annotations,
            **self._choice.annotations,
            **progress_annotations(self._status.backfill, self._status.tables_held),
        }
        self._publisher.annotate({**self._words, **words})

    def _take_requests(self, requests: Requests, position: str, timestamp: int) -> None:
        now = self._clock()
        if now < self._ask_at:
            return
        self._ask_at = now + ASK_EVERY_S
        found = requests.new(self._choice.offset)
        for after, value in found:
            self._choice.offset = after
            request, hot = read_request(value), read_hot_keys(value)
            if request is not None:
                self._take(request, position, timestamp)
            elif hot is not None:
                self._take_hot(hot)
        if found:
            self._annotate()

    def _take(self, request: BackfillRequest, position: str, timestamp: int) -> None:
        """Do what is asked: what is under way goes on, what is complete and named is read again."""
        table = request.table
        if not self._choice.ask(table, request.start):
            log.warning("no room to remember a request", table=table, hint="ask for every table, or use the settings")
            return
        log.info("backfill is asked for" if request.start else "backfill is cancelled", table=table or "every table")
        if request.start and table in self._plan.complete:
            self._publisher.publish(self._plan.begin(table, position, timestamp))
        if not request.start and self._plan.table and table in ("", self._plan.table):
            self._put_aside()
        for each in self._pauses.keys() & {table} if table else [*self._pauses]:
            del self._pauses[each]
        self._is_idle, self._look_at = False, 0.0

    def _take_hot(self, hot: HotKeys) -> None:
        """Read these rows of a table that is being read, or about to be, before its others."""
        table = hot.hot
        if self._rereading is None or table in self._plan.complete or not self._choice.wants(table):
            return
        if table in self._catalog.names:
            self._rereading.add({table: row_keys(self._catalog.description(table), hot.keys)})
            self._publisher.annotate(self._rereading.new_words())

    def _waits(self) -> bool:
        """Whether chunks are left unpublished for now: they have their share, or the source is behind."""
        lag_s, most_s = self._status.lag_seconds, self._options.lag_max_s
        paused = f"the source is {lag_s:.1f} s behind" if 0 < most_s < lag_s else ""
        if bool(paused) != bool(self._status.backfill.paused):
            self._status.backfill = replace(self._status.backfill, paused=paused)
            log.info("backfill pauses" if paused else "backfill goes on", table=self._plan.table, reason=paused)
            self._annotate()
        return bool(paused) or (self._options.share < 1 and self._clock() < self._publish_at)

    def _gives_way(self, binlog: Binlog) -> bool:
        """Whether the next chunk gives way to the server's changes: to those that wait already, and to the next ones,
        which would wait until all of a large batch is committed and folded.
        """
        now = self._clock()
        if now < self._give_way_until and (binlog.has_more or not self._publisher.has_room()):
            return True
        self._give_way_until = now + BEHIND_EVERY_S
        return False

    def _put_aside(self) -> None:
        self._reading.want(None)
        self._plan.put_aside()
        self._status.backfill = TableReading("")

    def _pause(self, tables: Iterable[str], first_s: float) -> None:
        now = self._clock()
        for table in tables:
            pause_s, until = self._pauses.get(table, (0.0, now))
            most_s = min(max(first_s, self._sizes.get(table, inf) / REREAD_ROWS_PER_S), PAUSE_MAX_S)
            pause_s = min(max(pause_s * 2, first_s), most_s) if now < until + max(CALM * pause_s, CALM_S) else first_s
            self._pauses[table] = pause_s, now + pause_s

    def _begin_next(self, position: str, timestamp: int) -> None:
        now = self._clock()
        if now < self._look_at:
            return
        described = [self._catalog.description(name) for name in self._catalog.names if self._choice.wants(name)]
        ends = self._pause_ends(left_tables(self._plan, described))
        self._keep_held(ends)
        held = self._status.tables_held
        due = [each for each, end in ends.items() if end <= now]
        table = min(due, key=lambda each: ends[each] if each in held else 0.0, default="")
        learnt_at = self._pause_ends(self._unlearnt())
        to_learn = "" if table else next((each for each, end in learnt_at.items() if end <= now), "")
        self._look_at = 0.0 if table or to_learn else min((*ends.values(), *learnt_at.values()), default=0.0)
        for each in described:
            if unfit(each) and each.table not in self._skipped:
                self._skipped.add(each.table)
                log.info("table is not backfilled", table=each.table, reason=unfit(each))
        self._status.tables_complete = len(self._plan.complete)
        self._is_idle = not ends and not learnt_at
        if to_learn:
            self._begin_learning(to_learn, position)
        if not table:
            return
        if table not in self._plan.cursors:
            self._publisher.publish(self._plan.begin(table, position, timestamp))
            if self._family is not None:
                self._family.children.begin(table)
            log.info("backfill begins", table=table, position=position)
        self._plan.take_up(table, position)
        after, rows = self._plan.cursors[table]
        self._status.backfill = TableReading(table, rows)
        self._annotate()
        self._began_at, self._report_at, self._began_with = now, now + REPORT_EVERY_S, rows
        self._reading.want(Wanted(self._catalog.description(table), after, GtidPosition.parse(position)))

    def _empty(self, position: str, timestamp: int) -> None:
        """Tables that were dropped are whole without a row, so that stores let go of the rows that they had.

        This does not wait until the table that is read is complete: after a restart the topic tells nothing of them.
        """
        names = (name for name in self._catalog.names - self._plan.complete if self._choice.wants(name))
        gone = self._pause_ends(sorted(name for name in names if is_missing(self._catalog.description(name))))
        now = self._clock()
        due = [name for name, end in gone.items() if end <= now]
        self._gone_at = min((end for end in gone.values() if end > now), default=inf)
        for table in due:
            for transaction in self._plan.empty(table, position, timestamp):
                self._publisher.publish(transaction)
            log.info("table is gone", table=table, position=position)
        if due:
            self._annotate()

    def _unlearnt(self) -> Iterator[str]:
        """Complete tables of whose rows the family does not know all: the source was restarted meanwhile."""
        if self._family is None:
            return iter(())
        names = self._plan.complete & self._catalog.names
        return self._family.children.unknown(name for name in names if not is_missing(self._catalog.description(name)))

    def _pause_ends(self, tables: Iterable[str]) -> dict[str, float]:
        return {table: self._pauses.get(table, (0.0, 0.0))[1] for table in tables}

    def _begin_learning(self, table: str, position: str) -> None:
        """Read a complete table once more, and publish nothing of it."""
        assert self._family is not None
        if self._family.children.knowledge(table) is Knowledge.NOTHING:
            self._family.children.begin(table)
            self._learnt[table] = None
            log.info("the rows of a table are read for its foreign keys", table=table)
        self._plan.take_up(table, position)
        self._reading.want(Wanted(self._catalog.description(table), self._learnt[table], GtidPosition.parse(position)))

    def _learn(self, chunk: Chunk) -> None:
        assert self._family is not None
        table = chunk.described.table
        self._learnt[table] = chunk.last
        self._reading.take()
        if chunk.last is None:
            del self._learnt[table]
            self._family.children.complete(table)
            self._reading.want(None)
            self._plan.put_aside()

    def _failed(self, error: MariaDBError) -> None:
        """The table can't be read: it was changed (a void of it is on its way), is locked, or may not be read."""
        if isinstance(error, TableHeld):
            self._hold(self._plan.table, str(error))
            return
        log.info("a table is read later", table=self._plan.table, code=error.code, reason=str(error))
        self._sizes.pop(self._plan.table, None)  # an attempt costs more than its rows
        self._pause([self._plan.table], UNREADABLE_S)
        self._put_aside()

    def _hold(self, table: str, why: str) -> None:
        """Go on with other tables, and look soon whether this one is free."""
        held = self._status.tables_held
        if held.get(table) != why:
            log.warning("a table's backfill is held up", table=table, reason=why, hint="end that; other tables go on")
            self._status.tables_held = {**held, table: why}
        self._pauses[table] = 0.0, self._clock() + HELD_S
        self._put_aside()
        self._annotate()

    def _keep_held(self, tables: Container[str]) -> None:
        """Only these may still be held up."""
        held = self._status.tables_held
        if any(table not in tables for table in held):
            self._status.tables_held = {table: why for table, why in held.items() if table in tables}
            self._annotate()

    def _note(self, chunk: Chunk) -> None:
        table, now = chunk.described.table, self._clock()
        self._keep_held(self._status.tables_held.keys() - {table})
        self._status.backfilled_rows += len(chunk.rows)
        if table not in self._plan.cursors:
            self._sizes[table] = self._status.backfill.rows + len(chunk.rows)
            self._status.backfill = TableReading("")
            self._status.tables_complete = len(self._plan.complete)
            log.info("table is complete", table=table)
            return
        rows = self._plan.cursors[table].rows
        if table in self._sizes:
            self._sizes[table] = max(self._sizes[table], rows)
        rate = round((rows - self._began_with) / max(now - self._began_at, 0.001))
        progress = self._status.backfill = TableReading(table, rows, self._reading.estimate, rate)
        if now >= self._report_at:
            self._report_at = now + REPORT_EVERY_S
            log.info("backfill", table=table, rows=rows, rows_per_s=rate, eta_s=progress.eta_s)
