"""Reads of catalog tables: from an owner, or from the source of truth where the owner cannot prove its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias, cast

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import HISTORY_LOST, FillTable, OwnerObjects, OwnerTable
from consumers.owner.tables import MissingWriteIds, decide_answer
from serving.answers import RawTableAnswer, absence_fields, raw_image
from serving.client.answers import FreshnessName, ListsAnswer, ServedFrom, TableAnswer, TableList
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.misses import NO_LIST, NO_OWNER, miss_reason, refusal_reason
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.fills import Fills
from serving.reads.flight import Flights
from serving.reads.owners import OwnerAway, Owners
from serving.reads.proof import Proof, history_lost_error, reached_by, token_after, told_by_both
from serving.reads.spaces import TableSpace, epoch_of, learn_shards
from serving.sources.source import NOTHING, Folded, ListSource, SourceTable, TableSource
from stream.spans import source_span
from tokens import Decision, Demand, Freshness

NAMES_MAX = 100_000
READS_MAX = 16
"""Tables of one request that are read concurrently."""
SOURCE_TIMEOUT_S = 10.0
POLL_S = 0.05
"""Pause between two reads of a source that does not cover the list yet, within ``max_wait_ms``."""


class TableLookup(NamedTuple):
    """One requested table. ``deadline``: until when, on the event loop's clock, the source is asked again."""

    space: TableSpace
    wanted: RequestedTable
    demand: ReadDemand
    deadline: float


class TableMiss(NamedTuple):
    """A lookup that only the source can answer. ``found``: the owner's answer, if any; ``why`` it cannot be given."""

    lookup: TableLookup
    found: OwnerTable | None
    why: str


TableFlightKey: TypeAlias = tuple[str, str, int | None]
"""Catalog, table and epoch."""


