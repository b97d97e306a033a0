"""Reads of ranges of rows: from the owners of all partitions at one position, or from the source of truth."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

import msgspec

from consumers.owner.protocol import HISTORY_LOST, SCHEMA_CHANGED, GetRange, RangeRows
from consumers.owner.ranges.answering import within_bytes
from consumers.owner.ranges.order import Rank, values_in
from consumers.store.index import values_of
from serving.answers import RawRangeAnswer
from serving.client.answers import FreshnessName, RangeAnswer, ServedFrom
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.misses import NEVER_CACHED, NO_OWNER, UNPROVED, miss_reason
from serving.reads.demands import ReadDemand, RequestedRange
from serving.reads.descriptions import RENEWED_EVERY_S, Descriptions
from serving.reads.lookups.sources import COMMIT_S
from serving.reads.owners import OtherPartition, OwnerAway, Owners
from serving.reads.proof import Proof, history_lost_error, lost_of, reached_by, token_after, told_by_both
from serving.reads.ranges.pages import LIMIT_DEFAULT, VERSION, Page, Range, Stretch, range_of
from serving.reads.spaces import RowSpace, epoch_of, learn_shards
from serving.sources.source import RowSource, SchemaChanged, SourceRange
from stream.sources.key_range import KeyRange
from stream.spans import source_span
from tokens import Position, Vector

ROUNDS_MAX: Final = 8
"""How often partitions that are behind others are asked again."""
_OF_A_TABLE: Final = frozenset({"bad_key", "no_index", "bad_page"})
"""Codes of a refusal that another description of the table may take back."""
_APART: Final = "the partitions are in different epochs"
_NOWHERE: Final = Stretch("", 0, Position.parse(""), Position.parse(""))


class RangeLookup(NamedTuple):
    """A request for a range. ``deadline``: when to stop waiting, on the event loop's clock.

    ``may_renew``: its table may be described again.
    """

    space: RowSpace
    range: Range
    wanted: RequestedRange
    demand: ReadDemand
    deadline: float
    may_renew: bool

    @property
    def limit(self) -> int:
        """Of rows; 0: they are counted."""
        return 0 if self.wanted.counted else self.wanted.limit or LIMIT_DEFAULT

    @property
    def left_ms(self) -> int:
        """How long may still be waited."""
        return max(0, round(1000 * (self.deadline - asyncio.get_running_loop().time())))


class RangeMiss(NamedTuple):
    """Why the cache cannot prove a range. ``answers``: what the owners said all the same."""

    why: str
    answers: Sequence[RangeRows] = ()
    is_owner_away: bool = False


class FoundRange(NamedTuple):
    """The (key, image) of the first rows, in order, or their number; and where they stand."""

    rows: Sequence[tuple[bytes, bytes]]
    number: int
    more: bool
    stretches: tuple[Stretch, ...]
    """One for each shard that has rows of the range; none where it is not known."""
    freshness: str
    why: str

    @property
    def stretch(self) -> Stretch | None:
        """Where the rows stand; None if they are of several shards, which have no position in common."""
        return self.stretches[0] if len(self.stretches) == 1 else None

    def token_after(self, token: str) -> str:
        """``token`` with what is in the answer."""
        for shard, epoch, hi, _ in self.stretches:
            token = token_after(token, shard, epoch, str(hi))
        return token


class RangeReads:
    """Answers reads of ranges. Belongs to one event loop."""

    def __init__(self, owners: Owners, descriptions: Descriptions, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._descriptions = descriptions
        self._metrics = metrics

    async def read(self, space: RowSpace, wanted: RequestedRange, demand: ReadDemand) -> RawRangeAnswer:
        """The rows, or their number. Raises `ReadError`."""
        deadline = asyncio.get_running_loop().time() + demand.max_wait_ms / 1000
        name, since = space.full_name(wanted.table), self._descriptions.now()
        if wanted.page:  # what is a page of no table is so whoever can describe this one
            Page.parse(wanted.page)
        try:
            asked = await self._range(space, name, wanted)
            may_renew = not self._descriptions.describes_since(space, name, since - RENEWED_EVERY_S)
            return await self._read(RangeLookup(space, asked, wanted, demand, deadline, may_renew))
        except ReadError as error:
            if error.code not in _OF_A_TABLE or self._descriptions.describes_since(space, name, since):
                raise
        except SchemaChanged:
            pass
        await self._descriptions.renew(space, name, since)
        asked = await self._range(space, name, wanted)
        try:
            return await self._read(RangeLookup(space, asked, wanted, demand, deadline, False))
        except SchemaChanged as error:
            why = f"the primary key of {name} changed again while it was read"
            raise ReadError("source_failed", why) from error

    async def _range(self, space: RowSpace, name: str, wanted: RequestedRange) -> Range:
        """What a request means by the table's description. Raises `ReadError`."""
        table = await self._descriptions.get(space, name)
        return range_of(table, wanted, space.indexes_of(table))

    async def _read(self, lookup: RangeLookup) -> RawRangeAnswer:
        """Raises `SchemaChanged` too."""
        space, asked = lookup.space, lookup.range
        if asked.table.cacheable and asked.exact:
            found = await self._from_owners_or_lost(lookup)
        elif asked.table.cacheable:
            found = RangeMiss("another spelling of the values may name rows")
        else:
            found = RangeMiss(f"{asked.table.name} is never cached: {asked.table.reason}")
        if isinstance(found, FoundRange):
            return self._answer(lookup, "cache", found, found.token_after(lookup.demand.token))
        self._metrics.missed("range", _reason(found) if asked.table.cacheable else NEVER_CACHED)
        if not space.all_sources:
            why = f"the cache cannot prove its answer ({found.why}), and keyspace {space.name} has no source here"
            raise ReadError("no_owner" if found.is_owner_away else "source_unreachable", why)
        return await self._from_source(lookup, found)

    # -- owners ------------------------------------------------------------------------------------------------------

    async def _from_owners_or_lost(self, lookup: RangeLookup) -> FoundRange | RangeMiss:
        """As `_from_owners`. The token of a ``history_lost`` has the place of the source too."""
        try:
            return await self._from_owners(lookup)
        except ReadError as lost:
            if lost.code != "history_lost" or not lookup.space.all_sources:
                raise
            await told_by_both(lost, self._from_source(lookup, RangeMiss(str(lost))))

    async def _from_owners(self, lookup: RangeLookup) -> FoundRange | RangeMiss:
        """The rows at a position, of each shard that has rows of the range, at which every partition proves them.

        A partition whose watermark is behind the last change in another one is asked again, for that position.
        Raises `ReadError` ``history_lost``, ``bad_token``, `SchemaChanged`.
        """
        partitions, shards = _partitions(lookup), _shards(lookup)
        pending = [(partition, shard) for partition in partitions for shard in shards]
        answers: dict[tuple[int, str], RangeRows] = {}
        of, token, freshness = len(partitions), lookup.demand.token, ""
        for _ in range(ROUNDS_MAX):
            try:
                answered = await self._owners.read_each(
                    lookup.space.name,
                    _requests(lookup, pending, of, token),
                    RangeRows,
                    lambda answer: answer.served,
                    consistency=lookup.demand.consistency,
                    patience_s=lookup.left_ms / 1000,
                    wholly=True,
                )
                found = cast("list[RangeRows]", answered)
            except OwnerAway as away:
                if isinstance(away, OtherPartition) and lookup.may_renew:
                    raise SchemaChanged(lookup.range.table.name) from away
                return RangeMiss(str(away), is_owner_away=True)
            for place, answer in zip(pending, found, strict=True):
                answers[place] = answer
                self._learn(lookup, answer)
            refused = next((each for each in found if not each.served), None)
            if refused is not None:
                why = _APART if refused.code == HISTORY_LOST else refused.why
                return RangeMiss(why, [*answers.values()])
            for (partition, shard), answer in zip(pending, found, strict=True):
                if shard not in ("", answer.shard):  # an older owner does not know that a shard is meant
                    return RangeMiss(f"the owner of partition {partition} answers for {answer.shard}, not for {shard}")
            freshness = freshness or found[0].freshness
            joined = {shard: _joined([each for at, each in answers.items() if at[1] == shard]) for shard in shards}
            stretches = [each for each in joined.values() if each is not None]
            if len(stretches) < len(shards):
                return RangeMiss(_APART, [*answers.values()])
            if all(each.stands for each in stretches):
                if not _is_ordered(lookup, answers.values()):
                    return RangeMiss("only the source knows the order of the rows", [*answers.values()])
                parts = [_part_of(each) for each in answers.values()]
                until = ", ".join(str(each.until) for each in stretches)
                why = f"{len(partitions)} partitions are proved at {until}: {found[0].why}"
                return _merged(lookup, parts, tuple(stretches), freshness, why)
            if not lookup.left_ms:
                break
            pending = [at for at, each in answers.items() if not _has_come(each, joined[at[1]])]
            since = Vector({each.shard: (each.epoch, each.since) for each in stretches})
            token = str(lookup.demand.vector.merge(since))
        return RangeMiss("the partitions have not come to one position in time", [*answers.values()])

    def _learn(self, lookup: RangeLookup, answer: RangeRows) -> None:
        """Keeps what an answer says of its shard. Raises what it says of the whole request.

        What was demanded of it may have been another partition's position, which is in the replaced history.
        """
        vector = lookup.demand.vector
        lookup.space.epochs.learn_kin(answer.shard, answer.epoch, answer.kin)
        if answer.code == HISTORY_LOST and lost_of(vector, answer.shard, answer.epoch, answer.kin):
            raise history_lost_error(vector, answer.shard, answer.epoch, answer.watermark, answer.why, answer.kin)
        if answer.code == SCHEMA_CHANGED and lookup.may_renew:
            raise SchemaChanged(lookup.range.table.name)

    # -- source ------------------------------------------------------------------------------------------------------

    async def _from_source(self, lookup: RangeLookup, miss: RangeMiss) -> RawRangeAnswer:
        """From the source of each shard that has rows of the range, side by side. Each proves its own part."""
        wanted = _shards(lookup)
        sources = [each for each in lookup.space.all_sources if lookup.space.map is None or each.shard in wanted]
        parts = await asyncio.gather(*(self._from_shard(lookup, miss, each) for each in sources))
        found = parts[0] if len(parts) == 1 else _merged_shards(lookup, parts)
        return self._answer(lookup, "source", found, found.token_after(lookup.demand.token))

    async def _from_shard(self, lookup: RangeLookup, miss: RangeMiss, source: RowSource) -> FoundRange:
        """The rows of one shard. Raises `ReadError`, `SchemaChanged`."""
        space, asked = lookup.space, lookup.range
        await learn_shards(self._owners, space, lookup.demand.vector, lookup.deadline, source.shard)
        epoch = await epoch_of(self._owners, space, source.shard)
        proof = Proof(lookup.demand, source.shard, epoch, space.epochs.kin_of(source.shard, lookup.demand.vector))
        proof.reached = reached_by(proof, miss.answers)
        limit = lookup.limit
        after = values_in(asked.page.last) if asked.page is not None and limit else None  # a count is of all rows
        count_max = 0 if limit else lookup.wanted.limit
        order = tuple(name for name, _, _ in asked.order)
        behind = msgspec.json.decode(asked.page.values, type=list) if asked.page is not None and order else ()
        wanted = KeyRange(asked.leading, after, asked.descending, limit, count_max, asked.where, order, behind)
        if not limit and len(_shards(lookup)) > 1:  # else no row of the range has another shard's key
            wanted = replace(wanted, owns=lambda key: space.is_of(source.shard, key, asked.table))

        async def read() -> SourceRange:
            self._metrics.source_reads.inc()
            self._metrics.source_snapshots.inc()
            try:
                with source_span("range", source.shard):
                    return await source.read_range(asked.table, wanted)
            except ReadError as error:
                self._metrics.source_failures.inc()
                if error.code == "bad_key" and asked.page is not None:  # there were rows, so the range is possible
                    raise ReadError("bad_page", f"page: {error}") from error
                raise

        found = await read()
        if proof.is_behind(found.position, found.as_of_ms) and proof.demanded_position is not None:
            await source.wait(proof.demanded_position, max(lookup.left_ms / 1000, COMMIT_S), {asked.table.name})
            found = await read()
        decision = proof.judge(found.position, found.as_of_ms)
        if not decision.may_be_served:
            raise proof.refusal(decision, found.position, space.mapped)
        stretches = () if proof.epoch is None else (Stretch(proof.shard, proof.epoch, found.hi, found.position),)
        why = f"read from the source at {found.position}: {decision.why}; the cache: {miss.why}"
        rows = FoundRange(found.rows, found.number, found.more, stretches, decision.freshness.value, why)
        stranger = next((key for key, _ in found.rows if space.source_of(key, asked.table) is not source), None)
        if stranger is not None:
            why = f"{source.shard} has a row {stranger!r}, whose key is another shard's by the keyspace's map"
            raise ReadError(
                "source_failed", why, hint="delete the rows that were left in a shard that has not their keys"
            )
        return rows

    def _answer(self, lookup: RangeLookup, served_from: ServedFrom, found: FoundRange, token: str) -> RawRangeAnswer:
        self._metrics.answered("range", served_from, found.freshness)
        freshness, page = cast("FreshnessName", found.freshness), lookup.range.page
        if not lookup.limit:
            return RangeAnswer(served_from, freshness, found.why, token, [], count=found.number)
        stretch, moved = found.stretch, False
        if page is not None:
            both = stretch.joined(page.stretch) if stretch is not None else None
            moved = both is None or not both.stands
            stretch = stretch if moved else both
        following = ""
        if found.more:
            at = stretch or _NOWHERE
            last, image = found.rows[-1]
            values = values_of(lookup.range.ranking.values(image)) if lookup.range.order else b""
            of = lookup.range.fingerprint
            following = str(Page(VERSION, of, last, at.shard, at.epoch, str(at.since), str(at.until), values))
        rows = [msgspec.Raw(image) for _, image in found.rows]
        return RangeAnswer(served_from, freshness, found.why, token, rows, page=following, moved=moved)


