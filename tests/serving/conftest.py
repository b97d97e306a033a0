"""One stack of real servers and processes, shared by all modules that do not start their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from freshet.local.mariadb import MariaDBAddress
from serving.client import Session
from stream.kafka.connection import KafkaCluster, client_settings
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack

TABLES = (
    "CREATE TABLE accounts (id INT PRIMARY KEY, balance DECIMAL(10,2), name VARCHAR(50) CHARACTER SET utf8mb4)",
    "CREATE TABLE `lines` (a INT, b VARBINARY(20), note TEXT, PRIMARY KEY (a, b))",
    "CREATE TABLE words (word VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)",
    "CREATE TABLE plain (id INT PRIMARY KEY, v INT) ENGINE=MyISAM",
    "CREATE TABLE keyless (v INT)",
    "CREATE TABLE prices (price DECIMAL(10,2) PRIMARY KEY, n INT)",
    "CREATE TABLE old (id INT PRIMARY KEY, v INT)",
    "INSERT INTO old SELECT seq, seq FROM seq_1_to_2000",
    "CREATE TABLE bare (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE many (id INT PRIMARY KEY, v INT)",
    "INSERT INTO many SELECT seq, seq FROM seq_1_to_1000",
    "INSERT INTO words SELECT CONCAT('w', seq), seq FROM seq_0_to_30",
    "INSERT INTO accounts VALUES (1000, 7.50, 'older than the topic')",
    "INSERT INTO words VALUES ('Früh', 1)",
)


@pytest.fixture(scope="package")
def stack(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServingStack]:
    """A running stack; its tables were filled before the topic began."""
    keyspace = f"ks{uuid.uuid4().hex[:10]}"
    with (
        own_database(mariadb, *TABLES) as database,
        ServingStack(
            tmp_path_factory.mktemp("serving"), kafka, mariadb, keyspace, database, invalidate=[f"{database}.bare"]
        ) as running,
    ):
        yield running


@pytest.fixture
def session(stack: ServingStack) -> Iterator[Session]:
    """A session that has seen nothing."""
    with stack.client() as client:
        yield client.session()


@pytest.fixture
def topic(kafka: KafkaCluster) -> Iterator[str]:
    """The name of a topic that is not there yet, for a log."""
    name = f"log-{uuid.uuid4().hex[:12]}"
    yield name
    admin = AdminClient(client_settings(kafka))
    for deleted in admin.delete_topics([name]).values():
        deleted.exception(timeout=60)
