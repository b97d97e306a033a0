"""ASGI middleware: a session for each request of Starlette, FastAPI, Django or any other application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from ..aio import AsyncClient
from ..client import FreshetClient
from .carrying import HEADER, MAX_AGE_S, Carrier, CookieSettings, Exchange
from .current import using

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class AsgiSessions:
    """Makes a session of ``client`` the current one while ``app`` answers a request, and carries it to the next.

    ``client``: an `AsyncClient`, or a `FreshetClient` if the views block. ``secret``, ``max_age_s`` and ``cookies`` as
    for `wsgi.WsgiSessions`. A WebSocket's session begins with what its handshake brought, and is not carried on.
    """

    def __init__(
        self,
        app: Application,
        client: AsyncClient | FreshetClient,
        secret: str | bytes | Sequence[str | bytes],
        *,
        max_age_s: int = MAX_AGE_S,
        **cookies: Any,
    ) -> None:
        self._app, self._client = app, client
        self._carrier, self._cookies = Carrier(secret, max_age_s), CookieSettings(**cookies)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers a request. What was committed before its answer begins is carried."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        exchange = Exchange(self._carrier, self._cookies, self._client.session())
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        by_header = next((value for name, value in headers if name == HEADER.lower()), None)
        exchange.begin(by_header, [value for name, value in headers if name == "cookie"])

        async def carrying(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in exchange.end()]
                message = {**message, "headers": [*message.get("headers", ()), *ours]}
            await send(message)

        with using(exchange.session):
            return await self._app(scope, receive, carrying)
