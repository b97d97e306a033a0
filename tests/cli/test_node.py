"""A front and a consumer in one process: whichever ends, the other one ends too, and in order."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import trustme

from freshet.signals import SIGNALS
from freshet.together.node import run_node, url_of
from serving.http.front import make_front
from serving.http.server import FrontServer, make_server
from serving.locations.refreshing import Locations
from stream.access.certificates import Certificates
from tests.access.certifying import write
from tokens.errors import FreshetError

WAIT_S = 20.0
"""Nothing here waits for anything but this process."""


class Server:
    """A front that serves until it is told to end, or until ``ends``."""

    address, scheme = ("127.0.0.1", 8480), "http"

    def __init__(self, said: list[str], *, ends: bool = False, is_taken: bool = False) -> None:
        self._said, self._ends, self._is_taken = said, ends, is_taken
        self.should_exit, self.catches_signals = False, True
        self.listens: Callable[[str], None] = said.append

    async def serve(self) -> None:
        if self._is_taken:
            raise FreshetError("the port is taken")
        assert not self.catches_signals
        self.listens("listens")
        while not (self.should_exit or (self._ends and "folds" in self._said)):  # noqa: ASYNC110 - as uvicorn does
            await asyncio.sleep(0)
        self._said.append("served")


class Consumer:
    """A consumer that folds until it is stopped, or until it fails; or that does not start."""

    metrics_address = ""

    def __init__(self, said: list[str], *, fails: bool = False, starts: bool = True) -> None:
        self._said, self._fails, self._starts = said, fails, starts
        self.folding: Future[None] = Future()

    async def start(self) -> str:
        if not self._starts:
            raise FreshetError("its disk is full")
        self._said.append("folds")
        if self._fails:
            self.folding.set_exception(FreshetError("its store is damaged"))
        return "127.0.0.1:1"

    async def stop(self) -> None:
        self._said.append("stops")
        if not self.folding.done():
            self.folding.set_result(None)
        self.folding.result()


def ran(server: Server, consumer: Consumer) -> None:
    """Runs both to their end."""
    beside: Any = consumer
    front: Any = server

    def made(url: str) -> Any:
        assert url == "http://127.0.0.1:8480"
        assert threading.current_thread() is not threading.main_thread()  # its source may not answer: the front does
        return beside

    async def both() -> None:
        in_time = asyncio.timeout(WAIT_S)
        try:
            async with in_time:
                await run_node(front, made)
        finally:
            assert not in_time.expired(), "it waits on"  # what ended then, and why, is the test's own doing

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        asyncio.run(both())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_front_that_ends_takes_the_consumer_with_it() -> None:
    """Else a node would fold on, and nobody could ask it."""
    said: list[str] = []
    ran(Server(said, ends=True), Consumer(said))
    assert said == ["listens", "folds", "served", "stops"]


def test_a_signal_ends_the_consumer_first() -> None:
    """The front still answers while it commits and leaves the group."""
    said: list[str] = []

    class Told(Consumer):
        async def start(self) -> str:
            signal.raise_signal(signal.SIGTERM)
            return await super().start()

    ran(Server(said), Told(said))
    assert said == ["listens", "folds", "stops", "served"]


@pytest.mark.parametrize(
    ("more", "steps"),
    [({"fails": True}, ["listens", "folds", "stops", "served"]), ({"starts": False}, ["listens", "served"])],
)
def test_a_consumer_that_can_not_go_on_ends_the_front_and_says_why(more: dict[str, bool], steps: list[str]) -> None:
    """At its start, or later."""
    said: list[str] = []
    with pytest.raises(FreshetError, match="its "):
        ran(Server(said), Consumer(said, **more))
    assert said == steps


def test_a_front_that_can_not_listen_starts_no_consumer() -> None:
    """Its address would be announced with the stores."""
    said: list[str] = []
    with pytest.raises(FreshetError, match="the port is taken"):
        ran(Server(said, is_taken=True), Consumer(said))
    assert said == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_url_of_a_front_with_tls_says_so(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is announced: a client would show its token to the port of TLS in plain, or not go there at all."""
    files = write(trustme.CA(), tmp_path, "front", "127.0.0.1") if scheme == "https" else Certificates()
    monkeypatch.setattr(FrontServer, "address", ("127.0.0.1", 8480))
    assert url_of(make_server(make_front([], Locations()), "127.0.0.1", 0, files)) == f"{scheme}://127.0.0.1:8480"
