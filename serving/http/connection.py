"""uvicorn's HTTP connection with a bound on what it holds before a request is anybody's to answer.

uvicorn on httptools keeps a request's head however large it grows, and waits for its end however long that takes: one
client could fill the memory, or hold a connection for each byte that it sends. Both end here, as JSON like any refusal.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.errors import ReadError
from serving.http.answers import problem_bytes
from serving.http.limits import HEAD_BYTES_MAX, HEAD_TIMEOUT_S


class BoundedConnection(HttpToolsProtocol):
    """One client's connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held = 0
        self._progress = False
        self._heads = 0
        self._heads_seen = 0

    def connection_made(self, transport: Any) -> None:
        """Starts the watch over slow heads."""
        super().connection_made(transport)
        self.loop.call_later(HEAD_TIMEOUT_S, self._watch)

    def _watch(self) -> None:
        """Ends a connection that has no request under way, and brought none since it was looked at last."""
        if self.transport.is_closing():
            return
        if self._heads == self._heads_seen and (self.cycle is None or self.cycle.response_complete):
            self._refuse("request_timeout", f"no whole request came within {HEAD_TIMEOUT_S:g} s")
            return
        self._heads_seen = self._heads
        self.loop.call_later(HEAD_TIMEOUT_S, self._watch)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, and what completes neither a head nor a piece of a body is counted."""
        if self.transport.is_closing():
            return
        self._progress = False
        super().data_received(data)
        self._held = 0 if self._progress else self._held + len(data)
        if self._held > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse("head_too_large", f"the request's head is larger than {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._progress = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request's head is whole."""
        self._progress = True
        self._heads += 1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body, which is flow-controlled."""
        self._progress = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP request."""
        self._refuse("bad_request", msg.rstrip("."))

    def _refuse(self, code: str, message: str) -> None:
        if self.transport.is_closing():
            return
        error = ReadError(code, message)
        body = problem_bytes(error)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()
