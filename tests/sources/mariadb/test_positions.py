"""From which positions a source resumes, what it refuses, and what a snapshot's position means."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from stream.sources.mariadb.by_key import SelectedRow
from stream.sources.mariadb.connection import (
    ConnectionSettings,
    MariaDBUnreachable,
    NotResumable,
    SourceHistoryLost,
    connect,
)
from stream.sources.mariadb.position import check_resumable, current_position
from stream.sources.mariadb.snapshot import NoSuchTable, SnapshotRead, SnapshotReader
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source, rows


def purge(source: Source) -> None:
    """Purge all binary logs but the last, as soon as the server no longer needs them for its recovery."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with source.session.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            logs = [row[0].decode() for row in cursor.fetchall()]
        if len(logs) == 1:
            return
        assert time.monotonic() < deadline, logs
        source.run(f"PURGE BINARY LOGS TO '{logs[-1]}'")


def test_the_error_for_an_unreachable_server_is_one_clear_line() -> None:
    """The error for an unreachable server has a code and names the address but not the password."""
    with pytest.raises(MariaDBUnreachable, match="cannot be reached") as caught:
        connect(ConnectionSettings(port=1, user="x", password="secret"))
    assert caught.value.code == "mariadb_unreachable"
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_wrong_password_is_refused_without_retry(source: Source) -> None:
    """A wrong password has its own error code and is not an outage."""
    settings = ConnectionSettings(source.settings.host, source.settings.port, "nobody", "wrong")
    with pytest.raises(Exception, match="refused the login") as caught:
        connect(settings)
    assert caught.value.code == "mariadb_access_denied"  # type: ignore[attr-defined]


def test_positions_that_the_server_never_reached_are_lost_history(source: Source) -> None:
    """A published sequence, server or domain that the server doesn't have is lost history."""
    at = source.position()
    domain, server, sequence = at.removeprefix("MariaDB/").split(",")[0].split("-")
    check_resumable(source.session, at)
    for lost in (f"{domain}-{server}-{int(sequence) + 100}", f"{domain}-9-{sequence}", f"77-{server}-1"):
        with pytest.raises(SourceHistoryLost):
            check_resumable(source.session, f"MariaDB/{lost}")


def test_an_unknown_domain_is_refused_and_a_new_one_is_read(
    new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """A domain that the position lacks is refused, unless its first event comes after the position."""
    source = source_of(new_mariadb(durable=False).address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    before = source.position()
    source.begin()
    source.run("SET SESSION gtid_domain_id = 7", "INSERT INTO t VALUES (1)", "SET SESSION gtid_domain_id = 0")
    check_resumable(source.session, before)
    (found,) = source.transactions()
    assert found.gtid == "MariaDB/7-1-1"
    assert found.position == f"{before},7-1-1"
    source.run("INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS")
    later = source.position().split(",")[0]
    with pytest.raises(NotResumable, match="domain 7") as caught:
        check_resumable(source.session, later)
    assert caught.value.code == "unknown_domain"
    check_resumable(source.session, source.position())


def test_a_purged_binlog_says_how_far_back_it_could_start(
    new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """The error for a purged binlog names the earliest possible position."""
    source = source_of(new_mariadb(durable=False).address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    before = source.position()
    source.run("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS")
    earliest = source.position()
    source.run("INSERT INTO t VALUES (2)")
    purge(source)
    with pytest.raises(NotResumable, match=earliest) as caught:
        check_resumable(source.session, before)
    assert caught.value.code == "binlog_purged"
    check_resumable(source.session, earliest)
    source.begin()
    assert sum(len(rows(transaction)) for transaction in source.transactions(start=earliest)) == 1


def test_a_batch_is_read_in_one_snapshot_and_says_what_is_missing(source: Source) -> None:
    """A batch returns rows in request order, None for missing rows, and keys as they are stored."""
    source.run("CREATE TABLE t (id VARCHAR(10) PRIMARY KEY, v INT) CHARACTER SET utf8mb4")
    source.run("INSERT INTO t VALUES ('Abc', 1), ('x', 2)")
    reader = SnapshotReader(source.settings)
    name, missing = f"{source.database}.t", f"{source.database}.nope"
    read = reader.read({name: [["abc "], ["nope"], ["x"]], missing: [[1]]})
    found = read[name]
    assert isinstance(found, SnapshotRead)
    keys = [row.key.partition(b"\0")[2] if isinstance(row, SelectedRow) else row for row in found.rows]
    assert keys == [b'["Abc"]', None, b'["x"]']
    assert found.position == found.hi == source.position()
    assert found.table.primary_key == ("id",)
    assert isinstance(read[missing], NoSuchTable)
    reader.close()


def test_a_read_sees_columns_that_were_added_a_moment_ago(source: Source) -> None:
    """After a column was dropped, the reader reads the schema again instead of failing."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO t VALUES (1, 1, 1)")
    reader = SnapshotReader(source.settings)
    name = f"{source.database}.t"
    reader.read({name: [[1]]})
    source.run("ALTER TABLE t DROP COLUMN w")
    found = reader.read({name: [[1]]})[name]
    assert isinstance(found, SnapshotRead)
    (row,) = found.rows
    assert isinstance(row, SelectedRow)
    assert row.image == b'{"id":1,"v":1}'
    reader.close()


def test_reads_go_on_after_the_server_restarted(
    new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """After a restart of the server, dead sessions in the pool fail no read."""
    server = new_mariadb(durable=True)
    source = source_of(server.address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    reader = SnapshotReader(source.settings)
    before = reader.read({"d.t": [[1]]})["d.t"]
    server.kill()
    with pytest.raises(MariaDBUnreachable):
        reader.read({"d.t": [[1]]})
    server.restart()
    after = reader.read({"d.t": [[1]]})["d.t"]
    assert isinstance(before, SnapshotRead)
    assert isinstance(after, SnapshotRead)
    assert after.rows == before.rows
    assert after.position == before.position == current_position(connect(source.settings)).position
    reader.close()


def test_waiting_for_a_position_ends_when_it_is_reached_or_the_time_is_over(source: Source) -> None:
    """Waiting returns True at once for a reached position, and False after the timeout for a later one."""
    reader = SnapshotReader(source.settings)
    at = source.position()
    domain, server, sequence = at.removeprefix("MariaDB/").split(",")[0].split("-")
    assert reader.wait_for_position(at, PATIENCE_S)
    assert not reader.wait_for_position(f"MariaDB/{domain}-{server}-{int(sequence) + 1000}", 0.2)
    reader.close()
