"""Topics are created with the right settings, and refused with the fix if they have wrong ones."""

from __future__ import annotations

import contextlib
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stream.kafka.advice import advise
from stream.kafka.connection import KafkaCluster, KafkaDenied, client_settings
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import (
    DAY_MS,
    MESSAGE_BYTES_MIN,
    RETENTION_MS_MIN,
    TIMESTAMP_BEFORE_MS_MIN,
    Topic,
    TopicError,
    _check_durability,
    _check_settings,
    _describe,
    check_topics,
    dead_letter_topic,
    describe_topic,
    ensure_locations_topic,
    ensure_topic,
    ensure_topics,
    events_topic,
    locations_topic,
)
from tests.consumers.consuming import until
from tests.patience import PATIENCE_S
from tokens.errors import FreshetError


@pytest.fixture
def admin(kafka: KafkaCluster) -> AdminClient:
    """An administration client, to create topics with wrong settings."""
    return AdminClient(client_settings(kafka))


def _make(kafka: KafkaCluster, admin: AdminClient, keyspace: str, **config: str) -> None:
    settings = {name.replace("__", "."): value for name, value in config.items()}
    topic = NewTopic(events_topic(kafka, keyspace), num_partitions=2, replication_factor=1, config=settings)
    for future in admin.create_topics([topic]).values():
        future.result()


def test_topics_are_made_once_and_then_found(kafka: KafkaCluster, keyspace_name: str) -> None:
    """A second call finds the same topic, with the same topic id."""
    made = ensure_topics(kafka, keyspace_name, 2)
    assert (made.name, made.partitions) == (f"freshet.{keyspace_name}.events", 2)
    assert len(made.topic_id) >= 16
    assert ensure_topics(kafka, keyspace_name, 2) == made == check_topics(kafka, keyspace_name, 2)
    assert describe_topic(kafka, dead_letter_topic(kafka, keyspace_name)).partitions == 1
    assert describe_topic(kafka, locations_topic(kafka)).partitions == 1


def test_a_request_that_fails_leaves_no_client_behind(kafka: KafkaCluster) -> None:
    """Whoever keeps the error keeps the frames it went through. A client that lives in one of them might be ended by
    the last reference in its own background thread, and librdkafka ends the process for that.
    """
    before = _main_threads()
    errors: list[FreshetError] = []
    for request in (check_topics, describe_topic):
        with pytest.raises(TopicError) as raised:
            request(kafka, "nothing")
        errors.append(raised.value)
    for refused in (lambda: end_offsets(kafka, "nothing", [0], timeout_s=1), lambda: ensure_topic(kafka, "a name", {})):
        with pytest.raises(FreshetError) as raised_too:  # a busy broker may not answer in time
            refused()
        errors.append(raised_too.value)
    until(lambda: _main_threads() <= before, f"no client lives on with {errors}")  # /proc has an ended one for a moment