class TableReads:
    """Answers reads of catalog tables. Belongs to one event loop."""

    def __init__(self, owners: Owners, fills: Fills, metrics: FrontMetrics, *, stale_if_down: bool = False) -> None:
        """``stale_if_down``: where the source does not answer, give what is cached, marked as stale."""
        self._stale_if_down = stale_if_down
        self._owners = owners
        self._fills = fills
        self._metrics = metrics
        self._flights: Flights[TableFlightKey, TableMiss, SourceTable] = Flights(self._fetch, metrics.source_shared.inc)
        self._partitions: dict[tuple[str, str], int] = {}

    async def read_many(
        self, wanted: Sequence[tuple[TableSpace, RequestedTable]], demand: ReadDemand
    ) -> list[RawTableAnswer | ReadError]:
        """Tables in the order of ``wanted``, each an answer or its error."""
        deadline = asyncio.get_running_loop().time() + demand.max_wait_ms / 1000
        lookups = [TableLookup(space, table, demand, deadline) for space, table in wanted]
        if len(lookups) == 1:  # without the task and the gate
            return [await self._read_or_error(lookups[0])]
        gate = asyncio.Semaphore(READS_MAX)

        async def read(lookup: TableLookup) -> RawTableAnswer | ReadError:
            async with gate:
                return await self._read_or_error(lookup)

        return await asyncio.gather(*map(read, lookups))

    async def _read_or_error(self, lookup: TableLookup) -> RawTableAnswer | ReadError:
        try:
            return await self._read(lookup)
        except ReadError as error:
            return error

    async def read_lists(
        self, space: TableSpace, names: Sequence[str], txn: int, txns: str, demand: ReadDemand
    ) -> ListsAnswer:
        """What a transaction needs to read ``names`` (`serving.sources.source.ListSource`), always from the source."""
        source = space.source
        if not isinstance(source, ListSource):
            raise ReadError("source_unreachable", f"catalog {space.name} has no source here that lists transactions")
        await learn_shards(self._owners, space, demand.vector, asyncio.get_running_loop().time())
        epoch = await epoch_of(self._owners, space, source.shard)
        proof = Proof(demand, source.shard, epoch, space.epochs.kin_of(source.shard, demand.vector))
        try:
            async with asyncio.timeout(SOURCE_TIMEOUT_S):
                found = await source.read_lists(names, txn, txns)
        except TimeoutError as error:
            raise ReadError("source_unreachable", f"no lists within {SOURCE_TIMEOUT_S:g} s") from error
        decision = proof.judge(found.position)
        if not decision.may_be_served:
            raise proof.refusal(decision, found.position)
        freshness = cast("FreshnessName", decision.freshness.value)
        self._metrics.answered("lists", "source", freshness)
        why = f"read from the source at {found.position}: {decision.why}"
        tables = [TableList(each.name, each.table_id, each.write_ids or None) for each in found.tables]
        return ListsAnswer("source", freshness, why, proof.token_after(str(found.position)), found.txns, tables)

    async def _read(self, lookup: TableLookup) -> RawTableAnswer:
        space, wanted, demand, _ = lookup
        wanted.check_list()
        try:
            found = await self._ask_owners(lookup)
        except OwnerAway as away:
            if space.source is None or not wanted.name:  # a source is asked by name
                raise
            self._metrics.missed("table", NO_OWNER)
            return await self._from_source(TableMiss(lookup, None, str(away)))
        if not wanted.name:
            lookup = lookup._replace(wanted=_with_name(wanted, found.name))
        space.epochs.learn_kin(found.shard, found.epoch, found.kin)
        if found.code == HISTORY_LOST:
            lost = history_lost_error(demand.vector, found.shard, found.epoch, found.watermark, found.why, found.kin)
            await told_by_both(lost, self._from_source(TableMiss(lookup, found, found.why)))
        if found.code:
            raise ReadError(found.code, found.why)
        # an older owner does not know that a time is demanded
        if not found.served or found.image is None or found.as_of_ms < demand.not_before_ms:
            miss = TableMiss(lookup, found, found.why)
            self._metrics.missed("table", miss_reason(found))
            try:
                return await self._from_source(miss)
            except ReadError as error:
                stale = await self._stale(miss, found, error) if self._stale_if_down else None
                if stale is None:
                    raise
                return stale
        token = token_after(demand.token, found.shard, found.epoch, found.hi)
        return self._answer("cache", found.freshness, found.why, token, found.table_id, found.write_ids, found.image)

    async def read_struct(self, space: TableSpace, wanted: RequestedTable, demand: ReadDemand) -> OwnerTable | None:
        """The table as Thrift (`OwnerTable.struct`) if the cache proves it fresh. None: the source has to be asked.

        A list without an id is of the table that has the name; then the demand has the end of the source's log.
        Raises `ReadError` ``missing_write_ids`` alone.
        """
        deadline = asyncio.get_running_loop().time() + demand.max_wait_ms / 1000
        try:
            found = await self._ask_owners(TableLookup(space, wanted, demand, deadline), as_struct=True)
        except ReadError as error:
            reason = refusal_reason(error.code)
            self._metrics.missed("table", reason)
            if reason == NO_LIST:
                raise
            return None
        if found.struct is None or not is_proved(found, demand):
            self._metrics.missed("table", miss_reason(found))
            return None
        space.epochs.learn_kin(found.shard, found.epoch, found.kin)
        return found

    async def _ask_owners(self, lookup: TableLookup, *, as_struct: bool = False) -> OwnerTable:
        """The owner's answer. Any owner knows every name, and says which partition holds the table's state."""
        space, wanted, demand, deadline = lookup

        async def get(client: OwnerClient) -> OwnerTable:
            return await client.get_table(
                space.name,
                wanted.name,
                "" if wanted.write_ids is None else str(wanted.write_ids),
                wanted.table_id,
                demand.token,
                max(0, round(1000 * (deadline - asyncio.get_running_loop().time()))),
                demand.not_before_ms,
                as_struct=as_struct,
            )

        async def ask(client: OwnerClient, _: int) -> OwnerTable:
            found = await get(client)
            return await self._owners.ask(space.name, found.partition, get) if found.elsewhere else found

        known = self._partitions.get((space.name, wanted.name))
        first = [known] if known is not None else []
        partitions = [*first, *range(space.layout.partitions)]
        found = await self._owners.ask_any(space.name, partitions, ask, lambda _: True)
        if wanted.name and found.table_id and not found.elsewhere:
            if len(self._partitions) >= NAMES_MAX:
                self._partitions.clear()
            self._partitions[space.name, wanted.name] = found.partition
        return found

    async def _from_source(self, miss: TableMiss) -> RawTableAnswer:
        (space, wanted, demand, deadline), owned, cache_why = miss
        source = space.source
        if source is None:
            why = f"the cache cannot prove its answer ({cache_why}), and catalog {space.name} has no source here"
            raise ReadError("source_unreachable", why)
        await learn_shards(self._owners, space, demand.vector, deadline)
        epoch = await epoch_of(self._owners, space, source.shard)
        proof = Proof(demand, source.shard, epoch, space.epochs.kin_of(source.shard, demand.vector))
        proof.reached = reached_by(proof, [owned] if owned is not None else [])
        while True:
            found = await self._flights.read(
                (space.name, wanted.name, proof.epoch),
                miss,
                lambda seen: judge_table(proof, wanted, seen).may_be_served,
            )
            decision = judge_table(proof, wanted, found)
            if decision.may_be_served or decision.history_lost or _has_other_id(wanted, found):
                break
            if wanted.write_ids is not None:
                own = await read_in_time(source, wanted.name, str(wanted.write_ids), known_by(miss.found))
                of_own = judge_table(proof, wanted, own)
                if of_own.may_be_served:
                    found, decision = own, of_own
                    break
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        if wanted.by_id and not decision.history_lost:
            _require_same(wanted, found, decision)
        if not decision.may_be_served:
            if _has_other_id(wanted, found) and not decision.history_lost:
                why = f"{wanted.name} has table id {found.table_id} at the source: {decision.why}"
                raise ReadError("table_id_changed", why)
            raise proof.refusal(decision, found.position)
        why = f"read from the source at {found.position}: {decision.why}; the cache: {cache_why}"
        token = proof.token_after(found.latest)
        name = decision.freshness.value
        missing = "" if found.image is not None else f"catalog {space.name} has no table {wanted.name}"
        return self._answer("source", name, why, token, found.table_id, found.write_ids, found.image, missing)

    async def _stale(self, miss: TableMiss, found: OwnerTable, down: ReadError) -> RawTableAnswer | None:
        """What the owner has, by the list that it has it for; None if that is nothing, or the source is not down.

        An entry that waits for a writer or was voided stays unanswered: nobody knows what it is.
        """
        (space, wanted, demand, _), _, why = miss
        if down.code != "source_unreachable" or not found.table_id or wanted.table_id not in (0, found.table_id):
            return None
        old = await self._owners.ask(
            space.name,
            found.partition,
            lambda client: client.get_table(space.name, wanted.name, found.write_ids, found.table_id, "", 0),
        )
        if not old.served or old.image is None:
            return None
        token = token_after(demand.token, old.shard, old.epoch, old.hi)
        why = f"the source is down ({down}), and the cache may be behind: {why}"
        return self._answer("cache", "stale", why, token, old.table_id, old.write_ids, old.image)

    def _answer(
        self,
        served_from: ServedFrom,
        freshness: str,
        why: str,
        token: str,
        table_id: int,
        write_ids: str,
        image: bytes | None,
        missing: str = "",
    ) -> RawTableAnswer:
        self._metrics.answered("table", served_from, freshness)
        return TableAnswer(
            served_from,
            cast("FreshnessName", freshness),
            why,
            token,
            found=image is not None,
            table_id=table_id,
            write_ids=write_ids or None,
            value=raw_image(image),
            **absence_fields(missing),
        )

    async def _fetch(self, misses: Mapping[TableFlightKey, TableMiss]) -> dict[TableFlightKey, SourceTable | Exception]:
        return {flight_key: await self._fetch_one(miss) for flight_key, miss in misses.items()}

    async def _fetch_one(self, miss: TableMiss) -> SourceTable:
        """Reads the source, and offers the answer to the owner of the table's partition as a fill."""
        (space, wanted, _, _), found, _ = miss
        assert space.source is not None
        self._metrics.source_reads.inc()
        try:
            with source_span("table", space.source.shard):
                seen = await read_in_time(space.source, wanted.name, known=known_by(found))
        except ReadError:
            self._metrics.source_failures.inc()
            raise
        if found is not None and (fill := fill_of(space.name, wanted.name, found, seen)) is not None:
            self._fills.offer_table(space.name, found.partition, fill)
        return seen


