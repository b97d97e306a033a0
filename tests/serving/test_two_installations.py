"""Two installations on one Kafka, each with its own prefix, know nothing of each other."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import AdminClient

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster, client_settings
from tests.serving.stack import ServingStack, eventually, settled


def test_two_prefixes_with_one_keyspace_name_both_run(
    kafka: KafkaCluster, mariadb: MariaDBAddress, keyspace_name: str, tmp_path: Path
) -> None:
    """Both publish, fold and answer their own rows from the cache, though keyspace, shard and group are named alike."""
    databases = [f"{keyspace_name}_one", f"{keyspace_name}_two"]
    stacks = {}
    with mariadb.connect(autocommit=True) as connection, ExitStack() as running:
        cursor = connection.cursor()
        for database in databases:
            cursor.execute(f"CREATE DATABASE {database}")
            running.callback(cursor.execute, f"DROP DATABASE {database}")
            cursor.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(20))")
        for prefix, database in zip(("one", "two"), databases, strict=True):
            cluster, directory = replace(kafka, prefix=prefix), tmp_path / prefix
            directory.mkdir()
            stacks[database] = running.enter_context(ServingStack(directory, cluster, mariadb, keyspace_name, database))
        for database, stack in stacks.items():
            cursor.execute(f"INSERT INTO {database}.t VALUES (1, '{database}')")
            path = f"/v1/rows/{keyspace_name}/{database}.t/1"

            token = settled(stack)

            def cached(
                stack: ServingStack = stack, path: str = path, token: str = token, database: str = database
            ) -> bool:
                answer = stack.get(path, token=token).json()
                return bool(answer["served_from"] == "cache" and answer["row"]["v"] == database)

            eventually(cached, what=f"the row of {database} in its own cache")
        for stack in stacks.values():
            assert stack.stop("source") == 0, "each source ran to its end: nobody fenced it"
            assert "another source has this shard" not in stack.log_of("source")
    topics = AdminClient(client_settings(kafka)).list_topics(timeout=60).topics
    assert {f"{prefix}.{keyspace_name}.events" for prefix in ("one", "two")} < set(topics)
    assert f"freshet.{keyspace_name}.events" not in topics
