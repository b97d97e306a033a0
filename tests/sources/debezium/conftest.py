"""Fixtures of the Debezium source's tests: a connector of a live server, and what the server's own binlog says."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from stream.publish.publisher import Publisher
from stream.sources.debezium.source import ConnectorOptions, DebeziumSource
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from tests.servers.connect import ConnectServer, debezium_config
from tests.servers.databases import own_database
from tests.sources.mariadb.conftest import Source, settings_of
from tests.sources.mariadb.test_source import Running

Product = Literal["MySQL", "MariaDB"]


@dataclass
class Captured:
    """One database of a server, the connector that tells of it, and its own binlog to compare with."""

    kafka: KafkaCluster
    connect: ConnectServer
    source: Source
    prefix: str

    @property
    def options(self) -> ConnectorOptions:
        """What a source needs to read the connector."""
        return ConnectorOptions(self.prefix, self.connect.url, self.kafka)

    def create(self, **changes: str) -> None:
        """Make the connector and wait until it runs. ``changes``: settings with ``__`` in place of dots."""
        at, product = self.source.settings, self.source.settings.product
        address = MariaDBAddress(at.host, at.port, at.user, at.password)
        config = debezium_config(self.kafka, product, address, self.prefix)
        config["table.include.list"] = f"{self.source.database}[.].*"
        config |= {name.replace("__", "."): value for name, value in changes.items()}
        self.connect.create(self.prefix, config)


class RunningDebezium(Running):
    """A Debezium source in a thread."""

    def __init__(self, captured: Captured, keyspace: str, **options: Any) -> None:
        self.connector = captured.options
        super().__init__(captured.kafka, keyspace, captured.source, **options)

    def made(self, options: SourceOptions, publisher: Callable[[], Publisher]) -> MariaDBSource:
        """The source."""
        return DebeziumSource(options, self.connector, publisher, lambda _: self.ready.set())


@pytest.fixture(params=["MySQL", "MariaDB"])
def captured(request: pytest.FixtureRequest, kafka: KafkaCluster, connect: ConnectServer) -> Iterator[Captured]:
    """An empty database of the session's server, for which no connector is made yet."""
    product: Product = request.param
    address: MariaDBAddress = request.getfixturevalue(product.lower())
    with own_database(address) as database:
        source = Source(settings_of(address, product), database)
        made = Captured(kafka, connect, source, f"c{uuid.uuid4().hex[:10]}")
        try:
            yield made
        finally:
            connect.delete(made.prefix)
            source.close()
