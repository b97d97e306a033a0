"""A MariaDB shard's source process: binlog in, publisher out, through every outage of either.

It resumes right after what the topic says is published; nothing of that is kept beside the topic.
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
from stream.sources.mariadb.binlog.reader import EVERYTHING, BinlogReader
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, connect, translated
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import (
    ServerPosition,
    SourceHistoryLost,
    check_resumable,
    check_server,
    current_position,
)
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.watch import DumpWatch
from stream.wire.events import (
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
_OUTAGES = {"fenced": "another source has this shard", "kafka_unreachable": "Kafka is away"}
IMAGE_FORMAT = 1
"""Grows when the canonical image of any value changes: then everything published before is void."""


class PublisherLike(Protocol):
    """What a source needs of `stream.publish.publisher.Publisher`."""

    def open(self, start_if_new: Callable[[], tuple[str, int]]) -> ResumePoint: ...

    def publish(self, txn: SourceTransaction) -> None: ...

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how. ``server_id`` must differ from that of the server and of all its other replicas."""

    settings: ConnectionSettings
    shard: str
    tables: TableFilter = field(default_factory=TableFilter)
    server_id: int = 4380
    spill_bytes: int = SPILL_BYTES
    heartbeat_s: float = 0.25
    new_epoch: bool = False


class MariaDBSource:
    """Publishes one server's binlog until it is stopped. `run` in one thread, `stop` from anywhere."""

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
        self._away = ""
        self.transactions = 0

    def stop(self) -> None:
        """Ends `run` gracefully: what was read is published. Safe in a signal handler."""
        self._stopping.set()
        reader = self._reader
        if reader is not None:
            reader.stop()

    def run(self) -> None:
        """Returns after `stop`. Outages of Kafka and MariaDB are waited for; anything else is raised, one line.

        Raises `FreshetError`: ``bad_server_settings``, ``binlog_purged``, ``unknown_domain``…
        """
        while not self._stopping.is_set():
            try:
                self._publish()
            except (PublisherLost, KafkaUnreachable) as error:
                self._wait(_OUTAGES.get(error.code, "publisher lost"), error)

    def _publish(self) -> None:
        """One publisher's life. Raises `PublisherLost`, `KafkaUnreachable`."""
        publisher = self._new_publisher()
        try:
            resume = self._opened(publisher)
            if resume is None:
                return
            self._follow(publisher, resume)
            publisher.close()
        except BaseException:
            publisher.abandon()
            raise

    def _opened(self, publisher: PublisherLike) -> ResumePoint | None:
        """The resume point; None if stopped meanwhile. The server is asked first: taking over fences whoever runs.

        A source with a wrong password, host or server must leave one that works alone, so it ends or waits before that.
        It waits also where only MariaDB is away and the topic would say where to go on: there is nothing to publish
        then, and of two sources with one misled address the healthy one would lose the shard every few seconds. The
        price: after a crash within an outage of MariaDB no markers come until it is back.
        """
        while not self._stopping.is_set():
            try:
                self._ask_server()
                return publisher.open(self._start)
            except MariaDBUnreachable as error:
                self._wait("MariaDB is away", error)
        return None

    def _ask_server(self) -> None:
        """Whether it lets this user in and tells everything. Raises `MariaDBUnreachable`, `MariaDBError`."""
        connection = connect(self._options.settings)
        try:
            with translated(self._options.settings):
                check_server(connection)
        finally:
            connection._force_close()

    def _start(self) -> tuple[str, int]:
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
        """Reads on from the resume point, through outages of MariaDB, until stopped."""
        progress = _Progress(resume)
        schema = LiveSchema(self._options.settings, self._options.tables)
        try:
            while not self._stopping.is_set():
                try:
                    self._read(publisher, schema, progress)
                except MariaDBUnreachable as error:
                    schema.close()
                    self._wait("MariaDB is away", error)
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
            self._ready(progress.position)
            for transaction in reader.transactions():
                if transaction is None:
                    self._backoff_s = BACKOFF_FIRST_S
                    if watch.look_due():
                        publisher.flush()  # a publisher that was lost meanwhile says so
                        watch.look(reader.heard, progress.position)
                    continue
                watch.moved()
                partly_out = bool(progress.partial_gtid)
                publisher.publish(progress.fitted(transaction) if partly_out else transaction)
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
        """Whether the server can go on from there; if its history was replaced, a new epoch starts."""
        connection = connect(self._options.settings)
        try:
            with translated(self._options.settings):
                check_server(connection)
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

    def _lose_history(self, lost: SourceHistoryLost) -> None:
        log.warning("history lost", shard=self._options.shard, reason=str(lost))
        self._new_epoch_for = "history_lost"

    def _new_epoch(self, publisher: PublisherLike, progress: _Progress, at: ServerPosition, reason: str) -> None:
        progress.begin(publisher.start_new_epoch(at.position, at.timestamp, reason))
        log.info("new epoch", shard=self._options.shard, position=at.position, reason=reason)

    def _describe(self, publisher: PublisherLike, schema: LiveSchema, progress: _Progress) -> None:
        """Describes all included tables, once for each choice of tables.

        Not at each start: the ordinals of a history must not depend on how often a source was restarted. With another
        choice than before everything is void first: tables that were left out for a while have changed unseen.
        """
        choice = _fingerprint(self._options.tables)
        if choice == progress.table_choice:
            return
        transaction = progress.describing(schema.describe_all(), choice)
        publisher.publish(transaction)
        progress.described(choice)
        log.info("tables described", shard=self._options.shard, tables=len(transaction.changes))

    def _ready(self, position: str) -> None:
        if self._away:
            log.info("back", shard=self._options.shard, position=position)
        self._away = ""
        self._on_ready(position)

    def _wait(self, what: str, error: FreshetError) -> None:
        """Says once for each outage what is missing, and waits a little longer each time."""
        if self._away != what:
            log.warning(what, shard=self._options.shard, code=error.code, reason=str(error), hint=error.hint)
            self._away = what
        self._stopping.wait(self._backoff_s if error.code != "fenced" else BACKOFF_MAX_S)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)


