"""Owners and sources that answer what a test sets, and keep what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import pytest

from consumers.fold.entry import VALUE
from consumers.owner.client import Identity
from consumers.owner.protocol import (
    UNKNOWN_KEY,
    Description,
    Fill,
    Filled,
    FillTable,
    Get,
    OwnerError,
    OwnerRow,
    OwnerTable,
    Rows,
    SchemaColumn,
    Waited,
)
from serving.locations.places import Key, Location, Replica, Version
from serving.locations.queues import Batch
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand
from serving.reads.owners import Owners
from serving.sources.source import NOTHING, Folded, RowTable, SourceKey, SourceRange, SourceRow, SourceTable
from stream.sources.key_range import KeyRange
from stream.wire.keys import row_key
from tokens import Position, Vector

STAMP = b"stamp"
AWAY = OwnerError("it does not answer", code="owner_unreachable")


def at(gtid: str) -> Position:
    """``0-1-5`` as a position."""
    return Position.parse(f"MariaDB/{gtid}")


def seen(shard: str, gtid: str, epoch: int = 1) -> Vector:
    """What a session has seen of one shard."""
    return Vector({shard: (epoch, at(gtid))})


def demand_of(vector: Vector) -> ReadDemand:
    """A demand with a token."""
    return ReadDemand(vector, given=True)


def owner_row(image: bytes | None, lo: str, hi: str, *, shard: str = "shop/0", epoch: int = 1) -> OwnerRow:
    """An owner's answer: served if it has an image, else one that only the source can answer."""
    served = image is not None
    places = (str(at(lo)), str(at(hi)), 1, "", "")
    kind, name = (VALUE, "fresh") if served else (UNKNOWN_KEY, "unknown")
    return OwnerRow(kind, image, name, "why", served, not served, shard, epoch, *places, STAMP)


def owner_table(image: bytes | None, *, table_id: int = 7, epoch: int = 1) -> OwnerTable:
    """As `owner_row`, for a catalog table of the shard hive/0 from 0-1-5 to 0-1-9."""
    served, lo, hi = image is not None, str(at("0-1-5")), str(at("0-1-9"))
    name = "fresh" if served else "unknown"
    decided = (name, "why", served, not served, "hive/0", epoch, lo, hi, "", "")
    return OwnerTable(0, table_id, 0, image, "", *decided, b"stamp")


def items_of(columns: Sequence[str] = ("id",), primary_key: Sequence[str] = ("id",)) -> Description:
    """The description of shop.items, with integer columns."""
    described = [SchemaColumn(name, "int", True) for name in columns]
    return Description(0, True, "", "shop.items", described, list(primary_key), True)


class FakeOwner:
    """Answers as `consumers.owner.client.OwnerClient` does. ``failure`` is raised by every request."""

    def __init__(self, *, failure: OwnerError | None = None, watermarks: Vector | None = None) -> None:
        self.failure = failure
        self.watermarks = str(watermarks or Vector())
        self.row = owner_row(None, "0-1-1", "0-1-1")
        self.table = owner_table(None)
        self.description = items_of()
        self.asked: list[str] = []
        self.fills: list[Fill | FillTable] = []

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        if self.failure is not None:
            raise self.failure

    async def greet(self) -> None:
        self._ask("greet")

    async def close(self) -> None:
        self._ask("close")

    async def get(self, _: str, __: int, keys: list[bytes], *___: object) -> list[OwnerRow]:
        self._ask("get")
        return [self.row for _ in keys]

    async def answer(self, request: Get, _: object) -> Rows:
        demand = request.not_before_ms, request.holder, request.last_known
        wanted = request.keys, request.vector, request.max_wait_ms, request.meanings
        return Rows(0, await self.get(request.keyspace, request.partition, *wanted, *demand))

    async def answers(self, requests: Sequence[Get], kind: object) -> list[Rows | OwnerError]:
        found: list[Rows | OwnerError] = []
        for each in requests:
            try:
                found.append(await self.answer(each, kind))
            except OwnerError as refused:
                if refused.code in ("owner_unreachable", "owner_timeout"):
                    raise
                found.append(refused)
        return found

    async def get_table(self, *_: object, **__: object) -> OwnerTable:
        self._ask("get_table")
        return self.table

    async def wait(self, *_: object) -> Waited:
        self._ask("wait")
        return Waited(0, True, self.watermarks)

    async def describe(self, *_: object) -> Description:
        self._ask("describe")
        return self.description

    async def fill_rows(self, fills: Sequence[Fill]) -> list[Filled]:
        self._ask("fill_rows")
        self.fills += fills
        return [Filled(0, True, "") for _ in fills]

    async def fill_table(self, fill: FillTable) -> Filled:
        self._ask("fill_table")
        self.fills.append(fill)
        return Filled(0, True, "")


