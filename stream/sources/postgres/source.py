"""The source of a shard whose changes Debezium's connector for PostgreSQL writes into Kafka.

The server is asked for its tables, its clock, its timeline, and how far the connector's slot is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from stream.sources.debezium.connector import ENDS_HINT, NO_ENDS
from stream.sources.debezium.errors import ConnectUnreachable
from stream.sources.debezium.messages import POSTGRES
from stream.sources.debezium.places import Places
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.schema import DebeziumSchema
from stream.sources.debezium.source import DebeziumSource
from stream.sources.debezium.topics import ConnectorTopics
from stream.sources.mariadb.backfill.reading import Chunks
from stream.sources.mariadb.binlog.events import LogPlace
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.connection import (
    ConnectionSettings,
    MariaDBError,
    ServerBehind,
    SourceHistoryLost,
)
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import ServerPosition
from stream.sources.mariadb.source import Log, PublisherLike
from stream.sources.mariadb.watch import DumpWatch, ServerClock
from stream.sources.postgres.chunks import PostgresChunkReader
from stream.sources.postgres.connection import connect, fetch_all, session, translated
from stream.sources.postgres.reader import InvalidatingPostgresReader, PostgresReader
from stream.sources.postgres.schema import PostgresSchema
from stream.sources.postgres.server import check_not_lost, check_settings, read_state, slot_of
from stream.sources.postgres.tables import schemas_of

if TYPE_CHECKING:
    from stream.sources.postgres.connection import Connection


log = structlog.get_logger(__name__)


class PostgresSource(DebeziumSource):
    """Publishes what a connector tells of one database until it is stopped."""

    def _check_server(self) -> None:
        with session(self._options.settings) as asked:
            check_settings(asked)
            read_state(asked)
            databases = self._options.tables.databases
            if databases and not set(databases) & schemas_of(asked):
                raise self._unknown_database(list(databases))
        self._ask_connector()

    def _first_position(self) -> tuple[str, int]:
        with session(self._options.settings) as asked:
            at = self._first_place(asked)
        self._new_epoch_for = ""
        return at.position, at.timestamp

    def _first_place(self, asked: Connection) -> ServerPosition:
        """Where an epoch begins: what is committed behind the end of the log has its messages behind the topics' ends.

        A read has a position of its own that is sound without it, so nothing waits until all before it is visible.
        """
        connector = self._ask_connector()
        topics = ConnectorTopics(self._from.kafka, self._from.topic_prefix)
        try:
            slot_of(asked, connector.slot)
            existing = topics.existing()
            names = fetch_all(asked, "SELECT schemaname, tablename FROM pg_tables")
            mine = {topics.topic_of(f"{name[0]}.{name[1]}") for name in names if self._options.tables(*name)}
            ends = topics.beginning({name: existing[name] for name in {*mine, topics.transactions} & existing.keys()})
        except SourceHistoryLost as lost:
            raise ConnectUnreachable(str(lost), hint="the connector makes it when it begins") from lost
        finally:
            topics.close()
        state = read_state(asked)
        snapshot = self._places.snapshot if self._places is not None else ""
        self._places = Places(connector.fingerprint, ends, snapshot)
        self._begun_at = str(state.end)
        return ServerPosition(self._begun_at, state.now_ms // 1000)

    def _check_begins(self, position: str) -> None:
        raise ServerBehind(f"a connector's source can't go on where other shards ended ({position})")

    def _check(self, publisher: PublisherLike, schema: LiveSchema, progress: Progress) -> None:
        """As the source of a binlog does it."""
        with session(self._options.settings) as asked:
            check_settings(asked)
            state = read_state(asked)
            if not self._new_epoch_for:
                try:
                    check_not_lost(state, progress.position)
                    if self._places is None:
                        raise SourceHistoryLost("the source's state does not tell where the topics were read")
                    slot_of(asked, self._ask_connector().slot)
                    self._check_choice(self._places)
                except SourceHistoryLost as lost:
                    self._lose_history(lost)
            if self._new_epoch_for:
                self._new_epoch(publisher, progress, self._first_place(asked), self._new_epoch_for)
                schema.catalog.describe_as({})
                self._new_epoch_for = ""

    def _new_chunks(self) -> Chunks:
        return PostgresChunkReader(self._options.settings)

    def _new_schema(self) -> LiveSchema:
        connector = self._connector
        assert connector is not None
        options = self._options
        storage = self._places.storage if self._places is not None else 0
        return PostgresSchema(
            options.settings, options.tables, self._captures, connector.publication, connector.slot, storage
        )

    def _open_log(self, schema: LiveSchema, position: str) -> tuple[Log, DumpWatch]:
        assert isinstance(schema, PostgresSchema)
        assert self._places is not None
        topics = ConnectorTopics(self._from.kafka, self._from.topic_prefix)
        wanted = {topics.transactions, *map(topics.topic_of, schema.live)}
        topics.add({place: offset for place, offset in self._places.offsets.items() if place[0] in wanted})
        return self._reader_of(topics, schema, position), _Watch(self._options.settings, self._look)

    def _reader_of(self, topics: ConnectorTopics, schema: DebeziumSchema, position: str) -> DebeziumReader:
        connector, places, options = self._connector, self._places, self._options
        assert connector is not None
        assert places is not None
        assert isinstance(schema, PostgresSchema)
        arguments = topics, schema, position, places, POSTGRES, options.spill_bytes
        timestamp = self.status.timestamp
        if not connector.tells_ends:
            log.warning("invalidation only", shard=options.shard, reason=NO_ENDS, hint=ENDS_HINT)
            return InvalidatingPostgresReader(schema.confirmed, *arguments, timestamp=timestamp)
        return PostgresReader(*arguments, timestamp=timestamp, keeps_before=options.before_images)


class _Watch(DumpWatch):
    """Asks the server for its clock, and whether its history is still the one that is published."""

    def __init__(self, settings: ConnectionSettings, look: Callable[[], None]) -> None:
        super().__init__(settings, 0)
        self._look = look
        self._server_session: Connection | None = None

    def check(self, position: str, last_heartbeat: LogPlace | None = None) -> None:  # noqa: ARG002
        """Raises `SourceHistoryLost`. Does nothing if the server can't be asked."""
        self._checked()
        try:
            if self._server_session is None:
                self._server_session = connect(self._settings)
            with translated(self._settings):
                state = read_state(self._server_session)
                check_not_lost(state, position)
            self.saw(ServerClock(state.now_ms, state.end))
        except SourceHistoryLost:
            raise
        except MariaDBError:
            self.close()
        self._look()

    def close(self) -> None:
        """End the session that queries the server."""
        session, self._server_session = self._server_session, None
        if session is not None:
            session.close()
