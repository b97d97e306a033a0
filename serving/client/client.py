"""The typed client. A session keeps its own vector, sees its own writes, and never goes back in time.

client = FreshetClient("http://127.0.0.1:8080")
session = client.session()
db = session.wrap(pymysql.connect(...), shard="shop/0")
...                                   # write and commit through db
row = session.get_row("shop", "shop.orders", 7)      # sees the write, from the cache or from the source

`AsyncClient` and `AsyncSession` (`aio.py`) are the same for asyncio. What a session keeps and asks is in `session.py`.

httpx2 and the router are imported where a client is made, not above: `freshet serve` imports this folder for the types
of the answers. It must not pay for an HTTP client at each start, and the router's cache raises errors of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from . import wire
from ._tokens import Vector
from .answers import DescriptionAnswer, Page, Row
from .errors import ClientError
from .privileges.plans import PrivilegeState
from .retries import RETRIES, Retries
from .routing.attempts import QUESTION_S, attempts
from .sending.credentials import RENEWALS_MAX, Bearer, Tls, Token
from .sending.requests import arguments, homes, is_away, is_cut, may_be_busy, options, unreachable
from .sending.running import blocking
from .session import Consistency, Plan, SessionState
from .streaming import Following, Lines, StreamEvent, stream_request
from .tracked import TrackedConnection
from .tracked_mysql import MysqlTrackedConnection, is_mysql
from .transactions import CatalogTransaction
from .wire import Answer, FileBytes, HttpRequest, HttpResponse

if TYPE_CHECKING:
    import httpx2

    from .routing.router import Question

DEFAULT_TIMEOUT_S = 35.0
"""Longer than a front can be set to wait for freshness (``max_wait_ms_limit``, 20 s) and then for the source."""


class FreshetClient:
    """A client of `freshet serve` or of nodes. Safe to share between threads: only sessions have state.

    ``base_url``: a front, or several: where one does not answer, the next is asked. ``route``: finds the other nodes,
    and asks for a row where it is held, those of ``zone`` first if any may answer. ``consistency``: who may answer
    reads of rows, as in the HTTP API.
    ``token``: the bearer token, if the server requires one: itself, a file (a ``Path``), or a function. A file or
    function is asked again once when the server refuses the token. ``tls``: certificates. ``timeout``: seconds for one
    request. ``retries``: what is
    sent again when the server says when; ``sleep`` pauses before it. ``transport``: carries the requests, if not
    httpx2's own, for example one that goes through a Unix socket.
    """

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
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        import httpx2

        from .routing.router import Router

        self._http = httpx2.Client(**options(timeout, tls), transport=transport)
        self._bearer, self._consistency = Bearer(token), consistency
        self._router = Router(homes(base_url), finds=route, zone=zone, consistency=consistency)
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
        return Session(self.send, *Vector.parse_known(token or ""), consistency=self._consistency)

    def get_row(self, keyspace: str, table: str, *pk: object, last_known: bool = False) -> Row:
        """One row without a demand, so its ``freshness`` is ``eventual``. Raises `ClientError`.

        ``last_known``: where a DDL has voided the row, its image of before will do, by the columns of then.
        """
        params = {"last_known": "true"} if last_known else {}
        return wire.read_row(*self.send(wire.row_request(keyspace, table, pk, params)))

    def describe(self, keyspace: str, table: str) -> DescriptionAnswer:
        """A table's columns and primary key, as the front knows them. Raises `ClientError`."""
        return wire.read_description(*self.send(wire.description_request(keyspace, table)))

    def stream(
        self, keyspace: str, begin: str | int = "now", *, give_up_s: float | None = 60.0, **chosen: Any
    ) -> Iterator[StreamEvent]:
        """A keyspace's changes from ``begin`` on: ``now``, seconds, a token or a checkpoint. It has no end of its own.

        ``chosen``: as in `serving.client.streaming.stream_request`. Where the connection or the front ends, it goes on
        by itself from the last checkpoint, at the next front if there are several, and gives up once it has tried for
        ``give_up_s`` without an answer. Raises `ClientError`.
        """
        retries = self._retries
        following = Following(stream_request(keyspace, begin, **chosen), give_up_s, retries.clock, retries.jitter)
        while True:
            ended: ClientError | None = None
            shown = self._bearer.headers()
            try:
                for event in self._events(following):
                    following.heard(event)
                    yield event
                    if event.kind == "end":
                        return
            except ClientError as error:
                ended = None if following.may_renew(error) and self._bearer.renew(shown) else error
            self._sleep(following.pause_after(ended))

    def _events(self, following: Following) -> Iterator[StreamEvent]:
        import httpx2

        home, request = following.front(self._router.order(None)), following.request
        timeout = httpx2.Timeout(self._timeout, read=following.read_timeout_s)
        try:
            with self._http.stream(**arguments(home, request, self._bearer), timeout=timeout) as response:
                if response.status_code != httpx2.codes.OK:
                    raise wire.error_of(response.status_code, response.read())
                lines = Lines()
                for piece in response.iter_bytes():
                    yield from lines.events(piece)
        except httpx2.HTTPError as error:
            if is_away(error):
                self._router.failed(home, None)
            else:
                following.was_not_asked()
            raise unreachable(home, error) from error

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

        pauses, renewals = self._retries.pauses(self._timeout), RENEWALS_MAX
        while True:
            response = self._sent(request)
            if response.status_code == httpx2.codes.UNAUTHORIZED and renewals:
                renewals -= 1
                if self._bearer.renew(response.request.headers):
                    continue
            pause_s = pauses.after(response.status_code, response.headers.get("retry-after", ""))
            if pause_s is None:
                return response
            self._sleep(pause_s)

    def _sent(self, request: HttpRequest) -> httpx2.Response:
        """The response of the first front that answers: the best one for the request, else another."""
        import httpx2

        while (question := self._router.question(request.place)) is not None:
            self._ask(question)
        slow: list[str] = []
        for attempt in attempts(self._router.order(request.place), request, self._timeout, slow):
            chosen = arguments(attempt.url, request, self._bearer)
            try:
                response = self._twice(chosen, attempt.timeout_s)
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

    def _twice(self, chosen: dict[str, Any], timeout_s: float) -> httpx2.Response:
        """A front's response; if the connection ends before it, to the same request on another one."""
        import httpx2

        try:
            return self._http.request(**chosen, timeout=timeout_s)
        except httpx2.HTTPError as error:
            if not is_cut(error):
                raise
        return self._http.request(**chosen, timeout=timeout_s)

    def _ask(self, question: Question) -> None:
        import httpx2

        status, body, [home, *_] = 0, b"", self._router.order(None)
        try:
            chosen = arguments(home, question.request, self._bearer)
            response = self._http.request(**chosen, timeout=QUESTION_S)
            status, body = response.status_code, response.content
        except httpx2.HTTPError as error:
            if is_away(error):
                self._router.failed(home, None)
        finally:
            self._router.learn(question, status, body)