class Network:
    """Which owner is at which address, and where a partition is announced. ``tokens``: those that were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_address: Mapping[str, FakeOwner]) -> None:
        self.at_address = dict(at_address)
        self.announced: dict[int, list[str]] = {0: list(at_address)[:1]}
        """Partition → the addresses that are announced, one after the other; the last one stays."""
        self.keyspaces: tuple[str, ...] = ("shop", "hive", "bank")
        """Those whose partitions are announced, all at the same addresses."""
        self.tokens: list[str] = []
        self._followers: tuple[Replica, ...] = ()
        self._shown: dict[int, list[str]] = {}
        self._withdrawn = set[int]()
        self._change = 0
        monkeypatch.setattr("serving.reads.owners.OwnerClient", self._connect)

    def owners(
        self,
        *,
        fixed: Mapping[tuple[str, int], str] | None = None,
        followers: Sequence[Replica] = (),
        zone: str = "",
        clock: Callable[[], float] = monotonic,
        **options: Any,
    ) -> Owners:
        """The front's owners. ``followers``: of partition 0."""
        self._followers = tuple(followers)
        return Owners(Locations(self, fixed=fixed, zone=zone, clock=clock), FrontMetrics(), **options)

    def _connect(self, address: str, *, identity: Identity, **_: object) -> FakeOwner:
        self.tokens.append(identity.secret())
        return self.at_address[address]

    @property
    def change(self) -> int:
        """See `serving.locations.refreshing.Directory`."""
        now = {number: list(each) for number, each in self.announced.items()}
        if now != self._shown:
            self._withdrawn |= self._shown.keys() - now.keys()
            self._shown = now
            self._change += 1
        return self._change

    def changed(self, after: int) -> tuple[int, list[Location]]:
        """See there."""
        change = self.change
        found = [self._location(key) for key in self._keys()] if after != change else []
        for addresses in self.announced.values():
            if len(addresses) > 1:
                addresses.pop(0)
        return change, found

    async def read(self, batch: Batch) -> dict[Key, Location]:
        """See there."""
        return {key: self._location(key) for key in batch.keys if key in self._keys()}

    def _keys(self) -> set[Key]:
        numbers = self.announced.keys() | self._withdrawn
        return {Key(keyspace, number) for keyspace in self.keyspaces for number in numbers}

    def _location(self, key: Key) -> Location:
        addresses = self.announced.get(key.partition, [])
        leader = Replica(addresses[0]) if addresses else None
        followers = self._followers if key.partition == 0 else ()
        return Location(key, Version(self._change), leader, followers, place=self._change)


class FakeRowSource:
    """A `serving.sources.source.RowSource` whose every row is ``image``. ``gate`` holds its answers back."""

    def __init__(self, image: bytes | None, position: str, hi: str = "", *, shard: str = "shop/0") -> None:
        self.image, self.position, self.hi, self.shard = image, at(position), at(hi or position), shard
        self.reads = 0
        self.described: RowTable | None = None
        self.descriptions = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def describe(self, _: str) -> RowTable | None:
        self.descriptions += 1
        return self.described

    async def read(self, wanted: Sequence[SourceKey]) -> list[Any]:
        self.reads += 1
        found = [
            SourceRow(self.image, row_key(key.table.name, key.values), self.position, self.hi, 1) for key in wanted
        ]
        await self.gate.wait()
        return found

    async def read_range(self, table: RowTable, _: KeyRange) -> SourceRange:
        self.reads += 1
        rows = [(row_key(table.name, [7]), self.image)] if self.image is not None else []
        return SourceRange(rows, len(rows), False, self.position, self.hi)

    async def wait(self, *_: object) -> bool:
        return False

    async def close(self) -> None:
        pass


class FakeTableSource:
    """A `serving.sources.source.TableSource`. ``lists``: those that it was asked for, ``known``: what is folded."""

    shard = "hive/0"

    def __init__(self, shared: SourceTable, own: SourceTable | None = None) -> None:
        self._shared, self._own = shared, own
        self.lists: list[str | None] = []
        self.known: list[Folded] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self, _: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:
        self.lists.append(own_list)
        self.known.append(known)
        await self.gate.wait()
        return self._own if own_list is not None and self._own is not None else self._shared

    async def close(self) -> None:
        pass
