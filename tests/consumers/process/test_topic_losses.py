"""A topic that loses its beginning, or its end and is filled again: no process ends, no store continues wrongly."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from consumers.owner.client import OwnerConnection
from consumers.snapshots.places import Place
from consumers.snapshots.writing import write_snapshot
from freshet.owners import live_checkpoint
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.locations import LocationsReader
from stream.kafka.reader import end_offsets, start_offsets
from tests.consumers.consuming import ConsumeProcess, Feed, caught_up, digest_of, until
from tests.patience import PATIENCE_S

BATCH_HEADER = struct.Struct(">qi")
"""Base offset, and length of what follows."""


def cut(kafka: KafkaCluster, feed: Feed, partition: int, before: int) -> None:
    """What retention does: deletes the partition's records before an offset."""
    admin = AdminClient(client_settings(kafka))
    for future in admin.delete_records([TopicPartition(feed.topic.name, partition, before)]).values():
        future.result(timeout=60)
    assert start_offsets(kafka, feed.topic.name, [partition]) == {partition: before}


def ends(kafka: KafkaCluster, feed: Feed) -> dict[int, int]:
    """Where the partitions end."""
    return end_offsets(kafka, feed.topic.name, range(feed.partitions))


def folded(kafka: KafkaCluster, feed: Feed, process: ConsumeProcess) -> str:
    """Waits until all is folded; the owner's address."""
    address = process.ready()
    until(lambda: caught_up(kafka, feed.keyspace, address), "caught up")
    return address


def test_a_new_consumer_begins_where_the_topic_does(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """The topic's beginning is gone: the store begins at what is left, says so once, and equals another's."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(60)
    cut(kafka, feed, 0, 30)
    for name in ("one", "two"):
        with ConsumeProcess(kafka, keyspace_name, tmp_path / name, group=f"{keyspace_name}-{name}") as process:
            address = folded(kafka, feed, process)
            [line] = [each for each in process.lines() if each.get("code") == "topic_cut"]
            assert line["offset"] == 30
            with OwnerConnection(address) as owner:
                [status] = owner.status(keyspace_name).partitions
                assert (status.ready, status.state) == (True, "ready")
            assert process.terminate() == 0
    assert digest_of(tmp_path / "one", keyspace_name, 0) == digest_of(tmp_path / "two", keyspace_name, 0)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "one", group=f"{keyspace_name}-one") as process:
        folded(kafka, feed, process)
        assert not [each for each in process.lines() if each.get("code") == "topic_cut"], "it continues now"
        assert process.terminate() == 0


def test_a_healthy_consumer_survives_a_partition_whose_beginning_is_gone(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """The group hands it a partition that it has never folded: its other partition is not interrupted for good."""
    feed = Feed(kafka, keyspace_name, partitions=2)
    feed.load(60)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "one") as first:
        address = folded(kafka, feed, first)
        with ConsumeProcess(kafka, keyspace_name, tmp_path / "two") as second:
            second.ready()
            end = ends(kafka, feed)
            for partition in (0, 1):
                cut(kafka, feed, partition, end[partition] // 2)
            assert second.terminate() == 0
        feed.load(10)

        def owns_both() -> bool:
            with OwnerConnection(address) as owner:
                found = owner.status(keyspace_name).partitions
            return len(found) == 2 and all(each.ready for each in found)

        until(owns_both, "both partitions are ready")
        until(lambda: caught_up(kafka, keyspace_name, address), "goes on")
        assert first.terminate() == 0


def test_a_store_that_retention_overtook_begins_anew(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """Events between its offset and the topic's beginning are missing: it is set aside, and nobody deletes a thing."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(20)
    with ConsumeProcess(kafka, keyspace_name, tmp_path) as process:
        folded(kafka, feed, process)
        assert process.terminate() == 0
    feed.load(40)
    cut(kafka, feed, 0, ends(kafka, feed)[0] - 10)
    with ConsumeProcess(kafka, keyspace_name, tmp_path) as process:
        folded(kafka, feed, process)
        [line] = process.lines("store moved aside, rebuilding it from the topic")
        assert line["code"] == "offset_out_of_range"
        assert [each["code"] for each in process.lines() if each.get("code") == "topic_cut"] == ["topic_cut"]
        assert process.terminate() == 0


def lose_tail(server: Any, topic: str) -> None:
    """What an unclean election does: the last third of partition 0's batches is gone when the broker is back."""
    server.kill()
    directory = server.data_dir / "logs" / f"{topic}-0"
    [log] = directory.glob("*.log")
    content, at, begins = log.read_bytes(), 0, []
    while at + BATCH_HEADER.size <= len(content):
        _, length = BATCH_HEADER.unpack_from(content, at)
        if length <= 0:
            break
        begins.append(at)
        at += BATCH_HEADER.size + length
    assert len(begins) > 3
    with log.open("r+b") as file:
        file.truncate(begins[len(begins) * 2 // 3])
    for index in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
        index.unlink()
    server.restart()


def test_a_topic_that_lost_its_tail_and_was_filled_again_is_another_history(
    new_kafka: Callable[..., Any], keyspace_name: str, tmp_path: Path
) -> None:
    """The store's offset is in the topic again, but what is before it there was not folded, nor is in the snapshot."""
    server = new_kafka()
    kafka = server.cluster
    feed = Feed(kafka, keyspace_name, partitions=1)
    for _ in range(12):
        feed.load(2)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded(kafka, feed, process)
        with LocationsReader(kafka) as locations:
            locations.wait_for(keyspace_name, 0, PATIENCE_S)
        made = write_snapshot(
            Place(str(tmp_path / "kept")), live_checkpoint(kafka, keyspace_name, []), made_from="owners"
        )
        assert process.terminate() == 0
    assert made.partitions[0].leader_epoch >= 0
    [end] = ends(kafka, feed).values()
    lose_tail(server, feed.topic.name)
    [left] = ends(kafka, feed).values()
    assert left < end
    again = Feed(kafka, keyspace_name, partitions=1, seed=2)
    while ends(kafka, feed)[0] < end + 5:
        again.load(2)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded(kafka, feed, process)
        until(lambda: process.lines("store moved aside, rebuilding it from the topic"), "noticed")
        [line] = process.lines("store moved aside, rebuilding it from the topic")
        assert line["code"] == "log_truncated"
        until(lambda: caught_up(kafka, keyspace_name, process.lines("ready")[-1]["address"]), "folded again")
        assert process.terminate() == 0
    for name, more in (("other", []), ("from", ["--from-snapshot", str(tmp_path / "kept")])):
        with ConsumeProcess(kafka, keyspace_name, tmp_path / name, group=name, flags=more) as process:
            folded(kafka, feed, process)
            if more:
                assert process.lines("store made from a snapshot"), (
                    "nothing but its leader epoch says that it is of no use"
                )
                until(lambda: process.lines("store moved aside, rebuilding it from the topic"), "noticed")
            until(lambda: caught_up(kafka, keyspace_name, process.lines("ready")[-1]["address"]), "folded again")
            assert process.terminate() == 0
        assert digest_of(tmp_path / "data", keyspace_name, 0) == digest_of(tmp_path / name, keyspace_name, 0)
