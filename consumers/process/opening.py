"""How a partition's store is opened: continued where the topic can continue it, else set aside and begun anew."""

from __future__ import annotations

from pathlib import Path

import structlog

from consumers.owner.overlay import Overlay
from consumers.owner.partitions import REBUILDING, Partition
from consumers.store.errors import RebuildNeededError, StoreCorruptError, StoreError, TopicCutError, store_error
from consumers.store.store import PartitionStore, move_aside, partition_directory
from stream.kafka.topics import Topic
from stream.wire.keys import Layout

log = structlog.get_logger(__name__)


def open_store(data_dir: Path, keyspace: str, number: int, topic_id: str) -> tuple[PartitionStore, StoreError | None]:
    """The store of a partition; one that is damaged or of another history is moved aside, loudly, for a new one.

    Returns the store and why it had to be started anew (None if not). Raises `StoreLockedError`, `StoreNewerError`,
    `RetryableStoreError`: those stores are left as they are.
    """
    try:
        return PartitionStore.open(data_dir, keyspace=keyspace, partition=number, topic_id=topic_id), None
    except (StoreCorruptError, RebuildNeededError) as error:
        set_aside(data_dir, keyspace, number, error)
        return PartitionStore.open(data_dir, keyspace=keyspace, partition=number, topic_id=topic_id), error


def set_aside(data_dir: Path, keyspace: str, number: int, error: StoreError) -> Path | None:
    """Moves a (closed) store aside and says so; nothing is deleted. Returns where it is; None: it had vanished.

    Raises `StoreError`.
    """
    why = "corrupt" if isinstance(error, StoreCorruptError) else "replaced"
    directory = partition_directory(data_dir, keyspace, number)
    try:
        is_there = directory.exists()
    except OSError as failed:
        raise store_error(failed, str(directory)) from failed
    if not is_there:
        log.error(
            "store has vanished, it is folded again from the topic",
            keyspace=keyspace,
            partition=number,
            directory=str(directory),
            reason=str(error),
        )
        return None
    moved = move_aside(directory, why)
    log.warning(
        "store moved aside, it is folded again from the topic",
        keyspace=keyspace,
        partition=number,
        code=error.code,
        reason=str(error),
        moved_to=str(moved),
    )
    return moved


def check_layout(layout: str, topic: Topic) -> None:
    """Raises `StoreError` ``wrong_partition_count`` if the topic was made for another number of partitions.

    Keys would be looked for in partitions where they are not.
    """
    if layout and Layout.parse(layout).partitions != topic.partitions:
        raise StoreError(
            f"topic {topic.name} has {topic.partitions} partitions, its events were spread by {layout}",
            hint="the partition count of a topic with events can't be changed: make a new topic",
            code="wrong_partition_count",
        )


def check_range(store: PartitionStore, topic: str, start: int, end: int) -> None:
    """Whether the topic (offsets ``start`` to ``end``, the last stable one) can continue the store.

    Raises `RebuildNeededError` ``offset_out_of_range`` or, where a store would have to begin and the topic has lost its
    beginning, `TopicCutError`.
    """
    offset = store.state.head.offset
    place = f"{topic}/{store.partition}"
    if offset == 0 and start > 0:
        raise TopicCutError(
            f"{place} begins at offset {start}: what was before is gone, and there is no store that has it",
            hint="put a checkpoint of this partition into the data directory, or have the source begin a new topic",
        )
    if offset > end or offset < start:
        raise RebuildNeededError(
            f"{place} has offsets {start} to {end}, the store is at {offset}",
            hint="the topic lost events that were folded, or retention overtook the store; it is rebuilt",
            code="offset_out_of_range",
        )


def open_partition(
    data_dir: Path, keyspace: str, number: int, topic: Topic, bounds: tuple[int, int], overlay_bytes: int
) -> Partition:
    """The partition with a store that ``topic``, whose offsets are ``bounds`` (first, end), can continue.

    A store that it can't continue is set aside for a new one; its state is then `REBUILDING`. Raises `StoreError`.
    """
    start, end = bounds
    store, rebuilt = open_store(data_dir, keyspace, number, topic.topic_id)
    try:
        try:
            check_range(store, topic.name, start, end)
        except RebuildNeededError as error:
            store.close(commit=False)
            set_aside(data_dir, keyspace, number, error)
            store, rebuilt = open_store(data_dir, keyspace, number, topic.topic_id)[0], error
            check_range(store, topic.name, start, end)
    except StoreError:
        store.close(commit=False)
        raise
    partition = Partition(keyspace, number, topic, store, Overlay(overlay_bytes), end, store.state.head.offset)
    if rebuilt is not None:
        partition.state = REBUILDING
    return partition
