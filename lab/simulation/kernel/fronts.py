"""HTTP between sessions and fronts over the simulated network: the product's connection, guard, routes and client.

Only uvicorn's main loop and httpx2's connection pool are left out: each request has a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, cast

import httptools
import httpx2
from uvicorn.server import ServerState

from lab.simulation.kernel.scheduler import Kernel
from serving.client.aio import AsyncClient
from serving.client.client import FreshetClient
from serving.client.retries import Retries
from serving.http.connection import BoundedConnection
from serving.http.front import Front
from serving.http.server import make_server

LOOPBACK: Final = "127.0.0.1"
STREAM_PATH: Final = "/v1/stream"
"""Its response comes piece by piece; any other one is taken when it is whole."""


async def listen(front: Front, port: int) -> asyncio.AbstractServer:
    """Answers requests at a port, in the process that calls it."""
    loop = asyncio.get_running_loop()
    config = make_server(front, LOOPBACK, port).config
    config.load()
    state = ServerState()

    def connection() -> BoundedConnection:  # made while the process of the client runs
        return BoundedConnection(config=config, server_state=state, app_state={}, _loop=loop)

    return await loop.create_server(connection, LOOPBACK, port)


class FrontTransport(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Carries the requests of a blocking or an asyncio client. ``port_of`` chooses the front if the URL has no port.

    Fronts behind one name are a ``port_of`` that does not always answer the same. ``secret``: of who asks without a
    client library; "": none.
    """

    def __init__(self, kernel: Kernel, port_of: Callable[[], int], secret: Callable[[], str] = str) -> None:
        self._kernel = kernel
        self._port_of = port_of
        self._secret = secret
        self.last_port = 0
        """Of the front that was asked last."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """For a thread of a process, whose event loop talks with the front."""
        loop = cast("asyncio.AbstractEventLoop", self._kernel.loop)
        body = request.read()
        begun: list[asyncio.Task[httpx2.Response]] = []
        # the coroutine is made when it runs: a process that is killed before leaves none that nobody has awaited
        loop.call_soon_threadsafe(lambda: begun.append(loop.create_task(self._exchange(request, body))))
        self._kernel.wait(lambda: bool(begun) and begun[0].done())
        return begun[0].result()

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Waits in a thread until ``ready``; says whether it is."""
        return self._kernel.wait(ready, timeout_s)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """For a task."""
        return await self._exchange(request, await request.aread())

    async def _exchange(self, request: httpx2.Request, body: bytes) -> httpx2.Response:
        loop, port = asyncio.get_running_loop(), request.url.port or self._port_of()
        self.last_port = port
        try:
            async with asyncio.timeout(request.extensions["timeout"]["read"]):
                transport, answer = await loop.create_connection(
                    lambda: _Exchange(loop, has_body=request.method != "HEAD"), LOOPBACK, port
                )
                stream = _Pieces(self, transport, answer, request) if request.url.path == STREAM_PATH else None
                try:
                    transport.write(self._head(request) + body)
                    if stream is None:
                        return await answer.response
                    head = await answer.head
                    return httpx2.Response(head.status_code, headers=head.headers, stream=stream)
                finally:
                    if stream is None or not answer.head.done():
                        transport.close()
        except TimeoutError as error:
            raise httpx2.ReadTimeout("the front has not answered in time", request=request) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error), request=request) from error

    def _head(self, request: httpx2.Request) -> bytes:
        lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%b: %b" % header for header in request.headers.raw]
        if (secret := self._secret()) and "authorization" not in request.headers:
            lines.append(b"authorization: Bearer %b" % secret.encode())
        return b"\r\n".join([*lines, b"", b""])


class _Exchange(asyncio.Protocol):
    """The client's end of one request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, has_body: bool) -> None:
        self._has_body = has_body
        self.response: asyncio.Future[httpx2.Response] = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()
        self.head: asyncio.Future[httpx2.Response] = loop.create_future()
        self.moved = asyncio.Event()
        """Set when there is more of the body, or no more."""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.head, self.response):
            if not future.done():
                future.set_exception(httpx2.ReadError(str(exc or "the front closed the connection")))
                future.exception()  # nobody may wait for it
        self.moved.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the response."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """All headers have come. HEAD is answered with nothing else, whatever they say."""
        if not self.head.done():
            self.head.set_result(httpx2.Response(self._parser.get_status_code(), headers=self._headers))
        if not self._has_body:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the response's body."""
        self._body += body
        self.moved.set()

    @property
    def has_more(self) -> bool:
        """Whether `take` has something to say."""
        return bool(self._body) or self.response.done()

    def take(self) -> bytes:
        """The pieces that have come; b"" at the end. Raises ``httpx2.ReadError`` if the connection ended before."""
        piece = bytes(self._body)
        self._body.clear()
        self.moved.clear()
        if not piece and (error := self.response.exception()) is not None:
            raise error
        return piece

    def on_message_complete(self) -> None:
        """The end of the response."""
        if not self.response.done():
            status = self._parser.get_status_code()
            self.response.set_result(httpx2.Response(status, headers=self._headers, content=bytes(self._body)))
            self.moved.set()


class _Pieces(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body as it comes, for a thread or a task."""

    def __init__(
        self, carrier: FrontTransport, transport: asyncio.Transport, answer: _Exchange, request: httpx2.Request
    ) -> None:
        self._carrier, self._transport, self._answer = carrier, transport, answer
        self._timeout_s: float = request.extensions["timeout"]["read"]

    def __iter__(self) -> Iterator[bytes]:
        while True:
            if not self._carrier.wait(lambda: self._answer.has_more, self._timeout_s):
                raise httpx2.ReadTimeout("the stream says nothing")
            if not (piece := self._answer.take()):
                return
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    while not self._answer.has_more:
                        await self._answer.moved.wait()
            except TimeoutError as error:
                raise httpx2.ReadTimeout("the stream says nothing") from error
            if not (piece := self._answer.take()):
                return
            yield piece

    def close(self) -> None:
        self._transport.close()

    async def aclose(self) -> None:
        self._transport.close()


def blocking_client(kernel: Kernel, ports: Iterable[int], **options: Any) -> FreshetClient:
    """The product's client for threads, of the fronts at these ports behind one name."""

    def sleep(seconds: float) -> None:
        kernel.wait(lambda: False, seconds)

    transport = _transport(kernel, ports)
    return FreshetClient("http://front", retries=_retries(kernel), sleep=sleep, transport=transport, **options)


def async_client(kernel: Kernel, ports: Iterable[int], **options: Any) -> AsyncClient:
    """The product's client for asyncio, of the fronts at these ports behind one name."""
    return AsyncClient("http://front", retries=_retries(kernel), transport=_transport(kernel, ports), **options)


def _transport(kernel: Kernel, ports: Iterable[int]) -> FrontTransport:
    chosen = list(ports)
    return FrontTransport(kernel, lambda: kernel.rng.choice(chosen))


def _retries(kernel: Kernel) -> Retries:
    return Retries(jitter=kernel.rng.random, clock=lambda: kernel.now)