def _main_threads() -> set[int]:
    """The native ids of threads that each of librdkafka's clients in this process has one of."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            if (task / "comm").read_text().startswith("rdk:main"):
                found.add(int(task.name))
    return found


def test_a_topic_made_anew_has_another_id(kafka: KafkaCluster, keyspace_name: str, admin: AdminClient) -> None:
    """A topic that was deleted and created again has another id, by which a store notices it."""
    before = ensure_topics(kafka, keyspace_name, 2)
    for future in admin.delete_topics([before.name]).values():
        future.result()

    def is_another() -> bool:
        try:
            return ensure_topics(kafka, keyspace_name, 2).topic_id != before.topic_id
        except FreshetError:
            return False  # the deletion is under way

    until(is_another, "the topic made anew")


def test_a_wrong_partition_count_is_refused(kafka: KafkaCluster, keyspace_name: str) -> None:
    """Another partition count is refused, because keys would be looked for in the wrong partition."""
    ensure_topics(kafka, keyspace_name, 2)
    with pytest.raises(TopicError) as refused:
        ensure_topics(kafka, keyspace_name, 3)
    assert (refused.value.code, "2" in refused.value.hint) == ("wrong_partition_count", True)
    assert "new keyspace" not in refused.value.hint
    with pytest.raises(TopicError) as refused:
        ensure_topics(kafka, keyspace_name, 1)
    assert "new keyspace" in refused.value.hint, "somebody may have added some, and they can't be taken away"


def test_a_topic_that_is_not_as_it_would_be_made_now_gets_advice(
    kafka: KafkaCluster, keyspace_name: str, admin: AdminClient
) -> None:
    """Kafka keeps the settings that a topic was made with; none of these is refused, and an earlier version made it."""
    as_before = str(3650 * DAY_MS)
    _make(
        kafka, admin, f"{keyspace_name}x", retention__ms=str(2 * DAY_MS), message__timestamp__after__max__ms=as_before
    )
    found = advise(kafka, ensure_topics(kafka, f"{keyspace_name}x", 2, retention_ms=2 * DAY_MS + 1), 2 * DAY_MS + 1)
    assert [each.code for each in found] == ["kept_too_short", "future_accepted"]
    assert f"--add-config retention.ms={2 * DAY_MS + 1}" in found[0].fix
    assert f"--add-config message.timestamp.after.max.ms={DAY_MS}" in found[1].fix
    made = ensure_topics(kafka, keyspace_name, 2, retention_ms=2 * DAY_MS)
    assert advise(kafka, made, 2 * DAY_MS) == advise(kafka, made, DAY_MS) == []
    _make(kafka, admin, f"{keyspace_name}y", retention__ms="-1")
    assert "kept_too_short" not in [
        each.code for each in advise(kafka, check_topics(kafka, f"{keyspace_name}y"), DAY_MS)
    ]


@pytest.mark.parametrize(
    ("config", "code", "fix"),
    [
        ({"cleanup__policy": "compact"}, "compacted_topic", "cleanup.policy=delete"),
        ({"cleanup__policy": "compact,delete"}, "compacted_topic", "cleanup.policy=delete"),
        ({"retention__ms": "3600000"}, "retention_too_short", "retention.ms="),
        ({"retention__bytes": "1000000"}, "retention_too_short", "retention.bytes=-1"),
        ({"message__timestamp__type": "LogAppendTime"}, "timestamp_limits", "message.timestamp.type=CreateTime"),
        ({"message__timestamp__before__max__ms": "60000"}, "timestamp_limits", "message.timestamp.before.max.ms="),
        ({"max__message__bytes": "1000000"}, "message_size_too_small", "max.message.bytes="),
        ({"unclean__leader__election__enable": "true"}, "may_lose_its_end", "unclean.leader.election.enable=false"),
    ],
)
def test_settings_that_lose_data_or_freshness_are_refused_with_the_fix(
    kafka: KafkaCluster, keyspace_name: str, admin: AdminClient, config: dict[str, str], code: str, fix: str
) -> None:
    """Unsafe settings of an existing topic are refused before anything is written, with the fix as hint."""
    _make(kafka, admin, keyspace_name, **config)
    with pytest.raises(TopicError) as refused:
        ensure_topics(kafka, keyspace_name, 2)
    assert refused.value.code == code
    assert fix in refused.value.hint
    assert events_topic(kafka, keyspace_name) in refused.value.hint


@pytest.mark.parametrize(
    ("replicas", "in_sync", "is_refused"), [(1, 1, False), (2, 1, True), (3, 1, True), (3, 2, False)]
)
def test_a_replicated_topic_must_have_two_replicas_in_sync(replicas: int, in_sync: int, is_refused: bool) -> None:
    """What one broker alone has is gone with it: a topic that has more replicas must use them."""
    topic = Topic("freshet.shop.events", "id", 4, replicas)
    if not is_refused:
        _check_durability(topic, {"min.insync.replicas": str(in_sync)})
        return
    with pytest.raises(TopicError) as refused:
        _check_durability(topic, {"min.insync.replicas": str(in_sync)})
    assert (refused.value.code, "min.insync.replicas=2" in refused.value.hint) == ("may_lose_its_end", True)


def test_a_missing_topic_is_named(kafka: KafkaCluster, keyspace_name: str) -> None:
    """The error for a missing topic names the topic."""
    with pytest.raises(TopicError) as missing:
        check_topics(kafka, keyspace_name)
    assert (missing.value.code, events_topic(kafka, keyspace_name) in str(missing.value)) == ("topic_missing", True)


@pytest.mark.parametrize("hours", [-24 * 30, 3])
def test_a_process_whose_clock_is_wrong_can_announce_itself_and_send_dead_letters(
    kafka: KafkaCluster, keyspace_name: str, hours: int
) -> None:
    """Announcements and dead letters get the broker's time, so a wrong clock of the process does no harm."""
    ensure_topics(kafka, keyspace_name, 1)
    producer = Producer(client_settings(kafka))
    errors = []
    for topic in (locations_topic(kafka), dead_letter_topic(kafka, keyspace_name)):
        producer.produce(
            topic,
            b"{}",
            f"{keyspace_name}/0",
            timestamp=int((time.time() + hours * 3600) * 1000),
            on_delivery=lambda error, _: errors.append(error),
        )
    assert producer.flush(PATIENCE_S) == 0
    assert errors == [None, None]
    [message] = read_range(kafka, dead_letter_topic(kafka, keyspace_name), 0, 0, 1)
    kind, stamped_ms = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert abs(stamped_ms / 1000 - time.time()) < 120


