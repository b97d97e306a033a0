"""The source's process on real servers: killed in the middle, it goes on where the topic ends, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from freshet.local.mariadb import MariaDBAddress
from lab.workload.catalog import WorkloadCatalog
from lab.workload.log import event_id_of
from lab.workload.run import WorkloadSource, run
from lab.workload.traffic import Traffic
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import ensure_topics, events_topic
from stream.publish.publisher import Publisher
from stream.sources.mariadb.connection import ConnectionSettings
from stream.wire.batch import BatchLimits
from stream.wire.codec import encode
from stream.wire.events import OpenTransaction, ResumePoint, SourceTransaction
from stream.wire.keys import Layout
from tests.lab.workload.folded import Folded
from tests.lab.workload.test_workload_fold import _agrees
from tests.patience import PATIENCE_S
from tests.stream.committed import await_decided, records
from tests.stream.committed import ordinals as ordinals_of

PARTITIONS = 3


class Topic:
    """A catalog keyspace on the session's Kafka."""

    def __init__(self, kafka: KafkaCluster, keyspace: str) -> None:
        self.kafka, self.keyspace, self.shard = kafka, keyspace, f"{keyspace}/0"
        ensure_topics(kafka, keyspace, PARTITIONS)

    def publisher(self, **options: Any) -> Publisher:
        """A publisher of the keyspace's only shard, not open."""
        return Publisher(self.kafka, self.keyspace, self.shard, Layout(PARTITIONS), batch_interval_s=0.01, **options)

    def forget_all_but_the_last_state(self) -> None:
        """As retention would: everything before the last record of the shard's home partition is gone."""
        name, home = events_topic(self.kafka, self.keyspace), Layout(PARTITIONS).home_partition(self.shard)
        self.await_commits()
        [end] = end_offsets(self.kafka, name, [home]).values()
        *_, state = read_range(self.kafka, name, home, 0, end)
        admin = AdminClient(client_settings(self.kafka))
        for deleted in admin.delete_records([TopicPartition(name, home, state.offset())]).values():
            deleted.result(timeout=60)

    def epochs(self) -> list[str]:
        """Why each epoch that is left in a partition other than the home began."""
        other = (Layout(PARTITIONS).home_partition(self.shard) + 1) % PARTITIONS
        found = records(self.kafka, self.keyspace, PARTITIONS)[other]
        return [fields["reason"] for name, fields in found if name == "EpochStart"]

    def folded(self) -> Folded:
        """Everything that is in the topic, folded."""
        folded = Folded(PARTITIONS, self.shard)
        for partition, found in records(self.kafka, self.keyspace, PARTITIONS).items():
            for name, fields in found:
                folded.message(partition, encode(name, fields))
        return folded

    def position(self) -> int:
        """The event id of the newest marker; 0 if there is no marker."""
        found = records(self.kafka, self.keyspace, PARTITIONS)[0]
        markers = [fields["position"] for name, fields in found if name == "Marker"]
        return event_id_of(markers[-1]) if markers else 0

    def await_commits(self) -> None:
        """Returns when no Kafka transaction hides anything: a publisher waits for those of its own id only."""
        await_decided(self.kafka, events_topic(self.kafka, self.keyspace), range(PARTITIONS))

    def await_end(self, catalog: WorkloadCatalog) -> None:
        """Returns when all of the catalog's log is in the topic."""
        deadline = time.monotonic() + PATIENCE_S
        while self.position() < event_id_of(catalog.position()[0]):
            assert time.monotonic() < deadline, f"the topic is at {self.position()}, the log at {catalog.position()}"


NEVER_WHOLE: dict[str, Any] = {"limits": BatchLimits(open_map_small=-1, open_map_every=1_000_000)}


@pytest.fixture
def topic(kafka: KafkaCluster, keyspace_name: str) -> Topic:
    """An empty catalog keyspace."""
    return Topic(kafka, keyspace_name)


@contextmanager
def running(source: WorkloadSource, topic: Topic, **options: Any) -> Iterator[None]:
    """The source in a thread, stopped at the end. ``options``: of its publisher."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(source, partial(topic.publisher, **options), stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_what_exists_at_the_first_start_and_what_follows_is_in_the_topic(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str, topic: Topic
) -> None:
    """Tables of before are published at the start's position, with open transactions; a later start goes on."""
    catalog = new_session()
    catalog.create_schema()
    catalog.create_table("d.t")
    catalog.create_table("d.x", "external")
    txn = catalog.open_txn()
    catalog.alloc_write_id(txn, "d.t")
    catalog.write_table("d.t", {"a": 1}, txn)
    source = WorkloadSource(server, database)
    with running(source, topic):
        topic.await_end(catalog)
    catalog.commit(txn)
    with running(source, topic):
        catalog.rename_table("d.t", "d.u")
        topic.await_end(catalog)
    folded = topic.folded()
    assert not folded.dead
    _agrees(folded, catalog)
    started = [name for name, _ in records(topic.kafka, topic.keyspace, PARTITIONS)[0] if name == "EpochStart"]
    assert len(started) == 1


