"""Reads of rows: asked of the owner, and where it can't prove its answer, read through to the source of truth."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, TypeAlias, TypedDict, cast

import msgspec

from consumers.fold.entry import VALUE
from consumers.owner.protocol import HISTORY_LOST, KEYS_MAX, Fill, Row
from serving.client.answers import FreshnessName, RowAnswer, ServedFrom
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand, RowOptions, RowWanted
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.flight import Flights
from serving.reads.owners import OwnerAway, Owners
from serving.reads.proof import Proof, advanced, history_lost
from serving.reads.rowkey import RowKey, parse_row_key
from serving.reads.spaces import RowSpace, epoch_of
from serving.sources.source import RowAt, RowTable, SchemaChanged, SourceRow
from tokens import EventToken, Order, Position, order

NO_OPTIONS = RowOptions()
NOTHING = msgspec.Raw(b"null")


class ReadPass(NamedTuple):
    """What all rows of one request share. ``deadline``: of `time.monotonic`, for waiting on the token's position."""

    space: RowSpace
    demand: ReadDemand
    options: RowOptions
    deadline: float


class Question(NamedTuple):
    """One row that is asked for."""

    reading: ReadPass
    table: RowTable
    key: RowKey


class Miss(NamedTuple):
    """A question that only the source can answer. ``row``: what its owner said, if any; ``why``: what it lacked."""

    question: Question
    row: Row | None
    why: str


FoundRow: TypeAlias = RowAnswer[msgspec.Raw]
Outcome: TypeAlias = FoundRow | ReadError | SchemaChanged
Place: TypeAlias = tuple[str, bytes, int | None]
"""Keyspace, key and epoch: a read of the source in another epoch is of another history, whatever its numbers say."""


