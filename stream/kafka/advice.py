"""What is to be said of an events topic that was made with other settings than one would be made with now.

Kafka does not change a topic when a program asks for another one. Nothing is refused for it: the operator decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from stream.kafka.connection import REQUEST_TIMEOUT_S, KafkaCluster, client_settings
from stream.kafka.topics import TIMESTAMP_AFTER, TIMESTAMP_AFTER_MS, Topic, configure, topic_settings


@dataclass(frozen=True, slots=True)
class Advice:
    """A sentence about a topic, and the command that mends it. ``code``: ``kept_too_short``, ``future_accepted``."""

    code: str
    found: str
    fix: str


def advise(kafka: KafkaCluster, topic: Topic, retention_ms: int) -> list[Advice]:
    """About an events topic that shall keep events for ``retention_ms``. Raises as `topic_settings`."""
    with AdminClient(client_settings(kafka)) as admin:
        settings = topic_settings(
            admin, kafka, topic.name, request_timeout_s=REQUEST_TIMEOUT_S, patience_s=REQUEST_TIMEOUT_S
        )
    found = []
    if 0 <= (kept_ms := int(settings.get("retention.ms", retention_ms))) < retention_ms:
        text = f"{topic.name} keeps events for {kept_ms} ms, and the settings say {retention_ms}"
        found.append(Advice("kept_too_short", text, configure(topic.name, f"retention.ms={retention_ms}")))
    if int(settings.get(TIMESTAMP_AFTER, TIMESTAMP_AFTER_MS)) > TIMESTAMP_AFTER_MS:  # an old Kafka has none
        text = f"{topic.name} takes records from the future: a wrong clock would keep Kafka from deleting old ones"
        found.append(Advice("future_accepted", text, configure(topic.name, f"{TIMESTAMP_AFTER}={TIMESTAMP_AFTER_MS}")))
    return found
