"""What was fetched is written behind the reader's back: a bounded amount of it waits in memory, the rest is dropped.

What waits can be read from here, so that nothing is fetched twice because the disk is slow.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from serving.bytecache.disk.layout import BLOCK
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.policy.pools import Value

TEND_S: Final = 1.0
"""Between two looks at what is due (`Shard.tend`)."""


@dataclass(slots=True, frozen=True)
class Write:
    """Neighbouring blocks of one extent, to be stored. ``expires``: s since 1970, 0: never."""

    file: CachedFile
    first: int
    data: memoryview
    value: Value
    expires: int

    @property
    def blocks(self) -> range:
        """Which blocks these are."""
        return range(self.first, self.first + -(-len(self.data) // BLOCK))


@dataclass(slots=True)
class WriteCounts:
    """``waiting_bytes``: now; the others since the start."""

    waiting_bytes: int = 0
    submitted: int = 0
    dropped: int = 0
    dropped_bytes: int = 0


class Writers:
    """Threads that store. ``store`` must not raise."""

    def __init__(self, store: Callable[[Write], None], tend: Callable[[], None], threads: int, limit: int) -> None:
        """``limit``: bytes that may wait. ``tend`` is called about every `TEND_S`."""
        self.counts = WriteCounts()
        self._store, self._tend, self._limit = store, tend, limit
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._waiting: dict[tuple[int, int], memoryview] = {}
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(i == 0,), name="freshet-bytes-write", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def threads(self) -> int:
        """How many writes run at a time."""
        return len(self._threads)

    def submit(self, write: Write) -> bool:
        """Whether it will be stored: False where too much waits already."""
        with self._changed:
            if self.counts.waiting_bytes + len(write.data) > self._limit:
                self.counts.dropped += 1
                self.counts.dropped_bytes += len(write.data)
                return False
            self.counts.submitted += 1
            self.counts.waiting_bytes += len(write.data)
            for i, block in enumerate(write.blocks):
                self._waiting[write.file.number, block] = write.data[i * BLOCK : (i + 1) * BLOCK]
        self._queue.put(write)
        return True

    def waiting(self, number: int, block: int) -> memoryview | None:
        """A block that is not stored yet."""
        return self._waiting.get((number, block))

    def stored(self, number: int, blocks: Sequence[int], timeout_s: float) -> bool:
        """Waits until none of these blocks waits, whatever else does; False after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any((number, block) in self._waiting for block in blocks), timeout_s
            )

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing waits; False after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.counts.waiting_bytes, timeout_s)

    def close(self) -> None:
        """Stores what waits, and ends the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, tends: bool) -> None:
        while True:
            try:
                write = self._queue.get(timeout=TEND_S if tends else None)
            except queue.Empty:
                self._tend()
                continue
            if write is None:
                return
            try:
                self._store(write)
            finally:
                with self._changed:
                    self.counts.waiting_bytes -= len(write.data)
                    for block in write.blocks:
                        self._waiting.pop((write.file.number, block), None)
                    self._changed.notify_all()
