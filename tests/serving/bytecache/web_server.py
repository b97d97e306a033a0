"""An HTTP server of one file, which answers as nginx does, and with faults on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = 64 << 10


class WebServer(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1. ``changed``: when the file was, in s since 1970. ``tag``: None: as nginx's.

    ``status``: of every answer, if it is not 0; ``silent``: it sends none. ``has_ranges``: whether it knows of any.
    ``says_length``: of the file. ``before_body`` runs before the bytes are sent. ``sent``: how many were.
    """

    daemon_threads = True

    def __init__(self, data: bytes, changed: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)  # little is under way that nobody wants
        self.data, self.changed = data, int(changed)
        self.tag: str | None = None
        self.status = 0
        self.silent = False
        self.has_ranges = self.says_length = True
        self.before_body: Callable[[], object] = lambda: None
        self.sent = 0
        self.url = f"http://127.0.0.1:{self.server_port}/file"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def etag(self) -> str:
        """Of nginx: the time of change, in whole seconds, and the length."""
        return f'"{self.changed:x}-{len(self.data):x}"' if self.tag is None else self.tag

    def end(self) -> None:
        """Closes it."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def do_HEAD(self) -> None:
        """The headers alone."""
        if self.server.silent:
            self.rfile.read(1)  # until the client has left
            self.close_connection = True
            return
        self._head()

    def do_GET(self) -> None:
        """The file, or a range of it."""
        if self.server.status or self.server.silent:
            self.do_HEAD()
            return
        self.server.before_body()
        data = self._head()
        for at in range(0, len(data), PIECE):
            try:
                self._send(data[at : at + PIECE])
            except OSError:  # the client wants no more
                self.close_connection = True
                return
            self.server.sent += len(data[at : at + PIECE])
        if not self.server.says_length:
            self._send(b"")

    def _head(self) -> bytes:
        server, data = self.server, self.server.data
        status, asked = server.status or 200, self.headers.get("Range")
        if status != 200:
            data = b""
        elif asked and server.has_ranges:
            first, last = asked.removeprefix("bytes=").split("-")
            status = 206
            data = data[int(first) : int(last) + 1 if last else None] if first else data[-int(last) :]
        self.send_response(status)
        self.send_header("Last-Modified", formatdate(server.changed, usegmt=True))
        if server.etag:
            self.send_header("ETag", server.etag)
        if server.says_length or server.status:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        return data

    def _send(self, piece: bytes) -> None:
        self.wfile.write(piece if self.server.says_length else b"%x\r\n%s\r\n" % (len(piece), piece))

    def log_message(self, *_: object) -> None:
        """Says nothing."""
