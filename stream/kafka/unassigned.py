"""Finds partitions that the group has assigned to nobody, and makes it assign them.

Kafka gives a static member that comes back the assignment that it had, without a rebalance. If the member died when
it was told to give a partition up, and had not said yet that it has, nobody has the partition: the rebalance that
would hand it on begins only with that word. It stays so until something else makes the group rebalance.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from stream.kafka.connection import REQUEST_TIMEOUT_S, KafkaCluster, client_settings
from stream.kafka.reader import open_consumer
from stream.kafka.topics import locations_topic

JOIN_S: Final = 15.0
"""A member waits so long for the others: they learn of a rebalance with their next heartbeat."""
POLL_S: Final = 0.1


def unassigned(kafka: KafkaCluster, group: str, partitions: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    """The partitions that no member of the group has, as (topic, number). ``partitions``: how many each topic has.

    Empty while the group rebalances. Raises ``KafkaException``.
    """
    name = kafka.group_id(group)
    with AdminClient(client_settings(kafka)) as admin:
        described = admin.describe_consumer_groups([name], request_timeout=REQUEST_TIMEOUT_S)[name].result()
    if described.state is not ConsumerGroupState.STABLE:
        return frozenset()
    held = {
        (place.topic, place.partition) for member in described.members for place in member.assignment.topic_partitions
    }
    wanted = {(topic, number) for topic, count in partitions.items() for number in range(count)}
    return frozenset(wanted - held)


def rebalance(kafka: KafkaCluster, group: str) -> None:
    """Has the group assign what nobody has: a member joins that wants no events, and leaves.

    No partition moves that somebody has. Raises ``KafkaException``.
    """
    joined: list[bool] = []
    consumer = open_consumer(kafka, group)
    try:
        consumer.subscribe([locations_topic(kafka)], on_assign=lambda *_: joined.append(True))
        deadline = time.monotonic() + JOIN_S
        while not joined and time.monotonic() < deadline:
            consumer.poll(POLL_S)
    finally:
        consumer.close()
