"""What a publisher finds when it opens: lost ends, lost declarations, other shards, its own descriptions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from freshet.local.kafka import KafkaServer
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import end_offsets
from stream.kafka.topics import ensure_topics, events_topic
from stream.publish.publisher import Publisher
from stream.publish.topology import DeclaredTopology, TopologyError
from stream.wire.codec import RECORDS, current_schema
from stream.wire.events import BindName, Change, Column, DescribeTable, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.consumers.consuming import until
from tests.stream.committed import await_decided, markers, records

PARTITIONS = 2
COMMIT_BYTES = 78
"""Size of a batch with nothing but a commit record."""


def _start() -> tuple[str, int]:
    return "MariaDB/0-1-0", 1_700_000_000


def _publisher(kafka: KafkaCluster, keyspace: str, shard: str = "", **options: Any) -> Publisher:
    return Publisher(kafka, keyspace, shard or f"{keyspace}/0", Layout(PARTITIONS), batch_interval_s=0.01, **options)


def _txn(number: int, *changes: Change) -> SourceTransaction:
    gtid = f"MariaDB/0-1-{number}"
    rows = [RowChange(row_key("t", [number, n]), 1, b"{}") for n in range(8)]
    return SourceTransaction(gtid, gtid, 1_700_000_000 + number, [*changes, *rows])


def _table(name: str, *columns: str) -> DescribeTable:
    return DescribeTable(name, tuple(Column(each, "int", True) for each in columns), columns[:1])


def _reasons(kafka: KafkaCluster, keyspace: str) -> list[set[str]]:
    found = records(kafka, keyspace, PARTITIONS)
    return [{fields["reason"] for name, fields in each if name == "EpochStart"} for each in found.values()]


def _settled_bytes(kafka: KafkaCluster, topic: str, partition: int, log: Path) -> int:
    """Size of a log that ends with a commit; 0 while it doesn't. Kafka acknowledges a commit before it writes that."""
    size = log.stat().st_size
    ends = [end_offsets(kafka, topic, [partition], committed=committed) for committed in (True, False)]
    return size if ends[0] == ends[1] and size == log.stat().st_size else 0


@pytest.fixture
def keyspace(kafka: KafkaCluster, keyspace_name: str) -> str:
    """A keyspace whose topics exist."""
    ensure_topics(kafka, keyspace_name, PARTITIONS)
    return keyspace_name


def test_a_resumed_publisher_first_writes_no_event(kafka: KafkaCluster, keyspace: str) -> None:
    """Markers and state alone stand before what an older reader may not understand; then everything is said again."""
    with _publisher(kafka, keyspace) as out:
        out.open(_start)
        out.publish(_txn(1, _table("t", "a", "b"), BindName("db.n", 4)))
    with _publisher(kafka, keyspace) as out:
        resume = out.open(_start)
        assert resume.descriptions == {"t": _table("t", "a", "b")}
        out.publish(_txn(2))
    for each in records(kafka, keyspace, PARTITIONS, repeats=True).values():
        chain = [fields["continuity"] for name, fields in each if name == "Marker"]
        batches = _batches(each)
        opened = chain.index(resume.continuity)
        assert batches[opened] <= {"SourceState"}, "of the batch before, in the home partition"
        again = set.union(*batches[opened + 1 :])
        assert {"SchemaText", "Topology", "TableSchema", "NameBinding"} <= again
    with _publisher(kafka, keyspace) as out:
        assert out.open(_start).declared_at > 0


def _batches(found: list[tuple[str, dict[str, Any]]]) -> list[set[str]]:
    """The names of the records before each marker, back to the one before it."""
    batches: list[set[str]] = [set()]
    for name, _ in found:
        if name == "Marker":
            batches.append(set())
        else:
            batches[-1].add(name)
    return batches


def test_what_was_said_is_recovered_after_the_beginning_is_gone(kafka: KafkaCluster, keyspace: str) -> None:
    """Descriptions outlive their first place in the topic; if nobody said them again in time, a new epoch does."""
    topic, home = events_topic(kafka, keyspace), Layout(PARTITIONS).home_partition(f"{keyspace}/0")
    with _publisher(kafka, keyspace) as out:
        epoch = out.open(_start).epoch
        out.publish(_txn(1, _table("t", "a")))
    with _publisher(kafka, keyspace) as out:
        out.open(_start)
        out.publish(_txn(2))
    with _publisher(kafka, keyspace, declare_every_s=10**6) as out:
        declared_at = out.open(_start).declared_at
        assert declared_at > 0
        _forget(kafka, topic, home, declared_at)
    with _publisher(kafka, keyspace) as out:
        resume = out.open(_start)
        assert (resume.epoch, set(resume.descriptions)) == (epoch, {"t"})
        out.publish(_txn(3))
    await_decided(kafka, topic, [home])
    [end] = end_offsets(kafka, topic, [home]).values()
    _forget(kafka, topic, home, end - 3)  # the last state, after everything was said again
    with _publisher(kafka, keyspace) as out:
        resume = out.open(lambda: ("MariaDB/0-1-3", 1_700_000_003))
        assert (resume.ordinal, resume.descriptions) == (1, {})
        assert resume.epoch > epoch
    assert "declarations_lost" in set.union(*_reasons(kafka, keyspace))


