"""The topics that a connector writes: which there are, where they end, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from stream.kafka.connection import (
    REQUEST_TIMEOUT_S,
    KafkaCluster,
    KafkaRequestError,
    KafkaUnreachable,
    call_kafka,
    client_settings,
)
from stream.kafka.reader import TopicReadError, is_notice, open_consumer
from stream.sources.debezium.errors import DebeziumError
from stream.sources.debezium.transactions import Place
from stream.sources.mariadb.connection import SourceHistoryLost

MESSAGES_MAX: Final = 2_000
_NOT_LEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")
_UNKNOWN: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

Offsets = dict[tuple[str, int], int]
"""Topic and partition → offset."""


class ConnectorTopics:
    """Reads the topics of one connector, committed records only. ``prefix``: its ``topic.prefix``. Not thread-safe."""

    def __init__(self, kafka: KafkaCluster, prefix: str) -> None:
        self._kafka = kafka
        with ExitStack() as clients:
            self._admin = clients.enter_context(AdminClient(client_settings(kafka)))
            self._consumer = open_consumer(kafka, more={"enable.partition.eof": True})
            clients.callback(self._consumer.close)
            self._clients = clients.pop_all()
        self.prefix = prefix
        self.statements, self.transactions = legal(prefix), f"{legal(prefix)}.transaction"
        self.reached: Offsets = {}
        """What is read next of each partition that is read."""
        self.read: set[str] = set()
        """The topics that are read."""
        self._found_with: Offsets = {}
        """Where partitions ended when `look_for` found them."""

    def topic_of(self, table: str) -> str:
        """The topic with the rows of ``db.table``. Others may be in it, too: it has not all characters of names."""
        return legal(f"{self.prefix}.{table}")

    def existing(self) -> dict[str, int]:
        """The connector's topics, and how many partitions each has. Raises `KafkaUnreachable`, `DebeziumError`."""
        found = call_kafka(
            self._kafka, "list the connector's topics", lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        )
        begins = f"{self.statements}."
        mine = {
            name: len(topic.partitions)
            for name, topic in found.topics.items()
            if name == self.statements or name.startswith(begins)
        }
        for name in (self.statements, self.transactions):
            if mine.get(name, 1) != 1:
                raise DebeziumError(
                    f"{name} has {mine[name]} partitions, so that its messages have no order",
                    hint="it needs one partition: make it anew, or set topic.creation.default.partitions = 1",
                    code="debezium_bad_connector",
                )
        return mine

    def ends(self, topics: Mapping[str, int] | None = None) -> Offsets:
        """The end of each partition that is read, or of ``topics``, also of what is not committed yet."""
        every = [(name, n) for name, count in (topics or {}).items() for n in range(count)]
        return self._offsets(OffsetSpec.latest(), self.reached if topics is None else every)

    def beginning(self, topics: Mapping[str, int]) -> Offsets:
        """The end of each partition of ``topics``, where a transaction with a row behind it has its end behind it.

        Of the ends only those count that Kafka has committed: else one may be there before its row is.
        """
        places = [(self.transactions, n) for n in range(topics.get(self.transactions, 0))]
        ends = self._offsets(OffsetSpec.latest(), places, IsolationLevel.READ_COMMITTED)
        return ends | self.ends({name: count for name, count in topics.items() if name != self.transactions})

    def _offsets(
        self,
        spec: OffsetSpec,
        places: Iterable[tuple[str, int]],
        level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Offsets:
        """Raises `SourceHistoryLost` if some of the topics are not there any more, `KafkaUnreachable`."""
        request = {TopicPartition(*place): spec for place in places}
        if not request:
            return {}

        def ask() -> Offsets:
            found = self._admin.list_offsets(request, isolation_level=level, request_timeout=REQUEST_TIMEOUT_S)
            return {(place.topic, place.partition): future.result().offset for place, future in found.items()}

        try:
            return call_kafka(self._kafka, "list the ends of the connector's topics", ask, patience_s=REQUEST_TIMEOUT_S)
        except KafkaRequestError as error:
            gone = sorted({place.topic for place in request} - self.existing().keys())
            if not gone:
                raise
            raise _deleted(", ".join(gone)) from error

    def look_for(self, tables: Iterable[str]) -> list[str]:
        """Read, from their beginning, the topics of ``tables`` that are there now and were not. Returns their tables.

        What is in them is older than the moment at which their tables are looked at again.
        """
        existing = self.existing()
        names = {table: self.topic_of(table) for table in tables}
        wanted = existing.keys() & {self.transactions, *names.values()}
        places = [(name, n) for name in wanted for n in range(existing[name]) if (name, n) not in self.reached]
        self.add(self._offsets(OffsetSpec.earliest(), places))
        self._found_with |= self._offsets(OffsetSpec.latest(), places)
        new = {name for name, _ in places}
        return sorted(table for table, name in names.items() if name in new)

    def is_told_elsewhere(self, place: Place) -> bool:
        """Whether a sign of a snapshot is of before, or in the topic of statements, too (PostgreSQL's has none)."""
        return self.statements in self.read and place.offset < self._found_with.get((place.topic, place.partition), 0)

    def has_reached(self, ends: Mapping[tuple[str, int], int]) -> bool:
        """Whether everything before ``ends`` was given by `poll`."""
        return all(self.reached[place] >= end for place, end in ends.items())

    def add(self, places: Offsets) -> None:
        """Read more partitions, each from its offset on."""
        if places:
            self._consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in places.items()])
            self.reached.update(places)
            self.read.update(topic for topic, _ in places)

    def poll(self, timeout_s: float) -> Iterable[Message]:
        """The messages that have arrived. Raises `SourceHistoryLost` if some were deleted, or a topic was.

        Raises `KafkaUnreachable` if a broker does not know a topic that is there, as one that has just started.
        """
        try:
            found = self._consumer.consume(MESSAGES_MAX, timeout_s)
        except KafkaException:
            return
        for message in found:
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            error = message.error()
            if error is None:
                yield message
                self.reached[place] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self.reached[place] = max(offset, self.reached.get(place, 0))
            else:
                self._check(message)

    def _check(self, message: Message) -> None:
        try:
            is_notice(message)
        except TopicReadError as error:
            if message.error().code() in _UNKNOWN:
                if self._is_there(message):
                    raise KafkaUnreachable(f"a broker does not know a topic that is there: {error}") from error
                raise _deleted(str(message.topic())) from error
            if error.code != "offset_out_of_range":
                raise
            raise SourceHistoryLost(
                f"messages of the connector were deleted before they were read: {error}",
                hint="keep its topics longer (retention.ms): a new epoch starts",
            ) from error

    def _is_there(self, message: Message) -> bool:
        """Whether there is the partition of ``message``: of a topic whose partitions nobody tells now, all are."""
        count = self.existing().get(message.topic() or "")
        return count is not None and (count == 0 or (message.partition() or 0) < count)

    def close(self) -> None:
        """End the reading."""
        self._clients.close()


def _deleted(topics: str) -> SourceHistoryLost:
    return SourceHistoryLost(f"topics of the connector were deleted: {topics}", hint="a new epoch starts")


def legal(name: str) -> str:
    """A name as Debezium makes a topic of it."""
    return _NOT_LEGAL.sub("_", name)
