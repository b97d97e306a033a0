"""The typed client: a session carries its vector by itself, follows its own writes, and never goes back in time.

client = FreshetClient("http://127.0.0.1:8080")
session = client.session()
db = session.wrap(pymysql.connect(...), shard="shop/0")
...                                   # write and commit through db
row = session.get_row("shop", "shop.orders", 7)      # sees the write, from the cache or from the source

`AsyncClient` and `AsyncSession` are the same for asyncio; what a session knows and asks is in `serving.client.session`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from serving.client import wire
from serving.client.session import Answer, Plan, Reply, SessionState
from serving.client.tracked import TrackedConnection
from serving.client.wire import ClientError, HistoryLost, HttpRequest, Row, Table, Unreachable
from tokens import TokenError, Vector

DEFAULT_TIMEOUT_S = 35.0
"""Longer than the longest wait for freshness that the server allows."""


class FreshetClient:
    """Talks to one `freshet serve`. Safe to share between threads; sessions are what carries state.

    ``token``: the bearer token, where the server wants one. ``timeout``: seconds for one request.
    """

    def __init__(self, base_url: str, token: str | None = None, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        self._http = httpx.Client(**_options(base_url, token, timeout))

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

    def send(self, request: HttpRequest) -> Reply:
        """Status and body of one request. Raises `Unreachable`."""
        try:
            answer = self._http.request(**_arguments(request))
        except httpx.HTTPError as error:
            raise _unreachable(self._http.base_url, error) from error
        return answer.status_code, answer.content


class Session(SessionState):
    """Reads that follow each other and the session's own writes. Safe to share between threads.

    Raises of all reads: `ClientError`, by kind and code. After `HistoryLost` the session has adopted the new token: the
    next read works, and may not see what was lost.
    """

    def __init__(self, send: Callable[[HttpRequest], Reply], vector: Vector) -> None:
        super().__init__(vector)
        self._send = send

    @property
    def token(self) -> str:
        """The vector's text: hand it to another session, process or machine, and it continues this one."""
        return self._run(self.plan_token())

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
        return self._run(self.plan_row(keyspace, table, pk, max_wait_ms, include_event_token, compare_event_token))

    def get_rows(
        self, keyspace: str, keys: Sequence[tuple[str, Sequence[object]]], max_wait_ms: int | None = None
    ) -> list[Row]:
        """Rows in the order of ``keys``, (table, key values) pairs. Raises the first element's error, if one failed."""
        return self._run(self.plan_rows(keyspace, keys, max_wait_ms))

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
        return self._run(self.plan_table(catalog, db, table, valid_write_ids, table_id, max_wait_ms))

    def wrap(self, connection: Any, shard: str) -> TrackedConnection:
        """The PyMySQL ``connection``, whose commits this session's reads will see. ``shard``: e.g. ``shop/0``."""

        def observe(gtid: str) -> None:
            self.observe(shard, f"MariaDB/{gtid}")

        tracked = TrackedConnection(connection, observe)
        with self._lock:
            self._tracked = [known for known in self._tracked if not known.done]
            self._tracked.append(tracked)
        return tracked

    def _run(self, plan: Plan[Answer]) -> Answer:
        try:
            request = next(plan)
            while True:
                request = plan.send(self._send(request))
        except StopIteration as done:
            answer: Answer = done.value
            return answer


class AsyncClient:
    """`FreshetClient` for asyncio, as ``httpx.AsyncClient`` is to ``httpx.Client``. Of one event loop."""

    def __init__(self, base_url: str, token: str | None = None, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        self._http = httpx.AsyncClient(**_options(base_url, token, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections to the server."""
        await self._http.aclose()

    def session(self, token: str | None = None) -> AsyncSession:
        """A new session; ``token``: what an earlier one had come to."""
        return AsyncSession(self.send, Vector.parse(token) if token else Vector())

    async def get_row(self, keyspace: str, table: str, *pk: object) -> Row:
        """One row without any demand: ``freshness`` is ``eventual``. Raises `ClientError`."""
        return wire.read_row(*await self.send(wire.row_request(keyspace, table, pk, {})))

    async def send(self, request: HttpRequest) -> Reply:
        """Status and body of one request. Raises `Unreachable`."""
        try:
            answer = await self._http.request(**_arguments(request))
        except httpx.HTTPError as error:
            raise _unreachable(self._http.base_url, error) from error
        return answer.status_code, answer.content


class AsyncSession(SessionState):
    """`Session` for asyncio; safe to share between tasks.

    It wraps no connection: after a commit ask it for ``SELECT @@last_gtid`` and `observe` the answer.
    """

    def __init__(self, send: Callable[[HttpRequest], Awaitable[Reply]], vector: Vector) -> None:
        super().__init__(vector)
        self._send = send

    async def token(self) -> str:
        """The vector's text: hand it to another session, process or machine, and it continues this one."""
        return await self._run(self.plan_token())

    async def get_row(
        self,
        keyspace: str,
        table: str,
        *pk: object,
        max_wait_ms: int | None = None,
        include_event_token: bool = False,
        compare_event_token: str | None = None,
    ) -> Row:
        """As `Session.get_row`."""
        plan = self.plan_row(keyspace, table, pk, max_wait_ms, include_event_token, compare_event_token)
        return await self._run(plan)

    async def get_rows(
        self, keyspace: str, keys: Sequence[tuple[str, Sequence[object]]], max_wait_ms: int | None = None
    ) -> list[Row]:
        """As `Session.get_rows`."""
        return await self._run(self.plan_rows(keyspace, keys, max_wait_ms))

    async def get_table(
        self,
        db: str,
        table: str,
        valid_write_ids: str | None = None,
        table_id: int = 0,
        *,
        catalog: str = "hive",
        max_wait_ms: int | None = None,
    ) -> Table:
        """As `Session.get_table`."""
        return await self._run(self.plan_table(catalog, db, table, valid_write_ids, table_id, max_wait_ms))

    async def _run(self, plan: Plan[Answer]) -> Answer:
        try:
            request = next(plan)
            while True:
                request = plan.send(await self._send(request))
        except StopIteration as done:
            answer: Answer = done.value
            return answer


def _options(base_url: str, token: str | None, timeout: float) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return {"base_url": base_url.rstrip("/"), "headers": headers, "timeout": timeout}


def _arguments(request: HttpRequest) -> dict[str, Any]:
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params,
        "content": request.body or None,
        "headers": {"content-type": "application/json"} if request.body else None,
    }


def _unreachable(base_url: httpx.URL, error: httpx.HTTPError) -> Unreachable:
    return Unreachable(f"{base_url} did not answer: {error or type(error).__name__}", hint="is `freshet serve` up?")


__all__ = [
    "AsyncClient",
    "AsyncSession",
    "ClientError",
    "FreshetClient",
    "HistoryLost",
    "Row",
    "Session",
    "Table",
    "TokenError",
    "TrackedConnection",
]
