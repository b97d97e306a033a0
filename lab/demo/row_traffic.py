"""Concurrent transactions on MariaDB: what applications do to their rows, and what makes caches serve stale data.

There are multi-row commits, several updates of one row in a transaction, updates that move a primary key, rollbacks,
deletes, foreign-key cascades and DDL. Each row carries a version; `lab.demo.truth.RowVersions` keeps all of them.

Traffic that reconnects goes on after an outage of the server. A commit whose answer was lost is in doubt. It is looked
up in the binary log at the end: each transaction also writes its number to a journal table in another database.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pymysql
import structlog

from lab.blackbox.recording import Recorder
from lab.demo.truth import RowKey, RowVersions

log = structlog.get_logger(__name__)

ACCOUNTS, ORDERS, LINES = "accounts", "orders", "order_lines"
TABLES = (ACCOUNTS, ORDERS, LINES)
SCHEMA = (
    f"CREATE TABLE {ACCOUNTS} (id BIGINT PRIMARY KEY, version BIGINT NOT NULL, owner VARCHAR(40) NOT NULL, "
    "balance DECIMAL(12,2) NOT NULL, updated TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)) ENGINE=InnoDB",
    f"CREATE TABLE {ORDERS} (id BIGINT PRIMARY KEY, version BIGINT NOT NULL, account BIGINT NOT NULL, "
    "note TEXT CHARACTER SET utf8mb4) ENGINE=InnoDB",
    f"CREATE TABLE {LINES} (id BIGINT PRIMARY KEY, version BIGINT NOT NULL, order_id BIGINT NOT NULL, "
    f"quantity INT NOT NULL, CONSTRAINT lines_of_order FOREIGN KEY (order_id) REFERENCES {ORDERS}(id) "
    "ON DELETE CASCADE) ENGINE=InnoDB",
)
JOURNAL_DATABASE = "journal"
JOURNAL = f"{JOURNAL_DATABASE}.transactions"
RECONNECT_S = 0.3
_GTID = re.compile(r"GTID \d+-\d+-(\d+)")
_JOURNALED = re.compile(rf"INSERT INTO {re.escape(JOURNAL)} \(id\) VALUES \((\d+)\)")
_RETRY = {1205, 1213, 1020}
"""Lock wait timeout, deadlock, record changed since last read: the server has rolled the transaction back."""


def create_tables(connection: pymysql.connections.Connection[Any]) -> None:
    """Creates the demo's tables in the connection's database, and the journal in a database of its own."""
    with connection.cursor() as cursor:
        for statement in SCHEMA:
            cursor.execute(statement)
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {JOURNAL_DATABASE}")
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {JOURNAL} (id BIGINT PRIMARY KEY) ENGINE=InnoDB")


def name_of(key: RowKey) -> str:
    """A row's name in a recording."""
    return f"{key[0]}/{key[1]}"


def by_name(changed: Mapping[RowKey, int | None]) -> dict[str, int | None]:
    """What a transaction changed, by the rows' names."""
    return {name_of(key): version for key, version in changed.items()}


