"""Whole tables from a live server: what was there before is published exactly, beside its changes."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stream.sources.mariadb.backfill import chunks, plan
from stream.sources.mariadb.connection import connect
from stream.wire.events import VOID
from stream.wire.keys import row_key
from tests.sources.mariadb.backfilling import Backfilled, Killed
from tests.sources.mariadb.conftest import Source


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of seven rows, so that a small table has many."""
    monkeypatch.setattr(chunks, "ROWS_MAX", 7)


def fill(source: Source, table: str, rows: int) -> None:
    """A table of numbered rows."""
    source.run(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT, t VARCHAR(40))",
        f"INSERT INTO {table} SELECT seq, seq * 10, CONCAT('row ', seq) FROM seq_1_to_{rows}",
    )


@pytest.mark.usefixtures("small_chunks")
def test_a_table_older_than_its_source_becomes_whole(source: Source) -> None:
    """Each row that was there before has its image, and a key without a row is known to be absent."""
    fill(source, "t", 100)
    source.run("CREATE TABLE empty (id INT PRIMARY KEY)")
    with Backfilled(source) as backfilled:
        backfilled.await_whole("t", "empty")
        assert backfilled.images("t") == source.selected("t")
        assert backfilled.is_absent("t", 101)
        assert not backfilled.is_absent("t", 100)
        assert backfilled.is_absent("empty", 1)
        source.run("DELETE FROM t WHERE id = 5", "INSERT INTO empty VALUES (1)")
        backfilled.await_whole("t", "empty")
        assert backfilled.is_absent("t", 5)
        assert not backfilled.is_absent("empty", 1)


@pytest.mark.usefixtures("small_chunks")
def test_changes_beside_a_backfill_are_neither_lost_nor_undone(source: Source) -> None:
    """Rows that are inserted, changed, deleted or moved while the table is read end as the server has them."""
    fill(source, "t", 300)
    stop = threading.Event()

    def change() -> None:
        rng = random.Random(1)
        session = connect(source.settings)
        session.select_db(source.database)
        with session.cursor() as cursor:
            while not stop.is_set():
                at, other = rng.randrange(1, 330), rng.randrange(1, 330)
                cursor.execute(
                    rng.choice(
                        [
                            f"UPDATE t SET v = v + 1 WHERE id = {at}",
                            f"DELETE FROM t WHERE id = {at}",
                            f"INSERT IGNORE INTO t VALUES ({at}, 1, 'new')",
                            f"UPDATE IGNORE t SET id = {other} WHERE id = {at}",
                        ]
                    )
                )
        session.close()

    with ThreadPoolExecutor(1) as pool, Backfilled(source) as backfilled:
        changing = pool.submit(change)
        try:
            backfilled.await_complete("t")
        finally:
            stop.set()
        changing.result()
        backfilled.await_whole("t")
        assert backfilled.images("t") == source.selected("t")


@pytest.mark.usefixtures("small_chunks")
def test_a_killed_source_goes_on_with_the_next_chunk(source: Source) -> None:
    """Killed at any commit, the source ends with the same rows, and does not read the table from its beginning."""
    fill(source, "t", 60)
    backfilled = Backfilled(source)
    kills = 0

    def kill(commit: int) -> None:
        if commit >= 4:
            raise Killed("killed")

    backfilled.on_commit = kill
    backfilled.start()
    while not backfilled.survived("t"):
        kills += 1
        source.run(f"UPDATE t SET v = -{kills} WHERE id IN ({kills}, {61 - kills})")
        backfilled.start()
    with pytest.raises(Killed):
        backfilled.stop()
    backfilled.on_commit = lambda _: None
    with backfilled:
        backfilled.await_whole("t")
        assert kills > 3
        assert backfilled.begun("t") == 1
        assert backfilled.images("t") == source.selected("t")


