"""Tables that can't be read, and a backfill that is stopped or switched off, with a live server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from stream.sources.mariadb.backfill import chunks
from stream.sources.mariadb.backfill.chunks import ChunkReader, TableBusy
from stream.sources.mariadb.backfill.reading import ChunkReading, Wanted
from stream.sources.mariadb.connection import Connection, ConnectionSettings, MariaDBUnreachable, connect
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.selected_rows import canonical_rows
from stream.wire.events import VALUE, DescribeTable
from tests.patience import PATIENCE_S
from tests.sources.mariadb.backfilling import Backfilled
from tests.sources.mariadb.conftest import Source


def fill(source: Source, *tables: str) -> None:
    """Tables of thirty numbered rows."""
    for table in tables:
        source.run(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} SELECT seq, 1 FROM seq_1_to_30"
        )


def described(source: Source, table: str) -> DescribeTable:
    """A table's description as the source publishes it."""
    return source.table(table).describe()


@contextmanager
def locked(source: Source, table: str) -> Iterator[None]:
    """Another session has a table for itself."""
    session = connect(source.settings)
    with session.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {source.database}.{table} WRITE")
        yield
    session.close()


def waiting(source: Source, table: str) -> bool:
    """Whether somebody waits for the lock of a table."""
    with source.session.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST"
            " WHERE STATE LIKE 'Waiting for table%%' AND INFO LIKE %s",
            (f"%{source.database}%{table}%",),
        )
        return int(cursor.fetchone()[0]) > 0


def until(condition: Any) -> None:
    """Polls until ``condition`` is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_locked_table_leaves_its_turn_to_the_next(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables after it become whole meanwhile, and it does once its lock is gone."""
    monkeypatch.setattr(chunks, "STATEMENT_S", 0.3)
    fill(source, "a", "b", "c")
    with Backfilled(source) as backfilled:
        with locked(source, "a"):
            backfilled.await_whole("b", "c")
            assert not backfilled.is_whole("a")
        backfilled.await_whole("a")
        assert backfilled.begun("a") == 1
        assert backfilled.images("a") == source.selected("a")


def test_a_table_that_may_not_be_read_leaves_its_turn_to_the_next(source: Source) -> None:
    """A right that is missing concerns its table alone, though the source is never given it."""
    fill(source, "a", "b")
    user = f"u_{source.database}"[:32]
    source.run(
        f"CREATE USER {user} IDENTIFIED BY 'x'",
        f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {user}",
        f"GRANT SELECT ON {source.database}.b TO {user}",
        f"GRANT INSERT ON {source.database}.a TO {user}",
    )
    admin = source.settings
    source.settings = replace(admin, user=user, password="x")
    try:
        with Backfilled(source) as backfilled:
            backfilled.until(lambda: backfilled.is_whole("b"))
            assert not backfilled.is_whole("a")
    finally:
        source.settings = admin
        source.run(f"DROP USER {user}")


def test_a_source_that_waits_for_a_lock_stops_at_once(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement of 20 s must not hold up the end of the process, which a supervisor would kill then."""
    monkeypatch.setattr(chunks, "STATEMENT_S", 2 * PATIENCE_S)
    fill(source, "a")
    backfilled = Backfilled(source)
    with locked(source, "a"):
        backfilled.start()
        until(lambda: waiting(source, "a"))
        before = time.monotonic()
        backfilled.stop()
        assert time.monotonic() - before < PATIENCE_S


def test_a_cursor_does_not_outlive_a_time_without_backfill(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was voided then is read from the beginning: else the table would count as complete, and never be whole."""
    monkeypatch.setattr(chunks, "ROWS_MAX", 7)
    fill(source, "t")
    backfilled = Backfilled(source, rows_per_s=1)
    backfilled.start()
    backfilled.await_rows("t", 7)
    backfilled.stop()
    assert not backfilled.is_whole("t")
    backfilled.off = True
    with backfilled:
        source.run("TRUNCATE TABLE t", "INSERT INTO t VALUES (1, 2), (40, 2)")
        backfilled.until(lambda: backfilled.watermark == source.position())
    backfilled.off = False
    with backfilled:
        backfilled.await_whole("t")
        assert backfilled.begun("t") == 2
        assert backfilled.images("t") == source.selected("t")


def test_an_error_in_a_chunk_leaves_no_transaction_open(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is locked against DDL until the transaction ends; and the next read works."""
    fill(source, "t")
    reader = ChunkReader(source.settings)
    broken = True
    decode = canonical_rows

    def failing(*arguments: Any) -> tuple[list[bytes], list[bytes]]:
        if broken:
            raise ValueError("broken")
        return decode(*arguments)

    monkeypatch.setattr(chunks, "canonical_rows", failing)
    with pytest.raises(ValueError, match="broken"):
        reader.read(described(source, "t"), None)
    source.run(f"SET lock_wait_timeout = {PATIENCE_S:.0f}", "ALTER TABLE t COMMENT 'free'")
    broken = False
    found = reader.read(described(source, "t"), None)
    reader.close()
    assert [each.operation for each in found.rows] == [VALUE] * 30


def test_a_lock_that_is_not_granted_in_time_is_the_tables_own_trouble(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as an outage of the server, and be waited out."""
    monkeypatch.setattr(chunks, "STATEMENT_S", 0.1)
    fill(source, "t")
    reader = ChunkReader(source.settings)
    with locked(source, "t"), pytest.raises(TableBusy, match="locked"):
        reader.read(described(source, "t"), None)
    reader.stop()


def test_each_table_is_read_with_a_session_of_its_own(source: Source) -> None:
    """The address may lead to another server by then, and the binlog is read from that one."""
    fill(source, "t")
    position = GtidPosition.parse(source.position())
    reader = ChunkReader(source.settings)
    reading = ChunkReading(reader)
    sessions = []
    for _ in range(2):
        reading.want(Wanted(described(source, "t"), None, position))
        until(lambda: reading.first is not None)
        session = reader._session
        assert isinstance(session, pymysql.connections.Connection)
        sessions.append(session.thread_id())
    reading.close()
    assert sessions[0] != sessions[1]


def test_a_chunk_is_of_one_server(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that is broken off costs the session. A place in one server's log says nothing of another one."""
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)", "INSERT INTO t SELECT seq, REPEAT(9, 50000) FROM seq_1_to_30"
    )
    ids = iter(range(1, 99))

    def connect_elsewhere(settings: ConnectionSettings) -> Connection:
        session = connect(settings)
        session.query(f"SET SESSION server_id = {next(ids)}")
        return session

    monkeypatch.setattr(chunks, "connect", connect_elsewhere)
    reader = ChunkReader(source.settings)
    monkeypatch.setattr(chunks, "BYTES_MAX", 4 << 20)
    assert len(reader.read(described(source, "t"), None).rows) == 30
    monkeypatch.setattr(chunks, "BYTES_MAX", 100)
    with pytest.raises(MariaDBUnreachable, match="several servers"):
        reader.read(described(source, "t"), None)
    reader.close()
