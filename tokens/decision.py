"""The only code that decides whether a cached answer is fresh enough, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from .position import Order, Position
from .vector import Vector
from .writeids import ValidWriteIdList


class Freshness(StrEnum):
    """What is known about an answer. Only FRESH is a proof; STALE and UNKNOWN are read from the source."""

    FRESH = "fresh"
    STALE = "stale"
    UNKNOWN = "unknown"
    EVENTUAL = "eventual"


ENDED: Final = 2**63 - 1
"""The epoch of an ancestor (`Tag.ancestors`) of which the shard has lost the history: every position of it is lost."""
_NO_VECTOR = Vector()
_NO_SHARDS: Mapping[str, int] = {}


@dataclass(slots=True, unsafe_hash=True)  # as `Tag`
class Demand:
    """What a read asks for: the session's vector and, for a transactional table, a list and a table id (0: not given).

    ``given``: the request carried a token, even an empty one. It demands nothing more, but the reason says it.
    ``not_before_ms``: the answer must hold all that the source had committed by then, in ms since 1970 by the source's
    clock; 0: not demanded.
    """

    vector: Vector = _NO_VECTOR
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0
    given: bool = False
    not_before_ms: int = 0


@dataclass(slots=True, unsafe_hash=True)  # not frozen: each read makes one, and that would take three times as long
class Tag:
    """What a cached answer is stamped with.

    ``shard``: empty if unknown. ``lo``: the position taken before the value was read. ``hi``: nothing in the value is
    later; the session merges it. ``watermark``: the partition's, for the shard. ``image_known``: False for a tombstone.
    ``topology``: shards that are known here; any but ``shard`` and the ancestors has no part in the key. None: it is
    not asked, so all ancestors are given. Empty: it has not been heard yet, so any other shard may be an ancestor.
    ``ancestors``: shard → its epoch whose positions are positions of ``shard`` in ``epoch``, or `ENDED`.
    ``as_of_ms``: all that the source had committed by then, by its own clock, is in the answer; 0: unknown.
    """

    shard: str
    epoch: int
    lo: Position | None
    hi: Position | None
    watermark: Position | None
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0
    image_known: bool = True
    topology: frozenset[str] | None = None
    ancestors: Mapping[str, int] = field(default_factory=lambda: _NO_SHARDS)
    as_of_ms: int = 0


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
    TOO_OLD = "too_old"
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
    at or past each of the session's components that can concern the key: those of the tag's shard and of its ancestors.
    A component of a shard that nobody here knows can't be met. Where a time is demanded, ``as_of_ms`` must have reached
    it as well. EVENTUAL if there is neither a component, nor a list, nor a time. Never raises.
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
    if demand.not_before_ms > tag.as_of_ms:
        return _too_old(demand.not_before_ms, tag)
    if demand.vector and _concerns(demand.vector, tag):
        return _REACHED if wanted_list is None else _COVERED_AND_REACHED
    if wanted_list is not None:
        return _COVERED
    if demand.not_before_ms:
        return _RECENT
    if demand.vector:
        return _UNCONCERNED
    return _NOTHING_SEEN if demand.given else _NO_DEMAND


def _proved(why: str) -> Decision:
    return Decision(Freshness.FRESH, why, Verdict.PROVED)


_REACHED = _proved("at or past what the session has seen")
_COVERED = _proved("the entry contains every write of the list")
_COVERED_AND_REACHED = _proved(f"{_COVERED.why}, and is {_REACHED.why}")
_UNCONCERNED = _proved("nothing that the session has seen is of the answer's shard")
_RECENT = _proved("it holds all that the source had committed within the demanded time")
_NOTHING_SEEN = Decision(
    Freshness.EVENTUAL, "the session has seen nothing yet: there is nothing to prove", Verdict.NO_DEMAND
)
_NO_DEMAND = Decision(Freshness.EVENTUAL, "the request has neither a token nor a write-id list", Verdict.NO_DEMAND)


def _stale(verdict: Verdict, why: str) -> Decision:
    return Decision(Freshness.STALE, why, verdict)


def _unknown(verdict: Verdict, why: str) -> Decision:
    return Decision(Freshness.UNKNOWN, why, verdict)


def _too_old(not_before_ms: int, tag: Tag) -> Decision:
    if not tag.as_of_ms:
        return _unknown(Verdict.TOO_OLD, "nothing says up to which time the answer holds what the source committed")
    why = f"proved up to {not_before_ms - tag.as_of_ms} ms before the oldest time that max_staleness_ms allows"
    return _stale(Verdict.TOO_OLD, why)


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


def keyspace_of(shard: str) -> str:
    """The keyspace that a shard's name carries: what is before its last ``/``; "" if there is none."""
    return shard.rpartition("/")[0]


def is_unknown(shard: str, epoch: int, tag: Tag) -> bool:
    """Whether nobody here knows if a position of (shard, epoch) concerns the tag's key.

    It does not concern the key if the shard is another one of the topology, or of another keyspace; but a shard may
    succeed one of another keyspace, so the topology must have been heard. Of an ancestor, the epoch that was handed
    over is known, and those that it replaced.
    """
    if shard == tag.shard:
        return False
    if shard in tag.ancestors:
        return epoch > tag.ancestors[shard]
    if tag.topology is not None:
        if not tag.topology:
            return True
        if shard in tag.topology:
            return False
    return not _is_elsewhere(keyspace_of(shard), keyspace_of(tag.shard))


def _is_elsewhere(keyspace: str, own: str) -> bool:
    return bool(keyspace and own) and keyspace != own


def _judge_vector(vector: Vector, tag: Tag) -> Decision | None:
    """The refusal of the components that the tag does not meet; None if it meets all. A lost history tells the most."""
    if not tag.shard:
        why = f"the entry's shard is unknown; the session has seen {', '.join(vector)}"
        return _unknown(Verdict.SHARD_UNKNOWN, why)
    refusal: Decision | None = None
    for shard, (epoch, seen) in vector.items():
        if shard == tag.shard:
            judged = _judge_component(shard, epoch, seen, tag.epoch, tag)
        elif is_unknown(shard, epoch, tag):
            why = f"the session has seen {shard} in epoch {epoch}, which is not in the topology of {tag.shard} here"
            judged = _unknown(Verdict.SHARD_UNKNOWN, why)
        elif shard in tag.ancestors:
            judged = _judge_component(shard, epoch, seen, tag.ancestors[shard], tag)
        else:
            continue
        if judged is not None and (refusal is None or _telling(judged) > _telling(refusal)):
            refusal = judged
    return refusal


def _telling(refusal: Decision) -> int:
    return {Verdict.HISTORY_LOST: 2, Verdict.SHARD_UNKNOWN: 1}.get(refusal.verdict, 0)


def _concerns(vector: Vector, tag: Tag) -> bool:
    """Whether any component was compared: those of unrelated shards demand nothing of this answer."""
    return tag.shard in vector or any(shard in vector for shard in tag.ancestors)


def _judge_component(shard: str, epoch: int, seen: Position, current: int, tag: Tag) -> Decision | None:
    """The refusal of one component of the tag's shard or an ancestor, whose epoch is ``current`` here; None if met."""
    if epoch > current:
        why = f"the session has seen epoch {epoch} of {shard}, the entry is of epoch {current}"
        return _stale(Verdict.NOT_REACHED, why)
    if epoch < current:
        by = f"epoch {current}" if current != ENDED else f"epoch {tag.epoch} of {tag.shard}"
        why = f"the session has seen {seen} in epoch {epoch} of {shard}, a history that {by} replaced"
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
