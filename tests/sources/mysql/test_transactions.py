"""The reader turns MySQL's transactions into final images, and voids what its binlog hides."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from freshet.local.mysql import MySQLServer
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.connection import connect
from stream.sources.mariadb.gtid import GtidPosition
from stream.wire.events import ABSENT, VALUE, DescribeTable, SingleRows
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import SERVER_IDS, Source, rows, voids
from tokens import Position


def test_a_tagged_transaction_is_booked_under_its_own_gtid(source: Source) -> None:
    """Tagged GTIDs are parsed: each transaction moves the position by its own, and to that of the server."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    source.run(
        "SET gtid_next = 'AUTOMATIC:billing'",
        "INSERT INTO t VALUES (1, 1)",
        "SET gtid_next = 'AUTOMATIC:a_tag_of_just_32_characters_0000'",
        "INSERT INTO t VALUES (2, 2)",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO t VALUES (3, 3)",
    )
    found = source.transactions()
    tags = [transaction.gtid.split(":")[1:-1] for transaction in found]
    assert tags == [["billing"], ["a_tag_of_just_32_characters_0000"], []]
    before = Position.parse(source.start)
    for transaction in found:
        before = before.append(transaction.gtid)
        assert str(before) == transaction.position
    assert found[-1].position == source.position()
    assert [key for transaction in found for key, *_ in rows(transaction)] == [
        f"{source.database}.t\0[{n}]".encode() for n in (1, 2, 3)
    ]


def test_reading_goes_on_behind_a_tagged_position(source: Source) -> None:
    """The server is asked for what follows a set with tags: nothing comes twice, and nothing is left out."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    for number in range(6):
        tag = ("", ":x", ":y")[number % 3]
        source.run(f"SET gtid_next = 'AUTOMATIC{tag}'", f"INSERT INTO t VALUES ({number}, 0)")
    source.run("SET gtid_next = 'AUTOMATIC'")
    whole = source.transactions()
    for at, transaction in enumerate(whole):
        left = source.transactions(transaction.position)
        assert [each.gtid for each in left] == [each.gtid for each in whole[at + 1 :]]


def test_a_server_uuid_with_gaps_is_a_set(source: Source) -> None:
    """Transactions of another server come with gaps and in any order; the position is exactly what was read."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source.begin()
    other = f"11111111-2222-3333-4444-{source.database.removeprefix('db_')}"
    for number in (5, 2, 9):
        source.run(f"SET gtid_next = '{other}:{number}'", f"INSERT INTO t VALUES ({number})")
    source.run("SET gtid_next = 'AUTOMATIC'")
    found = source.transactions()
    assert [Position.parse(each.position).contains(Position.parse(f"MySQL56/{other}:2")) for each in found] == [
        False,
        True,
        True,
    ]
    assert f"{other}:2:5:9" in found[-1].position


@pytest.mark.parametrize("rows_count", [1, 3_000])
def test_a_compressed_transaction_is_read_as_one_that_is_not(source: Source, rows_count: int) -> None:
    """Transactions that the binlog has as one zstd payload have the same rows, GTIDs and checksums' meaning."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(300))")
    source.begin()
    source.run("SET SESSION binlog_transaction_compression = ON", "BEGIN")
    for number in range(rows_count):
        source.run(f"INSERT INTO t VALUES ({number}, '{'x' * (number % 300)}')")
    source.run("UPDATE t SET v = 'last' WHERE id = 0", "COMMIT", "SET SESSION binlog_transaction_compression = OFF")
    (found,) = source.transactions()
    assert found.position == source.position()
    assert {key: row.image for key, row in source.folded([found]).items()} == source.selected("t")
    assert len(found.changes) == rows_count


def test_an_update_of_a_part_of_json_voids_the_table(source: Source) -> None:
    """A session that logs parts of JSON values makes its table void; the next whole row counts again."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, j JSON)", 'INSERT INTO t VALUES (1, \'{"a": 1, "b": "xxxxxxxx"}\')')
    source.begin()
    source.run(
        "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
        "UPDATE t SET j = JSON_SET(j, '$.a', 2)",
        "SET SESSION binlog_row_value_options = ''",
        "UPDATE t SET j = JSON_SET(j, '$.a', 3)",
    )
    parts, whole = source.transactions()
    assert voids(parts) == {f"{source.database}.t"}
    assert rows(parts) == []
    assert voids(whole) == set()
    assert [image for *_, image in rows(whole)] == [*source.selected("t").values()]