def _forget(kafka: KafkaCluster, topic: str, partition: int, offset: int) -> None:
    """As retention does: everything before ``offset`` is gone."""
    place = TopicPartition(topic, partition, offset)
    admin = AdminClient(client_settings(kafka))
    for done in admin.delete_records([place]).values():
        done.result(timeout=30)


def test_damaged_records_near_the_end_stop_no_publisher(kafka: KafkaCluster, keyspace: str) -> None:
    """Nobody but the publisher would write past them, so it would be stopped at each start."""
    with _publisher(kafka, keyspace) as out:
        epoch = out.open(_start).epoch
        out.publish(_txn(1))
    bad = Producer(client_settings(kafka))
    for partition in range(PARTITIONS):
        for name in ("Marker", "SourceState"):
            bad.produce(events_topic(kafka, keyspace), current_schema(name).header + b"\x02", partition=partition)
    assert bad.flush(30) == 0
    with _publisher(kafka, keyspace) as out:
        resume = out.open(_start)
    assert (resume.epoch, resume.position) == (epoch, "MariaDB/0-1-1")


@pytest.mark.slow
@pytest.mark.parametrize("loses_home", [True, False], ids=["home", "another"])
def test_a_partition_that_lost_its_end_begins_a_new_epoch(
    new_kafka: Callable[..., KafkaServer], loses_home: bool
) -> None:
    """A broker that comes back without acknowledged records: nothing goes on as if they were there."""
    server, shard = new_kafka(), "ks/0"
    topic = ensure_topics(server.cluster, "ks", PARTITIONS).name
    home = Layout(PARTITIONS).home_partition(shard)
    partition = home if loses_home else 1 - home
    out = _publisher(server.cluster, "ks", shard, idle_marker_s=60)
    epoch = out.open(_start).epoch
    for number in range(1, 4):
        out.publish(_txn(number))
        out.flush()
    [log] = server.data_dir.rglob(f"{topic}-{partition}/00000000000000000000.log")
    kept = until(lambda: _settled_bytes(server.cluster, topic, partition, log), "no Kafka transaction is open")
    for number in range(4, 7):
        out.publish(_txn(number))
        out.flush()
    server.kill()
    out.abandon()
    with log.open("r+b") as file:
        file.truncate(kept)
    server.start()
    with _publisher(server.cluster, "ks", shard) as out:
        resume = out.open(lambda: ("MariaDB/0-1-6", 1_700_000_006))
        assert (resume.position, resume.ordinal) == ("MariaDB/0-1-6", 1)
        assert resume.epoch > epoch
    assert all("tail_lost" in reasons for reasons in _reasons(server.cluster, "ks"))


@pytest.mark.slow
def test_a_commit_that_a_partition_has_lost_stops_no_publisher(new_kafka: Callable[..., KafkaServer]) -> None:
    """No reader gets past a transaction that nobody will end; the next publisher ends it, and begins a new epoch."""
    server, shard = new_kafka(), "ks/0"
    topic = ensure_topics(server.cluster, "ks", PARTITIONS).name
    with _publisher(server.cluster, "ks", shard, idle_marker_s=60) as out:
        epoch = out.open(_start).epoch
        out.publish(_txn(1))
    [log] = server.data_dir.rglob(f"{topic}-0/00000000000000000000.log")
    whole = until(lambda: _settled_bytes(server.cluster, topic, 0, log), "no Kafka transaction is open")
    server.kill()
    with log.open("r+b") as file:
        file.truncate(whole - COMMIT_BYTES)
    server.start()
    assert end_offsets(server.cluster, topic, [0]) != end_offsets(server.cluster, topic, [0], committed=False)
    with _publisher(server.cluster, "ks", shard) as out:
        assert out.open(lambda: ("MariaDB/0-1-1", 1_700_000_001)).epoch > epoch
    assert all("tail_lost" in reasons for reasons in _reasons(server.cluster, "ks"))


def test_an_undeclared_shard_is_refused(kafka: KafkaCluster, keyspace: str) -> None:
    """A second name in a topic, by mistake or after a renaming, would make readers of the first miss for ever."""
    with _publisher(kafka, keyspace, f"{keyspace}/a") as out:
        out.open(_start)
        with pytest.raises(TopologyError) as refused:
            _publisher(kafka, keyspace, f"{keyspace}/b").open(_start)
        assert refused.value.code == "second_shard"
        assert f"{keyspace}/a" in str(refused.value)
        declared = DeclaredTopology((f"{keyspace}/a",))
        with _publisher(kafka, keyspace, f"{keyspace}/b", topology=declared) as other:
            other.open(_start)
    with pytest.raises(TopologyError):  # also where the settings of the first one do not know the second
        _publisher(kafka, keyspace, f"{keyspace}/a").open(_start)


