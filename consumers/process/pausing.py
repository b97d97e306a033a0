"""Why and how the reading of one partition stops for a while. Reads of it go on: each proves its freshness."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any, Final

import structlog
from confluent_kafka import TopicPartition

from consumers.fold.state import Rejection
from consumers.owner.partitions import (
    CATCHING_UP,
    DEAD_LETTERS,
    DISK_FAILS,
    DISK_FULL,
    NEWER_WIRE,
    NO_RESOURCES,
    READY,
    WRONG_LAYOUT,
    Partition,
)
from consumers.process.assignment import place_of
from consumers.process.kafka_output import ConsumerOutput
from consumers.store.errors import DiskFullError, DiskIOError, RetryableStoreError
from stream.wire.codec import NewerWireError
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

BURY_S: Final = 0.5
"""A dead letter is usually in its topic by then; a longer wait pauses its partition."""


class Pauses:
    """Used by the fold thread. ``consumer`` is the one of the present session."""

    def __init__(self, kafka_output: ConsumerOutput) -> None:
        self.consumer: Any = None
        self._kafka_output = kafka_output

    def bury(
        self, partition: Partition, values: dict[int, bytes | None], rejections: Sequence[tuple[int, Rejection]]
    ) -> None:
        """Has dead letters sent. Until they are in their topic nothing more is folded, and nothing is committed."""
        partition.dead_letters += len(rejections)
        for offset, rejection in rejections:
            log.warning("dead letter", partition=partition.name, offset=offset, **rejection._asdict())
        rejected = [(offset, values[offset], rejection) for offset, rejection in rejections]
        partition.burying = self._kafka_output.bury(partition, rejected)
        wait([partition.burying], BURY_S)
        if not self.is_buried(partition):
            self._hold(partition, DEAD_LETTERS)

    def is_buried(self, partition: Partition) -> bool:
        """Whether no dead letter is pending; ends the pause for them. A burial that was given up leaves them so."""
        if partition.burying is not None and partition.burying.done() and partition.burying.exception() is None:
            partition.burying = None
            partition.dead_letters_pending = False
            if partition.state == DEAD_LETTERS:
                log.info("dead letters are written", partition=partition.name)
                self._resume(partition)
        return partition.burying is None

    def await_commit(self, partition: Partition, error: RetryableStoreError) -> None:
        """Folds nothing until a commit succeeds."""
        match error:
            case DiskFullError():
                state, cause = DISK_FULL, "disk full"
            case DiskIOError():
                state, cause = DISK_FAILS, "disk errors"
            case _:
                state, cause = NO_RESOURCES, "no resources left"
        if not partition.is_paused:
            _report(f"{cause}, folding paused; reads go on", partition, error)
        self._hold(partition, state)

    def committed(self, partition: Partition) -> None:
        """Ends the pause of `await_commit`."""
        if partition.awaits_commit:
            log.info("commits succeed again, folding resumed", partition=partition.name)
            self._resume(partition)

    def await_upgrade(self, partition: Partition, error: NewerWireError) -> None:
        """Folds nothing any more: only a newer version can read what follows."""
        _report("a newer Freshet writes here, folding stopped; reads go on", partition, error)
        if not partition.is_paused:
            self._hold(partition, NEWER_WIRE)

    def refuse(self, partition: Partition, error: FreshetError) -> None:
        """Folds nothing any more: the partition's topic can't be served."""
        if not partition.is_paused:
            _report("partition can't be served, reads go to the source", partition, error)
            self._hold(partition, WRONG_LAYOUT)

    def _hold(self, partition: Partition, state: str) -> None:
        """What is lost is not read: librdkafka would pause the next assignment of it."""
        if not (partition.is_paused or partition.lost):
            self.consumer.pause([TopicPartition(partition.topic.name, partition.number)])
        partition.state = state

    def _resume(self, partition: Partition) -> None:
        if partition.store.newer is not None:
            partition.state = NEWER_WIRE
            return
        partition.state = READY if partition.ready else CATCHING_UP
        if partition.lost:  # it is not read: if it comes back, it is from here
            return
        place = place_of(partition)
        self.consumer.resume([place])
        self.consumer.seek(place)


def _report(event: str, partition: Partition, error: FreshetError) -> None:
    offset = partition.store.state.head.offset
    log.error(event, partition=partition.name, offset=offset, code=error.code, reason=str(error), hint=error.hint)
