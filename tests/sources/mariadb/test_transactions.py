"""The reader turns a transaction into one final image for each key, and voids for what the binlog hides."""

from __future__ import annotations

import json
import tempfile

import pytest

from stream.sources.mariadb import live_schema
from stream.sources.mariadb.schema import is_missing
from stream.wire.events import (
    ABSENT,
    NO_ROW,
    VALUE,
    DescribeTable,
    KeylessRow,
    RowChange,
    SourceTransaction,
    VoidTable,
)
from stream.wire.keys import row_key
from tests.sources.mariadb.conftest import Source, rows, voids


def test_several_changes_of_a_row_in_a_transaction_become_its_final_image(source: Source) -> None:
    """Insert, update, update is one VALUE; insert, delete is ABSENT; delete, insert is VALUE."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (3, 0)")
    source.begin()
    source.run(
        "BEGIN", "INSERT INTO t VALUES (1, 1), (2, 1)", "UPDATE t SET v = v + 1", "UPDATE t SET v = 9 WHERE id = 1"
    )
    source.run("DELETE FROM t WHERE id = 2", "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (3, 5)", "COMMIT")
    (found,) = source.transactions()
    name = f"{source.database}.t\0".encode()
    assert rows(found) == [
        (name + b"[1]", VALUE, b'{"id":1,"v":9}'),
        (name + b"[2]", ABSENT, b""),
        (name + b"[3]", VALUE, b'{"id":3,"v":5}'),
    ]


def test_a_moved_primary_key_is_two_keys_even_in_a_chain(source: Source) -> None:
    """After an UPDATE of keys the old key is ABSENT and the new one VALUE, also if keys are reused in a chain."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    source.begin()
    source.run("UPDATE t SET id = id + 1 ORDER BY id DESC")
    (found,) = source.transactions()
    name = f"{source.database}.t\0".encode()
    assert rows(found) == [
        (name + b"[1]", ABSENT, b""),
        (name + b"[2]", VALUE, b'{"id":2,"v":1}'),
        (name + b"[3]", VALUE, b'{"id":3,"v":2}'),
        (name + b"[4]", VALUE, b'{"id":4,"v":3}'),
    ]


def test_rolled_back_work_is_not_published(source: Source) -> None:
    """A rolled back transaction publishes nothing, and a rollback to a savepoint only the changes before it."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    source.run("BEGIN", "INSERT INTO t VALUES (1, 1)", "ROLLBACK")
    source.run(
        "BEGIN", "INSERT INTO t VALUES (2, 2)", "SAVEPOINT s", "INSERT INTO t VALUES (3, 3)", "ROLLBACK TO s", "COMMIT"
    )
    (found,) = source.transactions()
    assert rows(found) == [(f"{source.database}.t\0[2]".encode(), VALUE, b'{"id":2,"v":2}')]


def test_a_transaction_over_engines_that_is_rolled_back_voids_what_it_touched(source: Source) -> None:
    """Tables of a rolled back transaction are void if the binlog has it because of a MyISAM row."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM")
    source.begin()
    source.run(
        "BEGIN", "INSERT INTO t VALUES (1, 1)", "SAVEPOINT s", "INSERT INTO t VALUES (2, 2)", "INSERT INTO m VALUES (1)"
    )
    source.run("ROLLBACK TO s", "INSERT INTO t VALUES (3, 3)", "COMMIT")
    source.run("BEGIN", "INSERT INTO t VALUES (4, 4)", "INSERT INTO m VALUES (2)", "ROLLBACK")
    found = source.folded(source.transactions())
    expected = source.selected("t")
    assert all(expected[key] == row.image for key, row in found.items() if row.operation == VALUE)
    assert not [row for key, row in found.items() if row.operation == ABSENT and key in expected]


