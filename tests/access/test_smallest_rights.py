"""Each right at Kafka that the page names is needed: without it the process is refused, and told what it lacks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AdminClient
from structlog.testing import capture_logs

from spark_jobs.offsets import topic_bounds
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.dead_letters import DeadLetter, DeadLetterPublisher, read_letters, retry
from stream.kafka.locations import Announcement, LocationsReader, announce
from stream.kafka.reader import end_offsets, open_consumer, poll_batch, read_range, start_offsets
from stream.kafka.requests import HotKeysSender, RequestsReader, send_request
from stream.kafka.topics import (
    check_topics,
    dead_letter_topic,
    ensure_requests_topic,
    ensure_topics,
    events_topic,
    locations_topic,
    requests_topic,
)
from stream.kafka.unassigned import unassigned
from stream.publish.publisher import Publisher
from stream.publish.resume import read_point
from stream.wire.keys import Layout
from tests.access.rights import USERS, give, rights, take, user_of
from tests.consumers.histories import value
from tests.patience import PATIENCE_S
from tests.servers.secured import guarded_kafka
from tests.serving.stack import eventually
from tokens.errors import FreshetError

KEYSPACE, SHARD = "shop", "shop/0"
QUIET_S = 0.5
"""A client is refused by a group's coordinator some milliseconds after it began to read."""

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with its authorizer on: the way in of who may do everything, and of each user."""

    root: KafkaCluster
    admin: AdminClient
    users: dict[str, KafkaCluster]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """Every user has the rights of the page, and the keyspace has its topics and a history."""
    with guarded_kafka({name: f"{name}-secret" for name in USERS}) as (server, users):
        admin = AdminClient(client_settings(server.cluster))
        give(admin, rights())
        found = Guarded(server.cluster, admin, users)
        eventually(lambda: not refusals(as_source, found, "source"), what="the source's rights")
        yield found


def read_for_a_while(kafka: KafkaCluster, topic: str) -> None:
    """Reads a partition from its beginning, without a group, as fronts and sources do; raises as `poll_batch`."""
    [start] = start_offsets(kafka, topic, [0]).values()
    [end] = end_offsets(kafka, topic, [0]).values()
    list(read_range(kafka, topic, 0, start, end))
    consumer = open_consumer(kafka)
    deadline = time.monotonic() + QUIET_S
    try:
        while time.monotonic() < deadline:
            poll_batch(consumer, 100, 0.05)
    finally:
        consumer.close()


def remove(guarded: Guarded, *topics: str) -> None:
    """Removes topics, as far as they are there."""
    for done in guarded.admin.delete_topics(list(topics)).values():
        done.exception(60)
    eventually(lambda: not {*topics} & guarded.admin.list_topics(timeout=60).topics.keys(), what="their end")


def as_source(guarded: Guarded, kafka: KafkaCluster) -> None:
    """Makes the topics, which are gone, publishes, is started again, and reads what is asked of it."""
    of_keyspace = [of(kafka, KEYSPACE) for of in (events_topic, dead_letter_topic, requests_topic)]
    remove(guarded, *of_keyspace, locations_topic(kafka))
    ensure_topics(kafka, KEYSPACE, 2)
    ensure_requests_topic(kafka, KEYSPACE)
    for _ in range(2):
        with Publisher(kafka, KEYSPACE, SHARD, Layout(2)) as out:
            out.open(lambda: ("MariaDB/0-1-1", 1_700_000_000))
    asked = RequestsReader(kafka, KEYSPACE, SHARD)
    deadline = time.monotonic() + QUIET_S
    try:
        while time.monotonic() < deadline:
            asked.new(0)
    finally:
        asked.close()


def as_consumer(_: Guarded, kafka: KafkaCluster) -> None:
    """Joins its group and reads, writes a dead letter and a request, and announces itself."""
    topic = check_topics(kafka, KEYSPACE)
    assigned: list[bool] = []
    consumer = open_consumer(kafka, more={"auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic.name], on_assign=lambda *_: assigned.append(True))
        eventually(lambda: poll_batch(consumer, 1_000, 0.1) and assigned, what="the first messages")
        unassigned(kafka, "", {topic.name: topic.partitions})
    finally:
        consumer.close()
    letters = DeadLetterPublisher(kafka, KEYSPACE)
    letters.send(DeadLetter(topic.name, 0, 0, "bad", "of a test", b"x"))
    letters.flush()
    announce(kafka, [Announcement(keyspace=KEYSPACE, partition=0, address="127.0.0.1:1", instance=uuid.uuid4().hex)])
    with LocationsReader(kafka):
        pass
    sender = HotKeysSender(kafka)
    sender.send(KEYSPACE, SHARD, "shop.items", [b"shop.items\x001"])
    sender.close()


def as_front(_: Guarded, kafka: KafkaCluster) -> None:
    """Finds owners, follows the events for streams, and shows dead letters."""
    with LocationsReader(kafka):
        pass
    read_for_a_while(kafka, check_topics(kafka, KEYSPACE).name)
    read_letters(kafka, KEYSPACE)


def as_spark(_: Guarded, kafka: KafkaCluster) -> None:
    """What the jobs ask before Spark starts, the owners that verify asks, and the events that it shows."""
    read_for_a_while(kafka, topic_bounds(kafka, events_topic(kafka, KEYSPACE)).topic)
    with LocationsReader(kafka):
        pass


def as_operator(guarded: Guarded, kafka: KafkaCluster) -> None:
    """`freshet dlq retry`, `backfill`, `lag` and `swap`."""
    topic, found = events_topic(kafka, KEYSPACE), value(1, b"{}", 1)
    offsets: list[int] = []
    producer = Producer(client_settings(guarded.root))
    producer.produce(topic, found, partition=0, on_delivery=lambda _, message: offsets.append(message.offset()))
    producer.flush(PATIENCE_S)
    publisher = DeadLetterPublisher(guarded.root, KEYSPACE)
    publisher.send(DeadLetter(topic, 0, offsets[0], "bad", "of a test", found))
    publisher.flush()
    assert "" in {each.problem for each in retry(kafka, KEYSPACE)}
    read_for_a_while(kafka, dead_letter_topic(kafka, KEYSPACE))
    read_point(kafka, check_topics(guarded.root, KEYSPACE), SHARD)
    send_request(kafka, KEYSPACE, SHARD, b"{}")
    announce(kafka, [Announcement(keyspace=KEYSPACE, partition=0, address="127.0.0.1:1", instance=uuid.uuid4().hex)])
    with LocationsReader(kafka):
        pass


WORK = {
    "source": as_source,
    "consumer": as_consumer,
    "front": as_front,
    "spark": as_spark,
    "operator": as_operator,
}


def refusals(work: Callable[[Guarded, KafkaCluster], None], guarded: Guarded, user: str) -> list[tuple[str, str]]:
    """What the user was told of rights that it lacks, by an error or in the log: text and hint."""
    with capture_logs() as logged:
        found: list[FreshetError] = []
        try:
            work(guarded, guarded.users[user])
        except FreshetError as error:
            found.append(error)
    told = [(str(each.get("reason", "")), str(each.get("hint", ""))) for each in logged]
    others = [error for error in found if error.code != "kafka_denied"]
    assert not others, repr(others[0])
    return [each for each in told if " lacks " in each[1]] + [(str(each), each.hint) for each in found]


def named(right: AclBinding) -> str:
    """A test's id."""
    return f"{user_of(right)}: {right.operation.name} on {right.restype.name.lower()} {right.name}"


@pytest.mark.parametrize("user", USERS)
def test_the_rights_of_the_page_are_enough(guarded: Guarded, user: str) -> None:
    """Nothing that a process does at Kafka is refused."""
    assert refusals(WORK[user], guarded, user) == []


@pytest.mark.parametrize("right", rights(), ids=named)
def test_each_right_of_the_page_is_needed(guarded: Guarded, right: AclBinding) -> None:
    """Without it the process is refused with the code `kafka_denied`, and a hint says what is lacking, and where."""
    user, kind = user_of(right), right.restype.name
    lacking = {"TOPIC": "a right on a topic", "GROUP": "a right on its consumer group"}
    hint = f"lacks {lacking.get(kind, 'the right Write on a transactional id')}"

    def told() -> bool:
        """Whether the user is told of this one; what a test before has given back may be on its way."""
        found = refusals(WORK[user], guarded, user)
        return any(hint in each and (kind == "GROUP" or right.name in text) for text, each in found)

    take(guarded.admin, right)
    try:
        eventually(told, what=f"the refusal of {user}")
    finally:
        give(guarded.admin, [right])
    if user == "source":  # refused amid making topics, which the others need with a history
        eventually(lambda: not refusals(as_source, guarded, "source"), what="the source's rights")
