"""Fronts and sessions: the real ones, over simulated owners and a source of truth that answers when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from consumers.owner.protocol import OwnerRow
from consumers.owner.ranges.order import values_in
from lab.simulation.models.fronts import answered, front_with
from lab.simulation.models.network import METRICS, Network, Route
from lab.simulation.models.truth import Image
from lab.simulation.rows.source import (
    INDEXES,
    SCHEMAS,
    SLOT_OF,
    SLOTS,
    SLOTS_A_SHARD,
    RowSnapshot,
    SimulatedSource,
    image_of,
)
from serving.answers import RawRowAnswer
from serving.client import AsyncSession, HistoryLost, wire
from serving.client.answers import Row, RowBatchAnswer
from serving.client.wire import HttpRequest, HttpResponse
from serving.errors import ReadError
from serving.http.locating.routes import LocationParameters, get_location
from serving.http.query import RangeParameters, RowBatchBody, RowBatchParameters, RowParameters
from serving.http.route import body_of
from serving.http.routes import find_rows, get_row, get_rows
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.locations import LocationReads
from serving.reads.lookups.lookup import ReadContext, RowLookup, RowMiss, RowOutcome
from serving.reads.lookups.sources import SourceLookups
from serving.reads.owners import Owners
from serving.reads.proof import Proof
from serving.reads.ranges.reading import RangeReads
from serving.reads.rows import RowReads
from serving.reads.spaces import Epochs, RowSpace
from serving.sources.mariadb import row_table
from serving.sources.source import RowTable, SchemaChanged, SourceKey, SourceRange, SourceRow
from stream.sources.key_range import KeyRange
from stream.wire.keys import Layout, row_key
from tokens import Position, Vector

KEYSPACE: Final = "s"
DESCRIBED: Final = {name: row_table(info) for name, info in SCHEMAS.items()}
KNOWN_TABLES: Final = {(KEYSPACE, name): (0.0, table) for name, table in DESCRIBED.items()}


def keyspace_of(shard: int) -> str:
    """The name by which readers ask for the rows of a shard. A front reads through from one shard for each name."""
    return f"{KEYSPACE}{shard or ''}"


class Seen(NamedTuple):
    """What a session has really seen of a shard: everything up to a commit of a history."""

    history: int
    commit: int


class SimulatedSession:
    """A reader: the real client session, and what it has really seen."""

    def __init__(self, number: int, front: SimulatedFront, vector: Vector | None = None) -> None:
        self.number = number
        self.front = front
        """The front that gets its next request."""
        self.client = AsyncSession(self.send, vector or Vector())
        self.seen: dict[str, Seen] = {}
        self.shards_written: set[str] = set()
        """Shards that it wrote to. The epoch of a write is the one that the front names, which may be wrong."""
        self.misplaced: set[str] = set()
        """Shards in whose lost history it has placed a write. A 409 takes that write from it."""
        self.uncertain: set[str] = set()
        """Shards of which it saw something when the change of history could not be known. They are not judged."""

    def saw(self, shard: str, history: int, index: int) -> None:
        """Records that it saw, or wrote, commit ``index``."""
        before = self.seen.get(shard)
        if before is None or (history, index) > before:
            self.seen[shard] = Seen(history, index)

    async def send(self, request: HttpRequest) -> HttpResponse:
        """The front's response to a request."""
        return await self.front.answer(request)


class SnapshotRow(SourceRow):
    """A row as the source gave it, and the snapshot that it is of. ``noted``: its position was noted around it."""

    snapshot: RowSnapshot
    noted: bool


