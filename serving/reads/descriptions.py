"""Descriptions of row tables: which columns are the key, and whether rows may be cached."""

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
"""A key that does not fit a description older than this is checked against a new description before it is refused."""


class Descriptions:
    """Descriptions by table, from any owner, else from the source. Cached for ``keep_s`` seconds."""

    def __init__(self, owners: Owners, *, keep_s: float = 10.0, clock: Callable[[], float] = monotonic) -> None:
        self._owners = owners
        self._keep_s = keep_s
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, RowTable]] = {}
        self._flights: Flights[tuple[str, str], RowSpace, RowTable | None] = Flights(self._describe)

    async def get(self, space: RowSpace, name: str) -> RowTable:
        """The description of ``db.table``. Raises `ReadError` ``unknown_table``, ``no_owner`` or the source's."""
        known = self._known.get((space.name, name))
        if known is not None and known[0] > self._clock():
            return known[1]
        try:
            found = await self._flights.read((space.name, name), space, lambda _: True)
        except ReadError:
            if known is None:
                raise
            return known[1]  # nothing can describe it now; at worst a key is looked up in its old form and not found
        return self._keep(space, name, found)

    def schema_may_be_stale(self, space: RowSpace, name: str) -> bool:
        """Whether the description is older than `TRUSTED_FOR_S`, so that a key may fail to fit because of DDL."""
        known = self._known.get((space.name, name))
        return known is not None and known[0] - self._keep_s + TRUSTED_FOR_S < self._clock()

    async def renew(self, space: RowSpace, name: str) -> None:
        """Describes the table from the source: an owner may not have folded the latest DDL. Raises as `get`."""
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
        """From any owner, since every partition has every table's description; else from the source."""

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
    """An owner's description as a `RowTable`."""
    columns = {column.name: Column(column.name, column.kind, column.exact) for column in described.columns}
    key = tuple(columns[name] for name in described.primary_key)
    return RowTable(described.table, key, described.cacheable, described.reason, described.prefix)
