"""Writes a snapshot of stores at fixed offsets: sorted files first, side by side, and the manifest last."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import xxhash

from consumers.fold.backfills import live_items
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.manifest import (
    MANIFEST_NAME,
    Snapshot,
    SnapshotFile,
    SnapshotPartition,
    SnapshotPosition,
    encode_manifest,
)
from consumers.snapshots.places import Place
from consumers.snapshots.temporary import temporary_directory
from consumers.store.digest import Digest, digest_items
from consumers.store.index import INDEX
from consumers.store.leader_epochs import kept_leader_epoch
from consumers.store.rocks.tables import write_sorted
from consumers.store.view import StoreView

Pair = tuple[bytes, bytes]

FILE_BYTES: Final = 16 << 20
"""Keys and values of one file. Several are copied at once, and one is a range whose digest can be compared."""
UPLOADS: Final = 4
"""Files that are copied at once. No more are kept in the temporary directory."""


def write_snapshot(
    place: Place,
    stores: Mapping[int, Path],
    *,
    made_from: str,
    verified: bool = False,
    replayed: bool = False,
    file_bytes: int = FILE_BYTES,
) -> Snapshot:
    """Writes a snapshot of all partitions of a keyspace, and returns it. It is not there before it is whole.

    ``stores``: partition → checkpoint or rebuild, which nobody changes meanwhile. Raises `SnapshotError`,
    `consumers.store.errors.StoreError`.
    """
    now = datetime.now(UTC)
    name = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    partitions: list[SnapshotPartition] = []
    layouts, histories = set[str](), set[tuple[str, str, int]]()
    with (
        temporary_directory("snapshot") as scratch,
        ThreadPoolExecutor(UPLOADS, thread_name_prefix="snapshot") as pool,
    ):
        for number, directory in sorted(stores.items()):
            with StoreView(directory) as view:
                manifest = view.manifest
                histories.add((manifest.keyspace, manifest.topic_id, manifest.fold_version))
                layouts |= {view.head.layout} - {""}
                upload = _Upload(place, f"{manifest.keyspace}/{name}", scratch, pool)
                partitions.append(_write_partition(number, view, upload, file_bytes))
    if len(histories) != 1 or len(layouts) > 1:
        raise SnapshotError(
            f"the stores are of several histories: {sorted(histories)}, {sorted(layouts)}",
            hint="give the stores of one keyspace",
            code="snapshot_differs",
        )
    [(keyspace, topic_id, fold_version)] = histories
    snapshot = Snapshot(
        name=name,
        keyspace=keyspace,
        topic_id=topic_id,
        layout="".join(layouts),
        fold_version=fold_version,
        created=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        made_from=made_from,
        verified=verified,
        partitions=tuple(partitions),
        replayed=replayed,
    )
    place.write(f"{keyspace}/{name}/{MANIFEST_NAME}", encode_manifest(snapshot))
    return snapshot


class _Upload:
    """Copies files to a snapshot, some at once."""

    def __init__(self, place: Place, snapshot: str, scratch: Path, pool: ThreadPoolExecutor) -> None:
        self.scratch = scratch
        self._place, self._snapshot, self._pool = place, snapshot, pool
        self._running: list[Future[None]] = []

    def put(self, file: Path, name: str) -> None:
        """Begins to copy a file, which is removed then. Waits while `UPLOADS` are under way. Raises their errors."""
        while len(self._running) >= UPLOADS:
            self._running.pop(0).result()
        self._running.append(self._pool.submit(self._copy, file, name))

    def _copy(self, file: Path, name: str) -> None:
        self._place.put(file, f"{self._snapshot}/{name}")
        file.unlink()

    def finish(self) -> None:
        """Waits for all."""
        while self._running:
            self._running.pop(0).result()


def _write_partition(number: int, view: StoreView, upload: _Upload, file_bytes: int) -> SnapshotPartition:
    whole = Digest()
    files: list[SnapshotFile] = []
    for pairs in _chunks(view.stored(), file_bytes):
        name = f"{number}/{len(files):06d}.sst"
        file = upload.scratch / name.replace("/", "-")
        size = write_sorted(pairs, file)
        of_state = list(live_items(view.head, (pair for pair in pairs if not pair[0].startswith(INDEX))))
        digest, entries = digest_items(of_state)
        whole.add(of_state)
        files.append(
            SnapshotFile(
                name, pairs[0][0].hex(), pairs[-1][0].hex(), len(pairs), size, file_checksum(file), entries, digest
            )
        )
        upload.put(file, name)
    upload.finish()
    positions = {
        shard: SnapshotPosition(
            lineage.epoch, lineage.watermark_ordinal, lineage.watermark, lineage.watermark_timestamp
        )
        for shard, lineage in view.head.lineages.items()
    }
    head = view.head
    epoch = kept_leader_epoch(view.directory, head.offset)
    return SnapshotPartition(number, head.begin, head.offset, whole.count, whole.hex(), positions, tuple(files), epoch)


def _chunks(pairs: Iterator[Pair], size_max: int) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    size = 0
    for pair in pairs:
        chunk.append(pair)
        size += len(pair[0]) + len(pair[1])
        if size >= size_max:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def file_checksum(file: Path) -> str:
    """XXH3-128 of a file's bytes, in hex. Raises ``OSError``."""
    digest = xxhash.xxh3_128()
    with open(file, "rb") as opened:
        while data := opened.read(1 << 20):
            digest.update(data)
    return str(digest.hexdigest())