class Read:
    """One read of a session: what it asked for, what it had seen then, and the evidence that the front got."""

    def __init__(
        self, session: SimulatedSession, keys: Sequence[bytes], *, given: bool, last_known: bool = False
    ) -> None:
        self.session = session
        self.front = session.front
        self.keys = keys
        self.given = given
        """Whether the request has a token."""
        self.last_known = last_known
        """Whether an image of before a void will do."""
        self.demand = Vector()
        self.seen: dict[str, Seen] = {}
        self.uncertain: set[str] = set()
        self.rows: dict[bytes, OwnerRow] = {}
        """What owners answered last."""
        self.source: dict[bytes, tuple[Proof, SnapshotRow]] = {}
        """What the source answered, and what it was judged by."""
        self.snapshot_history = -1
        """The history in which the source was read for a range; -1: it was not."""
        self.left: Vector | None = None
        """What a 409 left of the session's vector. A late answer of another read may add to it at once."""
        self.task: asyncio.Task[list[Row]]

    def make_current(self) -> None:
        """The task of this read gets evidence from now on."""
        _read.set(self)

    def begin(self, request: HttpRequest) -> None:
        """Notes what the request demands, and what the session has really seen."""
        token = request.params.get("token", "")
        if request.body:
            token = msgspec.json.decode(request.body).get("token", "")
        self.demand = Vector.parse(token) if token else Vector()
        self.seen, self.uncertain = dict(self.session.seen), set(self.session.uncertain)

    async def run(self, max_wait_ms: int) -> list[Row]:
        """Reads as an application does. Raises `ClientError`."""
        try:
            return await self._ask(max_wait_ms)
        except HistoryLost:
            self.left = self.session.client.vector
            raise

    async def _ask(self, max_wait_ms: int) -> list[Row]:
        self.make_current()
        client, slots = self.session.client, [SLOTS[SLOT_OF[key]] for key in self.keys]
        values = [
            slot.values if key == slot.key else slot.alias_values for key, slot in zip(self.keys, slots, strict=True)
        ]
        keyspace = keyspace_of(SLOT_OF[self.keys[0]] // SLOTS_A_SHARD)
        wait = max_wait_ms or None
        if not self.given:
            request = wire.row_request(
                keyspace, slots[0].table, values[0], {"last_known": "true"} if self.last_known else {}
            )
            return [wire.read_row(*await self.session.send(request))]
        if len(slots) == 1:
            return [await client.get_row(keyspace, slots[0].table, *values[0], max_wait_ms=wait)]
        keys = [(slot.table, each) for slot, each in zip(slots, values, strict=True)]
        return await client.get_rows(keyspace, keys, max_wait_ms=wait)


_read: ContextVar[Read] = ContextVar("read")


SourceAnswer: TypeAlias = list[SourceRow | ReadError | SchemaChanged]


class SourceRead:
    """A read of the source that is under way. ``snapshots``: None until they are taken, all at once."""

    __slots__ = ("answered", "front", "keys", "named", "noted", "shard", "snapshots")

    def __init__(self, front: SimulatedFront, shard: int, keys: list[bytes], noted: str) -> None:
        self.front = front
        self.shard = shard
        self.keys = keys
        self.noted = noted
        """The source's position when the read began."""
        self.snapshots: list[RowSnapshot] | None = None
        self.named = True
        """Whether the snapshots name their position."""
        self.answered: asyncio.Future[SourceAnswer]

    def rows(self, hi: str) -> SourceAnswer:
        """The answer. ``hi``: the source's position now, which counts if the snapshots have none."""
        assert self.snapshots is not None
        rows: SourceAnswer = []
        for key, snapshot in zip(self.keys, self.snapshots, strict=True):
            named = self.named or not self.noted
            own = SLOTS[SLOT_OF[key]].key if snapshot.image is not None else b""
            lo, until = (snapshot.position, snapshot.position) if named else (self.noted, hi)
            row = SnapshotRow(snapshot.image, own, Position.parse(lo), Position.parse(until), snapshot.timestamp)
            row.snapshot, row.noted = snapshot, not named
            rows.append(row)
        return rows


class Answering(Protocol):
    """The world, as its fronts need it."""

    def begin_source_read(self, read: SourceRead) -> SourceAnswer | None:
        """The answer, if the source gives it at once."""

    def went_back(self, what: str) -> None:
        """A front uses an epoch of which it knows that it is over."""

    def called_fresh(self, what: str) -> None:
        """A front says more of an answer than is true."""


class SimulatedRowSource:
    """The source of truth as a front reads it. The world says when a read is answered."""

    def __init__(self, front: SimulatedFront, source: SimulatedSource, world: Answering) -> None:
        self.shard = source.name
        self._front = front
        self._source = source
        self._world = world

    async def describe(self, table: str) -> RowTable | None:
        """See `serving.sources.source.RowSource`."""
        return DESCRIBED.get(table)

    async def read(self, wanted: Sequence[SourceKey]) -> SourceAnswer:
        """See `serving.sources.source.RowSource`."""
        return await self._read([row_key(each.table.name, each.values) for each in wanted])

    async def read_range(self, table: RowTable, wanted: KeyRange) -> SourceRange:
        """See `serving.sources.source.RowSource`. The keys of the model's tables are in order."""
        first = self._source.first_slot
        keys = [slot.key for slot in SLOTS[first : first + SLOTS_A_SHARD] if slot.table == table.name]
        found = await self._read(keys)
        seen = [(key, row) for key, row in zip(keys, found, strict=True) if isinstance(row, SnapshotRow)]
        assert len(seen) == len(keys)
        at = seen[0][1]
        _read.get().snapshot_history = at.snapshot.history
        leading, after = list(wanted.leading), list(wanted.after or [])
        rows = [(key, row.image, values_in(key)) for key, row in seen if row.image is not None]
        rows = [row for row in rows if row[2][: len(leading)] == leading]
        rows = [row for row in rows if all(msgspec.json.decode(row[1])[name] == v for name, v in wanted.where)]
        if not wanted.limit:
            number = min(len(rows), wanted.count_max) if wanted.count_max else len(rows)
            return SourceRange((), number, False, at.position, at.hi)
        rows = [row for row in rows if not after or (row[2] < after if wanted.descending else row[2] > after)]
        given = [(key, image) for key, image, _ in (rows[::-1] if wanted.descending else rows)[: wanted.limit]]
        return SourceRange(given, len(given), len(given) < len(rows), at.position, at.hi)

    async def _read(self, keys: list[bytes]) -> SourceAnswer:
        source = self._source
        read = SourceRead(self._front, source.shard, keys, source.history.positions[source.engine])
        found = self._world.begin_source_read(read)
        if found is not None:
            return found
        read.answered = asyncio.get_running_loop().create_future()
        return await read.answered

    async def wait(self, position: Position, timeout_s: float, tables: Collection[str]) -> bool:
        """See `serving.sources.source.RowSource`."""
        del timeout_s, tables
        source = self._source
        return Position.parse(source.history.positions[source.engine]).at_or_past(position)

    async def close(self) -> None:
        """There is nothing to close."""


class ObservedReads(RowReads):
    """The real reads. They show the evidence of each answer to the read that gets it."""

    def __init__(self, owners: Owners, descriptions: Descriptions, fills: Fills, world: Answering) -> None:
        super().__init__(owners, descriptions, fills, METRICS)
        self.told: dict[str, int] = {}
        """Shard → the highest epoch in an owner's answer."""
        self._sources = ObservedSources(owners, fills, self.told, world)

    def _from_owner(self, lookup: RowLookup, row: OwnerRow | None, why: str) -> RawRowAnswer | ReadError | RowMiss:
        if row is not None:
            _read.get().rows[lookup.key.key] = row
            self.told[row.shard] = max(self.told.get(row.shard, 0), row.epoch)
        return super()._from_owner(lookup, row, why)


class ObservedSources(SourceLookups):
    """The real reads of sources. ``told``: those of `ObservedReads`."""

    def __init__(self, owners: Owners, fills: Fills, told: dict[str, int], world: Answering) -> None:
        super().__init__(owners, fills, METRICS)
        self._epochs_told = told
        self._world = world

    async def read(self, context: ReadContext, misses: Sequence[RowMiss]) -> list[RowOutcome]:
        assert context.space.source is not None
        _told.set(self._epochs_told.get(context.space.source.shard, 0))
        return await super().read(context, misses)

    def _from_source_row(self, miss: RowMiss, proof: Proof, found: SourceRow | Exception) -> RowOutcome:
        if isinstance(found, SnapshotRow):
            _read.get().source[miss.lookup.key.key] = proof, found
        told = _told.get()
        if (proof.epoch or 0) < told:
            self._world.went_back(f"a front knows epoch {told} of {proof.shard}, but uses {proof.epoch}")
        return super()._from_source_row(miss, proof, found)


_told: ContextVar[int] = ContextVar("told")


class SimulatedFront:
    """A front's process: the real handlers and reads. ``route`` says which owner it believes in."""

    def __init__(
        self,
        number: int,
        network: Network,
        sources: Sequence[SimulatedSource],
        layout: Layout,
        world: Answering,
        *,
        knows_tables: bool,
    ) -> None:
        self.number = number
        self._world = world
        self.route = Route(network)
        owners, epochs = self.route.owners, Epochs()
        spaces = {
            keyspace_of(source.shard): RowSpace(
                KEYSPACE, layout, source=SimulatedRowSource(self, source, world), epochs=epochs, indexes=INDEXES
            )
            for source in sources
        }
        self.spaces = spaces
        fills = Fills(owners, METRICS)
        descriptions = Descriptions(owners, clock=network.loop.time)
        if knows_tables:
            descriptions._known.update(KNOWN_TABLES)
        self.reads = ObservedReads(owners, descriptions, fills, world)
        ranges = RangeReads(owners, descriptions, METRICS)
        self._front = front_with(
            row_spaces=spaces,
            rows=self.reads,
            ranges=ranges,
            locations=LocationReads(owners, self.route.locations, spaces),
        )

    async def find_owners_again(self) -> None:
        """Tries those that have failed, as the next reads would."""
        owners = self.route.owners
        for replica in list(self.route.locations.cache.down):
            owners._probe(replica)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """The response to a request, as the guard sends it."""
        return await answered(self._handle(request))

    async def _handle(self, request: HttpRequest) -> Any:
        _, _, kind, keyspace, *rest = request.path.split("/")
        if kind == "locations":
            place = LocationParameters(keyspace, int(rest[0]), request.params.get("token", ""))
            return await get_location(self._front, place, None)
        _read.get().begin(request)
        if request.body:
            body = body_of(RowBatchBody, request.body)
            response = await get_rows(self._front, RowBatchParameters(keyspace.removesuffix(":batch")), body)
            self._check_summary(response.body)
            return response
        if len(rest) == 1:
            where = {name: value for name, value in request.params.items() if name.startswith("where.")}
            columns = {name.removeprefix("where."): value for name, value in where.items()}
            options = {name: value for name, value in request.params.items() if name not in where}
            found = {"keyspace": keyspace, "table": rest[0], "columns": columns, **options}
            return await find_rows(self._front, msgspec.convert(found, RangeParameters, strict=False), None)
        named = {"keyspace": keyspace, "table": rest[0], "pk": rest[1], **request.params}
        return await get_row(self._front, msgspec.convert(named, RowParameters, strict=False), None)

    def _check_summary(self, body: bytes) -> None:
        """Clients get the rows only; but the batch must not be called fresher than one of them."""
        batch = _batch.decode(body)
        said = [bytes(row) for row in batch.rows if b'"served_from"' in bytes(row)]
        if batch.freshness == "fresh" and any(b'"freshness":"fresh"' not in row for row in said):
            self._world.called_fresh("a batch is called fresh, and not all of its rows are")


_batch = msgspec.json.Decoder(RowBatchAnswer[msgspec.Raw])


class ServedAnswer(NamedTuple):
    """A row as the session gets it, and the evidence for it. ``history``: of the source's snapshot; -1: the cache's."""

    read: Read
    key: bytes
    image: Image
    served_from: str
    freshness: str
    why: str
    token: Vector
    shard: str
    epoch: int | None
    hi: str
    history: int

    @property
    def slot(self) -> int:
        """The number of the row's slot."""
        return SLOT_OF[self.key]


def answer_of(read: Read, key: bytes, row: Row) -> ServedAnswer:
    """A row of an answer, with its evidence."""
    value = row.value
    image = image_of(value["v"]) if value is not None else None
    token = Vector.parse(row.token) if row.token else Vector()
    said = (read, key, image, row.served_from, row.freshness, row.why, token)
    if row.served_from == "cache":
        owner = read.rows[key]
        return ServedAnswer(*said, owner.shard, owner.epoch, owner.hi, -1)
    proof, found = read.source[key]
    return ServedAnswer(*said, proof.shard, proof.epoch, str(found.hi), found.snapshot.history)
