"""How bytes reach a Hive Metastore: over TCP, encrypted (TLS) or not, behind a name and password (SASL) or not."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from stream.access.certificates import CertificateError, Certificates
from tokens.errors import one_line

PIECE_BYTES: Final = 1 << 18
FRAME_BYTES_MAX: Final = 1 << 30
LOGIN_S: Final = 5.0
"""A metastore may ask another server about a password, which takes its time."""
_START, _OK, _COMPLETE = 1, 2, 5
_STATUSES: Final = frozenset({_START, _OK, 3, 4, _COMPLETE})
_HEAD_BYTES: Final = 5
_REASON_BYTES_MAX: Final = 64 << 10


class DeniedError(Exception):
    """The metastore does not accept the name and password. The text: what it says of it."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a metastore asks of its clients.

    ``ssl_ca``: a file of certificates; the connection is encrypted, and the server's certificate must be signed by one
    of them. ``ssl_verify_host``: it must be for the host too. ``ssl_cert``, ``ssl_key``: the client's own, in files.
    ``user``, ``password``: for SASL PLAIN, which a metastore asks for by ``metastore.authentication``.
    """

    ssl_ca: str = ""
    ssl_verify_host: bool = True
    ssl_cert: str = ""
    ssl_key: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """For one connection, so that renewed files are used. Raises ``OSError`` if a file can't be used."""
        files = Certificates(self.ssl_cert, self.ssl_key, self.ssl_ca)
        try:
            context = files.load(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
        except CertificateError as error:
            raise ConnectionError(str(error)) from error
        context.check_hostname = self.ssl_verify_host
        return context


OPEN: Final = Access()
"""A metastore's default: no encryption, and nobody is asked who they are."""


class Transport:
    """An open connection. ``left_s``: the seconds that are left of the call; it raises ``TimeoutError`` if none are.

    After an ``OSError`` nothing more may be sent or received.
    """

    def __init__(self, opened: socket.socket, left_s: Callable[[], float]) -> None:
        self._socket = opened
        self._left_s = left_s
        self._framed = False
        self._rest = 0
        """Bytes of the current frame that have not arrived."""

    @classmethod
    def connect(
        cls, address: tuple[str, int], access: Access, left_s: Callable[[], float], share_s: float
    ) -> Transport:
        """Connects within ``share_s``; asks for access in that or `LOGIN_S`. Raises ``OSError``, `DeniedError`."""
        until = time.monotonic() + share_s

        def left_of_share_s() -> float:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError("it did not let us in in time")
            return left

        opened = socket.create_connection(address, timeout=share_s)
        try:
            until = max(until, time.monotonic() + min(LOGIN_S, left_s() / 2))  # another may still be asked
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.ssl_ca:
                opened.settimeout(left_of_share_s())
                opened = access.context().wrap_socket(opened, server_hostname=address[0])
            made = cls(opened, left_of_share_s)
            if access.user:
                made._log_in(access)
            made._left_s = left_s
        except BaseException:
            opened.close()
            raise
        return made

    def send(self, request: bytes) -> None:
        """Sends a request. Raises ``OSError``."""
        self._socket.settimeout(self._left_s())
        self._socket.sendall(len(request).to_bytes(4, "big") + request if self._framed else request)

    def receive(self) -> bytes:
        """The next piece of an answer, never empty. Raises ``OSError``."""
        if not self._framed:
            return self._piece(PIECE_BYTES)
        while not self._rest:
            self._rest = int.from_bytes(self._exactly(4), "big")
            if self._rest > FRAME_BYTES_MAX:
                raise ConnectionError(f"a frame of {self._rest} bytes is longer than any answer")
        piece = self._piece(min(self._rest, PIECE_BYTES))
        self._rest -= len(piece)
        return piece

    def is_idle(self) -> bool:
        """Whether nothing has arrived unasked: what arrives between calls is the connection's end."""
        try:
            self._socket.settimeout(0.0)
            if isinstance(self._socket, ssl.SSLSocket):
                socket.socket.recv(self._socket, 1, socket.MSG_PEEK)  # below TLS, which can't peek
            else:
                self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Closes; safe to repeat."""
        self._socket.close()

    def _piece(self, most: int) -> bytes:
        self._socket.settimeout(self._left_s())
        piece = self._socket.recv(most)
        if not piece:
            raise ConnectionResetError("it ended amid an answer")
        return piece

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += self._piece(count - len(found))
        return found

    def _log_in(self, access: Access) -> None:
        """Thrift's SASL negotiation with the mechanism PLAIN (RFC 4616); after it each message is in a frame."""
        self._say(_START, b"PLAIN")
        self._say(_OK, b"\0" + access.user.encode() + b"\0" + access.password.encode())
        head = self._exactly(_HEAD_BYTES)
        status, length = head[0], int.from_bytes(head[1:], "big")
        if status not in _STATUSES or length > _REASON_BYTES_MAX:
            raise ConnectionError("it does not ask for a name and password (SASL)")
        said = self._exactly(length)
        if status != _COMPLETE:
            raise DeniedError(one_line(said.decode("utf-8", "replace")) or "no reason given")
        self._framed = True

    def _say(self, status: int, payload: bytes) -> None:
        self._socket.settimeout(self._left_s())
        self._socket.sendall(bytes([status]) + len(payload).to_bytes(4, "big") + payload)