class RowReads:
    """Answers reads of rows. Of one event loop."""

    def __init__(self, owners: Owners, descriptions: Descriptions, fills: Fills, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._descriptions = descriptions
        self._fills = fills
        self._metrics = metrics
        self._flights: Flights[Place, Miss, SourceRow] = Flights(self._fetch, metrics.source_shared.inc)

    async def read_many(
        self, space: RowSpace, wanted: Sequence[RowWanted], demand: ReadDemand, options: RowOptions = NO_OPTIONS
    ) -> list[FoundRow | ReadError]:
        """Rows in the order of ``wanted``, each an answer or its error. What the cache misses is one read.

        Raises `ReadError` ``bad_token`` for a demand that no owner can judge.
        """
        reading = ReadPass(space, demand, options, monotonic() + demand.max_wait_ms / 1000)
        answers: dict[int, FoundRow | ReadError] = {}
        left = dict(enumerate(wanted))
        for last in (False, True):
            outcomes = await self._read_round(reading, left)
            changed = [index for index, outcome in outcomes.items() if isinstance(outcome, SchemaChanged)]
            answers |= {index: each for index, each in outcomes.items() if not isinstance(each, SchemaChanged)}
            left = {index: wanted[index] for index in changed}
            if left and not last:
                await self._describe_again(space, {space.full_name(each.table) for each in left.values()})
        for index, each in left.items():
            why = f"the key of {space.full_name(each.table)} changes while it is read"
            answers[index] = ReadError("source_failed", why)
        return [answers[index] for index in range(len(wanted))]

    async def _describe_again(self, space: RowSpace, names: Iterable[str]) -> None:
        for name in names:
            with suppress(ReadError):  # the table is asked for again: then it says what is wrong
                await self._descriptions.renew(space, name)

    async def _read_round(self, reading: ReadPass, wanted: Mapping[int, RowWanted]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        questions: dict[int, Question] = {}
        for index, each in wanted.items():
            found = await self._question(reading, each)
            if isinstance(found, Question):
                questions[index] = found
            else:
                outcomes[index] = found
        misses: dict[int, Miss] = {}
        for index, (row, why) in (await self._ask_owners(reading, questions)).items():
            answer = self._from_owner(questions[index], row, why)
            if isinstance(answer, Miss):
                misses[index] = answer
            else:
                outcomes[index] = answer
        if misses:
            outcomes |= zip(misses, await self._from_source(reading, list(misses.values())), strict=True)
        return outcomes

    async def _question(self, reading: ReadPass, wanted: RowWanted) -> Question | ReadError | SchemaChanged:
        try:
            name = reading.space.full_name(wanted.table)
            table = await self._descriptions.get(reading.space, name)
            return Question(reading, table, parse_row_key(table, wanted.pk))
        except ReadError as error:
            if error.code == "bad_key" and self._descriptions.schema_may_be_stale(reading.space, name):
                return SchemaChanged(name)
            return error

    async def _ask_owners(
        self, reading: ReadPass, questions: Mapping[int, Question]
    ) -> dict[int, tuple[Row | None, str]]:
        """The owners' answers, one request a partition; or None, and why there is none."""
        space, demand = reading.space, reading.demand
        found: dict[int, tuple[Row | None, str]] = {}
        groups: dict[int, list[int]] = {}
        for index, (_, table, key) in questions.items():
            if table.cacheable:
                groups.setdefault(space.layout.partition_of(key.key), []).append(index)
            else:
                found[index] = None, f"{table.name} is never cached: {table.reason}"

        async def ask(partition: int, indexes: list[int]) -> None:
            keys = [questions[index].key.key for index in indexes]
            try:
                rows = await self._owners.ask(
                    space.name,
                    partition,
                    lambda client: client.get(space.name, partition, keys, demand.token, demand.max_wait_ms),
                )
            except OwnerAway as away:
                found.update({index: (None, str(away)) for index in indexes})
                return
            found.update({index: (row, "") for index, row in zip(indexes, rows, strict=True)})

        parts = [
            (partition, indexes[at : at + KEYS_MAX])
            for partition, indexes in groups.items()
            for at in range(0, len(indexes), KEYS_MAX)
        ]
        if len(parts) == 1:
            await ask(*parts[0])
        else:
            await asyncio.gather(*(ask(*part) for part in parts))
        return found

    def _from_owner(self, question: Question, row: Row | None, why: str) -> FoundRow | ReadError | Miss:
        """The owner's answer where it may be given, else what to go to the source with."""
        space, demand, options, _ = question.reading
        if row is not None:
            space.epochs.learn(row.shard, row.epoch)
            if row.code == HISTORY_LOST:
                return history_lost(demand.vector, row.shard, row.epoch, row.watermark, row.why)
            if may_answer(row, question.key):
                own = None
                if options is not NO_OPTIONS and row.hi:
                    own = EventToken(row.timestamp, row.shard, Position.parse(row.hi), epoch=row.epoch)
                token = advanced(demand.token, row.shard, row.epoch, row.hi)
                return self._answer(question, "cache", row.freshness, row.why, token, row.image, own)
            why = row.why if not row.served else "another spelling of the key may name a row"
        if space.source is None:
            return ReadError(
                "no_owner" if row is None else "source_unreachable",
                f"the cache cannot prove its answer ({why}), and keyspace {space.name} has no source here",
            )
        return Miss(question, row, why)

    async def _from_source(self, reading: ReadPass, misses: Sequence[Miss]) -> list[Outcome]:
        """What the source says, in the order of ``misses``. Where it lags, it is waited for until the deadline."""
        space, source = reading.space, reading.space.source
        assert source is not None
        proof = Proof(reading.demand, source.shard, await epoch_of(self._owners, space, source.shard))
        places = [(space.name, miss.question.key.key, proof.epoch) for miss in misses]
        wanted = dict(zip(places, misses, strict=True))
        found = await self._flights.read_many(wanted, lambda seen: proof.judge(seen.position).may_be_served)
        behind = {
            place: wanted[place]
            for place, seen in found.items()
            if isinstance(seen, SourceRow) and proof.is_behind(seen.position)
        }
        remaining = reading.deadline - monotonic()
        if behind and proof.wanted is not None and remaining > 0:
            try:
                await source.wait(proof.wanted, remaining)
                found |= await self._flights.read_many(behind, lambda seen: proof.judge(seen.position).may_be_served)
            except ReadError as error:
                found |= dict.fromkeys(behind, error)
        return [self._from_source_row(miss, proof, found[place]) for place, miss in zip(places, misses, strict=True)]

    def _from_source_row(self, miss: Miss, proof: Proof, found: SourceRow | Exception) -> Outcome:
        if isinstance(found, ReadError | SchemaChanged):
            return found
        if not isinstance(found, SourceRow):
            raise found
        decision = proof.judge(found.position)
        if not decision.may_be_served:
            return proof.refusal(decision, found.position)
        question, own = miss.question, None
        if question.reading.options is not NO_OPTIONS and proof.epoch is not None:
            own = EventToken(found.timestamp, proof.shard, found.hi, epoch=proof.epoch)
        why = f"read from the source at {found.position}: {decision.why}; the cache: {miss.why}"
        token = proof.advanced(str(found.hi))
        return self._answer(question, "source", decision.freshness.value, why, token, found.image, own)

    def _answer(
        self,
        question: Question,
        served_from: ServedFrom,
        freshness: str,
        why: str,
        token: str,
        image: bytes | None,
        own: EventToken | None,
    ) -> FoundRow:
        self._metrics.answered("row", served_from, freshness)
        options = question.reading.options
        compared = options.compare_event_token
        missing = "" if image is not None else f"{question.table.name} has no row {list(question.key.values)}"
        return RowAnswer(
            served_from,
            cast("FreshnessName", freshness),
            why,
            token,
            found=image is not None,
            value=msgspec.Raw(image) if image is not None else NOTHING,
            event_token=str(own) if own is not None and options.include_event_token else None,
            fresher=is_fresher(own, compared) if own is not None and compared is not None else None,
            **not_found(missing),
        )

    async def _fetch(self, misses: Mapping[Place, Miss]) -> dict[Place, SourceRow | Exception]:
        """Reads the source in one snapshot, and offers its answers to the owners where they may stand in the cache."""
        space = next(iter(misses.values())).question.reading.space
        assert space.source is not None
        self._metrics.source_reads.inc(len(misses))
        self._metrics.source_snapshots.inc()
        wanted = [RowAt(miss.question.table, miss.question.key.values) for miss in misses.values()]
        try:
            found = await space.source.read(wanted)
        except ReadError:
            self._metrics.source_failures.inc(len(misses))
            raise
        self._metrics.source_failures.inc(sum(isinstance(each, ReadError) for each in found))
        fills: dict[int, list[Fill]] = {}
        for miss, each in zip(misses.values(), found, strict=True):
            fill = _fill_of(miss, each) if isinstance(each, SourceRow) else None
            if fill is not None:
                fills.setdefault(fill.partition, []).append(fill)
        for partition, of_partition in fills.items():
            self._fills.offer_rows(space.name, partition, of_partition)
        return dict(zip(misses, found, strict=True))


def _fill_of(miss: Miss, found: SourceRow) -> Fill | None:
    """The fill to be offered to the owner, None if it may not be."""
    (reading, table, key), row, _ = miss
    space = reading.space
    if row is None or not table.cacheable or space.source is None:
        return None
    if not may_offer(row, space.source.shard, key, found):
        return None
    lo, hi = str(found.position), str(found.hi)
    partition = space.layout.partition_of(key.key)
    return Fill(0, space.name, partition, key.key, found.image, lo, hi, found.timestamp, row.stamp)


class Absence(TypedDict, total=False):
    """The fields by which an answer says what isn't there."""

    code: str
    message: str
    hint: str


def not_found(what: str) -> Absence:
    """``what`` isn't there; no fields if it is empty."""
    if not what:
        return {}
    hint = "the token of this answer proves the absence as it would a row"
    return {"code": "not_found", "message": what, "hint": hint}


def may_answer(row: Row, key: RowKey) -> bool:
    """Whether the owner's answer may be given to the reader of ``key``: another spelling may name a row that exists."""
    return row.served and (row.image is not None or key.exact)


def may_offer(row: Row, shard: str, key: RowKey, found: SourceRow) -> bool:
    """Whether what the source of ``shard`` said of ``key`` may be offered to the owner, who answered ``row``.

    Not over a value of the stream; not for a row that is spelt otherwise, or may be; not where the owner takes the key
    for another shard's: it would judge the fill by positions that have nothing to do with it.
    """
    own_key = found.key == key.key if found.image is not None else key.exact
    return own_key and row.shard == shard and (row.filled or row.kind != VALUE)


def is_fresher(own: EventToken, compared: EventToken) -> bool | None:
    """Whether a value of token ``own`` is as new as ``compared``, or newer; None where nothing tells."""
    answer = order(own, compared)
    return None if answer is Order.UNKNOWN else answer is not Order.OLDER
