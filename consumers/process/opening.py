"""Opens a partition's store: continues it if the topic can, else sets it aside and starts a new one."""

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
    """Opens the store of a partition. One that is damaged or of another history is set aside for a new one.

    Returns the store, and the error because of which it is new (else None). Raises `StoreLockedError`,
    `StoreNewerError` or `RetryableStoreError` and leaves such a store unchanged.
    """
    try:
        return PartitionStore.open(data_dir, keyspace=keyspace, partition=number, topic_id=topic_id), None
    except (StoreCorruptError, RebuildNeededError) as error:
        set_aside(data_dir, keyspace, number, error)
        return PartitionStore.open(data_dir, keyspace=keyspace, partition=number, topic_id=topic_id), error


def set_aside(data_dir: Path, keyspace: str, number: int, error: StoreError) -> Path | None:
    """Moves a closed store aside and logs it; deletes nothing. Returns the new path, None if the store had vanished.

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
            "store has vanished, rebuilding it from the topic",
            keyspace=keyspace,
            partition=number,
            directory=str(directory),
            reason=str(error),
        )
        return None
    moved = move_aside(directory, why)
    log.warning(
        "store moved aside, rebuilding it from the topic",
        keyspace=keyspace,
        partition=number,
        code=error.code,
        reason=str(error),
        moved_to=str(moved),
    )
    return moved


def check_layout(layout: str, topic: Topic) -> None:
    """Raises `StoreError` ``wrong_partition_count`` if ``layout`` has another number of partitions than the topic.

    Otherwise keys would be looked up in the wrong partitions.
    """
    if layout and Layout.parse(layout).partitions != topic.partitions:
        raise StoreError(
            f"topic {topic.name} has {topic.partitions} partitions, but its events have the layout {layout}",
            hint="the partition count of a topic with events must not change: create a new topic",
            code="wrong_partition_count",
        )


def check_range(store: PartitionStore, topic: str, start: int, end: int) -> None:
    """Checks that the topic, with offsets from ``start`` to ``end`` (the last stable one), can continue the store.

    Raises `RebuildNeededError` ``offset_out_of_range``, or `TopicCutError` if a new store would have to begin after the
    topic's beginning.
    """
    offset = store.state.head.offset
    place = f"{topic}/{store.partition}"
    if offset == 0 and start > 0:
        raise TopicCutError(
            f"{place} begins at offset {start}: earlier messages are gone, and no store has folded them",
            hint="put a checkpoint of this partition into the data directory, or let the source start a new topic",
        )
    if offset > end or offset < start:
        raise RebuildNeededError(
            f"{place} has offsets {start} to {end}, the store is at {offset}",
            hint="the topic lost folded events, or retention overtook the store; the store is rebuilt",
            code="offset_out_of_range",
        )


def _begin(store: PartitionStore, start: int) -> None:
    """Lets a new store begin where the topic does: retention may have cut what was before."""
    if start > 0 and store.state.head.offset == 0:
        store.begin_at(start)


def open_partition(
    data_dir: Path, keyspace: str, number: int, topic: Topic, bounds: tuple[int, int], overlay_bytes: int
) -> Partition:
    """Opens a partition with a store that ``topic``, whose offsets are ``bounds`` (first, end), can continue.

    A store that the topic can't continue is set aside for a new one in state `REBUILDING`. Raises `StoreError`.
    """
    start, end = bounds
    store, rebuilt = open_store(data_dir, keyspace, number, topic.topic_id)
    try:
        try:
            _begin(store, start)
            check_range(store, topic.name, start, end)
        except RebuildNeededError as error:
            store.close(commit=False)
            set_aside(data_dir, keyspace, number, error)
            store, rebuilt = open_store(data_dir, keyspace, number, topic.topic_id)[0], error
            _begin(store, start)
            check_range(store, topic.name, start, end)
    except StoreError:
        store.close(commit=False)
        raise
    partition = Partition(keyspace, number, topic, store, Overlay(overlay_bytes), end, store.state.head.offset)
    if rebuilt is not None:
        partition.state = REBUILDING
    return partition