def test_a_shard_that_was_published_long_ago_is_found(kafka: KafkaCluster, keyspace: str) -> None:
    """The tail is all of one shard: the other one is found before the first topology is said."""
    topic = events_topic(kafka, keyspace)
    declared = DeclaredTopology((f"{keyspace}/a",))
    with _publisher(kafka, keyspace, f"{keyspace}/a") as out:
        out.open(_start)
    with _publisher(kafka, keyspace, f"{keyspace}/b", topology=declared) as out:
        out.open(_start)
        for number in range(1, 300):
            out.publish(_txn(number))
            out.flush()
    home = Layout(PARTITIONS).home_partition(f"{keyspace}/c")
    assert end_offsets(kafka, topic, [home])[home] > 300
    with pytest.raises(TopologyError, match=f"{keyspace}/a"):
        _publisher(kafka, keyspace, f"{keyspace}/c", topology=DeclaredTopology((f"{keyspace}/b",))).open(_start)


def test_a_successor_names_its_ancestor_and_its_epoch(kafka: KafkaCluster, keyspace: str) -> None:
    """The epoch comes from the topic, or from the settings; the topology says it as long as the epoch lasts."""
    old, new = f"{keyspace}/a", f"{keyspace}/b"
    with _publisher(kafka, keyspace, old) as out:
        out.open(_start)
        ancestor = out.start_new_epoch("MariaDB/0-1-1", 1_700_000_001, "history_lost").epoch
    unknown = DeclaredTopology((old,), (f"{keyspace}/other",))
    with pytest.raises(TopologyError) as refused:
        _publisher(kafka, keyspace, new, topology=unknown).open(_start)
    assert refused.value.code == "ancestor_unknown"
    for _ in range(2):
        with _publisher(kafka, keyspace, new, topology=DeclaredTopology((), (old,))) as out:
            out.open(_start)
    with _publisher(kafka, keyspace, new, topology=DeclaredTopology((), (old,))) as out:
        first = out.open(_start).epoch
        second = out.start_new_epoch("MariaDB/0-2-1", 1_700_000_002, "history_lost").epoch
    for each in records(kafka, keyspace, PARTITIONS, repeats=True).values():
        said = [fields for name, fields in each if name == "Topology" and fields["shard"] == new]
        assert all(fields["shards"] == [new] for fields in said)
        ancestors = [[(a["shard"], a["epoch"]) for a in fields["ancestors"]] for fields in said]
        assert ancestors[0] == [(old, ancestor)]
        assert {tuple(a) for f, a in zip(said, ancestors, strict=True) if f["epoch"] == first} == {((old, ancestor),)}
        assert {tuple(a) for f, a in zip(said, ancestors, strict=True) if f["epoch"] == second} == {()}


def test_stamps_are_in_idle_markers_too(kafka: KafkaCluster, keyspace: str) -> None:
    """And every record that was written is of a kind that is known."""
    with _publisher(kafka, keyspace, idle_marker_s=0.05) as out:
        out.open(_start)
        out.publish(_txn(1))
        out.stamp(1_700_000_001_500)
        out.flush()
        batches = out.stats.batches
        while out.stats.batches < batches + 2:
            out.flush()
    assert markers(records(kafka, keyspace, PARTITIONS))[-1]["as_of_ms"] == 1_700_000_001_500
    assert {name for each in records(kafka, keyspace, PARTITIONS, repeats=True).values() for name, _ in each} <= set(
        RECORDS
    )


def test_an_old_topic_keeps_its_layout_and_a_restart_keeps_prefixes(kafka: KafkaCluster, keyspace: str) -> None:
    """Keys never move: neither by an update of the publisher, nor because a table's prefix is read again."""
    old = Layout.parse(f"xxh3_64;partitions={PARTITIONS};prefix=shop.items:1")
    with Publisher(kafka, keyspace, f"{keyspace}/0", old, batch_interval_s=0.01) as out:
        out.open(_start)
        table = DescribeTable("t", (Column("a", "int", True), Column("b", "int", True)), ("a", "b"), prefix=1)
        out.publish(SourceTransaction("MariaDB/0-1-1", "MariaDB/0-1-1", 1, [table]))
    with _publisher(kafka, keyspace) as out:
        out.open(_start)
        assert str(out.layout) == str(old)
        out.publish(_txn(2))
    found = records(kafka, keyspace, PARTITIONS)
    rows = {partition for partition, each in found.items() if "RowFrame" in dict(each)}
    assert rows == {old.partition_of(row_key("t", [2, 0]), 1)}
