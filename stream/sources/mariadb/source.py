"""The source of a MariaDB shard: reads the binlog and publishes it, and survives outages of MariaDB and Kafka.

It resumes from the position in the topic. It keeps no state elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, cast

import structlog
import xxhash

from stream.kafka.connection import KafkaUnreachable
from stream.publish.publisher import PublisherLost
from stream.sources.mariadb.binlog.coalesce import SPILL_BYTES
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, connect, translated
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import ServerPosition, SourceHistoryLost, check_resumable, current_position
from stream.sources.mariadb.requirements import ServerSettingsError, check_server
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.watch import DumpWatch
from stream.wire.events import (
    EVERY_TABLE,
    Change,
    DescribeTable,
    ResumePoint,
    RowChange,
    SourceTransaction,
    VoidTable,
)
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
_OUTAGES = {"fenced": "another source has this shard", "kafka_unreachable": "Kafka is unreachable"}
IMAGE_FORMAT = 2
"""Raise it when the canonical image of any value changes. Everything published before is then voided."""


class PublisherLike(Protocol):
    """The methods of `stream.publish.publisher.Publisher` that a source uses."""

    def open(self, start_if_new: Callable[[], tuple[str, int]]) -> ResumePoint: ...

    def publish(self, txn: SourceTransaction) -> None: ...

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how. ``server_id`` must differ from those of the server and of all its other replicas."""

    settings: ConnectionSettings
    shard: str
    tables: TableFilter = field(default_factory=TableFilter)
    server_id: int = 4380
    spill_bytes: int = SPILL_BYTES
    heartbeat_s: float = 0.25
    new_epoch: bool = False