def _partitions(lookup: RangeLookup) -> list[int]:
    """Those that may hold rows of the range."""
    asked, layout = lookup.range, lookup.space.layout
    home = layout.partition_of_leading(asked.key, len(asked.leading), len(asked.table.key), asked.table.prefix)
    return list(range(layout.partitions)) if home is None else [home]


def _requests(lookup: RangeLookup, pending: Sequence[tuple[int, str]], of: int, token: str) -> list[GetRange]:
    """What to ask the owners of ``pending``, partitions with shards. ``of``: so many partitions are asked in all."""
    asked, limit, wait_ms = lookup.range, lookup.limit, lookup.left_ms
    index, order = [name for name, _ in asked.where], [name for name, _, _ in asked.order]
    equal = values_of(value for _, value in asked.where) if index else b""
    return [
        GetRange(
            0,
            lookup.space.name,
            partition,
            of,
            asked.key,
            len(asked.leading),
            asked.page.last if asked.page is not None else b"",
            asked.descending,
            limit,
            0 if limit else lookup.wanted.limit,
            token,
            wait_ms,
            asked.meaning,
            not_before_ms=lookup.demand.not_before_ms,
            index=index,
            equal=equal,
            order=order,
            after_values=asked.page.values if asked.page is not None else b"",
            shard=shard,
        )
        for partition, shard in pending
    ]


