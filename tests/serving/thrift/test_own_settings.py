"""A connection of an engine on which it has set something at the metastore, for this connection alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from serving.metrics import FrontMetrics
from serving.thrift.answering import Answers, Outcome
from serving.thrift.messages import reply
from serving.thrift.metrics import ThriftMetrics
from serving.thrift.relay import Relay, Streams
from stream.sources.hive.rpc.thrift import message, text


class Knowing:
    """Answers every call that a cache may answer."""

    async def answer(self, head: object, *_: object) -> Outcome:
        return Outcome(reply(head.name, head.sequence, b"\0"))  # type: ignore[attr-defined]


class Beside:
    """A relay, with an engine on one side, and on the other a metastore that keeps what it gets."""

    def __init__(self) -> None:
        self.got = b""
        self.arrived = asyncio.Event()
        self.to_engine: asyncio.StreamWriter | None = None

    async def open(self, opened: Callable[[Beside], Awaitable[None]]) -> None:
        """``opened``, beside a metastore and a relay that listen."""
        async with await asyncio.start_server(self._metastore, "127.0.0.1", 0) as behind:
            self._behind = behind.sockets[0].getsockname()[:2]
            async with await asyncio.start_server(self._relay, "127.0.0.1", 0) as front:
                self.engine = await asyncio.open_connection(*front.sockets[0].getsockname()[:2])
                try:
                    await opened(self)
                finally:
                    self.engine[1].close()

    async def _metastore(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.got += data
            self.arrived.set()
            writer.write(b"seen\0")  # as a reply ends: the relay is ready for the next call
        writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def connect() -> Streams:
            return await asyncio.open_connection(*self._behind)

        metrics = ThriftMetrics("hive", FrontMetrics())
        await Relay((reader, writer), connect, cast("Answers", Knowing()), metrics).run()

    async def send(self, data: bytes) -> None:
        """By the engine."""
        self.engine[1].write(data)
        await self.engine[1].drain()

    async def reaches(self, wanted: bytes) -> None:
        """Waits until the metastore has got ``wanted``."""
        while self.got != wanted:
            self.arrived.clear()
            await self.arrived.wait()


def run(use: Callable[[Beside], Awaitable[None]]) -> None:
    """Within an event loop."""

    async def main() -> None:
        await asyncio.wait_for(Beside().open(use), 10)

    asyncio.run(main())


def test_a_connection_with_settings_of_its_own_is_the_metastores() -> None:
    """It may be shown what others are refused, and read by other means."""
    setting = message("setMetaConf", 1, {1: text("metastore.client.capability.check"), 2: text("false")})
    asked = message("get_table_req", 2, {1: text("x")})

    async def use(beside: Beside) -> None:
        await beside.send(asked)
        assert (await beside.engine[0].read(1 << 16))[8:21] == b"get_table_req"
        await beside.send(setting)
        assert (await beside.engine[0].readexactly(5)) == b"seen\0"
        await beside.send(asked)
        await beside.reaches(setting + asked)

    run(use)
