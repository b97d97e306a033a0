"""The topics of a keyspace: created with the right settings, and refused, with the fix, if they have wrong ones.

The events topic is never compacted, and its partition count never changes. Its retention covers at least two verified
snapshots. Record times are the publisher's, with limits wide enough for old source times (docs/internals/wire.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic

from stream.kafka.connection import (
    NO_LEADER_HINT,
    REQUEST_TIMEOUT_S,
    KafkaCluster,
    KafkaDenied,
    KafkaUnreachable,
    call_kafka,
    client_settings,
    kafka_error,
)
from tokens.errors import FreshetError

DAY_MS: Final = 24 * 3600 * 1000
RETENTION_MS: Final = 7 * DAY_MS
RETENTION_MS_MIN: Final = DAY_MS
"""With less, a store that was down overnight could not catch up."""
TIMESTAMP_LIMIT_MS: Final = 3650 * DAY_MS
"""How much a record's time may be behind the broker's clock."""
TIMESTAMP_AFTER_MS: Final = DAY_MS
"""How much it may be ahead of it. Kafka keeps everything from such a record on until that time and `RETENTION_MS`."""
TIMESTAMP_BEFORE_MS_MIN: Final = 30 * DAY_MS
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
POLL_INTERVAL_S: Final = 0.02
IN_SYNC_MIN: Final = 2
"""Replicas that must have a record before it counts as written, of a topic with several."""
MESSAGE_BYTES_MIN: Final = 12 * 1024 * 1024
"""The largest message that a publisher may write. A topic with a lower limit would stop it."""

TIMESTAMP_AFTER: Final = "message.timestamp.after.max.ms"
_TIMESTAMP_LIMITS: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(TIMESTAMP_LIMIT_MS),
    TIMESTAMP_AFTER: str(TIMESTAMP_AFTER_MS),
}

_BROKER_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""Independent of the writers' clocks: Kafka refuses records from the future and deletes old ones early."""
_LOCATIONS_SETTINGS: Final = {
    "cleanup.policy": "compact,delete",
    "max.compaction.lag.ms": str(DAY_MS),
    "retention.ms": str(DAY_MS),
    **_BROKER_TIME,
}
"""Owners announce themselves again and again: what is a day old is of an owner that ended without a word."""


class TopicError(FreshetError):
    """A topic is missing, or has settings that would lose data or freshness. The hint is the fix.

    Codes: ``topic_missing``, ``wrong_partition_count``, ``compacted_topic``, ``retention_too_short``,
    ``timestamp_limits``, ``message_size_too_small``, ``may_lose_its_end``.
    """

    code = "wrong_topic"


@dataclass(frozen=True, slots=True)
class Topic:
    """An existing topic. ``topic_id`` is Kafka's own id: another id under the same name means another history."""

    name: str
    topic_id: str
    partitions: int
    replicas: int = 1


class TopicWatch:
    """Notices that another topic has taken a topic's name. It never waits for Kafka's answers. Not thread-safe."""

    def __init__(self, kafka: KafkaCluster, topic: Topic) -> None:
        self._topic = topic
        self._admin = AdminClient(client_settings(kafka))
        self._asked: Future[Any] | None = None

    def other_id(self) -> str:
        """The id of another topic under the name, by the answer to the question before; then it asks again.

        Empty if the topic is still the same, or if that is not known.
        """
        asked = self._asked
        if asked is not None and not asked.done():
            return ""
        name = self._topic.name
        self._asked = self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)[name]
        if asked is None or asked.exception() is not None:
            return ""
        found = str(asked.result().topic_id)
        return found if found != self._topic.topic_id else ""

    def close(self) -> None:
        """End the asking."""
        self._admin.__exit__(None, None, None)


class TopicRight:
    """Asks once whether this client may know a topic, without waiting: librdkafka's readers say nothing if not."""

    def __init__(self, kafka: KafkaCluster, name: str) -> None:
        self._kafka, self._name = kafka, name
        self._admin = AdminClient(client_settings(kafka))  # kept: a request ends with its client
        topics = TopicCollection([name])
        self._asked: Future[Any] | None = self._admin.describe_topics(topics, request_timeout=REQUEST_TIMEOUT_S)[name]

    def denied(self) -> KafkaDenied | None:
        """The broker's refusal, once it is here, and once only."""
        asked = self._asked
        if asked is None or not asked.done():
            return None
        self._asked = None
        self.close()
        error = asked.exception()
        found = kafka_error(error, self._kafka, f"read {self._name}") if isinstance(error, KafkaException) else None
        return found if isinstance(found, KafkaDenied) else None

    def close(self) -> None:
        """End the asking."""
        self._admin.__exit__(None, None, None)