def test_tables_without_key_or_snapshots_are_described_and_not_published(source: Source) -> None:
    """Transactions on such tables only move the position, and the description says why they can't be cached."""
    source.run("CREATE TABLE nokey (v INT)", "CREATE TABLE my (id INT PRIMARY KEY) ENGINE = MyISAM")
    source.run(
        "CREATE TABLE geo (id INT PRIMARY KEY, p POINT)", "CREATE TABLE old (id INT PRIMARY KEY) WITH SYSTEM VERSIONING"
    )
    source.begin()
    source.run("INSERT INTO nokey VALUES (1)", "INSERT INTO my VALUES (1)", "INSERT INTO geo VALUES (1, POINT(1, 2))")
    source.run("INSERT INTO old VALUES (1)")
    found = source.transactions()
    assert [list(transaction.changes) for transaction in found] == [[], [], [], []]
    assert len({transaction.position for transaction in found}) == 4
    described = [source.schema.catalog.description(name) for name in source.schema.catalog.names]
    reasons = {each.table.split(".")[1]: each.reason for each in described}
    assert not any(each.cacheable for each in described)
    assert reasons == {
        "nokey": "it has no primary key",
        "my": "engine MyISAM has no snapshots",
        "geo": "column p has type point",
        "old": "it is a system versioned",
    }


def test_rows_whose_keys_show_two_values_as_one_text_are_not_published(source: Source) -> None:
    """An invalid value of an ENUM is shown as '', and so is a member '': two rows would be cached under one key."""
    source.run("SET sql_mode = ''", "CREATE TABLE t (k ENUM('a', '') PRIMARY KEY, v INT)")
    source.run("CREATE TABLE u (k SET('', 'a'), id INT, PRIMARY KEY (id, k))")
    source.run(r"CREATE TABLE v (id ENUM('a', 'b'',''b', '\\\'', '\n', 'n') PRIMARY KEY, e ENUM('', 'x', 'x'))")
    source.begin()
    source.run("INSERT IGNORE INTO t VALUES (0, 1), (2, 2)", "INSERT INTO u VALUES (0, 1), (1, 1)")
    source.run("INSERT INTO v VALUES (0, 0), (2, 1)")
    assert [[*rows(found)] for found in source.transactions()] == [
        [],
        [],
        [
            (row_key(f"{source.database}.v", [""]), VALUE, b'{"id":"","e":""}'),
            (row_key(f"{source.database}.v", ["b','b"]), VALUE, b'{"id":"b\',\'b","e":""}'),
        ],
    ]
    assert source.table("t").problem == "column k of its key shows two values as ''"
    assert source.table("u").problem == "column k of its key shows two values as ''"
    source.run("DELETE FROM t WHERE v = 2", "ALTER TABLE t MODIFY k ENUM('a', 'b')")
    assert source.table("t").cacheable


CASCADES = (
    "CREATE TABLE parent (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id)"
    " ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE grandchild (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES child (id) ON DELETE CASCADE)",
    "CREATE TABLE orphan (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE SET NULL)",
    "INSERT INTO parent VALUES (1, 1), (2, 2), (3, 3)",
    "INSERT INTO child VALUES (10, 1), (20, 2)",
    "INSERT INTO grandchild VALUES (100, 10), (200, 20)",
    "INSERT INTO orphan VALUES (1, 1), (2, 2)",
)


def test_a_cascading_delete_voids_children_and_grandchildren(source: Source) -> None:
    """A cascading delete voids every table below, because InnoDB logs no rows for it."""
    source.run(*CASCADES)
    source.begin()
    source.run("DELETE FROM parent WHERE id = 1")
    (found,) = source.transactions()
    db = source.database
    assert voids(found) == {f"{db}.child", f"{db}.grandchild", f"{db}.orphan"}
    assert rows(found) == [(f"{db}.parent\0[1]".encode(), ABSENT, b"")]


def test_a_cascading_update_voids_children(source: Source) -> None:
    """ON UPDATE CASCADE voids the child table, because InnoDB logs no rows for it."""
    source.run(*CASCADES)
    source.begin()
    source.run("INSERT INTO parent VALUES (4, 4)", "INSERT INTO child VALUES (40, 4)")
    source.begin()
    source.run("UPDATE parent SET id = 9 WHERE id = 4")
    (found,) = source.transactions()
    assert f"{source.database}.child" in voids(found)
    assert len(rows(found)) == 2


def test_an_insert_into_a_parent_voids_nothing(source: Source) -> None:
    """Inserts void no child table, because only deletes and updates cascade."""
    source.run(*CASCADES)
    source.begin()
    source.run("INSERT INTO parent VALUES (4, 4)", "INSERT INTO child VALUES (30, 4)")
    first, second = source.transactions()
    assert voids(first) == voids(second) == set()


