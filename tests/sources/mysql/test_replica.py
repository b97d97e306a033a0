"""A replica of MySQL: its transactions are its primary's, and what it can't prove it doesn't say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from freshet.local.mysql import MySQLServer
from stream.sources.mariadb.connection import fetch_all
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.requirements import check_server
from stream.sources.mariadb.snapshot import SnapshotRead, SnapshotReader
from stream.sources.mariadb.watch import DumpWatch
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source, rows, voids

WRITES = (
    ["INSERT INTO t VALUES (1, 'a', '{\"a\": 1.5}')"],
    ["UPDATE t SET v = REPEAT('b', 9000)"],
    ["BEGIN", "INSERT INTO t VALUES (2, 'x', '[]'), (3, 'y', 'null')", "DELETE FROM t WHERE id = 1", "COMMIT"],
    ["SET binlog_transaction_compression = ON", "UPDATE t SET v = 'c'", "SET binlog_transaction_compression = OFF"],
    ["SET gtid_next = 'AUTOMATIC:tag'", "UPDATE t SET v = 'd'", "SET gtid_next = 'AUTOMATIC'"],
    ["ALTER TABLE t ADD COLUMN w INT"],
    ["CREATE TABLE c SELECT 1 AS id"],
    ["INSERT INTO p VALUES (1)", "INSERT INTO q VALUES (1, 1)", "DELETE FROM p"],
    ["XA START 'x'", "INSERT INTO p VALUES (7)", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"],
)


def test_a_replica_has_the_same_transactions_and_checksums(
    new_mysql: Callable[..., MySQLServer], source_of: Callable[[Any, str], Source]
) -> None:
    """After a failover to a replica nothing is lost: its log gives the same rows, GTIDs and checksums."""
    primary = source_of(new_mysql(server_id=1).address, "d")
    options = {"read-only": "ON", "binlog-row-event-max-size": "1024"}
    replica = source_of(new_mysql(server_id=2, options=options).address, "e")
    replica.run("RESET BINARY LOGS AND GTIDS")
    primary.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT, j JSON)",
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE q (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    )
    primary.begin()
    for write in WRITES:
        primary.run(*write)
    at = primary.settings
    replica.run(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{at.host}', SOURCE_PORT = {at.port}, SOURCE_USER = '{at.user}',"
        f" SOURCE_PASSWORD = '{at.password}', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
        "START REPLICA",
    )
    deadline = time.monotonic() + PATIENCE_S
    while not GtidPosition.parse(replica.position()).covers(GtidPosition.parse(primary.position())):
        assert time.monotonic() < deadline, fetch_all(replica.session, "SHOW REPLICA STATUS")
        time.sleep(0.05)
    assert check_server(replica.session)
    copy = Source(replica.settings, "d")
    expected, found = primary.transactions(), copy.transactions(primary.start)
    assert [(each.gtid, each.checksum) for each in found] == [(each.gtid, each.checksum) for each in expected]
    assert [each.position for each in found] == [each.position for each in expected]
    assert "d.p" in voids(expected[-1])
    assert len(rows(expected[0])) == 1
    reader = SnapshotReader(copy.settings)
    read = reader.read({"d.q": [[1]]})["d.q"]
    assert isinstance(read, SnapshotRead)
    assert not read.is_primary, "nobody can tell how far behind a replica is"
    reader.close()
    watch = DumpWatch(copy.settings, 2)
    watch.check(copy.position())
    assert watch.clock_seen is None
    watch.close()
    copy.close()
