"""What a consuming process sends to Kafka: dead letters, and announcements of its partitions."""

from __future__ import annotations

import time
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final, Protocol

import msgspec
import structlog
from confluent_kafka import KafkaException

from consumers.fold.state import Rejection
from consumers.owner.partitions import Partition
from stream.kafka import dead_letters, locations
from stream.kafka.connection import KafkaCluster, kafka_error
from stream.kafka.dead_letters import DeadLetterPublisher
from stream.kafka.locations import Announcement
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

RETRY_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 3.0
"""Announcements not sent by then are dropped; a front notices by itself that an owner is gone."""


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
    """Used by the fold thread. Another thread sends the announcements, in order."""

    def __init__(self, kafka: KafkaCluster, address: str, instance: str) -> None:
        """``address``: host:port at which others reach the owner protocol."""
        self._kafka = kafka
        self._address = address
        self._instance = instance
        self._started_at = int(time.time())
        self._publishers: dict[str, DeadLetterPublisher] = {}
        self._unsent: dict[str, list[dead_letters.DeadLetter]] = {}
        self._closing = Event()
        self._reported_code = ""
        self._waiting: SimpleQueue[Announcement | None] = SimpleQueue()
        """None ends the thread."""
        self._announcer = Thread(target=self._announce_all, name="announce", daemon=True)
        self._announcer.start()

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
        head = partition.store.visible
        positions = {name: each.watermark for name, each in head.lineages.items() if each.watermark}
        self._waiting.put(self._announcement(partition, positions))

    def withdraw(self, partition: Partition) -> None:
        """Announces that this process no longer answers for the partition."""
        self._waiting.put(msgspec.structs.replace(self._announcement(partition, {}), gone=True))

    def _announcement(self, partition: Partition, positions: dict[str, str]) -> Announcement:
        return Announcement(
            keyspace=partition.keyspace,
            partition=partition.number,
            address=self._address,
            instance=self._instance,
            layout=partition.store.visible.layout,
            topic_id=partition.topic.topic_id,
            started_at=self._started_at,
            positions=positions,
        )

    def _announce_all(self) -> None:
        """The announcing thread: sends all that is queued at once, until None is queued."""
        ending = False
        while not ending:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            ending = batch[-1] is None
            self._send([each for each in batch if each is not None])

    def _send(self, batch: list[Announcement]) -> None:
        """Sends ``batch``, retrying until it succeeds; while closing, tries only once."""
        while batch:
            try:
                locations.announce(self._kafka, batch)
            except (FreshetError, KafkaException) as failed:
                error = kafka_error(failed, self._kafka, "announce") if isinstance(failed, KafkaException) else failed
                if self._reported_code != error.code:
                    self._reported_code = error.code
                    names = [each.key for each in batch]
                    log.warning("announcing failed, retrying", partitions=names, code=error.code, reason=str(error))
                if self._closing.wait(RETRY_S):
                    return
            else:
                self._reported_code = ""
                return

    def close(self) -> None:
        """Sends what is pending; gives up after `CLOSE_TIMEOUT_S` if Kafka does not answer."""
        self._closing.set()
        self._waiting.put(None)
        self._announcer.join(CLOSE_TIMEOUT_S)
