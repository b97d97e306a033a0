"""What a process without an HTTP interface of its own shows: ``/metrics``, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, disable_created_metrics, generate_latest

from stream.access.asked_as import foreign_name
from stream.access.certificates import Certificates, subjects_of
from stream.access.grants import METRICS, Access, AccessRefused, bearer_of
from tokens.errors import one_line

# A second series for each counter that says only when the counting began. The library has one switch for all of them.
disable_created_metrics()  # type: ignore[no-untyped-call]

REQUEST_TIMEOUT_S: Final = 10.0
"""Of a connection, from its first byte to its last; a little more if nobody else comes."""
CONNECTIONS_MAX: Final = 64
"""At a time. One more takes the place of the one that was there first: a scrape is over long before."""
_TEXT: Final = "text/plain; charset=utf-8"


def serve_monitoring(
    place: tuple[str, int],
    registry: CollectorRegistry,
    not_ready: Callable[[], str],
    *,
    version: str,
    access: Access | None = None,
    files: Certificates | None = None,
) -> ThreadingHTTPServer:
    """Serves on ``place`` (host, port) in threads of its own, until ``shutdown``. Raises ``OSError``.

    ``not_ready``: why the process is not ready, empty if it is; its text is the answer of ``/readyz``, with status 503.
    ``version``: of the program, for ``freshet_build_info``. ``access``: who may see ``/metrics``; None: everybody.
    ``files``: of TLS, else it is plain. Raises `CertificateError`.
    """
    info = Gauge("freshet_build_info", "1; the version is in the label.", ("version",), registry=registry)
    info.labels(version).set(1)
    secured = files.server() if files is not None else None
    server = _Server(place, _handler(registry, not_ready, access or Access()))
    server.secured = secured
    Thread(target=server.serve_forever, name="monitoring", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    secured: ssl.SSLContext | None = None

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(place, handler)
        self._lock = Lock()
        self._open: dict[Any, tuple[float, socket.socket]] = {}
        """Connection as it was accepted, the oldest first → since when, and its socket by now."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for the connection."""
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                self._hang_up(next(iter(self._open)))
            self._open[request] = monotonic(), request
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Twice a second: ends what has lasted too long, as a client does that sends a byte now and then."""
        with self._lock:
            late = monotonic() - REQUEST_TIMEOUT_S
            for each in [each for each, (since, _) in self._open.items() if since < late]:
                self._hang_up(each)

    def _hang_up(self, request: Any) -> None:
        """Has the connection's thread read its end."""
        _, connection = self._open.pop(request)
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's thread: a slow handshake delays nobody else."""
        if self.secured is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_TIMEOUT_S)
        with self.secured.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as connection:
            with self._lock:
                if request not in self._open:
                    return  # another one has its place already
                self._open[request] = self._open[request][0], connection
            connection.do_handshake()
            super().finish_request(connection, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The connection's end."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """Nothing: a client that goes away is no event."""


def _handler(registry: CollectorRegistry, not_ready: Callable[[], str], access: Access) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/healthz":
                self._answer(200, b"alive\n")
            elif path == "/readyz":
                why = not_ready()
                self._answer(503 if why else 200, (why or "ready").encode() + b"\n")
            elif path != "/metrics":
                self._answer(404, b"/metrics, /healthz, /readyz\n")
            elif refusal := self._refusal():
                self._answer(*refusal)
            else:
                self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)

        def _refusal(self) -> tuple[int, bytes] | None:
            host = self.headers.get("Host", "").encode("latin-1", "replace")
            if access.is_open and (asked := foreign_name(host)):
                return 403, f"metrics without a token are not asked for by the name {one_line(asked)}\n".encode()
            secured = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
            secret = bearer_of(self.headers.get("Authorization", "").encode("latin-1", "replace"))
            try:
                caller = access.of(secret, subjects_of(secured))
            except AccessRefused as refused:
                return 401, f"{refused}\n".encode()
            return None if caller.may(METRICS) else (403, f"{caller.name} has no role {METRICS}\n".encode())

        do_HEAD = do_GET

        def _answer(self, status: int, body: bytes, kind: str = _TEXT) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Probes come every few seconds: nobody reads a line for each."""

    return Handler
