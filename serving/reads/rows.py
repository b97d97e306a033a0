"""Reads of rows: from the owner of the key, or from the source of truth where the owner cannot prove its answer."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec

from consumers.fold.entry import VALUE
from consumers.owner.protocol import HISTORY_LOST, KEYS_MAX, SCHEMA_CHANGED, Fill, OwnerRow
from serving.answers import RawRowAnswer, absence_fields, raw_image
from serving.client.answers import FreshnessName, RowAnswer, ServedFrom
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.misses import NEVER_CACHED, miss_reason
from serving.reads.demands import NO_OPTIONS, ReadDemand, RequestedRow, RowOptions
from serving.reads.descriptions import RENEWED_EVERY_S, Descriptions
from serving.reads.fills import Fills
from serving.reads.flight import Flights
from serving.reads.owners import AnswerTooLarge, OtherPartition, OwnerAway, Owners
from serving.reads.proof import (
    Proof,
    Reached,
    ReadBetween,
    history_lost_error,
    merged_tokens,
    token_after,
    unknown_shards_error,
)
from serving.reads.rowkey import RowKey, parse_row_key
from serving.reads.spaces import RowSpace, epoch_of, learn_shards
from serving.sources.source import RowSource, RowTable, SchemaChanged, SourceKey, SourceRow
from serving.turns import in_turns
from stream.spans import source_span
from tokens import Position

COMMIT_S = 0.1
"""How long the source is waited for in any case: a token may hold a transaction that it is just committing."""


class ReadContext(NamedTuple):
    """What all rows of one request share. ``deadline``: when to stop waiting for the source, on the event loop's clock.

    ``since``: when the request came, on the clock of the descriptions. ``is_second``: its tables were described again.
    """

    space: RowSpace
    demand: ReadDemand
    options: RowOptions
    deadline: float
    since: float = 0.0
    is_second: bool = False


class RowLookup(NamedTuple):
    """One requested row, with its table described and its key parsed."""

    context: ReadContext
    table: RowTable
    key: RowKey


class RowMiss(NamedTuple):
    """A lookup that only the source can answer. ``row``: the owner's answer, if any; ``why`` it cannot be given.

    ``source``: the one to ask; None: that of the key's shard.
    """

    lookup: RowLookup
    row: OwnerRow | None
    why: str
    source: RowSource | None = None


RowOutcome: TypeAlias = RawRowAnswer | ReadError | SchemaChanged
RowFlightKey: TypeAlias = tuple[str, bytes, bytes, str, int | None]
"""Keyspace, key, what the key means, shard whose source is read, and its epoch.

