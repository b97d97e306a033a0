"""Makes stores from a snapshot: its files are copied side by side, checked, and ingested together.

A store is made beside its place, in ``<partition>.restoring``, and moved there when it is whole. So a process that is
killed meanwhile leaves nothing that counts as a store.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Final, TypeVar, cast

import structlog

from consumers.snapshots.errors import PlaceAwayError, SnapshotError
from consumers.snapshots.finding import HINT_OTHER, Found, Wanted, find_snapshots
from consumers.snapshots.manifest import Snapshot, SnapshotFile, SnapshotPartition
from consumers.snapshots.patience import Patience, Stopped
from consumers.snapshots.places import Place
from consumers.snapshots.writing import file_checksum
from consumers.store.directory import holds_store, partition_directory
from consumers.store.errors import RebuildNeededError, RetryableStoreError, StoreError, store_error
from consumers.store.leader_epochs import keep_leader_epoch
from consumers.store.manifest import Manifest, sync_directory, write_manifest
from consumers.store.rocks.database import Rocks
from consumers.store.view import ROCKS_NAME, committed_head
from stream.kafka.topics import Topic

log = structlog.get_logger(__name__)
T = TypeVar("T")
R = TypeVar("R")

DOWNLOADS: Final = 8
"""Files that are copied at once."""
_HINT_DAMAGED: Final = "`freshet snapshots verify` checks all files; remove this snapshot, and make another"


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Where the snapshots of each keyspace are. ``places``: keyspace → address."""

    places: Mapping[str, str] = field(default_factory=dict)

    def restore(
        self,
        data_dir: Path,
        keyspace: str,
        partition: int,
        topic: Topic,
        bounds: tuple[int, int],
        patience: Patience | None = None,
    ) -> bool:
        """Makes a store that is missing from the snapshot that has the most of its partition. False if there is none.

        ``bounds``: of the topic, its first offset and its end. Each snapshot that can't be used is logged with its
        reason. Raises `StoreError` if the data directory can't be written, `PlaceAwayError` if the place fails and the
        topic's beginning is gone.
        """
        uri = self.places.get(keyspace)
        if uri is None:
            return False
        patience = patience or Patience()
        refused: list[SnapshotError] = []

        def refuse(error: SnapshotError) -> None:
            log_refusal(keyspace, partition, error)
            refused.append(error)

        try:
            place = Place(uri, patience.hear)
            wanted = Wanted(partition, topic.topic_id, topic.partitions, *bounds)
            for found, snapshot in _usable(find_snapshots(place, keyspace), wanted, refuse):
                try:
                    _restore(place, found, snapshot, data_dir, partition, patience)
                except SnapshotError as error:
                    refuse(error)
                else:
                    return True
        except Stopped:
            return False
        except SnapshotError as error:
            refuse(error)
        away = next((each for each in refused if each.code == PlaceAwayError.code), None)
        if away is not None and bounds[0]:
            raise PlaceAwayError(str(away), hint=away.hint) from away
        log.warning("no snapshot to begin with: folding from the topic", keyspace=keyspace, partition=partition)
        return False


def _usable(
    found: list[Found], wanted: Wanted, refuse: Callable[[SnapshotError], None]
) -> list[tuple[Found, Snapshot]]:
    """Those with which a partition can begin, the farthest first. ``refuse`` is told why not with each other one."""
    chosen: list[tuple[Found, Snapshot]] = []
    for each in found:
        error = each.error if each.snapshot is None else wanted.refusal(each.snapshot)
        if error is None and each.snapshot is not None:
            chosen.append((each, each.snapshot))
        elif error is not None:
            refuse(error)
    chosen.sort(key=lambda pair: (pair[1].offsets[wanted.partition], pair[1].name), reverse=True)
    return chosen


def _restore(
    place: Place, found: Found, snapshot: Snapshot, data_dir: Path, partition: int, patience: Patience
) -> None:
    """As `restore_partition`. It is logged."""
    started = time.monotonic()
    held = restore_partition(place, found, snapshot, partition, data_dir, patience=patience)
    log.info(
        "store made from a snapshot",
        keyspace=snapshot.keyspace,
        partition=partition,
        snapshot=snapshot.name,
        offset=held.offset,
        entries=held.entries,
        seconds=round(time.monotonic() - started, 3),
    )


def log_refusal(keyspace: str, partition: int, error: SnapshotError) -> None:
    """Logs why a snapshot, or what is at a place, is not used."""
    log.warning(
        "a snapshot is not used",
        keyspace=keyspace,
        partition=partition,
        code=error.code,
        reason=str(error),
        hint=error.hint,
    )


def building_of(directory: Path) -> Path:
    """Where the store of ``directory`` is made from a snapshot."""
    return directory.with_name(f"{directory.name}.restoring")