class _Progress:
    """Where the source is. ``table_choice`` is the fingerprint of the choice of tables that the topic has.

    Version 1 of `SourceState` had no field for it: it was the only open transaction, which rows have none of. There it
    stays until another choice is described.
    """

    def __init__(self, resume: ResumePoint) -> None:
        self.begin(resume)

    def begin(self, resume: ResumePoint) -> None:
        """Starts from a resume point."""
        self.position = resume.position
        self.timestamp = resume.timestamp
        self.partial_gtid = resume.partial_gtid
        self.partial_events = resume.partial_events
        self.is_new = resume.ordinal <= 1
        self._leftovers = tuple(sorted(resume.open_transactions))
        self.table_choice = resume.table_choice or next(iter(self._leftovers), 0)

    @property
    def may_describe(self) -> bool:
        """Not within a transaction of the binlog; but a description of the tables that is partly out goes on."""
        return not self.partial_gtid or self.partial_gtid == self.position

    def describing(self, tables: Iterable[DescribeTable], choice: int) -> SourceTransaction:
        """The transaction that describes all tables. Its GTID is the position, which no later transaction has.

        If it is partly out already it is said once more, whole, after the events that will be skipped.
        """
        changes: list[Change] = list(tables)
        if not self.is_new:
            changes.insert(0, VoidTable(EVERYTHING, "the choice of tables or the format of images has changed"))
        if self.partial_gtid:
            changes[:0] = [changes[0]] * self.partial_events
        return SourceTransaction(
            self.position,
            self.position,
            self.timestamp,
            changes,
            closed=self._leftovers,
            table_choice=choice,
        )

    def described(self, choice: int) -> None:
        """What `describing` said is published."""
        self.table_choice = choice
        self._leftovers = ()
        self.partial_gtid = ""

    def fitted(self, transaction: SourceTransaction) -> SourceTransaction:
        """A transaction whose first events are out already, such that skipping them by number loses nothing.

        Rows come in the order of their keys, so the same binlog gives the same events. What depends on the server's
        present schema may come out otherwise now: then everything is void after the skipped events.
        """
        changes = transaction.changes
        last = changes[len(changes) - 1] if len(changes) else None
        if len(changes) > self.partial_events and isinstance(last, RowChange):
            return transaction
        void = VoidTable(EVERYTHING, "a transaction that was partly published cannot be continued")
        padded = cast("list[Change]", [void] * (self.partial_events + 1))
        return SourceTransaction(transaction.gtid, transaction.position, transaction.timestamp, padded)


def _fingerprint(tables: TableFilter) -> int:
    return int(xxhash.xxh3_64_intdigest(f"{IMAGE_FORMAT}\0{tables!r}".encode()) >> 1)