class RangePart(NamedTuple):
    """What one partition or shard has of a range. ``more``: it has rows after the last one."""

    keys: Sequence[bytes]
    images: Sequence[bytes]
    number: int
    more: bool


def _part_of(answer: RangeRows) -> RangePart:
    return RangePart(answer.keys, answer.images, answer.count, answer.more)


def _has_come(answer: RangeRows, stretch: Stretch | None) -> bool:
    """Whether a partition has come to where the rows of its shard last changed."""
    return stretch is not None and Position.parse(answer.watermark).at_or_past(stretch.since)


def _shards(lookup: RangeLookup) -> list[str]:
    """Those that may have rows of the range, by the map; without one "": the only one.

    By another spelling of the values, the rows may be any shard's.
    """
    asked, known = lookup.range, lookup.space.map
    if known is None:
        return [""]
    columns, of = len(asked.leading) if asked.exact else 0, len(asked.table.key)
    keyspace_id = lookup.space.layout.id_of_leading(asked.key, columns, of, asked.table.prefix) if columns else None
    return [*known.shards] if keyspace_id is None else [known.shard_of(keyspace_id)]


def _reason(miss: RangeMiss) -> str:
    refused = next((each for each in miss.answers if not each.served), None)
    if refused is not None:
        return miss_reason(refused)
    return NO_OWNER if miss.is_owner_away else UNPROVED


