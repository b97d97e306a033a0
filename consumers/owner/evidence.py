"""What an answer is judged by, for rows and catalog tables alike: where it stands in history, and what may fill it.

The order of reads matters to the caller: the head (with its watermarks) first, the entry after. Then a value is never
older than the watermark it is judged by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from consumers.fold.state import Head, Lineage, Void
from consumers.owner.partitions import Partition
from tokens import Decision, Demand, Freshness, Order, Position, Tag, ValidWriteIdList, Vector


class Evidence(Protocol):
    """Where an answer stands in its shard's history; `consumers.owner.protocol.Row` and ``Table`` are it.

    Positions are text, "" if not known. ``lo`` was noted before the value was read: it decides freshness. Nothing in
    the value is later than ``hi``: the session takes it away. ``watermark`` and ``low_water`` are the partition's.
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


class FillVerdict(NamedTuple):
    """Whether an answer of the source may stand in the overlay, and why (not)."""

    accepted: bool
    why: str


ACCEPTED = FillVerdict(True, "filled")


def refused(why: str) -> FillVerdict:
    """A fill that may not stand."""
    return FillVerdict(False, why)


def demand_of(vector: str, write_ids: str = "", table_id: int = 0) -> Demand:
    """The demand that a request's texts stand for; raises `tokens.TokenError`."""
    return Demand(
        vector=Vector.parse(vector) if vector else Vector(),
        write_ids=ValidWriteIdList.parse(write_ids) if write_ids else None,
        table_id=table_id,
        given=bool(vector),
    )


def tag_of(evidence: Evidence, write_ids: ValidWriteIdList | None = None, table_id: int = 0) -> Tag:
    """The evidence as the comparator wants it."""
    return Tag(
        shard=evidence.shard,
        epoch=evidence.epoch,
        lo=Position.parse(evidence.lo) if evidence.lo else None,
        hi=Position.parse(evidence.hi) if evidence.hi else None,
        watermark=Position.parse(evidence.watermark) if evidence.watermark else None,
        write_ids=write_ids,
        table_id=table_id,
    )


def sole_lineage(head: Head) -> tuple[str, Lineage | None]:
    """The shard of keys that have no entry: known where the partition has one shard only."""
    if len(head.lineages) == 1:
        return next(iter(head.lineages.items()))
    return "", None


def may_catch_up(decision: Decision, watermark: str) -> bool:
    """Whether waiting can turn this decision into a fresh one: the partition is behind, or says nothing yet."""
    if decision.history_lost:
        return False
    return decision.freshness is Freshness.STALE or (decision.freshness is Freshness.UNKNOWN and not watermark)


def fill_refusal(lo: Position, lineage: Lineage, voids: Iterable[Void]) -> str:
    """Why no value read from the source at ``lo`` may stand beside the folded state of a key; "" if one may.

    At or above the low-water; never below the floor of a void, and not while a void waits for its marker. A fill behind
    the watermark is refused too: at a primary it would be lost history, at a replica the next one will do. ``voids``
    are those that bear on the key: those of an earlier epoch are answered by the low-water. docs/decisions/0011.
    """
    if not lineage.low_water or not lo.at_or_past(Position.parse(lineage.low_water)):
        return f"{lo} is below the low-water {lineage.low_water or '(unknown)'}"
    for void in voids:
        if void.epoch != lineage.epoch:
            continue
        if not void.floor:
            return "the table was voided, and the marker that follows has not come"
        if not lo.at_or_past(Position.parse(void.floor)):
            return f"{lo} is below {void.floor}, where the table was voided"
    if lineage.watermark and not lo.at_or_past(Position.parse(lineage.watermark)):
        return f"{lo} is behind the watermark {lineage.watermark}"
    return ""


def has_reached(partition: Partition, vector: Vector) -> bool:
    """Whether the partition's watermarks are at or past ``vector``; a shard that is not known here is not."""
    lineages = partition.store.visible.lineages
    for shard, (epoch, position) in vector.items():
        lineage = lineages.get(shard)
        if lineage is None or lineage.epoch != epoch or not lineage.watermark:
            return False
        if Position.parse(lineage.watermark).order(position) not in (Order.NEWER, Order.SAME):
            return False
    return True


def watermarks(partition: Partition) -> Vector:
    """The partition's watermarks as a vector."""
    lineages = partition.store.visible.lineages
    return Vector(
        {name: (each.epoch, Position.parse(each.watermark)) for name, each in lineages.items() if each.watermark}
    )
