"""WSGI middleware: a session for each request of Flask, Django or any other application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from ..client import FreshetClient
from .carrying import HEADER, MAX_AGE_S, Carrier, CookieSettings, Exchange
from .current import using

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_KEY = f"HTTP_{HEADER.upper().replace('-', '_')}"


class WsgiSessions:
    """Makes a session of ``client`` the current one while ``app`` answers a request, and carries it to the next.

    ``secret``: of all services that share sessions, at least 16 bytes, or several (see `Carrier`). ``max_age_s``: how
    long a session is kept since it last changed. ``cookies``: fields of `CookieSettings`.
    """

    def __init__(
        self,
        app: WSGIApplication,
        client: FreshetClient,
        secret: str | bytes | Sequence[str | bytes],
        *,
        max_age_s: int = MAX_AGE_S,
        **cookies: Any,
    ) -> None:
        self._app, self._client = app, client
        self._carrier, self._cookies = Carrier(secret, max_age_s), CookieSettings(**cookies)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        """Answers a request. The answer's headers leave with its first bytes: what was committed by then is carried."""
        context = copy_context()
        session = self._client.session()
        exchange = Exchange(self._carrier, self._cookies, session)
        exchange.begin(environ.get(_KEY), [environ.get("HTTP_COOKIE", "")])
        started: list[Any] = []
        written: list[bytes] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
            started[:] = [status, headers, exc_info]
            return written.append

        def within(call: Callable[..., Any], *args: Any) -> Any:
            def run() -> Any:
                with using(session):
                    return call(*args)

            return context.run(run)

        body = within(self._app, environ, start)
        try:
            pieces = iter(body)
            first = within(next, pieces, b"")  # a generator says its status now
            status, headers, exc_info = started
            start_response(status, [*headers, *exchange.end()], *([exc_info] if exc_info else []))
            yield from written
            yield first
            while (piece := within(next, pieces, None)) is not None:
                yield piece
        finally:
            if hasattr(body, "close"):
                within(body.close)
