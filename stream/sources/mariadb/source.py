"""The source of a MariaDB or MySQL shard: reads the binlog and publishes it, and survives outages of both sides.

It resumes from the position in the topic. It keeps no state elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from stream.kafka.connection import KafkaUnreachable
from stream.publish.handover import HISTORIES, with_histories
from stream.publish.publisher import PublisherLost
from stream.sources.mariadb.backfill.chunks import ChunkReader
from stream.sources.mariadb.backfill.reading import ChunkReading, Chunks
from stream.sources.mariadb.backfill.rereading import Rereading
from stream.sources.mariadb.backfill.run import NO_BACKFILL, Backfill, BackfillOptions, Requests
from stream.sources.mariadb.binlog.catalog import HELD, Catalog, held_words
from stream.sources.mariadb.binlog.coalesce import SPILL_BYTES
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.events import LogPlace
from stream.sources.mariadb.binlog.last_read import check_same
from stream.sources.mariadb.binlog.progress import Progress, fingerprint, has_all_of, remembered
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    NotResumable,
    ServerBehind,
    ServerSettingsError,
    SourceHistoryLost,
    connect,
    translated,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.information_schema.tables import unknown_databases
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import ServerPosition, check_not_lost, check_resumable, current_position
from stream.sources.mariadb.requirements import check_server, own_histories
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.watch import DumpWatch
from stream.sources.status import SourceStatus
from stream.wire.events import DescribeTable, ResumePoint, SourceTransaction
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
_RIVALS = {"fenced": "another source has this shard", "server_id_in_use": "another replica has this server_id"}
_OUTAGES = {
    **_RIVALS,
    "kafka_unreachable": "Kafka is unreachable",
    "connect_unreachable": "Kafka Connect is unreachable",
    "server_left": "another server is to be read",
    "binlog_away": "the log is purged, but perhaps at a replica that is away",
    "server_behind": "the server lags behind the shards that this one succeeds",
}


class Log(Protocol):
    """What a source reads, as `stream.sources.mariadb.binlog.reader.BinlogReader` does: a binlog, or copies of it."""

    @property
    def last_heartbeat(self) -> LogPlace | None: ...

    @property
    def has_more(self) -> bool: ...

    def has_reached(self, position: GtidPosition) -> bool: ...

    def stop(self) -> None: ...

    def transactions(self) -> Iterator[SourceTransaction | None]: ...


class PublisherLike(Protocol):
    """The methods of `stream.publish.publisher.Publisher` that a source uses."""

    def open(
        self, start_if_new: Callable[[], tuple[str, int]], can_begin: Callable[[str], None] | None = None, /
    ) -> ResumePoint: ...

    def publish(self, txn: SourceTransaction) -> None: ...

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def stamp(self, as_of_ms: int) -> None: ...

    def annotate(self, annotations: Mapping[str, str]) -> None: ...

    def has_room(self, wait_s: float = 0.0, /) -> bool: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how. ``server_id`` must differ from those of the server and of all its other replicas.

    ``backfill`` None: only what changes is published, not what was there before, and nobody can ask for it.
    ``before_images``: rows are published with what they were before, too. ``keyless_rows``: so are rows of tables
    without a primary key.
    """

    settings: ConnectionSettings
    shard: str
    tables: TableFilter = field(default_factory=TableFilter)
    server_id: int = 4380
    spill_bytes: int = SPILL_BYTES
    heartbeat_s: float = 0.25
    new_epoch: bool = False
    backfill: BackfillOptions | None = None
    before_images: bool = False
    keyless_rows: bool = False


