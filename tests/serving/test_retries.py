"""The client sends a read again when the server says when, a few times, and not beyond its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from serving.client import AsyncClient, FreshetClient
from serving.client.retries import Retries
from serving.client.wire import HttpRequest

REQUEST = HttpRequest("GET", "/v1/rows/shop/t/7", {})


class Clock:
    """Time that only a pause or an answer moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def sleep_awaited(self, seconds: float) -> None:
        self.sleep(seconds)


def server(
    clock: Clock, *answers: tuple[int, str], takes_s: float = 0.0
) -> Callable[[httpx2.Request], httpx2.Response]:
    """A server that answers (status, Retry-After) in order, and the last one again."""
    left = list(answers)

    def answer(_: httpx2.Request) -> httpx2.Response:
        clock.now += takes_s
        status, after = left.pop(0) if len(left) > 1 else left[0]
        return httpx2.Response(status, headers={"retry-after": after} if after else {})

    return answer


def asked(clock: Clock, *answers: tuple[int, str], takes_s: float = 0.0, jitter: float = 0.0, count: int = 2) -> int:
    """The status that both clients end with."""
    retries = Retries(count=count, jitter=lambda: jitter, clock=lambda: clock.now)
    transport = httpx2.MockTransport(server(clock, *answers, takes_s=takes_s))
    client = FreshetClient("http://front", timeout=20, retries=retries, sleep=clock.sleep, transport=transport)
    status, _ = client.send(REQUEST)
    other = Clock()

    async def story() -> int:
        retries = Retries(count=count, jitter=lambda: jitter, clock=lambda: other.now)
        transport = httpx2.MockTransport(server(other, *answers, takes_s=takes_s))
        sleep = other.sleep_awaited
        client = AsyncClient("http://front", timeout=20, retries=retries, sleep=sleep, transport=transport)
        return (await client.send(REQUEST))[0]

    assert asyncio.run(story()) == status
    assert other.pauses == clock.pauses
    return status


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_back_is_asked_again(status: int) -> None:
    """The pause is what Retry-After says, and up to half as much more."""
    clock = Clock()
    assert asked(clock, (status, "1"), (status, "2"), (200, ""), jitter=0.5) == 200
    assert clock.pauses == [1.25, 2.5]


@pytest.mark.parametrize(
    ("answer", "pauses"),
    [
        ((503, "1"), [1.0, 1.0]),
        ((503, ""), []),
        ((503, "soon"), []),
        ((503, "-1"), []),
        ((503, "9" * 5000), [5.0, 5.0]),
        ((500, "1"), []),
        ((409, "1"), []),
        ((200, "1"), []),
    ],
)
def test_retries_are_few_and_only_where_the_server_says_so(answer: tuple[int, str], pauses: list[float]) -> None:
    """The last response is the answer; long pauses are cut, and a wrong header is no pause."""
    clock = Clock()
    assert asked(clock, answer) == answer[0]
    assert clock.pauses == pauses


def test_retries_end_with_the_time_of_the_request() -> None:
    """A reader waits no longer than for one request: no pause begins that would end after it."""
    clock = Clock()
    assert asked(clock, (503, "4"), takes_s=9, count=9) == 503
    assert clock.pauses == [4.0]


def test_retries_can_be_switched_off() -> None:
    """An application with its own policy."""
    clock = Clock()
    assert asked(clock, (503, "1"), count=0) == 503
    assert clock.pauses == []
