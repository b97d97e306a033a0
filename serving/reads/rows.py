"""Reads of rows: asked of the owner, and where it can't prove its answer, read through to the source of truth."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import NamedTuple, TypeAlias, TypeVar

from consumers.fold.entry import VALUE
from consumers.owner.protocol import KEYS_MAX, Fill, Row
from serving.errors import ReadError
from serving.http.answers import envelope_bytes, row_bytes
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand, RowOptions, RowWanted
from serving.reads.fills import Fills
from serving.reads.flight import Flights
from serving.reads.owners import OwnerAway, Owners
from serving.reads.proof import Proof, history_lost, judge, prove
from serving.reads.rowkey import RowKey, parse_row_key
from serving.reads.spaces import RowSpace, Tables, learn_epochs
from serving.sources.source import RowAt, RowTable, SchemaChanged, SourceRow
from tokens import EventToken, Order, Position, TokenError, Vector, order

Key = TypeVar("Key")

NO_OPTIONS = RowOptions()


class Answered(NamedTuple):
    """One answer. ``status``: 200, or 404 for a row that is known not to exist."""

    status: int
    body: bytes
    served_from: str
    freshness: str
    token: str


class Question(NamedTuple):
    """One row that is asked for. ``deadline``: of `time.monotonic`, for waiting on the token's position."""

    space: RowSpace
    table: RowTable
    key: RowKey
    demand: ReadDemand
    options: RowOptions
    deadline: float


class Miss(NamedTuple):
    """A question that only the source can answer. ``row``: what its owner said, if any; ``why``: what it lacked."""

    question: Question
    row: Row | None
    why: str


Outcome: TypeAlias = Answered | ReadError | SchemaChanged


