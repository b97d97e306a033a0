"""A client's change stream where there are several fronts: it goes on at another one, and ends where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from serving.client import AsyncClient, FreshetClient

HOMES = ["http://away", "http://here"]
TOLD = b'{"kind":"watermark","checkpoint":"c1.X"}\n{"kind":"end","checkpoint":"c1.Y"}\n'


class Fronts:
    """The first of two does not answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        """Which one, and from where."""
        self.transport = httpx2.MockTransport(self._answer)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append((request.url.host, request.url.params["from"]))
        assert len(self.asked) < 10, "it does not end"
        if request.url.host == "away":
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, content=TOLD)


def blocking(fronts: Fronts) -> list[str]:
    """The kinds of events that a client is told."""
    with FreshetClient(HOMES, transport=fronts.transport, sleep=lambda _: None) as client:
        return [event.kind for event in client.stream("shop")]


def asynchronous(fronts: Fronts) -> list[str]:
    """As the blocking one."""

    async def at_once(_: float) -> None:
        """No pause."""

    async def told() -> list[str]:
        async with AsyncClient(HOMES, transport=fronts.transport, sleep=at_once) as client:
            return [event.kind async for event in client.stream("shop")]

    return asyncio.run(told())


@pytest.mark.parametrize("told", [blocking, asynchronous])
def test_a_stream_goes_on_at_the_next_front_until_its_end(told: Callable[[Fronts], list[str]]) -> None:
    """The one that does not answer is not tried again and again; what has an end is not asked for once more."""
    fronts = Fronts()
    assert told(fronts) == ["watermark", "end"]
    assert fronts.asked == [("away", "now"), ("here", "now")]
