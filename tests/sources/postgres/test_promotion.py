"""A standby that is promoted without the last commits, over real servers: what they were is forgotten."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest

from lab.faults.network import Network
from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.connection import ConnectionSettings
from tests.servers.choice import used
from tests.servers.connect import ConnectServer
from tests.servers.postgres import PostgresServer, can_be_had
from tests.sources.debezium.conftest import cached_images
from tests.sources.mariadb.test_source import PARTITIONS, until
from tests.sources.postgres.conftest import Database, RunningPostgres
from tests.stream.committed import records
from tokens import Position

NAME = "promoted"


def administer(server: PostgresServer, statement: str) -> list[tuple[object, ...]]:
    """What a statement outside of all databases returns."""
    url = server.url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def standby_of(server: PostgresServer, directory: Path, port: int) -> PostgresServer:
    """A copy of a server that follows it, over ``port``."""
    server.stop()
    shutil.copytree(server.data_dir / "cluster", directory / "cluster")
    server.start()
    (directory / "cluster" / "standby.signal").touch()
    with (directory / "cluster" / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"primary_conninfo = 'host=127.0.0.1 port={port} user=postgres'\n")
    return PostgresServer(directory).start()


@pytest.mark.integration
def test_a_promoted_standby_that_lacks_commits_begins_an_epoch(
    tmp_path: Path, kafka: KafkaCluster, connect: ConnectServer, keyspace_name: str
) -> None:
    """The address leads to it from then on. What the old server had last is served to nobody, and rows go on."""
    if not can_be_had():
        pytest.skip(used.get("postgres", "no PostgreSQL here"))
    with Network() as network, PostgresServer(tmp_path / "old") as old:
        administer(old, f"CREATE DATABASE {NAME}")
        address = network.link("postgres", (old.host, old.port))
        replication = network.link("replication", (old.host, old.port))
        new = standby_of(old, tmp_path / "new", replication.port)
        settings = ConnectionSettings("127.0.0.1", address.port, "postgres", product="PostgreSQL", database=NAME)
        before = Database(settings, kafka, connect)
        try:
            before.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, 'a')")
            before.create()
            with RunningPostgres(before, keyspace_name) as running:
                before.run("UPDATE t SET v = 'kept' WHERE id = 1")
                running.until_published(before.position())
                epoch, place = running.source.status.epoch, before.position()
                lsn = place.rpartition(":")[2]
                replayed = f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'"
                until(lambda: administer(new, replayed) == [(True,)], "the standby has it")
                replication.cut()
                before.run("UPDATE t SET v = 'lost' WHERE id = 1")
                running.until_published(before.position())
                connect.delete(before.connector)
                before.sql.close()
                old.kill()
                administer(new, "SELECT pg_promote()")
                address.upstream = (new.host, new.port)
                address.cut()
                address.clear()
                after = Database(settings, kafka, connect)
                after.connector += "-next"
                after.create()
                until(lambda: running.source.status.epoch > epoch, "a new epoch")

                def told() -> bytes | None:
                    """The other row, once it is changed after the table was described anew."""
                    after.run("UPDATE t SET v = v || 'b' WHERE id = 2")
                    running.until_published(after.position())
                    return cached_images(kafka, keyspace_name).get(b"public.t\0[2]")

                until(lambda: bool(told()), "the row")
                assert Position.parse(running.source.status.position).order(Position.parse(place)).name == "UNKNOWN"
            rows: dict[int, str] = dict(after.sql.execute("SELECT id, v FROM t").fetchall())
            assert rows[1] == "kept"
            told_since = {
                image
                for part in records(kafka, keyspace_name, PARTITIONS).values()
                for name, frame in part
                if name == "RowFrame" and frame["epoch"] > epoch
                for image in frame["images"]
            }
            assert f'{{"id":2,"v":"{rows[2]}"}}'.encode() in told_since
            assert not any(b"lost" in image for image in told_since)
            connect.delete(after.connector)
            after.sql.close()
        finally:
            new.kill()
