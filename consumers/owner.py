"""The owner's server: answers the owner protocol from the stores of this process. asyncio, one thread.

What can be answered at once is answered while the frame is read; only waiting makes a task. Bounded: frames, keys a
request, requests in flight of a connection (then it is not read on) and of the process (then ``too_busy``).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec
import structlog

from consumers import answering
from consumers.partitions import Ownership, Partition
from consumers.protocol import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    KEYS_MAX,
    VERSION,
    WAIT_MS_MAX,
    Answer,
    Checkpoint,
    CheckpointPlace,
    Checkpoints,
    Describe,
    Failure,
    Fill,
    Filled,
    FillTable,
    FrameBuffer,
    Get,
    GetTable,
    Hello,
    OwnerError,
    Request,
    Row,
    Rows,
    Status,
    Table,
    Wait,
    Waited,
    Welcome,
    decode_request,
    encode_frame,
)
from consumers.reporting import describe_table, status_of
from tokens import Demand, Freshness, Vector
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

CONNECTION_WAITING_MAX: Final = 1_024
WAITING_MAX: Final = 20_000
HELLO_TIMEOUT_S: Final = 10.0
WRITE_BUFFER_BYTES: Final = 8 << 20

MakeCheckpoints = Callable[[list[Partition]], Awaitable[list[CheckpointPlace]]]


class OwnerServer:
    """Answers for the partitions in ``ownership``."""

    def __init__(self, ownership: Ownership, make_checkpoints: MakeCheckpoints, *, token: str = "") -> None:
        """``make_checkpoints`` has the fold thread make them. ``token``: what a `Hello` must bring; "": nothing."""
        self.ownership = ownership
        self.token = token
        self.waiting = 0
        self.answered: dict[str, int] = {}
        """Rows and tables answered, by freshness."""
        self._make_checkpoints = make_checkpoints
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Listens; returns host and port. Raises `OwnerError` for an address beyond this machine without a token."""
        if not self.token and not is_loopback(host):
            raise OwnerError(
                f"the owner protocol would listen on {host} without a token",
                hint="set consumer.owner_token, or listen on 127.0.0.1",
                code="unauthorized",
            )
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Connection(self), host, port)
        except OSError as error:
            raise OwnerError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="another port: consumer.owner_port, 0 for any",
                code="cannot_listen",
            ) from error
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def stop(self) -> None:
        """Stops listening and closes the connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.close()
        if self._server is not None:
            await self._server.wait_closed()

    def partition(self, keyspace: str, number: int) -> Partition:
        """The owned partition; raises `OwnerError` ``not_owner``."""
        found = self.ownership.get(keyspace, number)
        if found is None:
            raise OwnerError(
                f"this process does not own {keyspace}/{number}",
                hint="look it up in freshet.locations again",
                code="not_owner",
            )
        return found

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        """The answer, or what to await for it. Raises `FreshetError`, ``ValueError`` for a request that can't be."""
        match request:
            case Get():
                return self._get(request)
            case GetTable():
                return self._get_table(request)
            case Fill():
                accepted, why = answering.fill_row(self.partition(request.keyspace, request.partition), request)
                return Filled(request.id, accepted, why)
            case FillTable():
                accepted, why = answering.fill_table(self.partition(request.keyspace, request.partition), request)
                return Filled(request.id, accepted, why)
            case Wait():
                return self._wait(request)
            case Status():
                return status_of(self.ownership, request)
            case Describe():
                return describe_table(self.ownership, request)
            case Checkpoint():
                return self._checkpoint(request)
            case Hello():
                return Welcome(request.id, VERSION, self.ownership.instance)

    def _get(self, request: Get) -> Answer | Coroutine[Any, Any, Answer]:
        if len(request.keys) > KEYS_MAX:
            raise OwnerError(f"{len(request.keys)} keys in one request", hint=f"at most {KEYS_MAX}", code="bad_request")
        partition = self.partition(request.keyspace, request.partition)
        demand = answering.demand_of(request.vector)
        rows = [answering.answer_row(partition, key, demand) for key in request.keys]
        if request.max_wait_ms > 0 and any(_waits(row) for row in rows):
            return self._get_later(request, demand)
        return self._rows(request.id, rows)

    async def _get_later(self, request: Get, demand: Demand) -> Answer:
        rows: list[Row] = []

        def look(partition: Partition) -> bool:
            rows[:] = [answering.answer_row(partition, key, demand) for key in request.keys]
            return not any(_waits(row) for row in rows)

        await self._until(request.keyspace, request.partition, request.max_wait_ms, look)
        return self._rows(request.id, rows)

    def _rows(self, request_id: int, rows: list[Row]) -> Rows:
        for row in rows:
            self._count(row)
        return Rows(request_id, rows)

    def _count(self, answer: Row | Table) -> None:
        name = answer.freshness
        self.answered[name] = self.answered.get(name, 0) + 1

    def _get_table(self, request: GetTable) -> Answer | Coroutine[Any, Any, Answer]:
        demand = answering.demand_of(request.vector, request.write_ids, request.table_id)
        owned = self.ownership.of(request.keyspace)
        if not owned:
            raise OwnerError(f"this process owns nothing of {request.keyspace}", code="not_owner")
        table_id, number = answering.find_table(owned, request.name, request.table_id)
        if not table_id:
            return self._table(request.id, answering.no_table(-1, 0, f"{request.name} stands for nothing here"))
        partition = self.ownership.get(request.keyspace, number)
        if partition is None:
            why = f"table {table_id} is in partition {number}"
            return self._table(request.id, answering.no_table(number, table_id, why, elsewhere=True))
        table = answering.answer_table(partition, request.name, table_id, demand)
        if request.max_wait_ms > 0 and _waits(table):
            return self._get_table_later(request, demand, table_id, number)
        return self._table(request.id, table)

    async def _get_table_later(self, request: GetTable, demand: Demand, table_id: int, number: int) -> Answer:
        found: list[Table] = []

        def look(partition: Partition) -> bool:
            found[:] = [answering.answer_table(partition, request.name, table_id, demand)]
            return not _waits(found[0])

        await self._until(request.keyspace, number, request.max_wait_ms, look)
        return self._table(request.id, found[0])

    def _table(self, request_id: int, table: Table) -> Table:
        table.id = request_id
        self._count(table)
        return table

    async def _wait(self, request: Wait) -> Answer:
        vector = Vector.parse(request.vector) if request.vector else Vector()

        def look(partition: Partition) -> bool:
            return answering.reached(partition, vector)

        there = await self._until(request.keyspace, request.partition, request.max_wait_ms, look)
        partition = self.partition(request.keyspace, request.partition)
        return Waited(request.id, there, str(answering.watermarks(partition)))

    async def _until(self, keyspace: str, number: int, max_wait_ms: int, look: Callable[[Partition], bool]) -> bool:
        """Looks whenever the partition's watermark has moved, until satisfied (True) or time is up (False)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max_wait_ms, WAIT_MS_MAX) / 1000
        while True:
            partition = self.partition(keyspace, number)
            moved = loop.create_future()
            partition.waiters.add(moved)  # before looking, so that no movement is missed
            try:
                if look(partition):
                    return True
                remaining = deadline - loop.time()
                if remaining <= 0:
                    return False
                async with asyncio.timeout(remaining):
                    await moved
            except TimeoutError:
                return look(self.partition(keyspace, number))
            finally:
                partition.waiters.discard(moved)

    async def _checkpoint(self, request: Checkpoint) -> Answer:
        if request.partition < 0:
            wanted = self.ownership.of(request.keyspace)
        else:
            wanted = [self.partition(request.keyspace, request.partition)]
        if not wanted:
            raise OwnerError(f"this process owns nothing of {request.keyspace}", code="not_owner")
        return Checkpoints(request.id, await self._make_checkpoints(wanted))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` beside; `stop` cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _waits(answer: Row | Table) -> bool:
    """Whether it may become servable by waiting."""
    return not answer.served and not answer.needs_source


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Connection(asyncio.Protocol):
    """One front's connection."""

    def __init__(self, server: OwnerServer) -> None:
        self._server = server
        self._frames = FrameBuffer(HELLO_BYTES_MAX)
        self._transport: Any = None
        self._greeted = False
        self._waiting = 0
        self._clogged = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._server._connections.add(self)
        asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._refuse_silence)

    def _refuse_silence(self) -> None:
        if not self._greeted:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._server._connections.discard(self)

    def pause_writing(self) -> None:
        self._clogged = True
        self._throttle()

    def resume_writing(self) -> None:
        self._clogged = False
        self._throttle()

    def _throttle(self) -> None:
        """Reads on only while answers flow off."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._clogged or self._waiting >= CONNECTION_WAITING_MAX:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            bodies = self._frames.feed(data)
        except OwnerError as error:
            self._send(Failure(0, error.code, str(error), error.hint))
            self.close()
            return
        out: list[bytes] = []
        for body in bodies:
            answer = self._handle(body)
            if answer is not None:
                out.append(_frame(answer))
        if out and self._transport is not None:
            self._transport.write(b"".join(out))
        if not self._greeted and bodies:
            self.close()

    def _handle(self, body: bytes) -> Answer | None:
        try:
            request = decode_request(body)
        except msgspec.DecodeError as error:
            return Failure(_id_in(body), "bad_request", f"not a request: {error}", "see consumers/protocol.py")
        if not self._greeted:
            return self._greet(request)
        try:
            answer = self._server.answer(request)
        except Exception as error:  # noqa: BLE001 - a request must never end the connection or the process
            return failure(request.id, error)
        if not asyncio.iscoroutine(answer):
            return answer
        if self._server.waiting >= WAITING_MAX:
            answer.close()
            return Failure(request.id, "too_busy", f"{WAITING_MAX} requests are waiting here", "try again soon")
        self._waiting += 1
        self._server.waiting += 1
        if self._waiting >= CONNECTION_WAITING_MAX:
            self._throttle()
        self._server.spawn(self._later(request.id, answer))
        return None

    def _greet(self, request: Request) -> Answer:
        if not isinstance(request, Hello):
            return Failure(request.id, "bad_request", "the first frame must be a hello", "")
        if request.version != VERSION:
            why = f"protocol version {request.version} is not spoken here, {VERSION} is"
            return Failure(request.id, "version_mismatch", why, "run the same Freshet on both sides")
        if not hmac.compare_digest(request.token.encode(), self._server.token.encode()):
            return Failure(request.id, "unauthorized", "the token is not the owner's", "set consumer.owner_token")
        self._greeted = True
        self._frames.frame_bytes_max = FRAME_BYTES_MAX
        return Welcome(request.id, VERSION, self._server.ownership.instance)

    async def _later(self, request_id: int, work: Coroutine[Any, Any, Answer]) -> None:
        try:
            answer = await work
        except Exception as error:  # noqa: BLE001 - as above
            answer = failure(request_id, error)
        finally:
            self._waiting -= 1
            self._server.waiting -= 1
        self._throttle()
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_frame(answer))


def _frame(answer: Answer) -> bytes:
    try:
        return encode_frame(answer)
    except OwnerError as error:
        return encode_frame(Failure(answer.id, error.code, str(error), error.hint))


def _id_in(body: bytes) -> int:
    """The request id of a frame that is no request, 0 if it has none."""
    try:
        match msgspec.msgpack.decode(body):
            case [_, int(number), *_] if not isinstance(number, bool):
                return number
    except (ValueError, RecursionError):
        return 0
    return 0


def failure(request_id: int, error: Exception) -> Failure:
    """``error`` as an answer; what is not ours is logged and called internal."""
    if isinstance(error, FreshetError):
        return Failure(request_id, error.code, str(error), error.hint)
    if isinstance(error, UnicodeDecodeError):
        return Failure(request_id, "bad_request", f"the table name in the key is no UTF-8: {error}", "")
    log.error("request failed", error=f"{type(error).__name__}: {error}", exc_info=error)
    return Failure(request_id, "internal", f"{type(error).__name__}: {error}", "see the owner's log")


FRESHNESS_NAMES: Final = tuple(each.value for each in Freshness)
