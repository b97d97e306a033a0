"""Descriptions of row tables: which columns are the key, and whether rows may be cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from time import monotonic
from typing import NamedTuple

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
RENEWED_EVERY_S = 1.0
"""How often at most a table is described again because an owner means something else by its keys.

A table that may not be cached is described again as often: after DDL it may not be for a moment only, until the source
knows the columns of its position.
"""


class Described(NamedTuple):
    """A description, and when it was asked for. ``table``: None if there is no such table.

    ``is_source``: the source describes it, or nobody can who knows better. An owner's may be of before a DDL.
    """

    asked_at: float
    table: RowTable | None
    is_source: bool


class Descriptions:
    """Descriptions by table, from any owner, else from the source. Kept for ``keep_s`` seconds, if it may be cached."""

    def __init__(self, owners: Owners, *, keep_s: float = 10.0, clock: Callable[[], float] = monotonic) -> None:
        self._owners = owners
        self._keep_s = keep_s
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, RowTable]] = {}
        """(keyspace, table) → when its description was asked for, and what it says."""
        self._renewed: dict[tuple[str, str], float] = {}
        """(keyspace, table) → when the source was asked for the last description of its own."""
        self._flights: Flights[tuple[str, str], RowSpace, Described] = Flights(self._describe)
        self._renewals: Flights[tuple[str, str], RowSpace, Described] = Flights(self._describe_at_source)

    def now(self) -> float:
        """The time that `describes_since` compares with."""
        return self._clock()

    async def get(self, space: RowSpace, name: str) -> RowTable:
        """The description of ``db.table``. Raises `ReadError` ``unknown_table``, ``no_owner`` or the source's."""
        known = self._known.get((space.name, name))
        if known is not None and self._is_recent(*known):
            return known[1]
        try:
            found = await self._flights.read((space.name, name), space, lambda _: True)
        except ReadError:
            if known is None:
                raise
            return known[1]  # nothing can describe it now; at worst a key is looked up in its old form and not found
        return self._keep(space, name, found)

    def _is_recent(self, asked_at: float, table: RowTable) -> bool:
        keep_s = self._keep_s if table.cacheable else min(self._keep_s, RENEWED_EVERY_S)
        return asked_at + keep_s > self._clock()

    def describes_since(self, space: RowSpace, name: str, moment: float) -> bool:
        """Whether the source was asked for the description at ``moment`` or later. An owner may be behind."""
        return self._renewed.get((space.name, name), -inf) >= moment

    async def renew(self, space: RowSpace, name: str, moment: float) -> None:
        """Describes the table from the source, at ``moment`` or later. Raises as `get`.

        An owner may not have folded the latest DDL. It is asked for the keyspace's layout.
        """
        if not self.describes_since(space, name, moment):
            found = await self._renewals.read((space.name, name), space, lambda each: each.asked_at >= moment)
            self._keep(space, name, found)

    def _keep(self, space: RowSpace, name: str, found: Described) -> RowTable:
        known, renewed = self._known.get((space.name, name)), self._renewed.get((space.name, name), -inf)
        if known is not None and (renewed if found.is_source else known[0]) > found.asked_at:
            return known[1]
        if found.table is None:
            self._known.pop((space.name, name), None)
            self._renewed.pop((space.name, name), None)
            raise ReadError("unknown_table", f"keyspace {space.name} has no table {name}")
        if len(self._known) >= TABLES_MAX:
            self._known.clear()
            self._renewed.clear()
        if found.is_source:
            self._renewed[space.name, name] = found.asked_at
        self._known[space.name, name] = (found.asked_at, found.table)
        return found.table

    async def _describe(
        self, wanted: Mapping[tuple[str, str], RowSpace]
    ) -> Mapping[tuple[str, str], Described | Exception]:
        return {key: await self._describe_one(space, key[1]) for key, space in wanted.items()}

    async def _describe_at_source(
        self, wanted: Mapping[tuple[str, str], RowSpace]
    ) -> Mapping[tuple[str, str], Described | Exception]:
        return {key: await self._describe_one(space, key[1], from_source=True) for key, space in wanted.items()}

    async def _describe_one(self, space: RowSpace, name: str, *, from_source: bool = False) -> Described:
        """From any owner, since every partition has every table's description; else, or if wanted, from the source."""
        asked_at, described = self._clock(), None
        try:
            described = await self._ask_owners(space, name)
        except OwnerAway:
            if space.source is None:
                raise
        if space.source is not None and (described is None or from_source):
            return Described(asked_at, await space.describe(name), True)
        return Described(asked_at, described, from_source)

    async def _ask_owners(self, space: RowSpace, name: str) -> RowTable | None:
        """What an owner has folded, None if none has folded a description with a key. Adopts the keyspace's layout."""

        async def ask(client: OwnerClient, _: int) -> Description:
            return await client.describe(space.name, name)

        described = await self._owners.ask_any(
            space.name, range(space.layout.partitions), ask, lambda found: found.found
        )
        if described.layout:
            space.layout = Layout.parse(described.layout)
        return table_of(described) if described.found and described.primary_key else None


def table_of(described: Description) -> RowTable:
    """An owner's description as a `RowTable`."""
    columns = {
        column.name: Column(column.name, column.kind, column.exact, column.sql_type) for column in described.columns
    }
    key = tuple(columns[name] for name in described.primary_key)
    return RowTable(
        described.table, key, described.cacheable, described.reason, described.prefix, tuple(columns.values())
    )
