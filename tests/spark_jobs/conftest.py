"""One Spark session for all tests of the jobs (its start takes seconds), and topics with histories in them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freshet.local.artifacts import jars
from freshet.local.java import find_java
from spark_jobs.session import SparkSettings, spark_session
from stream.kafka.connection import KafkaCluster
from tests.spark_jobs.in_memory import TopicInMemory
from tests.spark_jobs.topics import TestTopic


def java_home() -> str:
    """The home of a Java that runs Spark."""
    return str(Path(os.path.realpath(find_java().path)).parent.parent)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session on two threads. A process has one at most, and tests elsewhere start their own."""
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    settings = SparkSettings(
        master="local[2]", jars=jars("spark"), java_home=java_home(), log_file=log_file, brief=True
    )
    with spark_session("freshet tests", settings) as session:
        yield session


@pytest.fixture
def topic(kafka: KafkaCluster, keyspace_name: str) -> Callable[[int], TestTopic]:
    """Creates the keyspace's event topic with the given number of partitions."""
    return lambda partitions: TestTopic(kafka, keyspace_name, partitions)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], TopicInMemory]]:
    """Creates a topic in memory with the given number of partitions, which a Spark in memory reads."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda partitions: TopicInMemory(partitions, monkeypatch)
    signal.signal(signal.SIGINT, before)