def _joined(answers: Sequence[RangeRows]) -> Stretch | None:
    """Where the answers of all partitions stand; None if they are of different histories."""
    joined: Stretch | None = None
    for each in answers:
        stretch = Stretch(each.shard, each.epoch, Position.parse(each.hi), Position.parse(each.watermark))
        joined = joined.joined(stretch) if joined is not None else stretch
        if joined is None:
            return None
    return joined


def _is_ordered(lookup: RangeLookup, answers: Iterable[RangeRows]) -> bool:
    """Whether the order of all rows is known. A row alone, found by an index, needs none."""
    asked = lookup.range
    return not asked.where or sum(len(each.keys) for each in answers) < 2 or not asked.ranking.unranked


def _merged_shards(lookup: RangeLookup, parts: Sequence[FoundRange]) -> FoundRange:
    """The first rows of several sources, in order. Raises `ReadError` ``no_index`` if only a source knows the order."""
    unranked = lookup.range.ranking.unranked
    if unranked and sum(bool(part.rows) for part in parts) > 1:
        raise ReadError(
            "no_index", f"the rows are in several shards, and only each of them knows the order of {unranked}"
        )
    rows = [RangePart([k for k, _ in part.rows], [i for _, i in part.rows], part.number, part.more) for part in parts]
    freshness = next((part.freshness for part in parts if part.freshness != "fresh"), "fresh")
    stretches = tuple(stretch for part in parts for stretch in part.stretches)
    return _merged(lookup, rows, stretches, freshness, "; ".join(part.why for part in parts))


