"""TLS of accepted connections. A connection has its place from its first byte on, so half a handshake counts too.

With a server's own TLS a connection is nobody's until its handshake has ended: one address could hold as many as the
process may have open files.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from ssl import SSLContext
from typing import Any, Protocol


class Placed(Protocol):
    """What an accepted connection is after its handshake: an `asyncio.Protocol`, which has its place before."""

    @property
    def is_made(self) -> bool:
        """Whether it has its transport."""

    def enter(self, address: str, /) -> bool:
        """Whether it has a place, or there is one for it."""

    def shakes(self, handshake: asyncio.Task[None], /) -> None:
        """Its handshake has begun. Whoever keeps the task may cancel it."""

    def leave(self) -> None:
        """Its place is free, if it has one."""


class Accepted(asyncio.Protocol):
    """A connection that is not encrypted yet.

    Its socket goes on in a transport with TLS, since uvloop's would have read a piece of the handshake before
    `start_tls` had it.
    """

    def __init__(self, connection: Placed, secured: SSLContext, timeout_s: float) -> None:
        """``timeout_s``: of the handshake."""
        self._connection: Any = connection
        self._secured = secured
        self._timeout_s = timeout_s

    def connection_made(self, transport: Any) -> None:
        """Begins the handshake, if there is a place."""
        peer = transport.get_extra_info("peername")
        if self._connection.enter(peer[0] if peer else ""):
            try:
                self._begin(os.dup(transport.get_extra_info("socket").fileno()))
            except OSError:  # no file is left for it
                self._connection.leave()
        transport.abort()

    def _begin(self, descriptor: int) -> None:
        accepted = socket.socket(fileno=descriptor)
        accepted.setblocking(False)
        handshake = asyncio.get_running_loop().create_task(self._shake(accepted))
        handshake.add_done_callback(lambda _: self._ended(accepted))
        self._connection.shakes(handshake)

    async def _shake(self, accepted: socket.socket) -> None:
        """Ends with the handshake; what came of it is in the connection."""
        with suppress(OSError):  # not TLS, a certificate that does not count, too slow; or it has left
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._connection, accepted, ssl=self._secured, ssl_handshake_timeout=self._timeout_s
            )

    def _ended(self, accepted: socket.socket) -> None:
        """A handshake that was cancelled may not even have begun."""
        if not self._connection.is_made:
            accepted.close()
            self._connection.leave()
