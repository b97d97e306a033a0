"""Where a read goes when the cache cannot prove its answer: the source of truth, bounded and off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from serving.errors import ReadError
from stream.wire.events import Column
from tokens import Position

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class RowTable:
    """What a front must know of a row table. ``key`` are its primary key's columns, in key order."""

    name: str
    key: tuple[Column, ...]
    cacheable: bool
    reason: str = ""


class SourceRow(NamedTuple):
    """What the source said of a key. ``key``: the row's own, as in the store; ``image`` None: there is no such row.

    ``position``: of the snapshot that it was read in; ``hi``: nothing in the row is later (the same, but for engines
    without snapshots). ``timestamp``: the source's seconds, for display.
    """

    image: bytes | None
    key: bytes
    position: Position
    hi: Position
    timestamp: int = 0


class SourceTable(NamedTuple):
    """What the source said of a catalog table; ``image`` None: there is none. ``position`` as in `SourceRow`."""

    table_id: int
    kind: str
    image: bytes | None
    write_ids: str
    position: Position
    timestamp: int = 0


class RowAt(NamedTuple):
    """A row by the canonical values of its key columns, in key order."""

    table: RowTable
    values: Sequence[object]


class RowSource(Protocol):
    """A source of rows. Raises `ReadError` ``source_unreachable``, ``source_failed``, ``too_many_requests``."""

    @property
    def shard(self) -> str:
        """The shard whose positions it answers with."""

    async def describe(self, table: str) -> RowTable | None:
        """The key and kind of ``db.table``, or None if there is no such table."""

    async def read(self, wanted: Sequence[RowAt]) -> list[SourceRow | ReadError | SchemaChanged]:
        """What one snapshot holds of each of ``wanted``, in their order; an element that can't be read is its error.

        `SchemaChanged`: the table's key is another one by now.
        """

    async def wait(self, position: Position, timeout_s: float) -> bool:
        """Whether the source came to ``position`` in time."""

    async def close(self) -> None:
        """Closes its connections."""


class TableSource(Protocol):
    """A source of catalog tables. Raises as `RowSource`."""

    @property
    def shard(self) -> str:
        """The shard whose positions it answers with."""

    async def read(self, name: str, own_list: str | None = None) -> SourceTable:
        """The table ``db.table``, its id, list and the log's position, in one snapshot.

        ``own_list``: of a reader that may be in a transaction of its own. What it is then answered may hold what is not
        committed: it is for this reader alone, and never for the cache.
        """

    async def close(self) -> None:
        """Closes its connections."""


class SchemaChanged(Exception):
    """The table's key is not what the reader thought: describe it again."""


class SourceThreads:
    """Runs blocking reads in a bounded pool; what would wait too long is turned away."""

    def __init__(self, name: str, *, threads: int = 8, waiting_max: int = 256) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting = 0
        self._waiting_max = waiting_max

    async def run(self, work: Callable[[], Found]) -> Found:
        """The result of ``work``. Raises `ReadError` ``too_many_requests``, and what ``work`` raises."""
        if self._waiting >= self._waiting_max:
            raise ReadError("too_many_requests", f"{self._waiting_max} reads of the source are under way already")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Lets what runs end; starts nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
