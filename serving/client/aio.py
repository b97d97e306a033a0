"""The typed client for asyncio: what `client.py` is, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from . import wire
from ._tokens import Vector
from .answers import DescriptionAnswer, Page, Row
from .client import DEFAULT_TIMEOUT_S
from .errors import ClientError
from .privileges.plans import PrivilegeState
from .retries import RETRIES, Retries
from .routing.attempts import QUESTION_S, attempts
from .sending.credentials import RENEWALS_MAX, Bearer, Tls, Token
from .sending.requests import arguments, homes, is_away, is_cut, may_be_busy, options, unreachable
from .sending.running import awaiting
from .session import Consistency, Plan, SessionState
from .streaming import Following, Lines, StreamEvent, stream_request
from .transactions import AsyncCatalogTransaction
from .wire import Answer, FileBytes, HttpRequest, HttpResponse

if TYPE_CHECKING:
    import httpx2

    from .routing.router import Question


class AsyncClient:
    """`FreshetClient` for asyncio. Belongs to one event loop."""

    def __init__(
        self,
        base_url: str | Sequence[str],
        token: Token = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        route: bool = False,
        zone: str = "",
        consistency: Consistency = "bounded",
        tls: Tls | None = None,
        retries: Retries = RETRIES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        import httpx2

        from .routing.router import Router

        self._http = httpx2.AsyncClient(**options(timeout, tls), transport=transport)
        self._bearer, self._consistency = Bearer(token), consistency
        self._router = Router(homes(base_url), finds=route, zone=zone, consistency=consistency)
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
        return AsyncSession(self.send, *Vector.parse_known(token or ""), consistency=self._consistency)

    async def get_row(self, keyspace: str, table: str, *pk: object, last_known: bool = False) -> Row:
        """As `FreshetClient.get_row`."""
        params = {"last_known": "true"} if last_known else {}
        return wire.read_row(*await self.send(wire.row_request(keyspace, table, pk, params)))

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
            shown = self._bearer.headers()
            try:
                async for event in self._events(following):
                    following.heard(event)
                    yield event
                    if event.kind == "end":
                        return
            except ClientError as error:
                ended = None if following.may_renew(error) and self._bearer.renew(shown) else error
            await self._sleep(following.pause_after(ended))

    async def _events(self, following: Following) -> AsyncIterator[StreamEvent]:
        import httpx2

        home, request = following.front(self._router.order(None)), following.request
        timeout = httpx2.Timeout(self._timeout, read=following.read_timeout_s)
        try:
            async with self._http.stream(**arguments(home, request, self._bearer), timeout=timeout) as response:
                if response.status_code != httpx2.codes.OK:
                    raise wire.error_of(response.status_code, await response.aread())
                lines = Lines()
                async for piece in response.aiter_bytes():
                    for event in lines.events(piece):
                        yield event
        except httpx2.HTTPError as error:
            if is_away(error):
                self._router.failed(home, None)
            else:
                following.was_not_asked()
            raise unreachable(home, error) from error

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

        pauses, renewals = self._retries.pauses(self._timeout), RENEWALS_MAX
        while True:
            response = await self._sent(request)
            if response.status_code == httpx2.codes.UNAUTHORIZED and renewals:
                renewals -= 1
                if self._bearer.renew(response.request.headers):
                    continue
            pause_s = pauses.after(response.status_code, response.headers.get("retry-after", ""))
            if pause_s is None:
                return response
            await self._sleep(pause_s)

    async def _sent(self, request: HttpRequest) -> httpx2.Response:
        """The response of the first front that answers: the best one for the request, else another."""
        import httpx2

        while (question := self._router.question(request.place)) is not None:
            await self._ask(question)
        slow: list[str] = []
        for attempt in attempts(self._router.order(request.place), request, self._timeout, slow):
            chosen = arguments(attempt.url, request, self._bearer)
            try:
                response = await self._twice(chosen, attempt.timeout_s)
                if attempt.is_last or not wire.is_of_a_proxy(response.status_code, response.content):
                    return response
                self._router.failed(attempt.url, request.place)
            except httpx2.HTTPError as error:
                if is_away(error):
                    self._router.failed(attempt.url, request.place)
                if attempt.is_last:
                    raise unreachable(attempt.url, error) from error
                if may_be_busy(error):
                    slow.append(attempt.url)
        raise AssertionError("the last attempt returns or raises")

    async def _twice(self, chosen: dict[str, Any], timeout_s: float) -> httpx2.Response:
        """A front's response; if the connection ends before it, to the same request on another one."""
        import httpx2

        try:
            return await self._http.request(**chosen, timeout=timeout_s)
        except httpx2.HTTPError as error:
            if not is_cut(error):
                raise
        return await self._http.request(**chosen, timeout=timeout_s)

    async def _ask(self, question: Question) -> None:
        import httpx2

        status, body, [home, *_] = 0, b"", self._router.order(None)
        try:
            chosen = arguments(home, question.request, self._bearer)
            response = await self._http.request(**chosen, timeout=QUESTION_S)
            status, body = response.status_code, response.content
        except httpx2.HTTPError as error:
            if is_away(error):
                self._router.failed(home, None)
        finally:
            self._router.learn(question, status, body)


class AsyncSession(PrivilegeState):
    """`Session` for asyncio. Safe to share between tasks.

    It cannot wrap a connection: after a commit run ``SELECT @@last_gtid`` on yours (MySQL:
    ``SELECT @@GLOBAL.gtid_executed``) and pass the result to `observe`.
    """

    def __init__(
        self,
        send: Callable[[HttpRequest], Awaitable[HttpResponse]],
        vector: Vector,
        newer: Sequence[str] = (),
        consistency: Consistency = "bounded",
    ) -> None:
        super().__init__(vector, newer, consistency)
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
    get_roles = awaiting(PrivilegeState.plan_roles)
    get_role_principals = awaiting(PrivilegeState.plan_role_principals)
    get_roles_of = awaiting(PrivilegeState.plan_roles_of)
    get_privileges = awaiting(PrivilegeState.plan_privileges)
    get_privilege_set = awaiting(PrivilegeState.plan_privilege_set)
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
