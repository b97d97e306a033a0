"""A read lies between its two positions, whatever happens to the table and in other sessions meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from stream.sources.mariadb import position, snapshot
from stream.sources.mariadb.by_key import SelectedRow, rows_by_key
from stream.sources.mariadb.connection import MariaDBError, connect, fetch_all
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.snapshot import SnapshotRead, SnapshotReader
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source, rows, settings_of
from tests.sources.mariadb.test_positions import purge

pytestmark = pytest.mark.integration

PLAIN = "CREATE TABLE t (id INT PRIMARY KEY, v INT)"
PARTED = f"{PLAIN} PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9), PARTITION p1 VALUES LESS THAN (99))"
COPIED = ("CREATE TABLE n (id INT PRIMARY KEY, v INT)", "INSERT INTO n SELECT * FROM t")

CHANGES = {
    "a swap with a copy": (PLAIN, [*COPIED, "RENAME TABLE t TO o, n TO t", "DROP TABLE o"], 1),
    "a swap with an older table": (PLAIN, ["UPDATE old SET v = 5", "RENAME TABLE t TO o, old TO t"], 5),
    "a swap and back": (PLAIN, [*COPIED, "RENAME TABLE t TO o, n TO t", "RENAME TABLE t TO n, o TO t"], 1),
    "an exchanged partition": (PARTED, [*COPIED, "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE n"], 1),
    "TRUNCATE": (PLAIN, ["TRUNCATE t", "INSERT INTO t VALUES (1, 2)"], 2),
    "a truncated partition": (PARTED, ["ALTER TABLE t TRUNCATE PARTITION p0", "INSERT INTO t VALUES (1, 2)"], 2),
    "DROP and CREATE": (PLAIN, ["DROP TABLE t", PLAIN, "INSERT INTO t VALUES (1, 2)"], 2),
    "CREATE OR REPLACE": (PLAIN, [PLAIN.replace("TABLE", "OR REPLACE TABLE"), "INSERT INTO t VALUES (1, 2)"], 2),
    "ALTER by copy": (PLAIN, ["ALTER TABLE t FORCE, ALGORITHM=COPY"], 1),
    "ALTER in place": (PLAIN, ["ALTER TABLE t FORCE, ALGORITHM=INPLACE"], 1),
    "ALTER at once": (PLAIN, ["ALTER TABLE t ADD COLUMN w INT DEFAULT 7 FIRST, ALGORITHM=INSTANT"], 1),
    "a dropped column": (PLAIN, ["ALTER TABLE t ADD COLUMN w INT, DROP COLUMN v", "ALTER TABLE t ADD v INT"], None),
}
"""Table, statements that run after the read has asked for its first position, and the row's ``v`` after them."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_table_that_changes_while_it_is_read_gives_the_row_of_its_position(
    source: Source, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is replaced between a read's first position and its SELECT gives no row of another history."""
    create, statements, after = CHANGES[name]
    source.run(create, "INSERT INTO t VALUES (1, 1)", "CREATE TABLE old (id INT PRIMARY KEY, v INT)")
    source.run("INSERT INTO old VALUES (1, 0)")
    reader = SnapshotReader(source.settings)
    table = f"{source.database}.t"
    reader.read({table: [[1]]})  # the columns are known from here on
    left = [*statements]

    def late(*arguments: object) -> object:
        while left:
            source.run(left.pop(0))
        return rows_by_key(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "rows_by_key", late)
    read = reader.read({table: [[1]]})[table]
    reader.close()
    assert isinstance(read, SnapshotRead)
    (row,) = read.rows
    assert isinstance(row, SelectedRow), f"the row is said to be absent at {read.position}"
    assert f'"v":{"null" if after is None else after}'.encode() in row.image
    assert read.hi == source.position()


