"""The source of truth as the front reads it: the interfaces, their values, and the threads for blocking reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from consumers.owner.meaning import fingerprint
from serving.errors import ReadError
from serving.sources.shares import Shares
from stream.sources.key_range import KeyRange
from stream.wire.events import Column
from tokens import Position

Found = TypeVar("Found")

QUEUE_TIMEOUT_S: Final = 10.0
"""How long a read may wait for a thread."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """What a front must know about a row table. ``key``: the primary key's columns in key order.

    ``reason``: why it is not ``cacheable``. ``prefix``: how many leading key columns choose a row's partition.
    ``meaning``: the fingerprint of what its keys mean. ``columns``: all of them, by which indexes may be. ``indexes``:
    the columns of those that the source has; None of a description that is not the source's.
    """

    name: str
    key: tuple[Column, ...]
    cacheable: bool
    reason: str = ""
    prefix: int = 0
    columns: tuple[Column, ...] = ()
    indexes: tuple[tuple[str, ...], ...] | None = field(default=None, compare=False)
    meaning: bytes = field(init=False, compare=False)

    def __post_init__(self) -> None:
        meaning = fingerprint((column.name, column.kind, column.exact) for column in self.key)
        object.__setattr__(self, "meaning", meaning)


class SourceRow(NamedTuple):
    """The source's answer for a key. ``image`` is None if there is no such row. ``key``: the row's own key, as stored.

    ``position``: of the snapshot that the row was read in. ``hi``: nothing in the row is later; it equals ``position``
    except for engines without snapshots. ``timestamp``: the source's time in seconds, for display. ``as_of_ms``: all
    that the source had committed by then, in ms since 1970, is in the answer; 0: unknown, as of a replica.
    """

    image: bytes | None
    key: bytes
    position: Position
    hi: Position
    timestamp: int = 0
    as_of_ms: int = 0
    kept: Position | None = None
    """In place of ``position`` for whoever keeps the row: what is later in the log may be lost in a crash."""


class SourceTable(NamedTuple):
    """The source's answer for a catalog table; ``image`` is None if there is none. Others as in `SourceRow`.

    ``hi``: nothing in the image is later. It may be before ``position``: that tells what the image cannot lack.
    None: ``position``, since all was read in one snapshot. ``is_logged``: whether an event tells of each change; else
    nothing of it can be proved later, and nothing is kept.
    """

    table_id: int
    kind: str
    image: bytes | None
    write_ids: str
    position: Position
    timestamp: int = 0
    hi: Position | None = None
    is_logged: bool = True
    as_of_ms: int = 0
    takes_commits: bool = False
    """Whether a COMMIT may change it, of whichever transaction."""
    server_ids: str = ""
    """The list for all readers: ``write_ids`` counts what the reader has written itself."""
    written: Position | None = None
    """No write of the table that the image shows is later; None: than ``hi``."""

    @property
    def latest(self) -> str:
        """The position that a session takes away, as text."""
        return str(self.hi or self.position)


class Folded(NamedTuple):
    """What the cache has folded of a table: the log up to ``position``, and by then the list ``write_ids``.

    "": of the one or the other nothing is known, or there is none.
    """

    position: str = ""
    write_ids: str = ""


NOTHING: Final = Folded()


class WantedObjects(NamedTuple):
    """Which objects of a kind to read: those of these ``names`` (in parts), else what passes ``prefix`` and ``filter``.

    ``table``: ``db.table`` to which they belong; "": to none. ``names_only``: images may be left out.
    """

    kind: str
    table: str = ""
    names: tuple[tuple[str, ...], ...] = ()
    prefix: tuple[str, ...] = ()
    filter: str = ""
    names_only: bool = False


class SourceObjects(NamedTuple):
    """The source's answer for objects of a kind. ``names`` in parts; ``images`` None where there is no such object.

    ``table_id``, ``table_kind``, ``write_ids``, ``table_image``: of the table that they belong to, its list fetched
    before them; else, or if there is no such table, 0, "", "", None.
    """

    names: list[tuple[str, ...]]
    images: list[bytes | None]
    """As many as names; empty if only names were wanted."""
    position: Position
    hi: Position | None = None
    """Nothing in the answer is later; None: than ``position``."""
    table_id: int = 0
    table_kind: str = ""
    write_ids: str = ""
    table_image: bytes | None = None
    statistics_of: Sequence[Sequence[bytes | None]] = ()
    """Of statistics, for each name, the images of all that they are of: these say whether the statistics hold.

    Empty: they were not read.
    """
    as_of_ms: int = 0
    """As in `SourceRow`."""
    is_proved: bool = True
    """False: ``position`` and ``as_of_ms`` tell nothing of the objects, which the source may have kept from before."""


class SourceKey(NamedTuple):
    """Names a row by the canonical values of its key columns, in key order."""

    table: RowTable
    values: Sequence[object]


class SourceRange(NamedTuple):
    """The source's answer for a range: the (key, image) of its first rows, or their number. Others as in `SourceRow`.

    ``more``: there are rows after the last one.
    """

    rows: Sequence[tuple[bytes, bytes]]
    number: int
    more: bool
    position: Position
    hi: Position
    as_of_ms: int = 0


class RowSource(Protocol):
    """A source of rows. Raises `ReadError` ``source_unreachable``, ``source_failed``, ``too_many_requests``."""

    @property
    def shard(self) -> str:
        """The shard that its positions belong to."""

    async def describe(self, table: str) -> RowTable | None:
        """The description of ``db.table``, or None if there is no such table."""

    async def read(self, wanted: Sequence[SourceKey]) -> list[SourceRow | ReadError | SchemaChanged]:
        """The rows in the order of ``wanted``, all from one snapshot. An element that cannot be read is its error.

        `SchemaChanged`: the table's key is no longer the one in ``wanted``.
        """

    async def read_range(self, table: RowTable, wanted: KeyRange) -> SourceRange:
        """The first rows of a range. Raises `SchemaChanged` too, and `ReadError` ``bad_key``, ``sort_too_large``."""

    async def wait(self, position: Position, timeout_s: float, tables: Collection[str]) -> bool:
        """Waits until reads of ``tables`` prove ``position``; False if they do not in time."""

    async def close(self) -> None:
        """Closes its connections."""


class TableSource(Protocol):
    """A source of catalog tables. Raises as `RowSource`."""

    @property
    def shard(self) -> str:
        """The shard that its positions belong to."""

    async def read(self, name: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:
        """The table ``db.table``, its id, its list and the log's position, from one snapshot.

        ``own_list``: the list of a reader that may have a transaction open. The answer may then hold that
        transaction's uncommitted writes: it is for this reader only and must not be cached.
        ``known``: what the cache has folded. A source that can tell that nothing of the table is later answers with
        that position as ``hi``, so that the session can go on with what is cached.
        """

    async def close(self) -> None:
        """Closes its connections."""


@runtime_checkable
class ObjectSource(Protocol):
    """A `TableSource` that has the other objects of its catalog too. Raises as `RowSource`."""

    @property
    def shard(self) -> str:
        """The shard that its positions belong to."""

    async def read_objects(
        self, wanted: WantedObjects, own_list: str | None = None, known: Folded = NOTHING
    ) -> SourceObjects:
        """The objects, as they were at some moment after a position. Others: as in `TableSource.read`.

        It may give more than was wanted, but nothing of another kind or table. Raises ``bad_filter`` too.
        """


class ListedTable(NamedTuple):
    """A table as a reader that begins finds it. ``table_id`` 0: there is none.

    ``write_ids``: "" of one that is not transactional.
    """

    name: str
    table_id: int
    write_ids: str


class SourceLists(NamedTuple):
    """``txns``: the ``ValidTxnList`` of the reader; ``tables``: of those that it named, at or after ``position``."""

    txns: str
    tables: list[ListedTable]
    position: Position


@runtime_checkable
class ListSource(Protocol):
    """A `TableSource` that lists transactions for a reader that begins. Raises as `RowSource`."""

    @property
    def shard(self) -> str:
        """The shard that its positions belong to."""

    async def read_lists(self, names: Sequence[str], txn: int = 0, txns: str = "") -> SourceLists:
        """The lists and ids of tables. ``txn``: the reader's own; ``txns``: the list that it has already, if any."""