class Session(PrivilegeState):
    """Reads that are at least as new as all the session has read and written. Safe to share between threads.

    Every read raises `ClientError`, by kind and code. After `HistoryLost` the session has adopted the new token: the
    next read works, but may not see what was lost.
    """

    def __init__(
        self,
        send: Callable[[HttpRequest], HttpResponse],
        vector: Vector,
        newer: Sequence[str] = (),
        consistency: Consistency = "bounded",
    ) -> None:
        super().__init__(vector, newer, consistency)
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
    get_roles = blocking(PrivilegeState.plan_roles)
    get_role_principals = blocking(PrivilegeState.plan_role_principals)
    get_roles_of = blocking(PrivilegeState.plan_roles_of)
    get_privileges = blocking(PrivilegeState.plan_privileges)
    get_privilege_set = blocking(PrivilegeState.plan_privilege_set)
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

    def wrap(self, connection: Any, shard: str) -> Any:
        """A PyMySQL ``connection`` whose commits this session's reads will see. ``shard``: e.g. ``shop/0``.

        To MySQL connect with ``client_flag=pymysql.constants.CLIENT.SESSION_TRACK``: then only this session's own
        commits are waited for, else all that the server has committed by then. psycopg's connection (version 3, also
        for asyncio) is returned itself; it can be wrapped again, for another session.
        """
        from .sessions.postgres import driver_of, track_postgres

        if driver_of(connection) is not None:
            track_postgres(connection, shard, lambda: self)
            return connection
        flavor, kind = ("MySQL56", MysqlTrackedConnection) if is_mysql(connection) else ("MariaDB", TrackedConnection)

        def observe(gtid: str) -> None:
            self.observe(shard, f"{flavor}/{gtid}")

        def watch(tracked: TrackedConnection) -> None:
            self._watch(tracked, shard)

        tracked = kind(connection, observe, watch)
        watch(tracked)
        return tracked

    def _run(self, plan: Plan[Answer]) -> Answer:
        try:
            request = next(plan)
            while True:
                request = plan.send(self._send(request))
        except StopIteration as done:
            answer: Answer = done.value
            return answer
