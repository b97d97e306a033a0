"""Whether an answer of the source proves a demand, and the token that the session gets with it."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn

from consumers.fold.shards import NO_KIN, Kin
from consumers.owner.evidence import Evidence
from consumers.owner.protocol import RangeRows
from serving.errors import ReadError
from serving.reads.demands import ReadDemand
from tokens import (
    Decision,
    Demand,
    EventToken,
    Freshness,
    Order,
    Position,
    Tag,
    TokenError,
    Vector,
    Verdict,
    decide,
    order,
)
from tokens.decision import is_unknown
from tokens.vector import CACHED_LONG_TEXT_MAX, CACHED_TEXT_MAX, Component


class Reached(NamedTuple):
    """A position of the source, and a time by its clock: all that was committed by then is at or before it."""

    position: Position
    as_of_ms: int


class Proof:
    """A demand, with the shard and the epoch that the source's positions belong to.

    The epoch is the highest that an owner or the session has named: the source cannot be in an older one. If it is
    None, an answer is only ``eventual`` and its position cannot go into the token.
    """

    __slots__ = ("demand", "epoch", "kin", "reached", "shard")

    def __init__(self, demand: ReadDemand, shard: str, known_epoch: int | None, kin: Kin = NO_KIN) -> None:
        component = demand.vector.get(shard)
        epochs = [epoch for epoch in (known_epoch, component.epoch if component else None) if epoch is not None]
        self.demand = demand
        self.shard = shard
        self.kin = kin
        self.reached: Reached | None = None
        """What owners know of the history, and of its time: a replica knows none itself."""
        self.epoch = max(epochs) if epochs else None

    @property
    def demanded_position(self) -> Position | None:
        """The position that the source must have reached: the session's, and one that proves the demanded time."""
        component, reached = self.demand.vector.get(self.shard), self.reached
        if component is None:
            return reached.position if reached is not None else None
        if reached is None or reached.position.flavor != component.position.flavor:
            return component.position
        return component.position.join(reached.position)

    def judge(self, position: Position, as_of_ms: int = 0) -> Decision:
        """Whether a value read at ``position`` proves the demand. No watermark: a source has no backlog.

        ``as_of_ms``: as in `serving.sources.source.SourceRow`.
        """
        wanted = self.demand
        if self.epoch is None:
            return _NO_EPOCH if self.as_of(position, as_of_ms) >= wanted.not_before_ms else _NO_TIME
        return decide(
            Demand(vector=wanted.vector, given=wanted.given, not_before_ms=wanted.not_before_ms),
            self._tag(position, as_of_ms),
        )

    def as_of(self, position: Position, as_of_ms: int) -> int:
        """The time up to which an answer has all. One that is behind an owner's position is no primary's: 0."""
        reached = self.reached
        if reached is None:
            return as_of_ms
        return max(as_of_ms, reached.as_of_ms) if position.at_or_past(reached.position) else 0

    def _tag(self, position: Position, as_of_ms: int) -> Tag:
        kin = self.kin
        return Tag(
            self.shard,
            self.epoch or 0,
            position,
            position,
            None,
            topology=kin.topology,
            ancestors=kin.ancestors,
            as_of_ms=self.as_of(position, as_of_ms),
        )

    def is_behind(self, position: Position, as_of_ms: int = 0) -> bool:
        """Whether the source has not reached the demanded position yet, so that waiting may help."""
        decision = self.judge(position, as_of_ms)
        return not decision.may_be_served and not decision.history_lost and not self._is_of_another_flavor(position)

    def _is_of_another_flavor(self, position: Position) -> bool:
        demanded = self.demanded_position
        return demanded is not None and demanded.flavor != position.flavor

    def token_after(self, position: str) -> str:
        """The session's new token after an answer in which nothing is later than ``position``."""
        if self.epoch is None:
            return self.demand.token
        return token_after(self.demand.token, self.shard, self.epoch, position)

    def refusal(self, decision: Decision, position: Position, mapped: Collection[str] = ()) -> ReadError:
        """The error for an answer that was read at ``position`` and does not prove the demand.

        ``mapped``: as in `unknown_shards_error`.
        """
        vector, epoch = self.demand.vector, self.epoch or 0
        if decision.history_lost:
            return history_lost_error(vector, self.shard, epoch, str(position), decision.why, self.kin)
        if self._is_of_another_flavor(position):
            why = f"token: {self.shard} has positions like {position}, the token has {self.demanded_position} there"
            return ReadError("bad_token", why)
        if decision.verdict is Verdict.SHARD_UNKNOWN:
            lost = unknown_shards_error(vector, self.shard, epoch, self.kin, mapped)
            if lost is not None:
                return lost
        hint = _INCOMPARABLE if decision.verdict is Verdict.INCOMPARABLE else ""
        return ReadError("source_behind", f"the source's answer does not prove the demand: {decision.why}", hint=hint)


def reached_by(proof: Proof, answers: Iterable[Evidence | RangeRows]) -> Reached | None:
    """What owners have of the source's history, if a time is demanded: a server that lacks some of it is no primary.

    Their positions count of whatever time they are. An entry may be later than the last marker, which alone has a time.
    """
    if not proof.demand.not_before_ms:
        return None
    positions, as_of_ms = set[str](), 0
    for each in answers:
        if (each.shard, each.epoch) == (proof.shard, proof.epoch):
            positions |= {each.watermark, each.hi if isinstance(each, RangeRows) else each.lo}
            as_of_ms = max(as_of_ms, each.as_of_ms)
    reached = Position.parse("")
    for text in positions:
        reached = reached.join(Position.parse(text))
    return Reached(reached, as_of_ms) if reached.flavor else None