@pytest.mark.parametrize(
    "ddl",
    [
        "TRUNCATE TABLE t",
        "ALTER TABLE t ADD COLUMN w INT DEFAULT 7",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (v)",
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, v INT, t VARCHAR(40))",
        "RENAME TABLE t TO away, u TO t",
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_ddl_in_the_middle_begins_anew(source: Source, ddl: str) -> None:
    """A table that is truncated, altered, replaced or swapped while it is read becomes whole as it is then."""
    fill(source, "t", 200)
    fill(source, "u", 30)
    with Backfilled(source, rows_per_s=200) as backfilled:
        backfilled.await_rows("t", 20)
        source.run(ddl, "INSERT IGNORE INTO t (id, v) VALUES (1000, 1000)")
        backfilled.await_whole("t")
        assert backfilled.images("t") == source.selected("t")
        assert backfilled.is_absent("t", 4711)


@pytest.mark.usefixtures("small_chunks")
def test_ddl_that_changes_no_image_costs_nothing(source: Source) -> None:
    """Through an index, a comment or a default, in its backfill or later, a table is read once and stays whole."""
    ddl = (
        "ALTER TABLE t ADD UNIQUE u (b), COMMENT 'x'",
        "DROP INDEX u ON t",
        "ALTER TABLE t ALTER v SET DEFAULT 7, ROW_FORMAT = REDUNDANT",
        "CREATE INDEX i ON t (v)",
    )
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, b VARCHAR(40))",
        "INSERT INTO t SELECT seq, seq, CONCAT('row ', seq) FROM seq_1_to_200",
    )
    with Backfilled(source, rows_per_s=200) as backfilled:
        for number, each in enumerate(ddl):
            backfilled.await_rows("t", 20 * (number + 1))
            source.run(each, f"UPDATE t SET v = -{number} WHERE id IN ({1 + number}, {200 - number})")
        backfilled.await_whole("t")
        source.run(
            "ALTER TABLE t RENAME INDEX i TO j, AUTO_INCREMENT = 900", "INSERT INTO t (id, b) VALUES (300, 'new')"
        )
        backfilled.await_whole("t")
        assert backfilled.begun("t") == 1
        assert backfilled.images("t") == source.selected("t")
        assert backfilled.is_absent("t", 301)


@pytest.mark.usefixtures("small_chunks")
def test_a_dropped_table_is_whole_without_a_row(source: Source) -> None:
    """So stores let go of its rows; the other tables are read all the same."""
    fill(source, "t", 200)
    fill(source, "u", 30)
    with Backfilled(source, rows_per_s=300) as backfilled:
        backfilled.await_rows("t", 20)
        source.run("DROP TABLE t")
        backfilled.await_whole("t", "u")
        assert backfilled.images("t") == {}
        assert backfilled.may_keep("t") == 0
        assert backfilled.images("u") == source.selected("u")


@pytest.mark.usefixtures("small_chunks")
def test_a_table_that_is_made_again_has_the_rows_that_it_has_then(source: Source) -> None:
    """That its namesake was dropped says nothing of it, nor does a restart in between."""
    fill(source, "t", 50)
    with Backfilled(source) as backfilled:
        backfilled.await_whole("t")
        source.run("RENAME TABLE t TO away")
        backfilled.await_whole("t", "away")
        assert backfilled.may_keep("t") == 0
    source.run("RENAME TABLE away TO t", "DELETE FROM t WHERE id < 10")
    with backfilled:
        backfilled.await_whole("t", "away")
        assert backfilled.images("t") == source.selected("t")
        assert backfilled.is_absent("t", 5)
        assert backfilled.images("away") == {}


@pytest.mark.usefixtures("small_chunks")
def test_a_table_that_is_dropped_while_another_one_is_read_is_said_to_be_gone_before_a_restart(source: Source) -> None:
    """After it the topic tells nothing of the table, so nobody would say it."""
    fill(source, "a", 30)
    fill(source, "b", 300)
    with Backfilled(source, rows_per_s=100) as backfilled:
        backfilled.await_complete("a")
        backfilled.await_rows("b", 10)
        source.run("DROP TABLE a")
        backfilled.until(lambda: backfilled.begun("a") == 2 and backfilled.is_whole("a"))
        assert not backfilled.is_whole("b")
    with backfilled:
        backfilled.await_whole("a", "b")
        assert backfilled.may_keep("a") == 0
        assert backfilled.images("b") == source.selected("b")


def test_a_table_that_was_dropped_while_the_source_was_away_is_whole_without_a_row(source: Source) -> None:
    """The source sees so by what the topic says of it."""
    fill(source, "t", 50)
    with Backfilled(source) as backfilled:
        backfilled.await_whole("t")
    source.run("DROP TABLE t")
    with backfilled:
        backfilled.await_whole("t")
        assert backfilled.begun("t") == 2
        assert backfilled.may_keep("t") == 0
    with backfilled:
        backfilled.until(lambda: backfilled.watermark == source.position())
        assert backfilled.begun("t") == 2


