"""Connections between processes, in memory: bytes arrive late and in pieces, links are cut, connections reset."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from lab.simulation.kernel.switching import Process, Switching

Factory = Callable[[], asyncio.BaseProtocol]

DELAY_S: Final = 0.0005
"""The longest way of a piece, while nothing is slow."""
PIECES_CHANCE: Final = 0.1
"""How often what is written at once arrives in two pieces."""
FIRST_PORT: Final = 20_000


class Network:
    """All connections of a history. Processes that are cut off from each other notice nothing but silence."""

    def __init__(self, kernel: Switching) -> None:
        self.kernel = kernel
        self.delay_s = DELAY_S
        self.ends: list[End] = []
        """Both ends of each open connection."""
        self._listeners: dict[int, Listener] = {}
        self._cut: set[frozenset[str]] = set()
        self._last_port = FIRST_PORT

    def listen(self, process: Process, loop: Any, factory: Factory, host: str, port: int) -> Listener:
        """Listens for a process, until it ends. Raises ``OSError`` for a port that is taken."""
        if not port:
            port = self._last_port = self._last_port + 1
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = self._listeners[port] = Listener(self, process, loop, factory, (host, port))
        process.at_end.append(listener.close)
        return listener

    def listening(self) -> dict[int, str]:
        """Port → the process that listens there."""
        return {port: each.process.name for port, each in self._listeners.items()}

    def forget_listener(self, port: int) -> None:
        """Refuses connections to a port from now on."""
        self._listeners.pop(port, None)

    async def connect(self, process: Process, loop: Any, factory: Factory, port: int) -> tuple[End, Any]:
        """A connection to a port. Raises ``ConnectionRefusedError``. It waits as long as the link is cut."""
        await asyncio.sleep(self.some_delay_s())
        listener = self._listeners.get(port)
        while listener is not None and self.is_cut(process.name, listener.process.name):
            await asyncio.sleep(DELAY_S * 100)
            listener = self._listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on port {port}")
        near, far = End(self, process, loop), End(self, listener.process, listener.loop)
        near.peer, far.peer = far, near
        self.ends += [near, far]
        listener.loop.call_soon(far.begin, listener.factory)
        near.begin(factory)
        return near, near.protocol

    def some_delay_s(self) -> float:
        """How long the next piece takes."""
        return self.kernel.rng.random() * self.delay_s

    def is_cut(self, one: str, other: str) -> bool:
        """Whether nothing gets from one process to the other."""
        return frozenset((one, other)) in self._cut

    def cut(self, one: str, other: str) -> None:
        """Nothing arrives between two processes until `heal`, and neither is told."""
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        """Ends every `cut`; what was sent meanwhile arrives."""
        self._cut.clear()
        for end in self.ends:
            end.arrive(())

    def reset(self, one: str, other: str) -> int:
        """Breaks the connections between two processes, which both notice; returns how many."""
        between = [end for end in self.ends if {end.process.name, end.peer.process.name} == {one, other}]
        for end in between:
            end.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        return len(between) // 2


class Listener:
    """What `asyncio.AbstractEventLoop.create_server` returns. It is also its only socket."""

    def __init__(
        self,
        network: Network,
        process: Process,
        loop: Any,
        factory: Factory,
        address: tuple[str, int],
    ) -> None:
        self.process = process
        self.loop = loop
        self.factory = factory
        self._network = network
        self._address = address

    @property
    def sockets(self) -> list[Listener]:
        """Itself."""
        return [self]

    def getsockname(self) -> tuple[str, int]:
        """Host and port."""
        return self._address

    def close(self) -> None:
        """Listens no more; open connections stay."""
        self._network.forget_listener(self._address[1])

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""


class End(asyncio.Transport):
    """One end of a connection, as its process's protocol sees it."""

    peer: End
    protocol: Any

    def __init__(self, network: Network, process: Process, loop: Any) -> None:
        super().__init__()
        self.process = process
        self._network = network
        self._loop = loop
        self._held: deque[bytes | None] = deque()
        """What has arrived and was not read, or waits behind a cut. None: the other end was closed."""
        self._arrives_at = 0.0
        self._closing = self._lost = self._reading_paused = self._writing_paused = False
        self._unread = 0
        self._high = 64 << 10
        process.at_end.append(self._process_ended)

    def begin(self, factory: Factory) -> None:
        """Makes the protocol, in its own process."""
        self.protocol = factory()
        self.protocol.connection_made(self)

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self._closing or not data:
            return
        kernel = self._network.kernel
        self.peer._unread += len(data)
        if self.peer._unread > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()
        if len(data) > 1 and kernel.rng.random() < PIECES_CHANCE:
            middle = 1 + int(kernel.rng.random() * (len(data) - 1))
            self.peer.send((data[:middle],))
            self.peer.send((data[middle:],))
        else:
            self.peer.send((bytes(data),))

    def send(self, pieces: Iterable[bytes | None]) -> None:
        """Sends to this end what arrives after a while, behind all that was sent before."""
        kernel = self._network.kernel
        self._arrives_at = max(self._arrives_at, kernel.now) + self._network.some_delay_s()
        kernel.call_at(self._arrives_at, lambda: self.arrive(pieces))

    def arrive(self, pieces: Iterable[bytes | None]) -> None:
        """Takes what arrives, and has the protocol read it unless the link is cut."""
        if self._lost:
            return
        if self.process.dead:
            self.peer.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        self._held.extend(pieces)
        if self._held and not self._network.is_cut(self.process.name, self.peer.process.name):
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        while self._held and not (self._reading_paused or self._lost):
            if self._network.is_cut(self.process.name, self.peer.process.name):
                return
            piece = self._held.popleft()
            if piece is None:
                self.close()
                return
            self._unread -= len(piece)
            if self.peer._writing_paused and self._unread <= self.peer._high // 4:
                self.peer.let_write()
            self.protocol.data_received(piece)

    def let_write(self) -> None:
        """The other end has read enough."""
        self._writing_paused = False
        self._loop.call_soon(self.protocol.resume_writing)

    def lose(self, error: Exception | None) -> None:
        """Ends the connection for this end: its protocol hears of it soon."""
        self._closing = True
        if not self._lost:
            self._lost = True
            self._network.ends.remove(self)
            if not self.process.dead:
                self._loop.call_soon(self.protocol.connection_lost, error)

    def _process_ended(self) -> None:
        if not self._lost:
            self.lose(None)
            self.peer.send((None,))

    def close(self) -> None:
        if not self._closing:
            self.lose(None)
            self.peer.send((None,))

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self.arrive(())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self._high = high or self._high
