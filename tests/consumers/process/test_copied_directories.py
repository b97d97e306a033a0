"""A consumer whose data directory is a copy of another one's, on a real Kafka."""

from __future__ import annotations

import shutil
from pathlib import Path

from consumers.owner.client import OwnerConnection
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import ConsumeProcess, Feed, until


def test_a_copy_of_a_data_directory_is_a_member_of_its_own(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """As who spares a new consumer the topic makes one. The two took each other's place again and again."""
    feed = Feed(kafka, keyspace_name)
    feed.load(100)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "one") as one:
        one.ready()
        assert one.terminate() == 0
    shutil.copytree(tmp_path / "one", tmp_path / "two")

    def has_one(address: str) -> bool:
        with OwnerConnection(address) as connection:
            status = connection.status()
            return status.ready and len(status.partitions) == 1

    with ConsumeProcess(kafka, keyspace_name, tmp_path / "one") as one:
        address = one.ready()
        with ConsumeProcess(kafka, keyspace_name, tmp_path / "two") as two:
            other = two.ready()
            until(lambda: has_one(address) and has_one(other), "each has a partition")
            assert len(one.lines("another process has this one's name, going on by another one")) == 1
            assert not two.lines("another process has this one's name, going on by another one")
            assert (two.terminate(), one.terminate()) == (0, 0)
    names = [(tmp_path / each / "instance").read_text() for each in ("one", "two")]
    assert names[0] != names[1]
