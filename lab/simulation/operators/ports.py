"""The ports at which processes show metrics and health. The product's handler gets a request without any socket."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.substitution import Twins
from stream import monitoring


class OperatorPort:
    """Stands for the server of `stream.monitoring`."""

    daemon_threads = True

    def __init__(self, kernel: Kernel, place: tuple[str, int], handler: type[Any]) -> None:
        self.server_address = place
        self._kernel = kernel
        self._handler = handler
        self._is_closed = False

    def serve_forever(self) -> None:
        """Waits: each request is handled in a thread of its own."""
        self._kernel.wait(lambda: self._is_closed)

    def shutdown(self) -> None:
        """Ends `serve_forever`."""
        self._is_closed = True

    def server_close(self) -> None:
        """There is nothing to close."""

    def answer(self, path: str) -> tuple[int, str]:
        """The status and the body of a GET, in the thread that calls it."""
        exchange = _Exchange(f"GET {path} HTTP/1.1\r\nHost: metrics\r\n\r\n".encode())
        self._handler(exchange, ("127.0.0.1", 1), self)
        head, _, body = bytes(exchange.sent).partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()


class Ports:
    """The ports of all processes."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._of_process: dict[str, OperatorPort] = {}

    def twins(self) -> Twins:
        """What stands for the product's servers while a history runs."""
        return {monitoring._Server: self._listen}

    def _listen(self, place: tuple[str, int], handler: type[Any]) -> OperatorPort:
        name = self._kernel.current

        def forget() -> None:
            self._of_process.pop(name, None)

        self._kernel.process(name).at_end.append(forget)
        found = self._of_process[name] = OperatorPort(self._kernel, place, handler)
        return found

    def of(self, process: str) -> OperatorPort | None:
        """The port of a process; None if it has none now."""
        return self._of_process.get(process)


class _Exchange:
    """The server's end of one request."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.sent = bytearray()

    def settimeout(self, _: float) -> None:
        """All of the request is there."""

    def makefile(self, *_: Any) -> BytesIO:
        """The request."""
        return BytesIO(self._request)

    def sendall(self, data: bytes) -> None:
        """A part of the answer."""
        self.sent += data
