"""Whether the source's answer proves a demand, waiting for a source that lags, and what to say of lost history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from time import monotonic
from typing import NamedTuple, TypeVar

from serving.errors import ReadError
from serving.reads.demands import ReadDemand
from tokens import Demand, Freshness, Position, Tag, Vector, decide
from tokens.decision import HISTORY_LOST

Key = TypeVar("Key")
Found = TypeVar("Found")

_PROVED = (Freshness.FRESH, Freshness.EVENTUAL)


class Verdict(NamedTuple):
    """``proved``: the answer may be given. ``lost``: the demand lies in a lost history."""

    freshness: str
    why: str
    proved: bool
    lost: bool


class Proof:
    """A demand, and the shard and epoch that the source's positions belong to.

    The epoch is the highest that owners or the session itself have named: a source that is read now is in no older one.
    None: nobody has named any, then an answer is ``eventual`` and the token can't hold it.
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


def judge(proof: Proof, position: Position) -> Verdict:
    """Whether a value that was read at ``position`` proves the demand. The source has no watermark: it is all there."""
    if proof.epoch is None:
        why = "no owner has named the epoch of the shard yet, so the token cannot hold this answer"
        return Verdict(Freshness.EVENTUAL.value, why, proved=True, lost=False)
    tag = Tag(shard=proof.shard, epoch=proof.epoch, lo=position, hi=position, watermark=None)
    freshness, why = decide(Demand(vector=proof.demand.vector, given=proof.demand.given), tag)
    return Verdict(freshness.value, why, freshness in _PROVED, why.startswith(HISTORY_LOST))


async def prove(
    proof: Proof,
    keys: Collection[Key],
    read: Callable[[Collection[Key]], Awaitable[Mapping[Key, Found | Exception]]],
    position_of: Callable[[Found], Position],
    wait: Callable[[Position, float], Awaitable[bool]],
    deadline: float,
) -> dict[Key, Found | Exception]:
    """What the source says of each key, or why it can't be given: one demand, judged for each.

    Where the source lags, it is waited for until ``deadline`` (`time.monotonic`), and what it did not prove is read
    again. Errors of a key: `ReadError` ``source_behind``, ``history_lost``, what ``wait`` raises, what ``read`` brings.
    """
    found = dict(await read(keys))
    behind = [key for key, each in found.items() if not isinstance(each, Exception) and _lags(proof, position_of(each))]
    remaining = deadline - monotonic()
    if behind and proof.wanted is not None and remaining > 0:
        try:
            await wait(proof.wanted, remaining)
            found |= await read(behind)
        except ReadError as error:
            found |= dict.fromkeys(behind, error)
    for key, each in found.items():
        if not isinstance(each, Exception):
            refusal = _refusal(proof, position_of(each))
            found[key] = each if refusal is None else refusal
    return found


def _lags(proof: Proof, position: Position) -> bool:
    verdict = judge(proof, position)
    return not verdict.proved and not verdict.lost


def _refusal(proof: Proof, position: Position) -> ReadError | None:
    verdict = judge(proof, position)
    if verdict.lost:
        return history_lost(proof.demand.vector, proof.shard, proof.epoch or 0, str(position), verdict.why)
    if not verdict.proved:
        return ReadError("source_behind", f"the source's answer does not prove the demand: {verdict.why}")
    return None


def history_lost(vector: Vector, shard: str, epoch: int, position: str, why: str) -> ReadError:
    """409 with the token to go on with: the shard's component is where the new history is now."""
    token = vector.with_component(shard, epoch, Position.parse(position)) if position else vector.without(shard)
    return ReadError("history_lost", why.removeprefix(f"{HISTORY_LOST}: "), token=str(token))
