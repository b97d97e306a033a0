"""What was fetched is written behind the reader's back: a bounded amount of it waits in memory, the rest is dropped.

What waits can be read from here, so that nothing is fetched twice because the disk is slow.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from serving.bytecache.disk.layout import BLOCK, BLOCKS
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


def by_extent(file: CachedFile, first: int, data: memoryview, value: Value, expires: int) -> Iterator[Write]:
    """Neighbouring blocks, which may lie in several extents."""
    at = 0
    while at < len(data):
        length = (BLOCKS - (first + at // BLOCK) % BLOCKS) * BLOCK
        yield Write(file, first + at // BLOCK, data[at : at + length], value, expires)
        at += length


@dataclass(slots=True)
class WriteCounts:
    """``waiting_bytes``: now; the others since the start."""

    waiting_bytes: int = 0
    submitted: int = 0
    dropped: int = 0
    dropped_bytes: int = 0


class Writers:
    """Threads that store. Where ``store`` raises, it is dropped; ``tend`` may not raise: it would end a thread."""

    def __init__(self, store: Callable[[Write], None], tend: Callable[[], None], threads: int, limit: int) -> None:
        """``limit``: bytes that may wait. ``tend`` is called about every `TEND_S`."""
        self.counts = WriteCounts()
        self._store, self._tend, self._limit = store, tend, limit
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._waiting: dict[tuple[int, int], tuple[CachedFile, memoryview]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._threads: list[threading.Thread] = []
        for i in range(threads):
            thread = threading.Thread(target=self._run, args=(i == 0,), name="freshet-bytes-write", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more can be had: those that run must not outlive the files
                self.close()
                raise
            self._threads.append(thread)

    @property
    def threads(self) -> int:
        """How many writes run at a time."""
        return len(self._threads)

    def submit(self, write: Write) -> bool:
        """Whether it will be stored: False where too much waits already."""
        with self._changed:
            if self._ended or self.counts.waiting_bytes + len(write.data) > self._limit:
                self.dropped(write)
                return False
            self.counts.submitted += 1
            self.counts.waiting_bytes += len(write.data)
            for i, block in enumerate(write.blocks):
                self._waiting[write.file.number, block] = write.file, write.data[i * BLOCK : (i + 1) * BLOCK]
            self._queue.put(write)  # not later: a thread takes it before the word to end
        return True

    def dropped(self, write: Write) -> None:
        """Counts what won't be stored."""
        self.counts.dropped += 1
        self.counts.dropped_bytes += len(write.data)

    def waiting(self, number: int, block: int) -> memoryview | None:
        """A block that is not stored yet."""
        found = self._waiting.get((number, block))
        return None if found is None else found[1]

    def forget(self, is_meant: Callable[[CachedFile], bool]) -> None:
        """What waits of these files is not given any more. It may still be stored."""
        with self._changed:
            for at in [at for at, (file, _) in self._waiting.items() if is_meant(file)]:
                del self._waiting[at]
            self._changed.notify_all()

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
        self.end()
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """As `close`, without waiting for it. Nothing more is taken."""
        with self._changed:
            self._ended = True
            for _ in self._threads:
                self._queue.put(None)

    def after_fork(self) -> None:
        """In the child, where there are no threads: what waits is stored by its parent, and not given here."""
        self._changed = threading.Condition()
        self._ended = True
        self._waiting.clear()
        self.counts = WriteCounts()

    def _run(self, tends: bool) -> None:
        due = monotonic() + TEND_S
        while True:
            if tends and monotonic() >= due:  # also where writes never cease
                self._tend()
                due = monotonic() + TEND_S
            try:
                write = self._queue.get(timeout=TEND_S if tends else None)
            except queue.Empty:
                continue
            if write is None:
                return
            failed = False
            try:
                self._store(write)
            except Exception:  # noqa: BLE001 - a defect: without its threads nothing more would be stored
                failed = True
            finally:
                with self._changed:
                    if failed:
                        self.dropped(write)
                    self.counts.waiting_bytes -= len(write.data)
                    for block in write.blocks:
                        self._waiting.pop((write.file.number, block), None)
                    self._changed.notify_all()