def test_the_tables_of_a_batch_are_locked_before_their_snapshot(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first row of a batch is read, no table of the batch can be replaced any more."""
    source.run(PLAIN, PLAIN.replace("t ", "u "), "INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1, 1)")
    reader = SnapshotReader(source.settings)
    t, u = f"{source.database}.t", f"{source.database}.u"
    refused = []

    def late(*arguments: object) -> object:
        for table in "tu":
            with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
                source.run(f"SET STATEMENT lock_wait_timeout=0 FOR TRUNCATE {table}")
            refused.append(table)
        return rows_by_key(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "rows_by_key", late)
    read = reader.read({t: [[1]], u: [[1]]})
    reader.close()
    assert len(refused) == 4
    assert all(isinstance(each, SnapshotRead) and isinstance(each.rows[0], SelectedRow) for each in read.values())


COPY = ("CREATE OR REPLACE TABLE n LIKE t", "INSERT INTO n SELECT * FROM t")


def swap(source: Source) -> None:
    """Replaces the table as a nightly load does."""
    source.run(*COPY, "RENAME TABLE t TO o, n TO t", "DROP TABLE o")


def cut_over(source: Source) -> None:
    """Replaces the table as a tool for schema changes does: the RENAME waits while the table is locked for writes."""
    other = connect(source.settings)
    other.select_db(source.database)
    try:
        source.run(*COPY, "CREATE TABLE o (sentry INT)", "LOCK TABLES t WRITE, o WRITE")
        with ThreadPoolExecutor(1) as pool:
            renaming = pool.submit(fetch_all, other, "RENAME TABLE t TO o, n TO t")
            waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting%%' AND ID = %s"
            deadline = time.monotonic() + PATIENCE_S
            while fetch_all(source.session, waiting, (other.thread_id(),)) != [("1",)]:
                assert time.monotonic() < deadline, "the RENAME does not wait for the lock"
            source.run("DROP TABLE o", "UNLOCK TABLES")
            renaming.result()
        source.run("DROP TABLE o")
    finally:
        other.close()


@contextmanager
def repeated(source: Source, work: Callable[[Source], object]) -> Iterator[None]:
    """Runs ``work`` in a loop beside the test."""
    stop = threading.Event()
    other = Source(source.settings, source.database)

    def loop() -> None:
        while not stop.is_set():
            work(other)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop)
        try:
            yield
        finally:
            stop.set()
            running.result()
            other.close()


@pytest.mark.parametrize("replace", [swap, cut_over])
def test_a_row_that_always_exists_is_never_absent_while_its_table_is_replaced(
    source: Source, replace: Callable[[Source], None]
) -> None:
    """Swaps in a loop, as a nightly load or a tool for schema changes makes them, hide no row from reads."""
    source.run(PLAIN, "INSERT INTO t VALUES (1, 1)")
    reader = SnapshotReader(source.settings)
    table = f"{source.database}.t"

    def read(_: int) -> object:
        found = reader.read({table: [[1]]}, PATIENCE_S)[table]
        return found.rows[0] if isinstance(found, SnapshotRead) else found

    with repeated(source, replace), ThreadPoolExecutor(2) as readers:
        found = list(readers.map(read, range(600)))
    reader.close()
    assert [each for each in found if not isinstance(each, SelectedRow)] == []


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_row_lies_between_its_positions_while_other_sessions_take_snapshots(
    source: Source, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """During writes, replaying the binlog up to ``lo`` gives no later row than the read, and up to ``hi`` no earlier.

    Sessions with consistent snapshots of their own ask for the status variables, which the server shares among all.
    ``is_slow``: as if the server had no index of GTIDs.
    """
    if is_slow:
        monkeypatch.setattr(position, "SLOW_S", 0.0)
        monkeypatch.setattr(position, "NEAR", 0)
    source.run(PLAIN, "INSERT INTO t VALUES (1, 0)")
    source.begin()
    reader = SnapshotReader(source.settings)
    table = f"{source.database}.t"

    def backup() -> Callable[[Source], None]:
        session = connect(source.settings)

        def look(_: Source) -> None:
            fetch_all(session, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            for _ask in range(3):
                fetch_all(session, "SHOW STATUS LIKE 'binlog_snapshot_%'")
            session.rollback()

        return look

    with (
        repeated(source, lambda other: other.run("UPDATE t SET v = v + 1 WHERE id = 1")),
        repeated(source, backup()),
        repeated(source, backup()),
    ):
        reads = [reader.read({table: [[1]]})[table] for _ in range(400)]
    reader.close()
    versions = [(sequence_of(source.start), b'{"id":1,"v":0}')]
    for transaction in source.transactions():
        versions += [(sequence_of(transaction.position), changed[2]) for changed in rows(transaction)]
    place = {image: number for number, (_, image) in enumerate(versions)}
    for read in reads:
        assert isinstance(read, SnapshotRead)
        (row,) = read.rows
        assert isinstance(row, SelectedRow)
        sequence, number = versions[place[row.image]][0], place[row.image]
        assert sequence <= sequence_of(read.hi), "the row is later than hi"
        replaced = versions[number + 1][0] if number + 1 < len(versions) else None
        assert replaced is None or sequence_of(read.position) < replaced, "the row is older than lo"


def sequence_of(position: str) -> int:
    """The sequence number of a position in one domain."""
    ((_, sequence),) = GtidPosition.parse(position).domains.values()
    return sequence


def test_a_server_that_cannot_say_its_position_is_refused(new_mariadb: Callable[..., Any]) -> None:
    """A replica that does not log what it replicates has rows that its own binlog knows nothing of."""
    server = new_mariadb(durable=False)
    settings = settings_of(server.address)
    session = connect(settings)
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id INT PRIMARY KEY)",
        "SET GLOBAL gtid_slave_pos = '0-1-999,9-9-9'",
    ):
        fetch_all(session, statement)
    reader = SnapshotReader(settings)
    with pytest.raises(MariaDBError, match="does not log what it replicates") as caught:
        reader.read({"d.t": [[1]]})
    assert caught.value.code == "no_snapshot_position"
    reader.close()


def test_a_read_whose_binlog_is_purged_meanwhile_is_made_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place in a binlog that is gone is no position, so the read begins anew."""
    source.run(PLAIN, "INSERT INTO t VALUES (1, 1)")
    reader = SnapshotReader(source.settings)
    table = f"{source.database}.t"
    reads = []

    def late(*arguments: object) -> object:
        reads.append(1)
        if len(reads) == 1:
            source.run("FLUSH BINARY LOGS")
            purge(source)
        return rows_by_key(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "rows_by_key", late)
    read = reader.read({table: [[1]]})[table]
    reader.close()
    assert isinstance(read, SnapshotRead)
    assert isinstance(read.rows[0], SelectedRow)
    assert (len(reads), read.position) == (2, source.position())


def test_a_user_that_may_read_some_columns_only_reads_no_rows(source: Source) -> None:
    """Images without a column would be cached as if they were whole."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, secret INT)", "INSERT INTO t VALUES (1, 1, 1)")
    user = f"u{source.database[-8:]}"
    source.run(f"CREATE USER {user} IDENTIFIED BY 'x'", f"GRANT SELECT (id, v) ON {source.database}.t TO {user}")
    reader = SnapshotReader(replace(source.settings, user=user, password="x"))
    read = reader.read({f"{source.database}.t": [[1]]})[f"{source.database}.t"]
    reader.close()
    source.run(f"DROP USER {user}")
    assert isinstance(read, MariaDBError)
    assert read.code == "mariadb_access_denied"


def test_a_wait_for_a_position_ends_when_a_primary_has_committed_it(source: Source) -> None:
    """A primary replicates nothing, so its position is asked for until it is there."""
    source.run(PLAIN, "INSERT INTO t VALUES (1, 1)")
    reader = SnapshotReader(source.settings)
    at = GtidPosition.parse(source.position()).domains
    ((domain, (server, sequence)),) = at.items()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait_for_position, f"MariaDB/{domain}-{server}-{sequence + 1}", PATIENCE_S)
        time.sleep(0.05)
        source.run("UPDATE t SET v = 2")
        assert waiting.result()
    reader.close()
