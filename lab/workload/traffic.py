"""Random transactions on a workload catalog at a bounded rate, for the demo and the tests.

Each worker is a thread with its own session and seeded generator. The seed determines what a worker does, but not how
workers interleave.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import structlog

from lab.workload.catalog import CatalogError, Kind, WorkloadCatalog
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError

log = structlog.get_logger(__name__)

DATABASES: Final = ("sales", "ops")
TABLES_A_TXN_MAX: Final = 3
WRITES_A_TABLE_MAX: Final = 3
EXTERNAL_SHARE: Final = 0.2
ABORT_SHARE: Final = 0.2
RENAME_SHARE: Final = 0.03
RECREATE_SHARE: Final = 0.02
EXTERNAL_WRITE_SHARE: Final = 0.15
RETRY_S: Final = 0.2


@dataclass(slots=True)
class TrafficCounts:
    """Counts since the start. ``refused``: conflicts with other workers. ``errors``: messages of lost servers."""

    done: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    errors: list[str] = field(default_factory=list)


class Worker:
    """One session that runs random operations. Not thread-safe."""

    def __init__(self, catalog: WorkloadCatalog, rng: random.Random, tables_max: int) -> None:
        self.catalog = catalog
        self.counts = TrafficCounts()
        self._rng = rng
        self._tables_max = tables_max
        self._left_open: list[int] = []

    def step(self) -> None:
        """Runs one transaction, or one operation outside any. Raises `MariaDBError`."""
        self._abort_left_open()
        tables = self.catalog.tables()
        if len(tables) < self._tables_max:
            self._create()
            return
        share = self._rng.random()
        name, _, kind = self._rng.choice(tables)
        try:
            if share < RECREATE_SHARE:
                self.catalog.drop_table(name)
                self.counts.done["drop"] += 1
            elif share < RECREATE_SHARE + RENAME_SHARE:
                self.catalog.rename_table(name, self._new_name())
                self.counts.done["rename"] += 1
            elif kind == "external" and share < RECREATE_SHARE + RENAME_SHARE + EXTERNAL_WRITE_SHARE:
                self.catalog.write_table(name, self._fields())
                self.counts.done["external_write"] += 1
            else:
                self._transaction([table for table, _, of_kind in tables if of_kind == "transactional"])
        except CatalogError:
            self.counts.refused += 1

    def _create(self) -> None:
        kind: Kind = "external" if self._rng.random() < EXTERNAL_SHARE else "transactional"
        try:
            self.catalog.create_table(self._new_name(), kind, self._fields())
            self.counts.done["create"] += 1
        except CatalogError:
            self.counts.refused += 1

    def _transaction(self, names: list[str]) -> None:
        """Opens a transaction, writes to some tables, commits or aborts, also after conflicts with other workers."""
        txn = self.catalog.open_txn()
        self._left_open.append(txn)
        for name in self._rng.sample(names, min(len(names), self._rng.randint(1, TABLES_A_TXN_MAX))):
            self._write(txn, name)
        if self._rng.random() < ABORT_SHARE:
            self.catalog.abort(txn)
            self.counts.done["abort"] += 1
        else:
            self.catalog.commit(txn)
            self.counts.done["commit"] += 1
        self._left_open.remove(txn)

    def _abort_left_open(self) -> None:
        """Aborts transactions that lost their server half-way, because they block their tables for other workers."""
        while self._left_open:
            with contextlib.suppress(CatalogError):
                self.catalog.abort(self._left_open[-1])
            self._left_open.pop()

    def _write(self, txn: int, name: str) -> None:
        try:
            self.catalog.alloc_write_id(txn, name)
            for _ in range(self._rng.randint(0, WRITES_A_TABLE_MAX)):
                self.catalog.write_table(name, self._fields(), txn)
                self.counts.done["write"] += 1
        except CatalogError:
            self.counts.refused += 1

    def _new_name(self) -> str:
        return f"{self._rng.choice(DATABASES)}.t{self._rng.randrange(10**6)}"

    def _fields(self) -> dict[str, Any]:
        columns = [f"c{number}" for number in range(self._rng.randint(1, 6))]
        return {"columns": columns, "location": f"s3://lake/{self._rng.randrange(10**9)}", "owner": "workload"}


class Traffic:
    """Worker threads with at most ``rate`` steps a second in total. A context manager that starts and stops them."""

    def __init__(
        self,
        settings: ConnectionSettings,
        database: str,
        *,
        seed: int,
        tables: int = 8,
        rate: float = 50.0,
        workers: int = 4,
    ) -> None:
        """``tables``: how many tables exist at a time. ``workers``: how many transactions may be open at a time."""
        self._stop = threading.Event()
        self._interval_s = workers / rate
        self.workers = [
            Worker(WorkloadCatalog(settings, database), random.Random(f"{seed}/{number}"), tables)
            for number in range(workers)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(worker,), name=f"catalog traffic {number}", daemon=True)
            for number, worker in enumerate(self.workers)
        ]

    def start(self) -> None:
        """Creates the catalog's missing tables and starts the workers. Raises `MariaDBError`."""
        self.workers[0].catalog.create_schema()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops the workers after the transactions that are under way."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for worker in self.workers:
            worker.catalog.close()

    def counts(self) -> TrafficCounts:
        """The sum of all workers' counts."""
        total = TrafficCounts()
        for worker in self.workers:
            total.done.update(dict(worker.counts.done))  # copied at once: the worker goes on counting
            total.refused += worker.counts.refused
            total.errors.extend(worker.counts.errors)
        return total

    def _run(self, worker: Worker) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                worker.step()
            except MariaDBError as error:
                worker.counts.errors.append(str(error))
                log.warning("catalog traffic interrupted", error=str(error))
                self._stop.wait(RETRY_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
