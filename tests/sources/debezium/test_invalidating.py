"""A connector without transaction metadata: what changes is void, and no position is claimed."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from stream.kafka.connection import KafkaCluster, client_settings
from stream.wire.keys import row_key
from tests.patience import PATIENCE_S
from tests.sources.debezium.conftest import Captured, RunningDebezium
from tests.sources.mariadb.test_source import PARTITIONS, published, until
from tests.stream.committed import records, rows


def void(kafka: KafkaCluster, keyspace: str) -> set[bytes]:
    """The keys of the rows in the topic, of which none has an image."""
    found = rows(records(kafka, keyspace, PARTITIONS))
    assert {image for _, _, image, _ in found} <= {b""}
    return {key for _, key, _, _ in found}


@pytest.fixture
def endless(captured: Captured) -> Captured:
    """A connector of the tables ``t`` and ``u`` that does not tell where transactions end."""
    captured.source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE u (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (0, 'there before')",
        "INSERT INTO u VALUES (0)",
    )
    captured.create(provide__transaction__metadata="false")
    topics = {f"{captured.prefix}.{captured.source.database}.{name}" for name in "tu"}
    admin = AdminClient(client_settings(captured.kafka))
    until(lambda: topics <= admin.list_topics(timeout=PATIENCE_S).topics.keys(), "a topic of each table")
    return captured


def test_without_ends_of_transactions_rows_are_only_void(endless: Captured, keyspace_name: str) -> None:
    """Each kind of statement voids what it changes, after DDL too, and again after a restart; the position stays."""
    source, kafka = endless.source, endless.kafka

    def key(number: int) -> bytes:
        return row_key(f"{source.database}.t", [number])

    def void_tables() -> list[str]:
        found = records(kafka, keyspace_name, PARTITIONS)
        return [each["table"] for part in found.values() for name, each in part if name == "TableVoid"]

    with capture_logs() as logs, RunningDebezium(endless, keyspace_name):
        begun = published(kafka, keyspace_name)
        assert begun == source.position()
        source.run("BEGIN", "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET id = 3 WHERE id = 2", "COMMIT")
        source.run("UPDATE t SET v = 'c' WHERE id = 0", "INSERT INTO t VALUES (4, 'd')", "DELETE FROM t WHERE id = 4")
        until(lambda: void(kafka, keyspace_name) == {key(n) for n in range(5)}, "the voids of all changed rows")
        before = len(void_tables())
        source.run("TRUNCATE TABLE u", "ALTER TABLE t ADD COLUMN w INT")
        until(lambda: {f"{source.database}.{name}" for name in "tu"} <= set(void_tables()[before:]), "both tables void")

        def is_void() -> bool:
            source.run("REPLACE INTO t VALUES (5, 'e', 1)")
            return key(5) in void(kafka, keyspace_name)

        until(is_void, "a row of the table as it is now")
    assert "invalidation only" in [each["event"] for each in logs]
    source.run("INSERT INTO t VALUES (6, 'while it was away', 2)")
    before = void_tables().count(f"{source.database}.t")

    def is_known() -> bool:
        """Whether the row is void, or its table: a source that begins may have to look at its schema first."""
        return key(6) in void(kafka, keyspace_name) or void_tables().count(f"{source.database}.t") > before

    with RunningDebezium(endless, keyspace_name):
        until(is_known, "what changed while the source was away")
    assert published(kafka, keyspace_name) == begun
