"""The only code that decides whether a cached answer is fresh enough, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

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
    """What a read asks for: the session's vector and, for a transactional table, a list and a table id (0: not given).

    ``given``: the request carried a token, even an empty one.
    """

    vector: Vector = _NO_VECTOR
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0
    given: bool = False


@dataclass(frozen=True, slots=True)
class Tag:
    """What a cached answer is stamped with.

    ``shard``: empty if unknown. ``lo``: the position taken before the value was read. ``hi``: nothing in the value is
    later; the session merges it. ``watermark``: the partition's, for the shard. ``image_known``: False for a tombstone.
    """

    shard: str
    epoch: int
    lo: Position | None
    hi: Position | None
    watermark: Position | None
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0
    image_known: bool = True


class Verdict(StrEnum):
    """The reason for a decision, for programs. The text ``why`` is for people."""

    PROVED = "proved"
    NO_DEMAND = "no_demand"
    IMAGE_UNKNOWN = "image_unknown"
    OTHER_TABLE = "other_table"
    LIST_UNKNOWN = "list_unknown"
    LIST_NOT_COVERED = "list_not_covered"
    SHARD_UNKNOWN = "shard_unknown"
    NOT_REACHED = "not_reached"
    INCOMPARABLE = "incomparable"
    HISTORY_LOST = "history_lost"


class Decision(tuple[Freshness, str]):
    """The result of `decide`. It unpacks as (freshness, why); ``verdict`` is the reason as data."""

    verdict: Verdict

    def __new__(cls, freshness: Freshness, why: str, verdict: Verdict) -> Self:
        """``why``: one line for people."""
        decision = super().__new__(cls, (freshness, why))
        decision.verdict = verdict
        return decision

    def __getnewargs__(self) -> tuple[Freshness, str, Verdict]:
        """For pickle and copy."""
        return self[0], self[1], self.verdict

    @property
    def freshness(self) -> Freshness:
        """How fresh the answer is for the demand."""
        return self[0]

    @property
    def why(self) -> str:
        """One line that says why."""
        return self[1]

    @property
    def may_be_served(self) -> bool:
        """Whether the answer may be given for the demand."""
        return self[0] is Freshness.FRESH or self[0] is Freshness.EVENTUAL

    @property
    def history_lost(self) -> bool:
        """Whether the demand refers to a history that the shard has lost."""
        return self.verdict is Verdict.HISTORY_LOST


def decide(demand: Demand, tag: Tag) -> Decision:
    """Whether the answer that ``tag`` describes is fresh for ``demand``, and one line that says why.

    FRESH iff the image is known, the list is covered (if the demand has one), and ``lo`` or the watermark is provably
    at or past the session's component of the tag's own shard. Never raises.
    """
    if not tag.image_known:
        return _unknown(Verdict.IMAGE_UNKNOWN, "the cache knows only that the value changed, not the value")
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
        return _REACHED if wanted_list is None else _COVERED_AND_REACHED
    if wanted_list is not None:
        return _COVERED
    return _NOTHING_SEEN if demand.given else _NO_DEMAND


def _proved(why: str) -> Decision:
    return Decision(Freshness.FRESH, why, Verdict.PROVED)


_REACHED = _proved("at or past what the session has seen")
_COVERED = _proved("the entry contains every write of the list")
_COVERED_AND_REACHED = _proved(f"{_COVERED.why}, and is {_REACHED.why}")
_NOTHING_SEEN = _proved("the session has seen nothing yet")
_NO_DEMAND = Decision(Freshness.EVENTUAL, "the request has neither a token nor a write-id list", Verdict.NO_DEMAND)


def _stale(verdict: Verdict, why: str) -> Decision:
    return Decision(Freshness.STALE, why, verdict)


def _unknown(verdict: Verdict, why: str) -> Decision:
    return Decision(Freshness.UNKNOWN, why, verdict)


def _other_table_id(wanted: int, tagged: int) -> Decision:
    if not tagged:
        return _unknown(Verdict.OTHER_TABLE, f"the entry's table id is unknown, but table id {wanted} was requested")
    why = f"the entry has table id {tagged}, but {wanted} was requested: the table was dropped and re-created"
    return _stale(Verdict.OTHER_TABLE, why)


def _judge_list(wanted: ValidWriteIdList, tagged: ValidWriteIdList | None) -> Decision | None:
    if tagged is None:
        return _unknown(Verdict.LIST_UNKNOWN, "the entry has no write-id list")
    if not tagged.same_table(wanted):
        return _stale(Verdict.OTHER_TABLE, f"the entry is of table {tagged.table}, the list is of {wanted.table}")
    missing = tagged.missing(wanted)
    if missing is None:
        return None
    more = f" and {missing.total - 1} more" if missing.total > 1 else ""
    return _stale(Verdict.LIST_NOT_COVERED, f"write id {missing.first}{more} committed since")


def _judge_vector(vector: Vector, tag: Tag) -> Decision | None:
    if not tag.shard:
        why = f"the entry's shard is unknown; the session has seen {', '.join(vector)}"
        return _unknown(Verdict.SHARD_UNKNOWN, why)
    component = vector.get(tag.shard)
    if component is None:
        return None
    epoch, seen = component
    if epoch > tag.epoch:
        why = f"the session has seen epoch {epoch} of {tag.shard}, the entry is of epoch {tag.epoch}"
        return _stale(Verdict.NOT_REACHED, why)
    if epoch < tag.epoch:
        why = f"the session has seen {seen} in epoch {epoch} of {tag.shard}, a history that epoch {tag.epoch} replaced"
        return _unknown(Verdict.HISTORY_LOST, why)
    by_value = Order.UNKNOWN if tag.lo is None else tag.lo.order(seen)
    if by_value is Order.NEWER or by_value is Order.SAME:
        return None
    by_mark = Order.UNKNOWN if tag.watermark is None else tag.watermark.order(seen)
    if by_mark is Order.NEWER or by_mark is Order.SAME:
        return None
    return _not_reached(seen, tag, by_value, by_mark)


def _not_reached(seen: Position, tag: Tag, by_value: Order, by_mark: Order) -> Decision:
    known = [(place, answer) for place, answer in ((tag.watermark, by_mark), (tag.lo, by_value)) if place is not None]
    if not known:
        why = f"the position of {tag.shard} in this partition is unknown; the session has seen {seen}"
        return _unknown(Verdict.NOT_REACHED, why)
    place = known[0][0]
    if all(answer is Order.OLDER for _, answer in known):
        return _stale(Verdict.NOT_REACHED, f"{tag.shard} is at {place} here, the session has seen {seen}")
    why = f"{tag.shard} is at {place} here, which cannot be compared with the session's {seen}"
    return _unknown(Verdict.INCOMPARABLE, why)
