"""Responses that go on until the reader leaves, the front stops, or the reader takes nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from starlette.types import Message, Receive, Send

from serving.http.responses import Headers

STALL_S: Final = 120.0
"""A reader that takes nothing for so long is given up: it holds a connection, and perhaps a reader of Kafka."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Streaming:
    """A response in pieces. ``close`` is awaited in any case: a generator that has not begun closes nothing."""

    content_type: bytes
    chunks: AsyncGenerator[bytes]
    close: Callable[[], Awaitable[None]]
    stall_s: float = STALL_S
    status: int = 200
    headers: Headers = ()
    taken_bytes: int = 0
    """What its caller pays for; 0: it is not known before."""

    async def send(self, receive: Receive, send: Send, *, head_only: bool = False) -> None:
        """Sends it; for HEAD (``head_only``) only how it would begin.

        uvicorn makes ``send`` wait while the reader does not read, and says nothing when it has left.
        """
        headers = [(b"content-type", self.content_type), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        headers += self.headers
        left = asyncio.ensure_future(_left(receive))
        try:
            await self._send(send, {"type": "http.response.start", "status": self.status, "headers": headers})
            if not head_only:
                await self._send_chunks(send, left)
            if not left.done():
                await self._send(send, {"type": "http.response.body", "body": b""})
        except TimeoutError:
            _log.warning("a stream's reader takes nothing and is given up", seconds=self.stall_s)
        finally:
            left.cancel()
            await self.chunks.aclose()
            await self.close()

    async def _send_chunks(self, send: Send, left: asyncio.Future[None]) -> None:
        async for chunk in _until(self.chunks, left):
            await self._send(send, {"type": "http.response.body", "body": chunk, "more_body": True})

    async def _send(self, send: Send, message: Message) -> None:
        """Raises ``TimeoutError`` if the reader has not taken what was sent before, the last piece's too."""
        async with asyncio.timeout(self.stall_s):
            await send(message)


async def _left(receive: Receive) -> None:
    """Until the reader has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _next(chunks: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(chunks, None)


async def _until(chunks: AsyncGenerator[bytes], left: asyncio.Future[None]) -> AsyncGenerator[bytes]:
    """``chunks``, until ``left`` is done."""
    while not left.done():
        following: asyncio.Future[bytes | None] = asyncio.ensure_future(_next(chunks))
        waiting: list[asyncio.Future[Any]] = [following, left]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not following.done():
                following.cancel()
                await asyncio.wait([following])
        if following.cancelled() or (chunk := following.result()) is None:
            return
        yield chunk
