"""What a front knows of a keyspace: its layout, its tables, its source, and the epochs of its shards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from consumers.owner.protocol import Description
from serving.errors import ReadError
from serving.reads.flight import Flights
from serving.reads.owners import OwnerAway, Owners
from serving.sources.source import RowSource, RowTable, TableSource
from stream.wire.events import Column
from stream.wire.keys import Layout
from tokens import Vector

TABLES_MAX = 10_000
DOUBTED_AFTER_S = 1.0
"""A description older than this is asked for again before a key is refused by it; younger, so is every wrong key."""
_NOTHING_DEMANDED = str(Vector())


@dataclass(slots=True)
class Epochs:
    """The highest epoch that any answer named, by shard."""

    known: dict[str, int] = field(default_factory=dict)

    def learn(self, shard: str, epoch: int) -> None:
        """Takes note of an answer's epoch."""
        if shard and epoch > self.known.get(shard, -1):
            self.known[shard] = epoch


@dataclass(slots=True)
class RowSpace:
    """A keyspace of rows. ``database``: what a table name without a dot belongs to; "" for none."""

    name: str
    layout: Layout
    database: str = ""
    source: RowSource | None = None
    epochs: Epochs = field(default_factory=Epochs)

    def full_name(self, table: str) -> str:
        """``db.table``. Raises `ReadError` ``unknown_table``."""
        if "." in table:
            return table
        if not self.database:
            raise ReadError("unknown_table", f"{table!r} has no database", hint="name it as db.table")
        return f"{self.database}.{table}"


@dataclass(slots=True)
class TableSpace:
    """A keyspace of catalog tables, named after its catalog."""

    name: str
    layout: Layout
    source: TableSource | None = None
    epochs: Epochs = field(default_factory=Epochs)


async def learn_epochs(owners: Owners, space: RowSpace | TableSpace, shard: str) -> int | None:
    """The epoch of ``shard``: as known, else as any owner of the keyspace says; None if nobody does."""
    if shard in space.epochs.known:
        return space.epochs.known[shard]
    asked: set[str | None] = set()
    for partition in range(space.layout.partitions):
        address = owners.address_of(space.name, partition)
        if address in asked:
            continue
        asked.add(address)
        with suppress(OwnerAway):
            await learn_watermarks(owners, space, partition)
            if shard in space.epochs.known:
                return space.epochs.known[shard]
    return None


async def learn_watermarks(owners: Owners, space: RowSpace | TableSpace, partition: int) -> str:
    """A partition's watermarks as a vector's text; takes note of their epochs. Raises `OwnerAway`."""
    waited = await owners.ask(
        space.name, partition, lambda client: client.wait(space.name, partition, _NOTHING_DEMANDED, 0)
    )
    for shard, component in Vector.parse(waited.watermarks).items():
        space.epochs.learn(shard, component.epoch)
    return waited.watermarks


class Tables:
    """The keys of row tables, as the owners describe them, or else the source. Kept for ``keep_s`` seconds."""

    def __init__(self, owners: Owners, *, keep_s: float = 10.0, clock: Callable[[], float] = monotonic) -> None:
        self._owners = owners
        self._keep_s = keep_s
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, RowTable]] = {}
        self._flights: Flights[tuple[str, str], RowTable | None] = Flights()

    async def get(self, space: RowSpace, name: str) -> RowTable:
        """The table ``db.table``. Raises `ReadError` ``unknown_table``, ``no_owner`` or what the source raises."""
        known = self._known.get((space.name, name))
        if known is not None and known[0] > self._clock():
            return known[1]
        try:
            found = await self._flights.read((space.name, name), lambda _: True, lambda: self._describe(space, name))
        except ReadError:
            if known is None:
                raise
            # Nobody can be asked: a key in a form that was right is looked up under that key, or not found there.
            return known[1]
        return self._keep(space, name, found)

    def is_old(self, space: RowSpace, name: str) -> bool:
        """Whether the table was described so long ago that a key which doesn't fit is a reason to ask again."""
        known = self._known.get((space.name, name))
        return known is not None and known[0] - self._keep_s + DOUBTED_AFTER_S < self._clock()

    async def renew(self, space: RowSpace, name: str) -> None:
        """Has the source describe the table: an owner may not have folded yet that it was altered. Raises as `get`."""
        self._known.pop((space.name, name), None)
        if space.source is not None:
            self._keep(space, name, await space.source.describe(name))

    def _keep(self, space: RowSpace, name: str, found: RowTable | None) -> RowTable:
        if found is None:
            self._known.pop((space.name, name), None)
            raise ReadError("unknown_table", f"keyspace {space.name} has no table {name}")
        if len(self._known) >= TABLES_MAX:
            self._known.clear()
        self._known[space.name, name] = (self._clock() + self._keep_s, found)
        return found

    async def _describe(self, space: RowSpace, name: str) -> RowTable | None:
        away: OwnerAway | None = None
        try:
            described = await self._ask_owners(space, name)
            if described.layout:
                space.layout = Layout.parse(described.layout)
            if described.found and described.primary_key:
                return table_of(described)
        except OwnerAway as error:
            away = error
        if space.source is not None:
            return await space.source.describe(name)
        if away is not None:
            raise away
        return None

    async def _ask_owners(self, space: RowSpace, name: str) -> Description:
        """Every partition has every table's description: the first owner that knows it will do."""
        away: OwnerAway | None = None
        unknown: Description | None = None
        asked: set[str | None] = set()
        for partition in range(space.layout.partitions):
            address = self._owners.address_of(space.name, partition)
            if address in asked:
                continue
            asked.add(address)
            try:
                described = await self._owners.ask(
                    space.name, partition, lambda client: client.describe(space.name, name)
                )
            except OwnerAway as error:
                away = error
                continue
            if described.found:
                return described
            unknown = described
        if unknown is not None:
            return unknown
        raise away or OwnerAway(f"no process has announced that it owns a partition of {space.name}")


def table_of(described: Description) -> RowTable:
    """The owner's description as the front uses it."""
    columns = {column.name: Column(column.name, column.kind, column.exact) for column in described.columns}
    key = tuple(columns[name] for name in described.primary_key)
    return RowTable(described.table, key, described.cacheable, described.reason)
