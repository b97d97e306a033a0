"""A client's change stream where there are several fronts: it goes on at another one, ends where it is told to, and
gives up where it is told nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from serving.client import AsyncClient, FreshetClient, Unreachable
from serving.client.retries import Retries

HOMES = ["http://away", "http://here"]
TOLD = b'{"kind":"watermark","checkpoint":"c1.X"}\n{"kind":"end","checkpoint":"c1.Y"}\n'
GIVE_UP_S = 7.0


class Fronts:
    """The first of two does not answer. Time passes while their client waits."""

    def __init__(self, told: bytes = TOLD) -> None:
        self.told, self.now = told, 100.0
        self.asked: list[tuple[str, str]] = []
        """Which one, and from where."""
        self.transport = httpx2.MockTransport(self._answer)
        self.retries = Retries(clock=lambda: self.now, jitter=lambda: 1.0)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append((request.url.host, request.url.params["from"]))
        assert len(self.asked) < 100, "it does not end"
        if request.url.host == "away":
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, content=self.told)

    def pause(self, pause_s: float) -> None:
        """The client waits."""
        self.now += pause_s

    async def pause_beside(self, pause_s: float) -> None:
        """As of a client that lets others run."""
        self.pause(pause_s)


def blocking(fronts: Fronts) -> list[str]:
    """The kinds of events that a client is told."""
    with FreshetClient(HOMES, retries=fronts.retries, transport=fronts.transport, sleep=fronts.pause) as client:
        return [event.kind for event in client.stream("shop", give_up_s=GIVE_UP_S)]


def asynchronous(fronts: Fronts) -> list[str]:
    """As the blocking one."""

    async def told() -> list[str]:
        client = AsyncClient(HOMES, retries=fronts.retries, transport=fronts.transport, sleep=fronts.pause_beside)
        async with client:
            return [event.kind async for event in client.stream("shop", give_up_s=GIVE_UP_S)]

    return asyncio.run(told())


both = pytest.mark.parametrize("told", [blocking, asynchronous])


@both
def test_a_stream_goes_on_at_the_next_front_until_its_end(told: Callable[[Fronts], list[str]]) -> None:
    """The one that does not answer is not tried again and again; what has an end is not asked for once more."""
    fronts = Fronts()
    assert told(fronts) == ["watermark", "end"]
    assert fronts.asked == [("away", "now"), ("here", "now")]


@both
def test_a_stream_that_ends_at_once_each_time_is_given_up(told: Callable[[Fronts], list[str]]) -> None:
    """A proxy may answer so while no front does: a log that has an end would wait for ever."""
    fronts = Fronts(b"")
    with pytest.raises(Unreachable, match="no events of shop for"):
        told(fronts)
    assert GIVE_UP_S <= fronts.now - 100.0 < GIVE_UP_S + 10
