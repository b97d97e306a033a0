"""The keys of row tables, as the owners describe them, or else the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import Description
from serving.errors import ReadError
from serving.reads.flight import Flights
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable
from stream.wire.events import Column
from stream.wire.keys import Layout

TABLES_MAX = 10_000
TRUSTED_FOR_S = 1.0
"""A description older than this is asked for again before a key is refused by it; younger, it is taken as it is."""


class Descriptions:
    """The keys of row tables, as the owners describe them, or else the source. Kept for ``keep_s`` seconds."""

    def __init__(self, owners: Owners, *, keep_s: float = 10.0, clock: Callable[[], float] = monotonic) -> None:
        self._owners = owners
        self._keep_s = keep_s
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, RowTable]] = {}
        self._flights: Flights[tuple[str, str], RowSpace, RowTable | None] = Flights(self._describe)

    async def get(self, space: RowSpace, name: str) -> RowTable:
        """The table ``db.table``. Raises `ReadError` ``unknown_table``, ``no_owner`` or what the source raises."""
        known = self._known.get((space.name, name))
        if known is not None and known[0] > self._clock():
            return known[1]
        try:
            found = await self._flights.read((space.name, name), space, lambda _: True)
        except ReadError:
            if known is None:
                raise
            # There is nobody to ask: a key in a form that was right is looked up under that key, or not found there.
            return known[1]
        return self._keep(space, name, found)

    def schema_may_be_stale(self, space: RowSpace, name: str) -> bool:
        """Whether the table was described so long ago that a key which doesn't fit is a reason to ask again."""
        known = self._known.get((space.name, name))
        return known is not None and known[0] - self._keep_s + TRUSTED_FOR_S < self._clock()

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

    async def _describe(
        self, wanted: Mapping[tuple[str, str], RowSpace]
    ) -> Mapping[tuple[str, str], RowTable | Exception | None]:
        return {(space.name, name): await self._describe_one(space, name) for (_, name), space in wanted.items()}

    async def _describe_one(self, space: RowSpace, name: str) -> RowTable | None:
        """As an owner describes it: each partition has every table's description. Else as the source does."""

        async def ask(client: OwnerClient, _: int) -> Description:
            return await client.describe(space.name, name)

        try:
            described = await self._owners.ask_any(
                space.name, range(space.layout.partitions), ask, lambda found: found.found
            )
        except OwnerAway:
            if space.source is None:
                raise
            return await space.source.describe(name)
        if described.layout:
            space.layout = Layout.parse(described.layout)
        if described.found and described.primary_key:
            return table_of(described)
        return await space.source.describe(name) if space.source is not None else None


def table_of(described: Description) -> RowTable:
    """The owner's description as the front uses it."""
    columns = {column.name: Column(column.name, column.kind, column.exact) for column in described.columns}
    key = tuple(columns[name] for name in described.primary_key)
    return RowTable(described.table, key, described.cacheable, described.reason)