class SchemaChanged(Exception):
    """The table's key has changed since it was described."""


async def _at_the_end(running: asyncio.Future[Any], held: AsyncExitStack) -> None:
    """Gives a share back when its thread has ended."""
    async with held:
        await asyncio.wait([running])
    if not running.cancelled():
        running.exception()  # told to nobody


class SourceThreads:
    """Runs blocking reads in a thread pool, of which tables and callers have shares (`serving.sources.shares`)."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._shares = Shares(threads)
        self._left: set[asyncio.Future[None]] = set()
        """Reads that nobody waits for any more."""

    async def run(
        self, work: Callable[[], Found], *, tables: Collection[str] = (), timeout_s: float = QUEUE_TIMEOUT_S
    ) -> Found:
        """The result of ``work``, which reads ``tables``. ``timeout_s``: until a thread is free.

        Raises `ReadError` ``too_many_requests``, and whatever ``work`` raises.
        """
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._shares.hold(tables, timeout_s))
            running = asyncio.get_running_loop().run_in_executor(self._pool, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:  # whoever asked has left; the thread works on, and so does the share
                self._left.add(leaving := asyncio.ensure_future(_at_the_end(running, held.pop_all())))
                leaving.add_done_callback(self._left.discard)
                raise

    def close(self) -> None:
        """Cancels queued work. Running work goes on; this does not wait for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)
