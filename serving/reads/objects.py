"""Reads of catalog objects other than tables: from their owner, or from the source where the owner cannot prove it.

An answer from the source is whole and has no pages: it is of one moment, and no other answer continues it.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from consumers.owner.client import OwnerClient
from consumers.owner.objects.answering import latest_of, select_named
from consumers.owner.objects.filter import FilterError
from consumers.owner.objects.statistics import do_hold
from consumers.owner.protocol import HISTORY_LOST, KEYS_MAX, PAGE_EXPIRED, GetObjects, OwnerObjects
from serving.answers import RawObjects, raw_image
from serving.client.answers import FreshnessName, ObjectsAnswer, ServedFrom
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.misses import NO_LIST, NO_OWNER, miss_reason, refusal_reason
from serving.reads.demands import NO_VECTOR, ReadDemand, RequestedTable
from serving.reads.flight import Flights
from serving.reads.owners import AnswerTooLarge, OwnerAway, Owners
from serving.reads.proof import Proof, history_lost_error, reached_by, token_after, told_by_both
from serving.reads.spaces import TableSpace, epoch_of, learn_shards
from serving.reads.tables import POLL_S, asking, is_proved, judge_table, known_by
from serving.sources.source import Folded, ObjectSource, SourceObjects, SourceTable, WantedObjects
from stream.wire.keys import KeyFormatError, object_name, object_parts
from tokens import Decision, Freshness, ValidWriteIdList, Verdict

PAGE_DEFAULT: Final = 1_000
STRUCTS_MAX: Final = 50_000
STRUCT_BYTES_MAX: Final = 64 << 20
"""Objects as Thrift in one answer, and their bytes: it is in memory as a whole, more than once."""
STRUCT_NAMES_MAX: Final = 200_000
"""Names alone in such an answer, which hold up all other requests while they are sorted and written."""
_MAYBE_KEPT: Final = Decision(
    Freshness.EVENTUAL, "a part of it may be from before a write, and the source cannot tell", Verdict.NO_DEMAND
)


class RequestedObjects(NamedTuple):
    """Objects as a request names them: ``names`` in parts, or what of all of them. ``table``: they belong to it."""

    kind: str
    table: RequestedTable | None = None
    names: tuple[tuple[str, ...], ...] = ()
    prefix: tuple[str, ...] = ()
    filter: str = ""
    page: str = ""
    limit: int = PAGE_DEFAULT
    names_only: bool = False
    count_only: bool = False


ObjectFlightKey: TypeAlias = tuple[str, WantedObjects, int | None]
"""Catalog, objects and epoch."""


class ObjectLookup(NamedTuple):
    """One request. ``deadline``: until when, on the event loop's clock, the source is asked again."""

    space: TableSpace
    wanted: RequestedObjects
    demand: ReadDemand
    deadline: float


