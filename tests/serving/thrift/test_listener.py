"""The listener that engines connect to, between real sockets: which metastore it takes, whom it serves, how it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trustme
from structlog.testing import capture_logs

from serving.errors import ReadError
from serving.http.front import Front
from serving.metrics import FrontMetrics
from serving.reads.spaces import TableSpace
from serving.thrift import listener as listening
from serving.thrift.listener import ListenerSettings, ThriftListener, ThriftListenError, check_thrift
from serving.thrift.messages import head_of
from stream.access.certificates import Certificates
from stream.access.listening import PlainListenRefused
from stream.sources.hive.rpc.thrift import EXCEPTION, REPLY, message
from stream.wire.keys import Layout
from tests.access.certifying import write
from tests.patience import PATIENCE_S
from tests.serving.thrift.test_settings_of_metastores import Source

CALL = message("get_all_databases", 1, {})
"""It is never answered here."""
Address = tuple[str, int]


@asynccontextmanager
async def metastore(answer: bytes, context: ssl.SSLContext | None = None) -> AsyncIterator[Address]:
    """One that answers each call with ``answer`` in the place of its result."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            head = head_of(data)
            assert head is not None
            writer.write(data[:3] + bytes([REPLY]) + data[4 : head.size] + answer + b"\0")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[:2]


async def free() -> Address:
    """An address at which nothing listens."""
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        return cast("Address", server.sockets[0].getsockname()[:2])


def listener_of(source: Source, metastores: Sequence[Address], *, port: int = 0, **settings: Any) -> ThriftListener:
    """Before its start."""
    space = TableSpace("hive", Layout(1), source)
    reads = dict.fromkeys(("owners", "tables", "objects"))
    front = SimpleNamespace(table_space=lambda _: space, now_ms=lambda: 0, metrics=FrontMetrics(), **reads)
    return ThriftListener(cast("Front", front), "hive", ListenerSettings("127.0.0.1", port, metastores, **settings))


@asynccontextmanager
async def listening_at(*metastores: Address, **settings: Any) -> AsyncIterator[ThriftListener]:
    """A listener over ``metastores``."""
    listener = listener_of(Source(), metastores, **settings)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()


