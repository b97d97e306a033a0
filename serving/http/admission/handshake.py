"""TLS of a front's connections. A connection has its place from its first byte on, so half a handshake counts too.

With uvicorn's own TLS a connection is nobody's until its handshake has ended: one address could hold as many as the
process may have open files.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from ssl import SSLContext
from typing import Any

from serving.http.connection import BoundedConnection, FrontConfig


def open_connection(config: FrontConfig, **state: Any) -> asyncio.Protocol:
    """What uvicorn makes for each connection."""
    connection = BoundedConnection(config, **state)
    return connection if config.secured is None else Accepted(connection, config.secured)


class Accepted(asyncio.Protocol):
    """A connection that is not encrypted yet.

    Its socket goes on in a transport with TLS, since uvloop's would have read a piece of the handshake before
    `start_tls` had it.
    """

    def __init__(self, connection: BoundedConnection, secured: SSLContext) -> None:
        self._connection = connection
        self._secured = secured

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
        accepted, under_way = socket.socket(fileno=descriptor), self._connection.config.shaking
        accepted.setblocking(False)
        under_way.add(shaking := self._connection.loop.create_task(self._shake(accepted)))
        shaking.add_done_callback(under_way.discard)

    async def _shake(self, accepted: socket.socket) -> None:
        """Ends with the handshake; what came of it is in the connection."""
        loop, connection = self._connection.loop, self._connection
        with suppress(OSError):  # not TLS, a certificate that does not count, too slow; or it has left
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._secured,
                ssl_handshake_timeout=connection.config.head_timeout_s,
            )
        if not connection.is_made:
            connection.leave()