_INCOMPARABLE: Final = "is the position in the token one of this source? Its server or domain may be unknown there"
_COVERED = frozenset({Order.SAME, Order.NEWER})
_NO_EPOCH = Decision(
    Freshness.EVENTUAL,
    "no owner has named the epoch of the shard yet, so the token cannot include this answer",
    Verdict.NO_DEMAND,
)
_NO_TIME = Decision(
    Freshness.UNKNOWN,
    "no owner has named the epoch of the shard yet, and the source cannot tell how recent its answer is",
    Verdict.TOO_OLD,
)


def token_after(token: str, shard: str, epoch: int, position: str) -> str:
    """``token`` merged with the position of an answer, as text. Raises `ReadError` ``bad_token``."""
    size = len(token) + len(position)
    if size <= CACHED_TEXT_MAX:
        return _after_cached(token, shard, epoch, position)
    after = _after_cached_long if size <= CACHED_LONG_TEXT_MAX else _after_cached_longest
    return after(token, shard, epoch, position)


def _token_after(token: str, shard: str, epoch: int, position: str) -> str:
    vector = Vector.parse(token) if token else Vector()
    if not shard or not position:
        return str(vector)
    try:
        at, known = Position.parse(position), vector.get(shard)
        if known is not None and known.epoch == epoch and known.position.order(at) in _COVERED:
            return str(vector)  # as it would be merged: most answers are older than the demand
        return str(vector.merge(Vector({shard: (epoch, at)})))
    except TokenError as error:
        raise ReadError("bad_token", f"token: {error}", hint=error.hint) from error


_after_cached = lru_cache(maxsize=8192)(_token_after)
_after_cached_long = lru_cache(maxsize=256)(_token_after)
_after_cached_longest = lru_cache(maxsize=4)(_token_after)
"""Of the requests that are answered now, as `Vector.parse` keeps them."""


@lru_cache(maxsize=4)  # of the requests that are answered now: tokens may be long
def merged_tokens(token: str, other: str) -> str:
    """The token of a session that gets two answers at once. Both are of answers to one demand, so they merge."""
    if not token or token == other:
        return other
    return str(Vector.parse(token).merge(Vector.parse(other))) if other else token


def history_lost_error(vector: Vector, shard: str, epoch: int, position: str, why: str, kin: Kin = NO_KIN) -> ReadError:
    """The error ``history_lost`` of an answer of ``shard`` in ``epoch``. Its token lacks what lies in a lost history.

    It has the shard's component at the new history's ``position``, unless the session's own is of that history.
    """
    lost = lost_of(vector, shard, epoch, kin)
    kept = {name: each for name, each in vector.items() if name not in lost}
    if shard not in kept and position:
        kept[shard] = Component(epoch, Position.parse(position))
    return ReadError("history_lost", why, token=str(Vector(kept)))


def lost_of(vector: Vector, shard: str, epoch: int, kin: Kin) -> set[str]:
    """The shards of which ``vector`` lies in a history that ``shard`` in ``epoch`` has replaced."""
    ends = {**kin.ancestors, shard: epoch}
    return {name for name, each in vector.items() if each.epoch < ends.get(name, 0)}


async def told_by_both(lost: ReadError, asked: Awaitable[object]) -> NoReturn:
    """Raises ``lost``, the ``history_lost`` of an owner, once the source was asked too: see `lost_at_the_source`."""
    try:
        await asked
    except ReadError as error:
        raise lost_at_the_source(lost, error) from error
    raise lost


def lost_at_the_source(lost: ReadError, found: object) -> ReadError:
    """``lost``, the ``history_lost`` of an owner, with the place of the source in its token too, if it was ``found``.

    The session may have written in the new history before it was told. The owner's place may be before that.
    """
    if not isinstance(found, ReadError) or found.code != lost.code or not found.token:
        return lost
    try:
        return ReadError(lost.code, str(lost), token=merged_tokens(lost.token or "", found.token))
    except TokenError:  # the source is of another flavor by now
        return lost


def unknown_shards_error(
    vector: Vector, shard: str, epoch: int, kin: Kin, mapped: Collection[str] = ()
) -> ReadError | None:
    """The error ``history_lost`` for what the session has seen of shards that nobody knows; its token is without them.

    None if there are none, or if no owner that has caught up has said which shards there are: one that is only unheard
    of is not lost. Nor is one of ``mapped``, those of the keyspace's map: amid a split, the topology of a shard that
    stays is the old one until its source is restarted.
    """
    if not kin.topology or not kin.caught_up or not shard:
        return None
    tag = Tag(shard, epoch, None, None, None, topology=kin.topology, ancestors=kin.ancestors)
    unknown = [name for name, (at, _) in vector.items() if name not in mapped and is_unknown(name, at, tag)]
    if not unknown:
        return None
    left = vector
    for name in unknown:
        left = left.without(name)
    why = f"the session has seen {', '.join(unknown)}, which is not in the topology of {shard}"
    return ReadError("history_lost", why, token=str(left))


class ReadBetween(NamedTuple):
    """Where a row, or an absence, stands: read at ``lo`` or later, and nothing in it is later than ``hi``."""

    shard: str
    epoch: int
    timestamp: int
    lo: Position
    hi: Position

    @property
    def latest(self) -> EventToken:
        """The token that readers get: who compares a later row with it goes back behind nothing that is in this one."""
        return EventToken(self.timestamp, self.shard, self.hi, epoch=self.epoch)

    def is_fresher(self, compared: EventToken) -> bool | None:
        """Whether the row is as new as ``compared`` or newer; None if that is between ``lo`` and ``hi``, or unknown."""
        earliest = EventToken(self.timestamp, self.shard, self.lo, epoch=self.epoch)
        if order(earliest, compared) in (Order.SAME, Order.NEWER):
            return True
        return False if order(self.latest, compared) is Order.OLDER else None
