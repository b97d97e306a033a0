"""Scripts of client calls whose visible results must be the same on a real Kafka and on the simulated one.

Each takes `Clients` and returns what an application sees. `SCRIPTS` has what that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec

PATIENCE_S: Final = 60.0
Seen = list[Any]


class Clients(Protocol):
    """Where the clients come from, a unique name, and the time that they live in."""

    name: str

    def consumer(self, group: str = "", **settings: Any) -> Any: ...
    def producer(self, **settings: Any) -> Any: ...
    def admin(self) -> Any: ...
    def now(self) -> float: ...


def topic(clients: Clients, partitions: int = 1, suffix: str = "", **config: str) -> str:
    """Makes a topic, and waits until each partition can be asked."""
    name = f"{clients.name}{suffix}"
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    for future in clients.admin().create_topics([new]).values():
        future.result()
    for partition in range(partitions):
        _until(clients, lambda partition=partition: _offset(clients, name, OffsetSpec.latest(), partition) == 0)  # type: ignore[misc]
    return name


def transactional(clients: Clients, more: str = "", timeout_ms: int = 60_000) -> Any:
    """A producer that is ready for its first transaction."""
    producer = clients.producer(**{"transactional.id": clients.name + more, "transaction.timeout.ms": timeout_ms})
    producer.init_transactions(PATIENCE_S)
    return producer


def write(producer: Any, name: str, *values: bytes, partition: int = 0) -> None:
    """Begins a transaction, and has the values written in it."""
    producer.begin_transaction()
    for value in values:
        producer.produce(name, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error: name and flags."""
    try:
        return call()
    except KafkaException as error:
        return shown(error.args[0])
    except (RuntimeError, BufferError) as error:
        return type(error).__name__


def shown(error: KafkaError | None) -> Any:
    """An error's name and flags."""
    if error is None:
        return None
    flags = (("fatal", error.fatal()), ("retriable", error.retriable()), ("abort", error.txn_requires_abort()))
    return " ".join([error.name(), *(name for name, is_set in flags if is_set)])


def polled(clients: Clients, consumer: Any, count: int = 1, timeout_s: float = PATIENCE_S) -> Seen:
    """The next messages and events: (offset, value), or (offset, error)."""
    found: Seen = []
    deadline = clients.now() + timeout_s
    while len(found) < count and clients.now() < deadline:
        message = consumer.poll(0.1)
        if message is not None:
            found.append(_event(message))
    return found


def _event(message: Message) -> tuple[int | None, Any]:
    error = message.error()
    return message.offset(), message.value() if error is None else shown(error)


def _until(clients: Clients, condition: Callable[[], bool]) -> None:
    deadline = clients.now() + PATIENCE_S
    while not condition():
        assert clients.now() < deadline
        clients.admin().list_topics(timeout=5)


def _offset(clients: Clients, name: str, spec: OffsetSpec, partition: int = 0, *, committed: bool = True) -> Any:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    futures = clients.admin().list_offsets({TopicPartition(name, partition): spec}, isolation_level=level)
    [future] = futures.values()
    return outcome(lambda: future.result().offset)


def _ends(clients: Clients, name: str, partition: int = 0) -> tuple[int, int, int]:
    """First offset, last stable one, end."""
    return (
        _offset(clients, name, OffsetSpec.earliest(), partition),
        _offset(clients, name, OffsetSpec.latest(), partition),
        _offset(clients, name, OffsetSpec.latest(), partition, committed=False),
    )


def _position(consumer: Any, name: str, partition: int = 0) -> int:
    [place] = consumer.position([TopicPartition(name, partition)])
    return int(place.offset)


# --- scripts ---


def offsets_of_transactions(clients: Clients) -> Seen:
    """Control records take offsets. What is aborted or not ended is not read; the position passes what is hidden."""
    name = topic(clients, 2)
    producer, other = transactional(clients), transactional(clients, "other")
    write(producer, name, b"a", b"b")
    producer.commit_transaction(PATIENCE_S)
    write(producer, name, b"c")
    producer.abort_transaction(PATIENCE_S)
    _until(clients, lambda: _ends(clients, name)[1] == 5)
    seen: Seen = [_ends(clients, name)]
    write(other, name, b"d")
    write(producer, name, b"e")
    producer.commit_transaction(PATIENCE_S)
    _until(clients, lambda: _ends(clients, name)[2] == 8)
    seen.append(_ends(clients, name))
    consumer = clients.consumer("", **{"enable.partition.eof": True})
    place = TopicPartition(name, 0, 0)
    consumer.assign([place])
    seen += [consumer.get_watermark_offsets(place, cached=True), _position(consumer, name)]
    for _ in range(3):
        seen += [*polled(clients, consumer), _position(consumer, name)]
    seen += [consumer.get_watermark_offsets(place, timeout=5), consumer.get_watermark_offsets(place, cached=True)]
    other.commit_transaction(PATIENCE_S)
    seen += polled(clients, consumer, 3)
    seen += [polled(clients, consumer, 1, 0.5), _position(consumer, name), _ends(clients, name, 1)]
    consumer.close()
    return seen


