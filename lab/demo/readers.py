"""Readers that demand freshness and keep every answer, so that it can be judged.

There are three kinds for rows: sessions that read their own writes, readers that demand a recent commit of another
writer, and readers that demand nothing. The catalog's readers are in `lab.demo.catalog_traffic`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pymysql
import structlog

from consumers.owner.protocol import OwnerError
from lab.demo.misses import reason_of
from lab.demo.row_traffic import ACCOUNTS, LINES, ORDERS, RECONNECT_S, RowTraffic, name_of
from lab.demo.stack import ROWS, Stack
from lab.demo.truth import ReadAnswer, RowKey
from serving.client import ClientError, Row, Session
from tokens import Position, Vector

log = structlog.get_logger(__name__)

SHARD = f"{ROWS}/0"
STOP_S = 40.0
"""A read that is still under way so long after the stop never ends."""
FRESH_S, FRESH_POLL_S = 120.0, 0.05
TIMES_MAX = 100_000
WAITS_MS = (None, None, None, None, None, None, None, 0, 20, 500)
"""What reads say of their wait: mostly nothing, like most clients."""


class Readers:
    """Reader threads for rows, and the answers that they got."""

    def __init__(self, stack: Stack, traffic: RowTraffic, keys: int, seed: int, reconnect: bool = False) -> None:
        """``reconnect``: readers that also write reconnect after an outage of the database."""
        self.answers: list[ReadAnswer] = []
        self.counts: Counter[str] = Counter()
        self.by_default: Counter[str] = Counter()
        """As ``counts``, of the reads that leave the wait to the front."""
        self.misses: Counter[str] = Counter()
        """Why the cache did not answer, and of which table → answers of the source."""
        self.took_s: dict[str, deque[float]] = {who: deque(maxlen=TIMES_MAX) for who in ("cache", "source")}
        """Who answered → how long reads took, with what they waited for."""
        self.refused: Counter[str] = Counter()
        self.errors: list[str] = []
        self.unexplained = 0
        self._stack, self._traffic, self._keys, self._seed = stack, traffic, keys, seed
        self._reconnect = reconnect
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self, followers: int, demanders: int, undemanding: int, pause_s: float) -> None:
        """Starts this many threads of each kind. Each waits about ``pause_s`` between its reads."""
        kinds = [self._follow] * followers + [self._demand] * demanders + [self._ask] * undemanding
        for number, kind in enumerate(kinds):
            thread = threading.Thread(
                target=self._run, args=(kind, number, pause_s), name=f"reader-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wait_for_fresh_answer(self, timeout_s: float = FRESH_S) -> None:
        """Waits until the cache has answered a read as fresh: faults are to meet a cache that works.

        Raises `OwnerError` ``not_ready`` after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while not self.counts["cache/fresh"]:
            if time.monotonic() > deadline:
                raise OwnerError(
                    f"the cache answered no read as fresh in {timeout_s:.0f} s, before any fault",
                    hint="look at the logs of the source and the consumer",
                    code="not_ready",
                )
            time.sleep(FRESH_POLL_S)

    def stop(self) -> None:
        """Stops the readers after the reads that are under way. One that does not end is an error."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                self.errors.append(f"{thread.name} still waits for an answer {STOP_S:g} s after the stop")

    def wrong(self) -> list[ReadAnswer]:
        """The answers that match no state of the row at or after the demand. Call it when the writers are done."""
        return [answer for answer in self.answers if not self._traffic.history.allows(answer)]

    def _run(self, kind: Callable[[random.Random, float], None], number: int, pause_s: float) -> None:
        try:
            kind(random.Random(f"{self._seed}/reader/{number}"), pause_s)
        except (pymysql.Error, OSError, ClientError) as error:
            self.errors.append(f"reader {number}: {type(error).__name__}: {error}")

    def _key(self, rng: random.Random) -> RowKey:
        table = rng.choice((ACCOUNTS, ACCOUNTS, ORDERS, LINES))
        number = rng.randrange(self._keys)
        return self._traffic.table(table), number * 10 + rng.randrange(4) if table == LINES else number

    def _note(self, key: RowKey, demanded: int, row: Row, began: float, wait_ms: int | None, session: str = "") -> None:
        """``session``: its name, if what the read demanded is what the session has seen."""
        took_s = time.monotonic() - began
        version = row.value["version"] if row.found and row.value is not None else None
        answer = ReadAnswer(key, demanded, version, row.freshness, row.served_from, row.why)
        if self._traffic.recorder is not None:
            self._traffic.recorder.read(
                session,
                began,
                name_of(key),
                version,
                demanded=0 if session else demanded,
                freshness=row.freshness,
                told=f"{row.served_from}: {row.why}",
                token=row.token,
            )
        with self._lock:
            self.answers.append(answer)
            self.took_s[row.served_from].append(took_s)
            self.counts[f"{row.served_from}/{row.freshness}"] += 1
            if wait_ms is None:
                self.by_default[f"{row.served_from}/{row.freshness}"] += 1
            if row.served_from == "source":
                self.misses[f"{key[0]}: {reason_of(row.why, wait_ms)}"] += 1
            self.unexplained += not row.why

    def _refuse(self, error: ClientError, began: float) -> None:
        if self._traffic.recorder is not None:
            self._traffic.recorder.refusal(began, error.code)
        with self._lock:
            self.refused[error.code] += 1

    def _follow(self, rng: random.Random, pause_s: float) -> None:
        """Writes a row, then reads it and others in one session: read your writes, monotonic reads."""
        newest, name = 0, threading.current_thread().name
        with self._stack.client() as client:
            session = client.session()
            while True:
                try:
                    with self._stack.connect_as_writer(ROWS) as plain:
                        connection: Any = session.wrap(plain, shard=SHARD)
                        while not self._stopping.wait(rng.uniform(0, 2 * pause_s)):
                            newest = self._write_and_read(session, connection, rng, newest, name)
                except (pymysql.Error, OSError):
                    if not self._reconnect:
                        raise
                if self._stopping.wait(RECONNECT_S):
                    return
                session = client.session(session.known)  # drops a commit in doubt from the demand

    def _write_and_read(self, session: Session, connection: Any, rng: random.Random, newest: int, name: str) -> int:
        """Does one write and two reads. Returns the newest sequence that the session, called ``name``, has seen."""
        number = rng.randrange(self._keys)
        wrote = self._traffic.transact(
            connection,
            rng,
            lambda cursor, r, changed: self._traffic.put_account(cursor, r, changed, number),
            name,
        )
        newest = max(newest, wrote)
        for key in [(self._traffic.table(ACCOUNTS), number), self._key(rng)]:
            began = time.monotonic()
            wait_ms = rng.choice(WAITS_MS)
            try:
                row = session.get_row(ROWS, key[0], key[1], max_wait_ms=wait_ms)
            except ClientError as error:
                self._refuse(error, began)
                continue
            demanded = newest
            newest = max(newest, _sequence(session.vector))
            self._note(key, demanded, row, began, wait_ms, name)
        return newest

    def _demand(self, rng: random.Random, pause_s: float) -> None:
        """Demands what another transaction has committed, in a new session each time."""
        with self._stack.client() as client:
            epoch = 0
            while not self._stopping.wait(rng.uniform(0, 2 * pause_s)):
                recent = list(self._traffic.recent)
                if not recent:
                    continue
                demanded = recent[-1] if rng.random() < 0.5 else rng.choice(recent)
                session = client.session()
                position = f"MariaDB/0-1-{demanded}"
                if epoch:
                    session.adopt(str(Vector({SHARD: (epoch, Position.parse(position))})))
                else:
                    session.observe(SHARD, position)
                key, began, wait_ms = self._key(rng), time.monotonic(), rng.choice(WAITS_MS)
                try:
                    row = session.get_row(ROWS, key[0], key[1], max_wait_ms=wait_ms)
                except ClientError as error:
                    self._refuse(error, began)
                    continue
                known = session.vector.get(SHARD)
                epoch = known.epoch if known is not None else 0
                self._note(key, demanded, row, began, wait_ms)

    def _ask(self, rng: random.Random, pause_s: float) -> None:
        """Demands nothing: any state that the row ever had is right, but the answer may not be called fresh."""
        with self._stack.client() as client:
            while not self._stopping.wait(rng.uniform(0, 2 * pause_s)):
                key, began = self._key(rng), time.monotonic()
                try:
                    row = client.get_row(ROWS, key[0], key[1])
                except ClientError as error:
                    self._refuse(error, began)
                    continue
                self._note(key, 0, row, began, None)
                if row.freshness == "fresh":
                    self.errors.append(f"{key}: an answer without a demand was called fresh")


def _sequence(vector: Vector) -> int:
    """The newest sequence of domain 0 in the session's vector."""
    known = vector.get(SHARD)
    return int(str(known.position).rsplit("-", 1)[1]) if known is not None else 0
