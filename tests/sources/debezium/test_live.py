"""A Debezium source beside its server's own binlog: it publishes the same transactions, or voids what it can't carry."""

from __future__ import annotations

from tests.sources.debezium.conftest import Captured, RunningDebezium
from tests.sources.mariadb.test_source import images, published, until


def test_it_publishes_what_the_binlog_says(captured: Captured, keyspace_name: str) -> None:
    """Rows of all kinds of statements and of several tables arrive once, under their GTIDs."""
    source, kafka = captured.source, captured.kafka
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), n BIGINT UNSIGNED, d DECIMAL(20,3))",
        "CREATE TABLE u (a INT, b VARCHAR(10), PRIMARY KEY (b, a))",
        "INSERT INTO t VALUES (1000, 'there before', 0, 0)",
    )
    captured.create()
    with RunningDebezium(captured, keyspace_name) as running:
        source.run("INSERT INTO t VALUES (1, 'é', 18446744073709551615, -1.5)", "INSERT INTO u VALUES (1, 'x')")
        until(lambda: published(kafka, keyspace_name) == source.position(), f"first rows")
        source.begin()
        for n in range(5):
            source.run(
                "BEGIN",
                f"INSERT INTO t VALUES ({10 + n}, 'new', {n}, {n})",
                f"INSERT INTO u VALUES ({n}, 'b')",
                f"UPDATE t SET v = 'changed {n}' WHERE id = 1",
                f"UPDATE t SET id = {100 + n} WHERE id = {10 + n}",
                "COMMIT",
            )
        source.run("DELETE FROM u WHERE b = 'b' AND a < 3")
        until(lambda: published(kafka, keyspace_name) == source.position(), "all rows")
    print(images(kafka, keyspace_name))
    print(source.selected("t"), source.selected("u"))
    print(source.transactions())