def test_a_topic_has_as_many_replicas_as_each_of_its_partitions() -> None:
    """While partitions are moved to other brokers, or were by hand, some have more than others."""
    partitions = [SimpleNamespace(replicas=[1, 2, 3]), SimpleNamespace(replicas=[2]), SimpleNamespace(replicas=[1, 3])]
    found = SimpleNamespace(topic_id="id", partitions=partitions)
    admin = SimpleNamespace(describe_topics=lambda *_, **__: {"t": SimpleNamespace(result=lambda: found)})
    assert _describe(admin, KafkaCluster("127.0.0.1:1"), "t", 1.0) == Topic("t", "id", 3, 1)


@pytest.mark.parametrize("is_there", [True, False])
def test_who_may_not_make_the_topic_of_the_locations_waits_for_it(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source makes it: that it is missing is told, and no right that nobody needs."""

    def denied(*_: object, **__: object) -> None:
        raise KafkaDenied("no right to create")

    def found(_: object, name: str, **__: object) -> Topic:
        if not is_there:
            raise TopicError("it is not there", code="topic_missing")
        return Topic(name, "id", 1)

    monkeypatch.setattr("stream.kafka.topics.ensure_topic", denied)
    monkeypatch.setattr("stream.kafka.topics.describe_topic", found)
    with nullcontext() if is_there else pytest.raises(TopicError, match="it is not there"):
        ensure_locations_topic(KafkaCluster("127.0.0.1:1"))


@pytest.mark.parametrize(
    ("setting", "least", "code"),
    [
        ("retention.ms", RETENTION_MS_MIN, "retention_too_short"),
        ("message.timestamp.before.max.ms", TIMESTAMP_BEFORE_MS_MIN, "timestamp_limits"),
        ("max.message.bytes", MESSAGE_BYTES_MIN, "message_size_too_small"),
    ],
)
def test_a_topic_with_just_as_much_as_is_needed_is_taken(setting: str, least: int, code: str) -> None:
    """And one that keeps its events for ever, which Kafka writes as -1."""
    _check_settings("t", {setting: str(least)})
    _check_settings("t", {"retention.ms": "-1", "retention.bytes": "-1"})
    with pytest.raises(TopicError) as refused:
        _check_settings("t", {setting: str(least - 1)})
    assert refused.value.code == code
