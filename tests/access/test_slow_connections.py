"""Connections that say too little, too slowly, or in another protocol, at a real listener with a shortened time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from serving.http.connection import BoundedConnection, FrontConfig, open_connection
from serving.http.front import make_front
from serving.http.limits import HEAD_BYTES_MAX, HEAD_TIMEOUT_S, KEEP_ALIVE_S, PIPELINED_MAX
from serving.http.server import make_server
from serving.locations.refreshing import Locations
from stream.access.certificates import Certificates
from tests.access.certifying import write
from tests.patience import PATIENCE_S

SHORT_S = 0.2
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of TLS."""


def at_a_front(
    files: Certificates | None,
    use: Callable[[int], Awaitable[None]],
    head_timeout_s: float,
    keep_alive_s: Any = KEEP_ALIVE_S,  # uvicorn says whole seconds, and takes any
) -> None:
    """Runs ``use`` beside a front at a port; afterwards no connection has a place."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        config = make_server(make_front([], Locations()), "127.0.0.1", 0, files).config
        assert isinstance(config, FrontConfig)
        config.head_timeout_s, config.timeout_keep_alive = head_timeout_s, keep_alive_s
        config.load()
        state = {"server_state": ServerState(), "app_state": {}, "_loop": loop}
        server = await loop.create_server(lambda: open_connection(config, **state), "127.0.0.1", 0)
        async with asyncio.timeout(PATIENCE_S):
            await use(server.sockets[0].getsockname()[1])
            while config.connections is None or config.connections._all:  # noqa: ASYNC110 - nothing tells when it is 0
                await asyncio.sleep(0.01)
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def said(port: int, *pieces: bytes, every_s: float = 0.0) -> bytes:
    """All that a front answers to these pieces, until it ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(_all_of(reader))
    for piece in pieces:
        if answer.done():
            break
        writer.write(piece)
        await asyncio.wait([answer], timeout=every_s)
    found = await answer
    writer.close()
    return found


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Certificates | None:
    """Of a front with TLS, and of one without."""
    return write(trustme.CA(), tmp_path, "server", "127.0.0.1") if request.param else None


@pytest.mark.parametrize("begun", [b"", HELLO, HEALTH[:20]], ids=["nothing", "half a hello", "half a head"])
def test_what_is_only_begun_ends_in_time(files: Certificates | None, begun: bytes) -> None:
    """A connection without a whole handshake or head has no place for longer than its time."""

    async def use(port: int) -> None:
        answer = await said(port, begun)
        assert files is None or b"HTTP" not in answer
        assert files is not None or begun == HELLO or b'"request_timeout"' in answer

    at_a_front(files, use, SHORT_S)


def test_a_byte_now_and_then_does_not_lengthen_the_time() -> None:
    """Of a head, which would last for ever otherwise."""

    async def use(port: int) -> None:
        pieces = [HEALTH[:24], *[b"a"] * 10_000]
        found = await said(port, *pieces, every_s=SHORT_S / 10)
        assert not found or b'"request_timeout"' in found  # lost where a byte came after it

    at_a_front(None, use, SHORT_S)


def test_requests_sent_at_once_are_few() -> None:
    """One read of a socket holds ten thousand: parsing and keeping them would be at the cost of others."""
    one = HEALTH.replace(b"Connection: close\r\n", b"")

    async def use(port: int) -> None:
        found = await said(port, one * PIPELINED_MAX + HEALTH)
        assert found.count(b" 200 ") == 1 + PIPELINED_MAX
        found = await said(port, one * 10_000)  # the refusal may be lost: the front reads no more of what was sent
        assert found.count(b" 200 ") <= 1 + PIPELINED_MAX
        assert b" 200 " in await said(port, HEALTH)

    at_a_front(None, use, HEAD_TIMEOUT_S)