def test_a_void_ends_what_is_known_until_the_table_is_read_again(source: Source) -> None:
    """After TRUNCATE of a whole table nothing is absent by itself before the next backfill is complete."""
    fill(source, "t", 50)
    with Backfilled(source) as backfilled:
        backfilled.await_whole("t")
        source.run("TRUNCATE TABLE t", "INSERT INTO t VALUES (3, 3, 'x')")
        backfilled.await_whole("t")
        assert backfilled.begun("t") == 2
        assert backfilled.images("t") == source.selected("t")
        assert backfilled.is_absent("t", 4)


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("a INT, b VARCHAR(20), PRIMARY KEY (a, b)", "seq % 5, CONCAT('k', seq)"),
        ("a VARCHAR(20) COLLATE utf8mb4_unicode_ci, PRIMARY KEY (a)", "CONCAT(CHAR(65 + seq % 26), 'ß', seq)"),
        ("a VARCHAR(20) CHARACTER SET latin1, b INT, PRIMARY KEY (a, b)", "CONCAT('é', seq % 7), seq"),
        ("a DECIMAL(30, 10), PRIMARY KEY (a)", "12345678901234567890 + seq * 0.0000000001"),
        ("a BIGINT UNSIGNED, PRIMARY KEY (a)", "18446744073709551615 - seq"),
        ("a DOUBLE, b FLOAT, PRIMARY KEY (a, b)", "(seq % 9) / 7, seq / 3"),
        (
            "a DATETIME(6), b DATE, PRIMARY KEY (b, a)",
            "NOW(6) + INTERVAL seq MICROSECOND, '2024-01-01' + INTERVAL (seq % 5) DAY",
        ),
        ("a TIMESTAMP(3) DEFAULT 0, PRIMARY KEY (a)", "FROM_UNIXTIME(1700000000 + seq / 1000)"),
        ("a VARBINARY(20), PRIMARY KEY (a)", "UNHEX(MD5(seq))"),
        ("a BINARY(4), PRIMARY KEY (a)", "CHAR(seq % 3, seq, 0, 0)"),
        ("a UUID, PRIMARY KEY (a)", "UUID()"),
        ("a INET6, PRIMARY KEY (a)", "CONCAT('::', HEX(seq))"),
        ("a TIME(2), b YEAR, PRIMARY KEY (b, a)", "SEC_TO_TIME(seq * 7), 2000 + seq % 3"),
        ("a BIT(9), b CHAR(5), PRIMARY KEY (a, b)", "seq, 'x%'"),
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_pages_follow_the_servers_order_of_every_kind_of_key(source: Source, columns: str, values: str) -> None:
    """Chunk after chunk of a key of any type, collation or several columns, no row is left out."""
    source.run(f"CREATE TABLE t ({columns})", f"INSERT IGNORE INTO t SELECT {values} FROM seq_1_to_60")
    with Backfilled(source) as backfilled:
        backfilled.await_whole("t")
        assert backfilled.images("t") == source.selected("t")
        assert len(backfilled.images("t")) > 20


def test_a_row_that_is_too_large_is_void_and_the_rest_whole(source: Source) -> None:
    """An image above the limit is left out, as by an event; it is not absent."""
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB)",
        "INSERT INTO t VALUES (1, 'a'), (2, REPEAT('x', 1500000)), (3, 'c')",
    )
    with Backfilled(source) as backfilled:
        backfilled.await_whole("t")
        assert backfilled.kinds("t")[row_key(f"{source.database}.t", [2])] == VOID
        assert not backfilled.is_absent("t", 2)
        assert backfilled.images("t").keys() == source.selected("t").keys() - {row_key(f"{source.database}.t", [2])}


def test_tables_that_cannot_be_read_in_chunks_are_passed_over(source: Source) -> None:
    """A table without a primary key, or with one that sorts in another order than it compares, is not whole."""
    fill(source, "z", 3)
    source.run(
        "CREATE TABLE a (v INT)",
        "CREATE TABLE b (e ENUM('z', 'a') PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
        "INSERT INTO b VALUES ('a'), ('z')",
    )
    with Backfilled(source) as backfilled:
        backfilled.await_whole("z")
        assert not backfilled.is_whole("a")
        assert not backfilled.is_whole("b")


@pytest.mark.usefixtures("small_chunks")
def test_too_many_changed_keys_cost_a_chunk_and_no_row(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more keys change than are noted, the chunks that were read are dropped and read again."""
    monkeypatch.setattr(plan, "KEYS_MAX", 5)
    fill(source, "t", 200)
    with Backfilled(source, rows_per_s=400) as backfilled:
        backfilled.await_rows("t", 10)
        for turn in range(20):
            source.run(f"UPDATE t SET v = {turn} WHERE id % 20 = {turn}")
        backfilled.await_whole("t")
        assert backfilled.images("t") == source.selected("t")


def test_a_table_made_later_becomes_whole_too(source: Source) -> None:
    """A new table is read as soon as it is described."""
    with Backfilled(source) as backfilled:
        fill(source, "t", 20)
        backfilled.await_whole("t")
        assert backfilled.images("t") == source.selected("t")
