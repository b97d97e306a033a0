"""What a process without an HTTP interface of its own shows: ``/metrics``, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

_TEXT: Final = "text/plain; charset=utf-8"


def serve_monitoring(
    host: str, port: int, registry: CollectorRegistry, not_ready: Callable[[], str]
) -> ThreadingHTTPServer:
    """Serve in a thread of its own, until ``shutdown``. Raises ``OSError``.

    ``not_ready``: why the process is not ready, empty if it is; its text is the answer of ``/readyz``, with status 503.
    """
    server = ThreadingHTTPServer((host, port), _handler(registry, not_ready))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="monitoring", daemon=True).start()
    return server


def _handler(registry: CollectorRegistry, not_ready: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif path == "/healthz":
                self._answer(200, _TEXT, b"alive\n")
            elif path == "/readyz":
                why = not_ready()
                self._answer(503 if why else 200, _TEXT, (why or "ready").encode() + b"\n")
            else:
                self._answer(404, _TEXT, b"/metrics, /healthz, /readyz\n")

        do_HEAD = do_GET

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes come every few seconds: nobody reads a line for each."""

    return Handler


def build_info(version: str) -> GaugeMetricFamily:
    """Which program runs."""
    family = GaugeMetricFamily("freshet_build_info", "1; the version is in the label.", labels=("version",))
    family.add_metric([version], 1)
    return family