def test_an_image_that_is_not_full_voids_the_table(source: Source) -> None:
    """A session with a minimal row image makes its table void."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "INSERT INTO t VALUES (1, 1, 1)")
    source.begin()
    source.run(
        "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE t SET a = 2", "SET SESSION binlog_row_image = 'FULL'"
    )
    (found,) = source.transactions()
    assert voids(found) == {f"{source.database}.t"}


CASCADES = (
    "CREATE TABLE p (id INT PRIMARY KEY, u INT UNIQUE)",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE n (id INT PRIMARY KEY, u INT, FOREIGN KEY (u) REFERENCES p (u) ON DELETE SET NULL)",
    "CREATE TABLE g (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES c (id) ON DELETE CASCADE)",
    "INSERT INTO p VALUES (1, 10), (2, 20), (3, 30)",
    "INSERT INTO c VALUES (1, 1), (2, 2)",
    "INSERT INTO n VALUES (1, 10), (2, 20)",
    "INSERT INTO g VALUES (1, 1)",
)


def test_rows_that_foreign_keys_change_are_in_the_log_of_a_new_server(source: Source) -> None:
    """Since 9.6 the SQL layer does cascades: their rows are published, and no table becomes void."""
    source.run(*CASCADES)
    source.begin()
    source.run("DELETE FROM p WHERE id = 1", "UPDATE p SET id = 5 WHERE id = 2", "DELETE FROM p WHERE id = 3")
    found = source.transactions()
    assert [voids(each) for each in found] == [set()] * 3
    changed = {key: row.image for key, row in source.folded(found).items()}
    name = f"{source.database}."
    assert changed == {
        f"{name}p\0[1]".encode(): b"",
        f"{name}c\0[1]".encode(): b"",
        f"{name}g\0[1]".encode(): b"",
        f"{name}n\0[1]".encode(): b'{"id":1,"u":null}',
        f"{name}p\0[2]".encode(): b"",
        f"{name}p\0[5]".encode(): b'{"id":5,"u":20}',
        f"{name}c\0[2]".encode(): b'{"id":2,"p":5}',
        f"{name}p\0[3]".encode(): b"",
    }


def test_rows_that_the_engine_changes_by_foreign_keys_are_void(
    new_mysql: Callable[..., MySQLServer], source_of: Callable[[Any, str], Source]
) -> None:
    """Where InnoDB does cascades, as before 9.6, the log does not even name the tables: those below become void."""
    source = source_of(new_mysql(options={"innodb-native-foreign-keys": "ON"}).address, "shop")
    source.run(*CASCADES)
    source.begin()
    source.run(
        "DELETE FROM p WHERE id = 1", "UPDATE p SET id = 5 WHERE id = 2", "DELETE FROM g", "INSERT INTO p VALUES (9, 9)"
    )
    deleted, updated, *others = source.transactions()
    assert voids(deleted) == {"shop.c", "shop.n", "shop.g"}
    assert voids(updated) == {"shop.c", "shop.g"}  # what is below c, too: nobody says which keys were changed
    assert [voids(each) for each in others] == [set()] * len(others)
    _a_foreign_key_of_a_table_that_is_not_published(source)


def _a_foreign_key_of_a_table_that_is_not_published(source: Source) -> None:
    """It leads from one published table to another: its DDL has no effect here but this."""
    source.run(
        "CREATE DATABASE elsewhere",
        "CREATE TABLE elsewhere.m (id INT PRIMARY KEY, p INT, KEY (p))",
        "CREATE TABLE d (id INT PRIMARY KEY, m INT, FOREIGN KEY (m) REFERENCES elsewhere.m (id) ON DELETE CASCADE)",
        "INSERT INTO p VALUES (7, 70)",
    )
    source.begin()
    source.run(
        "ALTER TABLE elsewhere.m ADD FOREIGN KEY (p) REFERENCES shop.p (id) ON DELETE CASCADE",
        "INSERT INTO elsewhere.m VALUES (1, 7)",
        "INSERT INTO d VALUES (1, 1)",
        "DELETE FROM p WHERE id = 7",
    )
    assert "shop.d" in voids(source.transactions()[-1])
    assert source.selected("d") == {}


def test_ddl_voids_its_table_and_describes_it_anew(source: Source) -> None:
    """ALTER, TRUNCATE, RENAME and DROP void what they name; rows before and after have the columns of their time."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE o (id INT PRIMARY KEY)")
    source.begin()
    source.run("INSERT INTO t VALUES (1, 1)")
    before = source.transactions()
    source.begin()
    source.run("ALTER TABLE t ADD COLUMN w VARCHAR(9) DEFAULT 'new'")
    (altered,) = source.transactions()
    source.begin()
    source.run("INSERT INTO t VALUES (2, 2, 'x')")
    (inserted,) = source.transactions()
    assert [image for *_, image in rows(before[0])] == [b'{"id":1,"v":1}']
    assert voids(altered) == {f"{source.database}.t"}
    assert [image for *_, image in rows(inserted)] == [b'{"id":2,"v":2,"w":"x"}']
    source.begin()
    source.run(
        "TRUNCATE t",
        "RENAME TABLE t TO s",
        "DROP TABLE o",
        "CREATE TABLE k SELECT 1 AS id",
        "GRANT SELECT ON *.* TO root@localhost",
    )
    found = source.transactions()
    name = source.database
    assert [voids(each) for each in found[:4]] == [
        {f"{name}.t"},
        {f"{name}.t", f"{name}.s"},
        {f"{name}.o"},
        {f"{name}.k"},
    ]
    described = [change for each in found for change in each.changes if isinstance(change, DescribeTable)]
    assert {each.table for each in described if each.cacheable} == {f"{name}.s"}


