"""The typed client. A session keeps its own vector, sees its own writes, and never goes back in time.

client = FreshetClient("http://127.0.0.1:8080")
session = client.session()
db = session.wrap(pymysql.connect(...), shard="shop/0")
...                                   # write and commit through db
row = session.get_row("shop", "shop.orders", 7)      # sees the write, from the cache or from the source

`AsyncClient` and `AsyncSession` are the same for asyncio. What a session keeps and requests is in `session.py`.

httpx2 is imported where a client is made, not above: `freshet serve` imports this folder for the types of the answers,
and must not pay for an HTTP client at each start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from . import wire
from ._tokens import Vector
from .answers import DescriptionAnswer, Page, Row
from .errors import ClientError, Unreachable
from .retries import RETRIES, Retries
from .running import awaiting, blocking
from .sending.credentials import Bearer, Tls, Token
from .session import Plan, SessionState
from .streaming import READ_TIMEOUT_S, Following, Lines, StreamEvent, stream_request
from .tracked import TrackedConnection
from .tracked_mysql import MysqlTrackedConnection, is_mysql
from .transactions import AsyncCatalogTransaction, CatalogTransaction
from .wire import Answer, FileBytes, HttpRequest, HttpResponse

if TYPE_CHECKING:
    import httpx2

DEFAULT_TIMEOUT_S = 35.0
"""Longer than a front can be set to wait for freshness (``max_wait_ms_limit``, 20 s) and then for the source."""


class FreshetClient:
    """A client of one `freshet serve`. Safe to share between threads: only sessions have state.

    ``token``: the bearer token, if the server requires one: itself, a file (a ``Path``), or a function. A file or
    function is asked again once when the server refuses the token. ``tls``: certificates. ``timeout``: seconds for one
    request. ``retries``: what is
    sent again when the server says when; ``sleep`` pauses before it. ``transport``: carries the requests, if not
    httpx2's own, for example one that goes through a Unix socket.
    """

    def __init__(
        self,
        base_url: str,
        token: Token = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        tls: Tls | None = None,
        retries: Retries = RETRIES,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        import httpx2

        self._http = httpx2.Client(**_options(base_url, timeout, tls), transport=transport)
        self._bearer = Bearer(token)
        self._base_url = base_url.rstrip("/")
        self._retries, self._timeout, self._sleep = retries, timeout, sleep

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
        """A new session. ``token``: continue from this token of an earlier session. Raises `TokenError`."""
        return Session(self.send, *Vector.parse_known(token or ""))

    def get_row(self, keyspace: str, table: str, *pk: object) -> Row:
        """One row without a demand, so its ``freshness`` is ``eventual``. Raises `ClientError`."""
        return wire.read_row(*self.send(wire.row_request(keyspace, table, pk, {})))

    def describe(self, keyspace: str, table: str) -> DescriptionAnswer:
        """A table's columns and primary key, as the front knows them. Raises `ClientError`."""
        return wire.read_description(*self.send(wire.description_request(keyspace, table)))

    def stream(
        self, keyspace: str, begin: str | int = "now", *, give_up_s: float | None = 60.0, **chosen: Any
    ) -> Iterator[StreamEvent]:
        """A keyspace's changes from ``begin`` on: ``now``, seconds, a token or a checkpoint. It has no end of its own.

        ``chosen``: as in `serving.client.streaming.stream_request`. Where the connection or the front ends, it goes on
        by itself from the last checkpoint, and gives up after ``give_up_s`` without an answer. Raises `ClientError`.
        """
        retries = self._retries
        following = Following(stream_request(keyspace, begin, **chosen), give_up_s, retries.clock, retries.jitter)
        while True:
            ended: ClientError | None = None
            try:
                for event in self._events(following.request):
                    following.heard(event)
                    yield event
            except ClientError as error:
                ended = None if following.may_renew(error) and self._bearer.renew() else error
            self._sleep(following.pause_after(ended))

    def _events(self, request: HttpRequest) -> Iterator[StreamEvent]:
        import httpx2

        timeout = httpx2.Timeout(self._timeout, read=READ_TIMEOUT_S)
        try:
            with self._http.stream(**_arguments(self._base_url, request, self._bearer), timeout=timeout) as response:
                if response.status_code != httpx2.codes.OK:
                    raise wire.error_of(response.status_code, response.read())
                lines = Lines()
                for piece in response.iter_bytes():
                    yield from lines.events(piece)
        except httpx2.HTTPError as error:
            raise _unreachable(self._http.base_url, error) from error

    def get_bytes(self, uri: str, start: int = 0, end: int | None = None, *, etag: str = "") -> FileBytes:
        """A file's bytes from ``start`` to ``end``, through the front's byte cache. None: to the file's end.

        ``etag``: of an earlier answer: another version raises `Conflict` ``precondition_failed``. Raises `ClientError`.
        """
        response = self._exchange(wire.file_request(uri, start, end, etag))
        return wire.read_file(response.status_code, response.headers, response.content)

    def send(self, request: HttpRequest) -> HttpResponse:
        """The status and body of the response. Raises `Unreachable`."""
        response = self._exchange(request)
        return response.status_code, response.content

    def _exchange(self, request: HttpRequest) -> httpx2.Response:
        import httpx2

        pauses, is_renewed = self._retries.pauses(self._timeout), False
        while True:
            try:
                response = self._http.request(**_arguments(self._base_url, request, self._bearer))
            except httpx2.HTTPError as error:
                raise _unreachable(self._http.base_url, error) from error
            if response.status_code == httpx2.codes.UNAUTHORIZED and not is_renewed and self._bearer.renew():
                is_renewed = True
                continue
            pause_s = pauses.after(response.status_code, response.headers.get("retry-after", ""))
            if pause_s is None:
                return response
            self._sleep(pause_s)