def test_tls_at_a_plain_front_is_refused_at_once() -> None:
    """A client that expects TLS is told so by its own library; the next connection is answered."""

    async def use(port: int) -> None:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
        assert b'"bad_request"' in await said(port, HELLO + bytes(500))
        assert b" 200 " in await said(port, HEALTH)

    at_a_front(None, use, HEAD_TIMEOUT_S)


def test_plain_http_at_the_tls_port_gets_not_a_byte_of_http(tmp_path: Path) -> None:
    """And ends at once: a client that forgot TLS is not kept waiting. One with TLS is answered after it."""
    files = write(trustme.CA(), tmp_path, "server", "127.0.0.1")
    trusted = ssl.create_default_context(cafile=files.ca)

    def ask() -> bytes:
        with (
            socket.create_connection(("127.0.0.1", ports[0]), PATIENCE_S) as plain,
            trusted.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall(HEALTH)
            return b"".join(iter(lambda: secured.recv(65_536), b""))

    ports: list[int] = []

    async def use(port: int) -> None:
        ports.append(port)
        assert b"HTTP" not in await said(port, HEALTH)
        assert b" 200 " in await asyncio.to_thread(ask)

    at_a_front(files, use, HEAD_TIMEOUT_S)


def test_each_request_hears_that_its_reader_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn tells the last one of a connection alone: those before it would wait for what it sends, for ever."""
    monkeypatch.setattr(HttpToolsProtocol, "connection_lost", lambda *_: None)
    first, second, answered = (
        SimpleNamespace(response_complete=is_done, disconnected=False, message_event=asyncio.Event())
        for is_done in (False, False, True)
    )
    connection: Any = BoundedConnection.__new__(BoundedConnection)
    connection._address, connection._cycles = None, [first, second, answered]
    connection.connection_lost(None)
    heard = [(each.disconnected, each.message_event.is_set()) for each in (first, second, answered)]
    assert heard == [(True, True), (True, True), (False, False)]


def test_a_request_that_is_answered_is_kept_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its head and body: a connection that asks for days would hold all that it has ever asked."""

    def begun(connection: Any) -> None:
        connection.cycle = SimpleNamespace(response_complete=False)

    monkeypatch.setattr(HttpToolsProtocol, "on_headers_complete", begun)
    connection: Any = BoundedConnection.__new__(BoundedConnection)
    connection.cycle, connection._cycles, connection._heads = None, [], 0
    kept = []
    for is_answered in (True, True, False, False, True):
        connection.on_headers_complete()
        kept.append(len(connection._cycles))
        connection.cycle.response_complete = is_answered
    assert kept == [1, 1, 1, 2, 3]


def test_a_head_that_comes_in_small_pieces_is_as_large_as_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is whole they are held: whoever sends them fast would fill the memory long before its time is over."""
    refused: list[str] = []
    monkeypatch.setattr(HttpToolsProtocol, "data_received", lambda *_: None)
    connection: Any = BoundedConnection.__new__(BoundedConnection)
    connection.transport, connection._held = SimpleNamespace(is_closing=lambda: bool(refused)), 0
    connection.timeout_keep_alive_task = None
    monkeypatch.setattr(connection, "_refuse", lambda code, _: refused.append(code))
    for _ in range(HEAD_BYTES_MAX // 1_000):
        connection.data_received(b"a" * 1_000)
    assert refused == []
    for _ in range(2):
        connection.data_received(b"a" * 1_000)
    assert refused == ["head_too_large"]


@pytest.mark.parametrize(
    ("left", "looks"), [([9, 9], 1), ([9, 5, 1, 1], 3), ([0, 0], 1)], ids=["nothing", "some", "unknown"]
)
def test_a_reader_that_takes_none_of_what_is_left_is_not_waited_for(left: list[int], looks: int) -> None:
    """Its connection is closed, and waits for it to read. While it does, however slowly, its answer is not cut off."""
    told: list[str] = []
    sizes = iter(left)
    transport = SimpleNamespace(
        is_closing=lambda: True, abort=lambda: told.append("aborted"), get_write_buffer_size=lambda: next(sizes)
    )
    connection = watched(transport, told)
    for _ in left:
        connection._watch()
    assert told == [*["looked at again"] * looks, "aborted"]


@pytest.mark.parametrize(("left", "is_ended"), [(9, True), (8, False)], ids=["nothing", "some"])
def test_a_kept_connection_that_is_refused_is_given_up_at_the_next_look(left: int, is_ended: bool) -> None:
    """Its answer has lain there since it was refused: the reader that has taken none of it gets no third look."""
    told: list[str] = []
    sizes, closing = iter([9, left]), [False, True]
    transport = SimpleNamespace(
        is_closing=lambda: closing.pop(0), abort=lambda: told.append("aborted"), get_write_buffer_size=sizes.__next__
    )
    connection = watched(transport, told)
    connection._heads_seen, connection.cycle, connection._refuse = 2, None, lambda *_: told.append("refused")
    connection._watch()
    connection._watch()
    assert told == ["refused", "looked at again", "aborted" if is_ended else "looked at again"]


def test_a_connection_with_a_request_under_way_goes_on() -> None:
    """What it asked last came since the last look."""
    told: list[str] = []
    watched(SimpleNamespace(is_closing=lambda: False), told)._watch()
    assert told == ["looked at again"]


def watched(transport: object, told: list[str]) -> Any:
    """A connection that has had a request; ``told``: when it will be looked at again."""
    connection: Any = BoundedConnection.__new__(BoundedConnection)
    connection._is_lost, connection._heads, connection._heads_seen, connection._left = False, 2, 1, None
    connection.transport, connection.timeout_keep_alive_task = transport, None
    connection.loop = SimpleNamespace(call_later=lambda *_: told.append("looked at again"))
    connection.config = SimpleNamespace(head_timeout_s=SHORT_S)
    return connection


def test_the_time_for_a_head_begins_with_its_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when its connection was last looked at: a head in two pieces around a look would be refused at once."""
    told: list[str] = []

    def received(connection: Any, _: bytes) -> None:
        connection.timeout_keep_alive_task = None  # as uvicorn does

    monkeypatch.setattr(HttpToolsProtocol, "data_received", received)
    connection = watched(SimpleNamespace(is_closing=lambda: False, get_write_buffer_size=lambda: 0), told)
    monkeypatch.setattr(connection, "_refuse", lambda *_: told.append("refused"))
    connection._held, connection._heads_seen = 0, connection._heads
    connection.cycle, connection.timeout_keep_alive_task = SimpleNamespace(response_complete=True), object()
    connection.data_received(b"GET ")
    connection._watch()
    assert told == ["looked at again"]
    connection.data_received(b"/")
    connection._watch()
    assert told[1:] == ["refused", "looked at again"]


def test_a_connection_that_was_answered_and_says_no_more_ends_in_time() -> None:
    """Else whoever asks once holds its place for ever. It ends without a word: nothing was asked."""

    async def use(port: int) -> None:
        answer = await said(port, HEALTH.replace(b"Connection: close\r\n", b""))
        assert answer.endswith(b'{"status":"ok"}')

    at_a_front(None, use, SHORT_S, keep_alive_s=3 * SHORT_S)


def test_a_connection_is_kept_for_longer_than_those_who_use_it_keep_it() -> None:
    """Who sends a request on one that is just being closed takes the front for dead: httpx keeps one for 5 s."""

    async def use(port: int) -> None:
        assert make_server(make_front([], Locations()), "127.0.0.1", 0).config.timeout_keep_alive > 60
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(HEALTH.replace(b"Connection: close\r\n", b""))
            await reader.readuntil(b'{"status":"ok"}')
            with pytest.raises(TimeoutError):  # of three looks at the connection none ends it
                await asyncio.wait_for(reader.read(1), 3 * SHORT_S)
        writer.write(HEALTH[:20])
        assert b'"request_timeout"' in await reader.read()
        writer.close()

    at_a_front(None, use, SHORT_S)
