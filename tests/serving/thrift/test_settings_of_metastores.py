"""Whether a metastore's settings let a cache answer in its place is asked for as long as the Thrift front listens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from serving.errors import ReadError
from serving.http.front import Front
from serving.metrics import FrontMetrics
from serving.reads.spaces import TableSpace
from serving.thrift import listener as listening
from serving.thrift.listener import ListenerSettings, ThriftListener
from serving.thrift.messages import head_of
from stream.sources.hive.live.object_calls import ObjectCalls
from stream.sources.hive.rpc.connection import MetastoreConnection, MetastoreRefused
from stream.sources.hive.rpc.thrift import REPLY, message
from stream.wire.keys import Layout
from tests.serving.fakes import FakeTableSource
from tests.serving.test_table_reads import SHARD, external
from tests.serving.thrift.test_proofs import NAMES, Cache, NoOwners


class Source(FakeTableSource):
    """A metastore whose log ends at event 9."""

    def __init__(self) -> None:
        super().__init__(external())
        self.against: str | ReadError = ""
        self.asked = asyncio.Event()

    async def log_end(self) -> int:
        return 9

    async def own_answers(self) -> str:
        self.asked.set()
        if isinstance(self.against, ReadError):
            raise self.against
        return self.against


async def serve(use: Callable[[Source, Callable[[], Awaitable[bool]]], Awaitable[None]]) -> None:
    """``use`` gets the source, and what tells whether the cache answers an engine whose connection stays open."""
    source = Source()
    space = TableSpace("hive", Layout(1), source)
    space.epochs.learn(SHARD, 1)
    space.epochs.confirmed_at = float("inf")
    cache = Cache()
    reads = {"owners": NoOwners(), "tables": cache, "objects": cache, "metrics": FrontMetrics()}
    front = SimpleNamespace(table_space=lambda _: space, now_ms=lambda: 0, **reads)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as metastore:
        at = ListenerSettings("127.0.0.1", 0, [metastore.sockets[0].getsockname()[:2]])
        listener = ThriftListener(cast("Front", front), "hive", at)
        await listener.start()
        reader, writer = await asyncio.open_connection(*listener.address)

        async def is_answered() -> bool:
            source.asked.clear()
            await source.asked.wait()
            source.asked.clear()
            await source.asked.wait()  # what was said before is known by now
            writer.write(message("get_partition_names", 1, NAMES))
            head = head_of(await reader.read(1 << 16))
            assert head is not None
            return head.kind == REPLY

        try:
            await use(source, is_answered)
        finally:
            writer.close()
            await listener.close()


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A metastore that answers every call with an exception."""
    while data := await reader.read(1 << 16):
        head = head_of(data)
        assert head is not None
        writer.write(data[:3] + b"\3" + data[4 : head.size] + b"\0")
    writer.close()


def test_a_metastore_that_is_started_anew_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then it may refuse some readers what the cache would show all. One that is away says nothing new."""
    monkeypatch.setattr(listening, "ASK_EVERY_S", 0.01)

    async def use(source: Source, is_answered: Callable[[], Awaitable[bool]]) -> None:
        for against, wanted in (
            ("metastore.pre.event.listeners = org.example.Refusing", False),
            ("", True),
            (ReadError("source_unreachable", "away"), True),
            (ReadError("source_failed", "it does not tell"), False),
            (ReadError("source_unreachable", "away"), False),
            ("", True),
        ):
            source.against = against
            assert await is_answered() is wanted, against

    asyncio.run(asyncio.wait_for(serve(use), 20))


class Silent:
    """A metastore's connection on which settings are told to nobody."""

    def call(self, *_: object) -> str:
        raise MetastoreRefused("get_config_value", 1, "the config key cannot be accessed")


def test_a_metastore_that_tells_no_settings_may_have_any() -> None:
    with pytest.raises(MetastoreRefused):
        ObjectCalls("hive", cast("MetastoreConnection", Silent())).own_answers()