def test_a_cascade_within_one_table_voids_it(source: Source) -> None:
    """A cascade within a table voids the table, because the binlog has only the first deleted row."""
    source.run(
        "CREATE TABLE tree (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE)"
    )
    source.run("INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2)")
    source.begin()
    source.run("DELETE FROM tree WHERE id = 1")
    (found,) = source.transactions()
    assert voids(found) == {f"{source.database}.tree"}
    assert rows(found) == []


def test_a_child_that_is_changed_by_itself_and_by_cascade_is_void(source: Source) -> None:
    """If a statement logs only some of a child's changed rows, the child table is void."""
    source.run(*CASCADES)
    source.run("INSERT INTO child VALUES (11, 1)")
    source.begin()
    source.run("DELETE parent, child FROM parent JOIN child ON child.p = parent.id WHERE child.id = 11")
    transactions = source.transactions()
    found = source.folded(transactions)
    expected = source.selected("child")
    name = f"{source.database}.child"
    assert name in set().union(*map(voids, transactions)) or {
        key for key, row in found.items() if row.operation == ABSENT and key.startswith(name.encode())
    } == {f"{name}\0[10]".encode(), f"{name}\0[11]".encode()}
    assert all(key not in found or found[key].operation == VALUE for key in expected)


@pytest.mark.parametrize(
    ("ddl", "tables"),
    [
        ("ALTER TABLE t ADD COLUMN w INT DEFAULT 7", {"t"}),
        ("ALTER TABLE t ADD COLUMN w INT DEFAULT 7 FIRST, ALGORITHM = INSTANT", {"t"}),
        ("CREATE INDEX i ON t (v)", set()),
        ("ALTER TABLE t COMMENT 'x' ROW_FORMAT = COMPRESSED", set()),
        ("ALTER TABLE t ADD UNIQUE u (v), ADD CHECK (v < 1000), ALTER v SET DEFAULT 5", set()),
        ("TRUNCATE t", {"t"}),
        ("DROP TABLE t, u", {"t", "u"}),
        ("RENAME TABLE t TO t2, u TO t", {"t", "t2", "u"}),
        ("ALTER TABLE t RENAME TO `t 2`", {"t", "t 2"}),
        ("CREATE TABLE n (id INT PRIMARY KEY) CHARSET = utf8mb4", {"n"}),
        ("CREATE OR REPLACE TABLE t (id VARCHAR(10) PRIMARY KEY)", {"t"}),
        ("CREATE TABLE n (id INT PRIMARY KEY) SELECT id FROM t", {"n"}),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (v, id)", {"t"}),
        ("CREATE VIEW w AS SELECT 1", set()),
        ("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.v = 1", set()),
        ("ANALYZE TABLE t", set()),
        ("OPTIMIZE TABLE t", set()),
    ],
)
def test_ddl_voids_the_tables_it_names_and_describes_them_again(source: Source, ddl: str, tables: set[str]) -> None:
    """After each kind of DDL the folded rows agree with the server, and later rows have the new columns."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE u (id INT PRIMARY KEY, v INT)")
    source.begin()
    source.run("INSERT INTO t (id, v) VALUES (1, 1), (2, 2)", "INSERT INTO u (id, v) VALUES (5, 5)", ddl)
    transactions = source.transactions()
    named = {f"{source.database}.{table}" for table in tables}
    assert set().union(*map(voids, transactions)) == named
    described = {c.table for t in transactions for c in t.changes if isinstance(c, DescribeTable)}
    assert described == named
    with source.session.cursor() as cursor:
        cursor.execute("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")
        left = [row[0].decode() for row in cursor.fetchall()]
    for table in left:
        if table in ("t", "n", "u"):
            source.run(f"INSERT INTO {table} (id) VALUES (77)")
    found = source.folded(source.transactions())
    now = {key: image for table in left for key, image in source.selected(table).items()}
    assert {key: row.image for key, row in found.items() if row.operation == VALUE}.items() <= now.items()
    assert not any(row.operation == ABSENT for key, row in found.items() if key in now)


def test_ddl_with_a_character_set_and_letters_beyond_ascii_voids_its_table_only(source: Source) -> None:
    """The client's character set is found behind the other things that the server says of a statement."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))")
    source.begin()
    source.run(
        "SET NAMES utf8mb4",
        "SET character_set_collations = 'utf8mb4=utf8mb4_general_ci,latin1=latin1_bin'",
        "ALTER TABLE t MODIFY v VARCHAR(9) CHARACTER SET utf8mb4 COMMENT 'größer'",
        "SET SESSION binlog_alter_two_phase = ON",
        "ALTER TABLE t ADD COLUMN ü VARCHAR(9) CHARACTER SET utf8mb4",
        "SET SESSION binlog_alter_two_phase = OFF, character_set_collations = DEFAULT",
        "CREATE DEFINER = root@localhost TRIGGER `ö` BEFORE INSERT ON t FOR EACH ROW SET NEW.v = 'ä'",
    )
    assert all(voids(each) <= {f"{source.database}.t"} for each in source.transactions())


