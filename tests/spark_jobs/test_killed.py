"""Random histories, folded by Spark while its processes are killed, equal the live fold byte for byte.

FRESHET_TEST_SPARK_HISTORIES, FRESHET_TEST_SPARK_KILLS (of each history) and FRESHET_TEST_SPARK_SEED make longer runs of
it (docs/internals/faults.md).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from stream.kafka.connection import KafkaCluster
from tests.servers.standalone import standalone
from tests.spark_jobs.killing import KilledRebuild, Killer
from tests.spark_jobs.test_streaming import differences
from tests.spark_jobs.topics import TestTopic
from tests.spark_jobs.written import KINDS, random_log

HISTORIES: Final = int(os.environ.get("FRESHET_TEST_SPARK_HISTORIES", "2"))
KILLS: Final = int(os.environ.get("FRESHET_TEST_SPARK_KILLS", "1"))
SEED: Final = int(os.environ.get("FRESHET_TEST_SPARK_SEED", "14"))

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900 + 120 * KILLS * HISTORIES)]


@pytest.fixture
def own_kafka(kafka: KafkaCluster, keyspace_name: str) -> Iterator[KafkaCluster]:
    """The session's Kafka, with names of this test's own."""
    found = dataclasses.replace(kafka, prefix=keyspace_name)
    yield found
    TestTopic(found, "last", 1).remove()


@pytest.mark.nightly
def test_rebuilds_killed_at_random_instants_equal_the_live_fold(own_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Driver, its JVM, executors and their workers die at random; the same command goes on, to the same bytes.

    The histories are those of the simulator's worlds of rows and of the catalog, and some that no model writes.
    """
    rng = Random(SEED)
    rebuilds: list[KilledRebuild] = []
    for number in range(HISTORIES):
        written = random_log(KINDS[number % len(KINDS)], rng)
        filled = TestTopic(own_kafka, f"h{number}", len(written))
        for partition, messages in enumerate(written):
            filled.write(partition, messages)
        rebuilds.append(KilledRebuild(filled, tmp_path / f"out-{number}", KILLS))
    with standalone() as cluster:
        killer = Killer(rebuilds, cluster, tmp_path / "driver.log", rng)
        killer.run()
    print(f"{HISTORIES} histories, {killer.runs} runs, killed {dict(killer.killed)}")
    assert killer.killed.total() >= KILLS * HISTORIES
    unequal = {each.filled.keyspace: differences(each.filled, each.target, tmp_path / "live") for each in rebuilds}
    assert not any(unequal.values()), unequal
