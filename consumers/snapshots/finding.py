"""Lists the snapshots of a keyspace at a place, and says of each whether a partition can begin with it, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from consumers.fold.state import FOLD_VERSION
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.manifest import MANIFEST_NAME, Snapshot, SnapshotPartition, decode_manifest
from consumers.snapshots.places import Place
from stream.wire.keys import Layout

HINT_OTHER = "make a snapshot of this history: `freshet snapshots make`, or `freshet rebuild --to`"


@dataclass(frozen=True, slots=True)
class Found:
    """A snapshot at ``directory``, below its place; or why it can't be read."""

    directory: str
    snapshot: Snapshot | None
    error: SnapshotError | None = None

    @property
    def name(self) -> str:
        """The last part of its directory; empty if the place is the snapshot."""
        return self.directory.rpartition("/")[2]

    def path_of(self, name: str) -> str:
        """A file of the snapshot, below its place."""
        return f"{self.directory}/{name}" if self.directory else name


def find_snapshots(place: Place, keyspace: str) -> list[Found]:
    """All snapshots of ``keyspace``, the oldest name first. Raises `SnapshotError` if the place can't be listed.

    A place that is itself a snapshot holds that one alone.
    """
    if place.has(MANIFEST_NAME):
        return [_found(place, "", keyspace)]
    return [_found(place, f"{keyspace}/{name}", keyspace) for name in place.names(keyspace)]


def _found(place: Place, directory: str, keyspace: str) -> Found:
    here = f"{place.uri}/{directory}".rstrip("/")
    try:
        name = f"{directory}/{MANIFEST_NAME}" if directory else MANIFEST_NAME
        snapshot = decode_manifest(place.read(name), here)
        if snapshot.keyspace != keyspace:
            raise SnapshotError(
                f"{here} is a snapshot of {snapshot.keyspace}, not of {keyspace}",
                hint=HINT_OTHER,
                code="snapshot_differs",
            )
        return Found(directory, snapshot)
    except SnapshotError as error:
        if error.code == "snapshot_missing":
            error = SnapshotError(
                f"{here} has no manifest: it is being written, or its writer was killed",
                hint="`freshet snapshots prune` removes what was not finished after a day",
                code="snapshot_incomplete",
            )
        return Found(directory, None, error)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a snapshot of a partition must be of. ``start``, ``end``: the offsets that the topic has."""

    partition: int
    topic_id: str
    partitions: int
    start: int
    end: int

    def refusal(self, snapshot: Snapshot) -> SnapshotError | None:
        """Why the partition can't begin with ``snapshot``; None if it can."""
        held = snapshot.of(self.partition)
        why = self._other_history(snapshot, held)
        if why:
            return SnapshotError(f"snapshot {snapshot.name} {why}", hint=HINT_OTHER, code="snapshot_differs")
        assert held is not None
        if self.start <= held.offset <= self.end:
            return None
        return SnapshotError(
            f"snapshot {snapshot.name} ends at offset {held.offset}, the topic has {self.start} to {self.end}",
            hint="make snapshots more often than the topic's retention" if held.offset < self.start else HINT_OTHER,
            code="snapshot_expired",
        )

    def _other_history(self, snapshot: Snapshot, held: SnapshotPartition | None) -> str:
        if snapshot.topic_id != self.topic_id:
            return f"is of topic id {snapshot.topic_id}, the topic's is {self.topic_id}"
        if snapshot.fold_version != FOLD_VERSION:
            return f"has fold version {snapshot.fold_version}, this Freshet has {FOLD_VERSION}"
        if snapshot.layout and Layout.parse(snapshot.layout).partitions != self.partitions:
            return f"has the layout {snapshot.layout}, the topic has {self.partitions} partitions"
        return "" if held is not None and held.files else f"has nothing of partition {self.partition}"


def refusal_of_whole(
    snapshot: Snapshot, topic_id: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> SnapshotError | None:
    """Why not all partitions of a topic can begin with ``snapshot``; None if they can.

    ``starts``, ``ends``: partition → the offsets that the topic has, or that are wanted of it.
    """
    for partition, start in starts.items():
        error = Wanted(partition, topic_id, len(starts), start, ends.get(partition, 0)).refusal(snapshot)
        if error is not None:
            return error
    return None
