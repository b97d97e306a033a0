"""The front as a server: uvicorn with bounds of our own, a ready line in the log, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Protocol, cast

import structlog
import uvicorn

from serving.http.admission.connections import Connections
from serving.http.app import make_app
from serving.http.connection import FrontConfig, open_connection
from serving.http.front import Front
from serving.http.limits import KEEP_ALIVE_S, ConnectionLimits
from stream.access.certificates import Certificates
from stream.access.grants import Access
from stream.access.listening import check_listener

STOP_TIMEOUT_S = 10

_log = structlog.get_logger(__name__)


class Listener(Protocol):
    """Something else that the front listens for, on the same event loop."""

    async def start(self) -> None:
        """Listens. Raises `tokens.FreshetError`, of which it cannot."""

    async def close(self) -> None:
        """Ends it, and all of its connections."""


class FrontServer(uvicorn.Server):
    """uvicorn that logs when it is ready and where, and that stops in order on a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        before_shutdown: Callable[[], None] = lambda: None,
        listens: Callable[[str], None] = lambda _: None,
        beside: Sequence[Listener] = (),
    ) -> None:
        """``before_shutdown`` is called when it begins to stop, ``listens`` with its host:port once it listens.

        ``beside``: what listens as long as it does.
        """
        super().__init__(config)
        self.before_shutdown = before_shutdown
        self.listens = listens
        self.catches_signals = True
        """False: whoever runs it sets `should_exit`."""
        self.beside = beside

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on; only after `startup`."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def scheme(self) -> str:
        """Of its URL. uvicorn's settings do not say it, since TLS is not uvicorn's."""
        return "https" if isinstance(self.config, FrontConfig) and self.config.secured is not None else "http"

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Starts to listen, and logs the address."""
        await super().startup(sockets=sockets)  # type: ignore[arg-type]
        if self.started:
            for listener in self.beside:
                await listener.start()
            host, port = self.address
            self.listens(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            _log.info("ready", role="serve", host=host, port=port)

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Ends the streams, which would go on until the timeout, and then stops as uvicorn does."""
        self.before_shutdown()
        for listener in self.beside:
            await listener.close()
        await super().shutdown(sockets=sockets)  # type: ignore[arg-type]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stops in order. A second signal changes nothing.

        uvicorn's own handler would skip the application's lifespan at a second signal, and its task would die with a
        traceback. Requests under way delay the stop by at most `STOP_TIMEOUT_S`.
        """
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop it in order; uvicorn's own method would raise them again afterwards."""
        if not self.catches_signals:
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def check_front(host: str, front: Access, files: Certificates, *, plain: bool) -> None:
    """Raises `OpenListenRefused`, `PlainListenRefused`."""
    check_listener(
        host,
        what="the read API",
        section="serve",
        setting="[serve.tokens.NAME]",
        has_access=not front.is_open,
        is_encrypted=plain or bool(files.certificate),
    )


def make_server(
    front: Front,
    host: str,
    port: int,
    files: Certificates | None = None,
    *,
    plain: bool = False,
    connections: ConnectionLimits | None = None,
    beside: Sequence[Listener] = (),
) -> FrontServer:
    """A server that is not started yet. ``plain``: it may listen beyond loopback without TLS.

    ``beside``: as of `FrontServer`.

    Raises `OpenListenRefused`, `PlainListenRefused`, `CertificateError`.
    """
    files = files or Certificates()
    check_front(host, front.access, files, plain=plain)
    config = FrontConfig(
        make_app(front),
        host=host,
        port=port,
        loop="uvloop",
        http=cast("type[asyncio.Protocol]", open_connection),  # uvicorn calls it, no more
        ws="none",
        access_log=False,
        log_config=None,
        log_level="error",  # its warnings are of requests that are none, and come as fast as anybody sends them
        server_header=False,
        date_header=False,
        proxy_headers=False,  # a caller could say what it likes of its address
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )
    config.secured = files.server()
    config.connections = Connections(connections or ConnectionLimits())
    streams = front.streams
    before_shutdown = streams.stopping.set if streams is not None else lambda: None
    return FrontServer(config, before_shutdown, front.locations.listens_at, beside)