def is_proved(found: OwnerTable | OwnerObjects, demand: ReadDemand) -> bool:
    """Whether an owner has proved what it answers. An older one does not know that a time is demanded."""
    is_fresh = found.served and not found.code and found.freshness == Freshness.FRESH.value
    return is_fresh and found.as_of_ms >= demand.not_before_ms


def known_by(found: OwnerTable | OwnerObjects | None) -> Folded:
    """What an owner has folded; None: nobody has answered. Its list is not later than its watermark, if it has one.

    The list of a fill, which is not folded, may be later.
    """
    if found is None:
        return NOTHING
    is_filled = isinstance(found, OwnerTable) and found.filled
    return Folded(found.watermark, "" if is_filled else found.write_ids)


async def read_in_time(
    source: TableSource, name: str, own_list: str | None = None, known: Folded = NOTHING
) -> SourceTable:
    """`TableSource.read`, given up after `SOURCE_TIMEOUT_S`: a locked table must not hold its readers for ever."""
    try:
        async with asyncio.timeout(SOURCE_TIMEOUT_S):
            return await source.read(name, own_list, known)
    except TimeoutError as error:
        why = f"the source has not answered for {name} within {SOURCE_TIMEOUT_S:g} s"
        raise ReadError("source_unreachable", why) from error