def events_topic(kafka: KafkaCluster, keyspace: str) -> str:
    """Name of the topic that holds a keyspace's events."""
    return f"{kafka.prefix}.{keyspace}.events"


def dead_letter_topic(kafka: KafkaCluster, keyspace: str) -> str:
    """Name of the topic that holds messages that could not be folded."""
    return f"{kafka.prefix}.{keyspace}.dlq"


def requests_topic(kafka: KafkaCluster, keyspace: str) -> str:
    """Name of the topic that holds what people ask of a keyspace's sources."""
    return f"{kafka.prefix}.{keyspace}.requests"


def locations_topic(kafka: KafkaCluster) -> str:
    """Name of the topic that says who owns which partition."""
    return f"{kafka.prefix}.locations"


def ensure_topics(
    kafka: KafkaCluster,
    keyspace: str,
    partitions: int,
    *,
    retention_ms: int = RETENTION_MS,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Topic:
    """Create the missing topics of the keyspace and of the locations; check and return the events topic.

    Raises `TopicError`, `KafkaUnreachable`, `KafkaRequestError`.
    """
    sizes = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
    delete = {"cleanup.policy": "delete", "retention.ms": str(retention_ms), "retention.bytes": "-1"}
    kept = {"unclean.leader.election.enable": "false", "min.insync.replicas": str(min(kafka.replicas, IN_SYNC_MIN))}
    events = {**delete, **_TIMESTAMP_LIMITS, **sizes, **kept}
    wanted = [
        _new_topic(kafka, events_topic(kafka, keyspace), events, partitions),
        _new_topic(kafka, dead_letter_topic(kafka, keyspace), {**delete, **_BROKER_TIME, **sizes}),
        _new_topic(kafka, locations_topic(kafka), _LOCATIONS_SETTINGS),
    ]
    with AdminClient(client_settings(kafka)) as admin:
        _create(admin, kafka, wanted, timeout_s)
        return _check(admin, kafka, keyspace, partitions, timeout_s, patience_s=timeout_s)


def check_topics(
    kafka: KafkaCluster, keyspace: str, partitions: int | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> Topic:
    """Check and return the events topic of ``keyspace``. ``partitions``: the required count, if known.

    Raises `TopicError` with the fix as hint, `KafkaUnreachable`, `KafkaRequestError`.
    """
    with AdminClient(client_settings(kafka)) as admin:
        _require_broker(admin, kafka, timeout_s)
        return _check(admin, kafka, keyspace, partitions, timeout_s)


def ensure_locations_topic(kafka: KafkaCluster, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    """Create the topic of the locations if missing. Raises `TopicError`, `KafkaUnreachable`, `KafkaRequestError`.

    Who may not create it waits for a source to do so: ``topic_missing``, and no word of a right that it needs not have.
    """
    name = locations_topic(kafka)
    try:
        ensure_topic(kafka, name, _LOCATIONS_SETTINGS, timeout_s=timeout_s)
    except KafkaDenied:
        describe_topic(kafka, name, timeout_s=timeout_s)  # it may be there by now


def ensure_topic(
    kafka: KafkaCluster, name: str, config: Mapping[str, str], *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Create a topic of one partition if missing. Raises `TopicError`, `KafkaUnreachable`, `KafkaRequestError`."""
    with AdminClient(client_settings(kafka)) as admin:
        _create(admin, kafka, [_new_topic(kafka, name, config)], timeout_s)


def ensure_requests_topic(kafka: KafkaCluster, keyspace: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
    """Create the topic of the requests if missing. Raises `TopicError`, `KafkaUnreachable`, `KafkaRequestError`."""
    config = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS), **_BROKER_TIME}
    ensure_topic(kafka, requests_topic(kafka, keyspace), config, timeout_s=timeout_s)


def may_write(kafka: KafkaCluster, name: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> bool:
    """Whether the broker lets this client write to a topic; also true where it does not say."""
    with AdminClient(client_settings(kafka)) as admin:
        asked = admin.describe_topics(
            TopicCollection([name]), include_authorized_operations=True, request_timeout=timeout_s
        )
        try:
            found = asked[name].result().authorized_operations
        except KafkaException:
            return True
    return found is None or AclOperation.WRITE in found


def describe_topic(kafka: KafkaCluster, name: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Topic:
    """The id and partition count of any topic. Raises `TopicError` ``topic_missing``, `KafkaUnreachable`."""
    with AdminClient(client_settings(kafka)) as admin:
        _require_broker(admin, kafka, timeout_s)
        return _describe(admin, kafka, name, timeout_s)


def topic_leaders(
    kafka: KafkaCluster, names: Collection[str], *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[tuple[str, int], str]:
    """(topic, partition) → the host:port of the broker that leads it, of those that exist and have a leader.

    Raises `KafkaUnreachable`, `KafkaRequestError`.
    """
    with AdminClient(client_settings(kafka)) as admin:
        known = call_kafka(kafka, "find the leaders of topics", lambda: admin.list_topics(timeout=timeout_s))
    brokers = {number: f"{each.host}:{each.port}" for number, each in known.brokers.items()}
    return {
        (name, number): brokers[each.leader]
        for name in names
        if name in known.topics
        for number, each in known.topics[name].partitions.items()
        if each.leader in brokers
    }


def _new_topic(kafka: KafkaCluster, name: str, config: Mapping[str, str], partitions: int = 1) -> NewTopic:
    return NewTopic(name, num_partitions=partitions, replication_factor=kafka.replicas, config=dict(config))


def _create(admin: AdminClient, kafka: KafkaCluster, wanted: list[NewTopic], timeout_s: float) -> None:
    """Create those topics of ``wanted`` that are missing, and wait for their leaders.

    Where none is missing, no right to create any is needed.
    """
    _require_broker(admin, kafka, timeout_s)
    for name, future in admin.create_topics(wanted, operation_timeout=timeout_s, request_timeout=timeout_s * 2).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            found = kafka_error(error, kafka, f"create topic {name}")
            if not isinstance(found, KafkaDenied):
                raise found from error
            known = call_kafka(kafka, f"find topic {name}", lambda: admin.list_topics(timeout=timeout_s)).topics
            if name not in known:
                raise found from error
    for topic in wanted:
        _await_topic(admin, kafka, topic.topic, timeout_s)


def _await_topic(admin: AdminClient, kafka: KafkaCluster, name: str, timeout_s: float) -> None:
    """Wait until the brokers know the topic and all its partitions have a leader. Raises `KafkaUnreachable`."""
    deadline = monotonic() + timeout_s
    while True:
        found = call_kafka(kafka, f"find topic {name}", lambda: admin.list_topics(timeout=timeout_s)).topics.get(name)
        if found is not None and found.error is None and all(each.leader >= 0 for each in found.partitions.values()):
            return
        if monotonic() > deadline:
            _describe(admin, kafka, name, timeout_s)  # raises if it is not listed for want of a right
            raise KafkaUnreachable(f"topic {name} has no leader after {timeout_s:g} s", hint=NO_LEADER_HINT)
        sleep(POLL_INTERVAL_S)


def _require_broker(admin: Any, kafka: KafkaCluster, timeout_s: float) -> None:
    """Fail fast: admin requests to an unreachable broker would take their whole, longer timeout."""
    call_kafka(kafka, "connect", lambda: admin.list_topics(topic="__consumer_offsets", timeout=timeout_s))


def _describe(admin: Any, kafka: KafkaCluster, name: str, timeout_s: float, patience_s: float = 0.0) -> Topic:
    """``patience_s``: how long it may be missing, if it was just made: another broker may learn of it later."""
    deadline = monotonic() + patience_s
    while True:
        try:
            found = admin.describe_topics(TopicCollection([name]), request_timeout=timeout_s)[name].result()
            break
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                raise kafka_error(error, kafka, f"describe topic {name}") from error
            if monotonic() >= deadline:
                raise TopicError(
                    f"topic {name} does not exist at {kafka.bootstrap}",
                    hint="the source creates it: start `freshet source …` first",
                    code="topic_missing",
                ) from error
        sleep(POLL_INTERVAL_S)
    replicas = min((len(each.replicas) for each in found.partitions), default=1)
    return Topic(name, str(found.topic_id), len(found.partitions), replicas)


def _check(
    admin: Any, kafka: KafkaCluster, keyspace: str, partitions: int | None, timeout_s: float, patience_s: float = 0.0
) -> Topic:
    topic = _describe(admin, kafka, events_topic(kafka, keyspace), timeout_s, patience_s)
    if partitions is not None and topic.partitions != partitions:
        raise TopicError(
            f"topic {topic.name} has {topic.partitions} partitions, not {partitions}",
            hint=f"set partitions to {topic.partitions}: the count of a topic with events cannot be changed"
            + ("; or, if some were added to it, publish into a new keyspace" if topic.partitions > partitions else ""),
            code="wrong_partition_count",
        )
    settings = topic_settings(admin, kafka, topic.name, request_timeout_s=timeout_s, patience_s=timeout_s)
    _check_settings(topic.name, settings)
    _check_durability(topic, settings)
    return topic


def topic_settings(
    admin: Any, kafka: KafkaCluster, name: str, *, request_timeout_s: float, patience_s: float
) -> dict[str, str]:
    """The settings that a topic has, its own and the broker's. Raises `KafkaUnreachable`, `KafkaRequestError`."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)

    def ask() -> Mapping[str, Any]:
        [future] = admin.describe_configs([resource], request_timeout=request_timeout_s).values()
        found: Mapping[str, Any] = future.result()
        return found

    found = call_kafka(kafka, f"read the settings of {name}", ask, patience_s=patience_s)
    return {name: str(entry.value) for name, entry in found.items()}


def _check_durability(topic: Topic, settings: Mapping[str, str]) -> None:
    """Refuse settings with which a broker that fails could take acknowledged events with it."""
    if settings.get("unclean.leader.election.enable", "false") == "true":
        problem = "may elect a leader that lacks acknowledged events"
        raise _topic_error(topic.name, problem, "unclean.leader.election.enable=false", "may_lose_its_end")
    if topic.replicas >= IN_SYNC_MIN > int(settings.get("min.insync.replicas", IN_SYNC_MIN)):
        problem = f"has {topic.replicas} replicas, but acknowledges events that only one of them has"
        raise _topic_error(topic.name, problem, f"min.insync.replicas={IN_SYNC_MIN}", "may_lose_its_end")


def _check_settings(name: str, settings: Mapping[str, str]) -> None:
    """Refuse settings of an events topic that could lose a message or make an answer stale."""
    if "compact" in settings.get("cleanup.policy", "delete"):
        raise _topic_error(
            name, "is compacted: markers and tombstones would be lost", "cleanup.policy=delete", "compacted_topic"
        )
    retention = int(settings.get("retention.ms", RETENTION_MS))
    if 0 <= retention < RETENTION_MS_MIN:
        problem = f"keeps events for {retention // 1000} s only"
        raise _topic_error(name, problem, f"retention.ms={RETENTION_MS}", "retention_too_short")
    if int(settings.get("retention.bytes", -1)) >= 0:
        problem = f"drops events above {settings['retention.bytes']} bytes, even recent ones"
        raise _topic_error(name, problem, "retention.bytes=-1", "retention_too_short")
    if settings.get("message.timestamp.type", "CreateTime") != "CreateTime":
        problem = "has the broker's record times: offsets cannot be found by source time"
        raise _topic_error(name, problem, "message.timestamp.type=CreateTime", "timestamp_limits")
    if int(settings.get("message.timestamp.before.max.ms", TIMESTAMP_LIMIT_MS)) < TIMESTAMP_BEFORE_MS_MIN:
        problem = "refuses records with a source time of last month"
        fix = f"message.timestamp.before.max.ms={TIMESTAMP_LIMIT_MS}"
        raise _topic_error(name, problem, fix, "timestamp_limits")
    if int(settings.get("max.message.bytes", MESSAGE_BYTES_MAX)) < MESSAGE_BYTES_MIN:
        problem = f"accepts messages up to {settings['max.message.bytes']} bytes only"
        raise _topic_error(name, problem, f"max.message.bytes={MESSAGE_BYTES_MAX}", "message_size_too_small")


def _topic_error(name: str, problem: str, fix: str, code: str) -> TopicError:
    return TopicError(f"topic {name} {problem}", hint=configure(name, fix), code=code)


def configure(name: str, fix: str) -> str:
    """The command that gives a topic a setting."""
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config {fix}"
