"""What scripts of client calls are written with, on a real Kafka or on the simulated one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

PATIENCE_S: Final = 240.0
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
        until(clients, lambda partition=partition: offset_of(clients, name, OffsetSpec.latest(), partition) == 0)  # type: ignore[misc]
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
    """(offset, value), or (offset, error)."""
    error = message.error()
    return message.offset(), message.value() if error is None else shown(error)


def until(clients: Clients, condition: Callable[[], bool]) -> None:
    """Waits for what the cluster has to learn."""
    deadline = clients.now() + PATIENCE_S
    while not condition():
        assert clients.now() < deadline
        clients.admin().list_topics(timeout=PATIENCE_S)


def offset_of(clients: Clients, name: str, spec: OffsetSpec, partition: int = 0, *, committed: bool = True) -> Any:
    """The offset that a broker names, or its error."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    futures = clients.admin().list_offsets({TopicPartition(name, partition): spec}, isolation_level=level)
    [future] = futures.values()
    return outcome(lambda: future.result().offset)


def ends(clients: Clients, name: str, partition: int = 0) -> tuple[int, int, int]:
    """First offset, last stable one, end."""
    return (
        offset_of(clients, name, OffsetSpec.earliest(), partition),
        offset_of(clients, name, OffsetSpec.latest(), partition),
        offset_of(clients, name, OffsetSpec.latest(), partition, committed=False),
    )


def position(consumer: Any, name: str, partition: int = 0) -> int:
    """Where a consumer reads next."""
    [place] = consumer.position([TopicPartition(name, partition)])
    return int(place.offset)


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
