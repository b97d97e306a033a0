"""A span for each request of the API that is kept, where traces are on (`stream.spans`). Elsewhere it is not there."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.http.admission.asked import asked_of
from stream import spans

PATHS: Final = "/v1/"
"""What has spans: neither probes, scrapes nor pages."""
STREAM: Final = "/v1/stream"
"""A stream may last for days, and is no read."""


class Traced:
    """ASGI wrapper of the guard, below the span that a caller names in ``traceparent``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI scope."""
        if scope["type"] != "http" or not scope["path"].startswith(PATHS) or scope["path"] == STREAM:
            await self._app(scope, receive, send)
            return
        parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), "")
        if not spans.is_kept(parent):
            await self._app(scope, receive, send)
            return
        what, keyspace = asked_of(scope)
        attributes = {"http.request.method": what.partition(" ")[0], "keyspace": keyspace}
        with spans.request_span(what, parent, attributes) as span:

            async def send_noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, send_noted)
