"""A thread that reads a table's chunks ahead, so that the binlog goes on meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from stream.sources.mariadb.backfill.plan import After, Chunk
from stream.sources.mariadb.connection import MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.gtid import GtidPosition
from stream.wire.events import DescribeTable

log = structlog.get_logger(__name__)

AHEAD_MAX: Final = 4
"""Chunks that are read and not published yet."""
RETRY_S: Final = 0.5
STOP_MAX_S: Final = 2.0
"""How long to wait for the thread at the end. It may be about to connect, which nothing interrupts."""


class TableHeld(MariaDBError):
    """Nothing can be proved of the table until somebody ends what holds it: others can be read meanwhile."""


class Chunks(Protocol):
    """What reads chunks, as `stream.sources.mariadb.backfill.chunks.ChunkReader` does.

    ``behind_s``: how long to wait if a read does not have yet what the source has read of the log.
    """

    @property
    def behind_s(self) -> float: ...

    def read(self, described: DescribeTable, after: After | None, keys: Sequence[bytes] = ()) -> Chunk: ...

    def estimated_rows(self, table: str) -> int: ...

    def close(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Read from ``after`` on, and only what has everything up to ``since``. ``keys``: read these alone, at once."""

    described: DescribeTable
    after: After | None
    since: GtidPosition
    keys: tuple[bytes, ...] = ()


class ChunkReading:
    """Chunks of one table at a time, in order. `want` and `take` don't wait for the server.

    ``rows_per_s``: a limit on what is read; 0: none.
    """

    def __init__(self, reader: Chunks, rows_per_s: int = 0) -> None:
        self._reader = reader
        self._rows_per_s = rows_per_s
        self._changed = threading.Condition()
        self._wanted: Wanted | None = None
        self._ahead: deque[Chunk] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failed: MariaDBError | None = None
        """Why the wanted table can't be read, while others perhaps can."""
        self.estimate = 0
        """About how many rows the wanted table has; 0: unknown."""

    def want(self, wanted: Wanted | None) -> None:
        """Read this, and drop what was read. None: nothing."""
        with self._changed:
            self._wanted, self.failed = wanted, None
            self._ahead.clear()
            self._changed.notify_all()
            if wanted is not None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backfill", daemon=True)
                self._thread.start()

    @property
    def first(self) -> Chunk | None:
        """The chunk to publish next, once it is read."""
        return self._ahead[0] if self._ahead else None

    def wait(self, seconds: float) -> bool:
        """Wait for the `first` chunk, or for an error. Returns whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._ahead or self.failed), seconds)

    def take(self) -> None:
        """The `first` chunk is published."""
        with self._changed:
            self._ahead.popleft()
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread and its session. A statement that runs is given up."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._reader.stop()
        if self._thread is not None:
            self._thread.join(STOP_MAX_S)

    def _run(self) -> None:
        wanted: Wanted | None = None
        after: After | None = None
        pause_s = 0.0
        while (now := self._next(wanted, pause_s)) is not None:
            if now is not wanted:
                wanted, after = now, now.after
                self._reader.close()  # the address may lead to another server by now
            try:
                if after is None and not now.keys:
                    self.estimate = self._reader.estimated_rows(now.described.table)
                chunk = self._reader.read(now.described, after, now.keys)
            except MariaDBUnreachable as error:
                if not self._closing:
                    log.info("a chunk could not be read", table=now.described.table, reason=str(error))
                pause_s = RETRY_S
            except MariaDBError as error:
                self._fail(now, error)
                pause_s = 0.0
            except Exception as error:  # also PyMySQL's, of a session that `stop` has ended
                if not self._closing:
                    log.exception("a chunk could not be read", table=now.described.table)
                self._fail(now, MariaDBError(repr(error)))
                pause_s = 0.0
            else:
                pause_s = self._reader.behind_s
                if chunk.follows(now.since):
                    after = chunk.last
                    pause_s = self._keep(now, chunk)
                elif chunk.held:
                    self._fail(now, TableHeld(chunk.held))
        self._reader.close()

    def _next(self, before: Wanted | None, pause_s: float) -> Wanted | None:
        """What to read next, once there is room for it; None at the end. A pause ends if another table is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._wanted is not before, pause_s)
            self._changed.wait_for(lambda: self._closing or (self._may_read() and not self.failed))
            return None if self._closing else self._wanted

    def _may_read(self) -> bool:
        ends = bool(self._ahead) and self._ahead[-1].last is None
        return self._wanted is not None and len(self._ahead) < AHEAD_MAX and not ends

    def _keep(self, of: Wanted, chunk: Chunk) -> float:
        """Offer a chunk, if it is still wanted. Returns how long to pause."""
        with self._changed:
            if self._wanted is of:
                self._ahead.append(chunk)
                self._changed.notify_all()
        return len(chunk.rows) / self._rows_per_s if self._rows_per_s else 0.0

    def _fail(self, of: Wanted, error: MariaDBError) -> None:
        with self._changed:
            if self._wanted is of:
                self.failed = error
                self._changed.notify_all()
