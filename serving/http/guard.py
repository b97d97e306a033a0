"""The guard in front of every request: who asks, what it may take, size limits, metrics, unexpected errors, the audit.

What the caller may do is a `Grant` in the scope; routes ask it for their role, and `Front.seen_by` for its keyspaces.
What it spends is a `Meter` there, if there is a rate.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable
from time import perf_counter
from typing import Any, Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import ReadError
from serving.http.admission import sites
from serving.http.admission.asked import ADMINISTERED, asked_of
from serving.http.admission.callers import ALONE_S, Callers, Kind, Meter, metering
from serving.http.limits import BODY_TIMEOUT_S, LONG_BODY_BYTES, REFUSAL_S, CallerLimits, RequestLimits
from serving.http.responses import problem_response, send_response
from serving.http.status.login import as_bearer
from serving.metrics import FrontMetrics
from serving.turns import pause
from stream.access.audit import DONE, Audit
from stream.access.grants import NOBODY, Access, AccessRefused, Grant, bearer_of
from stream.access.who import asking, caller_name
from stream.interpreter import others_wait

_log = structlog.get_logger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered without a bearer token and beyond the in-flight limit: they reveal no data and must answer under load."""


STREAM_PATH = "/v1/stream"
"""Streams have a limit of their own, and no time in which they are answered."""
FILES_PATH: Final = "/v1/bytes/"
"""So have files: a slow reader of a large one needs long. `serving.http.streaming.sending.STALL_S` bounds them."""
CALLER: Final = "freshet.caller"
"""Where the scope has the caller's `Grant`."""
SUBJECTS: Final = "subjects"
"""Where the connection's state has the names in the client's certificate."""
ACCESS_LOOK_S: Final = 1.0
"""How often it is looked whether the reader of a stream or a file may still read it."""
METER: Final = "freshet.meter"
"""Where the scope has the request's `Meter`, if callers have a rate."""