class Session(SessionState):
    """Reads that are at least as new as all the session has read and written. Safe to share between threads.

    Every read raises `ClientError`, by kind and code. After `HistoryLost` the session has adopted the new token: the
    next read works, but may not see what was lost.
    """

    def __init__(self, send: Callable[[HttpRequest], HttpResponse], vector: Vector, newer: Sequence[str] = ()) -> None:
        super().__init__(vector, newer)
        self._send = send

    @property
    def token(self) -> str:
        """The session's vector as text. A session that is given it, on any machine, continues this one."""
        return self._run(self.plan_token())

    get_row = blocking(SessionState.plan_row)
    put_row = blocking(SessionState.plan_put_row)
    get_rows = blocking(SessionState.plan_rows)
    get_table = blocking(SessionState.plan_table)
    get_partitions = blocking(SessionState.plan_partitions)
    get_statistics = blocking(SessionState.plan_statistics)
    get_constraints = blocking(SessionState.plan_constraints)
    get_databases = blocking(SessionState.plan_databases)
    get_functions = blocking(SessionState.plan_functions)
    find = blocking(SessionState.plan_find)
    get_by = blocking(SessionState.plan_get_by)
    count = blocking(SessionState.plan_count)
    exists = blocking(SessionState.plan_exists)

    def begin(
        self, tables: Sequence[str] = (), txn: int = 0, *, catalog: str = "hive", adopt: bool = False
    ) -> CatalogTransaction:
        """A transaction over catalog tables, each ``db.table``; ``txn``: its number at the metastore, if it writes.

        ``adopt``: its reads see all that the metastore had logged when it began, of external tables too.
        """
        lists = self._run(self.plan_lists(tables, txn, catalog=catalog, adopt=adopt))
        return CatalogTransaction(self, self._run, txn, catalog, lists)

    def scan(
        self, keyspace: str, table: str, columns: Mapping[str, object] | None = None, **options: Any
    ) -> Iterator[Page]:
        """All pages of what `find` finds, with its options. A page says whether it ``moved`` from those before it."""
        page = self.find(keyspace, table, columns, **options)
        yield page
        while page.page:
            page = self.find(keyspace, table, columns, **{**options, "page": page.page})
            yield page

    def wrap(self, connection: Any, shard: str) -> TrackedConnection:
        """A PyMySQL ``connection`` whose commits this session's reads will see. ``shard``: e.g. ``shop/0``.

        To MySQL connect with ``client_flag=pymysql.constants.CLIENT.SESSION_TRACK``: then only this session's own
        commits are waited for, else all that the server has committed by then.
        """
        flavor, kind = ("MySQL56", MysqlTrackedConnection) if is_mysql(connection) else ("MariaDB", TrackedConnection)

        def observe(gtid: str) -> None:
            self.observe(shard, f"{flavor}/{gtid}")

        tracked = kind(connection, observe, self._watch)
        self._watch(tracked)
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
    """`FreshetClient` for asyncio. Belongs to one event loop."""

    def __init__(
        self,
        base_url: str,
        token: Token = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        tls: Tls | None = None,
        retries: Retries = RETRIES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        import httpx2

        self._http = httpx2.AsyncClient(**_options(base_url, timeout, tls), transport=transport)
        self._bearer = Bearer(token)
        self._base_url = base_url.rstrip("/")
        self._retries, self._timeout, self._sleep = retries, timeout, sleep

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
        """A new session. ``token``: continue from this token of an earlier session. Raises `TokenError`."""
        return AsyncSession(self.send, *Vector.parse_known(token or ""))

    async def get_row(self, keyspace: str, table: str, *pk: object) -> Row:
        """One row without a demand, so its ``freshness`` is ``eventual``. Raises `ClientError`."""
        return wire.read_row(*await self.send(wire.row_request(keyspace, table, pk, {})))

    async def describe(self, keyspace: str, table: str) -> DescriptionAnswer:
        """As `FreshetClient.describe`."""
        return wire.read_description(*await self.send(wire.description_request(keyspace, table)))

    async def stream(
        self, keyspace: str, begin: str | int = "now", *, give_up_s: float | None = 60.0, **chosen: Any
    ) -> AsyncIterator[StreamEvent]:
        """As `FreshetClient.stream`."""
        retries = self._retries
        following = Following(stream_request(keyspace, begin, **chosen), give_up_s, retries.clock, retries.jitter)
        while True:
            ended: ClientError | None = None
            try:
                async for event in self._events(following.request):
                    following.heard(event)
                    yield event
            except ClientError as error:
                ended = None if following.may_renew(error) and self._bearer.renew() else error
            await self._sleep(following.pause_after(ended))

    async def _events(self, request: HttpRequest) -> AsyncIterator[StreamEvent]:
        import httpx2

        timeout = httpx2.Timeout(self._timeout, read=READ_TIMEOUT_S)
        try:
            async with self._http.stream(
                **_arguments(self._base_url, request, self._bearer), timeout=timeout
            ) as response:
                if response.status_code != httpx2.codes.OK:
                    raise wire.error_of(response.status_code, await response.aread())
                lines = Lines()
                async for piece in response.aiter_bytes():
                    for event in lines.events(piece):
                        yield event
        except httpx2.HTTPError as error:
            raise _unreachable(self._http.base_url, error) from error

    async def get_bytes(self, uri: str, start: int = 0, end: int | None = None, *, etag: str = "") -> FileBytes:
        """As `FreshetClient.get_bytes`."""
        response = await self._exchange(wire.file_request(uri, start, end, etag))
        return wire.read_file(response.status_code, response.headers, response.content)

    async def send(self, request: HttpRequest) -> HttpResponse:
        """The status and body of the response. Raises `Unreachable`."""
        response = await self._exchange(request)
        return response.status_code, response.content

    async def _exchange(self, request: HttpRequest) -> httpx2.Response:
        import httpx2

        pauses, is_renewed = self._retries.pauses(self._timeout), False
        while True:
            try:
                response = await self._http.request(**_arguments(self._base_url, request, self._bearer))
            except httpx2.HTTPError as error:
                raise _unreachable(self._http.base_url, error) from error
            if response.status_code == httpx2.codes.UNAUTHORIZED and not is_renewed and self._bearer.renew():
                is_renewed = True
                continue
            pause_s = pauses.after(response.status_code, response.headers.get("retry-after", ""))
            if pause_s is None:
                return response
            await self._sleep(pause_s)


class AsyncSession(SessionState):
    """`Session` for asyncio. Safe to share between tasks.

    It cannot wrap a connection: after a commit run ``SELECT @@last_gtid`` on yours (MySQL:
    ``SELECT @@GLOBAL.gtid_executed``) and pass the result to `observe`.
    """

    def __init__(
        self, send: Callable[[HttpRequest], Awaitable[HttpResponse]], vector: Vector, newer: Sequence[str] = ()
    ) -> None:
        super().__init__(vector, newer)
        self._send = send

    token = awaiting(SessionState.plan_token)
    get_row = awaiting(SessionState.plan_row)
    put_row = awaiting(SessionState.plan_put_row)
    get_rows = awaiting(SessionState.plan_rows)
    get_table = awaiting(SessionState.plan_table)
    get_partitions = awaiting(SessionState.plan_partitions)
    get_statistics = awaiting(SessionState.plan_statistics)
    get_constraints = awaiting(SessionState.plan_constraints)
    get_databases = awaiting(SessionState.plan_databases)
    get_functions = awaiting(SessionState.plan_functions)
    find = awaiting(SessionState.plan_find)
    get_by = awaiting(SessionState.plan_get_by)
    count = awaiting(SessionState.plan_count)
    exists = awaiting(SessionState.plan_exists)

    async def begin(
        self, tables: Sequence[str] = (), txn: int = 0, *, catalog: str = "hive", adopt: bool = False
    ) -> AsyncCatalogTransaction:
        """As `Session.begin`."""
        lists = await self._run(self.plan_lists(tables, txn, catalog=catalog, adopt=adopt))
        return AsyncCatalogTransaction(self, self._run, txn, catalog, lists)

    async def scan(
        self, keyspace: str, table: str, columns: Mapping[str, object] | None = None, **options: Any
    ) -> AsyncIterator[Page]:
        """As `Session.scan`."""
        page = await self.find(keyspace, table, columns, **options)
        yield page
        while page.page:
            page = await self.find(keyspace, table, columns, **{**options, "page": page.page})
            yield page

    async def _run(self, plan: Plan[Answer]) -> Answer:
        try:
            request = next(plan)
            while True:
                request = plan.send(await self._send(request))
        except StopIteration as done:
            answer: Answer = done.value
            return answer


def _options(base_url: str, timeout: float, tls: Tls | None) -> dict[str, Any]:
    secured = {"verify": tls.context()} if tls is not None and any(tls) else {}
    return {"base_url": base_url.rstrip("/"), "timeout": timeout, **secured}


def _arguments(base_url: str, request: HttpRequest, bearer: Bearer | None = None) -> dict[str, Any]:
    """What httpx2 is given. The URL is whole: else httpx2 parses it three times, a fifth of what a read costs here."""
    query = f"?{urlencode(request.params)}" if request.params else ""
    return {
        "method": request.method,
        "url": f"{base_url}{request.path}{query}",
        "content": request.body or None,
        "headers": dict(request.headers)
        | (bearer.headers() if bearer is not None else {})
        | ({"content-type": "application/json"} if request.body else {}),
    }


def _unreachable(base_url: httpx2.URL, error: httpx2.HTTPError) -> Unreachable:
    return Unreachable(f"{base_url} did not answer: {error or type(error).__name__}", hint="is `freshet serve` up?")
