"""A Debezium source beside its server's own binlog: the same transactions, and void is what can't be carried."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from stream.wire.events import RowChange
from stream.wire.keys import row_key
from tests.lengths import length
from tests.servers.connect import ConnectServer
from tests.sources.debezium.conftest import Captured, RunningDebezium
from tests.sources.mariadb.test_source import PARTITIONS, images, until
from tests.stream.committed import records, rows
from tokens.errors import FreshetError

TYPED = """CREATE TABLE typed (id BIGINT PRIMARY KEY, ti TINYINT, b1 TINYINT(1), su SMALLINT UNSIGNED, mi MEDIUMINT,
 iu INT UNSIGNED, bu BIGINT UNSIGNED, zf INT(8) UNSIGNED ZEROFILL, d1 DECIMAL(10,2), d2 DECIMAL(65,30), f FLOAT,
 db DOUBLE, c CHAR(10), v VARCHAR(100), vl VARCHAR(40) CHARACTER SET latin1, vb VARBINARY(20), bin BINARY(8), t TEXT,
 bl BLOB, bt1 BIT(1), bt13 BIT(13), bt64 BIT(64), dt DATE, dtm DATETIME, dtm3 DATETIME(3), dtm6 DATETIME(6),
 ts TIMESTAMP NULL, ts6 TIMESTAMP(6) NULL, tm TIME, tm3 TIME(3), y YEAR, e ENUM('a','b','ü'), s SET('x','y','z'))
 CHARACTER SET utf8mb4"""
EXTREMES = """INSERT INTO typed VALUES (2, -128, 1, 65535, -8388608, 4294967295, 18446744073709551615, 42, -12345678.90,
 12345678901234567890123456789012345.123456789012345678901234567890, 1.1, 1.7976931348623157e308, 'ab', 'naïve ☃ 😀',
 'café', X'00ff10', X'0102', 'text', X'00ff', b'1', b'1010101010101', b'{ones}', '9999-12-31', '9999-12-31 23:59:59',
 '2020-02-29 12:34:56.789', '1000-01-01 00:00:00.000001', '1970-01-01 00:00:01', '2038-01-19 03:14:07.999999',
 '-838:59:59', '838:59:58.999', 2155, 'ü', 'x,z')""".replace("{ones}", "1" * 64)
ZEROS = [
    "INSERT INTO typed (id) VALUES (1)",
    "SET SESSION sql_mode = ''",
    "INSERT INTO typed (id, dt, dtm, dtm6, ts, ts6, y, e)"
    " VALUES (5, '0000-00-00', '0000-00-00', '2020-00-10', '0000-00-00', '0000-00-00', 0, 'nonsense')",
    "SET SESSION sql_mode = DEFAULT",
    "UPDATE typed SET v = 'changed' WHERE id IN (2, 5)",
]


@pytest.fixture
def writing(captured: Captured, keyspace_name: str) -> Iterator[RunningDebezium]:
    """A running source of `three_tables`."""
    three_tables(captured)
    with RunningDebezium(captured, keyspace_name) as running:
        running.until_published(captured.source.position())
        captured.source.begin()
        yield running


def three_tables(captured: Captured) -> None:
    """A connector of the tables ``t``, ``u`` and ``typed``, each of which has a row: else it would have no topic."""
    captured.source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), n BIGINT UNSIGNED)",
        "CREATE TABLE u (a INT, b VARCHAR(10), PRIMARY KEY (b, a))",
        TYPED,
        "INSERT INTO t VALUES (0, 'there before', 0)",
        "INSERT INTO u VALUES (0, 'x')",
        "INSERT INTO typed (id) VALUES (0)",
    )
    captured.create()


def test_it_publishes_what_the_binlog_says(captured: Captured, writing: RunningDebezium, keyspace_name: str) -> None:
    """Rows of all kinds of statements and types arrive once, under their GTIDs and in their order."""
    source = captured.source
    for n in range(5):
        source.run(
            "BEGIN",
            f"INSERT INTO t VALUES ({10 + n}, 'new', {n})",
            f"INSERT INTO u VALUES ({n}, 'b')",
            "SAVEPOINT here",
            f"INSERT INTO u VALUES ({n}, 'taken back')",
            "ROLLBACK TO here",
            f"UPDATE t SET v = 'changed {n}' WHERE id = 0",
            f"UPDATE t SET id = {100 + n} WHERE id = {10 + n}",
            "COMMIT",
        )
    source.run("DELETE FROM u WHERE b = 'b' AND a < 3", EXTREMES, *ZEROS, "DELETE FROM typed WHERE id = 2")
    writing.until_published(source.position())
    same, wrong = captured.differences(keyspace_name)
    assert not wrong
    assert same == 26  # all but those with a NULL or zero date, which the connector writes as the same


def test_it_publishes_what_rows_were_before(captured: Captured, keyspace_name: str) -> None:
    """As the binlog has it, of each kind of statement; nothing where the connector can't carry the row."""
    three_tables(captured)
    source = captured.source
    with RunningDebezium(captured, keyspace_name, before_images=True) as running:
        running.until_published(source.position())
        source.begin()
        source.run("BEGIN", "INSERT INTO t VALUES (10, 'new', 1)", "UPDATE t SET v = 'changed' WHERE id IN (0, 10)")
        source.run("UPDATE t SET id = 100 WHERE id = 0", "DELETE FROM u", "COMMIT", EXTREMES)
        source.run("UPDATE t SET v = NULL WHERE id = 100", "DELETE FROM t WHERE id = 10", "DELETE FROM typed")
        running.until_published(source.position())
    topic = records(captured.kafka, keyspace_name, PARTITIONS)
    befores = {
        each["ordinal"] + ordinal: image
        for part in topic.values()
        for name, each in part
        if name == "BeforeImages"
        for ordinal, image in zip(each["ordinals"], each["images"], strict=True)
    }
    wanted = {
        (transaction.gtid, each.key): each.before
        for transaction in source.transactions(keeps_before=True)
        for each in transaction.changes
        if isinstance(each, RowChange)
    }
    found = {(gtid, key): befores.get(ordinal) for ordinal, key, _, gtid in rows(topic) if (gtid, key) in wanted}
    assert found.keys() == wanted.keys()
    lost = {key for key, image in found.items() if image is None}
    assert {key for _, key in lost} <= {row_key(f"{source.database}.typed", [number]) for number in (0, 2)}
    assert {key: image for key, image in found.items() if key not in lost} == {
        key: image for key, image in wanted.items() if key not in lost
    }