def journaled(connection: pymysql.connections.Connection[Any]) -> Iterator[tuple[int, int]]:
    """(journal number, GTID sequence) of every transaction in the server's binary log."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        for name, *_ in cursor.fetchall():
            cursor.execute("SHOW BINLOG EVENTS IN %s", (name,))
            sequence = 0
            for row in cursor.fetchall():
                kind, told = row[2], row[5]
                if kind == "Gtid":
                    numbered = _GTID.search(told)
                    sequence = int(numbered[1]) if numbered else 0
                elif kind == "Annotate_rows" and (wrote := _JOURNALED.search(told)) and sequence:
                    yield int(wrote[1]), sequence


class RowTraffic:
    """Writer threads. ``recent`` holds the sequences of recent commits, for readers to demand."""

    def __init__(
        self,
        connect: Callable[[], pymysql.connections.Connection[Any]],
        database: str,
        keys: int,
        seed: int,
        reconnect: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        """``reconnect``: writers reconnect after an outage, and commits in doubt are looked up at the end.

        ``recorder``: writes down every commit, for `lab.blackbox`.
        """
        self.recorder = recorder
        self.history = RowVersions()
        self.in_doubt: dict[int, dict[RowKey, int | None]] = {}
        """Journal number → what the transaction changed, if it was committed."""
        self.clock_shift_s = 0.0
        """Offset of the timestamps of the writers' transactions from the server's clock, in seconds."""
        self.recent: deque[int] = deque(maxlen=256)
        self.committed = self.rolled_back = self.rows = 0
        self.stopping = threading.Event()
        self._connect, self._database, self._keys, self._seed = connect, database, keys, seed
        self._reconnect = reconnect
        self._versions = itertools.count(1)
        self._journal = itertools.count(1)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.errors: list[str] = []

    def start(self, writers: int, pause_s: float) -> None:
        """Starts ``writers`` threads. Each waits about ``pause_s`` between its transactions."""
        for number in range(writers):
            thread = threading.Thread(target=self._write, args=(number, pause_s), name=f"writer-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stops the writers after the transactions that are under way."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(timeout=20)
        self.history.settle()

    def table(self, name: str) -> str:
        """A table's name as it is in keys and URLs: ``database.table``."""
        return f"{self._database}.{name}"

    def _write(self, number: int, pause_s: float) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        actions = (
            [self._transfer] * 8 + [self._repeat] * 3 + [self._place_order] * 5 + [self._move_key] * 2
            + [self._cancel_order] * 2 + [self._close_account] * 2 + [self._roll_back] * 2
        )  # fmt: skip
        while True:
            try:
                connection = self._connect()
                with contextlib.closing(connection):
                    while not self.stopping.wait(rng.uniform(0, 2 * pause_s)):
                        self.transact(connection, rng, rng.choice(actions))
            except (pymysql.Error, OSError) as error:
                if not self._reconnect:
                    self.errors.append(f"writer {number}: {error}")
                    return
            if self.stopping.wait(RECONNECT_S):
                return

    def transact(self, connection: Any, rng: random.Random, action: Any, session: str = "") -> int:
        """Runs one transaction and records its changes. Returns its sequence, or 0 if it was rolled back."""
        changed: dict[RowKey, int | None] = {}
        number, began = 0, 0.0
        try:
            with connection.cursor() as cursor:
                if self._reconnect:
                    cursor.execute(f"SET timestamp = {self._clock()}")
                cursor.execute("START TRANSACTION")
                keep = action(cursor, rng, changed)
                if keep is False or not changed:
                    connection.rollback()
                    self.rolled_back += 1
                    return 0
                if self._reconnect:
                    number = next(self._journal)
                    cursor.execute(f"INSERT INTO {JOURNAL} (id) VALUES (%s)", (number,))
                    self.in_doubt[number] = changed
                began = time.monotonic()
                connection.commit()
                cursor.execute("SELECT @@last_gtid")
                sequence = int(cursor.fetchone()[0].rsplit("-", 1)[1])
        except (pymysql.Error, OSError) as error:
            if not isinstance(error, pymysql.Error) or error.args[0] not in _RETRY:
                self._note_commit(session, began, 0, changed, number)
                raise
            self.in_doubt.pop(number, None)
            connection.rollback()
            self.rolled_back += 1
            return 0
        self._note_commit(session, began, sequence, changed, number)
        self._record(sequence, changed)
        self.in_doubt.pop(number, None)
        return sequence

    def _note_commit(
        self, session: str, began: float, sequence: int, changed: dict[RowKey, int | None], number: int
    ) -> None:
        """Writes a commit down. ``sequence`` 0: its answer was lost."""
        if self.recorder is not None and began:
            self.recorder.commit(session, began, sequence, by_name(changed), transaction=number)

    def _clock(self) -> str:
        return f"UNIX_TIMESTAMP(SYSDATE(6)) + {self.clock_shift_s}" if self.clock_shift_s else "DEFAULT"

    def _record(self, sequence: int, changed: dict[RowKey, int | None]) -> None:
        with self._lock:
            self.committed += 1
            self.rows += len(changed)
            for row, version in changed.items():
                self.history.record(sequence, row, version)
            self.recent.append(sequence)

    def resolve(self, connection: pymysql.connections.Connection[Any]) -> int:
        """Records the commits in doubt that the binary log holds. Returns how many. Call it after `stop`.

        Raises `pymysql.Error`.
        """
        doubtful, self.in_doubt = self.in_doubt, {}
        found = 0
        if doubtful:
            for number, sequence in journaled(connection):
                if number in doubtful:
                    self._record(sequence, doubtful[number])
                    if self.recorder is not None:
                        self.recorder.outcome(number, sequence)
                    found += 1
        self.history.settle()
        return found

    def put_account(self, cursor: Any, rng: random.Random, changed: dict[RowKey, int | None], number: int) -> None:
        """Inserts or updates one account, with a new version."""
        version = next(self._versions)
        cursor.execute(
            f"INSERT INTO {ACCOUNTS} (id, version, owner, balance) VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE "
            "version = VALUES(version), owner = VALUES(owner), balance = VALUES(balance), updated = NOW(6)",
            (number, version, f"Zoë {rng.random():.9f}", rng.randrange(10**6) / 100),
        )
        changed[self.table(ACCOUNTS), number] = version

    def _transfer(self, cursor: Any, rng: random.Random, changed: dict[RowKey, int | None]) -> None:
        for number in sorted(rng.sample(range(self._keys), rng.randint(1, 4))):
            self.put_account(cursor, rng, changed, number)

    def _repeat(self, cursor: Any, rng: random.Random, changed: dict[RowKey, int | None]) -> None:
        number = rng.randrange(self._keys)
        for _ in range(rng.randint(2, 5)):
            self.put_account(cursor, rng, changed, number)

    def _roll_back(self, cursor: Any, rng: random.Random, changed: dict[RowKey, int | None]) -> bool:
        self._transfer(cursor, rng, changed)
        return False

    def _close_account(self, cursor: Any, rng: random.Random, changed: dict[RowKey, int | None]) -> None:
        number = rng.randrange(self._keys)
        if cursor.execute(f"DELETE FROM {ACCOUNTS} WHERE id = %s", (number,)):
            changed[self.table(ACCOUNTS), number] = None

    def _move_key(self, cursor: Any, rng: random.Random, changed: dict[RowKey, int | None]) -> None:
        old, new = sorted(rng.sample(range(self._keys), 2), key=lambda _: rng.random())
        cursor.execute(f"SELECT id FROM {ACCOUNTS} WHERE id IN (%s, %s) ORDER BY id FOR UPDATE", (old, new))
        if [row[0] for row in cursor.fetchall()] != [old]:
            return
        version = next(self._versions)
        cursor.execute(f"UPDATE {ACCOUNTS} SET id = %s, version = %s WHERE id = %s", (new, version, old))
        changed[self.table(ACCOUNTS), old] = None
        changed[self.table(ACCOUNTS), new] = version

    def _place_order(self, cursor: Any, rng: random.Random, changed: dict[RowKey, int | None]) -> None:
        number = rng.randrange(self._keys)
        cursor.execute(f"SELECT 1 FROM {ORDERS} WHERE id = %s FOR UPDATE", (number,))
        if cursor.fetchone():
            return
        version = next(self._versions)
        cursor.execute(
            f"INSERT INTO {ORDERS} (id, version, account, note) VALUES (%s, %s, %s, %s)",
            (number, version, rng.randrange(self._keys), "naïve ☕ " * rng.randint(0, 6)),
        )
        changed[self.table(ORDERS), number] = version
        for line in range(rng.randint(1, 4)):
            line_id, version = number * 10 + line, next(self._versions)
            cursor.execute(f"INSERT INTO {LINES} (id, version, order_id, quantity) VALUES (%s, %s, %s, %s)",
                           (line_id, version, number, rng.randint(1, 99)))  # fmt: skip
            changed[self.table(LINES), line_id] = version

    def _cancel_order(self, cursor: Any, rng: random.Random, changed: dict[RowKey, int | None]) -> None:
        number = rng.randrange(self._keys)
        cursor.execute(f"SELECT 1 FROM {ORDERS} WHERE id = %s FOR UPDATE", (number,))
        if not cursor.fetchone():
            return
        cursor.execute(f"SELECT id FROM {LINES} WHERE order_id = %s FOR UPDATE", (number,))
        lines = [row[0] for row in cursor.fetchall()]
        cursor.execute(f"DELETE FROM {ORDERS} WHERE id = %s", (number,))
        changed[self.table(ORDERS), number] = None
        for line_id in lines:
            changed[self.table(LINES), line_id] = None

    def alter(self, connection: Any, times: int) -> None:
        """Runs one DDL statement during the traffic; ``times`` counts the earlier ones."""
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {ACCOUNTS} ADD COLUMN note_{times} VARCHAR(20) DEFAULT 'née'")
