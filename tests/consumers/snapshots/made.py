"""Snapshots of a small history, for tests."""

from __future__ import annotations

from pathlib import Path

from consumers.snapshots.finding import Found, find_snapshots
from consumers.snapshots.manifest import Snapshot
from consumers.snapshots.places import Place
from consumers.snapshots.writing import write_snapshot
from consumers.store.store import PartitionStore
from stream.kafka.topics import Topic
from tests.data_at_rest.history import KEYSPACE, TOPIC_ID, Items, messages

TOPIC = Topic(f"freshet.{KEYSPACE}.events", TOPIC_ID, 1)
SMALL_FILES = 1_500
"""Bytes of a file: several files, so that there are ranges."""


def fold(data_dir: Path, upto: int | None = None) -> PartitionStore:
    """An open store that has folded the first ``upto`` messages of the history."""
    store = PartitionStore.open(data_dir, keyspace=KEYSPACE, partition=0, topic_id=TOPIC_ID)
    records: list[tuple[int, bytes | None]] = list(enumerate(messages()))
    store.fold(records[store.state.head.offset : upto])
    return store


def snapshot_of(
    scratch: Path, place: Place, upto: int | None = None, *, verified: bool = False
) -> tuple[Snapshot, Items]:
    """Makes a snapshot of the state after ``upto`` messages; with its items."""
    store = fold(scratch / f"made-{upto}", upto)
    checkpoint = scratch / f"checkpoint-{upto}"
    store.checkpoint(checkpoint)
    items = list(store.items())
    store.close()
    snapshot = write_snapshot(place, {0: checkpoint}, made_from="owners", verified=verified, file_bytes=SMALL_FILES)
    return snapshot, items


def only(place: Place) -> Found:
    """The only snapshot there."""
    [found] = find_snapshots(place, KEYSPACE)
    return found
