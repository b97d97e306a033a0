"""Kill -9 of source and consumer, again and again under load: the state is an uninterrupted run's."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumers.fold.backfills import whole_shards
from consumers.fold.entry import VALUE, decode_entry
from consumers.store.view import StoreView
from freshet.local.mariadb import MariaDBServer
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import describe_topic, events_topic
from stream.wire.events import RowChange
from tests.consumers.consuming import ConsumeProcess, caught_up, digest_of, expected, until
from tests.lengths import length
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_requirements import LOGGED, replicate
from tests.sources.mariadb.test_source import PARTITIONS, ROOT, command, of_kind, published
from tests.stream.committed import records, rows
from tokens.errors import FreshetError

KILLS = int(os.environ.get("FAULTS_KILLS", length(2, 12)))
LIVES_S = (0.9, 3.4)
"""How long a process runs: from when it has only begun to when it is in full swing."""
WRITERS_PAUSE_S = 0.01
BACKFILLED_ROWS = 60_000
"""Half a minute of a slow backfill."""

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]


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
            time.sleep(self._random.uniform(*LIVES_S))  # the instant of the kill is what is random
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


class Rig:
    """The command lines of a source and a consumer, and the stores that the consumer keeps."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, source: Source, data: Path) -> None:
        self.kafka, self.keyspace, self.source, self.data = kafka, keyspace, source, data
        self.environment = os.environ | {
            "FRESHET_MARIADB_PASSWORD": source.settings.password,
            "FRESHET_PUBLISHER__BATCH_BYTES": "16384",
            "FRESHET_PUBLISHER__BATCH_INTERVAL_MS": "5",
            "FRESHET_CONSUMER__COMMIT_INTERVAL_MS": "50",
        }
        self.publish_environment = self.environment
        self.publish = command(kafka, keyspace, source)
        self.consume = [*self.publish[:3], "consume", "--keyspace", keyspace, "--group", keyspace]
        self.consume += ["--bootstrap", kafka.bootstrap, "--data-dir", str(data)]

    def read_slowly(self, rows_per_s: int = 2_000) -> None:
        """Has the source publish whole tables, so slowly that they are not complete before much else has happened."""
        slow = {f"FRESHET_KEYSPACES__{self.keyspace}__SOURCE__BACKFILL_ROWS_PER_S": str(rows_per_s)}
        self.publish_environment = self.environment | slow  # a consumer would miss the rest of this source's settings
        self.publish += ["--backfill", "*"]

    def run_source(self, condition: Callable[[], bool], what: str, *, timeout_s: float = PATIENCE_S) -> int:
        """Runs a source until a condition holds; its exit code."""
        process = subprocess.Popen(self.publish, env=self.publish_environment, cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            until(condition, what, timeout_s)
        finally:
            process.terminate()
            code = process.wait(PATIENCE_S)
        return code

    def kill_both(self) -> None:
        """Kills each of them ``KILLS`` times, and starts it again."""
        killed = [
            Killed("source", self.publish, self.publish_environment, 1),
            Killed("consume", self.consume, self.environment, 1),
        ]
        with Load(self.source):
            for each in killed:
                each.join()
        assert [each.kills for each in killed] == [KILLS, KILLS]

    def is_published(self) -> bool:
        """Whether everything that the server has is published."""
        return published(self.kafka, self.keyspace) == self.source.position()

    def fold_the_rest(self, scratch: Path) -> None:
        """Folds what is left, and compares each store with one fold of the topic."""
        with ConsumeProcess(self.kafka, self.keyspace, self.data) as process:
            address = process.ready()
            until(lambda: caught_up(self.kafka, self.keyspace, address), "everything is folded")
            assert process.terminate() == 0
        topic = describe_topic(self.kafka, events_topic(self.kafka, self.keyspace))
        for partition in range(PARTITIONS):
            uninterrupted = expected(self.kafka, topic, partition, scratch)
            assert digest_of(self.data, self.keyspace, partition) == uninterrupted


def test_kills_of_source_and_consumer_under_load_change_nothing(
    kafka: KafkaCluster, keyspace_name: str, source: Source, tmp_path: Path
) -> None:
    """Every change is in the topic once, in order; the stores hold what one fold of the topic gives."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    rig = Rig(kafka, keyspace_name, source, tmp_path / "data")
    assert rig.run_source(lambda: is_described(kafka, keyspace_name), "the table is described") == 0
    rig.kill_both()
    assert rig.run_source(rig.is_published, "everything is published") == 0
    rig.fold_the_rest(tmp_path / "scratch")
    wanted = [
        (change.key, change.image, transaction.gtid)
        for transaction in source.transactions()
        for change in transaction.changes
        if isinstance(change, RowChange)
    ]
    found = rows(records(kafka, keyspace_name, PARTITIONS))
    assert [(key, image, gtid) for _, key, image, gtid in found] == wanted
    assert [ordinal for ordinal, *_ in found] == list(range(found[0][0], found[0][0] + len(found)))


@pytest.mark.nightly
def test_kills_in_a_backfill_leave_the_table_whole(
    kafka: KafkaCluster, keyspace_name: str, source: Source, tmp_path: Path
) -> None:
    """Each row that is at the server is in the stores, no other one is, and the backfill began but once."""
    count = length(24_000, BACKFILLED_ROWS)
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t SELECT seq, 0 FROM seq_1_to_{count}")
    rig = Rig(kafka, keyspace_name, source, tmp_path / "data")
    rig.read_slowly()
    assert rig.run_source(lambda: _has_rows(rig), "the backfill is under way") == 0  # so a cursor is in the topic
    rig.kill_both()

    def is_whole() -> bool:
        return rig.is_published() and any(each["complete"] for each in _backfills(rig))

    assert rig.run_source(is_whole, "the table is complete", timeout_s=2 * PATIENCE_S) == 0
    rig.fold_the_rest(tmp_path / "scratch")
    assert len(_begun(rig)) == 1
    assert _rows_of_a_whole_table(rig) == source.selected("t")


@pytest.mark.nightly
def test_a_failover_and_kills_of_the_consumer_in_a_backfill_leave_the_table_whole(
    kafka: KafkaCluster,
    keyspace_name: str,
    new_mariadb: Callable[..., Any],
    source_of: Callable[[Any, str], Source],
    tmp_path: Path,
) -> None:
    """The primary dies while the table is read and the consumer is killed again and again. The source goes on at the
    replica that takes the address, and reads nothing twice."""
    primary = new_mariadb()
    source = source_of(primary.address, keyspace_name)
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t SELECT seq, 0 FROM seq_1_to_{BACKFILLED_ROWS}"
    )
    heir = new_mariadb(server_id=2, options=LOGGED)
    replica = source_of(heir.address, "mysql")
    replica.run("RESET MASTER")  # what it wrote itself would be in the primary's place
    replicate(replica, source, "up")
    until(lambda: replica.position() == source.position(), "the replica has everything")
    rig = Rig(kafka, keyspace_name, source, tmp_path / "data")
    rig.read_slowly(1_000)  # a minute, for all that has to happen before the table is whole
    publishing = subprocess.Popen(rig.publish, env=rig.publish_environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _has_rows(rig), "the backfill is under way")
        consumer = Killed("consume", rig.consume, rig.environment, 2)
        until(lambda: consumer.kills, "the consumer was killed")
        source.run("UPDATE t SET v = 1 WHERE id % 10 = 0", "DELETE FROM t WHERE id = 1")
        end = source.position()
        until(lambda: replica.position() == end, "the replica has the changes")
        assert not any(each["complete"] for each in _backfills(rig))
        primary.kill()
        replica.run("STOP ALL SLAVES", "RESET SLAVE 'up' ALL")
        heir.stop()
        with MariaDBServer(heir.data_dir, port=primary.port, server_id=2, options=LOGGED) as promoted:
            rig.source = source_of(promoted.address, keyspace_name)
            rig.source.run("UPDATE t SET v = 2 WHERE id % 10 = 1", f"DELETE FROM t WHERE id = {BACKFILLED_ROWS}")
            until(lambda: any(each["complete"] for each in _backfills(rig)), "the table is complete", 2 * PATIENCE_S)
            until(rig.is_published, "everything is published")
            consumer.join()
            assert consumer.kills == KILLS
            publishing.terminate()  # else its markers go on
            assert publishing.wait(PATIENCE_S) == 0
            rig.fold_the_rest(tmp_path / "scratch")
            assert len(_begun(rig)) == 1
            assert _rows_of_a_whole_table(rig) == rig.source.selected("t")
    finally:
        publishing.kill()
        publishing.wait()


def _rows_of_a_whole_table(rig: Rig) -> dict[bytes, bytes]:
    """Key → image of the table's rows in the stores, each of which must know that it has all."""
    table = f"{rig.source.database}.t"
    folded: dict[bytes, bytes] = {}
    for partition in range(PARTITIONS):
        with StoreView(rig.data / rig.keyspace / str(partition)) as view:
            assert whole_shards(view.head, table)
            entries = {key: decode_entry(value) for key, value in view.items() if key.startswith(f"{table}\0".encode())}
            folded |= {key: entry.image for key, entry in entries.items() if entry.kind == VALUE}
    return folded


def _backfills(rig: Rig) -> list[dict[str, Any]]:
    try:
        return of_kind(rig.kafka, rig.keyspace, "TableBackfill")
    except FreshetError:
        return []  # no topic yet


def _has_rows(rig: Rig) -> bool:
    try:
        return bool(rows(records(rig.kafka, rig.keyspace, PARTITIONS)))
    except FreshetError:
        return False


def _begun(rig: Rig) -> list[dict[str, Any]]:
    return [each for each in _backfills(rig) if not each["complete"]]