def test_a_transaction_that_is_rolled_back_is_not_waited_for(source: Source) -> None:
    """A GTID that a session owned while DDL was read, and gave back, never comes: the table is cached nevertheless."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source.begin()
    other = connect(source.settings)
    other.query("SET gtid_next = '99999999-2222-3333-4444-555555555555:1'")
    source.run("ALTER TABLE t ADD COLUMN v INT")
    dump = BinlogDump(source.settings, GtidPosition.parse(source.start).bare, next(SERVER_IDS))
    reader = BinlogReader(dump, source.schema, source.start)
    described: list[bool] = []
    deadline = time.monotonic() + PATIENCE_S
    for transaction in reader.transactions():
        assert time.monotonic() < deadline
        changes = transaction.changes if transaction is not None else ()
        described += [change.cacheable for change in changes if isinstance(change, DescribeTable)]
        if transaction is None and described and other.open:
            other.close()
        if described == [False, True]:
            reader.stop()


def test_an_xa_transaction_counts_from_its_commit(source: Source) -> None:
    """Rows logged at XA PREPARE are published as a void at XA COMMIT, and XA ROLLBACK changes nothing."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    for name, end in (("a", "XA COMMIT 'a'"), ("b", "XA ROLLBACK 'b'"), ("c", "XA COMMIT 'c' ONE PHASE")):
        row = {"a": 1, "b": 2, "c": 3}[name]
        source.run(f"XA START '{name}'", f"INSERT INTO t VALUES ({row}, {row})", f"XA END '{name}'")
        source.run(*([] if name == "c" else [f"XA PREPARE '{name}'"]), end)
    found = source.transactions()
    assert [(voids(each), len(rows(each))) for each in found] == [
        (set(), 0),
        ({f"{source.database}.t"}, 0),
        (set(), 0),
        (set(), 0),
        (set(), 1),
    ]


def test_a_transaction_becomes_the_final_image_of_each_key(source: Source) -> None:
    """Several changes of a key become its last one, a rolled back one none, and a moved key two."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (3, 0)")
    source.begin()
    source.run("BEGIN", "INSERT INTO t VALUES (1, 1), (2, 1)", "SAVEPOINT s", "DELETE FROM t", "ROLLBACK TO s")
    source.run("UPDATE t SET id = 7 WHERE id = 2", "COMMIT", "BEGIN", "DELETE FROM t", "ROLLBACK")
    (found,) = source.transactions()
    name = f"{source.database}.t\0".encode()
    assert rows(found) == [
        (name + b"[1]", VALUE, b'{"id":1,"v":1}'),
        (name + b"[2]", ABSENT, b""),
        (name + b"[7]", VALUE, b'{"id":7,"v":1}'),
    ]


def test_positions_are_whole_and_ordered(source: Source) -> None:
    """Each position holds the one before it, and the transaction itself; the reader has reached what it has yielded."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source.begin()
    for number in range(5):
        source.run(f"INSERT INTO t VALUES ({number})")
    before = GtidPosition.parse(source.start)
    for transaction in source.transactions():
        here = GtidPosition.parse(transaction.position)
        assert here.covers(before)
        assert not before.covers(here)
        assert here.transactions_since(before) == {transaction.gtid.removeprefix("MySQL56/")}
        before = here


def test_a_live_logs_runs_are_its_transactions(source: Source) -> None:
    """Of several sessions and servers, with statements of other forms between them."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "CREATE TABLE u (id INT PRIMARY KEY)")
    source.run("INSERT INTO t VALUES (0, 'a')", "UPDATE t SET v = 'b'", "DELETE FROM t")
    source.begin()
    others = [connect(source.settings) for _ in range(3)]
    other = f"11111111-2222-3333-4444-{source.database.removeprefix('db_')}"
    for number in range(120):
        session = others[number % 3]
        session.query(f"INSERT INTO {source.database}.t VALUES ({number}, 'ü {number}')")
        if number % 2:
            session.query(f"UPDATE {source.database}.t SET v = NULL WHERE id = {number - 1}")
        if number % 10 == 3:
            source.run(f"SET gtid_next = '{other}:{number // 10 + 1}'", f"DELETE FROM t WHERE id = {number}")
            source.run("SET gtid_next = 'AUTOMATIC'")
        if number % 25 == 7:
            source.run("BEGIN", f"INSERT INTO u VALUES ({number})", "DELETE FROM t WHERE id < 20", "COMMIT")
        if number == 60:
            source.run("ANALYZE TABLE u")
    for session in others:
        session.close()
    source.transactions()  # until the schema is known for good, which other tests' transactions put off
    alone, runs = source.transactions(), source.transactions(in_runs=True)
    each = [each for run in runs for each in (run.each() if isinstance(run, SingleRows) else [run])]
    assert [replace(found, changes=list(found.changes)) for found in each] == [
        replace(found, changes=list(found.changes)) for found in alone
    ]
    assert len(runs) < len(alone)
