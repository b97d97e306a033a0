"""Fixtures of the Debezium source's tests: a connector of a live server, and what the server's own binlog says."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from freshet.local.mysql import MySQLServer
from stream.kafka.connection import KafkaCluster
from stream.publish.publisher import Publisher
from stream.sources.debezium.connector import KafkaConnect, asked
from stream.sources.debezium.offsets import offsets_of
from stream.sources.debezium.source import ConnectorOptions, DebeziumSource
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from stream.wire.events import RowChange
from tests.servers import choice
from tests.servers.connect import ConnectServer, debezium_config
from tests.servers.databases import own_database
from tests.sources.mariadb.conftest import Source, settings_of
from tests.sources.mariadb.test_source import PARTITIONS, Running, published, until
from tests.stream.committed import records, rows


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
        return ConnectorOptions(self.prefix, KafkaConnect(self.connect.url), self.kafka)

    def create(self, **changes: str) -> None:
        """Make the connector, and wait until its snapshot has ended: what changes before is no change for it.

        ``changes``: settings, ``__`` for dots.
        """
        at, product = self.source.settings, self.source.settings.product
        address = MariaDBAddress(at.host, at.port, at.user, at.password)
        config = debezium_config(self.kafka, product, address, self.prefix)
        config["table.include.list"] = f"{self.source.database}[.].*"
        config |= {name.replace("__", "."): value for name, value in changes.items()}
        self.connect.create(self.prefix, config)
        path = f"connectors/{self.prefix}/offsets"

        def has_ended() -> bool:
            return offsets_of(asked(self.options.connect, path, dict[str, Any]), self.prefix) is not None

        until(has_ended, "the snapshot's end")

    def differences(self, keyspace: str) -> tuple[int, list[str]]:
        """How many rows are published as the binlog has them since `Source.begin`, and what is otherwise.

        What its connector can't carry exactly may be void instead: a row, whose image is empty then, or all the rows
        of a table in a transaction that voids it.
        """
        expected = {
            transaction.gtid: {each.key: each.image for each in transaction.changes if isinstance(each, RowChange)}
            for transaction in self.source.transactions()
        }
        topic = records(self.kafka, keyspace, PARTITIONS)
        void = {(each["gtid"], each["table"]) for part in topic.values() for name, each in part if name == "TableVoid"}
        found = [row for row in rows(topic) if row[3] in expected]
        wrong = [
            f"{gtid} {key!r}: {image!r}"
            for _, key, image, gtid in found
            if key not in expected[gtid] or image not in (b"", expected[gtid][key])
        ]
        wanted = [
            (gtid, key)
            for gtid, changes in expected.items()
            for key in changes
            if (gtid, key.partition(b"\0")[0].decode()) not in void
        ]
        places = Counter((gtid, key) for _, key, _, gtid in found)
        wrong += [f"missing {place}" for place in wanted if place not in places]
        wrong += [f"{count} times {place}" for place, count in places.items() if count > 1]
        order = list(dict.fromkeys(gtid for gtid, _ in places))
        if order != [gtid for gtid in expected if gtid in order]:
            wrong.append("another order of transactions")
        return sum(image == expected[gtid].get(key) for _, key, image, gtid in found), wrong

    def stale(self, keyspace: str, *tables: str) -> dict[bytes, bytes]:
        """The images in the topic that no void has taken back, and that no row has now. Key → image."""
        cached = cached_images(self.kafka, keyspace)
        now: dict[bytes, bytes] = {}
        for table in tables:
            now |= self.source.selected(table)
        return {key: image for key, image in cached.items() if image and now.get(key) != image}


def cached_images(kafka: KafkaCluster, keyspace: str) -> dict[bytes, bytes]:
    """Key → the last image in the topic that no void has taken back; b"" for a row that is gone, or void."""
    cached: dict[bytes, bytes] = {}
    events: list[tuple[int, str, bytes, bytes]] = []
    found = records(kafka, keyspace, PARTITIONS)
    events += [(ordinal, "", key, image) for ordinal, key, image, _ in rows(found)]
    events += {
        (each["ordinal"], each["table"], b"", b"")
        for part in found.values()
        for name, each in part
        if name == "TableVoid"
    }
    for _, table, key, image in sorted(events):
        if table:
            prefix = b"" if table == "*" else table.encode() + b"\0"
            cached = {key: image for key, image in cached.items() if not key.startswith(prefix)}
        else:
            cached[key] = image
    return cached


class RunningDebezium(Running):
    """A Debezium source in a thread."""

    def __init__(self, captured: Captured, keyspace: str, **options: Any) -> None:
        self.connector, self.keyspace = captured.options, keyspace
        super().__init__(captured.kafka, keyspace, captured.source, **options)

    def until_published(self, position: str) -> None:
        """Wait until the topic's last marker is at ``position``. Raises what has ended the source."""

        def is_there() -> bool:
            if self.future.done():
                self.future.result()
            return published(self.connector.kafka, self.keyspace) == position

        until(is_there, f"{position} published")

    def made(self, options: SourceOptions, publisher: Callable[[], Publisher]) -> MariaDBSource:
        """The source."""
        return DebeziumSource(options, self.connector, publisher, lambda _: self.ready.set())


@pytest.fixture(scope="session")
def untagged_mysql() -> Iterator[MariaDBAddress]:
    """A MySQL of these tests alone: others leave tagged GTIDs at the session's, which a connector can't tell."""
    if not choice.has_local_mysql():
        pytest.skip(choice.used["mysql"])
    with choice.started(MySQLServer) as server:
        yield server.address


@pytest.fixture(params=["MySQL", "MariaDB"])
def captured(request: pytest.FixtureRequest, kafka: KafkaCluster, connect: ConnectServer) -> Iterator[Captured]:
    """An empty database of a server, for which no connector is made yet."""
    fixture = "untagged_mysql" if request.param == "MySQL" else "mariadb"
    address: MariaDBAddress = request.getfixturevalue(fixture)
    with own_database(address) as database:
        source = Source(settings_of(address, request.param), database)
        try:
            yield Captured(kafka, connect, source, f"c{uuid.uuid4().hex[:10]}")
        finally:
            source.close()