def fencing(clients: Clients) -> Seen:
    """A second producer of a transactional id aborts the first one's transaction, and the first one can do nothing."""
    name = topic(clients)
    first = transactional(clients)
    write(first, name, b"lost")
    second = transactional(clients)
    seen: Seen = [_ends(clients, name)]
    seen.append(outcome(lambda: first.commit_transaction(10)))
    seen.append(outcome(first.begin_transaction))
    seen.append(outcome(lambda: first.produce(name, b"x", partition=0)))
    write(second, name, b"kept")
    second.commit_transaction(PATIENCE_S)
    third = transactional(clients)
    reports: Seen = []
    second.begin_transaction()
    second.produce(name, b"late", partition=0, on_delivery=lambda error, _: reports.append(shown(error)))
    seen.append(outcome(lambda: second.commit_transaction(10)))
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
    producer = transactional(clients, timeout_ms=1000)
    write(producer, name, b"late")
    seen: Seen = [_ends(clients, name)]
    _until(clients, lambda: _ends(clients, name) == (0, 2, 2))
    seen.append(outcome(lambda: producer.commit_transaction(10)))
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
            "message.timestamp.before.max.ms": "1000",
            "message.timestamp.after.max.ms": "1000",
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
    seen: Seen = [_ends(clients, name)]
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
    seen += [polled(clients, consumer, 1, 0.5), _position(consumer, name)]
    consumer.resume([place])
    seen += polled(clients, consumer, 1)
    consumer.seek(TopicPartition(name, 0, 1))
    seen += [_position(consumer, name), *polled(clients, consumer, 6)]
    consumer.seek(TopicPartition(name, 0, 5))
    seen += polled(clients, consumer, 2)
    consumer.close()
    return seen


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
    seen.append(sorted(admin.list_topics(topic=name, timeout=5).topics[name].partitions))
    missing = f"{name}.missing"
    seen.append(shown(admin.list_topics(topic=missing, timeout=5).topics[missing].error))
    seen.append(outcome(admin.describe_topics(TopicCollection([missing]))[missing].result))
    seen.append(_offset(clients, name, OffsetSpec.latest(), 5))
    admin.delete_topics([name])[name].result()
    _until(clients, lambda: name not in clients.admin().list_topics(timeout=5).topics)
    seen.append(outcome(admin.delete_topics([name])[name].result))
    return [each.replace(clients.name, "topic") if isinstance(each, str) else each for each in seen]


class Rebalances:
    """What a group's member is called for."""

    def __init__(self) -> None:
        self.seen: Seen = []

    def callbacks(self) -> dict[str, Callable[[Any, list[TopicPartition]], None]]:
        """For `subscribe`."""

        def assigned(consumer: Any, places: list[TopicPartition]) -> None:
            self.seen.append(("assign", sorted(each.partition for each in places)))
            consumer.incremental_assign([TopicPartition(each.topic, each.partition, 0) for each in places])

        def revoked(consumer: Any, places: list[TopicPartition]) -> None:
            self.seen.append(("revoke", sorted(each.partition for each in places)))
            consumer.incremental_unassign(places)

        def lost(consumer: Any, places: list[TopicPartition]) -> None:
            self.seen.append(("lost", sorted(each.partition for each in places)))
            consumer.incremental_unassign(places)

        return {"on_assign": assigned, "on_revoke": revoked, "on_lost": lost}


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
        found = clients.consumer(group, **{"group.instance.id": instance, "session.timeout.ms": 10_000})
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
    seen += [plain.flush(0.5), plain.flush(5), reports]
    errors: Seen = []
    consumer = clients.consumer(name, error_cb=lambda error: errors.append(shown(error)))
    seen.append(outcome(lambda: consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=1)))
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
    _until(clients, lambda: _ends(clients, name) == (0, 4, 4))
    seen: Seen = [_ends(clients, name), *read(6, -1, 1), *read(6, 0, 1)]
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

SCRIPTS: Final[dict[Callable[[Clients], Seen], Seen]] = {
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
"""Script → what it sees, on any Kafka."""
