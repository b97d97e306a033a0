"""Reads of rows: asked of the owner, and where it can't prove its answer, read through to the source of truth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from time import monotonic
from typing import NamedTuple

from consumers.entry import VALUE
from consumers.owner_client import OwnerClient
from consumers.protocol import KEYS_MAX, Fill, Filled, Row
from serving.answers import envelope_bytes, row_bytes
from serving.errors import ReadError
from serving.fills import Fills
from serving.flight import Flights
from serving.metrics import FrontMetrics
from serving.owners import OwnerAway, Owners
from serving.proof import Proof, history_lost, judge, prove
from serving.query import ReadDemand, RowOptions, RowWanted
from serving.rowkey import RowKey, RowTable, parse_row_key
from serving.source import SchemaChanged, SourceRow
from serving.spaces import RowSpace, Tables, learn_epochs
from tokens import EventToken, Order, Position, TokenError, Vector, order

NO_OPTIONS = RowOptions()
BATCH_SOURCE_READS_MAX = 16
"""Reads of the source that one batch may have under way."""


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


class RowReads:
    """Answers reads of rows. Of one event loop. All methods raise `ReadError`."""

    def __init__(self, owners: Owners, tables: Tables, fills: Fills, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._tables = tables
        self._fills = fills
        self._metrics = metrics
        self._flights: Flights[SourceRow] = Flights(metrics.source_shared.inc)

    async def read(
        self, space: RowSpace, table: str, pk: bytes, demand: ReadDemand, options: RowOptions = NO_OPTIONS
    ) -> Answered:
        """One row; ``pk`` as in a path."""
        name = space.full_name(table)
        deadline = monotonic() + demand.max_wait_ms / 1000
        for last in (False, True):
            described = await self._tables.get(space, name)
            question = Question(space, described, parse_row_key(described, pk), demand, options, deadline)
            try:
                return await self._settle(question, *await self._ask(question))
            except SchemaChanged as changed:
                if last:
                    raise ReadError("source_failed", f"the key of {name} changes while it is read") from changed
                await self._tables.renew(space, name)
        raise AssertionError("unreachable")

    async def read_many(
        self, space: RowSpace, wanted: Sequence[RowWanted], demand: ReadDemand
    ) -> list[Answered | ReadError]:
        """Rows in the order of ``wanted``, each an answer or its error."""
        deadline = monotonic() + demand.max_wait_ms / 1000
        answers: list[Answered | ReadError | None] = [None] * len(wanted)
        questions: dict[int, Question] = {}
        for index, (table, pk) in enumerate(wanted):
            try:
                described = await self._tables.get(space, space.full_name(table))
                key = parse_row_key(described, pk)
                questions[index] = Question(space, described, key, demand, NO_OPTIONS, deadline)
            except ReadError as error:
                answers[index] = error
        rows = await self._ask_many(space, questions, demand)
        gate = asyncio.Semaphore(BATCH_SOURCE_READS_MAX)

        async def settle(index: int) -> None:
            row, why = rows[index]
            async with gate:
                try:
                    answers[index] = await self._settle(questions[index], row, why)
                except ReadError as error:
                    answers[index] = error
                except SchemaChanged:
                    try:
                        answers[index] = await self.read(space, wanted[index].table, wanted[index].pk, demand)
                    except ReadError as error:
                        answers[index] = error

        await asyncio.gather(*(settle(index) for index in questions))
        return [answer for answer in answers if answer is not None]

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

    async def _settle(self, question: Question, row: Row | None, why: str) -> Answered:
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
        return await self._from_source(question, row, why)

    def _from_cache(self, question: Question, row: Row) -> Answered:
        demand, options = question.demand, question.options
        token = advanced(str(demand.vector) if demand.given else "", row.shard, row.epoch, row.hi)
        envelope = envelope_bytes("cache", row.freshness, row.why, token)
        own = None
        if options is not NO_OPTIONS and row.hi:
            own = EventToken(row.timestamp, row.shard, Position.parse(row.hi), epoch=row.epoch)
        return self._answer(question, "cache", row.freshness, envelope, token, row.image, own)

    async def _from_source(self, question: Question, row: Row | None, why: str) -> Answered:
        space, _, key, demand, options, deadline = question
        source = space.source
        assert source is not None
        proof = Proof(demand, source.shard, await learn_epochs(self._owners, space, source.shard))
        found = await prove(
            proof,
            lambda: self._flights.read(
                (space.name, key.key, proof.epoch),  # of another epoch: of another history, whatever its numbers say
                lambda landed: judge(proof, landed.position).proved,
                lambda: self._fetch(question, row),
            ),
            lambda seen: seen.position,
            source.wait,
            deadline,
        )
        verdict = judge(proof, found.position)
        token = str(demand.vector) if demand.given else ""
        own = None
        if proof.epoch is not None:
            token = advanced(token, proof.shard, proof.epoch, str(found.hi))
            if options is not NO_OPTIONS:
                own = EventToken(found.timestamp, proof.shard, found.hi, epoch=proof.epoch)
        reason = f"read from the source at {found.position}: {verdict.why}; the cache: {why}"
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

    async def _fetch(self, question: Question, row: Row | None) -> SourceRow:
        """Reads the source, and offers the answer to the owner if it may stand in the cache."""
        space, table, key = question[:3]
        assert space.source is not None
        self._metrics.source_reads.inc()
        try:
            found = await space.source.read(table, key.values)
        except ReadError:
            self._metrics.source_failures.inc()
            raise
        if row is not None and table.cacheable and may_offer(row, space.source.shard, key, found):
            self._offer(question, row, found)
        return found

    def _offer(self, question: Question, row: Row, found: SourceRow) -> None:
        space, key = question.space, question.key.key
        partition = space.layout.partition_of(key)
        lo, hi = str(found.position), str(found.hi)
        fill = Fill(0, space.name, partition, key, found.image, lo, hi, found.timestamp, row.stamp)

        async def send(client: OwnerClient) -> Filled:
            return await client.fill(fill)

        self._fills.offer(space.name, partition, send)


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
