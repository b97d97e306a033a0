"""Load on a server at a fixed rate, without coordinated omission.

The time of a request runs from the moment at which it was *due*, not from when a connection was free to send it. If the
server or this generator stalls for a second, all requests of that second are late, and counted as late.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from consumers.owner.framing import FrameBuffer, decode_answer, encode_frame
from consumers.owner.protocol import (
    Answer,
    Get,
    Hello,
    Rows,
)

TICK_S: Final = 0.0005
DRAIN_S: Final = 10.0
WARM_UP_S: Final = 1.0
Done = Callable[[float, bool], None]
"""(due, served fresh from the cache)"""


class LoadConnection(Protocol):
    """A connection that takes a limited number of requests at a time."""

    def free(self) -> int:
        """How many more requests it can take now."""

    def send(self, key: int, due: float) -> None:
        """Buffers or sends one request for ``key``."""

    def flush(self) -> None:
        """Writes buffered requests to the socket."""


class OwnerLoadConnection(asyncio.Protocol):
    """A connection with the owner protocol and pipelined requests."""

    def __init__(self, request: Callable[[int], Get], done: Done, depth: int) -> None:
        self._request, self._done, self._depth = request, done, depth
        self._pending: dict[int, float] = {}
        self._frames = FrameBuffer()
        self._out: list[bytes] = []
        self._last = 0
        self._transport: asyncio.Transport
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the hello."""
        self._transport = transport  # type: ignore[assignment]
        self._transport.write(encode_frame(Hello(0)))

    def data_received(self, data: bytes) -> None:
        """Takes the answers."""
        for body in self._frames.feed(data):
            answer: Answer = decode_answer(body)
            if not self.greeted.done():
                self.greeted.set_result(None)
                continue
            fresh = isinstance(answer, Rows) and answer.rows[0].served and answer.rows[0].freshness == "fresh"
            self._done(self._pending.pop(answer.id), fresh)

    def free(self) -> int:
        """As in `LoadConnection`."""
        return self._depth - len(self._pending)

    def send(self, key: int, due: float) -> None:
        """As in `LoadConnection`."""
        self._last += 1
        request = self._request(key)
        request.id = self._last
        self._pending[self._last] = due
        self._out.append(encode_frame(request))

    def flush(self) -> None:
        """As in `LoadConnection`."""
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()


class HttpLoadConnection(asyncio.Protocol):
    """An HTTP/1.1 connection that is kept alive, with one request at a time."""

    def __init__(self, request: Callable[[int], bytes], done: Done, proofs: int = 1) -> None:
        """``proofs``: how many each answer holds; that of a batch has one of its own."""
        self._request, self._done, self._proofs = request, done, proofs
        self._due: float | None = None
        self._buffer = bytearray()
        self._transport: asyncio.Transport
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The server has closed the connection, which takes no more requests."""
        self.lost = True

    def data_received(self, data: bytes) -> None:
        """Takes an answer, which may arrive in pieces."""
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        lowered = self._buffer[:head].lower()
        length = int(lowered.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(self._buffer) < head + 4 + length or self._due is None:
            return
        fresh = self._buffer.startswith(b"HTTP/1.1 200") and self._all(b'"freshness":"fresh"')
        due, self._due = self._due, None
        served = fresh and self._all(b'"served_from":"cache"')
        self._buffer.clear()
        self._done(due, served)

    def _all(self, words: bytes) -> bool:
        return self._buffer.count(words) == self._proofs

    def free(self) -> int:
        """As in `LoadConnection`."""
        return int(self._due is None and not self.lost)

    def send(self, key: int, due: float) -> None:
        """As in `LoadConnection`."""
        self._due = due
        self._transport.write(self._request(key))

    def flush(self) -> None:
        """As in `LoadConnection`."""


class Tally:
    """Counts answers and their times."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.not_fresh = 0
        self.answered = 0

    def done(self, due: float, fresh: bool) -> None:
        """Counts one answer to a request that was due at ``due``."""
        self.answered += 1
        self.waits.append(time.monotonic() - due)
        if not fresh:
            self.not_fresh += 1


class Ticks:
    """Wakes one coroutine every ``interval_s``. A context manager that uses SIGALRM.

    ``asyncio.sleep`` does not work here: uvloop's timers count whole milliseconds, so half a millisecond is zero. The
    generator would spin on a core that the server needs.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._ticked = asyncio.Event()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, self._ticked.set)
        signal.setitimer(signal.ITIMER_REAL, self._interval_s, self._interval_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGALRM)

    async def next(self) -> None:
        """Waits for the next tick. Missed ticks count as one."""
        await self._ticked.wait()
        self._ticked.clear()


async def at_rate(connections: list[LoadConnection], tally: Tally, keys: list[int], rate: float) -> None:
    """Sends one request per key at ``rate`` per second, and waits for all answers.

    Raises `AssertionError` if some are not answered in time.
    """
    began = time.monotonic() + 0.05
    waiting: deque[tuple[int, float]] = deque()
    sent = 0
    with Ticks(TICK_S) as ticks:
        while sent < len(keys) or waiting:
            now = time.monotonic()
            while sent < len(keys) and began + sent / rate <= now:
                waiting.append((keys[sent], began + sent / rate))
                sent += 1
            for connection in connections:
                while waiting and connection.free():
                    connection.send(*waiting.popleft())
                connection.flush()
                if not waiting:
                    break
            await ticks.next()
    await _drained(tally, len(keys))


async def as_fast_as_possible(
    connections: list[LoadConnection], tally: Tally, keys: list[int], seconds: float
) -> float:
    """Keeps every connection full for ``seconds``. Returns answers per second."""
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic()) < began + seconds:
        for connection in connections:
            for _ in range(connection.free()):
                connection.send(keys[sent % len(keys)], now)
                sent += 1
            connection.flush()
        await asyncio.sleep(0)
    done = tally.answered
    rate = done / (time.monotonic() - began)
    await _drained(tally, sent)
    return rate


async def _drained(tally: Tally, wanted: int) -> None:
    deadline = time.monotonic() + DRAIN_S
    while (missing := wanted - tally.answered) > 0:
        if time.monotonic() > deadline:
            raise AssertionError(f"{missing} of {wanted} requests were not answered")
        await asyncio.sleep(0.01)