@pytest.mark.parametrize(
    ("stored", "ddl"),
    [
        ("INT AS (DEFAULT(a) + a)", "ALTER TABLE t ALTER a SET DEFAULT 20"),
        ("DECIMAL(30, 20) AS (a / 7)", "ALTER TABLE t ADD INDEX (a), ALGORITHM = COPY"),
    ],
)
def test_ddl_that_computes_a_stored_column_anew_voids_its_table(source: Source, stored: str, ddl: str) -> None:
    """MariaDB stores another value then and logs no row, though neither columns nor key change."""
    source.run(f"CREATE TABLE t (id INT PRIMARY KEY, a INT DEFAULT 10, s {stored} STORED)")
    source.begin()
    source.run("INSERT INTO t (id, a) VALUES (1, 1)")
    before = source.selected("t")
    source.run("SET SESSION div_precision_increment = 12", ddl, "SET SESSION div_precision_increment = DEFAULT")
    assert source.selected("t") != before
    assert set().union(*map(voids, source.transactions())) == {f"{source.database}.t"}


def test_a_stored_column_of_the_row_alone_is_kept_by_ddl(source: Source) -> None:
    """A copy gives the same value, so a new index voids nothing."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, s INT AS (a + 1) STORED)")
    source.begin()
    source.run("ALTER TABLE t ADD INDEX (a), ALGORITHM = COPY")
    assert set().union(*map(voids, source.transactions())) == set()


def test_a_change_that_is_analyzed_and_logged_as_a_statement_voids_everything(source: Source) -> None:
    """ANALYZE UPDATE changes rows."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    source.begin()
    source.run("SET SESSION binlog_format = STATEMENT", "ANALYZE UPDATE t SET v = 2")
    source.run("SET SESSION binlog_format = ROW")
    assert "*" in set().union(*map(voids, source.transactions()))


@pytest.mark.parametrize("sql", ["DROP DATABASE {0}; CREATE DATABASE {0}", "CREATE OR REPLACE DATABASE {0}"])
def test_the_tables_of_a_dropped_database_are_gone(source: Source, sql: str) -> None:
    """As by a DROP of each. Of CREATE OR REPLACE no DROP is logged."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source.begin()
    source.run(*sql.format(source.database).split("; "))
    name = f"{source.database}.t"
    assert set().union(*map(voids, source.transactions())) == {name}
    assert is_missing(source.schema.catalog.description(name))


def test_a_change_of_schema_that_is_not_logged_is_noticed_by_the_next_row(source: Source) -> None:
    """After an unlogged DDL the next row voids the table and describes it again."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    source.run("INSERT INTO t VALUES (1, 1)", "SET sql_log_bin = 0", "ALTER TABLE t ADD COLUMN w INT DEFAULT 7")
    source.run("SET sql_log_bin = 1")
    before = source.transactions()
    source.schema.load()
    source.run("INSERT INTO t VALUES (2, 2, 2)", "INSERT INTO t VALUES (3, 3, 3)")
    transactions = source.transactions()
    assert rows(before[0])
    assert voids(transactions[0]) == {f"{source.database}.t"}
    assert rows(transactions[2]) == [(f"{source.database}.t\0[3]".encode(), VALUE, b'{"id":3,"v":3,"w":3}')]


