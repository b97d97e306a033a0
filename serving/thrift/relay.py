"""One connection of an engine: its calls are answered here, or passed on over a connection of its own.

Who says who it is (``set_ugi``), says it to the metastore. What is no plain message of the binary protocol, as of SASL
or of a frame, is passed on for good, without a look at it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from serving.thrift.answering import PASSED_ON, Answers, Session
from serving.thrift.calls import ANSWERED, STILL
from serving.thrift.messages import STOP, Head, Scanner, failure, head_of
from serving.thrift.metrics import ThriftMetrics
from stream.sources.hive.rpc.thrift import CALL, REPLY
from stream.sources.hive.structs import ThriftError

log = structlog.get_logger(__name__)

PIECE_BYTES: Final = 1 << 16
CALL_BYTES_MAX: Final = 1 << 20
"""A longer call is passed on while it arrives."""
LEARNT_BYTES_MAX: Final = 4 << 20
SETTING: Final = "setMetaConf"
"""Sets how a metastore reads on this connection alone, and whether it asks what the client is capable of."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]
"""Opens a connection to a metastore. Raises ``OSError``."""


class Learning:
    """The reply to one call, looked at while it is passed on. ``learn`` is told the struct of a result."""

    def __init__(self, learn: Callable[[bytes], None]) -> None:
        self._learn = learn
        self._data = b""
        self._head: Head | None = None
        self._scanner = Scanner()

    def feed(self, data: bytes) -> bool:
        """Whether more of it is to come."""
        try:
            return self._feed(data)
        except (ThriftError, ValueError, TypeError, AttributeError) as error:
            log.debug("a reply is not learnt", why=str(error))
            return False

    def _feed(self, data: bytes) -> bool:
        self._data += data
        if self._head is None:
            self._head = head_of(self._data)
            if self._head is None:
                return True
            data = self._data[self._head.size :]
        if self._head.kind != REPLY or len(self._data) > LEARNT_BYTES_MAX:
            return False
        end = self._scanner.feed(data)
        if end is None:
            return True
        self._learn(self._data[self._head.size :])
        return False


class Relay:
    """Serves one connection until either side ends it."""

    def __init__(self, client: Streams, connect: Connect, answers: Answers | None, metrics: ThriftMetrics) -> None:
        """``answers`` None: everything is passed on."""
        self._reader, self._writer = client
        self._connect = connect
        self._answers = answers
        self._metrics = metrics
        self._session = Session()
        self._rest = b""
        """What has arrived of the next call."""
        self._metastore: asyncio.StreamWriter | None = None
        self._replies: asyncio.Task[None] | None = None
        self._learning: Learning | None = None
        self._is_asked = False
        """Whether more of the reply to the last call that was passed on is to come, as far as its last byte tells."""

    async def run(self) -> None:
        """Returns when the connection has ended. Raises ``OSError``."""
        try:
            while await self._serve_call():
                pass
        except ThriftError:  # it is no message, or not to its end
            await self._pass_all()
        finally:
            if self._replies is not None:
                self._replies.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await self._replies
            for writer in (self._metastore, self._writer):
                if writer is not None:
                    writer.close()

    async def _serve_call(self) -> bool:
        """Serves the next call. False: there is no more. Raises `ThriftError`; ``_rest`` was not passed on then."""
        head = await self._next_head()
        if head is None:
            return False
        if self._is_asked or head.kind != CALL or self._answers is None or head.name == SETTING:
            # who does not wait for replies gets all of them from the metastore, which keeps their order
            await self._pass_all()
            return False
        if head.name not in ANSWERED:
            await self._pass_on(head)
            self._metrics.passed_on("")
            return True
        call = await self._whole(head)
        outcome = PASSED_ON
        if call is not None:
            outcome = await self._answers.answer(head, call[head.size :], self._session)
        if outcome.reply is not None:
            self._rest = self._rest[len(call or b"") :]
            self._writer.write(outcome.reply)
            await self._writer.drain()
            self._metrics.answered(head.name)
            return True
        self._learning = Learning(outcome.learn) if outcome.learn is not None else None
        await self._pass_on(head)
        self._metrics.passed_on(head.name)
        return True

    async def _next_head(self) -> Head | None:
        """The beginning of the next call; None: there is none. Raises `ThriftError` if it is no message."""
        while True:
            if self._rest and (head := head_of(self._rest)) is not None:
                return head
            if not await self._receive():
                return None

    async def _receive(self) -> bool:
        piece = await self._reader.read(PIECE_BYTES)
        self._rest += piece
        return bool(piece)

    async def _whole(self, head: Head) -> bytes | None:
        """The call, once it has arrived; None: it is too long for an answer, or has ended in between.

        Raises `ThriftError`.
        """
        scanner, seen = Scanner(), head.size
        while len(self._rest) <= CALL_BYTES_MAX:
            end = scanner.feed(self._rest[seen:])
            if end is not None:
                return self._rest[: seen + end]
            seen = len(self._rest)
            if not await self._receive():
                return None
        return None

    async def _pass_on(self, head: Head) -> None:
        """Sends one call on, while it arrives. Raises ``OSError``, `ThriftError`."""
        if head.name not in STILL:
            self._session.moved = True
        metastore = await self._opened(head)
        self._is_asked = True
        scanner, seen = Scanner(), head.size
        while (end := scanner.feed(self._rest[seen:])) is None:
            metastore.write(self._rest)
            await metastore.drain()
            seen, self._rest = 0, await self._reader.read(PIECE_BYTES)
            if not self._rest:
                raise ConnectionResetError("a call was cut off")
        metastore.write(self._rest[: seen + end])
        self._rest = self._rest[seen + end :]
        await metastore.drain()

    async def _pass_all(self) -> None:
        """Sends all on that arrives, whatever it is."""
        self._learning = None
        metastore = await self._opened(None)
        data = self._rest
        while data:
            metastore.write(data)
            await metastore.drain()
            data = await self._reader.read(PIECE_BYTES)

    async def _opened(self, head: Head | None) -> asyncio.StreamWriter:
        """The connection to the metastore. ``head``: the call that gets an error if there is none."""
        if self._metastore is None:
            try:
                replies, self._metastore = await self._connect()
            except OSError as error:
                if head is not None:
                    why = f"freshet: no metastore can be reached: {error}"
                    self._writer.write(failure(head.name, head.sequence, why))
                    await self._writer.drain()
                raise
            self._replies = asyncio.create_task(self._pass_replies(replies))
        return self._metastore

    async def _pass_replies(self, replies: asyncio.StreamReader) -> None:
        """Passes on what the metastore sends. Its end is the client's: it knew who the client is."""
        try:
            while data := await replies.read(PIECE_BYTES):
                if self._learning is not None and not self._learning.feed(data):
                    self._learning = None
                # a reply ends as a struct does: a look at all of it would cost more than it is worth
                self._is_asked = self._learning is not None or not data.endswith(STOP)
                self._writer.write(data)
                await self._writer.drain()
        except OSError:
            pass
        finally:
            self._writer.close()
