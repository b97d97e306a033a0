"""A blocking socket for a thread of a process, over the simulated network."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.substitution import Twins

RECEIVED_MAX = 1 << 16


class _Received(asyncio.Protocol):
    """What has come, for the thread to take."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_over = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.is_over = True


class ThreadSocket:
    """The client's end of a connection, as far as clients of owners use a socket."""

    def __init__(self, kernel: Kernel, transport: asyncio.Transport, received: _Received) -> None:
        self._kernel, self._transport, self._received = kernel, transport, received
        self._loop = cast("asyncio.AbstractEventLoop", kernel.loop)
        self._timeout_s: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        """How long `recv` waits."""
        self._timeout_s = seconds

    def setsockopt(self, *_: int) -> None:
        """Nothing is held back."""

    def sendall(self, data: bytes) -> None:
        """Raises OSError if the connection has ended."""
        if self._received.is_over:
            raise BrokenPipeError(32, "Broken pipe")
        self._loop.call_soon_threadsafe(self._transport.write, data)

    def recv(self, size: int) -> bytes:
        """What has come, at least a byte; b"" at the end. Raises TimeoutError."""
        received = self._received
        if not self._kernel.wait(lambda: bool(received.data) or received.is_over, self._timeout_s):
            raise TimeoutError("timed out")
        found = bytes(received.data[: min(size, RECEIVED_MAX)])
        del received.data[: len(found)]
        return found

    def close(self) -> None:
        """Safe to repeat."""
        self._received.is_over = True
        self._loop.call_soon_threadsafe(self._transport.close)


def socket_twins(kernel: Kernel) -> Twins:
    """The module of sockets, whose connections lead to the simulated network."""

    def connect(address: tuple[str, int], timeout: float | None = None) -> ThreadSocket:
        loop = cast("asyncio.AbstractEventLoop", kernel.loop)
        begun: list[asyncio.Task[Any]] = []

        def begin() -> None:
            begun.append(loop.create_task(loop.create_connection(_Received, *address)))

        loop.call_soon_threadsafe(begin)
        if not kernel.wait(lambda: bool(begun) and begun[0].done(), timeout):
            loop.call_soon_threadsafe(begun[0].cancel)
            raise TimeoutError("timed out")
        transport, received = begun[0].result()
        return ThreadSocket(kernel, transport, received)

    return {socket: SimpleNamespace(**{**vars(socket), "create_connection": partial(connect)})}