class ObjectReads:
    """Answers reads of objects. Belongs to one event loop."""

    def __init__(self, owners: Owners, metrics: FrontMetrics, *, stale_if_down: bool = False) -> None:
        """``stale_if_down``: where the source does not answer, give what is cached, marked as stale."""
        self._owners = owners
        self._metrics = metrics
        self._stale_if_down = stale_if_down
        self._flights: Flights[ObjectFlightKey, tuple[ObjectSource, Folded], SourceObjects] = Flights(
            self._fetch, metrics.source_shared.inc
        )

    async def read(self, space: TableSpace, wanted: RequestedObjects, demand: ReadDemand) -> RawObjects:
        """The objects. Raises `ReadError`."""
        page = _page_of(wanted.page)
        deadline = asyncio.get_running_loop().time() + demand.max_wait_ms / 1000
        lookup = ObjectLookup(space, wanted, demand, deadline)
        if wanted.table is not None:
            wanted.table.check_list()
        try:
            found = await self._ask_owners(space, wanted, demand, page.after, page.version)
        except OwnerAway as away:
            self._metrics.missed("object", NO_OWNER)
            return await self._from_source(lookup, str(away))
        space.epochs.learn_kin(found.shard, found.epoch, found.kin)
        if found.code == HISTORY_LOST:
            lost = history_lost_error(demand.vector, found.shard, found.epoch, found.watermark, found.why, found.kin)
            await told_by_both(lost, self._from_source(lookup, found.why, found))
        if found.code:
            raise ReadError(found.code, found.why)
        if not found.served or found.as_of_ms < demand.not_before_ms:  # as `TableReads`
            self._metrics.missed("object", miss_reason(found))
            try:
                return await self._from_source(lookup, found.why, found)
            except ReadError as error:
                stale = await self._stale(lookup, found, error) if self._stale_if_down else None
                if stale is None:
                    raise
                return stale
        token = token_after(demand.token, found.shard, found.epoch, found.hi)
        return self._answer("cache", found.freshness, found.why, token, found, demand.not_before_ms)

    async def read_structs(
        self, space: TableSpace, wanted: RequestedObjects, demand: ReadDemand
    ) -> OwnerObjects | None:
        """The objects as Thrift (`OwnerObjects.structs`), or their names, if the cache proves them fresh.

        As `TableReads.read_struct`. A list is whole: it has no pages, and is the source's if it is too long.
        """
        found: OwnerObjects | None = None
        size, most = 0, STRUCT_NAMES_MAX if wanted.names_only else STRUCTS_MAX
        names = wanted.names
        parts = [names[at : at + KEYS_MAX] for at in range(0, len(names), KEYS_MAX)]
        asked = [wanted._replace(names=some) for some in parts] or [wanted]
        after = version = ""
        while asked:
            try:
                part = await self._ask_owners(space, asked[0], demand, after, version, as_struct=True)
            except ReadError as error:
                reason = refusal_reason(error.code)
                self._metrics.missed("object", reason)
                if reason == NO_LIST:
                    raise
                return None
            found = part if found is None else _joined(found, part)
            has_all = wanted.names_only or len(part.structs) == len(part.names)
            size += sum(len(each or b"") for each in part.structs)
            is_short = len(found.names) <= most and size <= STRUCT_BYTES_MAX
            if not (has_all and is_short and is_proved(found, demand)):
                self._metrics.missed("object", miss_reason(found))
                return None
            space.epochs.learn_kin(part.shard, part.epoch, part.kin)
            after, version = part.after, part.version if part.after else ""
            asked = asked if after else asked[1:]
        return found

    async def _ask_owners(
        self,
        space: TableSpace,
        wanted: RequestedObjects,
        demand: ReadDemand,
        after: str,
        version: str,
        *,
        as_struct: bool = False,
    ) -> OwnerObjects:
        """The owner's answer. Objects by name that do not fit into one are asked for in parts."""
        try:
            return await self._ask_once(space, wanted, demand, after, version, as_struct=as_struct)
        except AnswerTooLarge:
            half = len(wanted.names) // 2
            if not half:
                raise
        first, second = [
            await self._ask_owners(space, wanted._replace(names=some), demand, after, version, as_struct=as_struct)
            for some in (wanted.names[:half], wanted.names[half:])
        ]
        return _joined(first, second)

    async def _ask_once(
        self,
        space: TableSpace,
        wanted: RequestedObjects,
        demand: ReadDemand,
        after: str,
        version: str,
        *,
        as_struct: bool,
    ) -> OwnerObjects:
        table = wanted.table

        async def get(client: OwnerClient) -> OwnerObjects:
            return await client.get_objects(
                GetObjects(
                    id=0,
                    keyspace=space.name,
                    kind=wanted.kind,
                    table=table.name if table is not None else "",
                    table_id=table.table_id if table is not None else 0,
                    write_ids=str(table.write_ids) if table is not None and table.write_ids is not None else "",
                    vector=demand.token,
                    names=list(map(object_name, wanted.names)),
                    prefix=list(wanted.prefix),
                    filter=wanted.filter,
                    after=after,
                    version=version,
                    limit=wanted.limit,
                    names_only=wanted.names_only,
                    count_only=wanted.count_only,
                    max_wait_ms=demand.max_wait_ms,
                    not_before_ms=demand.not_before_ms,
                    as_struct=as_struct,
                )
            )

        async def ask(client: OwnerClient, _: int) -> OwnerObjects:
            found = await get(client)
            return await self._owners.ask(space.name, found.partition, get) if found.elsewhere else found

        return await self._owners.ask_any(space.name, range(space.layout.partitions), ask, lambda _: True)

    async def _from_source(self, lookup: ObjectLookup, cache_why: str, owned: OwnerObjects | None = None) -> RawObjects:
        space, wanted, demand, deadline = lookup
        source = space.source
        if wanted.page:
            raise ReadError(PAGE_EXPIRED, f"the cache cannot prove the next page: {cache_why}")
        if not isinstance(source, ObjectSource):
            why = f"the cache cannot prove its answer ({cache_why}), and no source of catalog {space.name} has it here"
            raise ReadError("source_unreachable", why)
        await learn_shards(self._owners, space, demand.vector, deadline)
        epoch = await epoch_of(self._owners, space, source.shard)
        proof = Proof(demand, source.shard, epoch, space.epochs.kin_of(source.shard, demand.vector))
        proof.reached = reached_by(proof, [owned] if owned is not None else [])
        seen = await self._prove(lookup, source, proof, known_by(owned))
        if wanted.table is not None and not seen.table_id:
            raise ReadError("unknown_table", f"catalog {space.name} has no table {wanted.table.name}")
        why = f"read from the source at {seen.position}: {_judge(proof, wanted, seen).why}; the cache: {cache_why}"
        freshness = _judge(proof, wanted, seen).freshness.value
        found = _of_source(wanted, seen, source.shard, proof.epoch or 0)
        return self._answer("source", freshness, why, proof.token_after(str(seen.hi or seen.position)), found)

    async def _prove(self, lookup: ObjectLookup, source: ObjectSource, proof: Proof, known: Folded) -> SourceObjects:
        """An answer of the source that proves the demand, as `TableReads` gets one. Raises `ReadError`."""
        space, wanted, _, deadline = lookup
        asked, table = _asked(wanted), wanted.table
        while True:
            seen = await self._flights.read(
                (space.name, asked, proof.epoch),
                (source, known),
                lambda seen: _judge(proof, wanted, seen).may_be_served,
            )
            decision = _judge(proof, wanted, seen)
            if decision.may_be_served:
                return seen
            other_id = table is not None and table.table_id and seen.table_id not in (0, table.table_id)
            if decision.history_lost:
                raise proof.refusal(decision, seen.position)
            if other_id and table is not None:
                why = f"{table.name} has table id {seen.table_id} at the source: {decision.why}"
                raise ReadError("table_id_changed", why)
            if table is not None and table.write_ids is not None:
                own = await self._read_in_time(source, asked, known, str(table.write_ids))
                if _judge(proof, wanted, own).may_be_served:
                    return own
            if asyncio.get_running_loop().time() >= deadline:
                raise proof.refusal(decision, seen.position)
            await asyncio.sleep(POLL_S)

    async def _fetch(
        self, wanted: Mapping[ObjectFlightKey, tuple[ObjectSource, Folded]]
    ) -> dict[ObjectFlightKey, SourceObjects | Exception]:
        return {key: await self._read_in_time(source, key[1], known) for key, (source, known) in wanted.items()}

    async def _read_in_time(
        self, source: ObjectSource, asked: WantedObjects, known: Folded, own_list: str | None = None
    ) -> SourceObjects:
        async with asking(self._metrics, asked.kind, source.shard, f"{asked.kind} {asked.table}"):
            return await source.read_objects(asked, own_list, known)

    async def _stale(self, lookup: ObjectLookup, found: OwnerObjects, down: ReadError) -> RawObjects | None:
        """What the owner has, by the list that it has it for; None if that is nothing, or the source is not down."""
        space, wanted, demand, _ = lookup
        table = wanted.table
        if down.code != "source_unreachable" or (table is not None and table.table_id not in (0, found.table_id)):
            return None
        if table is not None:
            known = ValidWriteIdList.parse(found.write_ids) if found.write_ids else table.write_ids
            wanted = wanted._replace(table=table._replace(write_ids=known, table_id=found.table_id))
        old = await self._ask_owners(space, wanted, ReadDemand(NO_VECTOR, False, 0), "", "")
        if not old.served:
            return None
        token = token_after(demand.token, old.shard, old.epoch, old.hi)
        why = f"the source is down ({down}), and the cache may be behind: {found.why}"
        return self._answer("cache", "stale", why, token, old)

    def _answer(
        self, served_from: ServedFrom, freshness: str, why: str, token: str, found: OwnerObjects, proved_ms: int = 0
    ) -> RawObjects:
        """``proved_ms``: the time that was demanded of ``found``, and is of the pages that follow (0: none)."""
        self._metrics.answered("object", served_from, freshness)
        images = [raw_image(image) for image in found.images]
        return ObjectsAnswer(
            served_from=served_from,
            freshness=cast("FreshnessName", freshness),
            why=why,
            token=token,
            names=[object_parts(name) for name in found.names],
            objects=images,
            count=found.count,
            table_id=found.table_id or None,
            write_ids=found.write_ids or None,
            stats_compliant=found.compliant or None,
            next_page=_page_text(found.after, found.version, proved_ms) if found.after else "",
        )


