"""Fixtures of the PostgreSQL source's tests: a database of a live server, a connector of it, and a running source."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import psycopg
import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.topics import ensure_topics
from stream.publish.publisher import Publisher
from stream.sources.debezium.connector import KafkaConnect
from stream.sources.debezium.source import ConnectorOptions
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import SourceOptions
from stream.sources.postgres.connection import session
from stream.sources.postgres.server import read_state
from stream.sources.postgres.source import PostgresSource
from stream.wire.keys import Layout
from tests.patience import PATIENCE_S
from tests.servers.connect import ConnectServer, postgres_config
from tests.sources.mariadb.test_source import PARTITIONS, until
from tests.stream.committed import last_position
from tokens import Position


class Database:
    """A database with a connector that tells of its schema ``public``."""

    def __init__(self, settings: ConnectionSettings, kafka: KafkaCluster, connect: ConnectServer) -> None:
        self.settings, self.kafka, self.connect = settings, kafka, connect
        self.prefix = self.connector = settings.database
        at = settings
        self.conninfo = psycopg.conninfo.make_conninfo(
            host=at.host, port=at.port, user=at.user, password=at.password, dbname=at.database
        )
        self.sql = psycopg.connect(self.conninfo, autocommit=True)

    @property
    def source_settings(self) -> dict[str, Any]:
        """As the page for operators has them."""
        at = self.settings
        return {
            "server": "postgres",
            "database": at.database,
            "databases": ["public"],
            "topic_prefix": self.prefix,
            "connect_url": self.connect.url,
            "host": at.host,
            "port": at.port,
            "user": at.user,
        }

    def another(self) -> psycopg.Connection[Any]:
        """Another session."""
        return psycopg.connect(self.conninfo, autocommit=True)

    def run(self, *statements: str) -> None:
        """Run each statement."""
        for statement in statements:
            self.sql.execute(statement.encode())

    def position(self) -> str:
        """Where everything that was committed is."""
        with session(self.settings) as asked:
            return str(read_state(asked).end)

    def create(self, **changes: str) -> None:
        """Make the connector, and wait until it streams, and has written what every table had.

        ``changes``: settings, ``__`` for dots.
        """
        at = self.settings
        address = MariaDBAddress(at.host, at.port, at.user, at.password)
        config = postgres_config(self.kafka, address, at.database, self.prefix)
        config |= {"table.include.list": "public[.].*"}
        self.connect.create(
            self.connector, config | {name.replace("__", "."): value for name, value in changes.items()}
        )
        until(self.streams, "the connector streams")
        admin = AdminClient(client_settings(self.kafka))
        names = self.sql.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        wanted = {f"{self.prefix}.public.{name}" for (name,) in names}
        until(lambda: wanted <= admin.list_topics(timeout=PATIENCE_S).topics.keys(), "a topic of each table")

    def streams(self) -> bool:
        """Whether the connector reads its slot."""
        found = self.sql.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (self.prefix,))
        return found.fetchone() == (True,)

    def remove(self) -> None:
        """End the connector, and drop its slot. Another one would go on under another name."""
        self.connect.delete(self.connector)
        until(lambda: not self.streams(), "the connector has left")
        self.run(f"SELECT pg_drop_replication_slot('{self.prefix}')")
        self.connector += "-next"


class RunningPostgres:
    """A source of PostgreSQL in a thread."""

    def __init__(self, database: Database, keyspace: str, **options: Any) -> None:
        self.database, self.keyspace = database, keyspace
        self.ready = threading.Event()
        tables = options.pop("tables", TableFilter(("public",)))
        kafka = database.kafka

        def publisher() -> Publisher:
            ensure_topics(kafka, keyspace, PARTITIONS)
            return Publisher(kafka, keyspace, f"{keyspace}/0", Layout(PARTITIONS), batch_interval_s=0.01)

        self.source = PostgresSource(
            SourceOptions(database.settings, f"{keyspace}/0", tables, **options),
            ConnectorOptions(database.prefix, KafkaConnect(database.connect.url), kafka),
            publisher,
            lambda _: self.ready.set(),
        )
        self.pool = ThreadPoolExecutor(1)
        self.future = self.pool.submit(self.source.run)

    def until_published(self, position: str) -> None:
        """Wait until the topic's last marker is at ``position``, or past it. Raises what has ended the source."""

        def is_there() -> bool:
            if self.future.done():
                self.future.result()
            found = last_position(self.database.kafka, self.keyspace)
            return bool(found) and Position.parse(found).order(Position.parse(position)).name in ("SAME", "NEWER")

        until(is_there, f"{position} published")

    def __enter__(self) -> Self:
        until(lambda: self.ready.is_set() or self.future.done(), "ready")
        if self.future.done():
            self.future.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.source.stop()
        self.future.result(timeout=PATIENCE_S)
        self.pool.shutdown()


@pytest.fixture
def empty(postgres: str) -> Iterator[ConnectionSettings]:
    """How an empty database is connected to, which is dropped afterwards."""
    url = sa.make_url(postgres)
    name = f"p{uuid.uuid4().hex[:10]}"
    server = psycopg.connect(postgres.replace("+psycopg", ""), autocommit=True)
    server.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield ConnectionSettings(
            url.host or "127.0.0.1",
            url.port or 5432,
            url.username or "postgres",
            str(url.password or ""),
            product="PostgreSQL",
            database=name,
        )
    finally:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        server.close()


@pytest.fixture
def database(empty: ConnectionSettings, kafka: KafkaCluster, connect: ConnectServer) -> Iterator[Database]:
    """An empty database, for which no connector is made yet."""
    found = Database(empty, kafka, connect)
    try:
        yield found
    finally:
        if found.streams():
            found.remove()
        found.sql.close()
