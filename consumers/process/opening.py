"""Opens a partition's store: continues it if the topic can, else sets it aside and starts a new one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import structlog

from consumers.owner.overlay import NO_TABLES, Overlay
from consumers.owner.partitions import REBUILDING, Partition
from consumers.process.restoring import BackgroundRestores, StillRestoring
from consumers.snapshots.restoring import Snapshots, building_of
from consumers.store.directory import holds_store
from consumers.store.errors import RebuildNeededError, StoreCorruptError, StoreError, store_error
from consumers.store.index import Index
from consumers.store.leader_epochs import kept_leader_epoch
from consumers.store.store import PartitionStore, move_aside, partition_directory
from stream.kafka.topics import Topic
from stream.wire.keys import Layout

log = structlog.get_logger(__name__)

NO_SNAPSHOTS: Final = Snapshots()


Restore = Callable[[], bool]
"""Makes a store that is missing from a snapshot, if there is one. Each time but the first it does nothing."""


def open_store(
    data_dir: Path,
    keyspace: str,
    number: int,
    topic_id: str,
    indexes: Sequence[Index] = (),
    restore: Restore = lambda: False,
) -> tuple[PartitionStore, StoreError | None]:
    """Opens the store of a partition. One that is damaged or of another history is set aside for a new one.

    A new one begins with what ``restore`` makes. Returns the store, and the error because of which it is new (else
    None). Raises `StoreLockedError`, `StoreNewerError` or `RetryableStoreError` and leaves such a store unchanged, and
    `StillRestoring`.
    """
    wanted: dict[str, Any] = {"keyspace": keyspace, "partition": number, "topic_id": topic_id, "indexes": indexes}
    why: StoreError | None = None
    while True:
        if not holds_store(partition_directory(data_dir, keyspace, number)):
            try:
                restore()
            except StillRestoring as waiting:
                waiting.why = why
                raise
        try:
            return PartitionStore.open(data_dir, **wanted), why
        except (StoreCorruptError, RebuildNeededError) as error:
            if why is not None and str(why) == str(error):
                raise  # a new store is no better
            why = error
            set_aside(data_dir, keyspace, number, error)


def set_aside(data_dir: Path, keyspace: str, number: int, error: StoreError) -> Path | None:
    """Moves a closed store aside and logs it. Returns the new path, None if the store had vanished.

    What was moved aside before is deleted: only the last one is kept, so that they never fill the disk. Raises
    `StoreError`.
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
    for pattern in ("corrupt", "replaced"):
        for earlier in directory.parent.glob(f"{number}.{pattern}-*"):
            shutil.rmtree(earlier, ignore_errors=True)
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

    Raises `RebuildNeededError` ``offset_out_of_range``.
    """
    offset = store.state.head.offset
    if offset > end or (offset < start and offset > 0):
        raise RebuildNeededError(
            f"{topic}/{store.partition} has offsets {start} to {end}, the store is at {offset}",
            hint="the topic lost folded events, or retention overtook the store; the store is rebuilt",
            code="offset_out_of_range",
        )


def begin(store: PartitionStore, topic: str, start: int) -> None:
    """Lets an empty store begin at ``start``, the topic's present beginning."""
    if store.state.head.offset or not start:
        return
    store.begin_at(start)
    log.warning(
        "the topic's beginning is gone: the store begins where the topic does now",
        keyspace=store.keyspace,
        partition=store.partition,
        topic=topic,
        offset=start,
        code="topic_cut",
        hint="what changed before is not known here: its reads go to the source, which fills the cache again",
    )


def open_partition(
    data_dir: Path,
    keyspace: str,
    number: int,
    topic: Topic,
    bounds: tuple[int, int],
    overlay_bytes: int,
    lost: RebuildNeededError | None = None,
    indexes: Sequence[Index] = (),
    hot: Mapping[str, int] = NO_TABLES,
    snapshots: Snapshots | BackgroundRestores = NO_SNAPSHOTS,
    rebuilt: StoreError | None = None,
) -> Partition:
    """Opens a partition with a store that ``topic``, whose offsets are ``bounds`` (first, end), can continue.

    A store that the topic can't continue is set aside for a new one in state `REBUILDING`, and so is one for which
    Kafka has reported ``lost``: another history has the store's offset, or retention has overtaken it. A new store, and
    one in which nothing was ever folded, begins with the best of ``snapshots``; not where the log has lost its end,
    since a snapshot may hold what is gone. ``rebuilt``: why a call that ended in `StillRestoring` has set the store
    aside. Raises `StoreError`, and `StillRestoring` where the store is being made in the background: call again.
    """
    start, end = bounds
    attempts = count(int(lost is not None))

    def restore() -> bool:
        return next(attempts) == 0 and snapshots.restore(data_dir, keyspace, number, topic, bounds)

    def opened() -> tuple[PartitionStore, StoreError | None]:
        return open_store(data_dir, keyspace, number, topic.topic_id, indexes, restore)

    store, why = opened()
    if 0 < store.state.head.offset < start:  # the log has lost its beginning there, whatever Kafka has reported
        attempts = count()
    rebuilt = why or rebuilt
    if store.is_empty and keyspace in snapshots.places:
        store.close(commit=False)
        restore()
        store, _ = opened()
    try:
        try:
            check_range(store, topic.name, start, end)
            if lost is not None and rebuilt is None:
                raise lost
        except RebuildNeededError as error:
            if store.state.head.offset > end:
                next(attempts)
            store.close(commit=False)
            set_aside(data_dir, keyspace, number, error)
            try:
                store, rebuilt = opened()[0], error
            except StillRestoring as waiting:
                waiting.why = error
                raise
        begin(store, topic.name, start)
    except StoreError:
        store.close(commit=False)
        raise
    # Of a process that was killed while it copied a snapshot: the next one may have begun without any.
    shutil.rmtree(building_of(store.directory), ignore_errors=True)
    offset = store.state.head.offset
    partition = Partition(keyspace, number, topic, store, Overlay(overlay_bytes, hot), end, offset)
    partition.leader_epoch = kept_leader_epoch(store.directory, offset)
    partition.unchecked = partition.leader_epoch >= 0
    if rebuilt is not None:
        partition.state = REBUILDING
    return partition