def test_null_stays_null_in_a_table_that_is_new(
    captured: Captured, writing: RunningDebezium, keyspace_name: str
) -> None:
    """The converter would write a column's default in its place; a table's topic is found after its first row."""
    source, name = captured.source, f"{captured.source.database}.d"
    source.run("CREATE TABLE d (id INT PRIMARY KEY, v VARCHAR(9) NULL DEFAULT 'new')", "INSERT INTO d VALUES (1, NULL)")
    writing.until_published(source.position())

    def carries() -> bool:
        """Whether rows of the new table are published with their images by now."""
        source.run(
            "REPLACE INTO d VALUES (2, NULL)", "REPLACE INTO d VALUES (3, 'x')", "UPDATE d SET v = 'y' WHERE id = 3"
        )
        writing.until_published(source.position())
        return bool(images(captured.kafka, keyspace_name).get(f"{name}\0[2]".encode()))

    until(carries, "images of the new table")
    found = images(captured.kafka, keyspace_name)
    assert found[f"{name}\0[2]".encode()] == b'{"id":2,"v":null}'
    assert captured.stale(keyspace_name, "d", "t", "u") == {}


@pytest.mark.long
def test_no_ddl_leaves_a_row_that_is_no_more(captured: Captured, writing: RunningDebezium, keyspace_name: str) -> None:
    """Whatever DDL does between changes of rows: what the topic says of a row is so, or is taken back."""
    source = captured.source
    away = f"{source.database}_away"
    ddl = [
        ["TRUNCATE TABLE t"],
        ["ALTER TABLE t ADD COLUMN extra VARCHAR(20) DEFAULT 'd'"],
        ["ALTER TABLE t DROP COLUMN extra, ADD KEY (n)"],
        ["CREATE TABLE s LIKE t", "INSERT INTO s VALUES (1, 'of s', 1)", "RENAME TABLE t TO q, s TO t", "DROP TABLE q"],
        [f"CREATE DATABASE {away}", f"RENAME TABLE t TO {away}.gone", f"DROP DATABASE {away}"],
        ["DROP TABLE IF EXISTS t", "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), n BIGINT UNSIGNED)"],
        ["CREATE TABLE o (id INT, v VARCHAR(20), n BIGINT UNSIGNED, PRIMARY KEY (id))", "DROP TABLE o"],
    ]
    r = random.Random(3)
    try:
        for statements in ddl * length(1, 5):
            for _ in range(4):
                n = r.randrange(6)
                source.run(f"REPLACE INTO t (id, v, n) VALUES ({n}, 'v{r.random():.6f}', {n})")
            source.run(*statements)
            if statements[0].startswith("CREATE DATABASE"):
                source.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), n BIGINT UNSIGNED)")
        for n in (50, 51):
            source.run(f"INSERT INTO t (id, v, n) VALUES ({n}, 'last', 1)")
            writing.until_published(source.position())
        assert captured.stale(keyspace_name, "t", "u", "typed") == {}
        assert images(captured.kafka, keyspace_name)[f"{source.database}.t\0[51]".encode()]
    finally:
        source.run(f"DROP DATABASE IF EXISTS {away}")


