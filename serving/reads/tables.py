"""Reads of catalog tables: write-id lists, table ids and the session's vector decide; else the source of truth."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple

from consumers.owner.protocol import FillTable, Table
from consumers.owner.tables import MissingWriteIds, TableFill, read_fill
from serving.errors import ReadError
from serving.http.answers import envelope_bytes, table_bytes
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand, TableWanted
from serving.reads.fills import Fills
from serving.reads.flight import Flights
from serving.reads.owners import OwnerAway, Owners
from serving.reads.proof import Proof, Verdict, history_lost, judge
from serving.reads.rows import Answered, advanced
from serving.reads.spaces import TableSpace, learn_epochs
from serving.sources.source import SourceTable
from tokens import Demand
from tokens.decision import HISTORY_LOST

NAMES_MAX = 100_000
POLL_S = 0.05
"""How often a source that does not cover the list yet is asked again, within ``max_wait_ms``."""


class Question(NamedTuple):
    """One table that is asked for."""

    space: TableSpace
    wanted: TableWanted
    demand: ReadDemand
    deadline: float


class TableReads:
    """Answers reads of catalog tables. Of one event loop. Raises `ReadError`."""

    def __init__(self, owners: Owners, fills: Fills, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._fills = fills
        self._metrics = metrics
        self._flights: Flights[tuple[str, str, int | None], SourceTable] = Flights(metrics.source_shared.inc)
        self._partitions: dict[tuple[str, str], int] = {}

    async def read(self, space: TableSpace, wanted: TableWanted, demand: ReadDemand) -> Answered:
        """One table."""
        listed = wanted.write_ids.table if wanted.write_ids is not None else None
        if listed and listed.lower() != wanted.name.lower():
            raise ReadError("bad_write_ids", f"valid_write_ids is a list of {listed}, {wanted.name} is asked for")
        question = Question(space, wanted, demand, monotonic() + demand.max_wait_ms / 1000)
        try:
            found, why = await self._ask(question), ""
        except OwnerAway as away:
            if space.source is None:
                raise
            found, why = None, str(away)
        if found is None:
            return await self._from_source(question, None, why)
        space.epochs.learn(found.shard, found.epoch)
        if found.code == "history_lost":
            raise history_lost(demand.vector, found.shard, found.epoch, found.watermark, found.why)
        if found.code:
            raise ReadError(found.code, found.why)
        if found.served and found.image is not None:
            return self._from_cache(question, found)
        return await self._from_source(question, found, found.why)

    async def _ask(self, question: Question) -> Table:
        """The owner's answer. Every partition knows every name, and says in which one the table's state is."""
        space, wanted, _, _ = question
        known = self._partitions.get((space.name, wanted.name))
        first = [known] if known is not None else []
        away: OwnerAway | None = None
        asked: set[str | None] = set()
        for partition in [*first, *range(space.layout.partitions)]:
            address = self._owners.address_of(space.name, partition)
            if address in asked:
                continue
            asked.add(address)
            try:
                found = await self._ask_at(question, partition)
                if found.elsewhere:
                    found = await self._ask_at(question, found.partition)
            except OwnerAway as error:
                away = error
                continue
            if found.table_id and not found.elsewhere:
                if len(self._partitions) >= NAMES_MAX:
                    self._partitions.clear()
                self._partitions[space.name, wanted.name] = found.partition
            return found
        raise away or OwnerAway(f"no process has announced that it owns a partition of {space.name}")

    async def _ask_at(self, question: Question, partition: int) -> Table:
        space, wanted, demand, _ = question
        return await self._owners.ask(
            space.name,
            partition,
            lambda client: client.get_table(
                space.name,
                wanted.name,
                "" if wanted.write_ids is None else str(wanted.write_ids),
                wanted.table_id,
                str(demand.vector) if demand.given else "",
                demand.max_wait_ms,
            ),
        )

    def _from_cache(self, question: Question, found: Table) -> Answered:
        demand = question.demand
        token = advanced(str(demand.vector) if demand.given else "", found.shard, found.epoch, found.hi)
        envelope = envelope_bytes("cache", found.freshness, found.why, token)
        self._metrics.answered("table", "cache", found.freshness)
        body = table_bytes(envelope, found.table_id, found.write_ids or None, found.image)
        return Answered(200, body, "cache", found.freshness, token)

    async def _from_source(self, question: Question, found: Table | None, cache_why: str) -> Answered:
        space, wanted, demand, deadline = question
        source = space.source
        if source is None:
            why = f"the cache cannot prove its answer ({cache_why}), and catalog {space.name} has no source here"
            raise ReadError("source_unreachable", why)
        proof = Proof(demand, source.shard, await learn_epochs(self._owners, space, source.shard))
        while True:
            landed = await self._flights.read(
                (space.name, wanted.name, proof.epoch),
                lambda seen: judge_table(proof, wanted, seen).proved,
                lambda: self._fetch(question, found),
            )
            verdict = judge_table(proof, wanted, landed)
            if verdict.proved or verdict.lost or _other_id(wanted, landed):
                break
            if wanted.write_ids is not None:
                own = await source.read(wanted.name, str(wanted.write_ids))
                verdict_of_own = judge_table(proof, wanted, own)
                if verdict_of_own.proved:
                    landed, verdict = own, verdict_of_own
                    break
            if monotonic() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        if not verdict.proved:
            raise _refusal(proof, wanted, landed, verdict)
        token = str(demand.vector) if demand.given else ""
        if proof.epoch is not None:
            token = advanced(token, proof.shard, proof.epoch, str(landed.position))
        why = f"read from the source at {landed.position}: {verdict.why}; the cache: {cache_why}"
        envelope = envelope_bytes("source", verdict.freshness, why, token)
        self._metrics.answered("table", "source", verdict.freshness)
        missing = "" if landed.image is not None else f"catalog {space.name} has no table {wanted.name}"
        body = table_bytes(envelope, landed.table_id, landed.write_ids or None, landed.image, missing)
        return Answered(404 if missing else 200, body, "source", verdict.freshness, token)

    async def _fetch(self, question: Question, found: Table | None) -> SourceTable:
        """Reads the source, and offers the answer to the owner of the table's partition."""
        space, name = question.space, question.wanted.name
        assert space.source is not None
        self._metrics.source_reads.inc()
        try:
            landed = await space.source.read(name)
        except ReadError:
            self._metrics.source_failures.inc()
            raise
        if landed.image is None or found is None or found.table_id != landed.table_id or found.elsewhere:
            return landed
        position = str(landed.position)
        fill = FillTable(
            0,
            space.name,
            found.partition,
            landed.table_id,
            name,
            landed.kind,
            landed.image,
            landed.write_ids,
            position,
            position,
            found.stamp,
        )
        self._fills.offer_table(space.name, found.partition, fill)
        return landed


