"""What a consuming process sends to Kafka: dead letters, and announcements of its partitions."""

from __future__ import annotations

from typing import Protocol

from consumers.fold.state import Rejection
from consumers.owner.partitions import Partition
from consumers.process.announcing import Announcer
from stream.kafka import dead_letters
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetterPublisher
from tokens.errors import FreshetError


class ConsumerOutput(Protocol):
    """Where dead letters and announcements go: Kafka, or a fake in tests."""

    def dead_letter(self, partition: Partition, offset: int, value: bytes | None, rejection: Rejection) -> None:
        """Sends one dead letter; may return before it is in its topic."""

    def flush(self) -> None:
        """Returns when all dead letters are in their topic; raises `FreshetError` if that fails."""

    def announce(self, partition: Partition) -> None:
        """Announces that this process answers for the partition."""

    def withdraw(self, partition: Partition) -> None:
        """Announces that this process no longer answers for the partition."""

    def close(self) -> None:
        """Sends what is pending."""


class KafkaOutput:
    """Used by the fold thread. Another thread sends the announcements."""

    def __init__(self, kafka: KafkaCluster, address: str, instance: str) -> None:
        """``address``: host:port at which others reach the owner protocol."""
        self._kafka = kafka
        self._announcer = Announcer(kafka, address, instance)
        self._publishers: dict[str, DeadLetterPublisher] = {}
        self._unsent: dict[str, list[dead_letters.DeadLetter]] = {}

    def dead_letter(self, partition: Partition, offset: int, value: bytes | None, rejection: Rejection) -> None:
        """Keeps one dead letter for `flush`."""
        place = f" ({rejection.place})" if rejection.place else ""
        self._unsent.setdefault(partition.keyspace, []).append(
            dead_letters.DeadLetter(
                partition.topic.name, partition.number, offset, rejection.code, rejection.reason + place, value or b""
            )
        )

    def flush(self) -> None:
        """Returns when all dead letters are in their topic. After a `FreshetError` call it again later."""
        for keyspace, letters in list(self._unsent.items()):
            publisher = self._publishers.get(keyspace) or DeadLetterPublisher(self._kafka, keyspace)
            self._publishers[keyspace] = publisher
            try:
                for letter in letters:
                    publisher.send(letter)
                publisher.flush()
            except FreshetError:
                del self._publishers[keyspace]  # it may have lost letters, so a new one sends all of them again
                raise
            del self._unsent[keyspace]

    def announce(self, partition: Partition) -> None:
        """Announces in ``freshet.locations`` that this process answers for the partition."""
        self._announcer.announce(partition)

    def withdraw(self, partition: Partition) -> None:
        """Announces that this process no longer answers for the partition."""
        self._announcer.withdraw(partition)

    def close(self) -> None:
        """Sends what is pending, for as long as Kafka answers."""
        self._announcer.close()
