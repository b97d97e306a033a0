"""One reader of a keyspace's topic that gives out what a change stream consists of.

It is pulled: whoever does not ask for more makes Kafka wait, not memory grow. Partitions that are ahead pause while
more than `PAUSE_BYTES` wait for the others, so that they never drift apart by more than that.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from time import monotonic
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaException, TopicPartition

from stream.changes.assembling import HELD_BYTES_MAX, Assembler
from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import Item
from stream.changes.start import FromTime, LeavesOut, Start
from stream.kafka.announced import announced_before
from stream.kafka.connection import KafkaCluster, kafka_error
from stream.kafka.reader import TopicReadError, open_consumer, poll_batch
from stream.kafka.topics import Topic, TopicWatch

MESSAGES_MAX: Final = 500
PAUSE_BYTES: Final = 32 * 1024 * 1024
CHECK_EVERY_S: Final = 10.0
_PREFETCH: Final = {"queued.max.messages.kbytes": 16 * 1024, "queued.min.messages": 1_000}
"""A reader holds this much that it has not asked for yet."""


class Follower:
    """Reads from a `Start` on. Used by one thread at a time; a context manager."""

    def __init__(self, kafka: KafkaCluster, topic: Topic, start: Start, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._kafka, self._topic = kafka, topic
        self.begun = start.checkpoint.offsets
        """Partition → the offset that it read first."""
        earlier = [announced_before(kafka, topic.name, *place) for place in enumerate(self.begun)]
        self._assembler = Assembler(start, held_bytes_max, earlier)
        self._paused: set[int] = set()
        self._check_at = monotonic() + CHECK_EVERY_S
        with ExitStack() as clients:
            self._watch = clients.enter_context(closing(TopicWatch(kafka, topic)))
            self._consumer = clients.enter_context(closing(open_consumer(kafka, more=_PREFETCH)))
            self._consumer.assign([TopicPartition(topic.name, *place) for place in enumerate(self.begun)])
            self._clients = clients.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the reading."""
        self._clients.close()

    @property
    def checkpoint(self) -> Checkpoint:
        """Goes on after all that `poll` has returned."""
        return self._assembler.checkpoint

    @property
    def places(self) -> dict[str, Place]:
        """Shard → how far `poll` has come."""
        return self._assembler.places

    @property
    def offsets(self) -> tuple[int, ...]:
        """Partition → the offset that `poll` reads next."""
        return self._assembler.offsets

    @property
    def left_out(self) -> dict[str, LeavesOut]:
        """Shard → what more of it is left out, of shards whose beginning is still to come."""
        return self._assembler.left_out

    @property
    def skip_others(self) -> FromTime | None:
        """What is left out of shards that nothing was read of."""
        return self._assembler.skip_others

    def poll(self, timeout_s: float = 0.1) -> list[Item]:
        """What has become complete; waits up to ``timeout_s`` for a message.

        Raises `TopicReadError`, `KafkaUnreachable`, `NewerWireError`, `stream.changes.assembling.LogReplaced`.
        """
        try:
            messages = poll_batch(self._consumer, MESSAGES_MAX, timeout_s)
        except KafkaException as error:
            raise kafka_error(error, self._kafka, f"read {self._topic.name}") from error
        self._check_topic()
        for message in messages:
            self._assembler.feed(message.partition() or 0, message.offset() or 0, message.value())
        items = self._assembler.take() if messages else []
        self._keep_together()
        return items

    def _check_topic(self) -> None:
        """librdkafka goes on in another topic of the same name."""
        if monotonic() < self._check_at:
            return
        self._check_at = monotonic() + CHECK_EVERY_S
        if other := self._watch.other_id():
            raise TopicReadError(
                f"{self._topic.name} was replaced by another topic (id {other})",
                hint="read anew, and start from a second or from now",
                code="checkpoint_lost",
            )

    def _keep_together(self) -> None:
        """Pauses the partitions that are ahead, while too much waits for those that are behind."""
        if self._assembler.held > PAUSE_BYTES:
            behind = self._assembler.behind()
            ahead = set(range(self._topic.partitions)) - behind if behind else set()
        elif self._assembler.held < PAUSE_BYTES // 2:
            ahead = set()
        else:
            return
        if paused := ahead - self._paused:
            self._consumer.pause([TopicPartition(self._topic.name, each) for each in paused])
        if resumed := self._paused - ahead:
            self._consumer.resume([TopicPartition(self._topic.name, each) for each in resumed])
        self._paused = ahead