def restore_partition(
    place: Place,
    found: Found,
    snapshot: Snapshot,
    partition: int,
    data_dir: Path,
    *,
    fixed: bool = False,
    patience: Patience | None = None,
    below: Sequence[bytes] = (b"",),
) -> SnapshotPartition:
    """Makes the store of a partition below ``data_dir``, where there is none. Returns what the snapshot has of it.

    ``fixed``: with the offset in its manifest, as a checkpoint has it. ``below``: what the keys that are needed begin
    with, those of the head among them; files without such keys are not copied. Raises `SnapshotError` if a file is
    missing or damaged, `StoreError` if the store can't be written, `Stopped` once ``patience`` is over; then there is
    no store.
    """
    held = snapshot.of(partition)
    assert held is not None, "`Wanted.refusal` and the commands look before"
    directory = partition_directory(data_dir, snapshot.keyspace, partition)
    building = building_of(directory)
    manifest = Manifest(snapshot.keyspace, partition, snapshot.topic_id, snapshot.layout)
    try:
        shutil.rmtree(building, ignore_errors=True)  # of a process that was killed
        building.mkdir(parents=True)
        files = download(place, found, [each for each in held.files if _may_have(each, below)], building)
        if patience is not None:
            patience.settle()
        _ingest(building / ROCKS_NAME, files, held, place)
        keep_leader_epoch(building, held.offset, held.leader_epoch)
        write_manifest(building, replace(manifest, offset=held.offset) if fixed else manifest)
        shutil.rmtree(directory, ignore_errors=True)  # it holds no store: at most a lock
        os.replace(building, directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise store_error(error, str(building)) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return held


def _may_have(file: SnapshotFile, below: Sequence[bytes]) -> bool:
    """Whether it may hold a key that begins with one of these."""
    first, last = bytes.fromhex(file.first), bytes.fromhex(file.last)
    return any(first[: len(each)] <= each <= last for each in below)


def _ingest(path: Path, files: list[Path], held: SnapshotPartition, place: Place) -> None:
    """Makes a RocksDB of the files in one step, and checks that it ends where the snapshot says."""
    rocks = Rocks(path)
    try:
        if files:
            rocks.ingest_files(files)
        head = committed_head(rocks)
    except RetryableStoreError:
        raise  # the disk here is full, or fails
    except RebuildNeededError as error:
        why = f"partition {held.partition} at {place.uri}: {error}"
        raise SnapshotError(why, hint=HINT_OTHER, code="snapshot_differs") from error
    except StoreError as error:
        raise damaged(f"partition {held.partition} at {place.uri}: {error}") from error
    finally:
        rocks.close()
    if (head.begin, head.offset) != (held.begin, held.offset):
        raise damaged(
            f"partition {held.partition} at {place.uri} holds {head.begin} to {head.offset}, "
            f"its manifest says {held.begin} to {held.offset}"
        )


def download(place: Place, found: Found, files: Sequence[SnapshotFile], into: Path) -> list[Path]:
    """Copies files of a partition and checks them; their paths in the same order.

    Raises `SnapshotError`, `Stopped`, ``OSError`` if they can't be written.
    """
    _check_room(into, sum(file.bytes for file in files))

    def copy(numbered: tuple[int, SnapshotFile]) -> Path:
        number, file = numbered
        path = into / f"{number:06d}.sst"
        place.get(found.path_of(file.name), path)
        if path.stat().st_size != file.bytes or file_checksum(path) != file.checksum:
            raise damaged(f"{place.uri}/{found.path_of(file.name)} differs from what was written")
        return path

    return _side_by_side(copy, list(enumerate(files)))


def _check_room(into: Path, needed: int) -> None:
    """A copy that will not fit is not begun: it would be copied again at each attempt. Raises ``OSError``."""
    disk = shutil.disk_usage(into)
    if disk.free < needed and disk.total:  # some file systems don't tell
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for {needed} bytes, {disk.free} are free")


def _side_by_side(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What ``work`` returns for each item, in order. Raises its first error, once all threads have ended.

    In daemons: a process that ends waits for the threads of an executor, also if a place never answers.
    """
    done: list[R | None] = [None] * len(items)
    errors: list[BaseException] = []
    left = iter(range(len(items)))  # `next` of it is one step of the interpreter

    def run() -> None:
        try:
            while not errors and (number := next(left, None)) is not None:
                done[number] = work(items[number])
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [Thread(target=run, name=f"download-{number}", daemon=True) for number in range(DOWNLOADS)]
    for thread in threads[: len(items)]:
        thread.start()
    for thread in threads[: len(items)]:
        thread.join()
    if errors:
        raise errors[0]
    return cast("list[R]", done)


def damaged(what: str) -> SnapshotError:
    """The error of a snapshot whose files are not what its manifest says."""
    return SnapshotError(what, hint=_HINT_DAMAGED, code="snapshot_damaged")


def restore_all(place: Place, found: Found, snapshot: Snapshot, root: Path) -> dict[int, Path]:
    """Makes all stores of a snapshot below ``root``, as checkpoints; partition → store.

    Those that are there already are left. Raises as `restore_partition`.
    """
    stores: dict[int, Path] = {}
    for held in snapshot.partitions:
        directory = partition_directory(root, snapshot.keyspace, held.partition)
        if not holds_store(directory):
            restore_partition(place, found, snapshot, held.partition, root, fixed=True)
        stores[held.partition] = directory
    return stores
