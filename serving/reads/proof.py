"""Whether an answer of the source proves a demand, what the session takes away, and what to say of lost history."""

from __future__ import annotations

from functools import lru_cache

from serving.errors import ReadError
from serving.reads.demands import ReadDemand
from tokens import Decision, Demand, Freshness, Position, Tag, TokenError, Vector, Verdict, decide


class Proof:
    """A demand, and the shard and epoch that the source's positions belong to.

    The epoch is the highest that owners or the session itself have named: a source that is read now is in no older one.
    None: nothing has named one, then an answer is ``eventual`` and the token can't hold it.
    """

    __slots__ = ("demand", "epoch", "shard")

    def __init__(self, demand: ReadDemand, shard: str, known_epoch: int | None) -> None:
        component = demand.vector.get(shard)
        epochs = [epoch for epoch in (known_epoch, component.epoch if component else None) if epoch is not None]
        self.demand = demand
        self.shard = shard
        self.epoch = max(epochs) if epochs else None

    @property
    def wanted(self) -> Position | None:
        """The position that the session has seen of the shard."""
        component = self.demand.vector.get(self.shard)
        return component.position if component is not None else None

    def judge(self, position: Position) -> Decision:
        """Whether a value read at ``position`` proves the demand. The source has no watermark: it is all there."""
        if self.epoch is None:
            return _NO_EPOCH
        tag = Tag(shard=self.shard, epoch=self.epoch, lo=position, hi=position, watermark=None)
        return decide(Demand(vector=self.demand.vector, given=self.demand.given), tag)

    def is_behind(self, position: Position) -> bool:
        """Whether the source has yet to reach what is demanded: waiting for it may help."""
        decision = self.judge(position)
        return not decision.may_be_served and not decision.history_lost

    def advanced(self, position: str) -> str:
        """The session's new token after an answer that holds nothing later than ``position``."""
        if self.epoch is None:
            return self.demand.token
        return advanced(self.demand.token, self.shard, self.epoch, position)

    def refusal(self, decision: Decision, position: Position) -> ReadError:
        """Why an answer that was read at ``position`` can't be given."""
        if decision.history_lost:
            return history_lost(self.demand.vector, self.shard, self.epoch or 0, str(position), decision.why)
        return ReadError("source_behind", f"the source's answer does not prove the demand: {decision.why}")


_NO_EPOCH = Decision(
    Freshness.EVENTUAL,
    "no owner has named the epoch of the shard yet, so the token cannot hold this answer",
    Verdict.NO_DEMAND,
)


@lru_cache(maxsize=8192)
def advanced(token: str, shard: str, epoch: int, position: str) -> str:
    """The session's new vector: what it had seen and what this answer holds. Raises `ReadError` ``bad_token``."""
    vector = Vector.parse(token) if token else Vector()
    if not shard or not position:
        return str(vector)
    try:
        return str(vector.merge(Vector({shard: (epoch, Position.parse(position))})))
    except TokenError as error:
        raise ReadError("bad_token", f"token: {error}", hint=error.hint) from error


def history_lost(vector: Vector, shard: str, epoch: int, position: str, why: str) -> ReadError:
    """409 with the token to go on with: the shard's component is where the new history is now."""
    token = vector.with_component(shard, epoch, Position.parse(position)) if position else vector.without(shard)
    return ReadError("history_lost", why, token=str(token))