def _asked(wanted: RequestedObjects) -> WantedObjects:
    """What the source is asked for: the same for all whose demands alone differ."""
    return WantedObjects(
        wanted.kind,
        wanted.table.name if wanted.table is not None else "",
        wanted.names,
        wanted.prefix,
        wanted.filter,
        wanted.names_only or wanted.count_only,
    )


def _judge(proof: Proof, wanted: RequestedObjects, seen: SourceObjects) -> Decision:
    """Whether the source's answer proves the demand. Raises `ReadError` ``missing_write_ids``."""
    if wanted.table is None or not seen.table_id:
        return proof.judge(seen.position, seen.as_of_ms)
    shown = SourceTable(seen.table_id, seen.table_kind, b"{}", seen.write_ids, seen.position, as_of_ms=seen.as_of_ms)
    decision = judge_table(proof, wanted.table, shown)
    return decision if seen.is_proved or not decision.may_be_served else _MAYBE_KEPT


def _compliant(wanted: RequestedObjects, seen: SourceObjects, chosen: list[int]) -> list[bool]:
    """Of statistics, whether each holds for the reader's list; none if the source has not told what they are of."""
    listed = wanted.table.write_ids if wanted.table is not None else None
    if listed is None or not seen.statistics_of:
        return []
    return [do_hold(seen.statistics_of[at], listed) for at in chosen]


