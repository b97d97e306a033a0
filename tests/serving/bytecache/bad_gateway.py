"""An HTTP gateway in front of a store. It passes everything on, and spoils the bodies of objects on demand.

The proxies of ``lab.faults.network`` never change a byte; what a server itself gets wrong is done here.
"""

from __future__ import annotations

import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal

Fault = Literal["500", "503", "404", "cut off", "short", "long", "whole", "garbage"]
"""``cut off``: half of a body, then the end of the connection. ``short``, ``long``: of another length, which its header
tells. ``whole``: the object from its first byte on, as of a server without ranges. ``garbage``: no HTTP."""
_OWN: Final = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})


class BadGateway(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1. ``spoiled``: how many bodies were, since `spoil`."""

    daemon_threads = True

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.spoiled = 0
        self._fault: Fault | None = None
        self._left = 0
        self._lock = threading.Lock()

    def spoil(self, fault: Fault | None, times: int = 1_000_000) -> None:
        """The next ``times`` bodies; None: none any more."""
        with self._lock:
            self._fault, self._left, self.spoiled = fault, times, 0

    def next_fault(self) -> Fault | None:
        """Of the body that is sent now."""
        with self._lock:
            if self._fault is None or not self._left:
                return None
            self._left -= 1
            self.spoiled += 1
            return self._fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BadGateway

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        ranged = self.command == "GET" and "range" in self.headers
        fault = self.server.next_fault() if ranged else None
        headers = {name: value for name, value in self.headers.items() if fault != "whole" or name.lower() != "range"}
        upstream = HTTPConnection(*self.server.upstream, timeout=240)
        upstream.request(self.command, self.path, body, headers)
        found = upstream.getresponse()
        data = found.read()
        if fault in ("500", "503", "404"):
            status, data, kept = int(fault), b"", []
        else:
            status, kept = found.status, [each for each in found.getheaders() if each[0].lower() not in _OWN]
        upstream.close()
        if fault == "garbage":
            self.wfile.write(b"\0not HTTP\r\n\r\n" + data[:100])
            self.close_connection = True
            return
        length = len(data) if self.command != "HEAD" else int(found.getheader("content-length") or 0)
        if fault == "short":
            data = data[: len(data) // 2]
            length = len(data)
        elif fault == "long":
            data += b"x" * 100
            length = len(data)
        self.send_response(status)
        for name, value in kept:
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fault == "cut off" else data)
        self.close_connection = self.close_connection or fault == "cut off"

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def log_message(self, *_: object) -> None:
        """Says nothing."""
