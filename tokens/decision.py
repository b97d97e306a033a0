"""The one place where it is decided whether a cached answer is fresh enough, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .position import Order, Position
from .vector import Vector
from .writeids import ValidWriteIdList


class Freshness(StrEnum):
    """What is known about an answer. Only FRESH is a proof; STALE and UNKNOWN are read from the source."""

    FRESH = "fresh"
    STALE = "stale"
    UNKNOWN = "unknown"
    EVENTUAL = "eventual"


_NO_VECTOR = Vector()


@dataclass(frozen=True, slots=True)
class Demand:
    """What a read brings: the session's vector, for a transactional table its list and table id (0: not given).

    ``given``: the request carried a token, even one that asks for nothing.
    """

    vector: Vector = _NO_VECTOR
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0
    given: bool = False


@dataclass(frozen=True, slots=True)
class Tag:
    """What a cached answer is stamped with.

    ``shard``: empty if unknown. ``lo``: stamped before the value was read. ``hi``: nothing in the value is later; what
    the session takes away. ``watermark``: of the partition, for the shard. ``image_known``: False for a tombstone.
    """

    shard: str
    epoch: int
    lo: Position | None
    hi: Position | None
    watermark: Position | None
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0
    image_known: bool = True


HISTORY_LOST = "history_lost"
"""How the reason begins when the demand lies in a history that the shard has lost."""


def decide(demand: Demand, tag: Tag) -> tuple[Freshness, str]:
    """Whether what ``tag`` stamps is fresh for ``demand``, and one line that says why.

    FRESH iff the image is known, the list is covered (where there is one) and ``lo`` or the watermark is provably at or
    past the session's component of the tag's own shard. Never raises.
    """
    if not tag.image_known:
        return Freshness.UNKNOWN, "the value isn't known here, only that it changed"
    wanted_list = demand.write_ids
    if demand.table_id and demand.table_id != tag.table_id:
        return _other_table_id(demand.table_id, tag.table_id)
    if wanted_list is not None:
        refusal = _judge_list(wanted_list, tag.write_ids)
        if refusal is not None:
            return refusal
    if demand.vector:
        refusal = _judge_vector(demand.vector, tag)
        if refusal is not None:
            return refusal
        return Freshness.FRESH, "at or past what the session has seen" if wanted_list is None else _FRESH_BOTH
    if wanted_list is not None:
        return Freshness.FRESH, "every write of the list is in it"
    if demand.given:
        return Freshness.FRESH, "the session has seen nothing yet"
    return Freshness.EVENTUAL, "the request brought neither a token nor a write-id list"


_FRESH_BOTH = "every write of the list is in it, and it is at or past what the session has seen"


def _other_table_id(wanted: int, tagged: int) -> tuple[Freshness, str]:
    if not tagged:
        return Freshness.UNKNOWN, f"the entry's table id isn't known, table id {wanted} was asked for"
    return (
        Freshness.STALE,
        f"the entry is of table id {tagged}, table id {wanted} was asked for: dropped and re-created",
    )


def _judge_list(wanted: ValidWriteIdList, tagged: ValidWriteIdList | None) -> tuple[Freshness, str] | None:
    if tagged is None:
        return Freshness.UNKNOWN, "the entry carries no write-id list"
    if not tagged.same_table(wanted):
        return Freshness.STALE, f"the entry is of table {tagged.table}, the list is of {wanted.table}"
    missing = tagged.missing(wanted)
    if missing is None:
        return None
    if missing.total == 1:
        return Freshness.STALE, f"write id {missing.first} committed since"
    return Freshness.STALE, f"write id {missing.first} and {missing.total - 1} more committed since"


def _judge_vector(vector: Vector, tag: Tag) -> tuple[Freshness, str] | None:
    if not tag.shard:
        return Freshness.UNKNOWN, f"the entry's shard isn't known, the session has seen {', '.join(vector)}"
    component = vector.get(tag.shard)
    if component is None:
        return None
    epoch, seen = component
    if epoch > tag.epoch:
        return Freshness.STALE, f"the session has seen epoch {epoch} of {tag.shard}, the entry is of epoch {tag.epoch}"
    if epoch < tag.epoch:
        return Freshness.UNKNOWN, (
            f"{HISTORY_LOST}: the session has seen {seen} in epoch {epoch} of {tag.shard}, a history that epoch"
            f" {tag.epoch} replaced"
        )
    by_value = Order.UNKNOWN if tag.lo is None else tag.lo.order(seen)
    if by_value is Order.NEWER or by_value is Order.SAME:
        return None
    by_mark = Order.UNKNOWN if tag.watermark is None else tag.watermark.order(seen)
    if by_mark is Order.NEWER or by_mark is Order.SAME:
        return None
    return _not_reached(seen, tag, by_value, by_mark)


def _not_reached(seen: Position, tag: Tag, by_value: Order, by_mark: Order) -> tuple[Freshness, str]:
    known = [(place, answer) for place, answer in ((tag.watermark, by_mark), (tag.lo, by_value)) if place is not None]
    if not known:
        return Freshness.UNKNOWN, f"nothing says how far {tag.shard} is in this partition; the session has seen {seen}"
    place = known[0][0]
    if all(answer is Order.OLDER for _, answer in known):
        return Freshness.STALE, f"{tag.shard} is at {place} here, the session has seen {seen}"
    return Freshness.UNKNOWN, f"{tag.shard} is at {place} here, which cannot be compared with the session's {seen}"
