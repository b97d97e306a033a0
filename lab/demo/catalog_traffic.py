"""The demo's catalog: traffic of transactions, and readers that bring write-id lists."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import structlog

from lab.demo.stack import CATALOG, CATALOG_DATABASE, Stack
from lab.workload.catalog import CatalogError, WorkloadCatalog
from lab.workload.judge import JudgeVerdict, judge
from lab.workload.traffic import Traffic
from serving.client import ClientError, FreshetClient, Session
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError

log = structlog.get_logger(__name__)

SHARD = f"{CATALOG}/0"
READERS, READER_PAUSE_S = 2, 0.03
TRUTH_RETRY_S = 60.0
TABLES, STEPS_PER_S, WORKERS = 8, 12.0, 2


def connection_settings(stack: Stack) -> ConnectionSettings:
    """The catalog's connection settings for the demo's MariaDB."""
    address = stack.mariadb.address
    return ConnectionSettings(address.host, address.port, address.user, address.password)


class CatalogDriver:
    """Drives the catalog keyspace with traffic and readers, and counts their answers."""

    def __init__(self, stack: Stack, seed: int, reconnect: bool = False) -> None:
        """``reconnect``: traffic and readers reconnect after an outage of the database."""
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.errors: list[str] = []
        self._wrong: list[str] = []
        self._stack, self._seed, self._reconnect = stack, seed, reconnect
        self._settings = connection_settings(stack)
        self._traffic = Traffic(
            self._settings, CATALOG_DATABASE, seed=seed, tables=TABLES, rate=STEPS_PER_S, workers=WORKERS
        )
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._read, args=(number,), name=f"catalog-reader-{number}", daemon=True)
            for number in range(READERS)
        ]

    @staticmethod
    def prepare(stack: Stack) -> None:
        """Creates the catalog and a few tables before anything is published, so that bootstrap publishes them."""
        with WorkloadCatalog(connection_settings(stack), CATALOG_DATABASE) as catalog:
            catalog.create_schema()
            for number in range(3):
                catalog.create_table(f"sales.before_{number}", "transactional", {"columns": ["a", "b"]})
            catalog.create_table("ops.outside", "external", {"columns": ["line"]})

    @property
    def commits(self) -> int:
        """Catalog transactions committed so far."""
        return self._traffic.counts().done["commit"]

    def start(self) -> None:
        """Starts traffic and readers."""
        self._traffic.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops both after the transactions that are under way."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=40)
        self._traffic.stop()
        if not self._reconnect:
            self.errors += self._traffic.counts().errors

    def wrong(self) -> list[str]:
        """One line for each answer that missed a write inside its demand."""
        return self._wrong

    def _read(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/catalog/{number}")
        try:
            with (
                FreshetClient(self._stack.url) as client,
                WorkloadCatalog(self._settings, CATALOG_DATABASE) as catalog,
            ):
                session = client.session()
                while not self._stopping.wait(rng.uniform(0, 2 * READER_PAUSE_S)):
                    try:
                        self._read_one(session, catalog, rng)
                    except MariaDBError as error:
                        if not self._reconnect:
                            raise
                        log.debug("the source of truth is unavailable", error=str(error))
        except (ClientError, MariaDBError) as error:
            self.errors.append(f"catalog reader {number}: {error}")

    def _read_one(self, session: Session, catalog: WorkloadCatalog, rng: random.Random) -> None:
        """Reads one table with its current write-id list and judges the answer at once. Raises `MariaDBError`."""
        try:
            name, table_id, kind = rng.choice(catalog.tables())
            demanded = catalog.valid_write_ids(name) if kind == "transactional" else None
            if demanded is not None and catalog.table_id(name) != table_id:
                return
        except (CatalogError, IndexError):
            return
        seen = session.vector.get(SHARD)
        position = str(seen.position) if seen is not None else None
        try:
            db, _, short = name.partition(".")
            wait_ms = rng.choice((0, 50, 300))
            table = session.get_table(db, short, demanded, table_id, catalog=CATALOG, max_wait_ms=wait_ms)
        except ClientError as error:
            with self._lock:
                self.refused[error.code] += 1
            return
        with self._lock:
            self.counts[f"{table.served_from}/{table.freshness}"] += 1
        if not table.found or table.table_id != table_id:
            return
        image = json.dumps(table.value).encode()
        verdict = self._retry_verdict(lambda: judge(catalog, table_id, image, demanded, position))
        if verdict.wrong:
            self._wrong.append(f"{name}: {verdict.wrong} ({table.served_from}, {table.why})")

    def _retry_verdict(self, ask: Callable[[], JudgeVerdict]) -> JudgeVerdict:
        """The verdict, retried during an outage: it does not change with time. Raises `MariaDBError`."""
        deadline = time.monotonic() + TRUTH_RETRY_S
        while True:
            try:
                return ask()
            except MariaDBError:
                if not self._reconnect or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
