"""The owner's server: answers the owner protocol from the stores of this process. asyncio, one thread.

What can be answered at once is answered while the frame is read; only waiting makes a task. Bounded: frames, keys a
request, requests in flight of a connection (then it is not read on) and of the process (then ``too_busy``).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from consumers.owner import answering
from consumers.owner.connection import FrontConnection
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.protocol import (
    KEYS_MAX,
    VERSION,
    WAIT_MS_MAX,
    Answer,
    Checkpoint,
    CheckpointPlace,
    Checkpoints,
    Describe,
    Fill,
    Filled,
    FillTable,
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
)
from consumers.owner.reporting import describe_table, status_of
from tokens import Demand, Vector

MakeCheckpoints = Callable[[list[Partition]], Awaitable[list[CheckpointPlace]]]


class OwnerServer:
    """Answers for the partitions in ``ownership``."""

    def __init__(self, ownership: Ownership, make_checkpoints: MakeCheckpoints, *, token: str = "") -> None:
        """``make_checkpoints`` has the fold thread make them. ``token``: what a `Hello` must bring; "": nothing."""
        self.ownership = ownership
        self.instance = ownership.instance
        self.token = token
        self.waiting = 0
        self.answered: dict[str, int] = {}
        """Rows and tables answered, by freshness."""
        self._make_checkpoints = make_checkpoints
        self._server: asyncio.Server | None = None
        self.connections: set[FrontConnection] = set()
        """Those that are open; each adds and removes itself."""
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
            self._server = await loop.create_server(lambda: FrontConnection(self), host, port)
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
        for connection in list(self.connections):
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
                return Welcome(request.id, VERSION, self.instance)

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
