"""Reads of rows: from the owners of the keys, and from the sources of truth where an owner cannot prove its answer."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from consumers.owner.protocol import HISTORY_LOST, KEYS_MAX, SCHEMA_CHANGED, Get, OwnerRow, Rows
from serving.answers import RawRowAnswer
from serving.client.answers import FreshnessName, ServedFrom
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.misses import NEVER_CACHED, miss_reason
from serving.reads.demands import NO_OPTIONS, ReadDemand, RequestedRow, RowOptions
from serving.reads.descriptions import RENEWED_EVERY_S, Descriptions
from serving.reads.fills import Fills
from serving.reads.lookups.lookup import ReadContext, RowLookup, RowMiss, RowOutcome, answer
from serving.reads.lookups.sources import SourceLookups
from serving.reads.owners import AnswerTooLarge, OtherPartition, OwnerAway, Owners
from serving.reads.proof import ReadBetween, history_lost_error, lost_at_the_source, token_after, unknown_shards_error
from serving.reads.rowkey import RowKey, parse_row_key, too_long
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable, SchemaChanged
from serving.turns import in_turns
from tokens import Position

_Part: TypeAlias = tuple[int, list[int]]
"""A partition, and the places of the rows of a request that are asked of its owner at once."""
_Settle: TypeAlias = Callable[[int, OwnerRow | None, str, bool], None]


class RowReads:
    """Answers reads of rows. Belongs to one event loop."""

    def __init__(self, owners: Owners, descriptions: Descriptions, fills: Fills, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._descriptions = descriptions
        self._holder = uuid.uuid4().hex
        """By which owners know whom they gave a lease to."""
        self._metrics = metrics
        self._sources = SourceLookups(owners, fills, metrics)

    async def read_many(
        self, space: RowSpace, wanted: Sequence[RequestedRow], demand: ReadDemand, options: RowOptions = NO_OPTIONS
    ) -> list[RawRowAnswer | ReadError]:
        """Rows in the order of ``wanted``, each an answer or its error. All misses are one read of the source.

        Raises `ReadError` ``bad_token`` if an owner rejects the demand.
        """
        deadline = asyncio.get_running_loop().time() + demand.max_wait_ms / 1000
        context = ReadContext(space, demand, options, deadline, self._descriptions.now())
        outcomes: list[RowOutcome | None] = [None] * len(wanted)
        await self._read_round(context, wanted, range(len(wanted)), outcomes)
        changed = [index for index, each in enumerate(outcomes) if isinstance(each, SchemaChanged)]
        undescribed: dict[str, ReadError] = {}
        if changed:
            undescribed = await self._describe_again(context, {str(outcomes[index]) for index in changed})
            for index in changed:
                error = undescribed.get(str(outcomes[index]))
                outcomes[index] = error if error is not None and error.code == "unknown_table" else None
            left = [index for index in changed if outcomes[index] is None]
            await self._read_round(context._replace(is_second=True), wanted, left, outcomes)
        answers = [_final(each, undescribed) for each in outcomes]
        counts: dict[tuple[ServedFrom, FreshnessName], int] = {}
        for each in answers:
            if not isinstance(each, ReadError):
                kind = each.served_from, each.freshness
                counts[kind] = counts.get(kind, 0) + 1
        for (served_from, freshness), count in counts.items():
            self._metrics.answered("row", served_from, freshness, count)
        return answers

    async def _describe_again(self, context: ReadContext, names: Iterable[str]) -> dict[str, ReadError]:
        """Why tables cannot be described anew; one may be gone, which an owner may not have folded yet."""
        undescribed: dict[str, ReadError] = {}
        for name in names:
            try:
                await self._descriptions.renew(context.space, name, context.since)
            except ReadError as error:
                undescribed[name] = error
        return undescribed

    async def _read_round(
        self,
        context: ReadContext,
        wanted: Sequence[RequestedRow],
        indexes: Sequence[int],
        outcomes: list[RowOutcome | None],
    ) -> None:
        """Writes the outcome of each row of ``indexes``. One request per partition and `KEYS_MAX` keys."""
        space = context.space
        lookups: dict[int, RowLookup] = {}
        misses: dict[int, RowMiss] = {}
        groups: dict[int, list[int]] = {}
        reasons: Counter[str] = Counter()

        def settle(index: int, row: OwnerRow | None, why: str, differs: bool = False) -> None:
            lookup = lookups[index]
            if (differs or (row is not None and row.code == SCHEMA_CHANGED)) and self._may_describe_again(lookup):
                outcomes[index] = SchemaChanged(lookup.table.name)
                return
            outcome = self._from_owner(lookup, row, why)
            if isinstance(outcome, RowMiss):
                misses[index] = outcome
                reasons[miss_reason(row) if lookups[index].table.cacheable else NEVER_CACHED] += 1
            else:
                outcomes[index] = outcome

        tables = await self._describe(space, dict.fromkeys(wanted[index].table for index in indexes))
        async for some in in_turns(indexes):
            for index in some:
                name, pk = wanted[index]
                found = self._lookup(context, tables[name], pk)
                if not isinstance(found, RowLookup):
                    outcomes[index] = found
                    continue
                lookups[index] = found
                if found.table.cacheable:
                    partition = space.layout.partition_of(found.key.key, found.table.prefix)
                    groups.setdefault(partition, []).append(index)
                else:
                    settle(index, None, f"{found.table.name} is never cached: {found.table.reason}")

        parts = [
            (partition, group[at : at + KEYS_MAX])
            for partition, group in groups.items()
            for at in range(0, len(group), KEYS_MAX)
        ]
        while parts:
            parts = await self._ask(context, lookups, parts, settle)
        for reason, count in reasons.items():
            self._metrics.missed("row", reason, count)
        if misses:
            found_there = await self._sources.read(context, list(misses.values()))
            for index, outcome in zip(misses, found_there, strict=True):
                outcomes[index] = _told_by_both(misses[index], outcome)

    async def _ask(
        self, context: ReadContext, lookups: Mapping[int, RowLookup], parts: Sequence[_Part], settle: _Settle
    ) -> list[_Part]:
        """Has what the owners say settled. Returns the halves of the parts that were too large for one answer."""
        demand = context.demand
        answers = await self._owners.read_each(
            context.space.name,
            [self._request(context, partition, [lookups[index] for index in part]) for partition, part in parts],
            Rows,
            lambda found: all(each.served for each in found.rows),
            consistency=demand.consistency,
            patience_s=demand.max_wait_ms / 1000,
        )
        halves: list[_Part] = []
        for (partition, part), found in zip(parts, answers, strict=True):
            if isinstance(found, AnswerTooLarge) and len(part) > 1:
                half = len(part) // 2
                halves += [(partition, part[:half]), (partition, part[half:])]
                continue
            rows: Sequence[OwnerRow | None]
            if isinstance(found, OwnerAway):
                rows, why, differs = [None] * len(part), str(found), isinstance(found, OtherPartition)
            else:
                rows, why, differs = found.rows, "", False
            async for some in in_turns(zip(part, rows, strict=True)):
                for index, row in some:
                    settle(index, row, why, differs)
        return halves

    def _request(self, context: ReadContext, partition: int, lookups: Sequence[RowLookup]) -> Get:
        space, demand = context.space, context.demand
        return Get(
            0,
            space.name,
            partition,
            [key.key for _, _, key in lookups],
            demand.token,
            demand.max_wait_ms,
            {table.name: table.meaning for _, table, _ in lookups},
            not_before_ms=demand.not_before_ms,
            holder=self._holder if space.all_sources else "",
            last_known=demand.last_known,
        )

    async def _describe(self, space: RowSpace, names: Iterable[str]) -> dict[str, RowTable | ReadError]:
        """Each table, by its name in a request."""
        tables: dict[str, RowTable | ReadError] = {}
        for name in names:
            try:
                tables[name] = await self._descriptions.get(space, space.full_name(name))
            except ReadError as error:
                tables[name] = error
        return tables

    def _lookup(
        self, context: ReadContext, table: RowTable | ReadError, pk: bytes
    ) -> RowLookup | ReadError | SchemaChanged:
        if (refused := too_long(pk)) is not None:
            return refused
        if isinstance(table, ReadError):
            return table
        try:
            return RowLookup(context, table, parse_row_key(table, pk))
        except ReadError as error:
            since = self._descriptions.describes_since(context.space, table.name, context.since)
            return error if since or error.code != "bad_key" else SchemaChanged(table.name)

    def _may_describe_again(self, lookup: RowLookup) -> bool:
        """Whether to describe a table again whose keys mean something else to its owner: once, and not too often.

        An owner that is behind differs until it has folded the DDL. Meanwhile the source answers.
        """
        space, since = lookup.context.space, lookup.context.since
        if lookup.context.is_second:
            return False
        return not self._descriptions.describes_since(space, lookup.table.name, since - RENEWED_EVERY_S)

    def _from_owner(self, lookup: RowLookup, row: OwnerRow | None, why: str) -> RawRowAnswer | ReadError | RowMiss:
        """The owner's answer if it may be given, else its error or the miss to take to the source."""
        space, demand, options = lookup.context[:3]
        if row is not None:
            space.epochs.learn(row.shard, row.epoch)
        if row is not None and row.code == SCHEMA_CHANGED:
            why, row = row.why, None  # its stamp belongs to another key
        elif row is not None:
            if not row.served:
                space.epochs.learn_kin(row.shard, row.epoch, row.kin)
            if row.code == HISTORY_LOST:
                is_told = space.source_of(lookup.key.key, lookup.table) is None
                return _lost(lookup, row) if is_told else RowMiss(lookup, row, row.why)
            is_proved = row.as_of_ms >= demand.not_before_ms  # an older owner does not know that a time is demanded
            is_own = not row.served or space.is_of(row.shard, lookup.key.key, lookup.table)
            if is_proved and is_own and may_answer(row, lookup.key):
                own = None
                if options is not NO_OPTIONS and row.hi:
                    own = ReadBetween(row.shard, row.epoch, row.timestamp, *map(Position.parse, (row.lo, row.hi)))
                token = demand.token
                if not demand.has_passed(row.shard, row.epoch, row.hi):
                    token = token_after(demand.token, row.shard, row.epoch, row.hi)
                return answer(lookup, "cache", row.freshness, row.why, token, row.image, own)
            why = row.why if not row.served else "another spelling of the key may name a row"
            if row.served and not is_proved:
                why = "the owner's version is older and proves no times"
            elif not is_own:
                why = f"the owner takes the key for one of {row.shard}, which it is not by the keyspace's map"
        if space.source_of(lookup.key.key, lookup.table) is None:
            lost = row and unknown_shards_error(
                demand.vector, row.shard, row.epoch, space.epochs.kin_of(row.shard, demand.vector), space.mapped
            )
            return lost or ReadError(
                "no_owner" if row is None else "source_unreachable",
                f"the cache cannot prove its answer ({why}), and keyspace {space.name} has no source here",
            )
        return RowMiss(lookup, row, why)


def _final(outcome: RowOutcome | None, undescribed: Mapping[str, ReadError]) -> RawRowAnswer | ReadError:
    """``undescribed``: why a table's last description may be an old one, by which nobody can say what a key means."""
    if isinstance(outcome, SchemaChanged):
        again = ReadError("source_failed", f"the primary key of {outcome} changed again while it was read")
        return undescribed.get(str(outcome), again)
    assert outcome is not None
    return outcome


def _lost(lookup: RowLookup, row: OwnerRow) -> ReadError:
    vector = lookup.context.demand.vector
    return history_lost_error(vector, row.shard, row.epoch, row.watermark, row.why, row.kin)


def _told_by_both(miss: RowMiss, outcome: RowOutcome) -> RowOutcome:
    """The source's outcome; of a history that its owner calls lost, the error with the place of both."""
    lookup, row = miss.lookup, miss.row
    if row is None or row.code != HISTORY_LOST or isinstance(outcome, SchemaChanged):
        return outcome
    return lost_at_the_source(_lost(lookup, row), outcome)


def may_answer(row: OwnerRow, key: RowKey) -> bool:
    """Whether the owner's answer holds for ``key``. An absence does not if another spelling may name a row."""
    return row.served and (row.image is not None or key.exact)
