"""What rows and catalog tables share: the evidence for the comparator, and the rules for fills.

Callers read the head (with its watermarks) first and the entry after it, so that no value is older than the watermark
it is judged by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from consumers.fold.shards import NO_KIN, Kin, kin_of
from consumers.fold.state import Head, Lineage, Void
from consumers.owner.partitions import Partition
from tokens import Decision, Demand, Freshness, Order, Position, Tag, ValidWriteIdList, Vector, Verdict


class Evidence(Protocol):
    """Where an answer stands in its shard's history. `consumers.owner.protocol.OwnerRow` and ``Table`` implement it.

    Positions are text, "" if unknown. ``lo`` was recorded before the value was read; it decides freshness. Nothing in
    the value is later than ``hi``; the session adopts it. ``watermark`` is the partition's, ``as_of_ms`` as in `Tag`.
    """

    @property
    def shard(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def lo(self) -> str: ...
    @property
    def hi(self) -> str: ...
    @property
    def watermark(self) -> str: ...
    @property
    def as_of_ms(self) -> int: ...


class FillVerdict(NamedTuple):
    """Whether a value from the source may be kept in the overlay, and why or why not."""

    accepted: bool
    why: str


ACCEPTED = FillVerdict(True, "filled")


def refused(why: str) -> FillVerdict:
    """The verdict that refuses a fill."""
    return FillVerdict(False, why)


def demand_of(vector: str, write_ids: str = "", table_id: int = 0, not_before_ms: int = 0) -> Demand:
    """The demand in a request's text fields; raises `tokens.TokenError`."""
    return Demand(
        vector=Vector.parse(vector) if vector else Vector(),
        write_ids=ValidWriteIdList.parse(write_ids) if write_ids else None,
        table_id=table_id,
        given=bool(vector),
        not_before_ms=not_before_ms,
    )


def tag_of(
    evidence: Evidence,
    write_ids: ValidWriteIdList | None = None,
    table_id: int = 0,
    kin: Kin = NO_KIN,
) -> Tag:
    """The evidence in the form that `tokens.decide` takes; raises `tokens.TokenError`."""
    lo = Position.parse(evidence.lo) if evidence.lo else None
    return Tag(
        shard=evidence.shard,
        epoch=evidence.epoch,
        lo=lo,
        hi=lo if evidence.hi == evidence.lo else Position.parse(evidence.hi) if evidence.hi else None,
        watermark=Position.parse(evidence.watermark) if evidence.watermark else None,
        write_ids=write_ids,
        table_id=table_id,
        topology=kin.topology,
        ancestors=kin.ancestors,
        as_of_ms=evidence.as_of_ms,
    )


def kin_at(head: Head, shard: str, epoch: int) -> Kin:
    """`kin_of` for an entry of ``epoch``. A head that was read before it may be of an older one, and knows nothing."""
    lineage = head.lineages.get(shard)
    return kin_of(head, shard) if lineage is not None and lineage.epoch == epoch else NO_KIN


def may_catch_up(decision: Decision, watermark: str) -> bool:
    """Whether waiting can make the answer fresh: the partition is behind, has no watermark yet, or misses a shard."""
    if decision.history_lost:
        return False
    if decision.verdict is Verdict.SHARD_UNKNOWN:  # it may be declared further on
        return True
    return decision.freshness is Freshness.STALE or (decision.freshness is Freshness.UNKNOWN and not watermark)


def fill_refusal(lo: Position, lineage: Lineage, voids: Iterable[Void]) -> str:
    """Why a value read from the source at ``lo`` may not be kept for a key; "" if it may.

    ``voids`` are those that cover the key. ``lo`` must be at or past the low-water, the floor of each void of this
    epoch, and the watermark (docs/decisions/0011). While a void waits for its marker, nothing may be kept.
    """
    if not lineage.low_water or not lo.at_or_past(Position.parse(lineage.low_water)):
        return f"{lo} is below the low-water {lineage.low_water or '(unknown)'}"
    for void in voids:
        if void.epoch != lineage.epoch:
            continue
        if not void.floor:
            return "the table was voided, and the marker that follows has not arrived"
        if not lo.at_or_past(Position.parse(void.floor)):
            return f"{lo} is below {void.floor}, where the table was voided"
    if lineage.watermark and not lo.at_or_past(Position.parse(lineage.watermark)):
        return f"{lo} is behind the watermark {lineage.watermark}"
    return ""


def has_reached(partition: Partition, vector: Vector) -> bool:
    """Whether the partition's watermarks are at or past ``vector``; False if it names a shard unknown here."""
    lineages = partition.store.visible.lineages
    for shard, (epoch, position) in vector.items():
        lineage = lineages.get(shard)
        if lineage is None or lineage.epoch != epoch or not lineage.watermark:
            return False
        if Position.parse(lineage.watermark).order(position) not in (Order.NEWER, Order.SAME):
            return False
    return True


def watermarks(partition: Partition) -> Vector:
    """The partition's watermarks; shards without one are left out."""
    lineages = partition.store.visible.lineages
    return Vector(
        {name: (each.epoch, Position.parse(each.watermark)) for name, each in lineages.items() if each.watermark}
    )
