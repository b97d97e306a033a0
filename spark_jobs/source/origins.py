"""Where the fold of a table begins instead of at the topic's start: a store, or the newest snapshot before the moment.

Of a snapshot only the files are copied that may hold the table's entries or the head. Each task copies those of its
partition, so driver and executors need no directory that they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from consumers.fold.state import META
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.finding import Found, find_snapshots, refusal_of_whole
from consumers.snapshots.manifest import Snapshot
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import log_refusal, restore_partition
from consumers.snapshots.temporary import temporary_directory
from consumers.store.directory import partition_directory
from consumers.store.manifest import read_manifest
from spark_jobs.offsets import TopicBounds
from spark_jobs.output import find_stores
from spark_jobs.source.cut import AsOf, AsOfError
from spark_jobs.source.table import Base


class Origin(Protocol):
    """Where the fold of one partition begins."""

    def read(self, table: str) -> Base:
        """The head, and the table's entries; of "" the head alone. Raises `StoreError`, `SnapshotError`."""


@dataclass(frozen=True, slots=True)
class FromStore:
    """A store directory: of a checkpoint or a rebuild."""

    directory: Path

    def read(self, table: str) -> Base:
        """As `Origin` says."""
        return Base.read(self.directory, table)


@dataclass(frozen=True, slots=True)
class FromSnapshot:
    """A partition of a snapshot. ``uri``: the place as it was given; ``found``: the snapshot there."""

    uri: str
    found: Found
    snapshot: Snapshot
    partition: int

    def read(self, table: str) -> Base:
        """As `Origin` says."""
        needed = [META, f"{table}\0".encode()] if table else [META]
        with temporary_directory("snapshot") as root:
            place = Place(self.uri)
            restore_partition(place, self.found, self.snapshot, self.partition, root, fixed=True, below=needed)
            return Base.read(partition_directory(root, self.snapshot.keyspace, self.partition), table)


Heads = dict[int, tuple[Origin, Base]]
"""Partition → where its fold begins, and the head there."""


def stores_at(directory: str, keyspace: str, bounds: TopicBounds) -> Heads:
    """The stores in a checkpoint or rebuild. Raises `RebuildError`, `StoreError`, `AsOfError` for another topic."""
    stores = find_stores(Path(directory), keyspace)
    for store in stores.values():
        manifest = read_manifest(store)
        if manifest is not None and manifest.topic_id != bounds.topic_id:
            raise AsOfError(
                f"{store} is of topic id {manifest.topic_id}, the topic's is {bounds.topic_id}",
                hint="give a base of this topic, or none",
            )
    return {partition: _headed(FromStore(store)) for partition, store in stores.items()}


def _headed(origin: Origin) -> tuple[Origin, Base]:
    return origin, origin.read("")


def newest_snapshots(uri: str, keyspace: str, bounds: TopicBounds, as_of: AsOf) -> Iterator[Heads]:
    """The partitions of each snapshot before the moment, first of that with the most messages.

    One that is damaged is logged, and so is a place that does not answer: then the topic is read from its start.
    """
    partition = 0
    try:
        for found, snapshot in _candidates(Place(uri), keyspace, bounds, as_of):
            heads: Heads = {}
            try:
                for partition in sorted(bounds.end):
                    heads[partition] = _headed(FromSnapshot(uri, found, snapshot, partition))
                    heads[partition][1].check(as_of)
            except AsOfError:
                continue  # its clock was past the moment: an older one may do
            except SnapshotError as error:
                log_refusal(keyspace, partition, error)
                continue
            yield heads
    except SnapshotError as error:
        log_refusal(keyspace, partition, error)


def _candidates(place: Place, keyspace: str, bounds: TopicBounds, as_of: AsOf) -> list[tuple[Found, Snapshot]]:
    """The snapshots of the topic's history that their manifests don't put after the moment, the farthest first."""
    chosen: list[tuple[Found, Snapshot]] = []
    for found in find_snapshots(place, keyspace):
        snapshot = found.snapshot
        if snapshot is None or refusal_of_whole(snapshot, bounds.topic_id, bounds.low, bounds.end) is not None:
            continue
        positions = [each for partition in snapshot.partitions for each in partition.positions.items()]
        if all(as_of.has(shard, at.epoch, at.position, at.timestamp) for shard, at in positions):
            chosen.append((found, snapshot))
    chosen.sort(key=lambda pair: (sum(pair[1].offsets.values()), pair[1].name), reverse=True)
    return chosen
