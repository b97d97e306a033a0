"""The typed client: a session carries its vector by itself, follows its own writes, and never goes back in time.

client = FreshetClient("http://127.0.0.1:8080")
session = client.session()
db = session.wrap(pymysql.connect(...), shard="shop/0")
...                                   # write and commit through db
row = session.get_row("shop", "shop.orders", 7)      # sees the write, from the cache or from the source
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from serving import wire
from serving.tracked import TrackedConnection
from serving.wire import ClientError, HistoryLost, Request, Row, ServerError, Table, Unreachable
from tokens import Position, TokenError, Vector

Answer = TypeVar("Answer")

DEFAULT_TIMEOUT_S = 35.0
"""Longer than the longest wait for freshness that the server allows."""


class FreshetClient:
    """Talks to one `freshet serve`. Safe to share between threads; sessions are what carries state.

    ``token``: the bearer token, where the server wants one. ``timeout``: seconds for one request.
    """

    def __init__(self, base_url: str, token: str | None = None, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=base_url.rstrip("/"), headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections to the server."""
        self._http.close()

    def session(self, token: str | None = None) -> Session:
        """A new session; ``token``: what an earlier one had come to (its ``token``)."""
        return Session(self.send, Vector.parse(token) if token else Vector())

    def get_row(self, keyspace: str, table: str, *pk: object) -> Row:
        """One row without any demand: ``freshness`` is ``eventual``. Raises `ClientError`."""
        return wire.read_row(*self.send(wire.row_request(keyspace, table, pk, {})))

    def send(self, request: Request) -> tuple[int, bytes]:
        """Status and body of one request. Raises `Unreachable`."""
        headers = {"content-type": "application/json"} if request.body else None
        try:
            answer = self._http.request(
                request.method, request.path, params=request.params, content=request.body or None, headers=headers
            )
        except httpx.HTTPError as error:
            raise Unreachable(
                f"{self._http.base_url} did not answer: {error or type(error).__name__}", hint="is `freshet serve` up?"
            ) from error
        return answer.status_code, answer.content


class Session:
    """Reads that follow each other and the session's own writes. Safe to share between threads.

    Raises of all reads: `ClientError`, by kind and code. After `HistoryLost` the session has adopted the new token: the
    next read works, and may not see what was lost.
    """

    def __init__(self, send: Callable[[Request], tuple[int, bytes]], vector: Vector) -> None:
        self._send = send
        self._vector = vector
        self._unplaced: dict[str, tuple[str, Position]] = {}
        self._tracked: list[TrackedConnection] = []
        self._lock = threading.RLock()

    @property
    def vector(self) -> Vector:
        """What the session has seen, shard by shard."""
        with self._lock:
            return self._vector

    @property
    def token(self) -> str:
        """The vector's text: hand it to another session, process or machine, and it continues this one."""
        with self._lock:
            self._follow_writes()
            return str(self._vector)

    def get_row(
        self,
        keyspace: str,
        table: str,
        *pk: object,
        max_wait_ms: int | None = None,
        include_event_token: bool = False,
        compare_event_token: str | None = None,
    ) -> Row:
        """The row with primary key ``pk`` (key columns in key order), at least as new as all the session has seen."""
        params = self._params(max_wait_ms)
        if include_event_token:
            params["include_event_token"] = "true"
        if compare_event_token is not None:
            params["compare_event_token"] = compare_event_token
        row: Row = self._ask(wire.row_request(keyspace, table, pk, params), wire.read_row)
        self.adopt(row.token)
        return row

    def get_rows(
        self, keyspace: str, keys: Sequence[tuple[str, Sequence[object]]], max_wait_ms: int | None = None
    ) -> list[Row]:
        """Rows in the order of ``keys``, (table, key values) pairs. Raises the first element's error, if one failed."""
        params: dict[str, str | int] = {"token": self.token}
        if max_wait_ms is not None:
            params["max_wait_ms"] = max_wait_ms
        found, token = self._ask(wire.rows_request(keyspace, keys, params), wire.read_rows)
        self.adopt(token)
        rows = []
        for element in found:
            if isinstance(element, ClientError):
                self._adopt_lost(element)
                raise element
            rows.append(element)
        return rows

    def get_table(
        self,
        db: str,
        table: str,
        valid_write_ids: str | None = None,
        table_id: int = 0,
        *,
        catalog: str = "hive",
        max_wait_ms: int | None = None,
    ) -> Table:
        """A catalog table that covers ``valid_write_ids`` (Hive's text) and all the session has seen."""
        request = wire.table_request(catalog, db, table, valid_write_ids, table_id, self._params(max_wait_ms))
        found: Table = self._ask(request, wire.read_table)
        self.adopt(found.token)
        return found

    def wrap(self, connection: Any, shard: str) -> TrackedConnection:
        """The PyMySQL ``connection``, whose commits this session's reads will see. ``shard``: e.g. ``shop/0``."""

        def observe(gtid: str) -> None:
            self.observe(shard, f"MariaDB/{gtid}")

        tracked = TrackedConnection(connection, observe)
        with self._lock:
            self._tracked = [known for known in self._tracked if not known.done]
            self._tracked.append(tracked)
        return tracked

    def observe(self, shard: str, position: str) -> None:
        """Adds a position that the caller knows of, e.g. ``MariaDB/0-1-5`` after a commit elsewhere.

        Its epoch is the one that the session has seen of the shard, or else the one that the front names at the next
        read. Raises `TokenError`.
        """
        found = Position.parse(position)
        with self._lock:
            known = self._vector.get(shard)
            if known is not None:
                self._vector = self._vector.merge(Vector({shard: (known.epoch, found)}))
                return
            before = self._unplaced.get(shard)
            keyspace = shard.rpartition("/")[0] or shard
            self._unplaced[shard] = (keyspace, found if before is None else before[1].join(found))

    def adopt(self, token: str) -> None:
        """Merges a token (an answer's, or another session's). Raises `TokenError`."""
        with self._lock:
            self._vector = self._vector.merge(Vector.parse(token))

    def _params(self, max_wait_ms: int | None) -> dict[str, str]:
        params = {"token": self.token}
        if max_wait_ms is not None:
            params["max_wait_ms"] = str(max_wait_ms)
        return params

    def _ask(self, request: Request, read: Callable[[int, bytes], Answer]) -> Answer:
        try:
            return read(*self._send(request))
        except HistoryLost as lost:
            self._adopt_lost(lost)
            raise

    def _adopt_lost(self, error: ClientError) -> None:
        if not isinstance(error, HistoryLost) or not error.token:
            return
        with self._lock:
            self._vector = Vector.parse(error.token)

    def _follow_writes(self) -> None:
        for tracked in self._tracked:
            tracked.require_settled()
        for shard, (keyspace, position) in list(self._unplaced.items()):
            located = Vector.parse(wire.read_location(*self._send(wire.location_request(keyspace, 0))))
            known = located.get(shard)
            if known is None:
                raise ServerError(
                    f"the front knows no shard {shard} of keyspace {keyspace}",
                    hint="name the shard in wrap() as `freshet source` does; by default <keyspace>/0",
                    code="unknown_shard",
                )
            # The front may be behind what the session has seen by now: a write placed in an epoch that is over is lost.
            seen = self._vector.get(shard)
            epoch = max(known.epoch, seen.epoch) if seen is not None else known.epoch
            self._vector = self._vector.merge(Vector({shard: (epoch, position)}))
            del self._unplaced[shard]


__all__ = ["ClientError", "FreshetClient", "HistoryLost", "Row", "Session", "Table", "TokenError", "TrackedConnection"]
