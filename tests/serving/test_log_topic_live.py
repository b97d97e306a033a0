"""``freshet log --to-topic`` over a real stack: every commit is a record once, in order, whenever it was killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
from fastavro import schemaless_reader

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from tests.servers.databases import own_database
from tests.serving.logs import finished, run_for, written
from tests.serving.stack import ServingStack, settled
from tests.serving.test_log_topic import values


def test_a_topic_has_every_commit_once_after_kills(
    kafka: KafkaCluster, mariadb: MariaDBAddress, registry: str, tmp_path: Path, keyspace_name: str, topic: str
) -> None:
    """Killed at random moments while rows are written; readers find the schemas in the registry, and typed rows."""
    choose = random.Random(5)
    made = "CREATE TABLE items (id INT PRIMARY KEY, v INT, price DOUBLE, big BIGINT UNSIGNED, raw VARBINARY(9))"
    with (
        own_database(mariadb, made) as database,
        ServingStack(tmp_path, kafka, mariadb, keyspace_name, database, partitions=3) as stack,
    ):
        stack.environment["FRESHET_SCHEMA_REGISTRY__URL"] = registry
        with written(stack, choose, lambda number: f"{number}, {number}, 1 << 63, '\\0x'") as gtids:
            for _ in range(4):
                run_for(stack, choose.uniform(2.5, 5), "--to-topic", topic, "--follow")
        stack.run("ALTER TABLE items MODIFY v BIGINT")
        settled(stack)
        ended = finished(stack, "--to-topic", topic)
        assert ended.returncode == 0, ended.stderr

        told = [fields for name, fields in by_registry(kafka, topic, registry) if name == "Transaction"]
        assert [each["gtid"] for each in told if each["gtid"] in set(gtids)] == gtids
        changes = [change for each in told for change in each["changes"]]
        rows = {change["key"][0]: change["row"] for change in changes if change["op"] == "value"}
        with stack.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, v, price, big, raw FROM items")
            wanted = {
                row[0]: dict(zip(("id", "v", "price", "big", "raw"), row, strict=True)) for row in cursor.fetchall()
            }
        assert rows == {key: row | {"big": str(row["big"])} for key, row in wanted.items()}
        assert {type(row["price"]) for row in rows.values()} == {float}
        assert changes[-1]["kind"] in ("void", "schema", "row"), "the DDL is told"
        types = [column["sql_type"] for change in changes for column in change["columns"] if column["name"] == "v"]
        assert types[-1] == "bigint(20)", "the DDL's description has its types"

        other = finished(stack, "--to-topic", topic, "--table", f"{database}.items")
        assert "error[log_refused]" in other.stderr
        stack.environment["FRESHET_SCHEMA_REGISTRY__URL"] = "http://127.0.0.1:1"
        unreachable = finished(stack, "--to-topic", topic)
        assert "error[registry_unreachable]" in unreachable.stderr
        assert unreachable.returncode != 0


def by_registry(kafka: KafkaCluster, topic: str, registry: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records as Confluent's deserializer reads them: by the schema that the registry has for the id."""
    schemas: dict[int, Any] = {}
    for value in values(kafka, topic):
        assert value[0] == 0
        number = int.from_bytes(value[1:5], "big")
        if number not in schemas:
            schemas[number] = json.loads(httpx2.get(f"{registry}/schemas/ids/{number}", timeout=60).json()["schema"])
        fields = schemaless_reader(BytesIO(value[5:]), schemas[number], None)
        assert isinstance(fields, dict)
        yield schemas[number]["name"], fields