def test_changes_logged_as_statements_void_everything(source: Source) -> None:
    """A change logged as a statement voids everything, because its rows are not in the binlog."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    source.run(
        "SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (1, 1)", "SET SESSION binlog_format = ROW"
    )
    (found,) = source.transactions()
    assert voids(found) == {"*"}


def test_partial_row_images_void_their_table(source: Source) -> None:
    """Rows logged with binlog_row_image = MINIMAL void their table."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO t VALUES (1, 1, 1)")
    source.begin()
    source.run("SET SESSION binlog_row_image = MINIMAL", "UPDATE t SET v = 2", "SET SESSION binlog_row_image = FULL")
    (found,) = source.transactions()
    assert voids(found) == {f"{source.database}.t"}


def test_xa_transactions_are_not_published_at_prepare_and_void_their_tables_at_commit(source: Source) -> None:
    """Rows of XA PREPARE are not published, and XA COMMIT voids their tables."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source.begin()
    source.run("XA START 'a'", "INSERT INTO t VALUES (1)", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'")
    source.run("XA START 'b'", "INSERT INTO t VALUES (2)", "XA END 'b'", "XA PREPARE 'b'", "XA ROLLBACK 'b'")
    source.run("XA START 'c'", "INSERT INTO t VALUES (3)", "XA END 'c'", "XA COMMIT 'c' ONE PHASE")
    found = source.transactions()
    assert [rows(each) for each in found[:-1]] == [[], [], [], []]
    assert [voids(each) for each in found] == [set(), {f"{source.database}.t"}, set(), set(), set()]
    assert rows(found[-1]) == [(f"{source.database}.t\0[3]".encode(), VALUE, b'{"id":3}')]


def test_an_xa_commit_of_work_prepared_before_the_start_voids_everything(source: Source) -> None:
    """XA COMMIT of a transaction prepared before the start voids everything, because its tables are unknown."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source.run("XA START 'd'", "INSERT INTO t VALUES (1)", "XA END 'd'", "XA PREPARE 'd'")
    source.begin()
    source.run("XA COMMIT 'd'")
    (found,) = source.transactions()
    assert voids(found) == {"*"}


def test_an_xa_commit_that_reads_cannot_see_yet_keeps_its_tables_read_through(source: Source) -> None:
    """Its position is reached before its rows are visible, so only a void after that ends what was read meanwhile."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE o (id INT PRIMARY KEY)")
    source.begin()
    source.run(
        "XA START 'held'", "INSERT INTO t VALUES (1, 1)", "XA END 'held'", "XA PREPARE 'held'", "XA COMMIT 'held'"
    )
    source.run("INSERT INTO o VALUES (1)", "INSERT INTO o VALUES (2)")
    server, xid, answers = source.schema, (1, b"held", b""), iter([1, 1, 1, 0])
    prepared = live_schema._prepared
    try:
        live_schema._prepared = lambda connection: prepared(connection) | ({xid} if next(answers) else set())
        found = source.transactions()
    finally:
        live_schema._prepared = prepared
    name = f"{source.database}.t"
    assert [voids(each) for each in found] == [set(), {name}, set(), {name}]
    (first,) = [c for c in found[1].changes if isinstance(c, DescribeTable)]
    assert not first.cacheable
    assert "XA" in first.reason
    (second,) = [c for c in found[3].changes if isinstance(c, DescribeTable)]
    assert second.cacheable
    assert server.get(name) is not None


def test_a_description_has_the_types_of_the_server(source: Source) -> None:
    """In the server's own words, those of the position; a list of hundreds of words is left out."""
    words = ",".join(f"'word {number}'" for number in range(200))
    source.run(f"CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, price DECIMAL(10,2), size ENUM({words}))")
    source.begin()
    name = f"{source.database}.t"
    assert source.schema.catalog.description(name).sql_types == ("bigint(20) unsigned", "decimal(10,2)", "enum")
    source.run("ALTER TABLE t MODIFY price DECIMAL(12,4)", "INSERT INTO t VALUES (1, 1.5, 1)")
    described = [c for each in source.transactions() for c in each.changes if isinstance(c, DescribeTable)]
    assert described[-1].sql_types == ("bigint(20) unsigned", "decimal(12,4)", "enum")
    assert described[-1].cacheable


