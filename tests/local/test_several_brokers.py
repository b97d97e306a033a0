"""Several Kafka brokers of one cluster: one of them may be away."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from freshet.local.kafka import META_NAME, KafkaServer, several_brokers
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement, LocationsReader, announce
from stream.kafka.topics import (
    TopicError,
    describe_topic,
    ensure_locations_topic,
    ensure_topics,
    events_topic,
    locations_topic,
    topic_leaders,
)
from tests.consumers.consuming import until
from tests.patience import PATIENCE_S


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[KafkaServer]]:
    """Three that run."""
    made = several_brokers(tmp_path, [{}, {}, {}])
    with ExitStack() as stack, ThreadPoolExecutor(len(made)) as pool:
        for broker in made:
            stack.callback(lambda broker=broker: broker.kill() if broker.is_running else None)  # type: ignore[misc]
        for started in [pool.submit(broker.start) for broker in made]:
            started.result()
        yield made


def meta(broker: KafkaServer) -> dict[str, str]:
    """Whose directory it is, as the broker has it."""
    lines = (broker.data_dir / "logs" / META_NAME).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.integration
@pytest.mark.slow
def test_what_is_written_outlives_the_broker_that_leads_it_whoever_made_the_topic(brokers: list[KafkaServer]) -> None:
    """Nodes may start before any source: the topic of announcements has as many replicas then, too.

    Before, its only copy was at one broker, and at a Kafka that wants two in sync nobody could be announced.
    """
    ids = [meta(each) for each in brokers]
    assert [each["node.id"] for each in ids] == ["1", "2", "3"]
    assert (len({each["cluster.id"] for each in ids}), len({each["directory.id"] for each in ids})) == (1, 3)
    kafka = KafkaCluster(",".join(each.bootstrap for each in brokers), replicas=3)
    owner = Announcement(keyspace="shop", partition=0, address="127.0.0.1:1", instance="a", generation=1)
    ensure_locations_topic(kafka, timeout_s=PATIENCE_S)  # as `announce` does, with less patience
    announce(kafka, [owner])
    topic = locations_topic(kafka)

    def replicas() -> int:
        try:
            return describe_topic(kafka, topic).replicas
        except TopicError:
            return 0  # the broker that is asked has not heard of it yet

    until(lambda: replicas() == 3, "the topic of the locations has three replicas")
    assert ensure_topics(kafka, "shop", 2, timeout_s=PATIENCE_S).replicas == 3
    names = [topic, events_topic(kafka, "shop")]
    leaders = until(lambda: len(found := topic_leaders(kafka, names)) == 3 and found, "each partition has a leader")
    with LocationsReader(kafka) as reader:
        before = leaders[topic, 0]
        next(each for each in brokers if each.bootstrap == before).kill()
        later = Announcement(keyspace="shop", partition=0, address="127.0.0.1:2", instance="b", generation=2)
        announce(kafka, [later])
        assert reader.wait_for("shop", 0, PATIENCE_S, other_than="a").address == later.address
    until(lambda: topic_leaders(kafka, [topic]).get((topic, 0), before) != before, "each broker knows who leads it now")
