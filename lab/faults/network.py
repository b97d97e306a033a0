"""A network that can be made bad: TCP proxies in one thread, with separate conditions for each direction.

A proxy never changes a byte. It can delay bytes (latency), limit their rate (bandwidth), hold them back (a black hole,
also in one direction only), or reset all connections and every new one (a cut).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

Direction = Literal["up", "down"]
"""To the server, or back to the client."""
BOTH: Final[tuple[Direction, ...]] = ("up", "down")

CHUNK_BYTES: Final = 1 << 16
IN_FLIGHT_CHUNKS: Final = 64
"""Bound on the chunks under way in one direction. A slow direction makes its sender wait, as TCP does."""
_CALL_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """Conditions of one direction. ``bytes_per_s`` 0: no limit. ``blocked``: nothing passes."""

    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    blocked: bool = False


CLEAR: Final = LinkConditions()


class Network:
    """All links, and the thread that runs them. A context manager that closes them."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)

    def link(self, name: str, upstream: tuple[str, int], port: int = 0) -> Link:
        """A link from 127.0.0.1:``port`` (0: any free port) to ``upstream``. Raises `OSError`."""
        link = Link(self, name, upstream)
        self.run(link.open(port))
        self.links[name] = link
        return link

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` in the network's thread and waits for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self.links.values():
            self.run(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Link:
    """One proxy: clients connect to ``address``. The methods that inject faults may be called from any thread."""

    def __init__(self, network: Network, name: str, upstream: tuple[str, int]) -> None:
        self.name = name
        self.upstream = upstream
        self.carried: dict[Direction, int] = {"up": 0, "down": 0}
        """Bytes delivered in each direction."""
        self._network = network
        self._conditions: dict[Direction, LinkConditions] = {"up": CLEAR, "down": CLEAR}
        self._changed: dict[Direction, asyncio.Event] = {}
        self._is_cut = False
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        """The port that it listens on, at 127.0.0.1."""
        return self._port

    @property
    def address(self) -> str:
        """``127.0.0.1:port``"""
        return f"127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def set_conditions(self, conditions: LinkConditions, directions: tuple[Direction, ...] = BOTH) -> None:
        """Sets the conditions of ``directions``, for open and for later connections."""

        async def change() -> None:
            for direction in directions:
                self._conditions[direction] = conditions
                self._changed[direction].set()
                self._changed[direction] = asyncio.Event()

        self._network.run(change())

    def cut(self) -> None:
        """Resets all connections, and every new one until `clear`."""

        async def change() -> None:
            self._is_cut = True
            self._reset_all()

        self._network.run(change())

    def reset(self) -> None:
        """Resets all connections; new ones work."""

        async def change() -> None:
            self._reset_all()

        self._network.run(change())

    def clear(self) -> None:
        """Ends every fault of this link; bytes that were held are delivered."""
        self._is_cut = False
        self.set_conditions(CLEAR)

    # --- in the network's thread ---

    async def open(self, port: int) -> None:
        """Starts to listen."""
        self._changed = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self._port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops listening and resets all connections."""
        if self._server is not None:
            self._server.close()
        self._reset_all()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reset_all(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            _reset(writer)
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        server: asyncio.StreamWriter | None = None
        try:
            back, server = await asyncio.open_connection(*self.upstream)
            self._writers.add(server)
            pumps = [self._pump("up", reader, server), self._pump("down", back, writer)]
            await asyncio.gather(*pumps)
        except (OSError, asyncio.CancelledError):
            pass  # one end is gone: the finally clause resets the other
        finally:
            self._connections.discard(task)
            for end in (writer, server):
                if end is not None:
                    self._writers.discard(end)
                    _reset(end)

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries the bytes of one direction until it ends. Raises `OSError` if an end is gone."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT_CHUNKS)
        delivering = asyncio.ensure_future(self._deliver(direction, on_the_way, writer))
        loop = asyncio.get_running_loop()
        try:
            while not delivering.done():
                chunk = await reader.read(CHUNK_BYTES)
                await on_the_way.put((loop.time() + self._conditions[direction].latency_s, chunk))
                if not chunk:
                    break
            await delivering
        finally:
            delivering.cancel()

    async def _deliver(
        self, direction: Direction, on_the_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, chunk = await on_the_way.get()
            await asyncio.sleep(max(due - loop.time(), 0))
            await self._until_open(direction)
            if not chunk:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            await self._send(direction, chunk, writer)

    async def _send(self, direction: Direction, chunk: bytes, writer: asyncio.StreamWriter) -> None:
        """Writes a chunk; with limited bandwidth, in pieces of a tenth of a second."""
        at = 0
        while at < len(chunk):
            await self._until_open(direction)
            rate = self._conditions[direction].bytes_per_s
            piece = chunk[at : at + max(int(rate / 10), 1)] if rate else chunk[at:]
            writer.write(piece)
            await writer.drain()
            at += len(piece)
            self.carried[direction] += len(piece)
            if rate:
                await asyncio.sleep(len(piece) / rate)

    async def _until_open(self, direction: Direction) -> None:
        while self._conditions[direction].blocked:
            await self._changed[direction].wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection by RST: bytes under way are lost."""
    with contextlib.suppress(OSError, AttributeError):
        connected = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
