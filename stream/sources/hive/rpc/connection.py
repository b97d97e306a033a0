"""A connection to a Hive Metastore: calls with a deadline, over one socket. Not safe for several threads.

An error closes the connection, since the rest of a late answer would be taken for the next one. The next call connects
again, to the next of the addresses.
"""

from __future__ import annotations

import ssl
import time
from math import inf
from types import TracebackType
from typing import Any, Final, Self

from stream.access.certificates import CertificateError
from stream.sources.hive.rpc.thrift import EXCEPTION, Reader, field, message
from stream.sources.hive.rpc.transport import OPEN, Access, DeniedError, Transport
from stream.sources.hive.structs import STRUCT, Struct, ThriftError
from tokens.errors import FreshetError, one_line

CALL_TIMEOUT_S: Final = 30.0
UNKNOWN_METHOD: Final = 1
"""A type of Thrift's ``TApplicationException``."""


class MetastoreError(FreshetError):
    """A call that failed. Code ``metastore_failed``: the metastore answered with an error that it does not declare."""

    code = "metastore_failed"


class MetastoreUnreachable(MetastoreError):
    """No metastore answers; code ``metastore_unreachable``."""

    code = "metastore_unreachable"


class MetastoreTimeout(MetastoreUnreachable):
    """A metastore took the call and did not answer in time; code ``metastore_timeout``."""

    code = "metastore_timeout"


class MetastoreTimeUp(MetastoreTimeout):
    """The time that several calls have together is over, of which the metastore has answered those before."""


class MetastoreDenied(MetastoreError):
    """The metastore does not accept the name and password; code ``metastore_denied``."""

    code = "metastore_denied"


class MetastoreRefused(MetastoreError):
    """The metastore answered with a declared exception, or does not know the call; code ``metastore_refused``.

    ``number``: of its field in the result struct, by which the IDL tells which exception it is; 0: it is none.
    """

    code = "metastore_refused"

    def __init__(self, call: str, number: int, reason: str) -> None:
        super().__init__(f"{call}: {reason}")
        self.number = number


class MetastoreConnection:
    """Calls one of ``addresses`` (host, port). ``timeout_s``: of a whole call, connecting too. A context manager."""

    def __init__(
        self, addresses: tuple[tuple[str, int], ...], *, timeout_s: float = CALL_TIMEOUT_S, access: Access = OPEN
    ) -> None:
        self._addresses = addresses
        self._access = access
        self._timeout_s = timeout_s
        self._next = 0
        self._transport: Transport | None = None
        self._reader = Reader(self._receive)
        self._deadline = 0.0
        self.until_s = inf
        """No call lasts beyond this moment of the monotonic clock."""
        self._has_answered = False
        """A call since `limit`."""
        self._sequence = 0
        self.opened = 0
        """How many times it was opened, to the same metastore or another one."""
        self.address = ""
        """``host:port`` of the connection, or of the last one."""

    def call(self, name: str, arguments: Struct, *, timeout_s: float = 0.0) -> Any:
        """The value that the function ``name`` returned, without its type; None if it returns nothing.

        ``arguments``: its parameters as a struct. Raises `MetastoreUnreachable`, `MetastoreTimeout`,
        `MetastoreTimeUp`, `MetastoreRefused`, `MetastoreDenied`, `MetastoreError`, `ThriftError`.
        """
        own_deadline = time.monotonic() + (timeout_s or self._timeout_s)
        self._deadline = min(own_deadline, self.until_s)
        self._sequence += 1
        request = message(name, self._sequence, arguments)
        try:
            self._send(request)
            kind, result = self._answer(name)
        except OSError as error:
            if self._transport is not None:  # else each address was tried
                self._try_another()
            self.close()
            late = isinstance(error, TimeoutError)
            what = "did not answer in time" if late else f"closed the connection: {error.strerror or error}"
            failure = MetastoreTimeout if late else MetastoreUnreachable
            if late and self._has_answered and self.until_s < own_deadline:
                failure = MetastoreTimeUp
            raise failure(f"{name}: the metastore at {self.address} {what}", hint="its log may tell why") from error
        except BaseException:
            self.close()
            raise
        self._has_answered = True
        if kind == EXCEPTION and field(result, 2, 0) == UNKNOWN_METHOD:
            raise MetastoreRefused(name, 0, "the metastore does not know this call")
        if kind == EXCEPTION:
            raise MetastoreError(f"{name}: {one_line(str(field(result, 1, 'an unknown error')))}")
        return _value(name, result)

    def limit(self, seconds: float) -> None:
        """From now on no call lasts longer than until ``seconds`` from now. Until the next `limit`."""
        self.until_s = time.monotonic() + seconds
        self._has_answered = False

    def close(self) -> None:
        """Closes it. The next call opens another."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        self._reader = Reader(self._receive)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, request: bytes) -> None:
        """Send over the open connection, or a new one: an idle one may have been closed since its last call."""
        if self._transport is not None and not self._transport.is_idle():
            self.close()
        if self._transport is None:
            self._transport = self._connect()
        self._transport.send(request)

    def _connect(self) -> Transport:
        failure: OSError | None = None
        denied: MetastoreDenied | None = None
        for tried in range(len(self._addresses)):
            host, port = self._addresses[self._next]
            self.address = f"{host}:{port}"
            share_s = self._left_s() / (len(self._addresses) - tried)
            try:
                opened = Transport.connect((host, port), self._access, self._left_s, share_s)
                self.opened += 1
                return opened
            except OSError as error:
                failure = error
            except DeniedError as error:
                denied = MetastoreDenied(
                    f"the metastore at {self.address} does not accept the user {self._access.user!r}: {error}",
                    hint="check the source's user and password",
                )
            self._try_another()
        if denied is not None:
            raise denied
        names = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        secured = isinstance(failure, ssl.SSLError) or isinstance(failure and failure.__cause__, CertificateError)
        raise MetastoreUnreachable(
            f"no metastore answers at {names}: {failure}",
            hint="check the source's ssl_ca, and the host that the server's certificate is for"
            if secured
            else "check the source's uris, and whether it runs",
        ) from failure

    def _try_another(self) -> None:
        self._next = (self._next + 1) % len(self._addresses)

    def _left_s(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _receive(self) -> bytes:
        assert self._transport is not None
        return self._transport.receive()

    def _answer(self, name: str) -> tuple[int, Struct]:
        answered, kind, sequence, result = self._reader.message()
        if answered != name or sequence != self._sequence:
            raise ThriftError(f"the answer to {name} {self._sequence} is one to {answered} {sequence}")
        return kind, result


def _value(name: str, result: Struct) -> Any:
    """Field 0 of a result; another one is a declared exception."""
    for number, (kind, thrown) in result.items():
        if number == 0:
            return field(result, 0)
        reason = field(thrown, 1, "") if kind == STRUCT else thrown
        raise MetastoreRefused(name, number, one_line(str(reason or "refused without a reason")))
    return None
