"""What a consuming process sends to Kafka: dead letters, announcements of its partitions, and requests for hot rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from consumers.fold.state import Rejection
from consumers.owner.partitions import Partition
from consumers.process.announcing import Announcer
from consumers.process.burying import Burials
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetter
from stream.kafka.requests import HotKeysSender

HOT_MAX: Final = 256
"""Rows of a partition and table that are asked for at once: what the source reads at once."""
Rejected = tuple[int, bytes | None, Rejection]
"""Offset and value of a message, and why it could not be folded."""


class ConsumerOutput(Protocol):
    """Where dead letters and announcements go: Kafka, or a fake in tests. Nothing blocks or raises."""

    def bury(self, partition: Partition, rejected: Sequence[Rejected]) -> Future[None]:
        """Sends dead letters; done when they are in their topic."""

    def announce(self, partition: Partition) -> None:
        """Announces that this process answers for the partition."""

    def withdraw(self, partition: Partition) -> None:
        """Announces that this process no longer answers for the partition."""

    def is_succeeded(self, partition: Partition) -> bool:
        """Whether nobody is told to ask for the partition here: another owner is announced, or this one never was."""

    def ask_for_hot(self, partition: Partition, shard: str, table: str) -> None:
        """Asks the shard's source to publish the rows of a void table that are read most before its others."""

    def close(self) -> None:
        """Sends what announcements are pending."""


class KafkaOutput:
    """Used by the fold thread. Other threads send."""

    def __init__(self, kafka: KafkaCluster, announcer: Announcer) -> None:
        """``announcer``: ends with this."""
        self._announcer = announcer
        self._burials = Burials(kafka)
        self._hot = HotKeysSender(kafka)

    def bury(self, partition: Partition, rejected: Sequence[Rejected]) -> Future[None]:
        """Sends dead letters until they are in their topic."""
        letters = [_letter(partition, offset, value, why) for offset, value, why in rejected]
        return self._burials.bury(partition.keyspace, letters)

    def announce(self, partition: Partition) -> None:
        """Announces in the locations topic that this process answers for the partition, until `withdraw`."""
        self._announcer.announce(partition)

    def withdraw(self, partition: Partition) -> None:
        """Announces that this process no longer answers for the partition."""
        self._announcer.withdraw(partition)

    def is_succeeded(self, partition: Partition) -> bool:
        """As `Announcer.is_succeeded`."""
        return self._announcer.is_succeeded(partition)

    def ask_for_hot(self, partition: Partition, shard: str, table: str) -> None:
        """Asks for the rows of a table that were read most of late, if any were."""
        keys = hot_keys(list(partition.recent), table)
        if keys:
            self._hot.send(partition.keyspace, shard, table, keys)

    def close(self) -> None:
        """Sends what announcements are pending, and gives up dead letters that could not be sent."""
        self._burials.close()
        self._hot.close()
        self._announcer.close()


def hot_keys(recent: Iterable[bytes], table: str) -> list[bytes]:
    """The row keys of a table that were asked for most, these first; of equals the one that was first."""
    prefix = table.encode() + b"\0"
    return [key for key, _ in Counter(key for key in recent if key.startswith(prefix)).most_common(HOT_MAX)]


def _letter(partition: Partition, offset: int, value: bytes | None, why: Rejection) -> DeadLetter:
    place = f" ({why.place})" if why.place else ""
    return DeadLetter(partition.topic.name, partition.number, offset, why.code, why.reason + place, value or b"")
