"""A partition that the group has assigned to nobody is found, and assigned again."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from consumers.process.loop import SESSION_TIMEOUT_MS
from stream.kafka import unassigned as asking
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import open_consumer
from stream.kafka.topics import ensure_locations_topic
from stream.kafka.unassigned import rebalance, unassigned
from tests.patience import PATIENCE_S
from tests.serving.stack import eventually


class Member:
    """A static member of a group, polled in a thread of its own. ``dies``: when it is told to give a partition up."""

    def __init__(self, kafka: KafkaCluster, group: str, topic: str, instance: str, dies: bool = False) -> None:
        self._stopping, self._dies, self._has_joined = threading.Event(), dies, threading.Event()
        self.is_dead = threading.Event()
        settings = {"group.instance.id": instance, "session.timeout.ms": SESSION_TIMEOUT_MS}
        self._consumer = open_consumer(kafka, group, settings)
        self._consumer.subscribe([topic], on_assign=lambda *_: self._has_joined.set(), on_revoke=self._revoked)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def await_joined(self) -> None:
        """Waits for its first assignment."""
        assert self._has_joined.wait(PATIENCE_S)

    def close(self) -> None:
        """Ends it."""
        self._stopping.set()
        self._thread.join(PATIENCE_S)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._consumer.poll(0.1)
        self._consumer.close()

    def _revoked(self, _: Consumer, __: object) -> None:
        if self._dies:  # it answers nothing any more, so nobody learns that it gives up
            self.is_dead.set()
            self._stopping.wait()


@pytest.mark.integration
def test_what_a_member_gave_up_when_it_died_is_assigned_again(kafka: KafkaCluster) -> None:
    """Kafka leaves such a partition to nobody when the member comes back, in a group that it calls stable."""
    name = uuid.uuid4().hex
    topic, group = f"events-{name}", f"group-{name}"
    ensure_locations_topic(kafka)
    admin = AdminClient(client_settings(kafka))
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    first = Member(kafka, group, topic, "a", dies=True)
    first.await_joined()
    # whoever joins before its client has heard of the topic gets nothing at first
    eventually(lambda: not unassigned(kafka, group, {topic: 2}), what="all partitions are the first one's")
    second = Member(kafka, group, topic, "b")
    assert first.is_dead.wait(PATIENCE_S)
    again = Member(kafka, group, topic, "a")
    try:
        again.await_joined()
        [left] = eventually(lambda: unassigned(kafka, group, {topic: 2}), what="a partition of nobody")
        assert left[0] == topic
        rebalance(kafka, group)
        eventually(lambda: not unassigned(kafka, group, {topic: 2}), what="its assignment")
    finally:
        for member in (first, second, again):
            member.close()


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (ConsumerGroupState.STABLE, {("t", 1), ("other", 0)}),
        (ConsumerGroupState.PREPARING_REBALANCING, set()),
        (ConsumerGroupState.COMPLETING_REBALANCING, set()),
    ],
)
def test_a_group_that_shares_partitions_out_is_left_to_it(
    state: ConsumerGroupState, found: set[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile nobody has them: another member that comes and goes would have it begin anew, again and again."""
    member = SimpleNamespace(assignment=SimpleNamespace(topic_partitions=[TopicPartition("t", 0)]))
    described = SimpleNamespace(result=lambda: SimpleNamespace(state=state, members=[member]))
    admin = SimpleNamespace(describe_consumer_groups=lambda names, **_: dict.fromkeys(names, described))
    monkeypatch.setattr(asking, "AdminClient", lambda _: nullcontext(admin))
    assert unassigned(KafkaCluster("127.0.0.1:1"), "group", {"t": 2, "other": 1}) == found


@pytest.mark.parametrize("joins_at", [3, None])
def test_a_member_that_joins_for_a_rebalance_leaves_again(
    joins_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as it has joined, and whatever happens: it wants no events, and its share would be nobody's."""
    told: list[Callable[..., object]] = []
    done: list[str] = []

    def poll(_: float) -> None:
        done.append("poll")
        if joins_at is None:
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        if len(done) == joins_at:
            told[0]()

    def subscribe(_: list[str], on_assign: Callable[..., object]) -> None:
        told.append(on_assign)

    consumer = SimpleNamespace(subscribe=subscribe, poll=poll, close=lambda: done.append("close"))
    monkeypatch.setattr(asking, "open_consumer", lambda *_: consumer)
    with nullcontext() if joins_at else pytest.raises(KafkaException):
        rebalance(KafkaCluster("127.0.0.1:1"), "group")
    assert done == ["poll"] * (joins_at or 1) + ["close"]
