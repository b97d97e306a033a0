"""Scripts that write and read messages, and what each sees on any Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, Message, TopicPartition

from tests.lab.simulation.kafka.scripting import (
    PATIENCE_S,
    Clients,
    Seen,
    ends,
    outcome,
    polled,
    position,
    shown,
    topic,
    transactional,
    until,
    write,
)


def offsets_of_transactions(clients: Clients) -> Seen:
    """Control records take offsets. What is aborted or not ended is not read; the position passes what is hidden."""
    name = topic(clients, 2)
    producer, other = transactional(clients), transactional(clients, "other")
    write(producer, name, b"a", b"b")
    producer.commit_transaction(PATIENCE_S)
    write(producer, name, b"c")
    producer.abort_transaction(PATIENCE_S)
    until(clients, lambda: ends(clients, name)[1] == 5)
    seen: Seen = [ends(clients, name)]
    write(other, name, b"d")
    write(producer, name, b"e")
    producer.commit_transaction(PATIENCE_S)
    until(clients, lambda: ends(clients, name)[2] == 8)
    seen.append(ends(clients, name))
    consumer = clients.consumer("", **{"enable.partition.eof": True})
    place = TopicPartition(name, 0, 0)
    consumer.assign([place])
    seen += [consumer.get_watermark_offsets(place, cached=True), position(consumer, name)]
    for _ in range(3):
        seen += [*polled(clients, consumer), position(consumer, name)]
    seen += [consumer.get_watermark_offsets(place, timeout=60), consumer.get_watermark_offsets(place, cached=True)]
    other.commit_transaction(PATIENCE_S)
    seen += polled(clients, consumer, 3)
    seen += [polled(clients, consumer, 1, 0.5), position(consumer, name), ends(clients, name, 1)]
    consumer.close()
    return seen


def fencing(clients: Clients) -> Seen:
    """A second producer of a transactional id aborts the first one's transaction, and the first one can do nothing."""
    name = topic(clients)
    first = transactional(clients)
    write(first, name, b"lost")
    second = transactional(clients)
    seen: Seen = [ends(clients, name)]
    seen.append(outcome(lambda: first.commit_transaction(PATIENCE_S)))
    seen.append(outcome(first.begin_transaction))
    seen.append(outcome(lambda: first.produce(name, b"x", partition=0)))
    write(second, name, b"kept")
    second.commit_transaction(PATIENCE_S)
    third = transactional(clients)
    reports: Seen = []
    second.begin_transaction()
    second.produce(name, b"late", partition=0, on_delivery=lambda error, _: reports.append(shown(error)))
    seen.append(outcome(lambda: second.commit_transaction(PATIENCE_S)))
    write(third, name, b"kept too")
    third.commit_transaction(PATIENCE_S)
    consumer = clients.consumer()
    consumer.assign([TopicPartition(name, 0, 0)])
    seen += polled(clients, consumer, 2)
    consumer.close()
    return seen


def a_transaction_that_takes_too_long(clients: Clients) -> Seen:
    """The coordinator aborts it and fences its producer; readers wait for that, and no longer."""
    name = topic(clients)
    producer = transactional(clients, timeout_ms=5000)
    write(producer, name, b"late")
    seen: Seen = [ends(clients, name)]
    until(clients, lambda: ends(clients, name) == (0, 2, 2))
    seen.append(outcome(lambda: producer.commit_transaction(PATIENCE_S)))
    return seen


def wrong_calls(clients: Clients) -> Seen:
    """Calls in a wrong state, and their errors."""
    name = topic(clients)
    producer = clients.producer(**{"transactional.id": clients.name})
    seen: Seen = [outcome(producer.begin_transaction)]
    producer.init_transactions(PATIENCE_S)
    seen.append(outcome(lambda: producer.produce(name, b"x", partition=0)))
    seen.append(outcome(lambda: producer.commit_transaction(5)))
    consumer = clients.consumer()
    place = TopicPartition(name, 0, 0)
    seen.append(outcome(lambda: consumer.seek(place)))
    consumer.incremental_assign([place])
    seen.append(outcome(lambda: consumer.incremental_assign([place])))
    seen.append(outcome(lambda: consumer.incremental_unassign([TopicPartition(name, 7)])))
    seen.append(outcome(lambda: consumer.incremental_unassign([place])))
    consumer.close()
    seen.append(outcome(lambda: consumer.poll(0)))
    seen.append(outcome(consumer.close))
    return seen


def refused_messages(clients: Clients) -> Seen:
    """What a broker or the client itself does not take."""
    name = topic(
        clients,
        1,
        "",
        **{
            "max.message.bytes": "10000",
            "message.timestamp.before.max.ms": "3600000",
            "message.timestamp.after.max.ms": "3600000",
        },
    )
    producer = clients.producer(**{"message.max.bytes": 20_000, "enable.idempotence": True, "compression.type": "none"})
    seen: Seen = [outcome(lambda: producer.produce(name, b"x" * 30_000, partition=0))]
    reports: Seen = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        reports.append((shown(error), message.offset() if error is None else None))

    for value, timestamp in ((b"x" * 15_000, 0), (b"x", 1_000_000), (b"good", 0)):
        producer.produce(name, value, partition=0, timestamp=timestamp, on_delivery=on_delivery)
        assert producer.flush(PATIENCE_S) == 0
    return seen + reports


