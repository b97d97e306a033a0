"""Follows a metastore's log with one publisher: events, the images of what they changed, and the sweep of a catalog.

An image is published only if nothing touched its table between the position before it was read and the one after. So
the log is read past the latter first. See docs/concepts/catalog.md, *The log is a hint*.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import structlog

from stream.sources.hive.foreign_keys import ForeignKeys
from stream.sources.hive.live.details import Details
from stream.sources.hive.live.fetching import CHUNK_TABLES, Fetched, Fetcher, Sweep
from stream.sources.hive.live.images import Images
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings, Transactions
from stream.sources.hive.live.notification_log import NotificationLog
from stream.sources.hive.live.objects import Objects
from stream.sources.hive.live.partitions import Partitions
from stream.sources.hive.live.pointing import brought_to_light
from stream.sources.hive.progress import Progress
from stream.sources.hive.recent_drops import RecentDrops
from stream.sources.hive.recent_ids import RecentWriteIds
from stream.sources.hive.translator import HiveTranslator
from stream.sources.status import SourceStatus
from stream.wire.events import (
    EVERY_TABLE,
    AbortTransaction,
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

log = structlog.get_logger(__name__)


class PublisherLike(Protocol):
    """What is used of a `stream.publish.publisher.Publisher`."""

    def publish(self, txn: SourceTransaction) -> None:
        """See there."""

    def stamp(self, as_of_ms: int) -> None:
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
        self._log = NotificationLog(metastore, resume, status)
        self._progress = Progress(resume.cursor)
        self._progress.catalog = options.settings.catalog
        self._fetcher = Fetcher(options.settings, options.threads, options.list_age_s)
        self._sweep: Sweep[Fetched] | None = None
        self._swept_names: frozenset[str] = frozenset()
        """The tables that the server listed when the sweep began."""
        self._recent = RecentWriteIds(self._log.at)
        self._drops = RecentDrops()
        self._rebound: dict[str, int] = {}
        """Name → the last event that bound it to a table, or to none, since no fetch was under way."""
        opened = resume.open_transactions
        if transactions is not None:
            opened = {txn: OpenTransaction(txn) for txn in transactions.open}
        self._translator = HiveTranslator(
            open_transactions=opened.values(), names=resume.names, catalog=options.settings.catalog
        )
        self._translator.last_event_id = self._log.at
        self._translated: tuple[dict[str, Any], SourceTransaction] | None = None
        """An event of the log that was translated, and is not published yet."""
        self._compose()
        known = self._translator.tables
        self._partitions.note_untold(known[name] for name in self._progress.untold if name in known)
        if self._progress.objects_due:
            self._objects.want_catalog()
        if transactions is not None:
            self._publish([], tuple(opened.values()))
        self._reconcile_at_s = time.monotonic() + options.reconcile_s

    def _compose(self) -> None:
        """What fetches and publishes: each kind of thing has its own."""
        translator, metastore = self._translator, self._metastore

        def rebound_at(name: str) -> int:
            return self._rebound.get(name, 0)

        self._foreign_keys = ForeignKeys(self._progress.keys, translator.name_of, translator.is_bound)
        self._objects = Objects(metastore, self._publish, self._read_to_end, self._drops)
        self._partitions = Partitions(
            self._fetcher, self._publish, self._read_to_end, self._drain, translator.name_of, rebound_at, self._drops
        )
        self._details = Details(
            self._fetcher,
            self._progress,
            self._publish,
            self._drain,
            lambda: translator.tables,
            translator.name_of,
            rebound_at,
            lambda name: self._images.touched.get(name, 0),
            self._partitions,
            self._foreign_keys,
            self._options.shard,
        )
        self._images = Images(
            metastore,
            translator,
            self._recent,
            self._progress,
            self._partitions,
            self._details,
            self._publish,
            self._drain,
        )

    def close(self) -> None:
        """End the fetching threads."""
        self._fetcher.close()

    def step(self) -> bool:
        """Do what is due; False if there was nothing to do.

        Raises `HiveHistoryLost`, `MetastoreError`, `PublisherLost`.
        """
        self._fetcher.arrived.clear()
        self._read_events()
        if self._log.goes_on:
            return True
        written = self._fetch_dirty, self._fetch_objects, self._partitions.step, self._details.step
        worked = False
        for work in (*written, self._go_on_with_sweep, self._details.go_on_with_sweep):
            if work():  # a table that is written without a pause keeps neither the others waiting nor the log
                worked = True
                self._read_events()
        worked = self._partitions.go_on() or worked
        worked = self._partitions.ask_again() or worked
        return self._reconcile() or worked

    @property
    def has_swept(self) -> bool:
        """Whether every table of the catalog was published."""
        return not self._progress.sweeping

    @property
    def has_partitions(self) -> bool:
        """Whether every partition of the tables was published."""
        return self.has_swept and self._progress.parted is None and not self._partitions.tables

    @property
    def is_complete(self) -> bool:
        """Whether what belongs to the tables was published too."""
        is_idle = not self._partitions.tables and not self._details.tables and not self._progress.dirty
        return self.has_swept and self._progress.detailed is None and is_idle

    def wait(self, stopping: threading.Event, seconds: float) -> None:
        """After a step that had nothing to do: until something arrives that was asked for, or ``seconds``."""
        if self._sweep or self._details.is_under_way or self._partitions.is_under_way:
            self._fetcher.arrived.wait(seconds)
        else:
            stopping.wait(seconds)

    # --- the log ---

    def _read_events(self) -> int:
        """Publish the next events; how many there were."""
        self._take_translated()
        rows = self._log.read()
        for row in rows:
            self._take(row)
        as_of_ms = self._log.passed_all(rows)
        if as_of_ms is not None:
            self._publisher.stamp(as_of_ms)
            self._status.caught_up(as_of_ms)
            if not rows:
                self._publisher.flush()  # raises if the publisher was lost meanwhile
        return len(rows)

    def _drain(self, upto: int) -> None:
        while self._log.at < upto:
            if not self._read_events() and self._log.at < upto:
                self._log.lack(upto)
                self._fetcher.arrived.wait(self._options.poll_s)

    def _take(self, row: dict[str, Any]) -> None:
        """Translate and publish one event, and note what must be fetched."""
        txn = self._translator.translate(row)
        if txn is not None:
            self._translated = row, txn
            self._take_translated()

    def _take_translated(self) -> None:
        """Publish the event that was translated last, if it is not; the metastore may not have answered what is asked
        of it first."""
        if self._translated is None:
            return
        row, txn = self._translated
        translator = self._translator
        others = brought_to_light(self._metastore, row, txn.changes, translator.name_of, lambda: translator.tables)
        self._translated = None
        event_id = row["eventId"]
        self._log.passed(row, txn.timestamp)
        self._recent.note(event_id, self._translator.write_id_changes)
        writes = self._foreign_keys.writes
        news = [each for each in others if writes.is_news(each.table_id, event_id)]
        txn.changes = [*txn.changes, *writes.freed_with(row["eventType"], txn.changes)]
        pointing = self._foreign_keys.changed_with(event_id, txn.changes)
        txn.changes = [*txn.changes, *news, *(each for each in pointing if each not in news)]
        self._drops.note(event_id, txn.changes)
        writes.note(event_id, txn.changes)
        for change in txn.changes:
            self._note(event_id, change)
        self._images.touched |= dict.fromkeys(self._translator.unbound, event_id)
        if row["eventType"] == "COMMIT_TXN":
            self._images.committed |= {each.name: event_id for each in self._translator.write_id_changes}
        self._progress.touch([*self._translator.unbound, *self._translator.skipped])
        self._look_up(event_id)
        txn.checksum, txn.cursor = self._log.checksum, self._cursor()
        self._publisher.publish(txn)
        self._note_status()

    def _look_up(self, event_id: int) -> None:
        """Have the lists fetched that may lack a COMMIT by a transaction whose beginning was not seen."""
        commits = len(self._translator.unresolved)
        if not commits:
            return
        tables = self._translator.take_unresolved()
        self._images.unseen_commit_at = event_id
        self._status.commits_looked_up += commits
        log.info("commit of a transaction that was not seen", at=event_id, tables=len(tables))
        self._progress.touch(tables)

    def _note(self, event_id: int, change: Change) -> None:
        progress = self._progress
        match change:
            case TableImage(change="dropped"):
                self._partitions.forget(change.table_id)
                self._drops.forget(change.table_id)
                self._images.touched[change.name] = event_id
                progress.done(change.name)
            case TableImage():
                self._images.touched[change.name] = event_id
                progress.touch([change.name])
                if change.change == "created":
                    self._details.want(change.table_id)
            case BindName():
                self._rebound |= dict.fromkeys((change.name, change.previous_name), event_id)
                self._images.touched |= dict.fromkeys((change.name, change.previous_name), event_id)
                progress.done(change.previous_name)
                if change.table_id:
                    progress.touch([change.name])
            case VoidTable(table=table) if table == EVERY_TABLE:
                log.warning("everything is fetched again", at=event_id, reason=change.reason)
                self._end_sweep()
                self._details.end_sweep()
                self._partitions.void()
                self._details.void()
                self._images.voided_at = event_id
                self._fetcher.forget_lists(event_id)
                self._recent.forget(event_id)  # what was said of ids may be of tables that have other names by now
                progress.begin_sweep()
                self._objects.want_catalog()
            case ObjectImage(kind="constraints" | "statistics"):
                self._details.want(change.table_id)
            case ObjectImage(kind="partition" | "aggregate_statistics") | ObjectSet(kind="partition"):
                self._partitions.note(change)
            case ObjectSet(kind="partition_statistics", change="void"):
                self._partitions.void(change.table_id)
                self._partitions.want(change.table_id)
            case ObjectImage() | ObjectSet():
                self._objects.note(change)
                progress.objects_due = self._objects.is_due
            case VoidTable():
                self._partitions.void(self._translator.tables.get(change.table, 0))
                self._details.void()
                self._images.unsure.add(change.table)
                self._images.touched[change.table] = event_id
                progress.touch([change.table])
            case AbortTransaction() | CommitTransaction():
                is_commit = isinstance(change, CommitTransaction)
                self._recent.ended(event_id, change.txn, committed=is_commit)
                names = {self._translator.name_of(table_id) for table_id, _ in change.write_ids}
                self._images.ended(event_id, names - {""}, committed=is_commit)

    def _publish(
        self, changes: list[Change], opened: tuple[OpenTransaction, ...] = (), closed: tuple[int, ...] = ()
    ) -> None:
        """Publish what the source adds to the event that was read last."""
        at, position = self._log.at, self._log.position
        others = self._foreign_keys.changed_with(at, changes)
        for each in others:
            self._note(at, each)
        changes = [*changes, *others]
        self._drops.note(at, changes)
        self._foreign_keys.writes.note(at, changes)
        self._publisher.publish(
            SourceTransaction(
                position,
                position,
                self._log.timestamp,
                changes,
                opened=opened,
                closed=closed,
                checksum=self._log.checksum,
                cursor=self._cursor(),
            )
        )
        self._note_status()

    def _cursor(self) -> str:
        due = [*self._partitions.tables, *self._details.tables]
        refused = [*self._partitions.refused, *self._details.refused, *self._images.unreadable]
        left = [*due, *refused, *self._images.unheld]
        return self._progress.cursor(left, self._partitions.untold, self._foreign_keys.told)

    def _note_status(self) -> None:
        status = self._status
        status.transactions += 1
        status.position, status.timestamp = self._log.position, self._log.timestamp

    def _read_to_end(self) -> int:
        """Publish the events up to the server's last one, and return the last that was published.

        It may be later than the one that was asked for, and what is noted of it must count as known before a fetch.
        """
        self._drain(self._metastore.last_event())
        return self._log.at

    # --- images ---

    def _fetch_objects(self) -> bool:
        worked = self._objects.step()
        if worked and self._progress.objects_due != self._objects.is_due:
            self._progress.objects_due = self._objects.is_due
            self._publish([])
        return worked

    def _fetch_dirty(self) -> bool:
        self._images.try_again()
        names = tuple(islice(self._progress.dirty, CHUNK_TABLES))
        if not names:
            return False
        unreadable = self._images.unreadable  # what may last until a call is given up is no part of a larger one
        names = names[:1] if names[0] in unreadable else tuple(each for each in names if each not in unreadable)
        fetched = self._fetcher.submit(names, is_fresh=True).result()
        self._images.take(fetched, in_sweep=self._sweep is not None)
        return True

    # --- the sweep ---

    def _go_on_with_sweep(self) -> bool:
        if not self._progress.sweeping:
            return False
        sweep = self._sweep
        if sweep is None:
            sweep = self._sweep = self._begin_sweep()
            log.info("sweep begins", shard=self._options.shard, tables=sweep.total, after=self._progress.swept)
        try:
            fetched = sweep.next()
            if fetched is not None:
                self._images.take(fetched, in_sweep=True)
        except BaseException:
            self._end_sweep()  # its chunks are fetched again, after those that were published
            raise
        if fetched is not None:
            if self._sweep is not sweep:  # an event voided everything meanwhile
                return True
            self._progress.swept = fetched.names[-1]
            self._status.tables_complete += len(fetched.names)
            self._details.keep(fetched.tables.values(), fetched.lo)
            self._recent.forget(min(self._fetcher.oldest_list(), fetched.listed_at))
            sweep.report("sweep", self._options.shard)
            self._publish([])
            return True
        if not sweep.is_over:
            return False
        self._end_sweep()
        gone = [
            name
            for name in self._translator.tables
            if name not in self._swept_names and name not in self._progress.dirty
        ]
        self._progress.touch(gone)  # those that exist were made meanwhile; the others are forgotten
        self._progress.sweeping = False
        self._images.unsure.update(self._progress.dirty)  # what belongs to them may be in no sweep
        self._publish([])
        log.info("sweep complete", shard=self._options.shard, tables=sweep.total, seconds=round(sweep.seconds, 1))
        return True

    def _begin_sweep(self) -> Sweep[Fetched]:
        metastore = self._metastore
        names = {name.lower() for db in metastore.databases() for name in metastore.table_names(db)}
        self._swept_names = frozenset(names)
        left = [name for name in sorted(names) if name > self._progress.swept]
        return Sweep(left, self._fetcher.submit, CHUNK_TABLES)

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
            self._recent.note(self._log.at, self._translator.write_id_changes)
            for change in changes:
                self._note(self._log.at, change)
            self._publish(changes, closed=(txn,))
        self._progress.touch(self._images.unheld)
        if ended:
            log.info("aborts without an event", shard=self._options.shard, transactions=len(ended))
        if not self._progress.sweeping:  # what else is being fetched brings no lists
            self._recent.forget(self._log.at)
        if not (self._progress.sweeping or self._progress.detailed is not None or self._partitions.is_under_way):
            self._images.touched.clear()
            self._images.committed.clear()
            self._rebound.clear()
            self._foreign_keys.settled()
        return bool(ended)
