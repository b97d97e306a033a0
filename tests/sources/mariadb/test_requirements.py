"""Which servers a source refuses, and that it notices what becomes of a server while it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.connection import ConnectionSettings, ServerSettingsError, connect
from stream.sources.mariadb.requirements import check_server, check_writer
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_source import Running, of_kind, published, until


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
        ("gtid_strict_mode", "OFF", "ON"),
        ("sync_binlog", "0", "1"),
        ("innodb_flush_log_at_trx_commit", "2", "1"),
        ("sync_binlog", "1000", "1"),
    ],
)
def test_settings_that_hide_changes_or_break_their_order_are_refused_with_the_fix(
    source: Source, setting: str, value: str, wanted: str
) -> None:
    """The hint is the statement that fixes the setting."""
    check_server(source.session)
    with source.with_setting(setting, value), pytest.raises(ServerSettingsError, match=setting) as caught:
        check_server(source.session)
    assert f"SET GLOBAL {setting} = {wanted}" in caught.value.hint


@pytest.mark.parametrize(
    ("setting", "value", "is_refused"),
    [
        ("binlog_format", "STATEMENT", True),
        ("gtid_strict_mode", "OFF", True),
        ("sync_binlog", "0", True),
        ("innodb_flush_log_at_trx_commit", "0", True),
        ("binlog_format", "MIXED", False),
        ("binlog_row_image", "MINIMAL", False),
    ],
)
def test_a_server_whose_replicas_are_read_must_keep_its_history_and_need_not_log_rows_whole(
    source: Source, setting: str, value: str, is_refused: bool
) -> None:
    """Its replicas log what they have applied, whole. STATEMENT lets them apply other values."""
    assert check_writer(source.session)
    with source.with_setting(setting, value):
        if is_refused:
            with pytest.raises(ServerSettingsError, match=setting):
                check_writer(source.session)
        else:
            assert not check_writer(source.session), "it can't be read itself"


def test_a_server_without_binlog_or_with_filters_is_refused(new_mariadb: Callable[..., Any]) -> None:
    """A server with a binlog filter is refused, because the filter hides changes."""
    server = new_mariadb(durable=False, options={"binlog-do-db": "shop"})
    session = connect(ConnectionSettings(server.host, server.port, server.user, server.password))
    with pytest.raises(ServerSettingsError, match="binlog_do_db"):
        check_server(session)


LOGGED = {"log-slave-updates": "ON"}


def replicate(replica: Source, primary: Source, name: str) -> None:
    """Let ``replica`` replicate from ``primary``, and wait until both threads run."""
    at = primary.settings
    replica.run(
        f"CHANGE MASTER '{name}' TO MASTER_HOST='{at.host}', MASTER_PORT={at.port}, MASTER_USER='{at.user}',"
        f" MASTER_PASSWORD='{at.password}', MASTER_SSL=0, MASTER_USE_GTID=slave_pos",
        f"START SLAVE '{name}'",
    )

    def is_running() -> bool:
        with replica.session.cursor() as cursor:
            cursor.execute(f"SHOW SLAVE '{name}' STATUS")
            status = dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))
        return bool(status["Slave_IO_Running"] == b"Yes" and status["Master_Server_Id"] == b"%d" % server_id)

    with primary.session.cursor() as cursor:
        cursor.execute("SELECT @@server_id")
        server_id = int(cursor.fetchone()[0])
    until(is_running, "replication")


def test_two_writers_in_one_gtid_domain_are_refused(
    new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """A ring, or two primaries, in one domain: neither's sequence says what came before the other's."""
    first = source_of(new_mariadb(durable=False, server_id=1, options=LOGGED).address, "d1")
    second = source_of(new_mariadb(durable=False, server_id=2).address, "d2")
    replica = source_of(new_mariadb(durable=False, server_id=3, gtid_domain_id=3, options=LOGGED).address, "d3")
    check_server(first.session)
    first.run("SET GLOBAL gtid_strict_mode = OFF")  # else replication stops at the first lower sequence
    replicate(first, second, "ring")
    until(lambda: "0-2-" in _state(first), "a transaction of the other server")
    first.run("SET GLOBAL gtid_strict_mode = ON")
    with pytest.raises(ServerSettingsError, match="domain 0 has two writers: servers 1 and 2") as caught:
        check_server(first.session)
    assert "SET GLOBAL read_only = ON" in caught.value.hint
    first.run("SET GLOBAL read_only = ON")
    check_server(first.session)
    first.run("SET GLOBAL read_only = OFF", "STOP SLAVE 'ring'", "RESET SLAVE 'ring' ALL")
    check_server(first.session)

    replicate(replica, second, "two")
    until(lambda: "0-2-" in _state(replica), "a transaction of the second server")
    check_server(replica.session)
    replica.run("SET GLOBAL gtid_strict_mode = OFF")
    replicate(replica, first, "one")
    first.run("SET gtid_seq_no = 1000", "CREATE DATABASE d9")
    until(lambda: "0-1-" in _state(replica), "a transaction of the first server")
    replica.run("SET GLOBAL gtid_strict_mode = ON")
    with pytest.raises(ServerSettingsError, match="domain 0 has two writers"):
        check_server(replica.session)


def _state(source: Source) -> str:
    with source.session.cursor() as cursor:
        cursor.execute("SELECT @@gtid_binlog_state")
        return str(cursor.fetchone()[0].decode())


def test_a_replica_is_read_with_one_more_grant(
    new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """On a replica the user must be allowed to see what is replicated; the error names the grant."""
    primary = source_of(new_mariadb(durable=False, server_id=1).address, "d1")
    options = LOGGED | {"read-only": "ON"}
    replica = source_of(new_mariadb(durable=False, server_id=2, gtid_domain_id=2, options=options).address, "d2")
    replicate(replica, primary, "up")
    primary.run("CREATE TABLE t (id INT PRIMARY KEY)")
    until(lambda: "0-1-" in _state(replica), "the primary's transactions")
    replica.run("SET sql_log_bin=0", "CREATE USER few@'%' IDENTIFIED BY 'few'")
    replica.run("GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO few@'%'")
    few = connect(ConnectionSettings(replica.settings.host, replica.settings.port, "few", "few"))
    with pytest.raises(ServerSettingsError, match="replica's status") as caught:
        check_server(few)
    assert "GRANT REPLICA MONITOR" in caught.value.hint
    few.close()
    replica.run("GRANT REPLICA MONITOR ON *.* TO few@'%'")
    few = connect(ConnectionSettings(replica.settings.host, replica.settings.port, "few", "few"))
    check_server(few)
    few.close()


def test_a_sequence_that_goes_back_ends_the_epoch(
    kafka: KafkaCluster, keyspace_name: str, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """A change below the published position would be called fresh without it; it voids everything instead."""
    source = source_of(new_mariadb(durable=False).address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    source.run(*[f"UPDATE t SET v = {number}" for number in range(2, 12)])
    with Running(kafka, keyspace_name, source):
        until(lambda: published(kafka, keyspace_name) == source.position(), "the first rows")
        source.run(
            "SET GLOBAL gtid_strict_mode = OFF",
            "SET gtid_seq_no = 3, server_id = 2",
            "UPDATE t SET v = 99",
            "SET GLOBAL gtid_strict_mode = ON",
        )
        until(lambda: len(of_kind(kafka, keyspace_name, "EpochStart")) == 2, "a new epoch")
        source.run("SET server_id = 1", "UPDATE t SET v = 100")
        until(lambda: published(kafka, keyspace_name) == source.position(), "rows of the new epoch")


def test_settings_that_are_broken_while_it_reads_end_the_source(
    kafka: KafkaCluster, keyspace_name: str, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """A setting that is changed at run time is noticed, also while nothing is written."""
    source = source_of(new_mariadb(durable=False).address, "d")
    running = Running(kafka, keyspace_name, source)
    until(running.ready.is_set, "the source")
    source.run("SET GLOBAL gtid_strict_mode = OFF")
    until(running.future.done, "the end of the source")
    with pytest.raises(ServerSettingsError, match="gtid_strict_mode"):
        running.future.result()
