"""The topics of a keyspace: made with the right settings, and refused with the fix if they have wrong ones.

Events are never compacted, their partition count never changes, retention covers at least two verified snapshots, and
record times are the publisher's, within limits wide enough for old source times (docs/internals/wire.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from stream.kafka.connection import REQUEST_TIMEOUT_S, KafkaCluster, asking, client_settings, kafka_error
from tokens.errors import FreshetError

LOCATIONS_TOPIC: Final = "freshet.locations"
DAY_MS: Final = 24 * 3600 * 1000
RETENTION_MS: Final = 7 * DAY_MS
RETENTION_MS_MIN: Final = DAY_MS
"""Below this a store that was down for a night could not catch up."""
TIMESTAMP_LIMIT_MS: Final = 3650 * DAY_MS
"""How far a record's time may lie from the broker's clock."""
TIMESTAMP_BEFORE_MS_MIN: Final = 30 * DAY_MS
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
VISIBLE_POLL_S: Final = 0.02
MESSAGE_BYTES_MIN: Final = 12 * 1024 * 1024
"""What a publisher may write in one message; a topic that takes less would stop it."""

_TIMESTAMP_LIMITS: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(TIMESTAMP_LIMIT_MS),
    "message.timestamp.after.max.ms": str(TIMESTAMP_LIMIT_MS),
}

_BROKERS_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""Else a process whose clock is an hour ahead could not write, and what one that is behind wrote was forgotten."""
_LOCATIONS_SETTINGS: Final = {"cleanup.policy": "compact", "max.compaction.lag.ms": str(DAY_MS), **_BROKERS_TIME}


class TopicError(FreshetError):
    """A topic that is missing or has settings that would lose data or freshness; the hint is the fix.

    Codes: ``topic_missing``, ``wrong_partition_count``, ``compacted_topic``, ``retention_too_short``,
    ``timestamp_limits``, ``message_size_too_small``.
    """

    code = "wrong_topic"


@dataclass(frozen=True, slots=True)
class Topic:
    """An existing topic. ``topic_id`` is Kafka's own id: another one under the same name is another history."""

    name: str
    topic_id: str
    partitions: int


def events_topic(keyspace: str) -> str:
    """Name of the topic that holds a keyspace's events."""
    return f"freshet.{keyspace}.events"


def dead_letter_topic(keyspace: str) -> str:
    """Name of the topic that holds what could not be folded."""
    return f"freshet.{keyspace}.dlq"