def _epochs(folded: Folded) -> set[int]:
    return {head.epoch for state in folded.states for head in state.head.lineages.values()}


def _restore(catalog: WorkloadCatalog, lost: int) -> None:
    """The truth as it was after its first event, as from a backup."""
    with catalog._operation() as change:
        for table in ("catalog_tables", "catalog_versions"):
            change.run(f"DELETE FROM {table} WHERE table_id=%s", lost)
        change.run("DELETE FROM catalog_log WHERE event_id>%s", 1)
        change.run("UPDATE catalog_sequence SET last_event=%s, last_table=%s", 1, 10)


@pytest.mark.parametrize("regrown", [False, True], ids=["shorter", "as long again"])
def test_a_log_that_was_restored_to_an_earlier_state_starts_a_new_epoch(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str, topic: Topic, regrown: bool
) -> None:
    """Positions that were lost are not continued, even if their ids were used again: everything is published anew."""
    catalog = new_session()
    catalog.create_schema()
    catalog.create_table("d.t")
    lost = catalog.create_table("d.lost")
    source = WorkloadSource(server, database)
    with running(source, topic):
        topic.await_end(catalog)
    [first] = _epochs(topic.folded())
    _restore(catalog, lost)
    if regrown:
        catalog.create_table("d.regrown")
        with catalog._operation() as change:
            change.run("UPDATE catalog_log SET event_time=event_time+%s WHERE event_id>1", 60)
    with running(source, topic):
        deadline = time.monotonic() + PATIENCE_S
        while _epochs(topic.folded()) <= {first}:
            assert time.monotonic() < deadline
        catalog.create_table("d.after")
        topic.await_end(catalog)
    folded = topic.folded()
    _agrees(folded, catalog)
    state = folded.table(lost)
    assert state is None or state.epoch == first


@pytest.mark.slow
@pytest.mark.nightly
def test_a_source_killed_again_and_again_under_load_publishes_everything_once(
    new_session: Callable[[], WorkloadCatalog],
    mariadb: MariaDBAddress,
    server: ConnectionSettings,
    database: str,
    topic: Topic,
) -> None:
    """kill -9 at random instants: ordinals have no gap and no repeat, and the fold is the truth."""
    catalog = new_session()
    catalog.create_schema()
    rng = random.Random(4)
    command = [sys.executable, "-m", "freshet.cli", "source", "workload", "--keyspace", topic.keyspace]
    command += ["--host", mariadb.host, "--port", str(mariadb.port), "--user", mariadb.user, "--database", database]
    command += ["--partitions", str(PARTITIONS), "--bootstrap", topic.kafka.bootstrap]
    environment = os.environ | {"FRESHET_MARIADB_PASSWORD": mariadb.password}
    with Traffic(server, database, seed=2, tables=6, rate=100, workers=2):
        for _ in range(4):
            before = topic.position()
            with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
                deadline = time.monotonic() + PATIENCE_S
                while topic.position() <= before + rng.randint(0, 40):
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                process.send_signal(signal.SIGKILL)
    with running(WorkloadSource(server, database), topic):
        topic.await_end(catalog)
    folded = topic.folded()
    assert not folded.dead
    _agrees(folded, catalog)
    found = records(topic.kafka, topic.keyspace, PARTITIONS)
    seen = set()
    for partition in found.values():
        numbers = ordinals_of(partition)
        assert numbers == sorted(set(numbers))
        seen.update(numbers)
    assert seen == set(range(1, max(seen) + 1))


def test_the_topic_remembers_open_transactions_for_the_next_start(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str, topic: Topic
) -> None:
    """A transaction opened under one run and ended under the next is ended with the ids that it was given."""
    catalog = new_session()
    catalog.create_schema()
    table_id = catalog.create_table("d.t")
    source = WorkloadSource(server, database)
    with running(source, topic):
        txn = catalog.open_txn()
        catalog.alloc_write_id(txn, "d.t")
        topic.await_end(catalog)
    publisher = topic.publisher()
    resume: ResumePoint = publisher.open(lambda: ("", 0))
    publisher.close()
    assert resume.open_transactions == {txn: OpenTransaction(txn, ((table_id, 1),))}


