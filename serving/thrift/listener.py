"""Listens for engines, for one catalog: a relay for each connection, while the metastore lets a cache answer at all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import structlog

from serving.errors import ReadError
from serving.http.front import Front
from serving.sources.source import TableSource
from serving.thrift.answering import Answers
from serving.thrift.log_end import LogEnd
from serving.thrift.metrics import ThriftMetrics
from serving.thrift.relay import Relay, Streams
from serving.thrift.shown import Shown
from stream.access.certificates import Certificates
from stream.access.listening import check_listener
from tokens import FreshetError
from tokens.errors import one_line

log = structlog.get_logger(__name__)

CONNECT_S: Final = 10.0
ASK_EVERY_S: Final = 5.0
"""Pause between two questions what stands against answers: a metastore may be started anew with other settings."""
STOP_S: Final = 2.0


class ThriftListenError(FreshetError):
    """It cannot listen for engines; code ``cannot_listen``."""

    code = "cannot_listen"


@runtime_checkable
class LoggedSource(TableSource, Protocol):
    """A metastore: a source whose log has an end, and that tells how it answers."""

    async def log_end(self) -> int:
        """The id of the last event in its log. Raises `ReadError`."""

    async def own_answers(self) -> str:
        """What of its settings makes its answers depend on more than the catalog; "": nothing. Raises `ReadError`."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Where it listens, and the metastores behind it, which are tried in turn. ``encrypted``: how these are reached.

    ``catalog``: as they call it. ``max_wait_ms``, ``max_staleness_ms``: as in `Answers`. ``shown_bytes``: see `Shown`.
    """

    host: str
    port: int
    metastores: Sequence[tuple[str, int]]
    catalog: str = "hive"
    encrypted: Callable[[], ssl.SSLContext] | None = None
    certificates: Certificates = field(default_factory=Certificates)
    max_wait_ms: int = 200
    max_staleness_ms: int = 0
    shown_bytes: int = 64 << 20
    connections_max: int = 2_000


class ThriftListener:
    """Belongs to one event loop. `start` it, and `close` it."""

    def __init__(self, front: Front, keyspace: str, settings: ListenerSettings) -> None:
        """Answers from the cache once the source of ``keyspace`` has told that nothing stands against it.

        Raises `ReadError` ``unknown_keyspace``, also of a catalog that has no metastore for its source.
        """
        space = front.table_space(keyspace)
        source = space.source
        if not isinstance(source, LoggedSource):
            raise ReadError("unknown_keyspace", f"{keyspace} is no catalog of a Hive Metastore")
        self._catalog = keyspace
        self._settings = settings
        self._source = source
        self._metrics = ThriftMetrics(keyspace, front.metrics)
        self._answers = Answers(
            space,
            front.owners,
            front.tables,
            front.objects,
            LogEnd(source.log_end),
            Shown(settings.shown_bytes),
            front.now_ms,
            catalog=settings.catalog,
            max_wait_ms=settings.max_wait_ms,
            max_staleness_ms=settings.max_staleness_ms,
        )
        self._answers.may_answer = False
        self._asking: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that it listens on; only after `start`."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def start(self) -> None:
        """Listens. Raises `ThriftListenError`, `CertificateError`."""
        chosen = self._settings
        context = chosen.certificates.server()
        try:
            self._server = await asyncio.start_server(self._serve, chosen.host, chosen.port, ssl=context)
        except OSError as error:
            why = error.strerror or error
            raise ThriftListenError(
                f"cannot listen for engines of {self._catalog} on {chosen.host}:{chosen.port}: {why}",
                hint=f"choose another port in [serve.thrift.{self._catalog}]; a metastore's own is mostly 9083, too",
            ) from error
        self._asking = asyncio.create_task(self._ask())
        host, port = self.address
        log.info("engines are served", role="thrift", catalog=self._catalog, host=host, port=port)

    async def close(self) -> None:
        """Ends all connections: engines open another one, here or elsewhere."""
        if self._server is None:
            return
        self._server.close()
        ended = [*self._relays, *([self._asking] if self._asking is not None else [])]
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended, timeout=STOP_S)
        self._server = None

    async def _ask(self) -> None:
        """Asks the metastore, again and again, whether a cache may answer in its place. It may not before one says so.

        While none can be reached, what was said last holds.
        """
        said = ""
        while True:
            against = ""
            try:
                against = await self._source.own_answers()
                self._answers.may_answer = not against
            except ReadError as error:
                if error.code == "source_failed":  # it answers, and does not tell
                    against = one_line(str(error))
                    self._answers.may_answer = False
            if against and against != said:
                log.warning(
                    "all calls are passed on: the metastore's answers may depend on more than the catalog",
                    catalog=self._catalog,
                    why=against,
                )
            said = against
            await asyncio.sleep(ASK_EVERY_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._relays) >= self._settings.connections_max:
            log.warning("too many connections of engines", catalog=self._catalog, most=self._settings.connections_max)
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        _keep_alive(writer)
        try:
            with self._metrics.connections.track_inprogress():
                await Relay((reader, writer), self._connect, self._answers, self._metrics).run()
        except OSError as error:
            log.debug("a connection of an engine has ended", why=one_line(str(error)))
        except asyncio.CancelledError:
            pass  # it is closed: a server's callback that is cancelled would be logged as an error
        finally:
            self._relays.discard(task)
            writer.close()

    async def _connect(self) -> Streams:
        """A connection to the first metastore that takes one. Raises ``OSError``."""
        encrypted = self._settings.encrypted
        last: OSError = ConnectionRefusedError("no metastore is named")
        for host, port in self._settings.metastores:
            try:
                async with asyncio.timeout(CONNECT_S):
                    context = encrypted() if encrypted is not None else None
                    name = host if context is not None else None
                    streams = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
            except OSError as error:
                last = type(error)(f"{host}:{port}: {error or 'no answer in time'}")
                continue
            _keep_alive(streams[1])
            return streams
        raise last


def check_thrift(name: str, host: str, files: Certificates, *, plain: bool) -> None:
    """Raises `PlainListenRefused`. A metastore asks nobody for a token, and no more does this.

    ``name``: of the keyspace.
    """
    check_listener(
        host,
        what="the Thrift front",
        section=f"serve.thrift.{name}",
        setting="",
        has_access=True,
        is_encrypted=plain or bool(files.certificate),
    )


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Connections are idle for long, and who is behind them may be gone."""
    with contextlib.suppress(OSError, AttributeError):
        opened: socket.socket = writer.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
