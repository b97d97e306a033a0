"""Fronts and readers of catalog tables: the real ones, over simulated owners and a metastore that is a model."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

import msgspec

from consumers.owner.protocol import OwnerTable
from lab.simulation.catalog.publishing import SHARD
from lab.simulation.models.fronts import answered, front_with
from lab.simulation.models.network import METRICS, Network, Route
from serving.client import AsyncSession
from serving.client.answers import Table
from serving.client.wire import HttpRequest, HttpResponse
from serving.http.query import TableParameters
from serving.http.routes import get_table
from serving.reads.fills import Fills
from serving.reads.spaces import TableSpace
from serving.reads.tables import TableLookup, TableReads
from serving.sources.source import NOTHING, Folded, SourceTable
from stream.wire.keys import Layout
from tokens import Vector

CATALOG: Final = "d"


class Lists(NamedTuple):
    """One table's id and write-id list, as a reader fetched them. ``own``: its transaction, or 0."""

    name: str
    table_id: int
    write_ids: str
    own: int


class CatalogReader:
    """A session. ``seen``: table id → the event whose state the reader has seen."""

    def __init__(self, number: int, front: SimulatedCatalogFront, vector: Vector | None = None) -> None:
        self.number = number
        self.client = AsyncSession(front.answer, vector or Vector())
        self.lists: Lists | None = None
        self.seen: dict[int, int] = {}


class TableRead:
    """One read, and the evidence that the front got for it. ``demand``: what the session had seen."""

    def __init__(self, reader: CatalogReader, lists: Lists, table_id: int) -> None:
        self.reader = reader
        self.lists = lists
        self.table_id = table_id
        self.demand = reader.client.vector
        self.owner: OwnerTable | None = None
        """What the owner answered."""
        self.source: SourceTable | None = None
        """What the source answered last."""

    async def run(self) -> Table:
        """Reads as an application does. Raises `ClientError`."""
        _read.set(self)
        db, _, table = self.lists.name.partition(".")
        write_ids = self.lists.write_ids or None
        return await self.reader.client.get_table(db, table, write_ids, self.table_id, catalog=CATALOG)


_read: ContextVar[TableRead] = ContextVar("read")


class Metastores(Protocol):
    """The world, as its fronts need it."""

    def read_metastore(self, name: str, own_list: str | None) -> SourceTable:
        """What the metastore answers now."""


class SimulatedTableSource:
    """The metastore as a front reads it."""

    shard = SHARD

    def __init__(self, world: Metastores) -> None:
        self._world = world

    async def read(self, name: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:  # noqa: ARG002 - `TableSource`'s
        """See `serving.sources.source.TableSource`."""
        found = _read.get().source = self._world.read_metastore(name, own_list)
        return found

    async def close(self) -> None:
        """There is nothing to close."""


class ObservedTableReads(TableReads):
    """The real reads. They show the owner's answer to the read that gets it."""

    async def _ask_owners(self, lookup: TableLookup, *, as_struct: bool = False) -> OwnerTable:
        found = await super()._ask_owners(lookup, as_struct=as_struct)
        _read.get().owner = found
        return found


class SimulatedCatalogFront:
    """A front's process: the real handler and reads. ``route`` says which owner it believes in."""

    def __init__(self, network: Network, layout: Layout, world: Metastores) -> None:
        self.route = Route(network)
        owners = self.route.owners
        space = TableSpace(CATALOG, layout, source=SimulatedTableSource(world))
        self._front = front_with(
            table_spaces={CATALOG: space}, tables=ObservedTableReads(owners, Fills(owners, METRICS), METRICS)
        )

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """The response to a request for a table, as the guard sends it."""
        _, _, _, db, table = request.path.split("/")
        named = {"db": db, "table": table, **request.params}
        return await answered(get_table(self._front, msgspec.convert(named, TableParameters, strict=False), None))
