"""The last published transaction is compared with the server's when a source resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.binlog.last_read import check_same
from stream.sources.mariadb.connection import SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.position import check_resumable
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_positions import purge
from tests.sources.mariadb.test_requirements import LOGGED, replicate
from tests.sources.mariadb.test_source import Running, images, of_kind, published, until

WRITES = (
    "INSERT INTO t VALUES (1, 'a')",
    "UPDATE t SET v = REPEAT('b', 9000)",
    "INSERT INTO t SELECT seq, REPEAT('c', 500) FROM seq_2_to_100",
    "BEGIN; INSERT INTO t VALUES (101, 'x'); DELETE FROM t WHERE id = 1; COMMIT",
    "ALTER TABLE t ADD COLUMN w INT",
    "CREATE TABLE u AS SELECT id FROM t",
    "CREATE TABLE x (id INT)",
    "CREATE SEQUENCE s",
    "CREATE VIEW v AS SELECT id FROM t",
    "DROP VIEW v",
    "DROP SEQUENCE s",
    "DROP TABLE u, x",
    "DROP TABLE IF EXISTS u",
    "CREATE TABLE u (id INT)",
    "DROP TABLE /* it is old */ u",
)


def test_a_transaction_that_took_the_gtid_of_a_lost_one_ends_the_epoch(
    kafka: KafkaCluster, keyspace_name: str, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """After a power loss the same GTID may stand for another change: positions alone would never tell."""
    first = source_of(new_mariadb(durable=False).address, "d")
    first.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    with Running(kafka, keyspace_name, first):
        first.run("INSERT INTO t VALUES (2, 2)")
        until(lambda: published(kafka, keyspace_name) == first.position(), "rows")
    with Running(kafka, keyspace_name, first):
        first.run("INSERT INTO t VALUES (3, 3)")
        until(lambda: published(kafka, keyspace_name) == first.position(), "rows after a restart")
    assert len(of_kind(kafka, keyspace_name, "EpochStart")) == 1
    other = source_of(new_mariadb(durable=False).address, "d")
    other.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 2)"
    )
    other.run("INSERT INTO t VALUES (3, 4)", "INSERT INTO t VALUES (4, 4)")
    with Running(kafka, keyspace_name, other):
        until(lambda: len(of_kind(kafka, keyspace_name, "EpochStart")) == 2, "a new epoch")
        other.run("INSERT INTO t VALUES (5, 5)")
        until(lambda: b"d.t\0[5]" in images(kafka, keyspace_name), "rows of the new history")


def test_a_replica_has_the_same_checksums(
    new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """After a failover to a replica nothing is lost, so its transactions must have the primary's checksums."""
    primary = source_of(new_mariadb(durable=False, server_id=1, gtid_domain_id=1).address, "d")
    options = LOGGED | {"read-only": "ON", "log-bin-compress": "ON", "binlog-row-event-max-size": "1024"}
    replica = source_of(new_mariadb(durable=False, server_id=2, gtid_domain_id=2, options=options).address, "e")
    primary.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    primary.begin()
    for write in WRITES:
        primary.run(*write.split("; "))
    read = primary.transactions()
    replicate(replica, primary, "up")
    until(lambda: f"{primary.position().removeprefix('MariaDB/')}," in replica.position() + ",", "the replica")
    for transaction in read:
        here = transaction.cursor.removeprefix("MariaDB/")
        own = replica.start.removeprefix("MariaDB/")
        check_same(
            replica.settings, 79_001, f"MariaDB/{here},{own}", f"{transaction.position},{own}", transaction.checksum
        )
        with pytest.raises(SourceHistoryLost, match="another transaction"):
            check_same(
                replica.settings,
                79_001,
                f"MariaDB/{here},{own}",
                f"{transaction.position},{own}",
                transaction.checksum + 1,
            )


def test_a_server_that_goes_on_behind_what_it_lost_has_lost_it(
    new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """Another one took over without its last commits, then it did again, made anew: its own numbers are above them."""
    source = source_of(new_mariadb(durable=False).address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    (domain, (own, last)), *_ = GtidPosition.parse(source.position()).domains.items()
    source.run(f"SET server_id = {own + 1}", "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    source.run(f"SET server_id = {own}", "INSERT INTO t VALUES (4)", "INSERT INTO t VALUES (5)")
    cursor, lost = (f"MariaDB/{domain}-{own}-{last + number}" for number in (1, 2))
    check_resumable(source.session, lost)
    with pytest.raises(SourceHistoryLost, match="missing the GTID"):
        check_same(source.settings, 79_002, cursor, lost, 1)
    with pytest.raises(SourceHistoryLost, match="missing the GTID"):
        source.transactions(lost)


def test_a_purged_transaction_is_not_compared(
    kafka: KafkaCluster, keyspace_name: str, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """A source that was away until the log before its position was purged still resumes."""
    source = source_of(new_mariadb(durable=False).address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with Running(kafka, keyspace_name, source):
        source.run("INSERT INTO t VALUES (1)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "the row")
    source.run("FLUSH BINARY LOGS")
    purge(source)
    with Running(kafka, keyspace_name, source):
        source.run("INSERT INTO t VALUES (2)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "the next row")
    assert len(of_kind(kafka, keyspace_name, "EpochStart")) == 1