@asynccontextmanager
async def asking(metrics: FrontMetrics, kind: str, shard: str, what: str) -> AsyncIterator[None]:
    """Counts one read of a source and traces it. Given up after `SOURCE_TIMEOUT_S`, with `ReadError`."""
    metrics.source_reads.inc()
    try:
        with source_span(kind, shard):
            async with asyncio.timeout(SOURCE_TIMEOUT_S):
                yield
    except TimeoutError as error:
        metrics.source_failures.inc()
        why = f"the source has not answered for {what} within {SOURCE_TIMEOUT_S:g} s"
        raise ReadError("source_unreachable", why) from error
    except ReadError as error:
        if error.code != "bad_filter":
            metrics.source_failures.inc()
        raise


def fill_of(keyspace: str, name: str, found: OwnerTable, seen: SourceTable) -> FillTable | None:
    """The fill to offer to the owner, which answered ``found``; None if ``seen`` must not be cached."""
    if seen.image is None or not seen.is_logged or found.table_id != seen.table_id or found.elsewhere:
        return None
    return FillTable(
        id=0,
        keyspace=keyspace,
        partition=found.partition,
        table_id=seen.table_id,
        name=name,
        kind=seen.kind,
        image=seen.image,
        write_ids=seen.write_ids,
        lo=str(seen.position),
        hi=seen.latest,
        stamp=found.stamp,
        written=str(seen.written or ""),
    )


def _with_name(wanted: RequestedTable, name: str) -> RequestedTable:
    """A table that was asked by id, with the name that it has. Raises `ReadError` ``unknown_table``."""
    if not name:
        raise ReadError("unknown_table", f"no table of id {wanted.table_id} is known here", hint="ask by its name")
    db, _, table = name.partition(".")
    return wanted._replace(db=db, table=table, by_id=True)


class SourceEvidence(NamedTuple):
    """A `consumers.owner.evidence.Evidence` for a table that was just read from the source at one position."""

    shard: str
    epoch: int
    lo: str
    hi: str
    as_of_ms: int
    watermark: str = ""


def judge_table(proof: Proof, wanted: RequestedTable, found: SourceTable) -> Decision:
    """Whether the source's answer proves the demand by list, id and position.

    Raises `ReadError` ``missing_write_ids``.
    """
    by_position = proof.judge(found.position, found.as_of_ms)
    as_of_ms = proof.as_of(found.position, found.as_of_ms)
    if found.image is None or by_position.history_lost:
        return by_position
    asked = proof.demand
    demand = Demand(asked.vector, wanted.write_ids, wanted.table_id, asked.given, asked.not_before_ms)
    evidence = SourceEvidence(proof.shard, proof.epoch or 0, str(found.position), found.latest, as_of_ms)
    try:
        decision = decide_answer(evidence, wanted.name, found.kind, found.write_ids, found.table_id, demand, proof.kin)
    except MissingWriteIds as error:
        raise ReadError("missing_write_ids", str(error), hint=error.hint) from error
    return by_position if proof.epoch is None and decision.may_be_served else decision


def _require_same(wanted: RequestedTable, found: SourceTable, decision: Decision) -> None:
    """Raises `ReadError` ``source_behind`` if what the source has of an owner's name is not the table of the id.

    That proves nothing of the table, which may have another name by now.
    """
    if _has_other_id(wanted, found):
        there = f"table id {found.table_id}"
    elif found.image is None and decision.may_be_served:
        there = "no table"
    else:
        return
    why = f"table id {wanted.table_id} is {wanted.name} in the cache, and the source has {there} of that name"
    hint = "one of them is behind a rename or a drop: try again shortly, or ask by its name"
    raise ReadError("source_behind", why, hint=hint)


def _has_other_id(wanted: RequestedTable, found: SourceTable) -> bool:
    return found.image is not None and bool(wanted.table_id) and wanted.table_id != found.table_id
