"""Rows whose owners prove no answer: read from the sources of truth, and offered to the owners."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import msgspec

from consumers.fold.entry import VALUE
from consumers.owner.protocol import Fill, OwnerRow
from serving.client.answers import RowAnswer
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import NO_OPTIONS
from serving.reads.fills import Fills
from serving.reads.flight import Flights
from serving.reads.lookups.lookup import ReadContext, RowMiss, RowOutcome, answer
from serving.reads.owners import Owners
from serving.reads.proof import Proof, ReadBetween, merged_tokens, reached_by
from serving.reads.rowkey import RowKey
from serving.reads.spaces import epoch_of, learn_shards
from serving.sources.source import RowSource, SchemaChanged, SourceKey, SourceRow
from serving.turns import in_turns
from stream.spans import source_span

COMMIT_S = 0.1
"""How long the source is waited for in any case: a token may hold a transaction that it is just committing."""


RowFlightKey: TypeAlias = tuple[str, bytes, bytes, str, int | None]
"""Keyspace, key, what the key means, shard whose source is read, and its epoch.

Positions of another epoch belong to another history and must not be compared.
"""


class SourceLookups:
    """Reads misses. Readers of one key share a read of its source. Belongs to one event loop."""

    def __init__(self, owners: Owners, fills: Fills, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._fills = fills
        self._metrics = metrics
        self._flights: Flights[RowFlightKey, RowMiss, SourceRow] = Flights(self._fetch, metrics.source_shared.inc)

    async def read(self, context: ReadContext, misses: Sequence[RowMiss]) -> list[RowOutcome]:
        """The sources' answers in the order of ``misses``: each key is read from its shard's, side by side.

        Where that has no row, and another spelling of the key may name one of another shard, the others are asked too.
        """
        if context.space.map is None:
            assert context.space.source is not None
            return await self._from_shard(context, context.space.source, misses)
        groups: dict[str, tuple[RowSource, list[int]]] = {}
        for place, miss in enumerate(misses):
            source = context.space.source_of(miss.lookup.key.key, miss.lookup.table)
            assert source is not None
            groups.setdefault(source.shard, (source, []))[1].append(place)
        outcomes: list[RowOutcome | None] = [None] * len(misses)
        parts = [
            self._from_shard(context, source, [misses[place] for place in places]) for source, places in groups.values()
        ]
        for (_, places), part in zip(groups.values(), await asyncio.gather(*parts), strict=True):
            for place, outcome in zip(places, part, strict=True):
                outcomes[place] = outcome
        found = cast("list[RowOutcome]", outcomes)
        await self._by_other_spellings(context, misses, found)
        return found

    async def _by_other_spellings(
        self, context: ReadContext, misses: Sequence[RowMiss], outcomes: list[RowOutcome]
    ) -> None:
        """Writes what other shards have by another spelling of the keys of which the own one has no row.

        Each shard that was asked is a part of the answer, also where it has no row.
        """
        space = context.space
        left = [at for at, miss in enumerate(misses) if not miss.lookup.key.exact and _is_absent(outcomes[at])]
        for source in space.sources if left else ():
            places = [
                at for at in left if not space.is_of(source.shard, misses[at].lookup.key.key, misses[at].lookup.table)
            ]
            if not places:
                continue
            found = await self._from_shard(context, source, [misses[at]._replace(source=source) for at in places])
            async for some in in_turns(zip(places, found, strict=True)):
                for at, each in some:
                    outcomes[at] = _beside_absence(each, outcomes[at])
                    if not _is_absent(each):
                        left.remove(at)

    async def _from_shard(self, context: ReadContext, source: RowSource, misses: Sequence[RowMiss]) -> list[RowOutcome]:
        """One source's answers in the order of ``misses``. A source that lags is waited for until the deadline."""
        space, vector = context.space, context.demand.vector
        await learn_shards(self._owners, space, vector, context.deadline, source.shard)
        epoch = await epoch_of(self._owners, space, source.shard)
        proof = Proof(context.demand, source.shard, epoch, space.epochs.kin_of(source.shard, vector))
        proof.reached = reached_by(proof, (miss.row for miss in misses if miss.row is not None))

        def proves(seen: SourceRow) -> bool:
            return proof.judge(seen.position, seen.as_of_ms).may_be_served

        of = source.shard, proof.epoch
        flight_keys = [(space.name, miss.lookup.key.key, miss.lookup.table.meaning, *of) for miss in misses]
        wanted = dict(zip(flight_keys, misses, strict=True))
        found = await self._flights.read_many(wanted, proves)
        behind = {
            flight_key: wanted[flight_key]
            async for some in in_turns(found.items())
            for flight_key, seen in some
            if isinstance(seen, SourceRow) and proof.is_behind(seen.position, seen.as_of_ms)
        }
        remaining = max(context.deadline - asyncio.get_running_loop().time(), COMMIT_S)
        if behind and proof.demanded_position is not None:
            tables = {miss.lookup.table.name for miss in behind.values()}
            try:
                await source.wait(proof.demanded_position, remaining, tables)
                found |= await self._flights.read_many(behind, proves)
            except ReadError as error:
                found |= dict.fromkeys(behind, error)
        return [
            self._from_source_row(miss, proof, found[flight_key])
            async for some in in_turns(zip(flight_keys, misses, strict=True))
            for flight_key, miss in some
        ]

    def _from_source_row(self, miss: RowMiss, proof: Proof, found: SourceRow | Exception) -> RowOutcome:
        if isinstance(found, ReadError | SchemaChanged):
            return found
        if not isinstance(found, SourceRow):
            raise found
        decision = proof.judge(found.position, found.as_of_ms)
        if not decision.may_be_served:
            return proof.refusal(decision, found.position, miss.lookup.context.space.mapped)
        lookup, own, image = miss.lookup, None, found.image
        if image is not None and not lookup.key.exact:  # a row that was left where its key does not belong is none
            image = image if lookup.context.space.is_of(proof.shard, found.key, lookup.table) else None
        if lookup.context.options is not NO_OPTIONS and proof.epoch is not None:
            own = ReadBetween(proof.shard, proof.epoch, found.timestamp, found.position, found.hi)
        why = f"read from the source at {found.position}: {decision.why}; the cache: {miss.why}"
        token = proof.token_after(str(found.hi))
        return answer(lookup, "source", decision.freshness.value, why, token, image, own)

    async def _fetch(self, misses: Mapping[RowFlightKey, RowMiss]) -> dict[RowFlightKey, SourceRow | Exception]:
        """Reads one source in one snapshot, and offers the owners what may be cached."""
        lookup, *_, source = next(iter(misses.values()))
        space = lookup.context.space
        source = source or space.source_of(lookup.key.key, lookup.table)
        assert source is not None
        self._metrics.source_reads.inc(len(misses))
        self._metrics.source_snapshots.inc()
        wanted = [SourceKey(miss.lookup.table, miss.lookup.key.values) for miss in misses.values()]
        try:
            with source_span("row", source.shard):
                found = await source.read(wanted)
        except BaseException as error:
            if isinstance(error, ReadError):
                self._metrics.source_failures.inc(len(misses))
            for miss in misses.values():
                self._give_up(miss)
            raise
        self._metrics.source_failures.inc(sum(isinstance(each, ReadError) for each in found))
        fills: dict[int, list[Fill]] = {}
        async for some in in_turns(zip(misses.values(), found, strict=True)):
            for miss, each in some:
                fill = _fill_of(miss, each, source.shard) if isinstance(each, SourceRow) else None
                if fill is not None:
                    fills.setdefault(fill.partition, []).append(fill)
                else:
                    self._give_up(miss)
        for partition, of_partition in fills.items():
            self._fills.offer_rows(space.name, partition, of_partition)
        return dict(zip(misses, found, strict=True))

    def _give_up(self, miss: RowMiss) -> None:
        """Tells the owner that this front does not fill a key which it has a lease of."""
        (context, table, key), row = miss.lookup, miss.row
        if row is None or not row.leased:
            return
        partition = context.space.layout.partition_of(key.key, table.prefix)
        self._fills.give_up(Fill(0, context.space.name, partition, key.key, None, "", "", 0, b""))


