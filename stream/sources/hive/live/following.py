"""Follows a metastore's log with one publisher: events, the images of what they changed, and the sweep of a catalog.

An image is published only if nothing touched its table between the position before it was read and the one after. So
the log is read past the latter first. See docs/concepts/catalog.md, *The log is a hint*.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

import structlog

from stream.sources.hive.live.connection import MetastoreError
from stream.sources.hive.live.fetching import CHUNK_TABLES, Fetched, Fetcher
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings, Transactions
from stream.sources.hive.live.objects import Objects
from stream.sources.hive.live.progress import Progress, checksum_of
from stream.sources.hive.live.recent_ids import RecentWriteIds
from stream.sources.hive.messages import FLAVOR, HiveMessageError, TableObject
from stream.sources.hive.translator import HiveTranslator
from stream.sources.status import SourceStatus
from stream.wire.events import (
    EVERY_TABLE,
    AbortTransaction,
    AllocateWriteId,
    BindName,
    Change,
    CommitTransaction,
    ObjectImage,
    ObjectSet,
    OpenTransaction,
    ResumePoint,
    SourceTransaction,
    TableImage,
    VoidTable,
)
from tokens.errors import FreshetError, one_line

log = structlog.get_logger(__name__)

EVENTS_MAX: Final = 500
"""Events that are read with one call."""
END_CHECK_S: Final = 1.0
"""How often a log that has nothing new is compared with the server's last event."""
AHEAD: Final = 16
"""Chunks of a sweep that are fetched ahead of the one that is published."""
REPORT_S: Final = 10.0
"""How often a sweep tells how far it is."""


class HiveHistoryLost(FreshetError):
    """The log no longer continues what was published; code ``history_lost``."""

    code = "history_lost"