def test_a_giant_transaction_spills_to_disk_and_reads_the_same(source: Source) -> None:
    """A transaction beyond the memory bound has the same changes in the same order, with random access."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))")
    source.begin()
    source.run("BEGIN", "INSERT INTO t SELECT seq, REPEAT('x', 100) FROM seq_1_to_5000")
    source.run("UPDATE t SET v = CONCAT(v, id) WHERE id % 3 = 0", "DELETE FROM t WHERE id % 5 = 0")
    source.run("UPDATE t SET id = id + 100000 WHERE id % 7 = 0", "COMMIT")
    (whole,) = source.transactions()
    (spilled,) = source.transactions(spill_bytes=100_000)
    assert len(spilled.changes) == len(whole.changes) > 5000
    assert list(spilled.changes) == list(whole.changes)
    assert list(spilled.changes[100:200]) == list(whole.changes[100:200])
    assert spilled.changes[4321] == whole.changes[4321]
    assert spilled.changes[len(spilled.changes) - 1] == whole.changes[-1]


def test_a_row_has_what_it_was_before_its_transaction(source: Source) -> None:
    """Of several changes of a key the first one tells; a row that moves leaves its key, and had none at the other.

    Without the option nothing is told.
    """
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    source.begin()
    source.run("BEGIN", "UPDATE t SET v = 10 WHERE id = 1", "UPDATE t SET v = 11 WHERE id = 1")
    source.run("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (2, 20)", "UPDATE t SET id = 30 WHERE id = 3")
    source.run("REPLACE INTO t VALUES (4, 40)", "INSERT INTO t VALUES (5, 5)", "UPDATE t SET v = 50 WHERE id = 5")
    source.run("INSERT INTO t VALUES (6, 6)", "DELETE FROM t WHERE id = 6", "COMMIT")
    (transaction,) = source.transactions(keeps_before=True)
    told = {
        json.loads(each.key.partition(b"\0")[2])[0]: each for each in transaction.changes if isinstance(each, RowChange)
    }
    befores = {key: each.before and json.loads(each.before)["v"] for key, each in told.items()}
    assert befores == {1: 1, 2: 2, 3: 3, 4: 4, 5: b"", 6: b"", 30: b""}
    after = {key: each.image and json.loads(each.image)["v"] for key, each in told.items()}
    assert after == {1: 11, 2: 20, 3: b"", 4: 40, 5: 50, 6: b"", 30: 3}
    (plain,) = source.transactions()
    assert [(each.key, each.image) for each in plain.changes if isinstance(each, RowChange)] == [
        (each.key, each.image) for each in transaction.changes if isinstance(each, RowChange)
    ]
    assert {each.before for each in plain.changes if isinstance(each, RowChange)} == {None}


def test_a_transaction_that_goes_to_disk_has_no_images_of_before(source: Source) -> None:
    """A stream holds no more of a transaction either; the rows themselves are the same."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))", "INSERT INTO t SELECT seq, '' FROM seq_1_to_2000")
    source.begin()
    source.run("UPDATE t SET v = REPEAT('x', 100)")
    (spilled,) = source.transactions(spill_bytes=100_000, keeps_before=True)
    assert {each.before for each in spilled.changes if isinstance(each, RowChange)} == {None}
    (whole,) = source.transactions()
    assert list(spilled.changes) == list(whole.changes)