def ensure_topics(
    kafka: KafkaCluster,
    keyspace: str,
    partitions: int,
    *,
    replication: int = 1,
    retention_ms: int = RETENTION_MS,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Topic:
    """Create what is missing of the keyspace's topics and ``freshet.locations``, check them, return the events topic.

    Raises `TopicError`, `KafkaUnreachable`, `KafkaRequestError`.
    """
    sizes = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
    delete = {"cleanup.policy": "delete", "retention.ms": str(retention_ms), "retention.bytes": "-1"}
    wanted = [
        _new(events_topic(keyspace), partitions, replication, {**delete, **_TIMESTAMP_LIMITS, **sizes}),
        _new(dead_letter_topic(keyspace), 1, replication, {**delete, **_BROKERS_TIME, **sizes}),
        _new(LOCATIONS_TOPIC, 1, replication, _LOCATIONS_SETTINGS),
    ]
    admin = _create(kafka, wanted, timeout_s)
    for topic in wanted:
        _await_topic(admin, kafka, topic.topic, timeout_s)
    return _check(admin, kafka, keyspace, partitions, timeout_s)


def check_topics(
    kafka: KafkaCluster, keyspace: str, partitions: int | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> Topic:
    """The events topic of ``keyspace``, if it is fit for it; ``partitions``: the count it must have, if known.

    Raises `TopicError` with the fix as hint, `KafkaUnreachable`, `KafkaRequestError`.
    """
    admin = AdminClient(client_settings(kafka))
    _require_broker(admin, kafka, timeout_s)
    return _check(admin, kafka, keyspace, partitions, timeout_s)


def ensure_locations_topic(kafka: KafkaCluster, *, replication: int = 1, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    """Create ``freshet.locations`` if it is missing; raises `KafkaUnreachable`, `KafkaRequestError`."""
    admin = _create(kafka, [_new(LOCATIONS_TOPIC, 1, replication, _LOCATIONS_SETTINGS)], timeout_s)
    _await_topic(admin, kafka, LOCATIONS_TOPIC, timeout_s)


def describe_topic(kafka: KafkaCluster, name: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Topic:
    """Any topic's id and partition count; raises `TopicError` ``topic_missing``, `KafkaUnreachable`."""
    admin = AdminClient(client_settings(kafka))
    _require_broker(admin, kafka, timeout_s)
    return _describe(admin, kafka, name, timeout_s)


def _new(name: str, partitions: int, replication: int, config: Mapping[str, str]) -> NewTopic:
    return NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config))


def _create(kafka: KafkaCluster, wanted: list[NewTopic], timeout_s: float) -> AdminClient:
    """Create what is missing of ``wanted``."""
    admin = AdminClient(client_settings(kafka))
    _require_broker(admin, kafka, timeout_s)
    for name, future in admin.create_topics(wanted, operation_timeout=timeout_s, request_timeout=timeout_s * 2).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise kafka_error(error, kafka, f"create topic {name}") from error
    return admin


def _await_topic(admin: AdminClient, kafka: KafkaCluster, name: str, timeout_s: float) -> None:
    """A topic that was just made is known, and led, a little later."""
    deadline = monotonic() + timeout_s
    while True:
        found = asking(kafka, f"find topic {name}", lambda: admin.list_topics(timeout=timeout_s)).topics.get(name)
        if found is not None and found.error is None and all(each.leader >= 0 for each in found.partitions.values()):
            return
        if monotonic() > deadline:
            raise TopicError(f"topic {name} has no leader after {timeout_s:g} s", hint="is every broker up?")
        sleep(VISIBLE_POLL_S)


def _require_broker(admin: Any, kafka: KafkaCluster, timeout_s: float) -> None:
    """One quick question first: admin requests to a broker that is away take their whole, longer time-out."""
    asking(kafka, "connect", lambda: admin.list_topics(topic="__consumer_offsets", timeout=timeout_s))


def _describe(admin: Any, kafka: KafkaCluster, name: str, timeout_s: float) -> Topic:
    future = admin.describe_topics(TopicCollection([name]), request_timeout=timeout_s)[name]
    try:
        found = future.result()
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise TopicError(
                f"topic {name} does not exist at {kafka.bootstrap}",
                hint="the source makes it: start `freshet source …` first",
                code="topic_missing",
            ) from error
        raise kafka_error(error, kafka, f"describe topic {name}") from error
    return Topic(name, str(found.topic_id), len(found.partitions))


def _check(admin: Any, kafka: KafkaCluster, keyspace: str, partitions: int | None, timeout_s: float) -> Topic:
    topic = _describe(admin, kafka, events_topic(keyspace), timeout_s)
    if partitions is not None and topic.partitions != partitions:
        raise TopicError(
            f"topic {topic.name} has {topic.partitions} partitions, not {partitions}",
            hint=f"set partitions to {topic.partitions}: the count of a topic with events in it can't be changed",
            code="wrong_partition_count",
        )
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)

    def ask() -> Mapping[str, Any]:
        [future] = admin.describe_configs([resource], request_timeout=timeout_s).values()
        settings: Mapping[str, Any] = future.result()
        return settings

    found = asking(kafka, f"read the settings of {topic.name}", ask, patience_s=timeout_s)
    _check_settings(topic.name, {name: str(entry.value) for name, entry in found.items()})
    return topic


def _check_settings(name: str, settings: Mapping[str, str]) -> None:
    """Refuse settings of an events topic with which an answer could turn stale or a message could be lost."""
    if "compact" in settings.get("cleanup.policy", "delete"):
        raise _wrong(
            name, "is compacted: markers and tombstones would be lost", "cleanup.policy=delete", "compacted_topic"
        )
    retention = int(settings.get("retention.ms", RETENTION_MS))
    if 0 <= retention < RETENTION_MS_MIN:
        problem = f"keeps events for {retention // 1000} s only"
        raise _wrong(name, problem, f"retention.ms={RETENTION_MS}", "retention_too_short")
    if int(settings.get("retention.bytes", -1)) >= 0:
        problem = f"drops events above {settings['retention.bytes']} bytes, however young"
        raise _wrong(name, problem, "retention.bytes=-1", "retention_too_short")
    if settings.get("message.timestamp.type", "CreateTime") != "CreateTime":
        problem = "stamps records with the broker's time: no offset can be found by source time"
        raise _wrong(name, problem, "message.timestamp.type=CreateTime", "timestamp_limits")
    if int(settings.get("message.timestamp.before.max.ms", TIMESTAMP_LIMIT_MS)) < TIMESTAMP_BEFORE_MS_MIN:
        problem = "refuses records with a source time of last month"
        fix = f"message.timestamp.before.max.ms={TIMESTAMP_LIMIT_MS}"
        raise _wrong(name, problem, fix, "timestamp_limits")
    if int(settings.get("max.message.bytes", MESSAGE_BYTES_MAX)) < MESSAGE_BYTES_MIN:
        problem = f"takes messages up to {settings['max.message.bytes']} bytes only"
        raise _wrong(name, problem, f"max.message.bytes={MESSAGE_BYTES_MAX}", "message_size_too_small")


def _wrong(name: str, problem: str, fix: str, code: str) -> TopicError:
    return TopicError(
        f"topic {name} {problem}",
        hint=f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config {fix}",
        code=code,
    )