def _merged(
    lookup: RangeLookup, answers: Sequence[RangePart], stretches: tuple[Stretch, ...], freshness: str, why: str
) -> FoundRange:
    """The first rows of all parts, in order, up to the last one that a part with more rows has given.

    They have no more bytes than one part may have.
    """
    if not lookup.limit:
        number = sum(each.number for each in answers)
        number = min(number, lookup.wanted.limit) if lookup.wanted.limit else number
        return FoundRange((), number, False, stretches, freshness, why)
    having = [each for each in answers if each.keys]
    if len(having) < 2:
        only = having[0] if having else answers[0]
        rows = list(zip(only.keys, only.images, strict=True))
        return FoundRange(rows, len(rows), only.more, stretches, freshness, why)
    asked = lookup.range
    ranking = asked.ranking
    ranked: list[tuple[Rank, bytes, bytes]] = []
    ends: list[Rank] = []
    if ranking.unranked:
        rows = [row for each in answers for row in zip(each.keys, each.images, strict=True)]
        return FoundRange(rows, len(rows), any(each.more for each in answers), stretches, freshness, why)
    for each in answers:
        of_one = [ranking.rank(key, image) for key, image in zip(each.keys, each.images, strict=True)]
        ranked += zip(of_one, each.keys, each.images, strict=True)
        if each.more:
            ends.append(of_one[-1])
    ranked.sort(key=lambda row: row[0], reverse=asked.descending)
    if ends:
        end = max(ends) if asked.descending else min(ends)
        ranked = [row for row in ranked if (row[0] >= end if asked.descending else row[0] <= end)]
    rows = within_bytes((key, image) for _, key, image in ranked[: lookup.limit])
    return FoundRange(rows, len(rows), bool(ends) or len(rows) < len(ranked), stretches, freshness, why)