def test_rows_without_a_key_come_behind_the_others_in_their_order(source: Source) -> None:
    """Each of them, none of a transaction that was taken back; too many for memory are a void of their table."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE bare (v INT, w VARCHAR(200))")
    source.begin()
    source.run(
        "BEGIN", "INSERT INTO bare VALUES (1, 'a')", "INSERT INTO t VALUES (1)", "INSERT INTO bare VALUES (1, 'a')"
    )
    source.run("UPDATE bare SET w = 'b' LIMIT 1", "DELETE FROM bare WHERE w = 'a'", "COMMIT")
    source.run("BEGIN", "INSERT INTO bare VALUES (2, 'taken back')", "ROLLBACK")
    (transaction,) = source.transactions(keeps_keyless=True)
    a, b = b'{"v":1,"w":"a"}', b'{"v":1,"w":"b"}'
    name = f"{source.database}.bare"
    first, *rest = transaction.changes
    assert isinstance(first, RowChange)
    assert rest == [
        KeylessRow(name, "inserted", NO_ROW, a),
        KeylessRow(name, "inserted", NO_ROW, a),
        KeylessRow(name, "updated", a, b),
        KeylessRow(name, "deleted", a, NO_ROW),
    ]
    (plain,) = source.transactions()
    assert list(plain.changes) == [first], "nothing is told without the option"
    source.begin()
    source.run("INSERT INTO bare SELECT seq, REPEAT('x', 100) FROM seq_1_to_1000")
    (large,) = source.transactions(keeps_keyless=True, spill_bytes=50_000)
    [void] = large.changes
    assert isinstance(void, VoidTable)
    assert void.table == name
    assert len(source.transactions(keeps_keyless=True)[0].changes) == 1000


def same(transaction: SourceTransaction) -> tuple[object, ...]:
    """What does not depend on when the server was asked for its schema."""
    return transaction.gtid, transaction.position, transaction.checksum, transaction.cursor, rows(transaction)


def test_reading_again_from_any_transaction_gives_the_same_rest(source: Source) -> None:
    """Resuming from any position gives exactly the transactions after it, also across DDL."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT) CHARSET = utf8mb4")
    source.begin()
    for number in range(12):
        source.run(f"INSERT INTO t (id, v) VALUES ({number}, {number})")
        if number == 6:
            source.run("CREATE TABLE other (id INT PRIMARY KEY) CHARSET = utf8mb4")
    whole = source.transactions()
    assert len(whole) == 13
    for index, transaction in enumerate(whole):
        rest = source.transactions(start=transaction.position)
        assert [same(each) for each in rest] == [same(each) for each in whole[index + 1 :]]


def test_every_transaction_carries_its_own_gtid_the_set_after_it_and_source_time(source: Source) -> None:
    """A transaction has its GTID and position as canonical text with flavor, and the time of its commit."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source.begin()
    source.run("SET timestamp = 1700000000", "INSERT INTO t VALUES (1)", "SET timestamp = DEFAULT")
    (found,) = source.transactions()
    assert found.timestamp == 1700000000
    assert found.position == source.position()
    assert found.gtid.startswith("MariaDB/")
    assert found.gtid.removeprefix("MariaDB/") in found.position


def test_compressed_binlog_events_read_the_same(source: Source) -> None:
    """Compressed binlog events give the same rows."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    source.begin()
    source.run("SET GLOBAL log_bin_compress = ON")
    try:
        session = Source(source.settings, source.database)
        session.run("INSERT INTO t VALUES (1, REPEAT('a', 5000)), (2, REPEAT('b', 5000))")
        session.run("UPDATE t SET v = CONCAT(v, 'c')", "DELETE FROM t WHERE id = 2")
        session.run("CREATE TABLE n (id INT PRIMARY KEY) COMMENT '" + "x" * 600 + "'")
        session.close()
    finally:
        source.run("SET GLOBAL log_bin_compress = OFF")
    found = source.folded(source.transactions())
    assert {key: row.image for key, row in found.items() if row.operation == VALUE} == source.selected("t")
    assert sum(isinstance(row, RowChange) and row.operation == ABSENT for row in found.values()) == 1


def test_a_large_transaction_on_a_full_disk_voids_its_tables(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be kept until the transaction ends is not published; the source says so and goes on."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "CREATE TABLE u (id INT PRIMARY KEY)")
    source.begin()
    source.run(
        "BEGIN", "INSERT INTO u VALUES (1)", "INSERT INTO t SELECT seq, REPEAT('x', 500) FROM seq_1_to_1000", "COMMIT"
    )
    source.run("INSERT INTO u VALUES (2)")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "w+b"))  # noqa: SIM115
    first, second = source.transactions(spill_bytes=50_000)
    assert voids(first) == {f"{source.database}.t", f"{source.database}.u"}
    assert rows(first) == []
    assert [key for key, *_ in rows(second)] == [row_key(f"{source.database}.u", [2])]