Positions of another epoch belong to another history and must not be compared.
"""


class RowReads:
    """Answers reads of rows. Belongs to one event loop."""

    def __init__(self, owners: Owners, descriptions: Descriptions, fills: Fills, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._descriptions = descriptions
        self._fills = fills
        self._holder = uuid.uuid4().hex
        """By which owners know whom they gave a lease to."""
        self._metrics = metrics
        self._flights: Flights[RowFlightKey, RowMiss, SourceRow] = Flights(self._fetch, metrics.source_shared.inc)

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
        if changed:
            dropped = await self._describe_again(context, {str(outcomes[index]) for index in changed})
            for index in changed:
                outcomes[index] = dropped.get(str(outcomes[index]))
            left = [index for index in changed if outcomes[index] is None]
            await self._read_round(context._replace(is_second=True), wanted, left, outcomes)
        answers = [_final(each) for each in outcomes]
        counts: dict[tuple[ServedFrom, FreshnessName], int] = {}
        for each in answers:
            if not isinstance(each, ReadError):
                kind = each.served_from, each.freshness
                counts[kind] = counts.get(kind, 0) + 1
        for (served_from, freshness), count in counts.items():
            self._metrics.answered("row", served_from, freshness, count)
        return answers

    async def _describe_again(self, context: ReadContext, names: Iterable[str]) -> dict[str, ReadError]:
        """The tables that are no longer there; an owner may not have folded yet that they were dropped."""
        dropped: dict[str, ReadError] = {}
        for name in names:
            try:
                await self._descriptions.renew(context.space, name, context.since)
            except ReadError as error:  # the next round describes the table again and reports any other error
                if error.code == "unknown_table":
                    dropped[name] = error
        return dropped

    async def _read_round(
        self,
        context: ReadContext,
        wanted: Sequence[RequestedRow],
        indexes: Iterable[int],
        outcomes: list[RowOutcome | None],
    ) -> None:
        """Writes the outcome of each row of ``indexes``. One request per partition and `KEYS_MAX` keys."""
        space, demand, token = context.space, context.demand, context.demand.token
        lookups: dict[int, RowLookup] = {}
        misses: dict[int, RowMiss] = {}
        groups: dict[int, list[int]] = {}
        reasons: Counter[str] = Counter()

        def settle(index: int, row: OwnerRow | None, why: str, *, differs: bool = False) -> None:
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

        async for index in in_turns(indexes):
            found = await self._lookup(context, wanted[index])
            if not isinstance(found, RowLookup):
                outcomes[index] = found
                continue
            lookups[index] = found
            if found.table.cacheable:
                groups.setdefault(space.layout.partition_of(found.key.key, found.table.prefix), []).append(index)
            else:
                settle(index, None, f"{found.table.name} is never cached: {found.table.reason}")

        async def ask(partition: int, part: list[int]) -> None:
            keys: list[bytes] = []
            meanings: dict[str, bytes] = {}
            for index in part:
                _, table, key = lookups[index]
                keys.append(key.key)
                meanings[table.name] = table.meaning
            rows: Sequence[OwnerRow | None] = [None] * len(part)
            why, differs = "", False
            holder = self._holder if space.all_sources else ""
            try:
                answered: Sequence[OwnerRow] = await self._owners.read(
                    space.name,
                    partition,
                    lambda client: client.get(
                        space.name,
                        partition,
                        keys,
                        token,
                        demand.max_wait_ms,
                        meanings,
                        demand.not_before_ms,
                        holder,
                        demand.last_known,
                    ),
                    lambda found: all(each.served for each in found),
                    consistency=demand.consistency,
                    patience_s=demand.max_wait_ms / 1000,
                )
                rows = answered
            except OwnerAway as away:
                if isinstance(away, AnswerTooLarge) and len(part) > 1:
                    half = len(part) // 2
                    await asyncio.gather(ask(partition, part[:half]), ask(partition, part[half:]))
                    return
                why, differs = str(away), isinstance(away, OtherPartition)
            async for index, row in in_turns(zip(part, rows, strict=True)):
                settle(index, row, why, differs=differs)

        asked = [
            ask(partition, group[at : at + KEYS_MAX])
            for partition, group in groups.items()
            for at in range(0, len(group), KEYS_MAX)
        ]
        if len(asked) == 1:
            await asked[0]
        elif asked:
            await asyncio.gather(*asked)
        for reason, count in reasons.items():
            self._metrics.missed("row", reason, count)
        if misses:
            found_there = await self._from_source(context, list(misses.values()))
            for index, outcome in zip(misses, found_there, strict=True):
                outcomes[index] = outcome

    async def _lookup(self, context: ReadContext, wanted: RequestedRow) -> RowLookup | ReadError | SchemaChanged:
        try:
            name = context.space.full_name(wanted.table)
            table = await self._descriptions.get(context.space, name)
            return RowLookup(context, table, parse_row_key(table, wanted.pk))
        except ReadError as error:
            if error.code == "bad_key" and not self._descriptions.describes_since(context.space, name, context.since):
                return SchemaChanged(name)
            return error

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
                return history_lost_error(demand.vector, row.shard, row.epoch, row.watermark, row.why, row.kin)
            is_proved = row.as_of_ms >= demand.not_before_ms  # an older owner does not know that a time is demanded
            is_own = not row.served or space.is_of(row.shard, lookup.key.key, lookup.table)
            if is_proved and is_own and may_answer(row, lookup.key):
                own = None
                if options is not NO_OPTIONS and row.hi:
                    own = ReadBetween(row.shard, row.epoch, row.timestamp, *map(Position.parse, (row.lo, row.hi)))
                token = token_after(demand.token, row.shard, row.epoch, row.hi)
                return self._answer(lookup, "cache", row.freshness, row.why, token, row.image, own)
            why = row.why if not row.served else "another spelling of the key may name a row"
            if row.served and not is_proved:
                why = "the owner's version is older and proves no times"
            elif not is_own:
                why = f"the owner takes the key for one of {row.shard}, which it is not by the keyspace's map"
        if space.source_of(lookup.key.key, lookup.table) is None:
            lost = row and unknown_shards_error(
                demand.vector, row.shard, row.epoch, space.epochs.kin_of(row.shard, demand.vector)
            )
            return lost or ReadError(
                "no_owner" if row is None else "source_unreachable",
                f"the cache cannot prove its answer ({why}), and keyspace {space.name} has no source here",
            )
        return RowMiss(lookup, row, why)

    async def _from_source(self, context: ReadContext, misses: Sequence[RowMiss]) -> list[RowOutcome]:
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
            async for at, each in in_turns(zip(places, found, strict=True)):
                outcomes[at] = _beside_absence(each, outcomes[at])
                if not _is_absent(each):
                    left.remove(at)

    async def _from_shard(self, context: ReadContext, source: RowSource, misses: Sequence[RowMiss]) -> list[RowOutcome]:
        """One source's answers in the order of ``misses``. A source that lags is waited for until the deadline."""
        space, vector = context.space, context.demand.vector
        await learn_shards(self._owners, space, vector, context.deadline, source.shard)
        epoch = await epoch_of(self._owners, space, source.shard)
        proof = Proof(context.demand, source.shard, epoch, space.epochs.kin_of(source.shard, vector))
        proof.reached = reached_by(misses, proof)

        def proves(seen: SourceRow) -> bool:
            return proof.judge(seen.position, seen.as_of_ms).may_be_served

        of = source.shard, proof.epoch
        flight_keys = [(space.name, miss.lookup.key.key, miss.lookup.table.meaning, *of) for miss in misses]
        wanted = dict(zip(flight_keys, misses, strict=True))
        found = await self._flights.read_many(wanted, proves)
        behind = {
            flight_key: wanted[flight_key]
            async for flight_key, seen in in_turns(found.items())
            if isinstance(seen, SourceRow) and proof.is_behind(seen.position, seen.as_of_ms)
        }
        remaining = max(context.deadline - asyncio.get_running_loop().time(), COMMIT_S)
        if behind and proof.demanded_position is not None:
            try:
                await source.wait(proof.demanded_position, remaining)
                found |= await self._flights.read_many(behind, proves)
            except ReadError as error:
                found |= dict.fromkeys(behind, error)
        return [
            self._from_source_row(miss, proof, found[flight_key])
            async for flight_key, miss in in_turns(zip(flight_keys, misses, strict=True))
        ]

    def _from_source_row(self, miss: RowMiss, proof: Proof, found: SourceRow | Exception) -> RowOutcome:
        if isinstance(found, ReadError | SchemaChanged):
            return found
        if not isinstance(found, SourceRow):
            raise found
        decision = proof.judge(found.position, found.as_of_ms)
        if not decision.may_be_served:
            return proof.refusal(decision, found.position)
        lookup, own, image = miss.lookup, None, found.image
        if image is not None and not lookup.key.exact:  # a row that was left where its key does not belong is none
            image = image if lookup.context.space.is_of(proof.shard, found.key, lookup.table) else None
        if lookup.context.options is not NO_OPTIONS and proof.epoch is not None:
            own = ReadBetween(proof.shard, proof.epoch, found.timestamp, found.position, found.hi)
        why = f"read from the source at {found.position}: {decision.why}; the cache: {miss.why}"
        token = proof.token_after(str(found.hi))
        return self._answer(lookup, "source", decision.freshness.value, why, token, image, own)

    def _answer(
        self,
        lookup: RowLookup,
        served_from: ServedFrom,
        freshness: str,
        why: str,
        token: str,
        image: bytes | None,
        own: ReadBetween | None,
    ) -> RawRowAnswer:
        options = lookup.context.options
        if image is not None and options is NO_OPTIONS:
            return RowAnswer(served_from, cast("FreshnessName", freshness), why, token, True, raw_image(image))
        compared = options.compare_event_token
        missing = "" if image is not None else f"{lookup.table.name} has no row {list(lookup.key.values)}"
        return RowAnswer(
            served_from,
            cast("FreshnessName", freshness),
            why,
            token,
            found=image is not None,
            value=raw_image(image),
            event_token=str(own.latest) if own is not None and options.include_event_token else None,
            fresher=own.is_fresher(compared) if own is not None and compared is not None else None,
            **absence_fields(missing),
        )

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
        async for miss, each in in_turns(zip(misses.values(), found, strict=True)):
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