class MariaDBSource:
    """Publishes one server's binlog until it is stopped. Call `run` in one thread, `stop` from any thread."""

    def __init__(
        self,
        options: SourceOptions,
        new_publisher: Callable[[], PublisherLike],
        on_ready: Callable[[str], None] = lambda _: None,
        new_requests: Callable[[], Requests | None] = lambda: None,
    ) -> None:
        self._options = options
        self._new_publisher = new_publisher
        self._on_ready = on_ready
        self._new_requests = new_requests
        self._stopping = threading.Event()
        self._reader: Log | None = None
        self._backfill: Backfill | None = None
        self._family: Family | None = None
        self._new_epoch_for = "asked_for" if options.new_epoch else ""
        self._backoff_s = BACKOFF_FIRST_S
        self.status = SourceStatus()
        self._choice = fingerprint(options.tables)
        self._unreachable = f"{options.settings.product} is unreachable"
        self._has_warned = False
        self._held = ""
        """The words about held tables that the publisher keeps."""
        self._histories = ""
        """The words about histories that the publisher keeps."""
        self._adds_to: int | None = None
        """The choice of tables that was published, if the present one has all of its tables, and perhaps more."""

    def stop(self) -> None:
        """End `run` gracefully: everything read so far is published. Safe in any thread."""
        self._stopping.set()
        reader = self._reader
        if reader is not None:
            reader.stop()

    def run(self) -> None:
        """Publish until `stop`. Outages of Kafka and MariaDB are waited out, and so is a second source of the shard:
        the two take turns. Other errors are raised.

        Raises `FreshetError`: ``bad_server_settings``, ``binlog_purged``, ``unknown_domain``…
        """
        while not self._stopping.is_set():
            try:
                self._publish()
            except (PublisherLost, KafkaUnreachable, MariaDBError) as error:
                if isinstance(error, MariaDBError) and error.code not in _RIVALS:
                    raise
                self._wait(_OUTAGES.get(error.code, "publisher lost"), error)

    def _publish(self) -> None:
        """Run with one publisher, until stopped. Raises `PublisherLost`, `KafkaUnreachable`."""
        if not self._await_server():  # before the topics are made: their partitions can't be changed later
            return
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

    def _await_server(self) -> bool:
        """Wait until the server answers, and check it; False if stopped meanwhile. Raises `MariaDBError`."""
        while not self._stopping.is_set():
            try:
                self._check_server()
                return True
            except MariaDBUnreachable as error:
                self._wait(_OUTAGES.get(error.code, self._unreachable), error)
        return False

    def _open_publisher(self, publisher: PublisherLike) -> ResumePoint | None:
        """Open the publisher and return the resume point; None if stopped meanwhile.

        The server is checked first, because opening a publisher fences any other source of the shard: a source with a
        wrong password, host or server must not stop one that works. It also waits while MariaDB is unreachable,
        although the topic alone tells where to resume. Otherwise a second source with a wrong address would take the
        shard from the healthy one every few seconds. The cost: after a crash during an outage of MariaDB, no markers
        are published until MariaDB is back.
        """
        while self._await_server():
            try:
                return publisher.open(self._first_position, self._check_begins)
            except MariaDBUnreachable as error:
                self._wait(_OUTAGES.get(error.code, self._unreachable), error)
        return None

    def _check_server(self) -> None:
        """Check login and settings of the server. Raises `MariaDBUnreachable`, `MariaDBError`."""
        connection = connect(self._options.settings)
        try:
            with translated(self._options.settings):
                check_server(connection)
                self._check_databases(connection)
        finally:
            connection._force_close()

    def _check_databases(self, connection: Connection) -> None:
        """Refuse a choice of which nothing exists: that is a mistake in the settings."""
        databases = self._options.tables.databases
        if databases and set(databases) <= set(unknown_databases(connection, databases)):
            raise self._unknown_database(list(databases))

    def _unknown_database(self, names: list[str]) -> MariaDBError:
        return MariaDBError(
            f"{self._options.settings.product} at {self._options.settings.name} has no database {', '.join(names)}",
            hint="create it, or take it out of databases: a source must know what it is to publish",
            code="unknown_database",
        )

    def _first_position(self) -> tuple[str, int]:
        connection = connect(self._options.settings)
        try:
            with translated(self._options.settings):
                check_server(connection)
                at = self._begin(connection)
        finally:
            connection._force_close()
        self._new_epoch_for = ""
        return at.position, at.timestamp

    def _begin(self, connection: Connection) -> ServerPosition:
        """Where an epoch begins: what is logged after it is read, and all before it is visible."""
        return current_position(connection)

    def _check_begins(self, position: str) -> None:
        """Check that the server can go on where other shards ended. Raises `ServerBehind`: it has not got there yet."""
        connection = connect(self._options.settings)
        try:
            with translated(self._options.settings):
                check_server(connection)
                check_resumable(connection, position)
        except SourceHistoryLost as lost:
            raise ServerBehind(
                f"{self._options.settings.name} has not everything up to {position}: {lost}",
                hint="it must replicate the servers of the shards that this one succeeds, with their GTIDs",
            ) from lost
        finally:
            connection._force_close()

    def _follow(self, publisher: PublisherLike, resume: ResumePoint) -> None:
        """Read from the resume point until stopped. Outages of MariaDB are waited out."""
        progress = Progress(resume)
        self._adds_to = resume.table_choice if has_all_of(self._options.tables, resume) else None
        schema = self._new_schema()
        schema.catalog.describe_as(self._described(resume))
        self._held = resume.annotations.get(HELD, "")
        self._histories = resume.annotations.get(HISTORIES, "")
        schema.hold_again(self._held)
        chosen = self._options.backfill
        if chosen is not None:
            reading = ChunkReading(self._new_chunks(), chosen.rows_per_s)
            self._family = Family()
            self._backfill = Backfill(
                chosen,
                reading,
                publisher,
                schema.catalog,
                resume,
                self.status,
                requests=self._new_requests(),
                words=remembered(self._options.tables),
                family=self._family,
                rereading=Rereading(ChunkReading(self._new_chunks()), schema.catalog),
            )
        else:
            publisher.annotate({**remembered(self._options.tables), **NO_BACKFILL})  # what is voided now is not noticed
        try:
            while not self._stopping.is_set():
                try:
                    self._read(publisher, schema, progress)
                except MariaDBUnreachable as error:
                    schema.close()
                    self._wait(self._unreachable, error)
                except SourceHistoryLost as lost:
                    self._lose_history(lost)
        finally:
            schema.close()
            if self._backfill is not None:
                self._backfill.close()

    def _new_chunks(self) -> Chunks:
        return ChunkReader(self._options.settings)

    def _new_schema(self) -> LiveSchema:
        return LiveSchema(self._options.settings, self._options.tables)

    def _described(self, resume: ResumePoint) -> dict[str, DescribeTable]:
        """The tables as of the resume point. A shard that begins where others end has their tables, if it has them."""
        found = resume.descriptions
        return found if resume.table_choice else {name: found[name] for name in found if name in self._options.tables}

    def _read(self, publisher: PublisherLike, schema: LiveSchema, progress: Progress) -> None:
        self._check(publisher, schema, progress)
        if self._stopping.is_set():  # it may have ended without a verdict
            return
        if self._backfill is not None:
            self._backfill.reconnect()
        schema.load()
        if progress.may_describe:
            self._describe(publisher, schema, progress)
        self._warn_of(schema)
        self.status.epoch, self.status.timestamp = progress.epoch, progress.timestamp
        reader, watch = self._open_log(schema, progress.position)
        self._reads(reader)
        try:
            if self._stopping.is_set():
                return
            self._report_ready(progress.position)
            for transaction in reader.transactions():
                if transaction is None:
                    self._stamp(publisher, reader, watch)
                    self._backoff_s = BACKOFF_FIRST_S
                    if watch.is_check_due():
                        publisher.flush()  # raises if the publisher was lost meanwhile
                        watch.check(progress.position, reader.last_heartbeat)
                        self._stamp(publisher, reader, watch)
                    if self._backfill is not None and not progress.partial_gtid:
                        self._backfill.step_while_idle(progress.position, progress.timestamp, reader)
                    continue
                watch.event_received()
                if watch.is_check_due():
                    watch.check(progress.position)
                if progress.has_said(transaction):
                    continue
                partly_out = bool(progress.partial_gtid)
                given = self._aligned(progress, transaction) if partly_out else transaction
                if words := progress.repeatable(given):
                    publisher.annotate(words)
                self._give(publisher, schema.catalog, given)
                self._stamp(publisher, reader, watch)  # not before: the reader counts the transaction that it gave
                progress.moved(transaction)
                self._note(progress, transaction.count)
                if partly_out:
                    progress.partial_gtid = ""
                    self._describe(publisher, schema, progress)
                if self._backfill is not None and not progress.partial_gtid:
                    self._backfill.step(progress.position, progress.timestamp, reader)
        finally:
            self._reader = None
            reader.stop()
            watch.close()

    def _open_log(self, schema: LiveSchema, position: str) -> tuple[Log, DumpWatch]:
        """What is read from ``position`` on, and what watches its server."""
        options = self._options
        dump = BinlogDump(options.settings, GtidPosition.parse(position).bare, options.server_id, options.heartbeat_s)
        reader = BinlogReader(
            dump,
            schema,
            position,
            options.spill_bytes,
            self._family,
            timestamp=self.status.timestamp,
            keeps_before=options.before_images,
            keeps_keyless=options.keyless_rows,
            in_runs=True,
        )
        return reader, DumpWatch(options.settings, dump.server)

    def _aligned(self, progress: Progress, transaction: SourceTransaction) -> SourceTransaction:
        """A transaction that is partly published, as it may go on."""
        return progress.aligned(transaction, self._choice)

    def _give(self, publisher: PublisherLike, catalog: Catalog, transaction: SourceTransaction) -> None:
        if self._backfill is not None:
            self._backfill.notice(transaction)
        held = "" if catalog.is_settled else held_words(catalog.held)
        if held != self._held:
            publisher.annotate({HELD: held})  # not later: a state with the transaction must have these words
            self._held = held
        publisher.publish(transaction)

    def _stamp(self, publisher: PublisherLike, reader: Log, watch: DumpWatch) -> None:
        """Pass the server's clock on once everything that it had committed by then is given to the publisher."""
        seen = watch.clock_seen
        if seen is None:
            return
        if not reader.has_reached(seen.position):
            self.status.is_behind()
        else:
            watch.clock_seen = None
            publisher.stamp(seen.now_ms)
            was_ahead = self.status.is_clock_ahead
            self.status.caught_up(seen.now_ms)
            if self.status.is_clock_ahead and not was_ahead:
                log.warning(
                    "the server's clock is ahead of this machine's",
                    shard=self._options.shard,
                    code="clock_ahead",
                    seconds=round(self.status.clock_ahead_s, 1),
                    hint="max_staleness_ms is wrong by as much as clocks differ: set them by NTP",
                )

    def _note(self, progress: Progress, transactions: int) -> None:
        status = self.status
        status.transactions += transactions
        status.position, status.timestamp, status.epoch = progress.position, progress.timestamp, progress.epoch

    def _check(self, publisher: PublisherLike, schema: LiveSchema, progress: Progress) -> None:
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
                        self._check_resumes(connection, progress)
                    except SourceHistoryLost as lost:
                        self._lose_history(lost)
                if self._new_epoch_for:
                    self._new_epoch(publisher, progress, self._begin(connection), self._new_epoch_for)
                    schema.catalog.describe_as({})
                    self._new_epoch_for = ""
                self._note_histories(publisher, connection)
        finally:
            connection._force_close()
        if refused is not None:
            raise refused

    def _note_histories(self, publisher: PublisherLike, connection: Connection) -> None:
        """Keep with the shard's state whose GTIDs its own ones are: a merge asks for it (`stream.publish.handover`)."""
        noted = with_histories(self._histories, self._options.shard, own_histories(connection))
        if noted != self._histories:
            publisher.annotate({HISTORIES: noted})
            self._histories = noted

    def _check_resumes(self, connection: Connection, progress: Progress) -> None:
        """Check that what follows can be read, and the last transaction is what it was. Raises `MariaDBError`.

        One that is partly published counts, too: readers may have its rows. If it is lost, nothing else says so.
        """
        check_resumable(connection, progress.position)
        if progress.partial_gtid:
            check_not_lost(connection, progress.partial_gtid)
        self._check_last(connection, progress)

    def _check_last(self, connection: Connection, progress: Progress) -> None:
        """Check that the last published transaction is still what it was. Raises `SourceHistoryLost`."""
        if not progress.checksum or not progress.cursor:
            return
        try:
            check_resumable(connection, progress.cursor)
        except NotResumable:
            return  # it is purged
        options = self._options
        last = progress.cursor, progress.position, progress.checksum
        check_same(options.settings, options.server_id, *last, opened=self._reads)

    def _reads(self, reader: Log) -> None:
        """From here on `stop` ends what ``reader`` waits for."""
        self._reader = reader
        if self._stopping.is_set():
            reader.stop()

    def _lose_history(self, lost: SourceHistoryLost) -> None:
        log.warning("history lost", shard=self._options.shard, reason=str(lost))
        self._new_epoch_for = "history_lost"

    def _new_epoch(self, publisher: PublisherLike, progress: Progress, at: ServerPosition, reason: str) -> None:
        resume = publisher.start_new_epoch(at.position, at.timestamp, reason)
        progress.begin(resume)
        if self._backfill is not None:
            self._backfill.begin_epoch(resume)
        log.info("new epoch", shard=self._options.shard, epoch=resume.epoch, position=at.position, reason=reason)

    def _describe(self, publisher: PublisherLike, schema: LiveSchema, progress: Progress) -> None:
        """Begin the scope of the chosen tables, once for each choice, and describe those that are known.

        Not at each start: the ordinals of a history must not depend on how often a source was restarted. If the choice
        only has more tables, these are voided and described. If it changes otherwise, everything is voided first.
        """
        tables = self._options.tables
        if self._choice == progress.table_choice:
            return
        unknown = schema.unknown_databases()
        if unknown:
            raise self._unknown_database(unknown)
        if progress.table_choice == self._adds_to:  # not in a new epoch, which has described nothing
            found = schema.settle(GtidPosition.parse(progress.position))
            added = {schema.catalog.description(name): is_void for name, is_void in found.items()}
            self._give(publisher, schema.catalog, progress.addition(added, self._choice))
            progress.mark_described(self._choice)
            log.info("tables are added", shard=self._options.shard, tables=sum(found.values()))
            return
        if progress.table_choice:  # else nothing was described, or the shards that this one succeeds have done it
            schema.catalog.describe_as({})
        schema.load()
        schema.settle(GtidPosition.parse(progress.position))
        catalog = schema.catalog
        described = [catalog.description(name) for name in sorted(catalog.names)]
        self._give(publisher, catalog, progress.description(tables, described, self._choice))
        progress.mark_described(self._choice)
        log.info("tables described", shard=self._options.shard, tables=len(described))

    def _warn_of(self, schema: LiveSchema) -> None:
        """Log, once, what was chosen and isn't published."""
        if self._has_warned:
            return
        self._has_warned = True
        shard = self._options.shard
        for name in schema.unknown_databases():
            log.warning("no such database", shard=shard, database=name, hint="its tables are published once it exists")
        for name in sorted(schema.live):
            if not schema.live[name].cacheable:
                log.warning("table is always read through", shard=shard, table=name, reason=schema.live[name].problem)
        for pattern in self._options.tables.without_tables([*schema.live, *schema.catalog.locked]):
            log.warning("no table matches", shard=shard, include=pattern)

    def _report_ready(self, position: str) -> None:
        if self.status.outage:
            log.info("connected again", shard=self._options.shard, position=position)
        self.status.ready(position)
        self._on_ready(position)

    def _wait(self, what: str, error: FreshetError) -> None:
        """Log ``what`` once for each outage, and wait with exponential backoff."""
        if self.status.outage != what:
            log.warning(what, shard=self._options.shard, code=error.code, reason=str(error), hint=error.hint)
        self.status.waits(what)
        self._stopping.wait(self._backoff_s if error.code not in _RIVALS else BACKOFF_MAX_S)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
