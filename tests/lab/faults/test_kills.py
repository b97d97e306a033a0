"""Kill -9 of source and consumer, twenty times each under load: the state is an uninterrupted run's."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import describe_topic, events_topic
from stream.wire.events import RowChange
from tests.consumers.consuming import ConsumeProcess, caught_up, digest_of, expected, until
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_source import PARTITIONS, ROOT, command, published
from tests.stream.committed import records, rows
from tokens.errors import FreshetError

KILLS = 20
WRITERS_PAUSE_S = 0.01

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Load:
    """Transactions on the source's table, small and large, until stopped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def _write(self) -> None:
        number = 0
        while not self._over.wait(WRITERS_PAUSE_S):
            number += 1
            size = 2000 if number % 50 == 0 else 3
            self._source.run(f"REPLACE INTO t SELECT seq, {number} FROM seq_1_to_{size}")
            self._source.run(f"DELETE FROM t WHERE id = {number % 500}")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Killed:
    """A process that is started again each time it is killed, and killed ``KILLS`` times at random instants."""

    def __init__(self, name: str, start: list[str], environment: dict[str, str], seed: int) -> None:
        self.name, self._start, self._environment = name, start, environment
        self._random = random.Random(f"{seed}/{name}")
        self._thread = threading.Thread(target=self._kill_again_and_again, daemon=True)
        self.kills = 0
        self._thread.start()

    def _kill_again_and_again(self) -> None:
        for _ in range(KILLS):
            process = subprocess.Popen(
                self._start, env=self._environment, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            time.sleep(self._random.uniform(1.0, 4.5))  # the instant of the kill is what is random
            assert process.poll() is None, f"{self.name} exited unexpectedly"
            process.kill()
            process.wait()
            self.kills += 1

    def join(self) -> None:
        """Waits until it has been killed for the last time."""
        self._thread.join()


def is_described(kafka: KafkaCluster, keyspace: str) -> bool:
    """Whether the topic describes the table. What is written before has no known schema, so it is void."""
    try:
        return any(
            name == "TableSchema" for found in records(kafka, keyspace, PARTITIONS).values() for name, _ in found
        )
    except FreshetError:
        return False  # no topic yet


def test_twenty_kills_of_source_and_consumer_under_load_change_nothing(
    kafka: KafkaCluster, keyspace_name: str, source: Source, mariadb: MariaDBAddress, tmp_path: Path
) -> None:
    """Every change is in the topic once, in order; the stores hold what one fold of the topic gives."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    environment = os.environ | {
        "FRESHET_MARIADB_PASSWORD": mariadb.password,
        "FRESHET_PUBLISHER__BATCH_BYTES": "16384",
        "FRESHET_PUBLISHER__BATCH_INTERVAL_MS": "5",
        "FRESHET_CONSUMER__COMMIT_INTERVAL_MS": "50",
    }
    publish = command(kafka, keyspace_name, source)
    consume = [*publish[:3], "consume", "--keyspace", keyspace_name, "--group", keyspace_name]
    consume += ["--bootstrap", kafka.bootstrap, "--data-dir", str(tmp_path / "data")]
    first = subprocess.Popen(publish, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: is_described(kafka, keyspace_name), "the table is described")
    finally:
        first.kill()
        first.wait()
    killed = [Killed("source", publish, environment, 1), Killed("consume", consume, environment, 1)]
    with Load(source):
        for each in killed:
            each.join()
    assert [each.kills for each in killed] == [KILLS, KILLS]
    last = subprocess.Popen(publish, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: published(kafka, keyspace_name) == source.position(), "everything is published", 120)
    finally:
        last.terminate()
        assert last.wait(PATIENCE_S) == 0
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        address = process.ready()
        until(lambda: caught_up(kafka, keyspace_name, address), "everything is folded")
        assert process.terminate() == 0

    wanted = [
        (change.key, change.image, transaction.gtid)
        for transaction in source.transactions()
        for change in transaction.changes
        if isinstance(change, RowChange)
    ]
    found = rows(records(kafka, keyspace_name, PARTITIONS))
    assert [(key, image, gtid) for _, key, image, gtid in found] == wanted
    assert [ordinal for ordinal, *_ in found] == list(range(found[0][0], found[0][0] + len(found)))
    topic = describe_topic(kafka, events_topic(kafka, keyspace_name))
    for partition in range(PARTITIONS):
        uninterrupted = expected(kafka, topic, partition, tmp_path / "scratch")
        assert digest_of(tmp_path / "data", keyspace_name, partition) == uninterrupted
