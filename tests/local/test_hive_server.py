"""The local Hive Metastore: two of them can share one database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from freshet.local.hive.server import HiveServer
from freshet.local.hive.site import MetastoreDatabase
from freshet.local.mariadb import MariaDBAddress
from stream.sources.hive.rpc.connection import MetastoreConnection
from stream.sources.hive.rpc.thrift import long, record, text


def test_two_metastores_share_one_database(
    new_hive: Callable[..., HiveServer], mariadb: MariaDBAddress, database: str, tmp_path: Path
) -> None:
    """What is made through one metastore, the other one shows, with one notification log for both."""
    shared = MetastoreDatabase(mariadb, database)
    first = new_hive(database=shared, warehouse=tmp_path)
    second = new_hive(database=shared, warehouse=tmp_path)
    assert first.port != second.port
    with (
        MetastoreConnection(((first.host, first.port),)) as one,
        MetastoreConnection(((second.host, second.port),)) as other,
    ):
        for number, connection in enumerate((one, other, one)):
            connection.call("create_database", {1: record({1: text(f"db{number}")})})
        assert {"db0", "db1", "db2"} <= set(other.call("get_databases", {1: text("@hive#")}))
        assert other.call("get_current_notificationEventId", {}) == {1: long(3)}