class MariaDBSource:
    """Publishes one server's binlog until it is stopped. Call `run` in one thread, `stop` from any thread."""

    def __init__(
        self,
        options: SourceOptions,
        new_publisher: Callable[[], PublisherLike],
        on_ready: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._new_publisher = new_publisher
        self._on_ready = on_ready
        self._stopping = threading.Event()
        self._reader: BinlogReader | None = None
        self._new_epoch_for = "asked_for" if options.new_epoch else ""
        self._backoff_s = BACKOFF_FIRST_S
        self._outage = ""
        self.transactions = 0

    def stop(self) -> None:
        """End `run` gracefully: everything read so far is published. Safe in a signal handler."""
        self._stopping.set()
        reader = self._reader
        if reader is not None:
            reader.stop()

    def run(self) -> None:
        """Publish until `stop`. Outages of Kafka and MariaDB are waited out; other errors are raised.

        Raises `FreshetError`: ``bad_server_settings``, ``binlog_purged``, ``unknown_domain``…
        """
        while not self._stopping.is_set():
            try:
                self._publish()
            except (PublisherLost, KafkaUnreachable) as error:
                self._wait(_OUTAGES.get(error.code, "publisher lost"), error)

    def _publish(self) -> None:
        """Run with one publisher, until stopped. Raises `PublisherLost`, `KafkaUnreachable`."""
        publisher = self._new_publisher()
        try:
            resume = self._open_publisher(publisher)
            if resume is None:
                return
            self._follow(publisher, resume)
            publisher.close()
        except BaseException:
            publisher.abandon()
            raise

    def _open_publisher(self, publisher: PublisherLike) -> ResumePoint | None:
        """Open the publisher and return the resume point; None if stopped meanwhile.

        The server is checked first, because opening a publisher fences any other source of the shard: a source with a
        wrong password, host or server must not stop one that works. It also waits while MariaDB is unreachable,
        although the topic alone tells where to resume. Otherwise a second source with a wrong address would take the
        shard from the healthy one every few seconds. The cost: after a crash during an outage of MariaDB, no markers
        are published until MariaDB is back.
        """
        while not self._stopping.is_set():
            try:
                self._check_server()
                return publisher.open(self._first_position)
            except MariaDBUnreachable as error:
                self._wait("MariaDB is unreachable", error)
        return None

    def _check_server(self) -> None:
        """Check login and settings of the server. Raises `MariaDBUnreachable`, `MariaDBError`."""
        connection = connect(self._options.settings)
        try:
            with translated(self._options.settings):
                check_server(connection)
        finally:
            connection._force_close()

    def _first_position(self) -> tuple[str, int]:
        connection = connect(self._options.settings)
        try:
            with translated(self._options.settings):
                check_server(connection)
                at = current_position(connection)
        finally:
            connection._force_close()
        self._new_epoch_for = ""
        return at.position, at.timestamp

    def _follow(self, publisher: PublisherLike, resume: ResumePoint) -> None:
        """Read from the resume point until stopped. Outages of MariaDB are waited out."""
        progress = _Progress(resume)
        schema = LiveSchema(self._options.settings, self._options.tables)
        try:
            while not self._stopping.is_set():
                try:
                    self._read(publisher, schema, progress)
                except MariaDBUnreachable as error:
                    schema.close()
                    self._wait("MariaDB is unreachable", error)
                except SourceHistoryLost as lost:
                    self._lose_history(lost)
        finally:
            schema.close()

    def _read(self, publisher: PublisherLike, schema: LiveSchema, progress: _Progress) -> None:
        options = self._options
        self._check(publisher, progress)
        schema.load()
        if progress.may_describe:
            self._describe(publisher, schema, progress)
        bare = progress.position.removeprefix("MariaDB/")
        dump = BinlogDump(options.settings, bare, options.server_id, options.heartbeat_s)
        self._reader = reader = BinlogReader(dump, schema, progress.position, options.spill_bytes)
        watch = DumpWatch(options.settings)
        try:
            if self._stopping.is_set():
                return
            self._report_ready(progress.position)
            for transaction in reader.transactions():
                if transaction is None:
                    self._backoff_s = BACKOFF_FIRST_S
                    if watch.is_check_due():
                        publisher.flush()  # raises if the publisher was lost meanwhile
                        watch.check(progress.position, reader.last_heartbeat)
                    continue
                watch.event_received()
                if watch.is_check_due():
                    watch.check(progress.position)
                partly_out = bool(progress.partial_gtid)
                publisher.publish(progress.aligned(transaction) if partly_out else transaction)
                progress.position, progress.timestamp = transaction.position, transaction.timestamp
                self.transactions += 1
                if partly_out:
                    progress.partial_gtid = ""
                    self._describe(publisher, schema, progress)
        finally:
            self._reader = None
            dump.close()
            watch.close()

    def _check(self, publisher: PublisherLike, progress: _Progress) -> None:
        """Check that the server can resume from the position. Start a new epoch if its history was replaced.

        If the history ended because the server's settings allow it, the new epoch comes before their error: it voids
        what could no longer be proved.
        """
        connection = connect(self._options.settings)
        refused: ServerSettingsError | None = None
        try:
            with translated(self._options.settings):
                try:
                    check_server(connection)
                except ServerSettingsError as error:
                    if not self._new_epoch_for:
                        raise
                    refused = error
                if not self._new_epoch_for:
                    try:
                        check_resumable(connection, progress.position)
                    except SourceHistoryLost as lost:
                        self._lose_history(lost)
                if self._new_epoch_for:
                    self._new_epoch(publisher, progress, current_position(connection), self._new_epoch_for)
                    self._new_epoch_for = ""
        finally:
            connection._force_close()
        if refused is not None:
            raise refused

    def _lose_history(self, lost: SourceHistoryLost) -> None:
        log.warning("history lost", shard=self._options.shard, reason=str(lost))
        self._new_epoch_for = "history_lost"

    def _new_epoch(self, publisher: PublisherLike, progress: _Progress, at: ServerPosition, reason: str) -> None:
        progress.begin(publisher.start_new_epoch(at.position, at.timestamp, reason))
        log.info("new epoch", shard=self._options.shard, position=at.position, reason=reason)

    def _describe(self, publisher: PublisherLike, schema: LiveSchema, progress: _Progress) -> None:
        """Describe all included tables, once for each choice of tables.

        Not at each start: the ordinals of a history must not depend on how often a source was restarted. If the choice
        changes, everything is voided first, because tables that were excluded may have changed.
        """
        choice = _fingerprint(self._options.tables)
        if choice == progress.table_choice:
            return
        transaction = progress.description(schema.describe_all(), choice)
        publisher.publish(transaction)
        progress.mark_described(choice)
        log.info("tables described", shard=self._options.shard, tables=len(transaction.changes))

    def _report_ready(self, position: str) -> None:
        if self._outage:
            log.info("connected again", shard=self._options.shard, position=position)
        self._outage = ""
        self._on_ready(position)

    def _wait(self, what: str, error: FreshetError) -> None:
        """Log ``what`` once for each outage, and wait with exponential backoff."""
        if self._outage != what:
            log.warning(what, shard=self._options.shard, code=error.code, reason=str(error), hint=error.hint)
            self._outage = what
        self._stopping.wait(self._backoff_s if error.code != "fenced" else BACKOFF_MAX_S)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)


