"""What `freshet doctor --kafka` finds at the brokers before anything starts: the rules by which processes refuse them.

It creates nothing and joins no group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient

from freshet.checks.finding import Check
from stream.kafka.advice import advise
from stream.kafka.connection import REQUEST_TIMEOUT_S, KafkaCluster, call_kafka, client_settings
from stream.kafka.topics import IN_SYNC_MIN, Topic, check_topics, events_topic, locations_topic
from tokens.errors import FreshetError

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata, TopicMetadata

_OF_KAFKA: Final = ("__consumer_offsets", "__transaction_state")
"""Kafka's own topics: without a leader of theirs no group reads, and no transaction begins."""


def examine_kafka(kafka: KafkaCluster, keyspaces: Mapping[str, tuple[int, int]]) -> list[Check]:
    """Every check of one Kafka. ``keyspaces``: name → partitions, retention in ms. Raises nothing of Kafka's."""
    try:
        with AdminClient(client_settings(kafka)) as admin:
            known = call_kafka(kafka, "connect", lambda: admin.list_topics(timeout=REQUEST_TIMEOUT_S))
    except FreshetError as error:
        return [Check("brokers", "missing", str(error), error.hint)]
    return [
        Check("brokers", "ok", f"{len(known.brokers)} at {kafka.bootstrap}"),
        _replicas(kafka, len(known.brokers)),
        *(each for name, wanted in keyspaces.items() for each in _of_keyspace(kafka, name, *wanted, known)),
        *_without_leaders(kafka, keyspaces, known),
    ]


def _replicas(kafka: KafkaCluster, brokers: int) -> Check:
    wanted, name = kafka.replicas, "replicas"
    if wanted > brokers:
        found = f"kafka.replication_factor is {wanted}, but only {brokers} brokers are there: no topic can be made"
        return Check(name, "missing", found, f"start more brokers, or set it to {brokers}")
    if wanted < IN_SYNC_MIN <= brokers:
        found = f"kafka.replication_factor is {wanted}: a topic that is made loses events with one of {brokers} brokers"
        return Check(name, "warning", found, f"set it to {min(3, brokers)} before a source makes the topics")
    return Check(name, "ok", f"{wanted} of each topic that is made")


def _of_keyspace(
    kafka: KafkaCluster, keyspace: str, partitions: int, retention_ms: int, known: ClusterMetadata
) -> list[Check]:
    """The events topic, by the rules of `stream.kafka.topics` and `stream.kafka.advice`."""
    name = f"topic of {keyspace}"
    try:
        topic = check_topics(kafka, keyspace, partitions)
        advice = advise(kafka, topic, retention_ms)
    except FreshetError as error:
        if error.code == "topic_missing":
            return [Check(name, "ok", f"{events_topic(kafka, keyspace)} is not there yet: its source makes it")]
        return [Check(name, "missing", str(error), error.hint)]
    warnings = [Check(name, "warning", each.found, each.fix) for each in advice]
    return [_as_it_runs(name, topic, known), *warnings]


def _as_it_runs(name: str, topic: Topic, known: ClusterMetadata) -> Check:
    few = _behind(known.topics.get(topic.name))
    if few:
        found = f"{few} of {topic.partitions} partitions of {topic.name} lack replicas: a broker is down or behind"
        return Check(name, "warning", found, "see that every broker runs")
    return Check(name, "ok", f"{topic.name}: {topic.partitions} partitions with {topic.replicas} replicas")


def _behind(topic: TopicMetadata | None) -> int:
    """Partitions with fewer replicas in sync than they have."""
    return sum(len(each.isrs) < len(each.replicas) for each in topic.partitions.values()) if topic else 0


def _without_leaders(kafka: KafkaCluster, keyspaces: Iterable[str], known: ClusterMetadata) -> Iterator[Check]:
    names = [*(events_topic(kafka, keyspace) for keyspace in keyspaces), locations_topic(kafka), *_OF_KAFKA]
    for name in names:
        topic = known.topics.get(name)
        lost = sum(each.leader < 0 for each in topic.partitions.values()) if topic else 0
        if lost:
            found = f"{lost} of {len(topic.partitions)} partitions of {name} have no leader"
            yield Check("leaders", "missing", found, "start the brokers that have them")
