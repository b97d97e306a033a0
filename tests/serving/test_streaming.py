"""Responses without an end give back what they hold, however their reader leaves; and clients that connect again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, cast
from urllib.parse import urlencode

import httpx2
import pytest
from starlette.types import Message

from serving.client import (
    AsyncClient,
    BadRequest,
    FreshetClient,
    ServerError,
    StreamEnded,
    StreamEvent,
    Unauthorized,
    Unreachable,
)
from serving.client.sending.credentials import RENEWALS_MAX, Bearer
from serving.client.streaming import WARN_S, Following, Lines, stream_request
from serving.client.wire import description_request
from serving.errors import ReadError
from serving.http.front import Front
from serving.http.route import parameters_of
from serving.http.streaming.parameters import StreamParameters, choice_of
from serving.http.streaming.sending import Streaming
from serving.reads.spaces import RowSpace
from serving.streams.choice import Choice


class Reader:
    """An ASGI connection. ``leaves_after``: messages; ``takes``: so many of them are read, and nothing after."""

    def __init__(self, *, leaves_after: int, takes: int = 99) -> None:
        self.sent: list[Message] = []
        self.closed = 0
        self._takes = takes
        self._leaves_after = leaves_after
        self._left = asyncio.Event()
        if not leaves_after:
            self._left.set()

    async def receive(self) -> Message:
        """Only that it has left."""
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Takes a message."""
        self.sent.append(message)
        if len(self.sent) > self._takes:
            await asyncio.Event().wait()
        if len(self.sent) >= self._leaves_after:
            self._left.set()
            await asyncio.sleep(0)

    def leave(self) -> None:
        """Closes the connection."""
        self._left.set()

    async def close(self) -> None:
        """What the response holds is given back."""
        self.closed += 1


async def _endless() -> AsyncGenerator[bytes]:
    while True:
        yield b"x"
        await asyncio.sleep(0)


@pytest.mark.parametrize("leaves_after", [0, 1, 2, 5])
def test_a_reader_that_leaves_at_any_time_holds_nothing(leaves_after: int) -> None:
    """Also before the first event: otherwise such readers would use up the streams of a front."""

    async def story() -> Reader:
        reader = Reader(leaves_after=leaves_after)
        await asyncio.wait_for(Streaming(b"t", _endless(), reader.close).send(reader.receive, reader.send), 20)
        return reader

    assert asyncio.run(story()).closed == 1


def test_a_reader_that_leaves_while_nothing_changes_holds_nothing() -> None:
    """The next event is being waited for then, perhaps by a reader of Kafka: that has to end first."""
    ended: list[str] = []

    async def story() -> Reader:
        reader, is_quiet = Reader(leaves_after=99), asyncio.Event()

        async def events() -> AsyncGenerator[bytes]:
            try:
                yield b"x"
                is_quiet.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("events")

        sending = asyncio.create_task(Streaming(b"t", events(), reader.close).send(reader.receive, reader.send))
        await is_quiet.wait()
        reader.leave()
        await sending
        ended.append("response")
        return reader

    assert asyncio.run(asyncio.wait_for(story(), 20)).closed == 1
    assert ended == ["events", "response"]


async def _one() -> AsyncGenerator[bytes]:
    yield b"x"


@pytest.mark.parametrize(("chunks", "takes"), [(_endless, 0), (_endless, 1), (_one, 2)], ids=["head", "piece", "end"])
def test_a_reader_that_takes_nothing_is_given_up(chunks: Callable[[], AsyncGenerator[bytes]], takes: int) -> None:
    """After a while its place is free again, whatever it leaves: the head, a piece, or what is before the end."""

    async def story() -> Reader:
        reader = Reader(leaves_after=99, takes=takes)
        streaming = Streaming(b"t", chunks(), reader.close, stall_s=0.05)
        await asyncio.wait_for(streaming.send(reader.receive, reader.send), 20)
        return reader

    assert asyncio.run(story()).closed == 1


def test_head_of_a_stream_ends() -> None:
    """It says how the stream would begin, and has no body."""

    async def story() -> Reader:
        reader = Reader(leaves_after=99)
        streaming = Streaming(b"t", _endless(), reader.close)
        await asyncio.wait_for(streaming.send(reader.receive, reader.send, head_only=True), 20)
        return reader

    reader = asyncio.run(story())
    assert [message.get("body", b"") for message in reader.sent] == [b"", b""]
    assert reader.closed == 1


def test_lines_are_put_together_from_any_pieces() -> None:
    """A text may hold Unicode's line ends, and a piece may end in the middle of a character."""
    line = '{"kind":"unreadable","reason":"a\u2028b\u0085cü"}\n'.encode()
    for size in (1, 2, 7, len(line)):
        lines, found = Lines(), list[StreamEvent]()
        for at in range(0, 2 * len(line), size):
            found += lines.events((line * 2)[at : at + size])
        assert [event.reason for event in found] == ["a\u2028b\u0085cü"] * 2
    with pytest.raises(ServerError):
        list(Lines().events(b"<html>\n"))
    with pytest.raises(StreamEnded) as ended:
        list(Lines().events(b'{"kind":"error","code":"stream_too_old","message":"m","hint":"h"}\n'))
    assert ended.value.code == "stream_too_old"


def test_a_long_line_is_put_together_in_linear_time() -> None:
    """A large transaction is one line: whoever takes minutes for it is given up by the front, and meets it again."""
    lines, pieces = Lines(), [b'{"kind":"unreadable","reason":"', *[b"x" * 4096] * 2048, b'"}\n{"kind":"end"', b"}\n"]
    started = time.process_time()
    found = [event for piece in pieces for event in lines.events(piece)]
    assert time.process_time() - started < 2.0
    assert [(event.kind, len(event.reason)) for event in found] == [("unreadable", 8 * 2**20), ("end", 0)]