def judge_table(proof: Proof, wanted: TableWanted, landed: SourceTable) -> Verdict:
    """Whether what the source said proves the demand: its list, id and position. Raises `ReadError` 400."""
    by_position = judge(proof, landed.position)
    if landed.image is None or by_position.lost:
        return by_position
    position = str(landed.position)
    fill = TableFill(landed.table_id, wanted.name, landed.kind, landed.image, landed.write_ids, position, position)
    demand = Demand(proof.demand.vector, wanted.write_ids, wanted.table_id, proof.demand.given)
    try:
        answer = read_fill(fill, demand, None, proof.shard, proof.epoch or 0)
    except MissingWriteIds as error:
        raise ReadError("missing_write_ids", str(error), hint=error.hint) from error
    if proof.epoch is None and answer.servable:
        return by_position
    return Verdict(answer.freshness.value, answer.why, answer.servable, answer.why.startswith(HISTORY_LOST))


def _other_id(wanted: TableWanted, landed: SourceTable) -> bool:
    return landed.image is not None and bool(wanted.table_id) and wanted.table_id != landed.table_id


def _refusal(proof: Proof, wanted: TableWanted, landed: SourceTable, verdict: Verdict) -> ReadError:
    if verdict.lost:
        return history_lost(proof.demand.vector, proof.shard, proof.epoch or 0, str(landed.position), verdict.why)
    if _other_id(wanted, landed):
        return ReadError(
            "table_id_changed", f"{wanted.name} has table id {landed.table_id} at the source: {verdict.why}"
        )
    return ReadError("source_behind", f"the source's answer does not prove the demand: {verdict.why}")
