"""Clients of the owner protocol.

`OwnerClient` is for asyncio (the front): one connection, pipelined requests, reconnects by itself. `OwnerConnection`
blocks (the command line, tests, Spark).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar, cast

import msgspec

from consumers.owner.framing import FrameBuffer, decode_answer, encode_frame, id_in
from consumers.owner.protocol import (
    OBJECTS_SINCE,
    OLDEST,
    TRACED,
    VERSION,
    WAITING,
    WITHOUT_TOPIC,
    Answer,
    Checkpoint,
    CheckpointPlace,
    Checkpoints,
    Describe,
    Description,
    Drain,
    Failure,
    Fill,
    Filled,
    FillTable,
    Get,
    GetObjects,
    GetTable,
    Hello,
    OwnerError,
    OwnerObjects,
    OwnerRow,
    OwnerTable,
    PartitionRequest,
    Request,
    Rows,
    Status,
    Statuses,
    Verdict,
    Verified,
    Wait,
    Waited,
    Welcome,
)
from stream import spans
from stream.access.certificates import CertificateError, Certificates
from stream.access.networks import Network, resolve_within, resolved_within
from stream.access.who import asking

CONNECT_TIMEOUT_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 10.0
"""In addition to the request's own ``max_wait_ms``."""
WAITING_OF_CALLER_MAX: Final = 512
"""Requests of one caller of a front that wait at one owner: half of those that an owner has wait of one front."""
NO_REQUEST: Final = 0
"""The id of an answer that concerns the connection."""

PORT_MAX: Final = 65_535
SHOWN_MAX: Final = 300
"""Characters that an error shows of what is no address."""

A = TypeVar("A", bound="Answer")


def parse_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as host and port; raises `OwnerError` ``bad_request``."""
    host, _, digits = address.rpartition(":")
    host, port = host.strip("[]"), -1
    try:
        host.encode("idna")  # as a look-up of the name does
        port = int(digits) if digits.isascii() and digits.isdigit() else -1
    except ValueError:  # of either
        pass
    if not host or not host.isprintable() or not 0 <= port <= PORT_MAX:
        raise OwnerError(f"{address[:SHOWN_MAX]!r} is not host:port", code="bad_request")
    return host, port


def hello(token: str) -> Hello:
    """The greeting of this program's version."""
    return Hello(0, VERSION, token, OLDEST)


@dataclass(frozen=True, slots=True)
class Identity:
    """How a client shows who it is. ``secret``: its token as of now; "": none. ``files``: of TLS; None: plain TCP.

    ``networks``: where it shows it at all; empty: wherever an owner is said to be.
    """

    secret: Callable[[], str] = str
    files: Certificates | None = None
    networks: tuple[Network, ...] = ()

    def hello(self) -> Hello:
        """The greeting."""
        return hello(self.secret())

    def secured(self) -> ssl.SSLContext | None:
        """Of TLS. Raises `CertificateError`."""
        return self.files.client() if self.files is not None else None


def _unreachable(address: str, error: BaseException | str) -> OwnerError:
    return OwnerError(
        f"the owner at {address} does not answer: {error}",
        hint="check that `freshet consume` is running there",
        code="owner_unreachable",
    )


def _elsewhere(address: str) -> OwnerError:
    return OwnerError(
        f"the owner at {address} is in none of consumer.networks, so it is not asked",
        hint="is its announcement ours? then add its network to consumer.networks",
        code="owner_unreachable",
    )