class RowReads:
    """Answers reads of rows. Of one event loop. All methods raise `ReadError`."""

    def __init__(self, owners: Owners, tables: Tables, fills: Fills, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._tables = tables
        self._fills = fills
        self._metrics = metrics
        self._flights: Flights[tuple[str, bytes, int | None], SourceRow] = Flights(metrics.source_shared.inc)

    async def read(
        self, space: RowSpace, table: str, pk: bytes, demand: ReadDemand, options: RowOptions = NO_OPTIONS
    ) -> Answered:
        """One row; ``pk`` as in a path."""
        name = space.full_name(table)
        deadline = monotonic() + demand.max_wait_ms / 1000
        for last in (False, True):
            described = await self._tables.get(space, name)
            try:
                key = parse_row_key(described, pk)
            except ReadError:
                if last or not self._tables.is_old(space, name):
                    raise
                await self._renew(space, [name])
                continue
            question = Question(space, described, key, demand, options, deadline)
            answer = self._settle(question, *await self._ask(question))
            outcome = (await self._from_source([answer]))[0] if isinstance(answer, Miss) else answer
            if isinstance(outcome, Answered):
                return outcome
            if isinstance(outcome, ReadError):
                raise outcome
            if not last:
                await self._tables.renew(space, name)
        raise _keeps_changing(name)

    async def read_many(
        self, space: RowSpace, wanted: Sequence[RowWanted], demand: ReadDemand
    ) -> list[Answered | ReadError]:
        """Rows in the order of ``wanted``, each an answer or its error. What the cache misses is one read."""
        deadline = monotonic() + demand.max_wait_ms / 1000
        answers: dict[int, Answered | ReadError] = {}
        left: Collection[int] = range(len(wanted))
        for last in (False, True):
            changed: list[int] = []
            for index, outcome in (await self._read_round(space, wanted, left, demand, deadline)).items():
                if isinstance(outcome, SchemaChanged):
                    changed.append(index)
                else:
                    answers[index] = outcome
            left = changed
            if left and not last:
                await self._renew(space, {space.full_name(wanted[index].table) for index in left})
        answers |= {index: _keeps_changing(space.full_name(wanted[index].table)) for index in left}
        return [answers[index] for index in range(len(wanted))]

    async def _renew(self, space: RowSpace, names: Iterable[str]) -> None:
        for name in names:
            with suppress(ReadError):  # the table is asked for again: then it says what is wrong
                await self._tables.renew(space, name)

    async def _read_round(
        self, space: RowSpace, wanted: Sequence[RowWanted], indexes: Iterable[int], demand: ReadDemand, deadline: float
    ) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        questions: dict[int, Question] = {}
        for index in indexes:
            table, pk = wanted[index]
            try:
                name = space.full_name(table)
                described = await self._tables.get(space, name)
                key = parse_row_key(described, pk)
                questions[index] = Question(space, described, key, demand, NO_OPTIONS, deadline)
            except ReadError as error:
                doubted = error.code == "bad_key" and self._tables.is_old(space, name)
                outcomes[index] = SchemaChanged(name) if doubted else error
        rows = await self._ask_many(space, questions, demand)
        misses: dict[int, Miss] = {}
        for index, question in questions.items():
            try:
                answer = self._settle(question, *rows[index])
            except ReadError as error:
                outcomes[index] = error
                continue
            if isinstance(answer, Miss):
                misses[index] = answer
            else:
                outcomes[index] = answer
        if misses:
            outcomes |= zip(misses, await self._from_source(list(misses.values())), strict=True)
        return outcomes

    async def _ask(self, question: Question) -> tuple[Row | None, str]:
        """The owner's answer; or None, and why there is none."""
        space, table, key, demand = question[:4]
        if not table.cacheable:
            return None, f"{table.name} is never cached: {table.reason}"
        partition = space.layout.partition_of(key.key)
        vector = str(demand.vector) if demand.given else ""
        try:
            rows = await self._owners.ask(
                space.name,
                partition,
                lambda client: client.get(space.name, partition, [key.key], vector, demand.max_wait_ms),
            )
        except OwnerAway as away:
            if space.source is None:
                raise
            return None, str(away)
        return rows[0], ""

    async def _ask_many(
        self, space: RowSpace, questions: dict[int, Question], demand: ReadDemand
    ) -> dict[int, tuple[Row | None, str]]:
        """As `_ask`, with one request a partition; an owner that is away is told by its elements."""
        found: dict[int, tuple[Row | None, str]] = {}
        groups: dict[int, list[int]] = {}
        for index, question in questions.items():
            if question.table.cacheable:
                groups.setdefault(space.layout.partition_of(question.key.key), []).append(index)
            else:
                found[index] = None, f"{question.table.name} is never cached: {question.table.reason}"
        vector = str(demand.vector) if demand.given else ""

        async def ask(partition: int, indexes: list[int]) -> None:
            keys = [questions[index].key.key for index in indexes]
            try:
                rows = await self._owners.ask(
                    space.name,
                    partition,
                    lambda client: client.get(space.name, partition, keys, vector, demand.max_wait_ms),
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
        await asyncio.gather(*(ask(*part) for part in parts))
        return found

    def _settle(self, question: Question, row: Row | None, why: str) -> Answered | Miss:
        if row is not None:
            question.space.epochs.learn(row.shard, row.epoch)
            if row.code == "history_lost":
                raise history_lost(question.demand.vector, row.shard, row.epoch, row.watermark, row.why)
            if may_answer(row, question.key):
                return self._from_cache(question, row)
            why = row.why if not row.served else "another spelling of the key may name a row"
        if question.space.source is None:
            raise ReadError(
                "no_owner" if row is None else "source_unreachable",
                f"the cache cannot prove its answer ({why}), and keyspace {question.space.name} has no source here",
            )
        return Miss(question, row, why)

    def _from_cache(self, question: Question, row: Row) -> Answered:
        demand, options = question.demand, question.options
        token = advanced(str(demand.vector) if demand.given else "", row.shard, row.epoch, row.hi)
        envelope = envelope_bytes("cache", row.freshness, row.why, token)
        own = None
        if options is not NO_OPTIONS and row.hi:
            own = EventToken(row.timestamp, row.shard, Position.parse(row.hi), epoch=row.epoch)
        return self._answer(question, "cache", row.freshness, envelope, token, row.image, own)

    async def _from_source(self, misses: Sequence[Miss]) -> list[Outcome]:
        """What the source says, in the order of ``misses``, which are of one keyspace and one demand."""
        space, _, _, demand, _, deadline = misses[0].question
        source = space.source
        assert source is not None
        proof = Proof(demand, source.shard, await learn_epochs(self._owners, space, source.shard))
        # Of another epoch: of another history, whatever its numbers say.
        by_key = {(space.name, miss.question.key.key, proof.epoch): miss for miss in misses}
        found = await prove(
            proof,
            by_key,
            lambda keys: self._flights.read_many(
                keys,
                lambda landed: judge(proof, landed.position).proved,
                lambda own: self._fetch(space, {key: by_key[key] for key in own}),
            ),
            lambda seen: seen.position,
            source.wait,
            deadline,
        )
        outcomes: list[Outcome] = []
        for miss in misses:
            seen = found[space.name, miss.question.key.key, proof.epoch]
            if isinstance(seen, SourceRow):
                outcomes.append(self._from_source_row(miss, proof, seen))
            elif isinstance(seen, ReadError | SchemaChanged):
                outcomes.append(seen)
            else:
                raise seen
        return outcomes

    def _from_source_row(self, miss: Miss, proof: Proof, found: SourceRow) -> Answered:
        question = miss.question
        verdict = judge(proof, found.position)
        token = str(question.demand.vector) if question.demand.given else ""
        own = None
        if proof.epoch is not None:
            token = advanced(token, proof.shard, proof.epoch, str(found.hi))
            if question.options is not NO_OPTIONS:
                own = EventToken(found.timestamp, proof.shard, found.hi, epoch=proof.epoch)
        reason = f"read from the source at {found.position}: {verdict.why}; the cache: {miss.why}"
        envelope = envelope_bytes("source", verdict.freshness, reason, token)
        return self._answer(question, "source", verdict.freshness, envelope, token, found.image, own)

    def _answer(
        self,
        question: Question,
        served_from: str,
        freshness: str,
        envelope: bytes,
        token: str,
        image: bytes | None,
        own: EventToken | None,
    ) -> Answered:
        self._metrics.answered("row", served_from, freshness)
        if question.options is NO_OPTIONS and image is not None:
            return Answered(200, row_bytes(envelope, image), served_from, freshness, token)
        compare = question.options.compare_event_token
        body = row_bytes(
            envelope,
            image,
            event_token=str(own) if own is not None and question.options.include_event_token else None,
            fresher=None if own is None or compare is None else is_fresher(own, compare),
            not_found="" if image is not None else f"{question.table.name} has no row {list(question.key.values)}",
        )
        return Answered(200 if image is not None else 404, body, served_from, freshness, token)

    async def _fetch(self, space: RowSpace, misses: Mapping[Key, Miss]) -> dict[Key, SourceRow | Exception]:
        """Reads the source in one snapshot, and offers its answers to the owners where they may stand in the cache."""
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
        for (question, row, _), each in zip(misses.values(), found, strict=True):
            if row is None or not isinstance(each, SourceRow) or not question.table.cacheable:
                continue
            if may_offer(row, space.source.shard, question.key, each):
                fill = _fill_of(question, row, each)
                fills.setdefault(fill.partition, []).append(fill)
        for partition, of_partition in fills.items():
            self._fills.offer_rows(space.name, partition, of_partition)
        return dict(zip(misses, found, strict=True))


def _keeps_changing(name: str) -> ReadError:
    return ReadError("source_failed", f"the key of {name} changes while it is read")


def _fill_of(question: Question, row: Row, found: SourceRow) -> Fill:
    space, key = question.space, question.key.key
    lo, hi = str(found.position), str(found.hi)
    partition = space.layout.partition_of(key)
    return Fill(0, space.name, partition, key, found.image, lo, hi, found.timestamp, row.stamp)


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


@lru_cache(maxsize=8192)
def advanced(token: str, shard: str, epoch: int, position: str) -> str:
    """The session's new vector: what it had seen and what this answer holds. Raises `ReadError` ``bad_token``."""
    vector = Vector.parse(token) if token else Vector()
    if not shard or not position:
        return str(vector)
    try:
        return str(vector.merge(Vector({shard: (epoch, Position.parse(position))})))
    except TokenError as error:
        raise ReadError("bad_token", f"token: {error}", hint=error.hint) from error


def is_fresher(own: EventToken, compared: EventToken) -> bool | None:
    """Whether a value of token ``own`` is as new as ``compared``, or newer; None where nobody can know."""
    answer = order(own, compared)
    return None if answer is Order.UNKNOWN else answer is not Order.OLDER
