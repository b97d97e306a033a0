"""Scripts that make, change and delete topics, groups that read them, and what each sees on any Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec

from tests.lab.simulation.kafka.scripting import (
    PATIENCE_S,
    Clients,
    Rebalances,
    Seen,
    offset_of,
    outcome,
    polled,
    shown,
    topic,
    transactional,
    until,
    write,
)


def settings_of_topics(clients: Clients) -> Seen:
    """What administration says of topics: present, missing, made twice, deleted."""
    admin = clients.admin()
    name = topic(clients, 3, "", **{"retention.ms": "1234567", "cleanup.policy": "compact"})
    [again] = admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)]).values()
    seen: Seen = [outcome(again.result)]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    settings = admin.describe_configs([resource])[resource].result()
    wanted = ("retention.ms", "cleanup.policy", "retention.bytes", "message.timestamp.type", "min.insync.replicas")
    seen += [settings[each].value for each in (*wanted, "unclean.leader.election.enable", "max.message.bytes")]
    found = admin.describe_topics(TopicCollection([name]))[name].result()
    seen += [found.name, [each.id for each in found.partitions], [len(each.replicas) for each in found.partitions]]
    seen.append(sorted(admin.list_topics(topic=name, timeout=PATIENCE_S).topics[name].partitions))
    missing = f"{name}.missing"
    seen.append(shown(admin.list_topics(topic=missing, timeout=PATIENCE_S).topics[missing].error))
    seen.append(outcome(admin.describe_topics(TopicCollection([missing]))[missing].result))
    seen.append(offset_of(clients, name, OffsetSpec.latest(), 5))
    admin.delete_topics([name])[name].result()
    until(clients, lambda: name not in clients.admin().list_topics(timeout=PATIENCE_S).topics)
    seen.append(outcome(admin.delete_topics([name])[name].result))
    return [each.replace(clients.name, "topic") if isinstance(each, str) else each for each in seen]


def _spin(clients: Clients, condition: Callable[[], bool], *consumers: Any) -> None:
    deadline = clients.now() + PATIENCE_S
    while not condition():
        assert clients.now() < deadline
        for each in consumers:
            each.poll(0.05)


def _generation(consumer: Any) -> int:
    return int.from_bytes(bytes(consumer.consumer_group_metadata())[7:11], "little", signed=True)


def a_group(clients: Clients) -> Seen:
    """A second member takes half of the partitions, in two generations; static ones come back without a rebalance."""
    name, group = topic(clients, 4), clients.name
    first, second, third = Rebalances(), Rebalances(), Rebalances()

    def member(instance: str, watched: Rebalances) -> Any:
        found = clients.consumer(group, **{"group.instance.id": instance, "session.timeout.ms": 40_000})
        found.subscribe([name], **watched.callbacks())
        return found

    one = member("one", first)
    seen: Seen = [_generation(one)]
    _spin(clients, lambda: len(first.seen) == 1, one)
    seen.append(_generation(one))
    two = member("two", second)
    _spin(clients, lambda: sum(len(places) for what, places in second.seen if what == "assign") == 2, one, two)
    _spin(clients, lambda: len(first.seen) >= 4, one, two)
    seen += [_generation(one), _generation(two)]
    one.close()
    again = member("one", third)
    _spin(clients, lambda: len(third.seen) == 1, again, two)
    seen += [_generation(again), _generation(two)]
    two.close()
    again.close()
    return [
        *seen,
        [what for what, _ in first.seen],
        first.seen[0],
        first.seen[-1] == third.seen[-1],
        third.seen[0][0],
        [what for what, _ in second.seen],
        len(second.seen[-1][1]),
    ]


def a_group_that_a_member_leaves_while_it_reads_on(clients: Clients) -> Seen:
    """A static member keeps reading what is revoked. Without a subscription it is out at once, and can still read."""
    name, group = topic(clients, 2), clients.name
    first, second = Rebalances(), Rebalances()

    def member(instance: str, watched: Rebalances, **more: Any) -> Any:
        found = clients.consumer(group, **{"group.instance.id": instance, "session.timeout.ms": 200_000})
        found.subscribe([name], **watched.callbacks() | more)
        return found

    def keep(consumer: Any, places: list[TopicPartition]) -> None:
        first.seen.append(("revoke", sorted(each.partition for each in places)))
        consumer.incremental_unassign([])

    one = member("one", first, on_revoke=keep)
    _spin(clients, lambda: len(first.seen) == 1, one)
    asked_at = clients.now()
    one.unsubscribe()
    two = member("two", second)
    _spin(clients, lambda: any(len(places) == 2 for _, places in second.seen), one, two)
    seen: Seen = [clients.now() - asked_at < 100]
    producer = transactional(clients)
    write(producer, name, b"a")
    producer.commit_transaction()
    seen += [polled(clients, one), polled(clients, two)]
    one.incremental_unassign([TopicPartition(name, 0)])
    write(producer, name, b"b")
    producer.commit_transaction()
    seen += [polled(clients, one, timeout_s=1), polled(clients, two)]
    two.close()
    one.close()
    return [*seen, first.seen, [each for each in second.seen if each[1]]]


def a_group_that_a_member_leaves_amid_an_assignment(clients: Clients) -> Seen:
    """What it was given before it left it is told of, and then that it is taken away again."""
    name, group, watched = topic(clients, 2), clients.name, Rebalances()
    one = clients.consumer(group, **{"group.instance.id": "one", "session.timeout.ms": 40_000})
    one.subscribe([name], **watched.callbacks())
    until(clients, lambda: _generation(one) > 0)
    given_at = clients.now() + 1
    until(clients, lambda: clients.now() > given_at)
    one.unsubscribe()
    two = clients.consumer(group)
    second = Rebalances()
    two.subscribe([name], **second.callbacks())
    _spin(clients, lambda: any(len(places) == 2 for _, places in second.seen), one, two)
    two.close()
    one.close()
    return [watched.seen, [each for each in second.seen if each[1]]]


def a_topic_that_is_made_anew(clients: Clients) -> Seen:
    """A reader does not hear that its topic is gone, and reads on in the new one as if that were the same."""
    name = topic(clients)
    producer = clients.producer(**{"enable.idempotence": True})
    for number in range(3):
        producer.produce(name, b"old %d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    admin = clients.admin()
    before = admin.describe_topics(TopicCollection([name]))[name].result().topic_id
    consumer = clients.consumer("", **{"topic.metadata.refresh.interval.ms": 200})
    consumer.assign([TopicPartition(name, 0, 0)])
    seen: Seen = polled(clients, consumer, 3)
    admin.delete_topics([name])[name].result()
    seen += polled(clients, consumer, 1, 1.0)
    topic(clients)
    after = admin.describe_topics(TopicCollection([name]))[name].result().topic_id
    seen += [str(before) == str(after), *polled(clients, consumer, 1)]
    producer = clients.producer(**{"enable.idempotence": True})
    for number in range(5):
        producer.produce(name, b"new %d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer.assign([TopicPartition(name, 0, 3)])
    seen += polled(clients, consumer, 2)
    consumer.close()
    return seen


def a_groups_topic_that_is_deleted(clients: Clients) -> Seen:
    """A member is told once, has lost the partitions, and gets those of the new topic."""
    gone, kept = topic(clients, 2), topic(clients, 1, "kept")
    watched = Rebalances()
    member = clients.consumer(clients.name, **{"topic.metadata.refresh.interval.ms": 200})
    member.subscribe([gone, kept], **watched.callbacks())
    _spin(clients, lambda: bool(watched.seen), member)
    clients.admin().delete_topics([gone])[gone].result()
    seen: Seen = [error for _, error in polled(clients, member, 1)]
    _spin(clients, lambda: len(watched.seen) == 3, member)
    topic(clients, 2)
    _spin(clients, lambda: len(watched.seen) == 4, member)
    member.close()
    return [*seen, *watched.seen]


def a_topic_that_is_missing(clients: Clients) -> Seen:
    """A member of a group hears that it has subscribed to what is not there."""
    consumer = clients.consumer(clients.name)
    consumer.subscribe([f"{clients.name}.none"])
    seen = polled(clients, consumer, 1)
    consumer.close()
    return [error for _, error in seen]


OF_TOPICS: Final[dict[Callable[[Clients], Seen], Seen]] = {
    settings_of_topics: [
        "TOPIC_ALREADY_EXISTS",
        "1234567",
        "compact",
        "-1",
        "CreateTime",
        "1",
        "false",
        "16777216",
        "topic",
        [0, 1, 2],
        [1, 1, 1],
        [0, 1, 2],
        "UNKNOWN_TOPIC_OR_PART",
        "UNKNOWN_TOPIC_OR_PART",
        "_NOENT",
        "UNKNOWN_TOPIC_OR_PART",
    ],
    a_group: [
        -1,
        1,
        3,
        3,
        3,
        3,
        ["assign", "revoke", "assign", "assign", "revoke"],
        ("assign", [0, 1, 2, 3]),
        True,
        "assign",
        ["assign", "assign", "revoke"],
        2,
    ],
    a_group_that_a_member_leaves_while_it_reads_on: [
        True,
        [(0, b"a")],
        [(0, b"a")],
        [],
        [(2, b"b")],
        [("assign", [0, 1]), ("revoke", [0, 1])],
        [("assign", [0, 1]), ("revoke", [0, 1])],
    ],
    a_group_that_a_member_leaves_amid_an_assignment: [
        [("assign", [0, 1]), ("revoke", [0, 1])],
        [("assign", [0, 1]), ("revoke", [0, 1])],
    ],
    a_topic_that_is_made_anew: [
        (0, b"old 0"),
        (1, b"old 1"),
        (2, b"old 2"),
        False,
        (3, "_AUTO_OFFSET_RESET"),
        (3, b"new 3"),
        (4, b"new 4"),
    ],
    a_groups_topic_that_is_deleted: [
        "UNKNOWN_TOPIC_OR_PART",
        ("assign", [0, 0, 1]),
        ("lost", [0, 1]),
        ("assign", []),
        ("assign", [0, 1]),
        ("revoke", [0, 0, 1]),
    ],
    a_topic_that_is_missing: ["UNKNOWN_TOPIC_OR_PART"],
}
"""Script → what it sees."""
