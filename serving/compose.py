"""Puts a front together from its keyspaces, and runs it on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

import structlog
import uvicorn

from serving.http.app import make_app
from serving.http.connection import BoundedConnection
from serving.http.front import Closer, Front
from serving.http.guard import refuse_open_listen
from serving.http.limits import RequestLimits
from serving.metrics import FrontMetrics
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.locations import Locations
from serving.reads.owners import Locate, Owners
from serving.reads.readiness import Readiness
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace, TableSpace
from serving.reads.tables import TableReads

STOP_TIMEOUT_S = 10

_log = structlog.get_logger(__name__)


def make_front(
    spaces: Sequence[RowSpace | TableSpace],
    locate: Locate,
    *,
    fixed: Mapping[tuple[str, int], str] | None = None,
    owner_token: str = "",
    bearer_token: str | None = None,
    limits: RequestLimits | None = None,
    closers: Sequence[Closer] = (),
) -> Front:
    """A front over ``spaces``. ``locate`` and ``fixed``: as in `Owners`. ``closers`` are awaited when it stops."""
    metrics = FrontMetrics()
    owners = Owners(locate, metrics, fixed=fixed, token=owner_token)
    fills = Fills(owners, metrics)
    by_name = {space.name: space for space in spaces}
    rows = RowReads(owners, Descriptions(owners), fills, metrics)
    sources = [space.source.close for space in spaces if space.source is not None]
    return Front(
        row_spaces={name: space for name, space in by_name.items() if isinstance(space, RowSpace)},
        table_spaces={name: space for name, space in by_name.items() if isinstance(space, TableSpace)},
        rows=rows,
        tables=TableReads(owners, fills, metrics),
        locations=Locations(owners, by_name),
        readiness=Readiness(owners, by_name),
        metrics=metrics,
        limits=limits or RequestLimits(),
        bearer_token=bearer_token,
        closers=(fills.close, owners.close, *sources, *closers),
    )


class FrontServer(uvicorn.Server):
    """uvicorn that says when it is ready, and for which a signal is an orderly end, not a failure."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on, once it does."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listens, and says so in the log."""
        await super().startup(sockets=sockets)  # type: ignore[arg-type]
        if self.started:
            host, port = self.address
            _log.info("ready", role="serve", host=host, port=port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Ends in order at any signal, and at a second one no sooner.

        uvicorn's own would leave out the application's end, whose task then dies with a traceback; requests are waited
        for no longer than `STOP_TIMEOUT_S` anyway.
        """
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end it in order; uvicorn's own handler would raise them again afterwards."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def make_server(front: Front, host: str, port: int) -> FrontServer:
    """A server that is not started yet. Raises `serving.http.guard.OpenListenRefused`."""
    refuse_open_listen(host, front.bearer_token)
    config = uvicorn.Config(
        make_app(front),
        host=host,
        port=port,
        loop="uvloop",
        http=BoundedConnection,
        ws="none",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )
    return FrontServer(config)
