"""The source of a shard whose changes a Debezium connector writes into Kafka.

All but the reading is that of `stream.sources.mariadb.source`: the schema, the backfill, the clock and the epochs come
from the server, which is also asked whether its history is still the one that was published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import structlog

from stream.kafka.connection import KafkaCluster
from stream.sources.debezium.connector import ENDS_HINT, NO_ENDS, TIMEOUT_S, Connector, KafkaConnect, find_connector
from stream.sources.debezium.errors import ConnectUnreachable, DebeziumError
from stream.sources.debezium.invalidating import InvalidatingReader
from stream.sources.debezium.offsets import ConnectorOffsets
from stream.sources.debezium.places import PLACES, Places, read_places
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.schema import DebeziumSchema, check_nothing_is_prepared
from stream.sources.debezium.topics import ConnectorTopics, legal
from stream.sources.mariadb.backfill.run import Requests
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.binlog.events import LogPlace
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBUnreachable,
    SourceHistoryLost,
    connect,
    fetch_all,
    translated,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import ServerPosition, check_not_lost, current_position, end_of_log
from stream.sources.mariadb.source import Log, MariaDBSource, PublisherLike, SourceOptions
from stream.sources.mariadb.watch import DumpWatch
from stream.wire.events import DescribeTable, ResumePoint, SourceTransaction
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

VISIBLE_WITHIN_S: Final = 10.0
CHECK_EVERY_S: Final = 10.0
"""Between two looks at the connector's configuration."""
_LOOK_TIMEOUT_S: Final = 1.0
"""How long nothing is published while a look is not answered. Longer with each that was not, up to `TIMEOUT_S`."""
_LOOKS_SHARE: Final = 10
"""Of the time, the part that is spent with looks at most."""
_ANNOTATE_EVERY_S: Final = 1.0
WORDS_MAX: Final = 16_000
_NO_CONNECTOR: Final = -1
"""A fingerprint that no connector has."""
_NO_CHOICE: Final = -2
"""A fingerprint that no choice of tables has."""


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """Which connector is read: its ``topic.prefix``, its Kafka Connect, and the Kafka that it writes to."""

    topic_prefix: str
    connect: KafkaConnect
    kafka: KafkaCluster


