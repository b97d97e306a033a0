"""What a process without an HTTP interface of its own shows: ``/metrics``, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, disable_created_metrics, generate_latest

# A second series for each counter that says only when the counting began. The library has one switch for all of them.
disable_created_metrics()  # type: ignore[no-untyped-call]

REQUEST_TIMEOUT_S: Final = 10.0
_TEXT: Final = "text/plain; charset=utf-8"


def serve_monitoring(
    place: tuple[str, int],
    registry: CollectorRegistry,
    not_ready: Callable[[], str],
    *,
    version: str,
    token: str = "",
) -> ThreadingHTTPServer:
    """Serves on ``place`` (host, port) in threads of its own, until ``shutdown``. Raises ``OSError``.

    ``not_ready``: why the process is not ready, empty if it is; its text is the answer of ``/readyz``, with status 503.
    ``version``: of the program, for ``freshet_build_info``. ``token``: the bearer token that ``/metrics`` needs; "":
    none.
    """
    info = Gauge("freshet_build_info", "1; the version is in the label.", ("version",), registry=registry)
    info.labels(version).set(1)
    server = _Server(place, _handler(registry, not_ready, f"Bearer {token}".encode() if token else b""))
    Thread(target=server.serve_forever, name="monitoring", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Nothing: a client that goes away is no event."""


def _handler(
    registry: CollectorRegistry, not_ready: Callable[[], str], expected: bytes
) -> type[BaseHTTPRequestHandler]:
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
            elif expected and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected):
                self._answer(401, b"a bearer token is needed\n")
            else:
                self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)

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