class Guard:
    """ASGI wrapper: finds the caller, checks limits, counts requests, and turns exceptions into problems."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        limits: RequestLimits,
        metrics: FrontMetrics,
        callers: CallerLimits | None = None,
    ) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._metrics = metrics
        self._callers, self._has_rate = Callers(callers or CallerLimits()), bool(callers and callers.rate_per_s)
        self._audit = Audit("front", _now)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI scope; anything but HTTP is passed through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope.get("method") == "HEAD":
            send = _without_body(send)
        scope[CALLER], refused = self._caller(scope)
        who, kind = caller_name(scope[CALLER], _address_in(scope)), _kind_of(scope["path"])
        asking.set(who)
        if scope["path"] in OPEN_PATHS:
            started = perf_counter()
            await self._run(scope, receive, send, is_counted=False)
            self._metrics.finished(perf_counter() - started)
            return
        try:
            self._admit(scope, who, kind, refused)
        except ReadError as refusal:
            self._metrics.refused(refusal.code)
            self._note(scope, refusal.code)
            await pause()  # it may ask again at once, on thousands of connections
            await _send_refusal(send, refusal)
            return
        in_flight = kind != "streams"
        self._in_flight += in_flight
        started = perf_counter()
        try:
            if kind == "in_flight":
                await self._run(scope, receive, send, is_counted=True)
            else:
                await self._run_while_allowed(scope, receive, send)
        finally:
            self._callers.leave(who, kind)
            self._in_flight -= in_flight
            if in_flight:
                self._metrics.finished(perf_counter() - started)

    def _admit(self, scope: Scope, who: str, kind: Kind, refused: ReadError | None) -> None:
        """Begins the request of a caller, who pays for it. Raises `ReadError`."""
        if refused is not None:
            self._callers.pay(who, 1.0, _now())
            raise refused
        refusal = self._refusal(scope)
        if refusal is not None:
            raise refusal
        self._callers.enter(who, kind, _now())
        if self._callers.many_ask(_now()):
            others_wait(time.monotonic() + ALONE_S)
        if self._has_rate:
            scope[METER] = Meter(self._callers, who, _now)
            metering.set(scope[METER])

    def _note(self, scope: Scope, code: str = "") -> None:
        """A line of the audit: for what only administrators may do, and for what was refused with ``code``."""
        caller: Grant = scope[CALLER]
        is_hidden = code == "unknown_keyspace" and caller.keyspaces is not None
        if code in _REFUSED or is_hidden or scope.get(ADMINISTERED):
            what, keyspace = asked_of(scope)
            self._audit.note(caller_name(caller, _address_in(scope)), what, keyspace, code or DONE)

    def _caller(self, scope: Scope) -> tuple[Grant, ReadError | None]:
        """Who asks; `NOBODY`, and why, if that is not known."""
        try:
            return self._access.of(_secret_in(scope), scope.get("state", {}).get(SUBJECTS, ())), None
        except AccessRefused as refused:
            return NOBODY, ReadError("unauthorized", str(refused), hint=refused.hint)

    def _refusal(self, scope: Scope) -> ReadError | None:
        if len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"]) > self._limits.url_bytes_max:
            return ReadError("request_too_long", f"the URL is longer than {self._limits.url_bytes_max} bytes")
        if self._in_flight >= self._limits.in_flight_max:
            return ReadError("too_many_requests", f"{self._limits.in_flight_max} requests are under way already")
        return sites.refusal(scope, self._access.names) if self._access.is_open else None

    async def _run_while_allowed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `_run`, for streams and files: they end soon after the credential was taken away or has expired."""
        watch = asyncio.ensure_future(self._end_when_lost(scope, asyncio.current_task()))
        try:
            await self._run(scope, receive, send, is_counted=True)
        finally:
            watch.cancel()

    async def _end_when_lost(self, scope: Scope, reading: asyncio.Task[Any] | None) -> None:
        while not self._is_lost(scope):  # noqa: ASYNC110 - nothing tells when a credential expires
            await asyncio.sleep(ACCESS_LOOK_S)
        if reading is not None:
            reading.cancel()

    def _is_lost(self, scope: Scope) -> bool:
        found, refused = self._caller(scope)
        return refused is not None or not found.covers(scope[CALLER])

    async def _run(self, scope: Scope, receive: Receive, send: Send, *, is_counted: bool) -> None:
        is_begun = False

        def send_marked(message: Message) -> Awaitable[None]:
            nonlocal is_begun
            is_begun = True
            return send(message)

        try:
            await self._run_in_time(scope, receive, send_marked)
            self._note(scope)
        except ReadError as error:
            if is_counted:  # a probe that finds the front not ready is an answer to the probe
                self._metrics.refused(error.code)
                self._note(scope, error.code)
            if not is_begun:
                await _send_refusal(send, error)
        except asyncio.CancelledError:  # the server cancels requests that outlast its stop timeout
            cause = ReadError("stopping", "the front stopped before this request was answered")
            if self._is_lost(scope):
                cause = ReadError("unauthorized", "the token is no longer valid")
            self._metrics.refused(cause.code)
            if not is_begun:
                await send_problem(send, cause)
            elif cause.code == "unauthorized" and _kind_of(scope["path"]) == "streams":
                # A whole end: the reader comes again, and is told why not. A file stays shorter than it said.
                await send({"type": "http.response.body", "body": b""})
        except Exception as error:  # noqa: BLE001 - the reader gets an incident id, the log the traceback
            incident = secrets.token_hex(6)
            self._metrics.refused("internal")
            self._note(scope, "internal")
            what, keyspace = asked_of(scope)  # no more of the path: it may have a row's key
            _log.exception(
                "request failed", incident=incident, what=what, keyspace=keyspace, error=type(error).__name__
            )
            if is_begun:
                return
            hint = f"look for incident {incident} in the log of `freshet serve`"
            await send_problem(send, ReadError("internal", f"an unexpected error, incident {incident}", hint=hint))

    async def _run_in_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `ReadError` ``timed_out``. Streams and files have no such time."""
        limit_s = self._limits.request_s_max if _kind_of(scope["path"]) == "in_flight" else None
        try:
            async with asyncio.timeout(limit_s) as time_left:
                if scope["path"] in OPEN_PATHS or self._callers.crowds(asking.get(), _now()):
                    await pause()
                await self._app(scope, receive, send)
        except TimeoutError:
            if not time_left.expired():
                raise
            raise ReadError("timed_out", f"the request took more than {limit_s:g} s") from None


_REFUSED: Final = frozenset({"unauthorized", "forbidden", "rate_limited"})
"""Codes of requests that somebody was not allowed to make."""


def _now() -> float:
    return asyncio.get_running_loop().time()


def _kind_of(path: str) -> Kind:
    return "streams" if path == STREAM_PATH else "files" if path.startswith(FILES_PATH) else "in_flight"


def _address_in(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _secret_in(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bearer_of(as_bearer(value, scope.get("method", ""), scope["path"]))
    return b""


async def send_problem(send: Send, error: ReadError) -> None:
    """Sends ``error`` as a `Problem`."""
    await send_response(send, problem_response(error))


async def _send_refusal(send: Send, error: ReadError) -> None:
    if error.code == "rate_limited":
        await asyncio.sleep(REFUSAL_S)
    await send_problem(send, error)


def _without_body(send: Send) -> Send:
    """The ``send`` of a HEAD request."""

    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The request's body. Raises `ReadError`.

    ``body_too_large`` as soon as the body is known to exceed ``limit`` bytes; ``request_timeout``; ``bad_body``.
    """
    refusal = ReadError("body_too_large", f"the body is larger than {limit} bytes")
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise refusal
    body = bytearray()
    while True:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                message = await receive()
        except TimeoutError:
            raise ReadError("request_timeout", f"no part of the body arrived for {BODY_TIMEOUT_S:g} s") from None
        if message["type"] == "http.disconnect":
            raise ReadError("bad_body", "the connection ended before the body did")
        body += message.get("body", b"")
        if len(body) > limit:
            raise refusal
        if not message.get("more_body", False):
            if len(body) > LONG_BODY_BYTES:
                await pause()
            return bytes(body)
