"""Schedules the commits of a process's stores: by rows, bytes or time, one at a time, in a thread of their own."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from consumers.owner.partitions import RETRY_S, Partition
from consumers.store.errors import RetryableStoreError
from consumers.store.store import Commit

PENDING_BYTES_MAX: Final = 64 << 20
"""A commit is due after this many bytes of messages folded into one memtable, and arrays for their rows."""
PROCESS_BYTES_MAX: Final = 256 << 20
"""The same for all memtables of a process together; each partition has an equal share."""
IDLE_FACTOR: Final = 10
"""If only watermarks moved, the commit interval is longer by this factor."""
STEP_S: Final = 0.05
"""How long the fold thread waits for messages before it looks again at what is due. As many commits as belong into
that time may begin together."""
RETRY_S_MAX: Final = 8.0
"""Longest pause between attempts at a commit that failed with `RetryableStoreError`; the first pause is `RETRY_S`."""


def in_turn(partitions: Iterable[Partition]) -> list[Partition]:
    """``partitions`` in the order for `Committer.advance`: those first whose last commit is the longest ago.

    Where steps are longer than `STEP_S`, fewer commits begin than are due: each partition's come later, and none's stay
    out.
    """
    return sorted(partitions, key=lambda partition: partition.committed_at)


class Committer:
    """Schedules commits. The fold thread calls `advance` between batches; only there memtables are frozen."""

    def __init__(self, rows: int, interval_s: float) -> None:
        """A commit is due at ``rows`` pending entries of a partition, or ``interval_s`` after its last commit."""
        self._rows = rows
        self._interval_s = interval_s
        self._bytes = PENDING_BYTES_MAX
        self._partitions = 1
        self._apart_until = 0.0
        """Before then no commit is due by time alone."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="commit")

    def share(self, partitions: int) -> None:
        """The process owns so many partitions."""
        self._partitions = max(1, partitions)
        self._bytes = min(PENDING_BYTES_MAX, PROCESS_BYTES_MAX // self._partitions)

    def advance(self, partition: Partition, now: float) -> Commit | None:
        """Starts a commit that is due, or returns one that has finished. Blocks only if the memtable is full.

        Raises `StoreError`. After a `RetryableStoreError` a later call tries the same commit again.
        """
        if partition.committing is None:
            if self._is_due(partition, now):
                if partition.store.freeze():
                    partition.frozen_epoch = partition.leader_epoch
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
        """Those that only time makes due are spread over the interval: together they would hold up all readers."""
        store = partition.store
        if partition.awaits_commit:
            return now >= partition.commit_not_before
        if not store.is_dirty:
            return False
        if store.pending_rows >= self._rows or store.pending_bytes >= self._bytes:
            return True
        interval_s = self._interval_s * (1 if store.pending_rows else IDLE_FACTOR)
        if now - partition.committed_at < interval_s or now < self._apart_until:
            return False
        self._apart_until = max(self._apart_until, now - STEP_S) + self._interval_s / self._partitions
        return True

    def _may_grow(self, partition: Partition) -> bool:
        """Back-pressure: while one memtable is written, the next may grow to the same size but no further."""
        store = partition.store
        return store.pending_rows < 2 * self._rows and store.pending_bytes < self._bytes

    def close(self) -> None:
        """Waits for the running commit."""
        self._writer.shutdown()