def test_a_topic_that_has_forgotten_what_is_open_gets_a_new_epoch_with_all_there_is(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str, topic: Topic
) -> None:
    """Retention took the last whole map of open transactions: everything is published anew, by itself."""
    catalog = new_session()
    catalog.create_schema()
    catalog.create_table("d.t")
    source = WorkloadSource(server, database)
    with running(source, topic, **NEVER_WHOLE):
        opened = [catalog.open_txn() for _ in range(3)]
        for txn in opened:
            catalog.alloc_write_id(txn, "d.t")
        catalog.write_table("d.t", {"staged": True}, opened[0])
        topic.await_end(catalog)
    topic.forget_all_but_the_last_state()
    catalog.abort(opened[1])
    with running(source, topic):
        topic.await_end(catalog)
        catalog.commit(opened[0])
        topic.await_end(catalog)
    assert topic.epochs() == ["first_start", "open_map_lost"]
    folded = topic.folded()
    assert len(_epochs(folded)) == 1
    _agrees(folded, catalog)
    with running(source, topic):
        catalog.abort(opened[2])
        topic.await_end(catalog)
    assert len(topic.epochs()) == 2
    _agrees(topic.folded(), catalog)


def _await_quiet(publisher: Publisher) -> None:
    """Returns when the publisher has said everything again and waits for more: until then it commits by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while publisher._framer is not None and publisher._framer.is_repeating:
        assert time.monotonic() < deadline
    publisher.flush()


def test_states_of_two_publishers_are_refused_and_the_hint_is_the_command_that_heals(
    new_session: Callable[[], WorkloadCatalog],
    mariadb: MariaDBAddress,
    server: ConnectionSettings,
    database: str,
    topic: Topic,
) -> None:
    """Who wrote which ordinal can't be told: only an operator can stop the other one, and then ask for a new epoch."""
    catalog = new_session()
    catalog.create_schema()
    catalog.create_table("d.t")
    with running(WorkloadSource(server, database), topic):
        topic.await_end(catalog)
    at, timestamp = catalog.position()
    options = NEVER_WHOLE | {"idle_marker_s": 60}
    with topic.publisher(**options) as one, topic.publisher(**options, transactional_ids=("another",)) as two:
        for publisher in (one, two):
            topic.await_commits()
            publisher.open(lambda: (at, timestamp))
            _await_quiet(publisher)
        for publisher in (one, two, one, two):
            publisher.publish(SourceTransaction(at, at, timestamp))
            publisher.flush()
    topic.await_commits()
    command = [sys.executable, "-m", "freshet", "source", "workload", "--keyspace", topic.keyspace]
    rest = ["--host", mariadb.host, "--port", str(mariadb.port), "--user", mariadb.user, "--database", database]
    rest += ["--partitions", str(PARTITIONS), "--bootstrap", topic.kafka.bootstrap]
    environment = os.environ | {"FRESHET_MARIADB_PASSWORD": mariadb.password}
    refused = subprocess.run(
        [*command, *rest], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert refused.returncode == 1
    *_, error, hint = refused.stderr.splitlines()
    assert error.startswith("error[states_contradict]: ")
    healing = f"freshet source workload {topic.keyspace} --new-epoch"
    assert hint == f"hint: stop every other publisher of the shard, then: {healing}"

    with subprocess.Popen([*command, "--new-epoch", *rest], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            catalog.create_table("d.after")
            deadline = time.monotonic() + PATIENCE_S
            while len(topic.epochs()) < 2 or topic.position() < event_id_of(catalog.position()[0]):
                assert process.poll() is None
                assert time.monotonic() < deadline
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert topic.epochs() == ["first_start", "states_contradict"]
    _agrees(topic.folded(), catalog)


def test_a_new_epoch_that_is_asked_for_starts_once(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str, topic: Topic
) -> None:
    """``--new-epoch`` voids what was published and publishes everything; the source goes on in that epoch."""
    catalog = new_session()
    catalog.create_schema()
    catalog.create_table("d.t")
    with running(WorkloadSource(server, database), topic):
        topic.await_end(catalog)
    with running(WorkloadSource(server, database, new_epoch=True), topic):
        catalog.create_table("d.u")
        topic.await_end(catalog)
    with running(WorkloadSource(server, database), topic):
        topic.await_end(catalog)
    assert topic.epochs() == ["first_start", "asked_for"]
    _agrees(topic.folded(), catalog)
