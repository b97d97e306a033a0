"""An orderly stop of MariaDB or Kafka is an outage like any other, whatever the source is doing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from freshet.local.kafka import KafkaServer
from stream.kafka.connection import KafkaCluster
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_source import Running, images, published, until
from tests.stream.committed import markers, records

TABLES = 60


@pytest.mark.slow
def test_orderly_stops_of_mariadb_are_waited_out(
    kafka: KafkaCluster, keyspace_name: str, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """It is stopped while the source reads, connects, and reads schemas; nothing is lost and no new epoch starts."""
    server = new_mariadb(durable=False)
    source = source_of(server.address, "d")
    source.run(*[f"CREATE TABLE t{number} (id INT PRIMARY KEY, v INT)" for number in range(TABLES)])
    with Running(kafka, keyspace_name, source) as running:
        for number in range(8):
            again = source_of(server.address, "d")
            again.run(*[f"REPLACE INTO t{each} VALUES (1, {number})" for each in range(TABLES)])
            if number == 0:
                until(lambda: published(kafka, keyspace_name) == source.position(), "rows")
            server.stop()
            server.start()
            moment = time.monotonic() + number * 0.05  # the next stop meets the source at another point
            while time.monotonic() < moment:
                time.sleep(0.01)
            assert not running.future.done(), running.future.exception()
        last = source_of(server.address, "d")
        until(lambda: published(kafka, keyspace_name) == last.position(), "everything")
    assert set(images(kafka, keyspace_name).values()) == {b'{"id":1,"v":7}'}
    assert len({marker["epoch"] for marker in markers(records(kafka, keyspace_name, 3))}) == 1


@pytest.mark.slow
def test_an_orderly_stop_of_kafka_is_waited_out(
    keyspace_name: str, source: Source, new_kafka: Callable[..., KafkaServer]
) -> None:
    """The broker says goodbye instead of vanishing; every change is in the topic once."""
    broker = new_kafka()
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with Running(broker.cluster, keyspace_name, source) as running:
        source.run("INSERT INTO t VALUES (1)")
        until(lambda: published(broker.cluster, keyspace_name) == source.position(), "first row")
        broker.stop()
        source.run("INSERT INTO t VALUES (2)")
        broker.start()
        source.run("INSERT INTO t VALUES (3)")
        until(lambda: published(broker.cluster, keyspace_name) == source.position(), "rows after the restart")
        assert not running.future.done()
    found = sorted(key.partition(b"\0")[2] for key in images(broker.cluster, keyspace_name))
    assert found == [b"[1]", b"[2]", b"[3]"]
