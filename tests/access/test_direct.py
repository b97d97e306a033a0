"""What is on this machine is asked without the proxies that the environment names (``http_proxy``)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.process.loop import ConsumptionSettings
from consumers.process.run import OwnerSettings
from consumers.workers import Worker, _scrape
from freshet.together.watching import Watch
from serving.changelog.registry import SchemaRegistry
from serving.client import AsyncClient, FreshetClient
from serving.client.wire import HttpRequest
from stream.kafka.connection import KafkaCluster
from stream.sources.debezium.connector import KafkaConnect, asked
from stream.sources.debezium.errors import ConnectUnreachable

STATUS: Final = HttpRequest("GET", "/v1/status", {})


class Told(BaseHTTPRequestHandler):
    """Notes what it is asked for. As a proxy it refuses all."""

    def do_GET(self) -> None:
        """Answers."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.told.append(self.path)  # type: ignore[attr-defined]
        body = b"a 1\n" if self.path == "/metrics" else b'{"keyspaces":[],"id":7}'
        self.send_response(200 if self.path.startswith("/") else 403)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@contextmanager
def serving() -> Iterator[tuple[int, list[str]]]:
    """A server: its port, and what it was asked for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Told)
    server.told = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port, server.told  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def here() -> Iterator[int]:
    """The port of a server of this machine."""
    with serving() as (port, _):
        yield port


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the proxy of the environment was asked for."""
    with serving() as (port, told):
        for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setattr("urllib.request._opener", None)  # it has the proxies of its first request
        yield told


def ask_by_client(url: str) -> None:
    with FreshetClient(url, token="secret") as client:
        assert client.send(STATUS)[0] == 200


def ask_by_async_client(url: str) -> None:
    async def ask() -> int:
        async with AsyncClient(url, token="secret") as client:
            return (await client.send(STATUS))[0]

    assert asyncio.run(ask()) == 200


def ask_by_watch(url: str) -> None:
    assert Watch(url, "secret", print, [])._ask() == []


def ask_by_connector(url: str) -> None:
    assert asked(KafkaConnect(url, "u", "secret"), "connectors", dict)


def ask_by_registry(url: str) -> None:
    assert SchemaRegistry(url, "u", "secret").register({"s": "{}"}) == {"s": 7}


def ask_by_supervisor(url: str) -> None:
    consume = ConsumptionSettings(KafkaCluster("nowhere:1"), ("k",), Path("nowhere"))
    [family] = _scrape(Worker(0, consume, OwnerSettings(), metrics=url.removeprefix("http://"))) or []
    assert family.name == "a"


ASKERS: Final = [
    ask_by_client,
    ask_by_async_client,
    ask_by_watch,
    ask_by_connector,
    ask_by_registry,
    ask_by_supervisor,
]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("ask", ASKERS)
def test_what_is_here_is_asked_without_a_proxy(
    ask: Callable[[str], None], host: str, here: int, proxy: list[str]
) -> None:
    """It would be shown the secret, and nothing would ever be ready."""
    ask(f"http://{host}:{here}")
    assert proxy == []


def test_what_is_elsewhere_is_asked_through_the_proxy(proxy: list[str]) -> None:
    """It may be the only way there."""
    with FreshetClient("http://front.example") as client:
        assert client.send(STATUS)[0] == 403
    with pytest.raises(ConnectUnreachable):
        asked(KafkaConnect("http://connect.example:8083"), "connectors", dict)
    assert proxy == ["http://front.example/v1/status", "http://connect.example:8083/connectors"]