def _reached(address: str, networks: tuple[Network, ...]) -> socket.socket:
    """A connection to the first address of the name, in the networks, that takes one. Raises ``OSError``."""
    host, port = parse_address(address)
    failure: OSError | None = None
    for place in resolved_within(host, port, networks) if networks else [host]:
        try:
            return socket.create_connection((place, port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            failure = error
    raise failure or _elsewhere(address)


def _again(error: OwnerError) -> OwnerError:
    """The same for another caller: what is raised gets the caller's frames."""
    return OwnerError(str(error), hint=error.hint, code=error.code)


def _expect(answer: Answer, kind: type[A]) -> A:
    if isinstance(answer, Failure):
        refused = OwnerError(answer.message, hint=answer.hint, code=answer.code)
        refused.moved = answer.moved
        raise refused
    if not isinstance(answer, kind):
        raise OwnerError(f"expected {kind.__name__}, got {type(answer).__name__}", code="bad_answer")
    return answer


class _Connection(asyncio.Protocol):
    """One TCP connection. Resolves the pending futures as their answers arrive."""

    def __init__(self) -> None:
        self.pending: dict[int, asyncio.Future[Answer]] = {}
        self.transport: asyncio.Transport | None = None
        self.lost: BaseException | None = None
        self.version = 0
        """Of the protocol, as the owner has chosen it."""
        self._frames = FrameBuffer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._resolve(body)
        except (OwnerError, msgspec.DecodeError) as error:
            self.lost = error
            if self.transport is not None:
                self.transport.abort()

    def _resolve(self, body: bytes) -> None:
        """Gives an answer to its request. One that cannot be read fails that request only."""
        try:
            answer = decode_answer(body)
        except msgspec.DecodeError as error:
            future = self.pending.pop(id_in(body), None)
            if future is None:
                raise
            if not future.done():
                future.set_exception(OwnerError(f"unreadable answer: {error}", code="bad_answer"))
            return
        future = self.pending.pop(answer.id, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = self.lost or exc or ConnectionError("connection closed")
        pending, self.pending = self.pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(ConnectionError(str(self.lost)))


def _abort(connection: _Connection) -> None:
    if connection.transport is not None:
        connection.transport.abort()


def _expire(sent: Mapping[int, asyncio.Future[Answer]]) -> None:
    """Ends the wait for the first answer that is missing, and so for all."""
    for future in sent.values():
        if not future.done():
            future.set_exception(TimeoutError())
            return


class OwnerClient:
    """Client of one owner, for any number of tasks at once. All methods raise `OwnerError`."""

    def __init__(
        self,
        address: str,
        *,
        topic_id: str = "",
        identity: Identity | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """``address``: host:port. Connects at the first request.

        ``topic_id``: of the topic that the owner must follow; "" is not checked.
        """
        self.address = address
        self._topic_id = topic_id
        self._host, self._port = parse_address(address)
        self._identity = identity or Identity()
        self._secured: ssl.SSLContext | None = None
        self._timeout_s = request_timeout_s
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._closes = 0
        """How often it was closed: what began to connect before that is over, too."""
        self._failures = 0
        """How often it could not be connected."""
        self._failure: OwnerError | None = None
        """Why the last time."""
        self._waiting: Counter[str] = Counter()
        """By caller, the requests under way that may wait."""
        self._last_id = 0

    def _usable(self) -> _Connection | None:
        connection = self._connection
        return connection if connection is not None and connection.lost is None else None

    async def _connect(self) -> _Connection:
        """The connection, made if there is none. Who waits for an attempt to end shares its failure."""
        closes, failures = self._closes, self._failures
        async with self._connecting:
            connection = self._usable()
            if connection is not None:
                return connection
            self._require_open(closes)
            if self._failure is not None and self._failures != failures:
                raise _again(self._failure)
            try:
                connection = await self._open()
            except OwnerError as error:
                self._failures, self._failure = self._failures + 1, _again(error)
                raise
            try:
                self._require_open(closes)
            except OwnerError:
                _abort(connection)
                raise
            self._connection = connection
            return connection

    async def _open(self) -> _Connection:
        """A new connection, over which the owner has been greeted."""
        try:
            self._secured = self._secured or self._identity.secured()
        except CertificateError as error:
            raise OwnerError(str(error), hint=error.hint, code=error.code) from error
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._reach()
        except (OSError, TimeoutError) as error:
            raise _unreachable(self.address, error or "no answer in time") from error
        try:
            [greeting] = await self._ask(connection, [self._identity.hello()], 0)
            connection.version = _expect(greeting, Welcome).version
        except BaseException:  # a cancelled caller must not leak the connection
            _abort(connection)
            raise
        return connection

    def _require_open(self, closes: int) -> None:
        """Raises `OwnerError` if it was closed since it had been so ``closes`` times: nobody would close it again."""
        if self._closes != closes:
            raise _unreachable(self.address, "the connection was closed")

    async def _reach(self) -> _Connection:
        """A connection to the first of `_places` that takes one. Raises ``OSError``, of the last one."""
        loop = asyncio.get_running_loop()
        name = self._host if self._secured is not None else None
        failure: OSError | None = None
        for place in await self._places():
            try:
                _, connection = await loop.create_connection(
                    _Connection, place, self._port, ssl=self._secured, server_hostname=name
                )
                return connection
            except OSError as error:
                failure = error
        raise failure or _elsewhere(self.address)

    async def _places(self) -> list[str]:
        """Where to connect to. Announcements name owners, and who may write one could name any machine."""
        networks = self._identity.networks
        if not networks:
            return [self._host]
        return await resolve_within(asyncio.get_running_loop(), self._host, self._port, networks)

    async def _ask(self, connection: _Connection, requests: Sequence[Request], wait_ms: int) -> list[Answer]:
        """The answers to ``requests``, which get their ids here."""
        loop = asyncio.get_running_loop()
        limit_s = self._timeout_s + wait_ms / 1000
        sent: dict[int, asyncio.Future[Answer]] = {}
        frames: list[bytes] = []
        timer = loop.call_later(limit_s, _expire, sent)  # `asyncio.timeout` takes a tenth of a read's time
        try:
            if connection.lost is not None or connection.transport is None:
                raise _unreachable(self.address, connection.lost or "closed")
            for request in requests:
                future = loop.create_future()
                frames.append(self._frame_of(request))
                connection.pending[request.id] = future
                sent[request.id] = future
            connection.transport.write(b"".join(frames))  # each write is a call of the system
            return [await future for future in sent.values()]
        except TimeoutError as error:
            raise OwnerError(
                f"the owner at {self.address} took longer than {limit_s:g} s",
                hint="look at its log and at `freshet lag`",
                code="owner_timeout",
            ) from error
        except ConnectionError as error:
            raise _unreachable(self.address, error) from error
        finally:
            timer.cancel()
            for number, future in sent.items():
                connection.pending.pop(number, None)
                future.cancel()

    def _frame_of(self, request: Request) -> bytes:
        self._last_id = request.id = self._last_id + 1
        if self._topic_id and not isinstance(request, WITHOUT_TOPIC):
            request.topic_id = self._topic_id
        if spans.is_on and isinstance(request, TRACED):
            request.trace = spans.traceparent()
        return encode_frame(request)

    async def greet(self) -> None:
        """Says hello and waits for the answer: shows that the owner answers at all."""
        _expect(await self.request(self._identity.hello()), Welcome)

    async def request(self, request: Request, wait_ms: int = 0) -> Answer:
        """Sends ``request`` (its id is set here) and returns the answer, which may be a `Failure`."""
        [answer] = await self.request_all([request], wait_ms)
        return answer

    async def request_all(self, requests: Sequence[Request], wait_ms: int = 0) -> list[Answer]:
        """As `request` of several, which wait alike.

        Those of a caller of whom very many wait already do not wait, so that the requests of others may.
        """
        caller = asking.get()
        if not caller or wait_ms <= 0:
            return await self._ask(self._usable() or await self._connect(), requests, wait_ms)
        if self._waiting[caller] >= WAITING_OF_CALLER_MAX and all(isinstance(each, WAITING) for each in requests):
            for each in requests:
                each.max_wait_ms = 0  # type: ignore[union-attr]  # mypy narrows no elements
            return await self._ask(self._usable() or await self._connect(), requests, 0)
        self._waiting[caller] += len(requests)
        try:
            return await self._ask(self._usable() or await self._connect(), requests, wait_ms)
        finally:
            self._waiting[caller] -= len(requests)
            if not self._waiting[caller]:
                del self._waiting[caller]

    async def get(
        self,
        keyspace: str,
        partition: int,
        keys: list[bytes],
        vector: str = "",
        max_wait_ms: int = 0,
        meanings: dict[str, bytes] | None = None,
        not_before_ms: int = 0,
        holder: str = "",
        last_known: bool = False,
    ) -> list[OwnerRow]:
        """What is known of ``keys``, one `OwnerRow` each. ``meanings`` and what follows: as in `Get`."""
        request = Get(
            0,
            keyspace,
            partition,
            keys,
            vector,
            max_wait_ms,
            meanings or {},
            not_before_ms=not_before_ms,
            holder=holder,
            last_known=last_known,
        )
        return (await self.answer(request, Rows)).rows

    async def answer(self, request: PartitionRequest, kind: type[A]) -> A:
        """What the owner says to ``request``; ``kind``: as the request's answers are."""
        return _expect(await self.request(request, request.max_wait_ms), kind)

    async def answers(self, requests: Sequence[PartitionRequest], kind: type[A]) -> list[A | OwnerError]:
        """As `answer` to each of some, which wait alike. What the owner refuses has an error in its place."""
        found: list[A | OwnerError] = []
        for answer in await self.request_all(requests, requests[0].max_wait_ms):
            try:
                found.append(_expect(answer, kind))
            except OwnerError as refused:
                found.append(refused)
        return found

    async def get_table(
        self,
        keyspace: str,
        name: str,
        write_ids: str = "",
        table_id: int = 0,
        vector: str = "",
        max_wait_ms: int = 0,
        not_before_ms: int = 0,
        *,
        as_struct: bool = False,
    ) -> OwnerTable:
        """What is known of a catalog table."""
        request = GetTable(
            0,
            keyspace,
            name,
            write_ids,
            table_id,
            vector,
            max_wait_ms,
            not_before_ms=not_before_ms,
            as_struct=as_struct,
        )
        return _expect(await self.request(request, max_wait_ms), OwnerTable)

    async def get_objects(self, wanted: GetObjects) -> OwnerObjects:
        """What is known of catalog objects. Raises `OwnerError` ``not_owner`` if the owner is of before version 3."""
        connection = self._usable() or await self._connect()
        if connection.version < OBJECTS_SINCE:
            why = f"the owner at {self.address} speaks version {connection.version}, objects need {OBJECTS_SINCE}"
            raise OwnerError(why, hint="upgrade the owner", code="not_owner")
        return _expect(await self.request(wanted, wanted.max_wait_ms), OwnerObjects)

    async def wait(self, keyspace: str, partition: int, vector: str, max_wait_ms: int) -> Waited:
        """Waits at most ``max_wait_ms`` until the partition's watermarks are at or past ``vector``."""
        request = Wait(0, keyspace, partition, vector, max_wait_ms)
        return _expect(await self.request(request, max_wait_ms), Waited)

    async def fill(self, fill: Fill) -> Filled:
        """Offers the source's value of a key."""
        return (await self.fill_rows([fill]))[0]

    async def fill_rows(self, fills: Sequence[Fill]) -> list[Filled]:
        """Offers the source's values of several keys; each is judged separately."""
        answers = await self._ask(self._usable() or await self._connect(), fills, 0)
        return [_expect(answer, Filled) for answer in answers]

    async def fill_table(self, fill: FillTable) -> Filled:
        """Offers the source's answer for a table."""
        return _expect(await self.request(fill), Filled)

    async def checkpoint(self, keyspace: str, partition: int = -1) -> list[CheckpointPlace]:
        """Makes checkpoints; ``partition`` -1: of all that the owner has of ``keyspace``."""
        return _expect(await self.request(Checkpoint(0, keyspace, partition), 60_000), Checkpoints).places

    async def status(self, keyspace: str = "") -> Statuses:
        """The status of the owner's partitions; ``keyspace`` "": of all keyspaces."""
        return _expect(await self.request(Status(0, keyspace)), Statuses)

    async def describe(self, keyspace: str, table: str = "") -> Description:
        """A row table's columns and the keyspace's layout."""
        return _expect(await self.request(Describe(0, keyspace, table)), Description)

    async def close(self) -> None:
        """Closes the connection; pending requests fail, also those that wait for it to be made."""
        self._closes += 1
        connection, self._connection = self._connection, None
        if connection is not None and connection.transport is not None:
            connection.transport.close()
            await asyncio.sleep(0)


class OwnerConnection:
    """A blocking client, for one thread. Methods raise `OwnerError`."""

    def __init__(self, address: str, *, identity: Identity | None = None, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Connects at once, as `OwnerClient` to an address in the networks of ``identity`` only."""
        identity = identity or Identity()
        self.address = address
        self._timeout_s = timeout_s
        self._last_id = 0
        self._frames = FrameBuffer()
        self._bodies: deque[bytes] = deque()
        host, _ = parse_address(address)
        secured = identity.secured()  # before there is a connection that would have to be closed
        try:
            self._socket = _reached(address, identity.networks)
            if secured is not None:
                self._socket = secured.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise _unreachable(address, error) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            _expect(self.request(identity.hello()), Welcome)
        except BaseException:
            self.close()
            raise

    def request(self, request: Request, wait_ms: int = 0) -> Answer:
        """Sends ``request`` (its id is set here) and returns the answer, which may be a `Failure`."""
        self._last_id = request.id = self._last_id + 1
        deadline = monotonic() + self._timeout_s + wait_ms / 1000
        try:
            self._send(encode_frame(request))
            while True:
                answer = decode_answer(self._next_body(deadline))
                if answer.id in (request.id, NO_REQUEST):
                    return answer
        except (OSError, msgspec.DecodeError) as error:
            raise _unreachable(self.address, error) from error

    def _send(self, frame: bytes) -> None:
        self._socket.settimeout(self._timeout_s)
        try:
            self._socket.sendall(frame)
        except OSError:
            self.close()  # a part of the frame may have been sent
            raise

    def _next_body(self, deadline: float) -> bytes:
        """The next frame. It may answer an earlier request, whose time was up; a part of it is kept if time is up."""
        while not self._bodies:
            self._socket.settimeout(max(deadline - monotonic(), 0.001))
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("connection closed")
            self._bodies += self._frames.feed(data)
        return self._bodies.popleft()

    def ask(self, request: Request, kind: type[A], wait_ms: int = 0) -> A:
        """As `request`, but returns an answer of type ``kind``; a `Failure` is raised as `OwnerError`."""
        return _expect(self.request(request, wait_ms), kind)

    def get(
        self, keyspace: str, partition: int, keys: list[bytes], vector: str = "", max_wait_ms: int = 0
    ) -> list[OwnerRow]:
        """As `OwnerClient.get`."""
        return self.ask(Get(0, keyspace, partition, keys, vector, max_wait_ms), Rows, max_wait_ms).rows

    def checkpoint(self, keyspace: str, partition: int = -1) -> list[CheckpointPlace]:
        """As `OwnerClient.checkpoint`."""
        return self.ask(Checkpoint(0, keyspace, partition), Checkpoints, 60_000).places

    def status(self, keyspace: str = "") -> Statuses:
        """As `OwnerClient.status`."""
        return self.ask(Status(0, keyspace), Statuses)

    def tell_verdicts(self, keyspace: str, verdicts: list[Verdict]) -> Statuses:
        """Tells what an audit found of the owner's partitions; those of others are passed over."""
        return self.ask(Verified(0, keyspace, verdicts), Statuses)

    def drain(self) -> Statuses:
        """Has the process leave its group; the status of the partitions that it hands over."""
        return self.ask(Drain(0), Statuses)

    def describe(self, keyspace: str, table: str = "") -> Description:
        """As `OwnerClient.describe`."""
        return self.ask(Describe(0, keyspace, table), Description)

    def close(self) -> None:
        """Closes; safe to repeat."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> OwnerConnection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
