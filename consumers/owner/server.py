"""The owner's server: answers the owner protocol from the stores of this process. asyncio, one thread.

A request is answered while its frame is read; only one that waits gets a task. Limits: bytes per frame, keys per
request, requests that wait per connection (the next ones don't) and under way per process (``too_busy``).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from consumers.fold.shards import kin_of
from consumers.fold.state import Lineage
from consumers.owner.connection import HELLO_TIMEOUT_S, FrontConnection
from consumers.owner.evidence import FillVerdict, demand_of, has_reached, refused, watermarks
from consumers.owner.leasing import Lease
from consumers.owner.objects.answering import answer_few, answer_objects, no_objects
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
    Drain,
    Fill,
    Filled,
    FillTable,
    Get,
    GetObjects,
    GetRange,
    GetTable,
    Hello,
    OwnerError,
    OwnerObjects,
    OwnerRow,
    OwnerTable,
    RangeRows,
    Request,
    Rows,
    ShardKin,
    Standing,
    Status,
    Verified,
    Wait,
    Waited,
    Welcome,
)
from consumers.owner.ranges.answering import answer_range
from consumers.owner.reporting import describe_table, status_of
from consumers.owner.rows import answer_rows, fill_row
from consumers.owner.tables import answer_table, fill_table, find_home, find_table, no_table
from stream.access.audit import Audit
from stream.access.certificates import Certificates
from stream.access.grants import Access
from stream.access.handshake import Accepted
from stream.access.listening import check_listener
from tokens import Demand, Vector

Found = TypeVar("Found", OwnerRow, OwnerTable)
_MOVED: Final = "look up the owner in freshet.locations again"
Stands = Callable[[str, int], Standing | None]
"""(keyspace, partition) → who owns it, as this process knows. Must not block."""
MakeCheckpoints = Callable[[list[Partition]], Awaitable[list[CheckpointPlace]]]


class OwnerServer:
    """Answers for the partitions in ``ownership``."""

    def __init__(
        self,
        ownership: Ownership,
        make_checkpoints: MakeCheckpoints,
        *,
        access: Access | None = None,
        files: Certificates | None = None,
        plain: bool = False,
    ) -> None:
        """``make_checkpoints`` runs in the fold thread. ``access``: who may ask; None: everybody.

        ``files``: of TLS; with an authority every client must show a certificate of it. ``plain``: it may listen
        beyond loopback without TLS.
        """
        self.ownership = ownership
        self.stands: Stands = lambda *_: None
        """Set by whoever reads the announcements."""
        self.drain: Callable[[], None] = lambda: None
        """Begins to give the partitions away. Set by whoever folds them. Must not block."""
        self.access = access or Access()
        self.audit = Audit("owner")
        self._files = files or Certificates()
        self._plain = plain
        self.waiting = 0
        self.answered: dict[str, int] = {}
        """Rows and tables answered, by freshness."""
        self._make_checkpoints = make_checkpoints
        self._server: asyncio.Server | None = None
        self.connections: set[FrontConnection] = set()
        """Open connections, also amid their handshakes; each adds and removes itself."""
        self.ungreeted: dict[FrontConnection, None] = {}
        """Those of them that have not greeted yet, the oldest first; the same."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def instance(self) -> str:
        """As `Ownership.instance`."""
        return self.ownership.instance

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Listens; returns host and port.

        Raises `OwnerError` ``cannot_listen``, `CertificateError`; as `check_owner` for an address beyond this machine.
        """
        check_owner(host, self.access, self._files, plain=self._plain, what="the owner protocol")
        secured = self._files.server(demand=True)

        def accepted() -> asyncio.Protocol:
            connection = FrontConnection(self)
            return connection if secured is None else Accepted(connection, secured, HELLO_TIMEOUT_S)

        try:
            self._server = await asyncio.get_running_loop().create_server(accepted, host, port)
        except OSError as error:
            raise OwnerError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="set consumer.owner_port to a free port, or to 0 for any",
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

    def _partition(self, keyspace: str, number: int, topic_id: str = "") -> Partition:
        """The owned partition. Raises `OwnerError` ``not_owner``, also if it is of another topic than ``topic_id``."""
        found = self.ownership.get(keyspace, number)
        if found is None:
            refused = OwnerError(f"this process does not own {keyspace}/{number}", hint=_MOVED, code="not_owner")
        elif topic_id and found.topic.topic_id != topic_id:
            refused = _other_topic(keyspace, topic_id)
        else:
            return found
        refused.moved = self.stands(keyspace, number)
        raise refused

    def _partitions(self, request: GetTable | GetObjects | Status | Describe) -> list[Partition]:
        """The owned partitions of the request's keyspace. Raises `OwnerError` ``not_owner`` for another topic."""
        owned = self.ownership.of(request.keyspace)
        if request.topic_id and any(each.topic.topic_id != request.topic_id for each in owned):
            raise _other_topic(request.keyspace, request.topic_id)
        return owned

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        """The answer, or a coroutine that waits for it. Raises `FreshetError` or ``ValueError`` for a bad request."""
        match request:
            case Get():
                return self._get(request)
            case GetRange():
                return self._get_range(request)
            case GetTable():
                return self._get_table(request)
            case GetObjects():
                return self._get_objects(request)
            case Fill():
                partition = self._partition(request.keyspace, request.partition, request.topic_id)
                return Filled(request.id, *self._fill(partition, request))
            case FillTable():
                partition = self._partition(request.keyspace, request.partition, request.topic_id)
                accepted, why = fill_table(partition, request)
                return Filled(request.id, accepted, why)
            case Wait():
                return self._wait(request)
            case Status():
                return status_of(self.ownership, self._partitions(request), request.id, self.stands)
            case Drain():
                self.drain()
                return status_of(self.ownership, self.ownership.of(""), request.id, self.stands)
            case Describe():
                return describe_table(self._partitions(request), request)
            case Checkpoint():
                return self._checkpoint(request)
            case Verified():
                return self._note_verdicts(request)
            case Hello():
                return Welcome(request.id, VERSION, self.instance)

    def _get(self, request: Get) -> Answer | Coroutine[Any, Any, Answer]:
        if len(request.keys) > KEYS_MAX:
            raise OwnerError(
                f"{len(request.keys)} keys in one request", hint=f"send at most {KEYS_MAX}", code="bad_request"
            )
        demand = demand_of(request.vector, not_before_ms=request.not_before_ms)

        def read(partition: Partition) -> list[OwnerRow]:
            return answer_rows(partition, request, demand)

        def read_one(partition: Partition, number: int) -> OwnerRow:
            return answer_rows(partition, replace(request, keys=[request.keys[number]]), demand)[0]

        def reply(rows: list[OwnerRow]) -> Rows:
            return Rows(request.id, rows)

        partition = self._partition(request.keyspace, request.partition, request.topic_id)
        found = self._answer_or_wait(partition, request.max_wait_ms, read, read_one, reply)
        if isinstance(found, Rows):
            lease = self._lease(partition, request, found.rows)
            if lease is None:
                self._count(found.rows)
                return found
            return self._get_filled(request, read, found.rows, lease)
        assert asyncio.iscoroutine(found)
        return self._get_later(request, read, found)

    async def _get_later(
        self, request: Get, read: Callable[[Partition], list[OwnerRow]], found: Awaitable[Answer]
    ) -> Answer:
        answer = await found
        assert isinstance(answer, Rows)
        partition = self._partition(request.keyspace, request.partition, request.topic_id)
        lease = self._lease(partition, request, answer.rows)
        return await self._get_filled(request, read, answer.rows, lease)

    async def _get_filled(
        self, request: Get, read: Callable[[Partition], list[OwnerRow]], rows: list[OwnerRow], lease: Lease | None
    ) -> Answer:
        """Waits once for the fill of another front, and reads again."""
        if lease is not None:
            await asyncio.wait([lease.ended], timeout=lease.until - asyncio.get_running_loop().time())
            partition = self._partition(request.keyspace, request.partition, request.topic_id)
            rows = read(partition)
            self._lease(partition, request, rows)
        self._count(rows)
        return Rows(request.id, rows)

    def _lease(self, partition: Partition, request: Get, rows: Sequence[OwnerRow]) -> Lease | None:
        """See `Leases.take`. A follower gets no fills, so it gives no leases."""
        if not request.holder or all(row.served or not row.needs_source for row in rows):
            return None
        standing = self.stands(request.keyspace, request.partition)
        if standing is not None and standing.instance != self.instance:
            return None
        return partition.leases.take(request.keys, rows, request.holder, asyncio.get_running_loop().time())

    def _fill(self, partition: Partition, request: Fill) -> FillVerdict:
        """Keeps a fill if it may be kept, and ends its lease in any case."""
        verdict = refused("there is nothing to keep")
        try:
            if request.lo:
                verdict = fill_row(partition, request)
        finally:
            partition.leases.end(request.key, request.stamp if request.stamp and not verdict.accepted else None)
        return verdict

    def _get_range(self, request: GetRange) -> Answer | Coroutine[Any, Any, Answer]:
        """The first rows of a range. Waits for markers while those can make it servable."""
        if max(request.limit, request.columns) > KEYS_MAX or min(request.limit, request.columns, request.count_max) < 0:
            raise OwnerError(f"{request.limit} rows in one request", hint=f"ask for {KEYS_MAX}", code="bad_request")
        demand = demand_of(request.vector, not_before_ms=request.not_before_ms)
        partition = self._partition(request.keyspace, request.partition, request.topic_id)
        seen = partition.store.visible.lineages
        steps = answer_range(partition, request, demand)
        found = _next_step(steps)
        if found is not None and (request.max_wait_ms <= 0 or not _may_wait(found)):
            self._count([found])
            return found
        return self._get_range_later(request, demand, seen, steps, found)

    async def _get_range_later(
        self,
        request: GetRange,
        demand: Demand,
        seen: Mapping[str, Lineage],
        steps: Generator[None, None, RangeRows],
        found: RangeRows | None,
    ) -> Answer:
        """Goes on with ``steps``, or waits if ``found`` is their end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms, WAIT_MS_MAX) / 1000
        place = request.keyspace, request.partition, request.topic_id
        while True:
            while found is None:
                await asyncio.sleep(0)  # others are answered meanwhile
                found = _next_step(steps)
            left_ms = round(1000 * (deadline - loop.time()))
            if not _may_wait(found) or left_ms <= 0:
                self._count([found])
                return found

            def has_moved(partition: Partition, seen: Mapping[str, Lineage] = seen) -> bool:
                return partition.store.visible.lineages != seen

            await self._wait_until(self._partition(*place), left_ms, has_moved)
            partition = self._partition(*place)
            seen = partition.store.visible.lineages
            steps = answer_range(partition, request, demand)
            found = _next_step(steps)

    def _get_table(self, request: GetTable) -> Answer | Coroutine[Any, Any, Answer]:
        demand = demand_of(request.vector, request.write_ids, request.table_id, request.not_before_ms)
        owned = self._partitions(request)
        if not owned:
            raise OwnerError(f"this process owns no partition of {request.keyspace}", code="not_owner")
        table_id, number = find_table(owned, request.name, request.table_id)
        demand = _of_bound(request, demand, table_id)

        def read(partition: Partition) -> list[OwnerTable]:
            return [answer_table(partition, request.name, table_id, demand, as_struct=request.as_struct)]

        def read_one(partition: Partition, _: int) -> OwnerTable:
            return read(partition)[0]

        def reply(tables: list[OwnerTable]) -> OwnerTable:
            self._count(tables)
            tables[0].id = request.id
            return tables[0]

        if not table_id:
            return reply([no_table(-1, 0, f"{request.name} is not bound to a table here")])
        home = self.ownership.get(request.keyspace, number)
        if home is None:
            return reply([no_table(number, table_id, f"table {table_id} is in partition {number}", elsewhere=True)])
        return self._answer_or_wait(home, request.max_wait_ms, read, read_one, reply)

    def _get_objects(self, request: GetObjects) -> Answer | Coroutine[Any, Any, Answer]:
        """Few objects are looked at here, others in a thread. Waits for what can make them servable."""
        demand = demand_of(request.vector, request.write_ids, request.table_id, request.not_before_ms)
        owned = self._partitions(request)
        if not owned:
            raise OwnerError(f"this process owns no partition of {request.keyspace}", code="not_owner")
        if len(request.names) > KEYS_MAX:
            raise OwnerError(
                f"{len(request.names)} names in one request", hint=f"send at most {KEYS_MAX}", code="bad_request"
            )
        table_id, number = find_home(owned, request.table, request.table_id)
        demand = _of_bound(request, demand, table_id)
        if number < 0:
            return no_objects(0, -1, f"{request.table} is not bound to a table here", id=request.id)
        home = self.ownership.get(request.keyspace, number)
        if home is None:
            return no_objects(table_id, number, f"it is in partition {number}", elsewhere=True, id=request.id)
        found = answer_few(home, request, table_id, demand)
        if found is not None and (request.max_wait_ms <= 0 or found.code or not _may_wait(found)):
            return self._objects(found, request.id)
        return self._get_objects_later(request, demand, table_id, number)

    async def _get_objects_later(self, request: GetObjects, demand: Demand, table_id: int, number: int) -> Answer:
        deadline = asyncio.get_running_loop().time() + min(request.max_wait_ms, WAIT_MS_MAX) / 1000
        while True:
            home = self._partition(request.keyspace, number, request.topic_id)
            folded = home.store.visible.offset  # before it is read, so that no change is missed
            found = await asyncio.to_thread(answer_objects, home, request, table_id, demand)
            left_ms = round(1000 * (deadline - asyncio.get_running_loop().time()))
            if not _may_wait(found) or found.code or left_ms <= 0:
                return self._objects(found, request.id)
            await self._wait_until(home, left_ms, partial(_has_folded, folded))

    def _objects(self, found: OwnerObjects, request_id: int) -> OwnerObjects:
        self._count([found])
        found.id = request_id
        return found

    def _count(self, answers: Sequence[OwnerRow | OwnerTable | OwnerObjects | RangeRows]) -> None:
        for answer in answers:
            self.answered[answer.freshness] = self.answered.get(answer.freshness, 0) + 1

    def _answer_or_wait(
        self,
        partition: Partition,
        max_wait_ms: int,
        read: Callable[[Partition], list[Found]],
        read_one: Callable[[Partition, int], Found],
        reply: Callable[[list[Found]], Answer],
    ) -> Answer | Coroutine[Any, Any, Answer]:
        """The ``reply`` to what ``read`` returns, at once or when no part of it can become servable by waiting.

        Meanwhile only the first part that waits is looked at, by ``read_one``: so whenever a marker comes, a long
        request costs no more than a short one.
        """
        found = read(partition)
        waits = _first_that_waits(found)
        if max_wait_ms <= 0 or waits is None:
            return reply(found)

        async def later() -> Answer:
            def is_done(partition: Partition) -> bool:
                nonlocal waits
                if waits is not None and not _may_wait(read_one(partition, waits)):
                    found[:] = read(partition)
                    waits = _first_that_waits(found)
                return waits is None

            if not await self._wait_until(partition, max_wait_ms, is_done):
                found[:] = read(self._partition(partition.keyspace, partition.number, partition.topic.topic_id))
            return reply(found)

        return later()

    async def _wait(self, request: Wait) -> Answer:
        vector = Vector.parse(request.vector) if request.vector else Vector()
        place = request.keyspace, request.partition, request.topic_id
        is_reached = await self._wait_until(
            self._partition(*place), request.max_wait_ms, lambda partition: has_reached(partition, vector)
        )
        partition = self._partition(*place)
        head = partition.store.visible
        shards = [
            ShardKin(name, each.epoch, kin_of(head, name).heard(partition.ready))
            for name, each in sorted(head.lineages.items())
        ]
        return Waited(request.id, is_reached, str(watermarks(partition)), shards)

    async def _wait_until(self, asked: Partition, max_wait_ms: int, is_done: Callable[[Partition], bool]) -> bool:
        """Calls ``is_done`` whenever the partition's watermark has moved; False if the time is up first.

        The partition may have been given away and taken back meanwhile, so it is looked up anew each time.
        """
        place = asked.keyspace, asked.number, asked.topic.topic_id
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max_wait_ms, WAIT_MS_MAX) / 1000
        while True:
            partition = self._partition(*place)
            moved = loop.create_future()
            partition.waiters[moved] = None  # before checking, so that no change is missed
            try:
                if is_done(partition):
                    return True
                remaining = deadline - loop.time()
                if remaining <= 0:
                    return False
                async with asyncio.timeout(remaining):
                    await moved
            except TimeoutError:
                return is_done(self._partition(*place))
            finally:
                partition.waiters.pop(moved, None)

    def _note_verdicts(self, request: Verified) -> Answer:
        for each in request.verdicts:
            partition = self.ownership.get(request.keyspace, each.partition)
            if partition is not None:  # its next owner was not audited
                partition.verdict = each
        return status_of(self.ownership, self.ownership.of(request.keyspace), request.id, self.stands)

    async def _checkpoint(self, request: Checkpoint) -> Answer:
        if request.partition < 0:
            wanted = self.ownership.of(request.keyspace)
        else:
            wanted = [self._partition(request.keyspace, request.partition)]
        if not wanted:
            raise OwnerError(f"this process owns no partition of {request.keyspace}", code="not_owner")
        return Checkpoints(request.id, await self._make_checkpoints(wanted))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` as a task; `stop` cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _other_topic(keyspace: str, topic_id: str) -> OwnerError:
    why = f"this process follows another topic as {keyspace} than {topic_id}"
    return OwnerError(why, hint=_MOVED, code="not_owner")


def _next_step(steps: Generator[None, None, RangeRows]) -> RangeRows | None:
    """The answer if the next step is the last one."""
    try:
        next(steps)
    except StopIteration as done:
        found: RangeRows = done.value
        return found
    return None


def _of_bound(request: GetTable | GetObjects, demand: Demand, table_id: int) -> Demand:
    """The demand of whoever takes the table that has the name (`GetTable.as_struct`)."""
    is_bound = request.as_struct and demand.write_ids is not None and not request.table_id
    return dataclasses.replace(demand, table_id=table_id) if is_bound else demand


def _has_folded(offset: int, partition: Partition) -> bool:
    """Whether the partition has folded something since that offset."""
    return partition.store.visible.offset != offset


def _first_that_waits(found: Sequence[OwnerRow | OwnerTable]) -> int | None:
    """The place of the first part that can become servable by waiting."""
    return next((place for place, each in enumerate(found) if _may_wait(each)), None)


def _may_wait(answer: OwnerRow | OwnerTable | OwnerObjects | RangeRows) -> bool:
    """Whether the answer can become servable by waiting."""
    return not answer.served and not answer.needs_source


def check_owner(host: str, access: Access, files: Certificates, *, plain: bool, what: str) -> None:
    """Raises `OpenListenRefused`, `PlainListenRefused`. ``what`` listens: the owner protocol, or metrics."""
    check_listener(
        host,
        what=what,
        section="consumer",
        setting="consumer.owner_token or [consumer.tokens.NAME]",
        has_access=not access.is_open,
        is_encrypted=plain or bool(files.certificate),
    )