def _fill_of(miss: RowMiss, found: SourceRow, shard: str) -> Fill | None:
    """The fill to offer to the owner, or None if the answer must not be cached. ``shard``: whose source was read."""
    (context, table, key), row = miss.lookup, miss.row
    space = context.space
    if row is None or not may_offer(row, shard, key, found):
        return None
    lo, hi = str(found.kept or found.position), str(found.hi)
    partition = space.layout.partition_of(key.key, table.prefix)
    return Fill(0, space.name, partition, key.key, found.image, lo, hi, found.timestamp, row.stamp, table.meaning)


def _is_absent(outcome: RowOutcome) -> bool:
    """Whether a row is known not to be there."""
    return isinstance(outcome, RowAnswer) and not outcome.found


def _beside_absence(outcome: RowOutcome, absence: RowOutcome) -> RowOutcome:
    """What another shard says of a key of which the shards before have no row (``absence``). Its row counts, if any.

    The session has seen all of them: else it could be given the row that one of them had before, by a front that reads
    a replica of it.
    """
    if not isinstance(outcome, RowAnswer) or not isinstance(absence, RowAnswer):
        return outcome
    return msgspec.structs.replace(
        outcome if outcome.found else absence,
        freshness=outcome.freshness if absence.freshness == "fresh" else absence.freshness,
        why=f"{absence.why}; {outcome.why}",
        token=merged_tokens(absence.token, outcome.token),
    )


def may_offer(row: OwnerRow, shard: str, key: RowKey, found: SourceRow) -> bool:
    """Whether the source's answer for ``key`` may be offered to the owner, which answered ``row``.

    It must not replace a value of the stream. It must not stand for a row whose key is or may be spelled differently.
    ``shard`` must be the one that the owner assigns the key to: positions of another shard would prove nothing.
    """
    own_key = found.key == key.key if found.image is not None else key.exact
    return own_key and row.shard == shard and (row.filled or row.kind != VALUE)
