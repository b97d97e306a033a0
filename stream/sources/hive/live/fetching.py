"""Fetches tables from metastores, side by side: for each chunk a position, lists, objects, and a position again.

Calls about one table that a metastore does not answer, though it answers others, are refused ones: there is no outage.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import structlog

from stream.sources.hive.live.metastore import Metastore, MetastoreSettings, ServerList, Transactions
from stream.sources.hive.messages import HiveMessageError, TableObject
from stream.sources.hive.rpc.connection import MetastoreRefused, MetastoreTimeout
from stream.sources.hive.structs import ThriftError

log = structlog.get_logger(__name__)

CHUNK_TABLES: Final = 64
"""Tables that are fetched together, with their lists."""
AHEAD: Final = 16
"""Chunks of a sweep that are fetched ahead of the one that is published."""
REPORT_S: Final = 10.0
"""How often a sweep tells how far it is."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Fetched:
    """Tables as they were at some moment between the events ``lo`` and ``hi``.

    ``lists``: of all ``names``, as of event ``listed_at`` or later; what is no transactional table has one too.
    """

    names: tuple[str, ...]
    listed_at: int
    lo: int
    hi: int
    lists: dict[str, ServerList]
    tables: dict[str, TableObject | HiveMessageError]
    transactions: Transactions


@dataclass(slots=True)
class _Listed:
    """One list of transactions, which serves many fetches. ``at``: the log's end before it was read."""

    at: int = -1
    read_at_s: float = 0.0
    transactions: Transactions = field(default_factory=lambda: Transactions(0, frozenset(), frozenset()))


class Fetcher:
    """``threads`` connections that fetch. ``age_s``: how long one list of transactions serves. A context manager."""

    def __init__(
        self,
        settings: MetastoreSettings,
        threads: int,
        age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._age_s = age_s
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hive-fetch")
        self._mine = threading.local()
        self._opened: list[Metastore] = []
        self._listing = threading.Lock()
        self._listed = _Listed()
        self._lists_from = 0
        self.arrived = threading.Event()
        """Set when something that was asked for is there."""

    def submit(self, names: tuple[str, ...], *, is_fresh: bool = False) -> Future[Fetched]:
        """Fetch ``names`` in a thread. ``is_fresh``: with a list of transactions of its own."""
        return self.run(lambda metastore: self._fetch(metastore, names, is_fresh=is_fresh))

    def run(self, work: Callable[[Metastore], Found]) -> Future[Found]:
        """Do ``work`` in a thread."""
        future = self._pool.submit(lambda: work(self._metastore()))
        future.add_done_callback(lambda _: self.arrived.set())
        return future

    def oldest_list(self) -> int:
        """No fetch that is submitted from now on has a list from before this event; -1 before the first one."""
        return self._listed.at

    def forget_lists(self, before: int) -> None:
        """Let no list of transactions from before this event serve a fetch that begins from now on."""
        self._lists_from = before

    def close(self) -> None:
        """Drop what is queued, and close the connections once what runs has ended."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for metastore in self._opened:
            metastore.close()

    def _fetch(self, metastore: Metastore, names: tuple[str, ...], *, is_fresh: bool) -> Fetched:
        listed = self._transactions(metastore, is_fresh)
        lo = metastore.last_event()
        lists = metastore.write_ids(names, listed.transactions.listed)
        lists |= metastore.without_collapse(lists, listed.transactions)
        tables = metastore.tables(names)
        return Fetched(names, listed.at, lo, metastore.last_event(), lists, tables, listed.transactions)

    def _metastore(self) -> Metastore:
        metastore: Metastore | None = getattr(self._mine, "metastore", None)
        if metastore is None:
            metastore = self._mine.metastore = Metastore(self._settings)
            self._opened.append(metastore)
        return metastore

    def _transactions(self, metastore: Metastore, is_fresh: bool) -> _Listed:
        if is_fresh:
            return self._read(metastore)
        with self._listing:
            if self._listed.at < self._lists_from or self._clock() - self._listed.read_at_s >= self._age_s:
                self._listed = self._read(metastore)
            return self._listed

    def _read(self, metastore: Metastore) -> _Listed:
        at, now_s = metastore.last_event(), self._clock()
        return _Listed(at, now_s, metastore.transactions())


class Sweep(Generic[Found]):
    """Fetches ``names`` with ``submit``, and gives the results in order."""

    def __init__(
        self,
        names: Sequence[str],
        submit: Callable[[tuple[str, ...]], Future[Found]],
        chunk: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``chunk``: so many are fetched together."""
        self.total = len(names)
        self._chunks = deque(tuple(names[at : at + chunk]) for at in range(0, len(names), chunk))
        self._submit = submit
        self._under_way: deque[tuple[int, Future[Found]]] = deque()
        self._clock = clock
        self._began_s = self._reported_s = clock()
        self._done = 0

    @property
    def is_over(self) -> bool:
        """Whether every chunk was given out."""
        return not self._chunks and not self._under_way

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._began_s

    def next(self) -> Found | None:
        """The next chunk in the order of names, if it is there. Raises what its fetch raised."""
        while self._chunks and len(self._under_way) < AHEAD:
            names = self._chunks.popleft()
            self._under_way.append((len(names), self._submit(names)))
        if not self._under_way or not self._under_way[0][1].done():
            return None
        count, future = self._under_way.popleft()
        self._done += count
        return future.result()

    def cancel(self) -> None:
        """Drop what has not begun."""
        for _, future in self._under_way:
            future.cancel()

    def report(self, what: str, shard: str) -> None:
        """Say, once in a while, how far it is and when it will be over."""
        now_s = self._clock()
        if now_s - self._reported_s < REPORT_S:
            return
        self._reported_s = now_s
        rate = self._done / (now_s - self._began_s)
        left_s = round((self.total - self._done) / rate) if rate else -1
        log.info(what, shard=shard, tables=self._done, of=self.total, per_second=round(rate, 1), left_s=left_s)


class TableUnanswered(MetastoreRefused):
    """What is asked of one table is not answered in time, or with more than can be read; as good as a refusal."""


@contextmanager
def of_one_table(metastore: Metastore, name: str) -> Iterator[None]:
    """Around calls about the table ``name``. Raises `TableUnanswered`; an outage is raised as what it is."""
    try:
        yield
    except (MetastoreTimeout, ThriftError) as error:
        metastore.last_event()
        raise TableUnanswered(name, 0, str(error)) from error