def _final(outcome: RowOutcome | None) -> RawRowAnswer | ReadError:
    if isinstance(outcome, SchemaChanged):
        return ReadError("source_failed", f"the primary key of {outcome} changed again while it was read")
    assert outcome is not None
    return outcome


def reached_by(misses: Iterable[RowMiss], proof: Proof) -> Reached | None:
    """A position of the source's history that proves the demanded time, if one is demanded and an owner named one."""
    demanded = proof.demand.not_before_ms
    for row in (each.row for each in misses) if demanded else ():
        if row is None or (row.shard, row.epoch) != (proof.shard, proof.epoch):
            continue
        if row.as_of_ms >= demanded:
            return Reached(Position.parse(row.watermark), row.as_of_ms)
    return None


def may_answer(row: OwnerRow, key: RowKey) -> bool:
    """Whether the owner's answer holds for ``key``. An absence does not if another spelling may name a row."""
    return row.served and (row.image is not None or key.exact)


def may_offer(row: OwnerRow, shard: str, key: RowKey, found: SourceRow) -> bool:
    """Whether the source's answer for ``key`` may be offered to the owner, which answered ``row``.

    It must not replace a value of the stream. It must not stand for a row whose key is or may be spelled differently.
    ``shard`` must be the one that the owner assigns the key to: positions of another shard would prove nothing.
    """
    own_key = found.key == key.key if found.image is not None else key.exact
    return own_key and row.shard == shard and (row.filled or row.kind != VALUE)
