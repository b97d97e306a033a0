"""A backlog over DDL: each row is decoded with the schema of its position, or its table is void."""

from __future__ import annotations

import pytest

from stream.kafka.connection import KafkaCluster
from stream.wire.events import DescribeTable, RowChange, SourceTransaction
from tests.sources.mariadb.conftest import Source, rows, voids
from tests.sources.mariadb.test_source import Running, images, of_kind, published, until


def described(transaction: SourceTransaction) -> list[tuple[bool, tuple[str, ...]]]:
    """What a transaction describes: whether the table can be cached, and its key."""
    return [(c.cacheable, c.primary_key) for c in transaction.changes if isinstance(c, DescribeTable)]


def keys(transactions: list[SourceTransaction]) -> list[bytes]:
    """The keys of all rows, without their table."""
    return [key.partition(b"\0")[2] for each in transactions for key, _, _ in rows(each)]


BACKLOGS = {
    "key order": (
        "CREATE TABLE t (a INT, b INT, v INT, PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES (1, 2, 3)",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b, a)",
        b'[1,2] {"a":1,"b":2,"v":3}',
    ),
    "swapped names": (
        "CREATE TABLE t (a INT PRIMARY KEY, b INT, v INT)",
        "INSERT INTO t VALUES (1, 2, 3)",
        "ALTER TABLE t RENAME COLUMN b TO v, RENAME COLUMN v TO b",
        b'[1] {"a":1,"b":2,"v":3}',
    ),
    "type": (
        "CREATE TABLE t (a INT PRIMARY KEY, v BINARY(16))",
        "INSERT INTO t VALUES (1, UNHEX('000102030405060708090a0b0c0d0e0f'))",
        "ALTER TABLE t MODIFY v UUID",
        b'[1] {"a":1,"v":{"base64":"AAECAwQFBgcICQoLDA0ODw=="}}',
    ),
    "character set": (
        "CREATE TABLE t (a INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET latin1)",
        "INSERT INTO t VALUES (1, 'ü')",
        "ALTER TABLE t MODIFY v VARCHAR(9) CHARACTER SET utf8mb4",
        '[1] {"a":1,"v":"ü"}'.encode(),
    ),
    "collation of the key": (
        "CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY)",
        "INSERT INTO t VALUES ('abc')",
        "ALTER TABLE t MODIFY k VARCHAR(9) COLLATE utf8mb4_general_ci",
        b'["abc"] {"k":"abc"}',
    ),
    "drop": (
        "CREATE TABLE t (a INT PRIMARY KEY, v INET6)",
        "INSERT INTO t VALUES (1, '::1')",
        "DROP TABLE t",
        b'[1] {"a":1,"v":"::1"}',
    ),
    "swapped tables": (
        "CREATE TABLE t (a INT, b INT, v INT, PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES (1, 2, 3)",
        "RENAME TABLE t TO x, u TO t, x TO u",
        b'[1,2] {"a":1,"b":2,"v":3}',
    ),
}


@pytest.mark.parametrize("case", BACKLOGS)
def test_a_backlog_is_decoded_with_the_schema_of_its_position(source: Source, case: str) -> None:
    """What is known of the table was told at the position; what the server says now comes after the DDL."""
    create, insert, alter, expected = BACKLOGS[case]
    source.run("CREATE TABLE u (a INT, b INT, v INT, PRIMARY KEY (b, a))", create)
    source.begin()
    source.run(insert, alter)
    source.schema.load()
    first, second = source.transactions()
    ((key, _, image),) = rows(first)
    assert key.partition(b"\0")[2] + b" " + image == expected
    assert f"{source.database}.t" in voids(second)
    assert described(second)


def test_between_two_ddls_nothing_is_guessed(source: Source) -> None:
    """After the first DDL the server tells the schema after the second. So the table is void until that is reached."""
    source.run("CREATE TABLE t (a INT, b INT, v INT, PRIMARY KEY (a, b))", "CREATE TABLE o (id INT PRIMARY KEY)")
    source.begin()
    source.run(
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b, a)",
        "INSERT INTO t VALUES (1, 2, 3)",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a, b)",
        "INSERT INTO t VALUES (4, 5, 6)",
        "INSERT INTO o VALUES (1)",
    )
    found = source.transactions()
    assert [voids(each) for each in found] == [
        {f"{source.database}.t"},
        set(),
        {f"{source.database}.t"},
        set(),
        {f"{source.database}.t"},
    ]
    assert described(found[0]) == [(False, ("a", "b"))]
    assert described(found[4]) == [(True, ("a", "b"))]
    assert keys(found) == [b"[1]"]
    start = source.position()
    source.run("INSERT INTO t VALUES (7, 8, 9)")
    assert keys(source.transactions(start)) == [b"[7,8]"]


def test_a_collation_that_was_changed_without_a_trace_is_noticed(source: Source) -> None:
    """The table map has the collations, and a key's collation says what equals it."""
    source.run("CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY)")
    source.begin()
    source.run(
        "SET sql_log_bin = 0", "ALTER TABLE t MODIFY k VARCHAR(9) COLLATE utf8mb4_general_ci", "SET sql_log_bin = 1"
    )
    source.run("INSERT INTO t VALUES ('abc')")
    (found,) = source.transactions()
    assert voids(found) == {f"{source.database}.t"}
    (after,) = [c for c in found.changes if isinstance(c, DescribeTable)]
    assert [column.exact for column in after.columns] == [False]


def test_a_source_that_was_stopped_over_ddl_publishes_each_row_under_its_own_key(
    kafka: KafkaCluster, keyspace_name: str, source: Source
) -> None:
    """The topic has the schema of the position, so a source that starts after the DDL still knows it."""
    source.run("CREATE TABLE t (a INT, b INT, v INT, PRIMARY KEY (a, b))")
    with Running(kafka, keyspace_name, source):
        source.run("INSERT INTO t VALUES (1, 2, 3)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "the first row")
    source.run(
        "INSERT INTO t VALUES (3, 4, 5)",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b, a)",
        "INSERT INTO t VALUES (5, 6, 7)",
    )
    with Running(kafka, keyspace_name, source):
        until(lambda: published(kafka, keyspace_name) == source.position(), "the backlog")
        source.run("INSERT INTO t VALUES (7, 8, 9)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "the last row")
    found = sorted(key.partition(b"\0")[2] for key in images(kafka, keyspace_name))
    assert found == [b"[1,2]", b"[3,4]", b"[8,7]"]
    schemas = of_kind(kafka, keyspace_name, "TableSchema")
    assert [(each["cacheable"], each["primary_key"]) for each in schemas][-1] == (True, ["b", "a"])


def test_a_cascade_from_a_table_that_is_not_published_voids_the_child(source: Source) -> None:
    """The child's own row is logged, what the foreign key changes is not, and the parent's key can't be cached."""
    source.run(
        "CREATE TABLE parent (g INT UNIQUE, p POINT) ENGINE = InnoDB",
        "CREATE TABLE child (id INT PRIMARY KEY, g INT, FOREIGN KEY (g) REFERENCES parent (g) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1, NULL), (2, NULL)",
        "INSERT INTO child VALUES (1, 1), (2, 2), (3, 2)",
    )
    source.begin()
    source.run("DELETE parent, child FROM parent JOIN child ON child.id = 1 WHERE parent.g = 2")
    (found,) = source.transactions()
    assert voids(found) == {f"{source.database}.child"}
    assert not [change for change in found.changes if isinstance(change, RowChange)]
