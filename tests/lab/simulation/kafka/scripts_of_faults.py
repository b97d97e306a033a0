"""Scripts that need a Kafka which is away or loses what it had, and what each sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from tests.lab.simulation.kafka.scripting import (
    PATIENCE_S,
    Clients,
    Seen,
    ends,
    outcome,
    polled,
    shown,
    topic,
    until,
)


def no_brokers(clients: Clients) -> Seen:
    """What each request says when nobody answers."""
    admin, name = clients.admin(), clients.name
    seen: Seen = [outcome(lambda: admin.list_topics(timeout=1))]
    seen.append(outcome(admin.describe_topics(TopicCollection([name]), request_timeout=1)[name].result))
    [listed] = admin.list_offsets({TopicPartition(name, 0): OffsetSpec.latest()}, request_timeout=1).values()
    seen.append(outcome(listed.result))
    [made] = admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)], request_timeout=1).values()
    seen.append(outcome(made.result))
    producer = clients.producer(**{"transactional.id": name})
    seen.append(outcome(lambda: producer.init_transactions(1)))
    plain = clients.producer(**{"enable.idempotence": True, "delivery.timeout.ms": 1500})
    reports: Seen = []
    plain.produce(name, b"x", partition=0, on_delivery=lambda error, _: reports.append(shown(error)))
    seen += [plain.flush(0.5), plain.flush(PATIENCE_S), reports]
    errors: Seen = []
    consumer = clients.consumer(name, error_cb=lambda error: errors.append(shown(error)))
    seen.append(outcome(lambda: consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=1)))
    seen.append(outcome(lambda: consumer.list_topics(name, timeout=1)))
    consumer.subscribe([name])
    seen += [
        polled(clients, consumer, 1, 2.0),
        sorted(set(errors)),
        consumer.get_watermark_offsets(TopicPartition(name, 0), cached=True),
    ]
    consumer.close()
    return seen


def after_a_lost_tail(clients: Clients, lose: Callable[[str], None]) -> Seen:
    """``lose`` has the topic lose a third of its six records; then others take their offsets."""
    name = topic(clients)

    def write_plainly(tag: bytes) -> None:
        producer = clients.producer(**{"enable.idempotence": True})
        for number in range(6):
            producer.produce(name, b"%s %d" % (tag, number), partition=0)
            assert producer.flush(PATIENCE_S) == 0

    def read(offset: int, epoch: int, count: int) -> Seen:
        consumer = clients.consumer("", **{"enable.partition.eof": True})
        consumer.assign([TopicPartition(name, 0, offset, leader_epoch=epoch)])
        found = polled(clients, consumer, count)
        consumer.close()
        return found

    write_plainly(b"old")
    lose(name)
    until(clients, lambda: ends(clients, name) == (0, 4, 4))
    seen: Seen = [ends(clients, name), *read(6, -1, 1), *read(6, 0, 1)]
    write_plainly(b"new")
    return [*seen, *read(6, -1, 1), *read(6, 0, 1), *read(4, 0, 2)]


NO_BROKERS: Final = [
    "_TRANSPORT",
    "_TIMED_OUT",
    "_TIMED_OUT",
    "_TIMED_OUT",
    "_TIMED_OUT retriable",
    1,
    0,
    ["_MSG_TIMED_OUT"],
    "_ALL_BROKERS_DOWN",
    "_TRANSPORT",
    [],
    ["_ALL_BROKERS_DOWN", "_TRANSPORT"],
    (-1001, -1001),
]
AFTER_A_LOST_TAIL: Final = [
    (0, 4, 4),
    (6, "_AUTO_OFFSET_RESET"),
    (None, "_AUTO_OFFSET_RESET"),
    (6, b"new 2"),
    (None, "_AUTO_OFFSET_RESET"),
    (4, b"new 0"),
    (5, b"new 1"),
]
