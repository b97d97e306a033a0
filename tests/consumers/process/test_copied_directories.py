"""A consumer whose data directory is a copy of another one's, on a real Kafka."""

from __future__ import annotations

import shutil
from pathlib import Path

from consumers.owner.client import OwnerConnection
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from tests.consumers.consuming import ConsumeProcess, Feed, until


def copy_directory(kafka: KafkaCluster, keyspace: str, place: Path) -> None:
    """In ``place``: the data directory ``one`` of a consumer that has folded and ended, and a copy of it, ``two``."""
    Feed(kafka, keyspace).load(100)
    with ConsumeProcess(kafka, keyspace, place / "one") as one:
        one.ready()
        assert one.terminate() == 0
    shutil.copytree(place / "one", place / "two")


def test_a_copy_of_a_data_directory_is_a_member_of_its_own(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """As who spares a new consumer the topic makes one. The two took each other's place again and again."""
    copy_directory(kafka, keyspace_name, tmp_path)

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


def test_a_copy_of_the_owners_data_directory_can_follow_it(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """It is announced as a follower, by another name, also where it starts before the owner does again."""
    copy_directory(kafka, keyspace_name, tmp_path)
    name = (tmp_path / "one" / "instance").read_text()
    flags = ["--follower"]
    with (
        LocationsReader(kafka) as reader,
        ConsumeProcess(kafka, keyspace_name, tmp_path / "two", group=f"{keyspace_name}-two", flags=flags) as two,
    ):
        two.ready()
        until(lambda: len(reader.followers(keyspace_name, 0)) == 1, "the follower")
        with ConsumeProcess(kafka, keyspace_name, tmp_path / "one") as one:
            one.ready()
            until(lambda: reader.owner_of(keyspace_name, 0) is not None, "the owner")
            [follower], owner = reader.followers(keyspace_name, 0), reader.owner_of(keyspace_name, 0)
            assert owner is not None
            assert (owner.instance, follower.instance) == (name, (tmp_path / "two" / "instance").read_text())
            assert (one.terminate(), two.terminate()) == (0, 0)
    assert follower.instance != owner.instance