class PublisherLike(Protocol):
    """What is used of a `stream.publish.publisher.Publisher`."""

    def publish(self, txn: SourceTransaction) -> None:
        """See there."""

    def flush(self) -> None:
        """See there."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """How to follow. ``threads`` and ``list_age_s``: of a sweep. ``reconcile_s``: between two looks at transactions."""

    settings: MetastoreSettings
    shard: str
    threads: int = 8
    list_age_s: float = 60.0
    reconcile_s: float = 30.0
    poll_s: float = 0.1


class Following:
    """One run over the log, from ``resume`` on. ``transactions``: of the server, at the beginning of an epoch."""

    def __init__(
        self,
        options: FollowOptions,
        publisher: PublisherLike,
        metastore: Metastore,
        resume: ResumePoint,
        status: SourceStatus,
        transactions: Transactions | None = None,
    ) -> None:
        self._options = options
        self._publisher = publisher
        self._metastore = metastore
        self._status = status
        self._at = event_id_of(resume.position)
        self._time = resume.timestamp
        self._checksum = resume.checksum
        self._progress = Progress(resume.cursor)
        self._fetcher = Fetcher(options.settings, options.threads, options.list_age_s)
        self._sweep: Sweep | None = None
        self._recent = RecentWriteIds(self._at)
        self._touched: dict[str, int] = {}
        """Table → the last event that wrote, made, dropped or renamed it, since no fetch was under way."""
        self._rebound: dict[str, int] = {}
        """Name → the last event that bound it to a table, or to none, since no fetch was under way."""
        opened = resume.open_transactions
        if transactions is not None:
            opened = {txn: OpenTransaction(txn) for txn in transactions.open}
        self._translator = HiveTranslator(
            open_transactions=opened.values(), names=resume.names, catalog=options.settings.catalog
        )
        self._translator.last_event_id = self._at
        self._objects = Objects(
            metastore,
            self._publish,
            self._read_to_end,
            self._translator.name_of,
            lambda name: self._rebound.get(name, 0),
        )
        if self._progress.objects_due:
            self._objects.want_catalog()
        self._unsure = set(self._progress.dirty)
        """Tables of which it isn't known whether their partitions were published before a restart."""
        if transactions is not None:
            self._publish([], tuple(opened.values()))
        self._end_check_at_s = self._reconcile_at_s = time.monotonic()
        self._reconcile_at_s += options.reconcile_s

    def close(self) -> None:
        """End the fetching threads."""
        self._fetcher.close()

    def step(self) -> bool:
        """Do what is due; False if there was nothing to do.

        Raises `HiveHistoryLost`, `MetastoreError`, `PublisherLost`.
        """
        if self._read_events() == EVENTS_MAX:
            return True
        worked = self._fetch_dirty() or self._fetch_objects()
        worked = worked or self._go_on_with_sweep()
        return self._reconcile() or worked

    # --- the log ---

    def _read_events(self) -> int:
        """Publish the next events; how many there were."""
        rows = self._metastore.events(self._at, EVENTS_MAX)
        if not rows:
            self._check_end()
            return 0
        if rows[0]["eventId"] > self._at + 1:
            raise HiveHistoryLost(f"the log has no event {self._at + 1}: its first one is {rows[0]['eventId']}")
        for row in rows:
            self._take(row)
        return len(rows)

    def _check_end(self) -> None:
        """The log has nothing after our position: is that its end? Raises `HiveHistoryLost`."""
        if time.monotonic() < self._end_check_at_s:
            return
        self._end_check_at_s = time.monotonic() + END_CHECK_S
        end = self._metastore.last_event()
        if end < self._at:
            raise HiveHistoryLost(f"the log ends at event {end}, and event {self._at} was published")
        if end > self._at and not self._metastore.events(self._at, 1):
            raise HiveHistoryLost(f"the log's last event is {end}, and what follows event {self._at} was deleted")
        self._publisher.flush()  # raises if the publisher was lost meanwhile

    def _drain(self, upto: int) -> None:
        while self._at < upto:
            if not self._read_events() and self._at < upto:
                self._end_check_at_s = 0.0
                self._check_end()

    def _take(self, row: dict[str, Any]) -> None:
        """Translate and publish one event, and note what must be fetched."""
        txn = self._translator.translate(row)
        if txn is None:
            return
        event_id = row["eventId"]
        self._at, self._time, self._checksum = event_id, txn.timestamp, checksum_of(row)
        self._recent.note(event_id, self._translator.write_id_changes)
        for change in txn.changes:
            self._note(event_id, change)
        unresolved = self._translator.take_unresolved()
        if unresolved:
            log.info("commit of a transaction that was not seen", event=event_id, tables=len(unresolved))
            self._progress.touch(unresolved)
        txn.checksum, txn.cursor = self._checksum, self._progress.cursor(self._objects.tables)
        self._publisher.publish(txn)
        self._note_status()

    def _note(self, event_id: int, change: Change) -> None:
        progress = self._progress
        match change:
            case TableImage(change="dropped"):
                self._objects.forget(change.table_id)
                self._touched[change.name] = event_id
                progress.done(change.name)
            case TableImage():
                self._touched[change.name] = event_id
                progress.touch([change.name])
            case BindName():
                self._rebound |= dict.fromkeys((change.name, change.previous_name), event_id)
                self._touched |= dict.fromkeys((change.name, change.previous_name), event_id)
                progress.done(change.previous_name)
                if change.table_id:
                    progress.touch([change.name])
            case VoidTable(table=table) if table == EVERY_TABLE:
                log.warning("everything is fetched again", event=event_id, reason=change.reason)
                self._end_sweep()
                progress.begin_sweep()
                self._objects.want_catalog()
            case ObjectImage() | ObjectSet():
                self._objects.note(change)
                progress.objects_due = self._objects.is_due
            case VoidTable():
                self._unsure.add(change.table)
                self._touched[change.table] = event_id
                progress.touch([change.table])
            case AbortTransaction() | CommitTransaction():
                is_commit = isinstance(change, CommitTransaction)
                self._recent.ended(event_id, change.txn, committed=is_commit)
                if not is_commit:  # no DDL is rolled back: the image that follows the abort counts
                    names = {self._translator.name_of(table_id) for table_id, _ in change.write_ids}
                    progress.touch(names - {""})

    def _publish(
        self, changes: list[Change], opened: tuple[OpenTransaction, ...] = (), closed: tuple[int, ...] = ()
    ) -> None:
        """Publish what the source adds to the event that was read last."""
        position = f"{FLAVOR}/{self._at}"
        self._publisher.publish(
            SourceTransaction(
                position,
                position,
                self._time,
                changes,
                opened=opened,
                closed=closed,
                checksum=self._checksum,
                cursor=self._progress.cursor(self._objects.tables),
            )
        )
        self._note_status()

    def _note_status(self) -> None:
        status = self._status
        status.transactions += 1
        status.position, status.timestamp = f"{FLAVOR}/{self._at}", self._time

    def _read_to_end(self) -> int:
        """Publish the events up to the server's last one, and return that."""
        end = self._metastore.last_event()
        self._drain(end)
        return end

    # --- images ---

    def _fetch_objects(self) -> bool:
        worked = self._objects.step()
        if worked and self._progress.objects_due != self._objects.is_due:
            self._progress.objects_due = self._objects.is_due
            self._publish([])
        return worked

    def _fetch_dirty(self) -> bool:
        names = tuple(islice(self._progress.dirty, CHUNK_TABLES))
        if not names:
            return False
        self._take_fetched(self._fetcher.submit(names, is_fresh=True).result())
        return True

    def _take_fetched(self, fetched: Fetched) -> None:
        """Read the log past the fetch, then publish each table that nothing touched meanwhile."""
        self._drain(fetched.hi)
        settled = [name for name in fetched.names if self._touched.get(name, 0) <= fetched.lo]
        holders = self._unknown_holders(fetched, settled)
        for name in settled:
            self._publish_table(name, fetched, holders.get(name, {}))

    def _unknown_holders(self, fetched: Fetched, names: Iterable[str]) -> dict[str, dict[int, int]]:
        """The transactions of open ids that were allocated before the log was read."""
        wanted: dict[str, set[int]] = {}
        for name in names:
            table, listed = fetched.tables.get(name), fetched.lists.get(name)
            if isinstance(table, TableObject) and table.transactional and listed is not None:
                unknown = {*listed.open} - self._translator.holders(name).keys()
                if unknown:
                    wanted[name] = unknown
        if not wanted:
            return {}
        return self._metastore.holders(wanted, fetched.transactions.open, fetched.transactions.hwm)

    def _publish_table(self, name: str, fetched: Fetched, holders: dict[int, int]) -> None:
        table = fetched.tables.get(name)
        self._progress.done(name)
        if table is None:
            gone = self._translator.forget(name)
            if gone:
                self._publish(gone)
            return
        if isinstance(table, HiveMessageError):
            self._publish([VoidTable(name, one_line(f"it cannot be read: {table}"))])
            return
        changes, opened = self._translator.bind(table), {}
        kind, listed, write_ids = "external", fetched.lists.get(name), None
        if table.transactional:
            if listed is None:
                return
            ids, kind = listed.write_ids(), "transactional"
            if not self._recent.brought_forward(name, ids, fetched.listed_at, holders):
                self._progress.touch([name])
                return
            write_ids = ids.full_text(name)
            for write_id, txn in holders.items():
                described = self._translator.restore(name, txn, write_id)
                if described is not None:
                    opened[txn] = described
            held = holders | self._translator.holders(name)
            still_open = {write_id for write_id, _ in ids.open}
        lo, hi = f"{FLAVOR}/{fetched.lo}", f"{FLAVOR}/{fetched.hi}"
        changes.append(
            TableImage(
                table.table_id,
                name,
                kind,
                "image",
                image=table.image,
                struct=table.struct,
                write_ids=write_ids,
                lo=lo,
                hi=hi,
            )
        )
        if table.transactional:
            changes += [
                AllocateWriteId(table.table_id, txn, write_id)
                for write_id, txn in sorted(held.items())
                if write_id in still_open
            ]
        if table.partition_keys and (self._sweep is not None or name in self._unsure):
            self._objects.want_partitions(table.table_id)
        self._unsure.discard(name)
        self._publish(changes, tuple(opened.values()))

    # --- the sweep ---

    def _go_on_with_sweep(self) -> bool:
        if not self._progress.sweeping:
            return False
        sweep = self._sweep
        if sweep is None:
            sweep = self._sweep = Sweep(self._metastore, self._fetcher, self._progress.swept)
            log.info("sweep begins", shard=self._options.shard, tables=sweep.total, after=self._progress.swept)
        try:
            fetched = sweep.next()
            if fetched is not None:
                self._take_fetched(fetched)
        except MetastoreError:
            self._end_sweep()  # its chunks are fetched again, after those that were published
            raise
        if fetched is not None:
            if self._sweep is not sweep:  # an event voided everything meanwhile
                return True
            self._progress.swept = fetched.names[-1]
            self._status.tables_complete += len(fetched.names)
            self._recent.forget(min(self._fetcher.oldest_list(), fetched.listed_at))
            sweep.report(self._options.shard)
            self._publish([])
            return True
        if not sweep.is_over:
            return False
        self._end_sweep()
        gone = [
            name for name in self._translator.tables if name not in sweep.listed and name not in self._progress.dirty
        ]
        self._progress.touch(gone)  # those that exist were made meanwhile; the others are forgotten
        self._progress.sweeping = False
        self._publish([])
        log.info("sweep complete", shard=self._options.shard, tables=sweep.total, seconds=round(sweep.seconds, 1))
        return True

    def _end_sweep(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    # --- transactions that ended without an event ---

    def _reconcile(self) -> bool:
        """Abort the transactions that seem open here and are not open at the server."""
        if time.monotonic() < self._reconcile_at_s:
            return False
        self._reconcile_at_s = time.monotonic() + self._options.reconcile_s
        known = self._metastore.transactions()
        self._drain(self._metastore.last_event())
        ended = [txn for txn in self._translator.open_transactions if txn <= known.hwm and txn not in known.open]
        for txn in sorted(ended):
            changes = self._translator.abort_unlogged(txn)
            self._recent.note(self._at, self._translator.write_id_changes)
            for change in changes:
                self._note(self._at, change)
            self._publish(changes, closed=(txn,))
        if ended:
            log.info("aborts without an event", shard=self._options.shard, transactions=len(ended))
        if self._sweep is None:
            self._recent.forget(self._at)
            self._touched.clear()
            self._rebound.clear()
        return bool(ended)


class Sweep:
    """Fetches all tables of the catalog after the name ``after``, chunk by chunk, some of them ahead."""

    def __init__(
        self, metastore: Metastore, fetcher: Fetcher, after: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        names = sorted(name for db in metastore.databases() for name in metastore.table_names(db))
        self.listed = frozenset(name.lower() for name in names)
        left = [name for name in sorted(self.listed) if name > after]
        self.total = len(left)
        self._chunks = deque(tuple(left[at : at + CHUNK_TABLES]) for at in range(0, len(left), CHUNK_TABLES))
        self._fetcher = fetcher
        self._under_way: deque[Future[Fetched]] = deque()
        self._clock = clock
        self._began_s = self._reported_s = clock()
        self._done = 0

    @property
    def is_over(self) -> bool:
        """Whether every chunk was given out."""
        return not self._chunks and not self._under_way

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._began_s

    def next(self) -> Fetched | None:
        """The next chunk in the order of names, if it is there. Raises what its fetch raised."""
        while self._chunks and len(self._under_way) < AHEAD:
            self._under_way.append(self._fetcher.submit(self._chunks.popleft()))
        if not self._under_way or not self._under_way[0].done():
            return None
        fetched = self._under_way.popleft().result()
        self._done += len(fetched.names)
        return fetched

    def cancel(self) -> None:
        """Drop what has not begun."""
        for future in self._under_way:
            future.cancel()

    def report(self, shard: str) -> None:
        """Say, once in a while, how far it is and when it will be over."""
        now_s = self._clock()
        if now_s - self._reported_s < REPORT_S:
            return
        self._reported_s = now_s
        rate = self._done / (now_s - self._began_s)
        left_s = round((self.total - self._done) / rate) if rate else -1
        log.info("sweep", shard=shard, tables=self._done, of=self.total, per_second=round(rate, 1), left_s=left_s)


def event_id_of(position: str) -> int:
    """The event id in ``HiveEvent/<id>``."""
    return int(position.removeprefix(f"{FLAVOR}/"))