def test_a_client_goes_on_from_its_last_checkpoint_until_it_gives_up() -> None:
    """What passes is tried again, with growing pauses that end; what does not pass is raised at once."""
    now = 0.0
    following = Following(stream_request("shop", "now", tables=["a", "b"]), 10.0, lambda: now)
    following.heard(StreamEvent("watermark", "c1.X"))
    assert following.request.params == {"keyspace": "shop", "from": "c1.X", "tables": "a,b"}
    away = Unreachable("away")
    pauses = [following.pause_after(away) for _ in range(2_000)]
    assert 0 < pauses[0] < 0.11
    assert 2.5 <= pauses[-1] <= 5
    assert following.pause_after(StreamEnded("m", code="stopping")) > 0
    with pytest.raises(StreamEnded):
        following.pause_after(StreamEnded("m", code="checkpoint_lost"))
    now = 10.0
    with pytest.raises(Unreachable):
        following.pause_after(away)
    following.heard(StreamEvent("watermark"))
    assert following.pause_after(away) > 0


def test_a_stream_that_no_front_answers_says_so_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """One that never gives up would else look like one to which nothing happens."""
    now = 0.0
    following = Following(stream_request("shop", "now"), None, lambda: now)
    for reason in ("away", "away again"):
        caplog.clear()
        for _ in range(100):
            now += WARN_S / 40
            following.pause_after(Unreachable(reason))
        assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
            ("WARNING", f"no events of shop for 10 s, trying again: {reason}")
        ]
        following.heard(StreamEvent("watermark"))


class RefusingFront:
    """Answers one stream that has the token ``t1``, and refuses all others."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._given = (f"t{number}" for number in range(100))

    def token(self) -> str:
        """Another one each time."""
        return next(self._given)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """One response."""
        self.sent.append(request.headers["authorization"])
        if self.sent[1:] == ["Bearer t1"]:
            return httpx2.Response(200, content=b'{"kind":"watermark","checkpoint":"c1.X"}\n')
        return httpx2.Response(401, content=b'{"code":"unauthorized","message":"m","hint":"h"}')


ASKED = [f"Bearer t{number}" for number in (0, 1, 1, 2, 3, 4)]
"""Refused, heard, refused, and refused with three more."""


def test_a_refused_stream_asks_for_its_token_anew_a_few_times_until_it_hears_something() -> None:
    """A function that always has another token can't keep a stream that is refused asking for ever."""
    front = RefusingFront()
    transport = httpx2.MockTransport(front.answer)
    client = FreshetClient("http://front", front.token, transport=transport, sleep=lambda _: None)
    with client, pytest.raises(Unauthorized):
        list(client.stream("shop"))
    assert front.sent == ASKED


def test_a_refused_asynchronous_stream_asks_for_its_token_anew_a_few_times() -> None:
    """As the blocking one."""
    front = RefusingFront()

    async def story() -> None:
        transport = httpx2.MockTransport(front.answer)
        async with AsyncClient("http://front", front.token, transport=transport, sleep=asyncio.sleep) as client:
            async for event in client.stream("shop"):
                assert event.checkpoint == "c1.X"

    with pytest.raises(Unauthorized):
        asyncio.run(asyncio.wait_for(story(), 30))
    assert front.sent == ASKED


@pytest.mark.parametrize(("taken", "asked", "status"), [("t1", 2, 404), ("none", 1 + RENEWALS_MAX, 401)])
def test_a_refused_asynchronous_request_asks_for_its_token_anew_a_few_times(
    taken: str, asked: int, status: int
) -> None:
    """Tokens in files are replaced while clients run. A function may have another one each time, and none be taken."""
    given, sent = iter(f"t{number}" for number in range(9)), list[str]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers["authorization"])
        return httpx2.Response(404 if sent[-1] == f"Bearer {taken}" else 401, content=b'{"code":"unknown_table"}')

    async def story() -> None:
        transport = httpx2.MockTransport(answer)
        async with AsyncClient("http://front", lambda: next(given), transport=transport, sleep=asyncio.sleep) as client:
            assert (await client.send(description_request("shop", "none")))[0] == status

    asyncio.run(asyncio.wait_for(story(), 30))
    assert sent == [f"Bearer t{number}" for number in range(asked)]


def test_the_history_of_a_row_with_an_empty_key_is_not_that_of_all_rows() -> None:
    """The key of a row may be an empty text: it is sent, and the front tells it from none."""

    def chosen(key: list[object] | None) -> Coroutine[Any, Any, Choice]:
        query = urlencode(stream_request("shop", "now", key=key).params).encode()
        return choice_of(cast(Front, None), cast(RowSpace, None), parameters_of(StreamParameters, {}, query))

    assert asyncio.run(chosen(None)).key is None
    for key in ([""], [b""], ["", ""], [7]):
        with pytest.raises(ReadError, match="a key is named, but 0 tables"):
            asyncio.run(chosen(list(key)))
    with pytest.raises(BadRequest, match="no columns"):
        stream_request("shop", "now", key=[])


def test_a_name_with_a_comma_is_refused_by_the_client() -> None:
    """The list in the URL would name other tables."""
    with pytest.raises(BadRequest):
        stream_request("shop", "now", tables=["a,b"])


def test_a_token_that_another_thread_has_read_anew_meanwhile_is_tried() -> None:
    """What was refused is compared, not what was read last: else one of two requests would fail."""
    secrets = ["old", "new", "new", "new"]
    bearer = Bearer(lambda: secrets.pop(0))
    refused = bearer.headers()
    assert [bearer.renew(refused), bearer.renew(refused)] == [True, True]
    assert not bearer.renew(bearer.headers())