class DebeziumSource(MariaDBSource):
    """Publishes what a connector tells of one server until it is stopped."""

    def __init__(
        self,
        options: SourceOptions,
        connector: ConnectorOptions,
        new_publisher: Callable[[], PublisherLike],
        on_ready: Callable[[str], None] = lambda _: None,
        new_requests: Callable[[], Requests | None] = lambda: None,
    ) -> None:
        super().__init__(options, new_publisher, on_ready, new_requests)
        self._from = connector
        self._connector: Connector | None = None
        self._places: Places | None = None
        self._publisher: PublisherLike | None = None
        self._begun_at = ""
        """The position of the last epoch that was to begin."""
        self._prefix = legal(connector.topic_prefix)
        self._told = ""
        """The words about places that the publisher keeps."""
        self._lacks_room = False
        self._annotate_at = self._look_at = 0.0
        self._look_timeout_s = _LOOK_TIMEOUT_S

    def _check_server(self) -> None:
        super()._check_server()
        self._ask_connector()

    def _ask_connector(self, timeout_s: float = TIMEOUT_S) -> Connector:
        """Raises `ConnectUnreachable`, `DebeziumError`."""
        asked = self._from
        self._connector = find_connector(asked.connect, asked.topic_prefix, self._options.settings.product, timeout_s)
        return self._connector

    def _begin(self, connection: Connection) -> ServerPosition:
        """Where an epoch begins. What is in the topics by now was logged before, so they are read on from their ends.

        What is logged and not yet visible is waited for: else the epoch would begin after something that no read sees.
        """
        connector = self._ask_connector()
        topics = ConnectorTopics(self._from.kafka, self._from.topic_prefix)
        try:
            existing = topics.existing()
            if topics.statements not in existing:
                raise ConnectUnreachable(
                    f"the connector has not written its topic {topics.statements} yet, with the tables that it found",
                    hint="a connector writes it when it begins; what it says on its state: GET /connectors/NAME/status",
                )
            names = fetch_all(connection, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES")
            mine = {topics.topic_of(f"{name[0]}.{name[1]}") for name in names if self._options.tables(*name)}
            mine |= {topics.statements, topics.transactions}
            ends = topics.beginning({name: count for name, count in existing.items() if name in mine})
        finally:
            topics.close()
        check_nothing_is_prepared(connection)  # not before: what is prepared later has its rows behind those ends
        logged = end_of_log(connection)
        deadline = time.monotonic() + VISIBLE_WITHIN_S
        while True:
            at = current_position(connection)
            if GtidPosition.parse(at.position).covers(logged):
                break
            if time.monotonic() > deadline or self._stopping.wait(0.01):
                raise MariaDBUnreachable(
                    f"{self._options.settings.name} has logged {logged}, and does not make it visible"
                )
        check_nothing_is_prepared(connection)
        snapshot = self._places.snapshot if self._places is not None else ""
        self._places = Places(connector.fingerprint, ends, snapshot)
        self._begun_at = at.position
        return at

    def _follow(self, publisher: PublisherLike, resume: ResumePoint) -> None:
        kept = resume.annotations.get(PLACES, "")
        if kept or self._begun_at != resume.position:
            self._places = read_places(kept, self._prefix)
        self._told = kept
        self._publisher = publisher
        super()._follow(publisher, resume)

    def _new_epoch(self, publisher: PublisherLike, progress: Progress, at: ServerPosition, reason: str) -> None:
        super()._new_epoch(publisher, progress, at, reason)
        self._told = ""
        self._tell(publisher)  # not before: a state of the epoch that is over must not lead past what it lacks

    def _check_resumes(self, connection: Connection, progress: Progress) -> None:
        check_not_lost(connection, progress.position)
        if self._places is None:
            raise SourceHistoryLost("the source's state does not tell where the connector's topics were read")
        self._check_choice(self._places)

    def _check_choice(self, places: Places, timeout_s: float = TIMEOUT_S) -> None:
        if self._ask_connector(timeout_s).fingerprint != places.connector:
            raise SourceHistoryLost("the connector tells of other tables than before", hint="a new epoch starts")

    def _new_schema(self) -> LiveSchema:
        return DebeziumSchema(self._options.settings, self._options.tables, self._captures)

    def _captures(self, table: str) -> bool:
        """Whether the connector tells of a table, and its topic is read. Without a topic nothing could say TRUNCATE."""
        assert self._connector is not None
        assert self._places is not None
        topic = legal(f"{self._from.topic_prefix}.{table}")
        return self._connector.captures(table) and any(topic == each for each, _ in self._places.offsets)

    def _open_log(self, schema: LiveSchema, position: str) -> tuple[Log, DumpWatch]:
        assert isinstance(schema, DebeziumSchema)
        assert self._places is not None
        settings = self._options.settings
        connection = connect(settings)
        try:
            with translated(settings):
                [[server]] = fetch_all(connection, "SELECT @@server_id")
        finally:
            connection._force_close()
        topics = ConnectorTopics(self._from.kafka, self._from.topic_prefix)
        wanted = {topics.statements, topics.transactions, *map(topics.topic_of, schema.live)}
        gone = {topics.topic_of(name) for name in schema.catalog.names - schema.live.keys()}
        if gone:  # tables that were there at the position: what still has a topic is read up to its end
            try:
                wanted |= gone & topics.existing().keys()
            except FreshetError:
                topics.close()
                raise
        topics.add({place: offset for place, offset in self._places.offsets.items() if place[0] in wanted})
        return self._reader_of(topics, schema, position), _Watch(settings, int(server), self._look)

    def _reader_of(self, topics: ConnectorTopics, schema: DebeziumSchema, position: str) -> DebeziumReader:
        connector, places, options = self._connector, self._places, self._options
        assert connector is not None
        assert places is not None
        server, timestamp = options.settings.product, self.status.timestamp
        arguments = topics, schema, position, places, server, options.spill_bytes
        if not connector.tells_ends:
            log.warning("invalidation only", shard=options.shard, reason=NO_ENDS, hint=ENDS_HINT)
            offsets = ConnectorOffsets(self._from.connect, connector.name, self._from.topic_prefix, server)
            return InvalidatingReader(offsets.told, *arguments, timestamp=timestamp)
        return DebeziumReader(*arguments, timestamp=timestamp, keeps_before=options.before_images)

    def _read(self, publisher: PublisherLike, schema: LiveSchema, progress: Progress) -> None:
        """As `MariaDBSource._read`. A connector that was set to tell no ends tells rows as of XA transactions.

        While nobody can say whether it was, that is waited for.
        """
        try:
            super()._read(publisher, schema, progress)
        except DebeziumError as error:
            if error.code == "debezium_xa_transaction" and self._places is not None:
                self._check_connector(self._places)
            raise

    def _look(self) -> None:
        """Look at the connector's configuration once in a while. Raises `DebeziumError`, `SourceHistoryLost`."""
        began = time.monotonic()
        if began < self._look_at or self._places is None:
            return
        try:
            self._check_connector(self._places, self._look_timeout_s)
            self._look_timeout_s = max(_LOOK_TIMEOUT_S, 2 * (time.monotonic() - began))
        except ConnectUnreachable:  # then it also writes nothing
            self._look_timeout_s *= 2
        self._look_timeout_s = min(self._look_timeout_s, TIMEOUT_S)
        now = time.monotonic()
        self._look_at = now + max(CHECK_EVERY_S, _LOOKS_SHARE * (now - began))

    def _check_connector(self, places: Places, timeout_s: float = TIMEOUT_S) -> None:
        """As `_check_choice`. If the connector can't be a source any more, all is void."""
        try:
            self._check_choice(places, timeout_s)
        except DebeziumError:
            self._void_what_follows(places)
            raise

    def _void_what_follows(self, places: Places) -> None:
        """Void everything, and have the next source begin an epoch: what is hidden stays missing when mended."""
        assert self._publisher is not None
        places.connector = _NO_CONNECTOR
        self._tell(self._publisher)
        self._publisher.start_new_epoch(self.status.position, self.status.timestamp, "history_lost")

    def _give(self, publisher: PublisherLike, catalog: Catalog, transaction: SourceTransaction) -> None:
        """As `MariaDBSource._give`. A state in which a table is cached must have the place in its topic, too."""
        described = [each.table for each in transaction.changes if isinstance(each, DescribeTable)]
        if described:
            self._tell(publisher, described)
        super()._give(publisher, catalog, transaction)

    def _aligned(self, progress: Progress, transaction: SourceTransaction) -> SourceTransaction:
        """What is void in a transaction depends on what was read beside it, so it may be another one now."""
        return progress.aligned(transaction, _NO_CHOICE)

    def _stamp(self, publisher: PublisherLike, reader: Log, watch: DumpWatch) -> None:
        super()._stamp(publisher, reader, watch)
        if not isinstance(reader, DebeziumReader):
            return
        if time.monotonic() >= self._annotate_at or reader.would_void:
            reader.note_places()
            reader.note_storage()
            self._tell(publisher)

    def _tell(self, publisher: PublisherLike, described: Collection[str] = ()) -> None:
        """Keep in the source's state where the topics are read again. An older place is right, too.

        So those of before stay where new ones have no room, unless a topic of the tables ``described`` is not in them.
        """
        self._annotate_at = time.monotonic() + _ANNOTATE_EVERY_S
        assert self._places is not None
        words = self._places.words(self._prefix)
        if len(words) > WORDS_MAX and self._places.connector == _NO_CONNECTOR:
            words = Places(_NO_CONNECTOR).words(self._prefix)  # an epoch begins, and nothing is read from there
        if len(words) > WORDS_MAX:
            self._keep_told(described)
        elif words != self._told:
            publisher.annotate({PLACES: words})
            self._told = words

    def _keep_told(self, described: Collection[str]) -> None:
        """Raises `DebeziumError` if what was told is not enough."""
        assert self._places is not None
        now, told = {topic for topic, _ in self._places.offsets}, read_places(self._told, self._prefix)
        new = now.difference(topic for topic, _ in told.offsets) if told is not None else now
        reason = f"the places in {len(self._places.offsets)} partitions are more than a source's state may hold"
        hint = "publish fewer tables (include), or make their topics with one partition each"
        if told is None or any(legal(f"{self._from.topic_prefix}.{table}") in new for table in described):
            raise DebeziumError(reason, hint=hint)
        if not self._lacks_room:
            hint += "; restart it so within the retention.ms of the connector's topics"
            log.warning("old places are kept: a restart reads again from there", reason=reason, hint=hint)
        self._lacks_room = True


class _Watch(DumpWatch):
    """Looks at the connector, too."""

    def __init__(self, settings: ConnectionSettings, server: int, look: Callable[[], None]) -> None:
        super().__init__(settings, server)
        self._look = look

    def check(self, position: str, last_heartbeat: LogPlace | None = None) -> None:
        super().check(position, last_heartbeat)
        self._look()
