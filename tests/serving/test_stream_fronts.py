"""A client's stream goes on at another front, or behind a proxy, when the one that it has fails or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import httpx2
import pytest

from serving.client import AsyncClient, FreshetClient
from serving.client.errors import Unavailable, Unreachable
from serving.client.retries import Retries
from serving.client.streaming import READ_TIMEOUT_S, Following, StreamEvent, stream_request
from serving.client.wire import HttpRequest

MARK = b'{"kind":"watermark","checkpoint":"c1.x"}\n'
END = b'{"kind":"end","checkpoint":"c1.y"}\n'
BUSY = (503, b'{"code":"too_many_streams","message":"m","hint":"h"}')
PROXIES = [(status, b"<html>no upstream</html>") for status in (429, 502, 503, 504)]


@dataclass
class Clock:
    """Time that passes when somebody waits."""

    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        """As `sleep`."""
        self.sleep(seconds)


@dataclass
class Silent(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body of a front whose machine is switched off after the first event: nothing says so but a time-out."""

    clock: Clock

    def __iter__(self) -> Iterator[bytes]:
        yield MARK
        self.clock.sleep(READ_TIMEOUT_S)
        raise httpx2.ReadTimeout("nothing came")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


@dataclass
class Fronts(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """The front ``a`` answers with ``first`` for ever, ``b`` with a stream that ends."""

    first: tuple[int, bytes | Silent]
    clock: Clock = field(default_factory=Clock)
    asked: list[str] = field(default_factory=list)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """One response."""
        self.asked.append(request.url.host)
        status, body = self.first if request.url.host == "a" else (200, END)
        if isinstance(body, Silent):
            return httpx2.Response(status, stream=body)
        return httpx2.Response(status, content=body)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """As `handle_request`."""
        return self.handle_request(request)

    @property
    def retries(self) -> Retries:
        """By this clock."""
        return Retries(clock=lambda: self.clock.now, jitter=lambda: 0.0)

    def streamed(self, urls: list[str], give_up_s: float | None) -> list[str]:
        """The kinds of the events that a blocking client is told."""
        with FreshetClient(urls, retries=self.retries, transport=self, sleep=self.clock.sleep) as client:
            return [event.kind for event in client.stream("shop", give_up_s=give_up_s)]

    async def streamed_async(self, urls: list[str], give_up_s: float | None) -> list[str]:
        """As `streamed`, of an asynchronous client."""
        async with AsyncClient(urls, retries=self.retries, transport=self, sleep=self.clock.sleep_async) as client:
            return [event.kind async for event in client.stream("shop", give_up_s=give_up_s)]


@pytest.mark.parametrize("answer", [BUSY, *PROXIES], ids=lambda each: f"{each[0]} {each[1][:6]!r}")
def test_a_front_that_refuses_leads_to_the_next_one(answer: tuple[int, bytes]) -> None:
    """One front that has all the streams that it may have, or whose proxy finds none, is not all there is."""
    urls = ["http://a", "http://b"]
    blocking, asynchronous = Fronts(answer), Fronts(answer)
    assert blocking.streamed(urls, 60.0) == ["end"]
    assert asyncio.run(asynchronous.streamed_async(urls, 60.0)) == ["end"]
    assert blocking.asked == asynchronous.asked == ["a", "b"]


def test_a_front_that_falls_silent_is_not_the_last_one_that_is_asked() -> None:
    """What it takes to notice is as long as the time after which a stream gives up, which begins then."""
    for is_blocking in (True, False):
        clock = Clock()
        fronts, urls = Fronts((200, Silent(clock)), clock), ["http://a", "http://b"]
        told = fronts.streamed(urls, 60.0) if is_blocking else asyncio.run(fronts.streamed_async(urls, 60.0))
        assert told == ["watermark", "end"]
        assert fronts.asked == ["a", "b"]


def test_all_fronts_are_asked_in_turn() -> None:
    """Whichever is the best: one that refuses is asked again after all others."""
    following = Following(stream_request("shop", "now"), None, lambda: 0.0)
    asked = []
    for _ in range(7):
        asked.append(following.front(["a", "b", "c"]))
        following.pause_after(Unavailable("busy"))
    assert "".join(asked) == "abcabca"
    following.heard(StreamEvent("watermark"))
    assert following.front(["c", "a"]) == "c"


@pytest.mark.parametrize("answer", PROXIES, ids=lambda each: str(each[0]))
def test_a_proxy_without_a_front_is_waited_for(answer: tuple[int, bytes]) -> None:
    """Fronts behind a balancer are replaced one after the other. A request raises what can be tried again."""
    fronts = Fronts(answer)
    with pytest.raises(Exception, match="is not Freshet's") as raised:
        fronts.streamed(["http://a"], 30.0)
    assert type(raised.value).__name__ in ("Unavailable", "TooManyRequests")
    assert fronts.clock.now >= 30.0


@pytest.mark.parametrize("answer", PROXIES[1:], ids=lambda each: str(each[0]))
def test_a_request_goes_to_the_next_home_when_the_first_ones_proxy_has_no_front(answer: tuple[int, bytes]) -> None:
    """A site whose balancer stands and whose fronts don't is away like any front."""
    request = HttpRequest("GET", "/v1/x", {})
    fronts = Fronts(answer)

    async def story() -> int:
        async with AsyncClient(["http://a", "http://b"], transport=fronts) as client:
            return (await client.send(request))[0]

    with FreshetClient(["http://a", "http://b"], transport=fronts) as client:
        assert client.send(request)[0] == 200
    assert asyncio.run(story()) == 200
    assert fronts.asked == ["a", "b"] * 2


def test_what_a_reader_takes_for_an_event_is_no_silence() -> None:
    """A reader that works for minutes on an event goes on after it, though the connection has been closed."""
    now = 0.0
    following = Following(stream_request("shop", "now"), 60.0, lambda: now)
    following.heard(StreamEvent("watermark", "c1.x"))
    now = 600.0
    assert following.pause_after(Unreachable("closed")) > 0
    now = 659.0
    assert following.pause_after(Unreachable("away")) > 0
    now = 661.0
    with pytest.raises(Unreachable, match="away"):
        following.pause_after(Unreachable("away"))


def test_a_heartbeat_is_waited_for() -> None:
    """A front sends it after its time, not before: a quiet keyspace is no dead connection."""
    for heartbeat_ms in (None, 60_000):
        following = Following(stream_request("shop", "now", heartbeat_ms=heartbeat_ms), 60.0)
        assert following.read_timeout_s >= 30 + (heartbeat_ms or 0) / 1000
