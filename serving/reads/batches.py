"""Batches: many reads under one demand, put together into one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from serving.errors import ReadError
from serving.http.answers import envelope_bytes, problem_bytes
from serving.reads.demands import ReadDemand, RowWanted, TableWanted
from serving.reads.rows import Answered, RowReads
from serving.reads.spaces import RowSpace, TableSpace
from serving.reads.tables import TableReads
from tokens import Vector

TABLE_READS_MAX = 16
"""Tables of one batch that are read at a time."""

_FROM_STRONG_TO_WEAK = ("fresh", "eventual", "stale", "unknown")


class RowBatches:
    """Answers ``POST /v1/rows/{keyspace}:batch``."""

    def __init__(self, rows: RowReads) -> None:
        self._rows = rows

    async def read(self, space: RowSpace, wanted: Sequence[RowWanted], demand: ReadDemand) -> Answered:
        """One `RowBatchAnswer`. Raises `ReadError` ``history_lost``."""
        return _together(b"rows", await self._rows.read_many(space, wanted, demand), demand)


class TableBatches:
    """Answers ``POST /v1/tables:batch``."""

    def __init__(self, tables: TableReads) -> None:
        self._tables = tables

    async def read(self, wanted: Sequence[tuple[TableSpace, TableWanted]], demand: ReadDemand) -> Answered:
        """One `TableBatchAnswer`. Raises `ReadError` ``history_lost``."""
        gate = asyncio.Semaphore(TABLE_READS_MAX)

        async def one(space: TableSpace, table: TableWanted) -> Answered | ReadError:
            async with gate:
                try:
                    return await self._tables.read(space, table, demand)
                except ReadError as error:
                    return error

        return _together(b"tables", await asyncio.gather(*(one(*each) for each in wanted)), demand)


def _together(name: bytes, elements: Sequence[Answered | ReadError], demand: ReadDemand) -> Answered:
    """One answer. A lost history concerns the whole session, so it is the whole answer."""
    vector, weakest, sources, failed = demand.vector, 0, 0, 0
    parts = []
    for element in elements:
        if isinstance(element, ReadError):
            if element.code == "history_lost":
                raise element
            failed += 1
            parts.append(problem_bytes(element))
            continue
        vector = vector.merge(Vector.parse(element.token)) if element.token else vector
        weakest = max(weakest, _FROM_STRONG_TO_WEAK.index(element.freshness))
        sources += element.served_from == "source"
        parts.append(element.body)
    served = len(elements) - failed
    freshness = _FROM_STRONG_TO_WEAK[weakest] if served else "unknown"
    why = f"{served - sources} from the cache, {sources} from the source, {failed} failed"
    served_from = "source" if sources else "cache"
    token = str(vector)
    envelope = envelope_bytes(served_from, freshness, why, token)
    body = b"".join((envelope, b',"', name, b'":[', b",".join(parts), b"]}"))
    return Answered(200, body, served_from, freshness, token)