def _of_source(wanted: RequestedObjects, seen: SourceObjects, shard: str, epoch: int) -> OwnerObjects:
    """The source's answer as an owner's: selected as the owner would. Raises `ReadError` ``bad_filter``."""
    try:
        chosen = select_named(seen.names, wanted.prefix, wanted.filter, seen.table_image)
    except FilterError as error:
        raise ReadError("bad_filter", str(error), hint=error.hint) from error
    at, hi = str(seen.position), str(seen.hi or seen.position)
    images = [] if wanted.names_only or wanted.count_only else [seen.images[place] for place in chosen]
    count = sum(seen.images[place] is not None for place in chosen) if wanted.names else len(chosen)
    return OwnerObjects(
        id=0, table_id=seen.table_id, partition=-1, freshness="", why="", served=True, needs_source=False, shard=shard,
        epoch=epoch, lo=at, hi=hi, watermark="", images=images, write_ids=seen.write_ids, count=count,
        compliant=_compliant(wanted, seen, chosen),
        names=[] if wanted.count_only else [object_name(seen.names[place]) for place in chosen],
    )  # fmt: skip


def _joined(first: OwnerObjects, second: OwnerObjects) -> OwnerObjects:
    """Two parts of an answer as one; not served if one of them is not, or if they may be of two moments."""
    for part in (first, second):
        if not part.served:
            return part
    if _moment(first) != _moment(second):
        why = "the objects changed while they were read in parts"
        return replace(second, served=False, freshness=Freshness.UNKNOWN.value, why=why)
    least = first if first.freshness != Freshness.FRESH.value else second
    return replace(
        least,
        as_of_ms=min(first.as_of_ms, second.as_of_ms),
        hi=latest_of((first.hi, second.hi)),
        names=first.names + second.names,
        images=first.images + second.images,
        structs=first.structs + second.structs,
        compliant=first.compliant + second.compliant,
        count=first.count + second.count,
    )


def _moment(found: OwnerObjects) -> tuple[str, int, int, str, str]:
    """The same of two answers: neither the set nor what may be seen of it has moved between them."""
    return found.shard, found.epoch, found.table_id, found.version, found.write_ids


class _Page(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The set's version, the name after which a page goes on, and the time that was demanded of the pages before."""

    version: str
    after: str
    proved_ms: Annotated[int, msgspec.Meta(ge=0)] = 0


_page = msgspec.json.Decoder(_Page)


def _page_text(after: str, version: str, proved_ms: int) -> str:
    parts = [version, after, proved_ms] if proved_ms else [version, after]
    return urlsafe_b64encode(msgspec.json.encode(parts)).decode().rstrip("=")


def demand_of_page(demand: ReadDemand, text: str) -> ReadDemand:
    """What is demanded of a page after the first: no later time, which the first one has proved for all of its version.

    Raises as `_page_of`.
    """
    proved_ms = _page_of(text).proved_ms
    return demand._replace(not_before_ms=min(demand.not_before_ms, proved_ms)) if proved_ms else demand


def _page_of(text: str) -> _Page:
    """Of a page as text; "" begins a list. Raises `ReadError` ``bad_parameter``."""
    if not text:
        return _Page("", "")
    try:
        page = _page.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        object_parts(page.after)
    except (ValueError, KeyFormatError) as error:
        why = "page is not one that an answer gave"
        raise ReadError("bad_parameter", why, hint="send next_page of the answer before unchanged") from error
    return page