class _Progress:
    """The source's progress. ``table_choice`` is the fingerprint of the choice of tables described in the topic.

    Version 1 of `SourceState` had no field for it and kept it as the only open transaction. (Row sources have no other
    ones.) That entry stays until another choice is described.
    """

    def __init__(self, resume: ResumePoint) -> None:
        self.begin(resume)

    def begin(self, resume: ResumePoint) -> None:
        """Start from a resume point."""
        self.position = resume.position
        self.timestamp = resume.timestamp
        self.partial_gtid = resume.partial_gtid
        self.partial_events = resume.partial_events
        self.is_new = resume.ordinal <= 1
        self._version_1_entries = tuple(sorted(resume.open_transactions))
        self.table_choice = resume.table_choice or next(iter(self._version_1_entries), 0)

    @property
    def may_describe(self) -> bool:
        """Whether no binlog transaction is partly published; a partly published description may be continued."""
        return not self.partial_gtid or self.partial_gtid == self.position

    def description(self, tables: Iterable[DescribeTable], choice: int) -> SourceTransaction:
        """The transaction that describes all tables. Its GTID is the position, which no later transaction has.

        If it is partly published, it is repeated as a whole after the events that will be skipped.
        """
        changes: list[Change] = list(tables)
        if not self.is_new:
            changes.insert(0, VoidTable(EVERY_TABLE, "the choice of tables or the format of images has changed"))
        if self.partial_gtid:
            changes[:0] = [changes[0]] * self.partial_events
        return SourceTransaction(
            self.position,
            self.position,
            self.timestamp,
            changes,
            closed=self._version_1_entries,
            table_choice=choice,
        )

    def mark_described(self, choice: int) -> None:
        """Record that the `description` is published."""
        self.table_choice = choice
        self._version_1_entries = ()
        self.partial_gtid = ""

    def aligned(self, transaction: SourceTransaction) -> SourceTransaction:
        """A partly published transaction, changed if need be, so that skipping its events by number loses nothing.

        Rows are in key order, so the same binlog gives the same events. Other events depend on the server's present
        schema and may differ now. In that case everything is voided after the skipped events.
        """
        changes = transaction.changes
        last = changes[len(changes) - 1] if len(changes) else None
        if len(changes) > self.partial_events and isinstance(last, RowChange):
            return transaction
        void = VoidTable(EVERY_TABLE, "a transaction that was partly published cannot be continued")
        padded = cast("list[Change]", [void] * (self.partial_events + 1))
        return SourceTransaction(transaction.gtid, transaction.position, transaction.timestamp, padded)


def _fingerprint(tables: TableFilter) -> int:
    return int(xxhash.xxh3_64_intdigest(f"{IMAGE_FORMAT}\0{tables!r}".encode()) >> 1)
