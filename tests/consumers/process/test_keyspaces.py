"""Several keyspaces in one `freshet consume`: each begins when its own topic is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.owner.client import OwnerConnection
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from tests.consumers.consuming import ConsumeProcess, Feed, assert_equal_to_uninterrupted, caught_up, until

pytestmark = pytest.mark.integration
WAITING = "waiting for the keyspace's topic"


def test_a_keyspace_without_its_topic_does_not_delay_the_others(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """Existing topics are folded and served; a missing one is logged once and keeps the process from being ready."""
    later_name = f"{keyspace_name}_later"
    feed = Feed(kafka, keyspace_name)
    feed.load(30)
    with (
        ConsumeProcess(kafka, keyspace_name, tmp_path / "data", more_keyspaces=(later_name,)) as process,
        LocationsReader(kafka) as locations,
    ):
        owner = until(lambda: locations.owner_of(keyspace_name, 0), "announced")
        until(lambda: locations.owner_of(keyspace_name, 1), "announced")
        assert caught_up(kafka, keyspace_name, owner.address)
        [line] = process.lines(WAITING)
        assert (line["keyspace"], line["code"]) == (later_name, "topic_missing")
        assert process.lines("ready") == []
        with OwnerConnection(owner.address) as connection:
            assert not connection.status().ready
            taken_at = [each.offset for each in connection.status(keyspace_name).partitions]

        later = Feed(kafka, later_name, partitions=3)
        later.load(30)
        assert process.ready() == owner.address
        until(lambda: caught_up(kafka, later_name, owner.address), "the later one caught up")
        with OwnerConnection(owner.address) as connection:
            assert connection.status().ready
            assert [each.offset for each in connection.status(keyspace_name).partitions] == taken_at
        assert not process.lines("partition released"), "what was there already is not interrupted"
        assert len(process.lines(WAITING)) == 1
        assert process.terminate() == 0
    for each in (feed, later):
        assert_equal_to_uninterrupted(kafka, each, tmp_path / "data", tmp_path / "scratch")


def test_a_second_consumer_of_the_group_is_ready_without_a_partition_of_every_keyspace(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """A keyspace without assigned partitions does not keep the process from being ready once its topic exists."""
    later_name = f"{keyspace_name}_later"
    Feed(kafka, keyspace_name, partitions=2).load(10)
    with (
        ConsumeProcess(kafka, keyspace_name, tmp_path / "one", more_keyspaces=(later_name,)) as one,
        ConsumeProcess(kafka, keyspace_name, tmp_path / "two", more_keyspaces=(later_name,)) as two,
    ):
        for process in (one, two):
            until(lambda p=process: p.lines("partition is ready"), "one partition each")  # type: ignore[misc]
            assert process.lines("ready") == []
        Feed(kafka, later_name, partitions=1).load(10)
        assert one.ready() != two.ready()
        assert one.terminate() == 0
        assert two.terminate() == 0
