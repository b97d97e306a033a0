"""Checks a snapshot whole: each file is what was written, and the state in them has the digest that was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from consumers.fold.state import FOLD_VERSION
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.finding import Found
from consumers.snapshots.manifest import Snapshot, SnapshotPartition
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import damaged, download, restore_partition
from consumers.snapshots.temporary import temporary_directory
from consumers.store.directory import partition_directory
from consumers.store.errors import StoreError, store_error
from consumers.store.view import StoreView


def check_snapshot(place: Place, found: Found, snapshot: Snapshot) -> Iterator[tuple[int, SnapshotError | None]]:
    """Partition → what is wrong with it, or None. It is made into a store in a temporary directory.

    Of another fold version only the files are checked: this one can't read what is in them (`reads_state`).

    Raises `SnapshotError` if the place does not answer, `StoreError` if the temporary directory can't be written.
    """
    for held in snapshot.partitions:
        error: SnapshotError | None = None
        with temporary_directory("check") as scratch:
            try:
                if reads_state(snapshot):
                    _check_state(place, found, snapshot, held, scratch)
                else:
                    download(place, found, held.files, scratch)
            except SnapshotError as failed:
                if failed.code not in ("snapshot_damaged", "snapshot_missing", "snapshot_differs"):
                    raise
                error = failed
            except OSError as failed:
                raise store_error(failed, str(scratch)) from failed
        yield held.partition, error


def reads_state(snapshot: Snapshot) -> bool:
    """Whether this version can read what is in the files."""
    return snapshot.fold_version == FOLD_VERSION


def _check_state(place: Place, found: Found, snapshot: Snapshot, held: SnapshotPartition, scratch: Path) -> None:
    restore_partition(place, found, snapshot, held.partition, scratch)
    digest, entries = _state(partition_directory(scratch, snapshot.keyspace, held.partition))
    if (digest, entries) != (held.digest, held.entries):
        raise damaged(
            f"partition {held.partition} has {entries} entries with digest {digest}, "
            f"its manifest says {held.entries} with {held.digest}"
        )


def _state(directory: Path) -> tuple[str, int]:
    """Digest and entries of a store. Damage in it is damage of the snapshot."""
    try:
        with StoreView(directory) as view:
            return view.digest()
    except StoreError as error:
        raise damaged(str(error)) from error
