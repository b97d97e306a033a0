"""uvicorn's HTTP connection with bounds on a request's head, which uvicorn on httptools does not limit.

Without them one client could fill the memory with a head that never ends, or hold many connections by sending a byte
now and then. A request beyond the bounds gets a `Problem` like any other error, and its connection is closed.
"""

from __future__ import annotations

import asyncio
from ssl import SSLContext
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.answers import encode_problem
from serving.errors import ReadError
from serving.http.admission.connections import Connections
from serving.http.guard import SUBJECTS
from serving.http.limits import HEAD_BYTES_MAX, HEAD_TIMEOUT_S, PIPELINED_MAX
from serving.http.responses import PROBLEM
from stream.access.certificates import subjects_of
from stream.access.handshake import Accepted


class FrontConfig(uvicorn.Config):
    """uvicorn's, and the connections of the server that has it (None: as many as come), and its TLS, if it has one.

    ``shaking``: the handshakes under way. ``head_timeout_s``: as `HEAD_TIMEOUT_S`, for a handshake too.
    """

    connections: Connections | None = None
    secured: SSLContext | None = None
    head_timeout_s = HEAD_TIMEOUT_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.shaking: set[asyncio.Task[None]] = set()


def open_connection(config: FrontConfig, **state: Any) -> asyncio.Protocol:
    """What uvicorn makes for each connection."""
    connection = BoundedConnection(config, **state)
    return connection if config.secured is None else Accepted(connection, config.secured, config.head_timeout_s)


class BoundedConnection(HttpToolsProtocol):
    """One client's connection. Closed with ``head_too_large``, ``request_timeout`` or ``bad_request``.

    One too many is closed at once, without an answer: writing one would be the work that is to be spared.
    """

    config: FrontConfig

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._address: str | None = None
        self._held = 0
        self._is_lost = False
        self._progress = False
        self._heads = 0
        self._heads_seen = 0
        self._left: int | None = None
        """Bytes that its reader had not taken at the last look; None: it was not closing then."""
        self._cycles: list[Any] = []
        """Requests that are not answered yet."""

    def connection_made(self, transport: Any) -> None:
        """Starts to watch for slow heads."""
        super().connection_made(transport)
        if not self.enter(self.client[0] if self.client else ""):
            transport.abort()
            return
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and (subjects := subjects_of(secured.getpeercert())):
            self.app_state = {**self.app_state, SUBJECTS: subjects}
        self.loop.call_later(self.config.head_timeout_s, self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's, which tells only the last request that nobody waits for an answer. Its place is free again."""
        super().connection_lost(exc)
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.leave()
        self._is_lost = True

    @property
    def is_made(self) -> bool:
        """Whether `connection_made` has been called."""
        return self.transport is not None

    def enter(self, address: str) -> bool:
        """Whether it has a place, or there is one for it."""
        places = self.config.connections
        if places is not None and self._address is None:
            if not places.enter(address):
                return False
            self._address = address
        return True

    def shakes(self, handshake: asyncio.Task[None]) -> None:
        """Its TLS has begun."""
        self.config.shaking.add(handshake)
        handshake.add_done_callback(self.config.shaking.discard)

    def leave(self) -> None:
        """Its place is free, if it has one."""
        if self._address is not None and self.config.connections is not None:
            self.config.connections.leave(self._address)
            self._address = None

    def _watch(self) -> None:
        """Closes a connection that has no request under way and has sent none since the last look.

        One that waits for its next request is uvicorn's to close, without a word: who sends that meanwhile would take
        a refusal for its answer.
        """
        if self._is_lost:
            return
        if self.transport.is_closing():
            self._watch_closing()
            return
        is_silent = self._heads == self._heads_seen and self.timeout_keep_alive_task is None
        if is_silent and (self.cycle is None or self.cycle.response_complete):
            self._refuse("request_timeout", f"no complete request within {self.config.head_timeout_s:g} s")
            self._left = self.transport.get_write_buffer_size()
            self.loop.call_later(self.config.head_timeout_s, self._watch)
            return
        self._heads_seen = self._heads
        self.loop.call_later(self.config.head_timeout_s, self._watch)

    def _watch_closing(self) -> None:
        """Ends a connection whose reader has taken nothing of what is left of an answer since the last look."""
        left = self.transport.get_write_buffer_size()
        if self._left is not None and left >= self._left:
            self.transport.abort()
            return
        self._left = left
        self.loop.call_later(self.config.head_timeout_s, self._watch)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's. Counts the bytes that complete neither a head nor a piece of a body."""
        if self.transport.is_closing():
            return
        if self.timeout_keep_alive_task is not None:
            self._heads_seen = -1  # the time for this head begins now: the next look only notes it
        self._progress = False
        super().data_received(data)
        self._held = 0 if self._progress else self._held + len(data)
        if self._held > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse("head_too_large", f"the request's head is larger than {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        """The first bytes of a request. Raises ``ValueError``, which ends the parsing, where too many wait already.

        uvicorn reads on after each answer, so a connection could have it keep requests without number; and one read of
        a socket holds ten thousand short ones, which would be parsed before anybody else is answered.
        """
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError(f"{PIPELINED_MAX} requests wait for their answers already")
        self._progress = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The end of a request's head."""
        self._progress = True
        self._heads += 1
        super().on_headers_complete()
        self._cycles = [each for each in (*self._cycles, self.cycle) if each and not each.response_complete]

    def on_body(self, body: bytes) -> None:
        """A piece of a body; uvicorn's flow control bounds bodies."""
        self._progress = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not an HTTP request."""
        self._refuse("bad_request", msg.rstrip("."))

    def _refuse(self, code: str, message: str) -> None:
        if self.transport.is_closing():
            return
        error = ReadError(code, message)
        body = encode_problem(error)
        head = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (PROBLEM, len(body))
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()
