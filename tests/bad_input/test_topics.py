"""Topics with another partition count, another id or other settings than expected."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.topics import ensure_topics, events_topic
from tests.bad_input.running import freshet_fails, source_arguments
from tests.consumers.consuming import ConsumeProcess, assert_equal_to_uninterrupted, caught_up, until
from tests.consumers.process.test_consume import delete_topic, try_feed


def test_a_source_refuses_a_topic_with_another_partition_count(
    kafka: KafkaCluster, mariadb: MariaDBAddress, database: str, keyspace_name: str
) -> None:
    """Another partition count than the topic's is refused, with the count to set in the hint."""
    ensure_topics(kafka, keyspace_name, 3)
    said = freshet_fails(*source_arguments(kafka, mariadb, database, keyspace_name), "--partitions", "5")
    assert f"error[wrong_partition_count]: topic {events_topic(kafka, keyspace_name)} has 3 partitions, not 5" in said
    assert "hint: set partitions to 3" in said


def test_a_source_refuses_a_compacted_topic(
    kafka: KafkaCluster, mariadb: MariaDBAddress, database: str, keyspace_name: str
) -> None:
    """A compacted topic, which would lose markers and voids, is refused with the setting that fixes it."""
    topic = NewTopic(events_topic(kafka, keyspace_name), 4, 1, config={"cleanup.policy": "compact"})
    admin = AdminClient(client_settings(kafka))
    for made in admin.create_topics([topic]).values():
        made.result(timeout=60)
    said = freshet_fails(*source_arguments(kafka, mariadb, database, keyspace_name))
    assert "error[compacted_topic]" in said
    assert "cleanup.policy=delete" in said


def test_a_topic_replaced_under_a_running_consumer_is_a_rebuild(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """A store of a deleted topic is moved aside with a warning and rebuilt, even if the new topic is longer."""
    with_old = until(lambda: try_feed(kafka, keyspace_name), "topic")
    with_old.load(20)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        address = process.ready()
        until(lambda: caught_up(kafka, keyspace_name, address), "caught up")
        delete_topic(kafka, with_old.topic.name)
        feed = until(lambda: try_feed(kafka, keyspace_name, with_old.topic.topic_id), "topic made anew")
        feed.load(200)
        moved = "store moved aside, rebuilding it from the topic"
        until(lambda: len(process.lines(moved)) == feed.partitions, "noticed")
        assert {line["code"] for line in process.lines(moved)} == {"topic_changed"}
        until(lambda: caught_up(kafka, keyspace_name, address, feed.partitions), "folded anew")
        assert process.terminate() == 0
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")