@pytest.mark.long
def test_a_connector_that_is_started_again_goes_on(
    captured: Captured, writing: RunningDebezium, keyspace_name: str, connect: ConnectServer
) -> None:
    """Its task is ended and started amid changes: every change is published once.

    One transaction each time may be void: a task that ended inside it counts only the rest of it.
    """
    source = captured.source
    restarts = length(1, 5)
    for n in range(restarts):
        source.run(f"INSERT INTO t VALUES ({1 + n}, 'before', 1)")
        connect.restart_task(captured.prefix)
        source.run(f"UPDATE t SET v = 'after {n}' WHERE id = {1 + n}", f"INSERT INTO u VALUES ({n}, 'b')")
    writing.until_published(source.position())
    source.run("INSERT INTO t VALUES (50, 'after all', 1)")
    writing.until_published(source.position())
    same, wrong = captured.differences(keyspace_name)
    assert not wrong
    assert 2 * restarts + 1 <= same <= 3 * restarts + 1
    assert captured.stale(keyspace_name, "t", "u") == {}
    assert images(captured.kafka, keyspace_name)[f"{source.database}.t\0[50]".encode()]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("exactly.once.support", "requested"), ("skipped.operations", "t"), ("database.include.list", "x")],
)
def test_a_connector_that_hides_changes_is_refused(
    captured: Captured, keyspace_name: str, setting: str, value: str
) -> None:
    """The source ends before it publishes anything, and names the setting."""
    captured.source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    captured.create(
        **{setting: value, "table.include.list": ""} if setting.startswith("database") else {setting: value}
    )
    with pytest.raises(FreshetError) as refused, RunningDebezium(captured, keyspace_name):
        pass
    assert refused.value.code == "debezium_bad_connector"
    assert setting in str(refused.value)


def test_rows_of_an_xa_transaction_end_the_source(captured: Captured, keyspace_name: str) -> None:
    """Debezium tells them when they are prepared, and never whether they are committed."""
    three_tables(captured)
    source = captured.source

    def prepare_and_roll_back() -> None:
        with RunningDebezium(captured, keyspace_name) as running:
            source.run("XA START 'x'", "INSERT INTO t VALUES (7, 'prepared', 1)", "XA END 'x'", "XA PREPARE 'x'")
            source.run("XA ROLLBACK 'x'", "INSERT INTO t VALUES (8, 'after', 1)")
            running.until_published(source.position())

    with pytest.raises(FreshetError) as ended:
        prepare_and_roll_back()
    assert ended.value.code == "debezium_xa_transaction"
    assert captured.stale(keyspace_name, "t", "u", "typed") == {}
