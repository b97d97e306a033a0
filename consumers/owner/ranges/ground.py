"""What all answers for ranges of a table share while nothing is folded: worked out once for each head.

A range is answered only where its table is whole (`consumers.fold.backfills.whole_shards`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from consumers.fold.backfills import voids_of, whole_at
from consumers.fold.shards import shard_map, sole_lineage
from consumers.fold.state import Backfill, Head, Lineage, Void
from consumers.owner.evidence import kin_at
from consumers.owner.meaning import Meaning
from consumers.owner.partitions import Partition
from consumers.owner.protocol import GetRange
from consumers.owner.ranges.indexed import columns_named, meaning_with
from consumers.owner.ranges.order import Ranking
from consumers.store.index import Extraction, Index
from tokens import Position, Tag

ASKED_MAX: Final = 256
"""Forms of a request that are kept for one head: the columns that are asked for."""


class Form(NamedTuple):
    """What the columns of a request are by a table's description. ``extraction``: None without an index.

    ``expected``: the fingerprint that the request must have; `meaning_with` says why it is another one than the key's.
    """

    meaning: Meaning
    ranking: Ranking
    extraction: Extraction | None
    expected: bytes


class Stretch(NamedTuple):
    """A ground's rows of a range are the same at each position from ``hi`` to the watermark.

    ``tag``: what `tokens.decide` takes. ``is_marked``: whether the watermark is at or past ``hi``.
    """

    hi: Position
    tag: Tag
    is_marked: bool


class Ground:
    """What a head says of a shard's rows of a table, which are whole in it."""

    __slots__ = ("_forms", "_since", "backfill", "kin", "lineage", "own", "shard", "voided", "voids", "watermark")

    def __init__(self, head: Head, table: str, shard: str, backfill: Backfill) -> None:
        self.shard = shard
        self.backfill = backfill
        self.lineage: Lineage = head.lineages[shard]
        self.watermark = Position.parse(self.lineage.watermark) if self.lineage.watermark else None
        self.kin = kin_at(head, shard, self.lineage.epoch)
        self.own = f"{shard}\0{self.lineage.epoch}\0".encode()
        """How the tag of each entry begins that the shard has written in its epoch."""
        self.voids: tuple[Void, ...] = voids_of(head, table, shard)
        self.voided = max((void.ordinal for void in self.voids if void.epoch == self.lineage.epoch), default=0)
        """Entries up to this ordinal count no more."""
        self._forms: dict[object, Form] = {}
        self._since: dict[tuple[str, ...], Stretch] = {}

    def form(self, meaning: Meaning, table: str, request: GetRange) -> Form:
        """What the columns of ``request`` are."""
        asked = (request.columns, *request.index, "", *request.order)
        known = self._forms.get(asked)
        if known is not None and known.meaning is meaning:
            return known
        order, extraction, expected = columns_named(meaning, request.order), None, meaning.fingerprint
        if request.index:
            extraction = _extraction_of(Index(table, tuple(request.index)))
            expected = meaning_with(expected, columns_named(meaning, request.index), "index")
        if order:
            expected = meaning_with(expected, order, "order")
        made = Form(meaning, Ranking(order, meaning.key, request.columns), extraction, expected)
        if len(self._forms) < ASKED_MAX:
            self._forms[asked] = made
        return made

    def stretch_since(self, *positions: str) -> Stretch:
        """From the join of the completion, the low-water, and ``positions`` ("": none) on."""
        known = self._since.get(positions)
        if known is None:
            hi = Position.parse(self.backfill.position)
            for each in (self.lineage.low_water, *positions):
                hi = hi.join(Position.parse(each)) if each else hi
            known = self.stretch_from(hi)
            if len(self._since) < ASKED_MAX:
                self._since[positions] = known
        return known

    def stretch_from(self, hi: Position) -> Stretch:
        """From ``hi`` on."""
        watermark, kin = self.watermark, self.kin
        tag = Tag(
            self.shard,
            self.lineage.epoch,
            hi,
            hi,
            watermark,
            topology=kin.topology,
            ancestors=kin.ancestors,
            as_of_ms=self.lineage.as_of_ms,
        )
        return Stretch(hi, tag, watermark is not None and watermark.at_or_past(hi))


_extraction_of: Final = lru_cache(1_024)(Extraction)
"""Making one takes longer than a look-up."""


def ground_of(partition: Partition, head: Head, table: str, asked: str) -> tuple[str, Ground | None]:
    """The shard of an answer, and what ``head`` says of its rows of ``table`` if these are whole in it.

    ``asked``: the shard that a request names; "": the only one, if there is no map of shards. For the thread that
    answers.
    """
    if partition.grounds_of is not head:
        partition.grounds_of, partition.grounds = head, {}
    known: tuple[str, Ground | None] | None = partition.grounds.get((table, asked))
    if known is None:
        shard = asked or ("" if shard_map(head) is not None else sole_lineage(head)[0])
        backfill = whole_at(head, table, shard)
        known = shard, Ground(head, table, shard, backfill) if backfill is not None else None
        if len(partition.grounds) < ASKED_MAX:  # names come from requests
            partition.grounds[table, asked] = known
    return known
