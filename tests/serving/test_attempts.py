"""How long a client waits for each front, and which it asks once more: a dead one fails no request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx2
import pytest

from serving.client import AsyncClient, FreshetClient, Unreachable
from serving.client.routing.attempts import PATIENCE_S, attempts
from serving.client.sending.requests import options
from serving.client.wire import HttpRequest, row_request, rows_request
from tests.serving.scripted_front import row, vector

REQUEST = HttpRequest("GET", "/v1/rows/shop/items/1", {})
BOTH = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


class Fronts:
    """Fronts that need ``takes_s`` for an answer. ``off``: to which no connection comes; ``silent``: a connection of
    before is still open there; ``crowded``: how many requests find no free connection in the client, before others;
    ``cuts``: what the next ones meet; ``asked``: name and time of each request."""

    def __init__(self, takes_s: float = 0.0, off: Sequence[str] = (), silent: Sequence[str] = ()) -> None:
        self.takes_s, self.off, self.silent = takes_s, off, silent
        self.crowded = 0
        self.cuts: list[httpx2.HTTPError] = []
        self.asked: list[tuple[str, float]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        name, time_s = request.url.host, request.extensions["timeout"]["read"]
        self.asked.append((name, time_s))
        if self.cuts:
            raise self.cuts.pop()
        if self.crowded:
            self.crowded -= 1
            raise httpx2.PoolTimeout("")
        if request.url.path == "/v1/stream":
            return httpx2.Response(200, content=b'{"kind":"end","checkpoint":"c1.X"}\n')
        if name in self.off:
            raise httpx2.ConnectTimeout("no answer")
        if name in self.silent or time_s < self.takes_s:
            raise httpx2.ReadTimeout("slow")
        status, body = row(vector(shop="1 0-1-5"))
        return httpx2.Response(status, content=body)


def send(kind: str, fronts: Fronts, names: Sequence[str], request: HttpRequest = REQUEST) -> int:
    """The status of a request of a new client that knows these fronts."""
    homes, transport = [f"http://{name}" for name in names], httpx2.MockTransport(fronts)
    if kind == "blocking":
        with FreshetClient(homes, transport=transport) as client:
            return client.send(request)[0]

    async def story() -> int:
        async with AsyncClient(homes, transport=transport) as client:
            return (await client.send(request))[0]

    return asyncio.run(story())


@BOTH
@pytest.mark.parametrize("names", [["dead", "alive"], ["alive", "dead"], ["dead", "alive", "other"]])
def test_a_slow_answer_comes_from_a_front_that_lives_whatever_host_is_off(kind: str, names: list[str]) -> None:
    """No connection comes to it, so it is not taken for a busy one, which would be given all the time that is left."""
    fronts = Fronts(takes_s=5, off=["dead"])
    assert send(kind, fronts, names) == 200
    assert [name for name, _ in fronts.asked].count("dead") == 1


@BOTH
def test_of_two_slow_fronts_the_one_that_was_asked_last_is_waited_for(kind: str) -> None:
    """The best one may be off, and its connection of before still open; those that were away lately go last."""
    fronts = Fronts(takes_s=5, silent=["dead"])
    assert send(kind, fronts, ["dead", "alive"]) == 200
    assert [name for name, _ in fronts.asked] == ["dead", "alive", "alive"]


@pytest.mark.parametrize(
    "request_",
    [
        row_request("shop", "items", (1,), {"max_wait_ms": "2000"}),
        rows_request("shop", [("items", (1,))], {"max_wait_ms": 2_000}),
    ],
    ids=["row", "batch"],
)
def test_a_front_has_the_time_that_the_request_lets_it_wait(request_: HttpRequest) -> None:
    """Of a batch the wait stands in the body: else a front that waits as it may would be passed over."""
    [first, last] = attempts(["http://one", "http://other"], request_, 35)
    assert (first.timeout_s, last.timeout_s) == (PATIENCE_S + 2, 35)


def test_a_request_that_says_no_wait_has_the_patience_alone() -> None:
    """The front's own default is less."""
    [first, _] = attempts(["http://one", "http://other"], rows_request("shop", [("items", (1,))], {}), 35)
    assert first.timeout_s == PATIENCE_S


def test_any_number_of_streams_leaves_connections_for_reads() -> None:
    """Each holds one while it lasts: with a limit, a read beside them would wait for one in vain."""
    assert options(35, None)["limits"].max_connections is None


@BOTH
def test_a_front_that_was_not_asked_for_want_of_a_connection_is_not_away(kind: str) -> None:
    """The client's transport has a limit: reads, streams and the router's questions go to the best front as before."""
    fronts = Fronts()
    homes, transport = ["http://one", "http://other"], httpx2.MockTransport(fronts)

    def blocking() -> None:
        with FreshetClient(homes, transport=transport, sleep=lambda _: None, route=True) as client:
            fronts.crowded = 1
            client.get_row("shop", "items", 1)
            for _ in range(2):
                fronts.crowded = 1
                client.send(REQUEST)
                fronts.crowded = 1
                assert [event.kind for event in client.stream("shop")] == ["end"]

    async def asynchronous() -> None:
        async with AsyncClient(homes, transport=transport, sleep=lambda _: asyncio.sleep(0), route=True) as client:
            fronts.crowded = 1
            await client.get_row("shop", "items", 1)
            for _ in range(2):
                fronts.crowded = 1
                await client.send(REQUEST)
                fronts.crowded = 1
                assert [event.kind async for event in client.stream("shop")] == ["end"]

    if kind == "blocking":
        blocking()
    else:
        asyncio.run(asynchronous())
    asked = [name for name, _ in fronts.asked]
    assert asked == [*["one"] * 3, *["one", "other", "one", "one"] * 2]


@BOTH
@pytest.mark.parametrize("cut", [httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError])
def test_a_connection_that_ends_under_a_request_is_not_the_fronts_end(kind: str, cut: type[httpx2.HTTPError]) -> None:
    """It was kept, and the front closed it as the request was on its way. One that ends each of them is away."""
    fronts = Fronts()
    fronts.cuts = [cut("")]
    assert send(kind, fronts, ["one", "other"]) == 200
    assert [name for name, _ in fronts.asked] == ["one", "one"]
    fronts.cuts = [cut("")] * 2
    assert send(kind, fronts, ["one", "other"]) == 200
    assert [name for name, _ in fronts.asked][2:] == ["one", "one", "other"]


def test_a_request_that_finds_no_free_connection_says_so() -> None:
    """It is not the front's silence."""
    fronts = Fronts()
    fronts.crowded = 1
    with pytest.raises(Unreachable, match="no connection to http://one is free"):
        send("blocking", fronts, ["one"])
