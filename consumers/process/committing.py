"""When the stores of a process commit: by rows, bytes or time, one at a time, in a thread beside the fold."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from consumers.owner.partitions import RETRY_S, Partition
from consumers.store.errors import RetryableStoreError
from consumers.store.store import Commit

PENDING_BYTES_MAX: Final = 64 << 20
"""Of messages folded into one memtable; then a commit is due."""
IDLE_FACTOR: Final = 10
"""Watermarks alone are committed that much more rarely than rows."""
RETRY_S_MAX: Final = 8.0
"""Between two attempts at a commit that met a full disk, one that fails, or no file handles; the first: `RETRY_S`."""


class Committer:
    """Paces commits. `advance` is called by the fold thread between batches; it alone freezes memtables."""

    def __init__(self, rows: int, interval_s: float) -> None:
        """A commit is due at ``rows`` entries of a partition, or ``interval_s`` after its last one."""
        self._rows = rows
        self._interval_s = interval_s
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="commit")

    def advance(self, partition: Partition, now: float) -> Commit | None:
        """Begins a commit that is due; returns one that is done. Waits only where the memtable may not grow on.

        Raises `StoreError`: after a `RetryableStoreError` the same commit is tried again later, nothing of it is lost.
        """
        if partition.committing is None:
            if self._is_due(partition, now):
                partition.store.freeze()
                partition.committing = self._writer.submit(partition.store.write)
            return None
        if not partition.committing.done() and self._may_grow(partition):
            return None
        writing, partition.committing = partition.committing, None
        return self._result(partition, writing, now)

    def _result(self, partition: Partition, writing: Future[Commit | None], now: float) -> Commit | None:
        try:
            done = writing.result()
        except RetryableStoreError:
            partition.commit_not_before = now + partition.commit_retry_s
            partition.commit_retry_s = min(partition.commit_retry_s * 2, RETRY_S_MAX)
            raise
        partition.committed_at = now
        partition.commit_retry_s = RETRY_S
        return done

    def _is_due(self, partition: Partition, now: float) -> bool:
        store = partition.store
        if partition.is_paused:
            return now >= partition.commit_not_before
        if not store.is_dirty:
            return False
        if store.pending_rows >= self._rows or store.pending_bytes >= PENDING_BYTES_MAX:
            return True
        patience = self._interval_s * (1 if store.pending_rows else IDLE_FACTOR)
        return now - partition.committed_at >= patience

    def _may_grow(self, partition: Partition) -> bool:
        """Back-pressure: while one memtable is being written, the next may grow to the same size, no further."""
        store = partition.store
        return store.pending_rows < 2 * self._rows and store.pending_bytes < PENDING_BYTES_MAX

    def close(self) -> None:
        """Waits for what is being written."""
        self._writer.shutdown()