class Engine:
    """A connection of an engine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def call(self) -> tuple[int, bytes]:
        """The kind of the reply to a call, and what it brings. Raises ``OSError`` if the connection has ended."""
        self.writer.write(CALL)
        data = await self.reader.read(1 << 16)
        if not data:
            raise ConnectionResetError
        head = head_of(data)
        assert head is not None
        return head.kind, data[head.size :]


@asynccontextmanager
async def engine(listener: ThriftListener, context: ssl.SSLContext | None = None) -> AsyncIterator[Engine]:
    """A new connection."""
    reader, writer = await asyncio.open_connection(*listener.address, ssl=context)
    try:
        yield Engine(reader, writer)
    finally:
        writer.close()


def run(use: Callable[[], Awaitable[None]]) -> None:
    """Within an event loop."""

    async def main() -> None:
        await asyncio.wait_for(use(), PATIENCE_S)

    asyncio.run(main())


def test_the_next_metastore_is_taken_where_one_is_away() -> None:
    """In the order of the settings: the second one is for when the first is gone."""

    async def use() -> None:
        away = await free()
        async with metastore(b"1") as first, metastore(b"2") as second:
            for named, wanted in (([first, second], b"1"), ([away, second], b"2"), ([away, second, first], b"2")):
                async with listening_at(*named) as listener, engine(listener) as connected:
                    assert await connected.call() == (REPLY, wanted + b"\0")

    run(use)


def test_an_engine_is_told_which_metastore_cannot_be_reached() -> None:
    """Not that its own connection broke for no reason."""

    async def use() -> None:
        host, port = await free()
        async with listening_at((host, port)) as listener, engine(listener) as connected:
            kind, told = await connected.call()
            assert kind == EXCEPTION
            assert f"freshet: no metastore can be reached: {host}:{port}: ".encode() in told
        async with listening_at() as listener, engine(listener) as connected:
            assert b"no metastore is named" in (await connected.call())[1]

    run(use)


def test_connections_beyond_the_limit_are_closed_and_make_room_when_they_end() -> None:
    """Files that are open belong to the read API, too."""

    async def use() -> None:
        async with metastore(b"1") as behind, listening_at(behind, connections_max=1) as listener:
            async with engine(listener) as first:
                assert await first.call() == (REPLY, b"1\0")
                with capture_logs() as told:
                    async with engine(listener) as second:
                        with pytest.raises(OSError):  # noqa: PT011 - the connection is closed, in one way or another
                            await second.call()
                assert [each["event"] for each in told if each["log_level"] == "warning"] == [
                    "too many connections of engines"
                ]
                assert await first.call() == (REPLY, b"1\0")
            if listener._relays:
                await asyncio.wait(listener._relays)
            async with engine(listener) as third:
                assert await third.call() == (REPLY, b"1\0")

    run(use)


def test_a_close_ends_connections_and_questions() -> None:
    """An engine then opens another one elsewhere. A second close does nothing."""

    async def use() -> None:
        async with metastore(b"1") as behind:
            listener = listener_of(Source(), [behind])
            await listener.close()  # before it began
            await listener.start()
            address = listener.address
            async with engine(listener) as connected:
                await connected.call()
                await listener.close()
                assert await connected.reader.read() == b""
            assert listener._asking is not None
            assert listener._asking.done()
            assert not listener._relays
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)
            await listener.close()

    run(use)


def test_a_metastore_with_tls_is_reached_over_it_and_its_name_is_verified(tmp_path: Path) -> None:
    """What an engine says of itself would be read on the way, or given to whoever listens there."""
    authority = trustme.CA()
    right = write(authority, tmp_path, "right", "127.0.0.1")
    other = write(authority, tmp_path, "other", "metastore.internal")

    def encrypted() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=right.ca)

    async def use() -> None:
        for files, is_reached in ((right, True), (other, False)):
            async with (
                metastore(b"1", files.server()) as behind,
                listening_at(behind, encrypted=encrypted) as listener,
                engine(listener) as connected,
            ):
                kind, told = await connected.call()
                assert (kind == REPLY) is is_reached, told

    run(use)


def test_engines_reach_a_listener_with_a_certificate_over_tls_alone(tmp_path: Path) -> None:
    """Its certificate is shown, and plain bytes are no connection."""
    authority = trustme.CA()
    files = write(authority, tmp_path, "front", "127.0.0.1")
    context = ssl.create_default_context(cafile=files.ca)

    async def use() -> None:
        async with metastore(b"1") as behind, listening_at(behind, certificates=files) as listener:
            async with engine(listener, context) as connected:
                assert await connected.call() == (REPLY, b"1\0")
            async with engine(listener) as plain:
                with pytest.raises((OSError, AssertionError)):
                    await plain.call()

    run(use)
    check_thrift("hive", "0.0.0.0", files, plain=False)
    check_thrift("hive", "127.0.0.1", Certificates(), plain=False)


def test_a_port_that_is_taken_is_told_with_the_setting_that_chose_it() -> None:
    """It said that a file can't be read, and asked whether there is space. Often a metastore has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listener = listener_of(Source(), [], port=port)
        with pytest.raises(ThriftListenError, match=f"cannot listen for engines of hive on 127.0.0.1:{port}") as failed:
            asyncio.run(listener.start())
    assert failed.value.code == "cannot_listen"
    assert "[serve.thrift.hive]" in failed.value.hint


def test_a_plain_listener_beyond_this_machine_is_refused_with_its_own_setting() -> None:
    """There may be several of them."""
    with pytest.raises(PlainListenRefused) as refused:
        check_thrift("sales", "0.0.0.0", Certificates(), plain=False)
    assert "serve.thrift.sales.plain" in (refused.value.hint or "")
    check_thrift("sales", "0.0.0.0", Certificates(), plain=True)


def test_what_stands_against_answers_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that it begins, not every five seconds, and not when it ends."""
    monkeypatch.setattr(listening, "ASK_EVERY_S", 0.0)
    source = Source()

    async def use() -> None:
        listener = listener_of(source, [])
        await listener.start()
        for against in ("a filter", "", "a filter", "a hook"):
            source.against = against
            for _ in range(3):
                source.asked.clear()
                await source.asked.wait()
        await listener.close()

    with capture_logs() as told:
        run(use)
    assert [each["why"] for each in told if each["log_level"] == "warning"] == ["a filter", "a filter", "a hook"]


def test_nothing_is_answered_before_the_metastore_has_said_that_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that starts while the metastore is away knows nothing of its settings."""
    monkeypatch.setattr(listening, "ASK_EVERY_S", 0.0)
    source = Source()
    source.against = ReadError("source_unreachable", "away")

    async def use() -> None:
        listener = listener_of(source, [])
        await listener.start()
        for against in (source.against, ""):
            assert not listener._answers.may_answer
            source.against = against
            for _ in range(3):
                source.asked.clear()
                await source.asked.wait()
        assert listener._answers.may_answer
        await listener.close()

    run(use)