def lost_places(clients: Clients) -> Seen:
    """An offset that is not there is an error, after which nothing is fetched until the partition is assigned again."""
    name = topic(clients)
    producer = clients.producer(**{"enable.idempotence": True})
    for number in range(5):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    [deleted] = clients.admin().delete_records([TopicPartition(name, 0, 3)]).values()
    deleted.result()
    seen: Seen = [ends(clients, name)]
    consumer = clients.consumer("", **{"enable.partition.eof": True})
    for offset in (2, 9):
        consumer.assign([TopicPartition(name, 0, offset)])
        seen += polled(clients, consumer)
        seen += [polled(clients, consumer, 1, 0.5), outcome(lambda: consumer.seek(TopicPartition(name, 0, 3)))]
    consumer.assign([TopicPartition(name, 0, 3)])
    seen += polled(clients, consumer, 3)
    consumer.close()
    return seen


def pausing(clients: Clients) -> Seen:
    """A paused partition gives nothing, not even what was fetched; it goes on where the application is, or seeks to."""
    name = topic(clients)
    producer = clients.producer(**{"enable.idempotence": True})
    for number in range(6):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = clients.consumer("", **{"enable.partition.eof": True})
    place = TopicPartition(name, 0, 0)
    consumer.assign([place])
    seen: Seen = polled(clients, consumer, 2)
    consumer.pause([place])
    seen += [polled(clients, consumer, 1, 0.5), position(consumer, name)]
    consumer.resume([place])
    seen += polled(clients, consumer, 1)
    consumer.seek(TopicPartition(name, 0, 1))
    seen += [position(consumer, name), *polled(clients, consumer, 6)]
    consumer.seek(TopicPartition(name, 0, 5))
    seen += polled(clients, consumer, 2)
    consumer.close()
    return seen


def pauses_that_outlive_assignments(clients: Clients) -> Seen:
    """What is paused when it is given up, or afterwards, gives nothing where it is assigned again, before a resume."""
    name = topic(clients)
    producer = clients.producer(**{"enable.idempotence": True})
    for number in range(6):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = clients.consumer()
    seen: Seen = [outcome(lambda: consumer.pause([TopicPartition(name + "-unknown", 0)]))]

    def assigned(offset: int) -> None:
        consumer.incremental_assign([TopicPartition(name, 0, offset)])

    def given_up() -> None:
        consumer.incremental_unassign([TopicPartition(name, 0)])

    assigned(0)
    seen += polled(clients, consumer)
    consumer.pause([TopicPartition(name, 0)])
    given_up()
    assigned(2)
    seen.append(polled(clients, consumer, 1, 1.0))
    consumer.resume([TopicPartition(name, 0)])
    given_up()
    assigned(3)
    seen += polled(clients, consumer)
    given_up()
    consumer.pause([TopicPartition(name, 0)])
    assigned(4)
    seen.append(polled(clients, consumer, 1, 1.0))
    given_up()
    consumer.resume([TopicPartition(name, 0)])
    assigned(5)
    seen += polled(clients, consumer)
    consumer.close()
    return seen


OF_MESSAGES: Final[dict[Callable[[Clients], Seen], Seen]] = {
    offsets_of_transactions: [
        (0, 5, 5),
        (0, 5, 8),
        (-1001, -1001),
        -1001,
        (0, b"a"),
        1,
        (1, b"b"),
        2,
        (5, "_PARTITION_EOF"),
        5,
        (0, 5),
        (0, 8),
        (5, b"d"),
        (6, b"e"),
        (9, "_PARTITION_EOF"),
        [],
        9,
        (0, 0, 0),
    ],
    fencing: [
        (0, 2, 2),
        "_FENCED fatal",
        "_FENCED fatal",
        "_FATAL",
        "_FENCED fatal",
        (2, b"kept"),
        (4, b"kept too"),
    ],
    a_transaction_that_takes_too_long: [(0, 0, 1), "_FENCED fatal"],
    wrong_calls: [
        "_STATE",
        "_STATE",
        "_STATE",
        "_UNKNOWN_PARTITION",
        "_CONFLICT",
        "_INVALID_ARG",
        None,
        "RuntimeError",
        None,
    ],
    refused_messages: ["MSG_SIZE_TOO_LARGE", ("MSG_SIZE_TOO_LARGE", None), ("INVALID_TIMESTAMP", None), (None, 0)],
    lost_places: [
        (3, 5, 5),
        (2, "_AUTO_OFFSET_RESET"),
        [],
        "_STATE",
        (9, "_AUTO_OFFSET_RESET"),
        [],
        "_STATE",
        (3, b"3"),
        (4, b"4"),
        (5, "_PARTITION_EOF"),
    ],
    pausing: [
        (0, b"0"),
        (1, b"1"),
        [],
        2,
        (2, b"2"),
        -1001,
        *[(offset, b"%d" % offset) for offset in range(1, 6)],
        (6, "_PARTITION_EOF"),
        (5, b"5"),
        (6, "_PARTITION_EOF"),
    ],
    pauses_that_outlive_assignments: [None, (0, b"0"), [], (3, b"3"), [], (5, b"5")],
}
"""Script → what it sees."""
